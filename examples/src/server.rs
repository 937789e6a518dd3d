//! Server processes that a tour starts, kills and stops.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::Error;

/// What tells a process that it is the server of a tour.
pub(crate) const CHILD: &str = "--child";

/// What tells a process that it is another system, whose name follows.
pub(crate) const COMPANION: &str = "--companion";

const PATIENCE: Duration = Duration::from_secs(60);

/// The service in a process of its own. Dropping it kills the process; a tour that dies takes it along.
#[derive(Debug)]
pub struct Server {
    process: Child,
    address: String,
}

impl Server {
    /// Starts the running example's own service over a database.
    ///
    /// # Errors
    /// If the process does not start or does not serve within a minute.
    pub async fn start(database_url: &str) -> Result<Self, Error> {
        Self::start_with(database_url, []).await
    }

    /// The same with more environment variables.
    ///
    /// # Errors
    /// If the process does not start or does not serve within a minute.
    pub async fn start_with<'a>(
        database_url: &'a str,
        environment: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, Error> {
        Self::spawn(
            Command::new(std::env::current_exe()?).arg(CHILD).env("DATABASE_URL", database_url).envs(environment),
        )
        .await
    }

    /// Starts another system that the example's service talks to.
    ///
    /// # Errors
    /// If the process does not start or does not serve within a minute.
    pub async fn companion(name: &str) -> Result<Self, Error> {
        Self::spawn(Command::new(std::env::current_exe()?).args([COMPANION, name])).await
    }

    async fn spawn(command: &mut Command) -> Result<Self, Error> {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0) // an interrupt at the terminal is the tour's to handle
            .kill_on_drop(true)
            .spawn()?;
        let output = process.stdout.take().ok_or("the server's output must be piped")?;
        let address = timeout(PATIENCE, BufReader::new(output).lines().next_line()).await??;
        let address = address.ok_or("the server ended before it served")?;
        Ok(Self { process, address })
    }

    /// Where it listens: `127.0.0.1:<port>`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The number of its process.
    pub fn process_id(&self) -> u32 {
        self.process.id().unwrap_or_default()
    }

    /// Kills it with SIGKILL, as a power cut or the kernel would: nothing in it can react.
    ///
    /// # Errors
    /// If it had ended before.
    pub async fn kill(mut self) -> io::Result<()> {
        self.process.kill().await
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    /// If it does not end within a minute.
    pub async fn ended(&mut self) -> Result<ExitStatus, Error> {
        Ok(timeout(PATIENCE, self.process.wait()).await??)
    }

    /// Whether it has ended by itself.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn has_ended(&mut self) -> io::Result<bool> {
        Ok(self.process.try_wait()?.is_some())
    }

    /// Stops it in its tracks with SIGSTOP, as a paused virtual machine would be, until it is [resumed](Self::resume).
    ///
    /// # Errors
    /// If the signal cannot be sent.
    pub async fn suspend(&self) -> Result<(), Error> {
        self.signal("-STOP").await
    }

    /// Lets it go on where it was suspended, with SIGCONT.
    ///
    /// # Errors
    /// If the signal cannot be sent.
    pub async fn resume(&self) -> Result<(), Error> {
        self.signal("-CONT").await
    }

    async fn signal(&self, signal: &str) -> Result<(), Error> {
        let sent = Command::new("kill").args([signal, &self.process_id().to_string()]).status().await?;
        if sent.success() { Ok(()) } else { Err(format!("`kill {signal}` failed").into()) }
    }

    /// Asks it to stop, and waits until it has finished its operations and ended.
    ///
    /// # Errors
    /// If it does not end within a minute.
    pub async fn stop(mut self) -> io::Result<ExitStatus> {
        drop(self.process.stdin.take());
        timeout(PATIENCE, self.process.wait()).await?
    }
}
