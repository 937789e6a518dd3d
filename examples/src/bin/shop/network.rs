//! The network between client and shop: a proxy that loses, delays and resets what passes through it.
//!
//! What happens to a request is drawn from the seed, the request's body and how often that body has come by: the same
//! seed does the same to the same order, however the tasks are scheduled.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Delivered,
    /// The shop does it; the answer is lost and the connection closed.
    AnswerLost,
    /// The shop does it; nothing comes back, ever.
    AnswerStuck,
    /// Held back until the client has left, and delivered then.
    Late,
    /// Reset before the shop sees it.
    ResetBefore,
    /// The shop does it; the connection is reset.
    ResetAfter,
}

impl Fate {
    /// A fifth of the requests lose their answer, a fifth time out, a fifth are reset.
    fn draw(random: &mut fastrand::Rng) -> Self {
        match random.u32(0..10) {
            0 | 1 => Self::AnswerLost,
            2 => Self::AnswerStuck,
            3 => Self::Late,
            4 => Self::ResetBefore,
            5 => Self::ResetAfter,
            _ => Self::Delivered,
        }
    }
}

/// What the network has seen so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) sent: u64,
    /// Answers that the shop gave and the client never got.
    pub(crate) answers_lost: u64,
    pub(crate) late: u64,
}

#[derive(Default)]
struct Counters {
    sent: AtomicU64,
    answers_lost: AtomicU64,
    late: AtomicU64,
    under_way: AtomicU64,
}

pub(crate) struct FlakyNetwork {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: tokio::task::JoinHandle<()>,
}

struct Shared {
    shop: SocketAddr,
    seed: u64,
    seen: Mutex<HashMap<u64, u64>>,
    counters: Counters,
}

impl FlakyNetwork {
    pub(crate) async fn start(shop: SocketAddr, seed: u64) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared { shop, seed, seen: Mutex::default(), counters: Counters::default() });
        let carrying = Arc::clone(&shared);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let shared = Arc::clone(&carrying);
                tokio::spawn(async move {
                    // A client that leaves is the point of the exercise, not an error.
                    let _ = shared.carry(client).await;
                });
            }
        });
        Ok(Self { address, shared, accepting })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn counts(&self) -> Counts {
        let counters = &self.shared.counters;
        Counts {
            sent: counters.sent.load(Ordering::Relaxed),
            answers_lost: counters.answers_lost.load(Ordering::Relaxed),
            late: counters.late.load(Ordering::Relaxed),
        }
    }

    /// Waits until everything that was held back has arrived.
    pub(crate) async fn drain(&self) {
        while self.shared.counters.under_way.load(Ordering::Acquire) > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for FlakyNetwork {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Counts a request as under way, also when its connection breaks.
struct UnderWay<'a>(&'a AtomicU64);

impl<'a> UnderWay<'a> {
    fn begin(count: &'a AtomicU64) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Shared {
    async fn carry(&self, mut client: TcpStream) -> io::Result<()> {
        let mut unread = Vec::new();
        while let Some(message) = read_message(&mut client, &mut unread).await? {
            self.counters.sent.fetch_add(1, Ordering::Relaxed);
            let _under_way = UnderWay::begin(&self.counters.under_way);
            match self.fate_of(&message) {
                Fate::Delivered => {
                    let answer = self.deliver(&message).await?;
                    let delivered = client.write_all(&answer).await;
                    self.counters.answers_lost.fetch_add(u64::from(delivered.is_err()), Ordering::Relaxed);
                    delivered?;
                }
                Fate::AnswerLost => return self.deliver_and_forget(&message).await,
                Fate::AnswerStuck => {
                    self.deliver_and_forget(&message).await?;
                    return until_it_leaves(&mut client).await;
                }
                Fate::Late => {
                    until_it_leaves(&mut client).await?;
                    self.counters.late.fetch_add(1, Ordering::Relaxed);
                    return self.deliver_and_forget(&message).await;
                }
                Fate::ResetBefore => return client.set_zero_linger(),
                Fate::ResetAfter => {
                    self.deliver_and_forget(&message).await?;
                    return client.set_zero_linger();
                }
            }
        }
        Ok(())
    }

    fn fate_of(&self, message: &Message) -> Fate {
        let mut hash = DefaultHasher::new();
        message.body().hash(&mut hash);
        let body = hash.finish();
        let time = {
            let mut seen = self.seen.lock().expect("no holder panics");
            let times = seen.entry(body).or_default();
            *times += 1;
            *times
        };
        let mut hash = DefaultHasher::new();
        (self.seed, body, time).hash(&mut hash);
        Fate::draw(&mut fastrand::Rng::with_seed(hash.finish()))
    }

    async fn deliver(&self, message: &Message) -> io::Result<Vec<u8>> {
        let mut shop = TcpStream::connect(self.shop).await?;
        shop.write_all(&message.bytes).await?;
        let mut unread = Vec::new();
        let answer = read_message(&mut shop, &mut unread).await?;
        answer.map(|answer| answer.bytes).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    async fn deliver_and_forget(&self, message: &Message) -> io::Result<()> {
        self.deliver(message).await?;
        self.counters.answers_lost.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// The client says nothing more until it closes the connection.
async fn until_it_leaves(client: &mut TcpStream) -> io::Result<()> {
    let mut rest = [0; 64];
    // A reset is a way of leaving too.
    while client.read(&mut rest).await.is_ok_and(|length| length > 0) {}
    Ok(())
}

/// A request or an answer, as it is on the wire.
struct Message {
    bytes: Vec<u8>,
    head: usize,
}

impl Message {
    fn body(&self) -> &[u8] {
        &self.bytes[self.head..]
    }
}

/// Reads one HTTP/1.1 message with a `Content-Length`, or none; `None` at the end of the connection.
async fn read_message(stream: &mut TcpStream, unread: &mut Vec<u8>) -> io::Result<Option<Message>> {
    let head = loop {
        if let Some(end) = unread.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(unread).await? == 0 {
            return Ok(None);
        }
    };
    let length = content_length(&unread[..head])?;
    while unread.len() < head + length {
        if stream.read_buf(unread).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let rest = unread.split_off(head + length);
    Ok(Some(Message { bytes: std::mem::replace(unread, rest), head }))
}

fn content_length(head: &[u8]) -> io::Result<usize> {
    let head = std::str::from_utf8(head).map_err(io::Error::other)?;
    let mut lines = head.lines().filter_map(|line| line.split_once(':'));
    match lines.find(|(name, _)| name.eq_ignore_ascii_case("content-length")) {
        Some((_, length)) => length.trim().parse().map_err(io::Error::other),
        None => Ok(0),
    }
}
