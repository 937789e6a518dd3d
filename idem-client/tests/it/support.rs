//! A real HTTP server on loopback that does as it is told: answers, and loses, delays and breaks answers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

/// What the server does with one request.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Carries the request out (once a key, as an idempotent server does) and answers.
    Answer(Answer),
    /// Answers without carrying anything out.
    Refuse(Answer),
    /// Closes the connection without carrying the request out.
    DropBefore,
    /// Carries it out and closes the connection without a word.
    DropAfter,
    /// Carries it out, sends the head and half of the body, and resets the connection.
    ResetMidBody(Answer),
    /// Carries it out, waits, then answers.
    Slow(Duration, Answer),
    /// Carries it out and never answers.
    Never,
    /// Neither carries it out nor answers.
    Hang,
}

#[derive(Clone, Debug)]
pub(crate) struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

pub(crate) fn answer(status: u16) -> Answer {
    Answer { status, headers: Vec::new(), body: format!("answer {status}") }
}

impl Answer {
    pub(crate) fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub(crate) fn body(mut self, body: impl Into<String>) -> Self {
        self.body = body.into();
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut text = format!("HTTP/1.1 {} Scripted\r\ncontent-length: {}\r\n", self.status, self.body.len());
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str("\r\n");
        text.push_str(&self.body);
        text.into_bytes()
    }
}

/// A request as the server saw it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: HashMap<String, Vec<String>>,
    pub(crate) body: String,
    pub(crate) at: Instant,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|lines| lines[0].as_str())
    }

    pub(crate) fn key(&self) -> Option<&str> {
        let lines = self.headers.get("idempotency-key")?;
        assert_eq!(lines.len(), 1, "one key header");
        Some(&lines[0])
    }
}

type Script = dyn Fn(usize, &Seen) -> Act + Send + Sync;

pub(crate) struct Server {
    pub(crate) base: String,
    shared: Arc<Shared>,
    accepting: tokio::task::JoinHandle<()>,
}

struct Shared {
    script: Box<Script>,
    seen: Mutex<Vec<Seen>>,
    effects: Mutex<Vec<String>>,
    answered: Mutex<Vec<String>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Server {
    /// Does the acts one after the other; the last one for ever.
    pub(crate) async fn script(acts: impl Into<Vec<Act>>) -> Self {
        let acts: Vec<Act> = acts.into();
        Self::start(move |number, _| acts[number.min(acts.len() - 1)].clone()).await
    }

    /// Does what the function says about the n-th request.
    pub(crate) async fn start(script: impl Fn(usize, &Seen) -> Act + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            script: Box::new(script),
            seen: Mutex::default(),
            effects: Mutex::default(),
            answered: Mutex::default(),
        });
        let serving = Arc::clone(&shared);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&serving)));
            }
        });
        Self { base, shared, accepting }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// The keys whose operation was carried out, once each, in order; keyless ones are `-`, as often as they came.
    pub(crate) fn effects(&self) -> Vec<String> {
        self.shared.effects.lock().unwrap().clone()
    }

    /// The keys of requests whose answer was written to the end.
    pub(crate) fn answered(&self) -> Vec<String> {
        self.shared.answered.lock().unwrap().clone()
    }

    /// How far apart the requests came in.
    pub(crate) fn gaps(&self) -> Vec<Duration> {
        self.seen().windows(2).map(|pair| pair[1].at - pair[0].at).collect()
    }

    /// Asserts that all requests were the same one: method, path, key and body.
    pub(crate) fn assert_same_request(&self, times: usize) {
        let seen = self.seen();
        assert_eq!(seen.len(), times, "{seen:#?}");
        for request in &seen {
            assert_eq!(request.key(), seen[0].key());
            assert_eq!((&request.method, &request.path), (&seen[0].method, &seen[0].path));
            assert_eq!(request.body, seen[0].body);
        }
    }
}

impl Shared {
    fn carry_out(&self, request: &Seen) {
        let key = request.key().unwrap_or("-").to_owned();
        let mut effects = self.effects.lock().unwrap();
        if key == "-" || !effects.contains(&key) {
            effects.push(key);
        }
    }
}

async fn serve(mut stream: TcpStream, shared: Arc<Shared>) {
    let mut unread = Vec::new();
    while let Some(request) = read_request(&mut stream, &mut unread).await {
        let act = {
            let mut seen = shared.seen.lock().unwrap();
            seen.push(request.clone());
            (shared.script)(seen.len() - 1, &request)
        };
        if !matches!(act, Act::Refuse(_) | Act::DropBefore | Act::Hang) {
            shared.carry_out(&request);
        }
        match act {
            Act::DropBefore | Act::DropAfter => return,
            Act::Never | Act::Hang => return std::future::pending().await,
            Act::ResetMidBody(answer) => return reset_mid_body(stream, &answer).await,
            Act::Slow(wait, answer) => {
                tokio::time::sleep(wait).await;
                if stream.write_all(&answer.bytes()).await.is_err() {
                    return;
                }
            }
            Act::Answer(answer) | Act::Refuse(answer) => {
                if stream.write_all(&answer.bytes()).await.is_err() {
                    return;
                }
            }
        }
        shared.answered.lock().unwrap().push(request.key().unwrap_or("-").to_owned());
    }
}

async fn reset_mid_body(mut stream: TcpStream, answer: &Answer) {
    let bytes = answer.bytes();
    let half = bytes.len() - answer.body.len() / 2;
    stream.write_all(&bytes[..half]).await.unwrap();
    stream.flush().await.unwrap();
    // The client reads what was sent before the reset arrives, or it would not be in the middle of the body.
    tokio::time::sleep(Duration::from_millis(30)).await;
    stream.set_zero_linger().unwrap();
}

async fn read_request(stream: &mut TcpStream, unread: &mut Vec<u8>) -> Option<Seen> {
    let head_end = loop {
        if let Some(end) = find(unread, b"\r\n\r\n") {
            break end;
        }
        fill(stream, unread).await?;
    };
    let head = String::from_utf8(unread[..head_end].to_vec()).unwrap();
    unread.drain(..head_end + 4);
    let mut lines = head.split("\r\n");
    let mut first = lines.next().unwrap().split(' ');
    let (method, path) = (first.next().unwrap().to_owned(), first.next().unwrap().to_owned());
    let mut headers: HashMap<String, Vec<String>> = HashMap::new();
    for line in lines {
        let (name, value) = line.split_once(':').unwrap();
        headers.entry(name.to_ascii_lowercase()).or_default().push(value.trim().to_owned());
    }
    let body = if headers.contains_key("transfer-encoding") {
        let end = loop {
            if let Some(end) = find(unread, b"0\r\n\r\n") {
                break end + 5;
            }
            fill(stream, unread).await?;
        };
        unread.drain(..end).collect()
    } else {
        let length = headers.get("content-length").map_or(0, |lines| lines[0].parse().unwrap());
        while unread.len() < length {
            fill(stream, unread).await?;
        }
        unread.drain(..length).collect::<Vec<u8>>()
    };
    Some(Seen { method, path, headers, body: String::from_utf8(body).unwrap(), at: Instant::now() })
}

async fn fill(stream: &mut TcpStream, unread: &mut Vec<u8>) -> Option<()> {
    let mut chunk = [0; 4096];
    match stream.read(&mut chunk).await {
        Ok(0) | Err(_) => None,
        Ok(length) => {
            unread.extend_from_slice(&chunk[..length]);
            Some(())
        }
    }
}

fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    bytes.windows(pattern.len()).position(|window| window == pattern)
}

/// How late this machine wakes a sleeping task, while a test looks at the clock: what a promise about time must be
/// forgiven, and nothing more.
pub(crate) struct SchedulingDelay {
    worst: Arc<Mutex<Duration>>,
    measuring: tokio::task::JoinHandle<()>,
}

impl SchedulingDelay {
    pub(crate) fn measure() -> Self {
        const NAP: Duration = Duration::from_millis(5);
        let worst = Arc::new(Mutex::new(Duration::ZERO));
        let noted = Arc::clone(&worst);
        let measuring = tokio::spawn(async move {
            loop {
                let started = std::time::Instant::now();
                tokio::time::sleep(NAP).await;
                let late = started.elapsed().saturating_sub(NAP);
                let mut worst = noted.lock().unwrap();
                *worst = late.max(*worst);
            }
        });
        Self { worst, measuring }
    }

    /// The allowance: twice the worst delay seen, for the client's task and the server's, and a little for the work.
    pub(crate) fn allowance(&self) -> Duration {
        Duration::from_millis(20) + 2 * *self.worst.lock().unwrap()
    }
}

impl Drop for SchedulingDelay {
    fn drop(&mut self) {
        self.measuring.abort();
    }
}

/// A directory of its own, removed at the end.
pub(crate) struct Directory(std::path::PathBuf);

impl Directory {
    pub(crate) fn new() -> Self {
        let path = std::env::temp_dir().join(format!("idem-client-{}", idem_client::Key::random()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
