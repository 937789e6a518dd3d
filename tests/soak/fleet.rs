//! The server processes, each with a wire to its clients, one to Postgres and one to the provider.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::arguments::Arguments;
use crate::server::{DATABASE, PROVIDER, SOCKET};
use crate::wire::{Blow, Wire};
use crate::{Failure, provider};

const HOUR: i64 = 3_600;

#[derive(Debug)]
pub(crate) struct Fleet {
    servers: Vec<Server>,
    clocks: Option<PathBuf>,
    /// The furthest that a server's clock was seen to be off, in seconds.
    furthest: AtomicU64,
    starts: AtomicU64,
}

#[derive(Debug)]
struct Server {
    socket: PathBuf,
    log: PathBuf,
    database_url: String,
    wires: [Wire; 3],
    process: Arc<Mutex<Option<Child>>>,
}

/// Between whom.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Between {
    ClientsAndServer = 0,
    ServerAndPostgres = 1,
    ServerAndProvider = 2,
}

impl Fleet {
    pub(crate) async fn start(arguments: &Arguments, directory: &Path, url: &str) -> Result<Self, Failure> {
        let postgres: PgConnectOptions = url.parse()?;
        let host = postgres.get_socket().ok_or("the database must be on a Unix socket")?;
        let name = format!(".s.PGSQL.{}", postgres.get_port());
        let servers = (0..arguments.servers).map(|number| {
            let own = directory.join(number.to_string());
            fs::create_dir_all(&own)?;
            let socket = own.join("server");
            let wires = [
                Wire::start(own.join("clients"), socket.clone())?,
                Wire::start(own.join(&name), host.join(&name))?,
                Wire::start(own.join("provider"), provider::socket(directory))?,
            ];
            // The last of equal parameters counts.
            let database_url = format!("{url}&host={}", own.display());
            Ok(Server { socket, log: own.join("log"), database_url, wires, process: Arc::default() })
        });
        let servers = servers.collect::<Result<_, Failure>>()?;
        let fleet = Self { servers, clocks: find_faketime(), furthest: AtomicU64::new(0), starts: AtomicU64::new(0) };
        if fleet.clocks.is_none() {
            println!("the servers' clocks are right: install `faketime` to have them off by hours");
        }
        let mut random = fastrand::Rng::with_seed(arguments.seed ^ 0xc1);
        for server in 0..fleet.len() {
            let process = fleet.launch(server, clock_offset(&mut random)).await?;
            *fleet.servers[server].process.lock().await = Some(process);
        }
        Ok(fleet)
    }

    pub(crate) fn len(&self) -> usize {
        self.servers.len()
    }

    /// Where clients reach a server.
    pub(crate) fn address(&self, server: usize) -> &Path {
        self.servers[server].wires[Between::ClientsAndServer as usize].path()
    }

    pub(crate) fn strike(&self, server: usize, between: Between, blow: Blow) {
        self.servers[server].wires[between as usize].strike(blow);
    }

    /// The process's fate is the caller's for as long as it holds this; `None` if it is somebody else's.
    pub(crate) fn seize(self: &Arc<Self>, server: usize) -> Option<Seized> {
        let process = Arc::clone(&self.servers[server].process).try_lock_owned().ok()?;
        Some(Seized { fleet: Arc::clone(self), server, process })
    }

    /// The servers that run, and how often any was started.
    pub(crate) fn alive(&self) -> (usize, u64) {
        let running = |server: &&Server| server.process.try_lock().is_ok_and(|process| process.is_some());
        (self.servers.iter().filter(running).count(), self.starts.load(Ordering::Relaxed))
    }

    /// By how many hours a clock was off; `None` if clocks cannot be set here.
    pub(crate) fn furthest_clock(&self) -> Option<u64> {
        self.clocks.as_ref().map(|_| self.furthest.load(Ordering::Relaxed) / HOUR.unsigned_abs())
    }

    /// All servers run, and have a clock that is right or wrong.
    pub(crate) async fn settle(&self) -> Result<(), Failure> {
        for server in 0..self.len() {
            let mut process = self.servers[server].process.lock().await;
            let ended = match process.as_mut() {
                Some(process) => process.try_wait()?.is_some(),
                None => true,
            };
            if ended {
                *process = Some(self.launch(server, 0).await?);
            }
        }
        Ok(())
    }

    pub(crate) async fn stop(&self) {
        for server in &self.servers {
            if let Some(mut process) = server.process.lock().await.take() {
                let _ = process.kill().await;
            }
        }
    }

    async fn launch(&self, number: usize, clock: i64) -> Result<Child, Failure> {
        let server = &self.servers[number];
        let _ = fs::remove_file(&server.socket);
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("serve")
            .env(DATABASE, &server.database_url)
            .env(SOCKET, &server.socket)
            .env(PROVIDER, server.wires[Between::ServerAndProvider as usize].path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::options().create(true).append(true).open(&server.log)?)
            .process_group(0)
            .kill_on_drop(true);
        if let Some(library) = &self.clocks {
            command.env("LD_PRELOAD", library).env("FAKETIME", format!("{clock:+}"));
            // Only what people call the time: how long a second is stays true.
            command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("DONT_FAKE_MONOTONIC", "1");
        }
        let mut process = command.spawn()?;
        let mut lines = BufReader::new(process.stdout.take().ok_or("its output must be piped")?).lines();
        let line = tokio::time::timeout(Duration::from_secs(60), lines.next_line()).await??;
        let clock: i64 =
            line.ok_or_else(|| format!("a server did not start; see {}", server.log.display()))?.parse()?;
        let off = clock - SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs().cast_signed();
        self.furthest.fetch_max(off.unsigned_abs(), Ordering::Relaxed);
        self.starts.fetch_add(1, Ordering::Relaxed);
        Ok(process)
    }
}

/// A server that has ended by itself is started again, as a supervisor does.
pub(crate) fn watch(fleet: &Arc<Fleet>, seed: u64) -> JoinHandle<()> {
    let (fleet, mut random) = (Arc::clone(fleet), fastrand::Rng::with_seed(seed ^ 0x3a));
    tokio::spawn(async move {
        loop {
            for server in 0..fleet.len() {
                let Ok(mut process) = fleet.servers[server].process.try_lock() else { continue };
                let ended = process.as_mut().is_none_or(|process| !matches!(process.try_wait(), Ok(None)));
                if ended {
                    *process = fleet.launch(server, clock_offset(&mut random)).await.ok();
                }
            }
            sleep(Duration::from_millis(100)).await;
        }
    })
}

/// One server, to be treated badly.
pub(crate) struct Seized {
    fleet: Arc<Fleet>,
    server: usize,
    process: OwnedMutexGuard<Option<Child>>,
}

impl Seized {
    /// SIGKILL; after `pause` it is started again with its clock off by `clock` seconds.
    pub(crate) async fn kill(mut self, pause: Duration, clock: i64) -> Result<(), Failure> {
        if let Some(mut process) = self.process.take() {
            process.kill().await?;
        }
        sleep(pause).await;
        *self.process = Some(self.fleet.launch(self.server, clock).await?);
        Ok(())
    }

    /// SIGSTOP, and SIGCONT after `length`.
    pub(crate) async fn freeze(self, length: Duration) -> Result<(), Failure> {
        let Some(number) = self.process.as_ref().and_then(Child::id) else { return Ok(()) };
        signal("STOP", number).await?;
        sleep(length).await;
        signal("CONT", number).await
    }
}

/// The shell's own `kill`: the standard library has none for these signals.
async fn signal(name: &str, process: u32) -> Result<(), Failure> {
    let sent = Command::new("sh").arg("-c").arg(format!("kill -{name} {process}")).status().await?;
    if sent.success() { Ok(()) } else { Err(format!("`kill -{name}` failed").into()) }
}

/// Seconds: up to thirty hours, either way.
pub(crate) fn clock_offset(random: &mut fastrand::Rng) -> i64 {
    random.i64(-30 * HOUR..=30 * HOUR)
}

fn find_faketime() -> Option<PathBuf> {
    let places = ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/opt/homebrew/lib"].map(PathBuf::from);
    let architectures = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let libraries = ["faketime/libfaketimeMT.so.1", "faketime/libfaketime.so.1"];
    let mut paths =
        places.into_iter().chain(architectures).flat_map(|place| libraries.map(|library| place.join(library)));
    paths.find(|path| path.exists())
}
