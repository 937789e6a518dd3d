//! A connection between two parties that can be cut at the worst moment.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// Forwards whatever connects to one Unix socket to another one.
#[derive(Debug)]
pub(crate) struct Wire {
    path: PathBuf,
    blow: watch::Sender<Option<Blow>>,
    accepting: AbortHandle,
}

/// How connections end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blow {
    /// Now.
    Cut,
    /// With the next bytes that the client sends, which are lost.
    LoseRequest,
    /// With the next bytes that the other side sends: it has done what it was asked for, and nobody learns of it.
    LoseAnswer,
}

impl Wire {
    pub(crate) fn start(path: PathBuf, upstream: PathBuf) -> io::Result<Self> {
        let listener = UnixListener::bind(&path)?;
        let (blow, blows) = watch::channel(None);
        let upstream: Arc<Path> = upstream.into();
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (upstream, mut blows) = (Arc::clone(&upstream), blows.clone());
                blows.mark_unchanged();
                tokio::spawn(async move {
                    if let Ok(server) = UnixStream::connect(&upstream).await {
                        let _ = forward(client, server, blows).await;
                    }
                });
            }
        });
        Ok(Self { path, blow, accepting: accepting.abort_handle() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Strikes every second connection that is open now.
    pub(crate) fn strike(&self, blow: Blow) {
        self.blow.send_replace(Some(blow));
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Until one side closes, or a blow falls.
async fn forward(
    mut client: UnixStream,
    mut server: UnixStream,
    mut blows: watch::Receiver<Option<Blow>>,
) -> io::Result<()> {
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let (mut request, mut answer) = ([0; 8192], [0; 8192]);
    let mut fallen = None;
    loop {
        tokio::select! {
            changed = blows.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
                let blow = *blows.borrow_and_update();
                if fastrand::bool() {
                    fallen = blow;
                }
                if fallen == Some(Blow::Cut) {
                    return Ok(());
                }
            }
            read = from_client.read(&mut request) => match read? {
                0 => return Ok(()),
                _ if fallen == Some(Blow::LoseRequest) => return Ok(()),
                length => to_server.write_all(&request[..length]).await?,
            },
            read = from_server.read(&mut answer) => match read? {
                0 => return Ok(()),
                _ if fallen == Some(Blow::LoseAnswer) => return Ok(()),
                length => to_client.write_all(&answer[..length]).await?,
            },
        }
    }
}
