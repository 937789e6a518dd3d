//! A body that is made anew for each attempt: a file, or what a function of the caller's makes.
//!
//! A stream can be read once, so a request with one cannot be sent again, and the journal cannot say what was sent. A
//! body that can be made again can, if it is the same one: the same key with other bytes is another request. So it is
//! read once before the first attempt, for its length and hash, and each attempt is held against them.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead as _, ReadBuf};

type Making = Pin<Box<dyn Future<Output = io::Result<reqwest::Body>> + Send>>;

/// A body that can be made again, for [`RequestBuilder::replayable`](crate::RequestBuilder::replayable) or among a
/// request's extensions.
///
/// It is read once before the first attempt: the hash goes to the journal, the length to `Content-Length`. When an
/// attempt makes other bytes (the file was changed meanwhile), the last of them are held back and the attempt ends in an
/// error, so that the server never has a whole request that is another one.
#[derive(Clone)]
pub struct ReplayableBody {
    make: Arc<dyn Fn() -> Making + Send + Sync>,
}

impl ReplayableBody {
    /// A body that the function makes, the same bytes each time.
    ///
    /// ```
    /// use idem_client::ReplayableBody;
    ///
    /// let body = ReplayableBody::new(|| async { Ok("the report of November".into()) });
    /// ```
    pub fn new<Made>(make: impl Fn() -> Made + Send + Sync + 'static) -> Self
    where
        Made: Future<Output = io::Result<reqwest::Body>> + Send + 'static,
    {
        Self { make: Arc::new(move || Box::pin(make())) }
    }

    /// The contents of a file, read again for each attempt.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self::new(move || {
            let path = path.clone();
            async move { Ok(reqwest::Body::wrap(FileBody::open(path).await?)) }
        })
    }

    /// Reads it once.
    pub(crate) async fn prepare(self) -> io::Result<PreparedBody> {
        let mut body = (self.make)().await?;
        let (mut hash, mut length) = (Sha256::new(), 0_u64);
        while let Some(frame) = next_frame(&mut body).await {
            if let Ok(data) = frame.map_err(io::Error::other)?.into_data() {
                hash.update(&data);
                length += data.len() as u64;
            }
        }
        Ok(PreparedBody { make: self.make, hash: hash.finalize().into(), length })
    }
}

impl fmt::Debug for ReplayableBody {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ReplayableBody").finish_non_exhaustive()
    }
}

pub(crate) async fn next_frame(body: &mut reqwest::Body) -> Option<reqwest::Result<Frame<Bytes>>> {
    std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await
}

/// A replayable body whose bytes are known.
pub(crate) struct PreparedBody {
    make: Arc<dyn Fn() -> Making + Send + Sync>,
    pub(crate) hash: [u8; 32],
    length: u64,
}

impl PreparedBody {
    pub(crate) async fn make(&self) -> io::Result<reqwest::Body> {
        let inner = (self.make)().await?;
        let checked = Checked {
            inner,
            held_back: None,
            seen: Some(Sha256::new()),
            left: self.length,
            length: self.length,
            hash: self.hash,
        };
        Ok(reqwest::Body::wrap(checked))
    }
}

/// A body that must turn out to be the one that was promised. The last piece is held back until it has.
struct Checked {
    inner: reqwest::Body,
    held_back: Option<Bytes>,
    /// `None` when the end was reached.
    seen: Option<Sha256>,
    /// What is still to be given out.
    left: u64,
    length: u64,
    hash: [u8; 32],
}

impl http_body::Body for Checked {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        loop {
            let Some(seen) = &mut this.seen else { return Poll::Ready(None) };
            match ready!(Pin::new(&mut this.inner).poll_frame(context)) {
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else { continue };
                    if data.is_empty() {
                        continue;
                    }
                    seen.update(&data);
                    if let Some(piece) = this.held_back.replace(data) {
                        this.left = this.left.saturating_sub(piece.len() as u64);
                        return Poll::Ready(Some(Ok(Frame::data(piece))));
                    }
                }
                None => {
                    let hash: [u8; 32] = this.seen.take().unwrap_or_default().finalize().into();
                    if hash != this.hash {
                        return Poll::Ready(Some(Err("the body is another one than in the first attempt".into())));
                    }
                    this.left = 0;
                    return Poll::Ready(this.held_back.take().map(|piece| Ok(Frame::data(piece))));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.length == 0 || self.seen.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// How much of a file is read at once.
const PIECE: usize = 64 * 1024;

struct FileBody {
    file: tokio::fs::File,
    buffer: Vec<u8>,
}

impl FileBody {
    async fn open(path: PathBuf) -> io::Result<Self> {
        Ok(Self { file: tokio::fs::File::open(path).await?, buffer: vec![0; PIECE] })
    }
}

impl http_body::Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = &mut *self;
        let mut buffer = ReadBuf::new(&mut this.buffer);
        ready!(Pin::new(&mut this.file).poll_read(context, &mut buffer))?;
        let read = Bytes::copy_from_slice(buffer.filled());
        Poll::Ready((!read.is_empty()).then(|| Ok(Frame::data(read))))
    }
}
