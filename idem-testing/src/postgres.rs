//! A Postgres server that starts in a blink and cannot be forgotten.
//!
//! A server that a test starts must end with the test, even when the test is killed: no destructor runs then. So a
//! small shell process supervises the server and reads a pipe that every holder keeps open; the kernel closes the pipe
//! of a holder that dies, and when nobody holds it any more the supervisor stops the server.

mod binaries;
mod directory;
mod server;

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use binaries::Binaries;
use server::Server;

/// A running Postgres server, kept up for as long as a clone of this handle exists.
///
/// The binaries are looked for in `$PG_BIN`, in `PATH`, and where Debian, the PGDG packages, Homebrew and Postgres.app
/// put them. Under root the server runs as `postgres` or `nobody`, because Postgres refuses root. It listens on a Unix
/// socket in a directory below the temporary directory, with `trust` authentication and the superuser `postgres`; only
/// the user who started it can reach the socket.
///
/// All functions here block, for 0.1 to 2 seconds when a server has to start.
#[derive(Clone, Debug)]
pub struct Postgres {
    place: Place,
}

#[derive(Clone, Debug)]
enum Place {
    External(String),
    Local(Arc<Server>),
}

/// How a server is shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Sessions are disconnected, their transactions rolled back, and the server ends orderly.
    Fast,
    /// All processes of the server abort; the next start recovers from the write-ahead log.
    Immediate,
}

impl Postgres {
    /// One server for all the processes of this user on this machine that ask for it, with `fsync` off.
    ///
    /// If the environment variable `DATABASE_URL` is set, no server is started and that one is used. The data directory
    /// is kept in the temporary directory, so that the next start takes a tenth of a second. Within a process the
    /// server stays up until the process ends, so that tests in sequence do not restart it.
    ///
    /// # Errors
    /// If no Postgres is installed (the message names the command to install it) or it does not start (the message
    /// holds its log).
    pub fn shared() -> io::Result<Self> {
        static SHARED: Mutex<Option<Postgres>> = Mutex::new(None);
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(postgres) = shared.as_ref() {
            return Ok(postgres.clone());
        }
        let place = match std::env::var("DATABASE_URL") {
            Ok(url) if !url.is_empty() => Place::External(url),
            _ => Place::Local(Arc::new(Server::shared(Binaries::find()?)?)),
        };
        Ok(shared.insert(Postgres { place }).clone())
    }

    /// A server of one's own, with `fsync` off, whose data is deleted when it goes: for demos, and for tests that stop
    /// it.
    ///
    /// # Errors
    /// As [`Postgres::shared`].
    pub fn private() -> io::Result<Self> {
        Self::options().start()
    }

    /// A server of one's own with other settings.
    ///
    /// ```no_run
    /// let postgres = idem_testing::Postgres::options().durable().setting("max_connections", "500").start()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn options() -> PostgresOptions {
        PostgresOptions { durable: false, settings: Vec::new() }
    }

    /// The connection URL of a database; `postgres` always exists.
    pub fn url(&self, database: &str) -> String {
        match &self.place {
            Place::External(url) => with_database(url, &percent_encode(database)),
            Place::Local(server) => {
                let host = percent_encode(&server.directory().path().to_string_lossy());
                format!("postgres://postgres@localhost:5432/{}?host={host}", percent_encode(database))
            }
        }
    }

    /// The URL to create and drop databases through: the one that `DATABASE_URL` names, else `postgres`.
    pub(crate) fn maintenance_url(&self) -> String {
        match &self.place {
            Place::External(url) => url.clone(),
            Place::Local(_) => self.url("postgres"),
        }
    }

    /// Stops a private server; [`start`](Self::start) brings it back with its data.
    ///
    /// # Errors
    /// If the server is a shared one, or does not stop within 60 seconds.
    pub fn stop(&self, shutdown: Shutdown) -> io::Result<()> {
        self.own()?.stop(shutdown)
    }

    /// Starts a private server that was stopped.
    ///
    /// # Errors
    /// If the server is a shared one, runs already, or does not start within 60 seconds.
    pub fn start(&self) -> io::Result<()> {
        self.own()?.start()
    }

    /// Stops a private server and starts it again.
    ///
    /// # Errors
    /// As [`stop`](Self::stop) and [`start`](Self::start).
    pub fn restart(&self, shutdown: Shutdown) -> io::Result<()> {
        self.stop(shutdown)?;
        self.start()
    }

    fn own(&self) -> io::Result<&Server> {
        match &self.place {
            Place::Local(server) if server.is_private() => Ok(server),
            _ => Err(io::Error::other(
                "a server that is stopped or started must belong to one holder; use `Postgres::private()`",
            )),
        }
    }
}

/// Settings of a server of one's own: see [`Postgres::options`].
#[derive(Clone, Debug)]
#[must_use]
pub struct PostgresOptions {
    durable: bool,
    settings: Vec<(String, String)>,
}

impl PostgresOptions {
    /// Turns `fsync` and full-page writes on, as in production: for benchmarks.
    ///
    /// Without it a crash of the machine loses data. A crash of the server does not, in either case.
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// A setting of `postgresql.conf`, such as `("log_statement", "all")`. The last of equal names counts.
    pub fn setting(mut self, name: &str, value: impl ToString) -> Self {
        self.settings.push((name.to_owned(), value.to_string()));
        self
    }

    /// Starts the server.
    ///
    /// # Errors
    /// As [`Postgres::shared`]; also if a setting is not one of Postgres.
    pub fn start(self) -> io::Result<Postgres> {
        let server = Server::private(Binaries::find()?, self.durable, &self.settings)?;
        Ok(Postgres { place: Place::Local(Arc::new(server)) })
    }
}

/// Replaces the path of a URL; parameters stay.
fn with_database(url: &str, database: &str) -> String {
    let authority = url.find("://").map_or(0, |at| at + 3);
    let authority_end = url[authority..].find(['/', '?']).map_or(url.len(), |at| authority + at);
    let parameters = url[authority_end..].find('?').map_or("", |at| &url[authority_end + at..]);
    format!("{}/{database}{parameters}", &url[..authority_end])
}

pub(crate) fn percent_encode(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{percent_encode, with_database};

    #[test]
    fn the_database_of_a_url_is_replaced_and_its_parameters_stay() {
        for (url, expected) in [
            (
                "postgres://user:word@host:5432/app?sslmode=disable",
                "postgres://user:word@host:5432/test?sslmode=disable",
            ),
            ("postgres://host/app", "postgres://host/test"),
            ("postgres://host", "postgres://host/test"),
            ("postgres:///app?host=/run/postgresql", "postgres:///test?host=/run/postgresql"),
            ("postgres://host?user=app", "postgres://host/test?user=app"),
        ] {
            assert_eq!(with_database(url, "test"), expected);
        }
    }

    #[test]
    fn unusual_directories_survive_the_url() {
        assert_eq!(percent_encode("/tmp/a b&c"), "/tmp/a%20b%26c");
    }
}
