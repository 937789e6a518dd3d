//! A proxy between a pool and Postgres that counts what passes and breaks it where it is told to.
//!
//! A retry is only as safe as the worst moment at which the first attempt can fail, and those moments lie between the
//! messages of the database protocol: before a statement is sent, after it was executed and before its answer arrives,
//! before and after COMMIT. A test cannot reach them from outside. The [`Proxy`] understands the protocol's framing, so
//! every message in either direction is a place to strike.
//!
//! ```no_run
//! use idem_testing::proxy::{Action, Fault, Place, Proxy};
//! use sqlx::postgres::PgPoolOptions;
//!
//! # async fn example() -> Result<(), sqlx::Error> {
//! let database = idem_testing::TestDatabase::create().await?;
//! let proxy = Proxy::start(&database.url())?;
//! let pool = proxy.pool_with(PgPoolOptions::new().max_connections(1));
//! sqlx::query("CREATE TABLE orders (id bigint)").execute(&pool).await?;
//!
//! // The next statement but one is executed, and its answer never arrives.
//! proxy.inject(Fault { place: Place::Answer(2), action: Action::Cut });
//! # Ok(())
//! # }
//! ```

mod connection;
mod counts;
mod fault;
mod message;
mod session;
mod statement;
mod word;

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::net::UnixListener;
use tokio::sync::watch;

use connection::{Shared, serve};
pub use counts::Counts;
pub(crate) use fault::shorten;
pub use fault::{Action, Direction, Fault, Met, Place};
pub use word::{BrokenFrame, Severity, Word};

const PREFIX: &str = "idem-proxy-";

/// A running proxy: see the [module](self). It runs on a thread of its own and ends, with its connections, when
/// dropped.
///
/// It speaks to clients through a Unix socket and without TLS; so the server must accept connections without TLS.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    directory: PathBuf,
    url: String,
    options: PgConnectOptions,
    ended: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy to the server of a connection URL.
    ///
    /// # Errors
    /// If the URL is malformed, or the temporary directory is not writable.
    pub fn start(url: &str) -> Result<Self, sqlx::Error> {
        let upstream: PgConnectOptions = url.parse()?;
        let directory = create_directory()?;
        let options = upstream.clone().socket(&directory);
        let socket = directory.join(format!(".s.PGSQL.{}", upstream.get_port()));
        let shared = Arc::new(Shared::new(upstream));
        let (ended, end) = watch::channel(false);
        let (ready, is_ready) = mpsc::channel();
        let thread = thread::Builder::new().name("idem-proxy".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || run(&socket, &shared, end, &ready)
        })?;
        is_ready.recv().map_err(io::Error::other)??;
        let url = with_host(url, &directory);
        Ok(Self { shared, directory, url, options, ended, thread: Some(thread) })
    }

    /// The same database as that of the URL that the proxy was started with, through the proxy.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What to connect with.
    pub fn connect_options(&self) -> PgConnectOptions {
        self.options.clone()
    }

    /// A new pool of up to ten connections through the proxy. It connects when first used.
    pub fn pool(&self) -> PgPool {
        self.pool_with(PgPoolOptions::new())
    }

    /// A new pool with other settings. It connects when first used.
    pub fn pool_with(&self, options: PgPoolOptions) -> PgPool {
        options.connect_lazy_with(self.options.clone())
    }

    /// Strikes once, at the given place counted from now on. Replaces a fault that has not struck.
    pub fn inject(&self, fault: Fault) {
        self.shared.state().arm(fault);
    }

    /// Forgets a fault that has not struck.
    pub fn disarm(&self) {
        self.shared.state().disarm();
    }

    /// What the last injected fault struck; `None` if its place was not reached yet.
    pub fn met(&self) -> Option<Met> {
        self.shared.state().met()
    }

    /// True while a fault holds a message back.
    pub fn is_stalling(&self) -> bool {
        self.shared.state().is_stalling()
    }

    /// Cuts all connections, now. New ones are accepted.
    pub fn cut_connections(&self) {
        self.shared.cut_connections();
    }

    /// Accepts connections again after an [`Action::Partition`].
    pub fn heal(&self) {
        self.shared.state().heal();
    }

    /// Delays each round trip by this much from now on: the network of another availability zone, about 1 ms.
    ///
    /// Everything the client sends before it has its answer counts as one round trip.
    pub fn set_latency(&self, latency: Duration) {
        self.shared.state().set_latency(latency);
    }

    /// What passed since the start.
    pub fn counts(&self) -> Counts {
        self.shared.state().counts()
    }

    /// Begins to record round trips, forgetting those recorded before. The texts of statements are kept in memory,
    /// without their literals.
    pub fn record(&self) {
        self.shared.state().record();
    }

    /// The round trips since [`record`](Self::record), each as the messages sent and the statement:
    /// `Bind Execute Close Sync: INSERT INTO orders …`.
    pub fn recorded(&self) -> Vec<String> {
        self.shared.state().recorded()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.ended.send(true);
        let _ = self.thread.take().map(JoinHandle::join);
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn run(socket: &Path, shared: &Arc<Shared>, mut end: watch::Receiver<bool>, ready: &mpsc::Sender<io::Result<()>>) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return drop(ready.send(Err(error))),
    };
    runtime.block_on(async {
        let listener = match UnixListener::bind(socket) {
            Ok(listener) => listener,
            Err(error) => return drop(ready.send(Err(error))),
        };
        let accepting = tokio::spawn({
            let shared = Arc::clone(shared);
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    tokio::spawn(serve(client, Arc::clone(&shared)));
                }
            }
        });
        let _ = ready.send(Ok(()));
        let _ = end.wait_for(|ended| *ended).await;
        accepting.abort();
    });
    // A stalled message is not waited for.
    runtime.shutdown_background();
}

fn create_directory() -> io::Result<PathBuf> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    remove_abandoned();
    let name = format!("{PREFIX}{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(name);
    let _ = fs::remove_dir_all(&path);
    DirBuilder::new().mode(0o700).create(&path)?;
    Ok(path)
}

/// Removes the sockets of processes that were killed.
fn remove_abandoned() {
    let old = |time: SystemTime| time.elapsed().is_ok_and(|age| age > Duration::from_secs(60));
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if is_ours && entry.metadata().and_then(|metadata| metadata.modified()).is_ok_and(old) {
            let sockets: Vec<_> = fs::read_dir(entry.path()).into_iter().flatten().flatten().collect();
            if sockets.iter().all(|socket| std::os::unix::net::UnixStream::connect(socket.path()).is_err()) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

/// Adds the socket's directory to a URL. The last of equal parameters counts.
fn with_host(url: &str, directory: &Path) -> String {
    let separator = if url.contains('?') { '&' } else { '?' };
    format!("{url}{separator}host={}", crate::postgres::percent_encode(&directory.to_string_lossy()))
}
