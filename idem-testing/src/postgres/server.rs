//! Starting, joining, supervising and stopping a server.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use super::Shutdown;
use super::binaries::Binaries;
use super::directory::Directory;

/// How long a start or a stop may take; `initdb` on a loaded machine takes 10 seconds.
const PATIENCE: Duration = Duration::from_secs(60);

const PRIVATE_PREFIX: &str = "idem-private-";

/// Without these a crash of the machine loses data. A crash of the server must not, so `synchronous_commit` stays on.
const VOLATILE: [(&str, &str); 2] = [("fsync", "off"), ("full_page_writes", "off")];

/// Its standard input is the pipe of the holders, which ends when nobody holds it. Once the pipe is unlinked nobody can
/// join; whoever joined just before is waited for.
const SUPERVISOR: &str = r#"
directory=$1; pg_ctl=$2; afterwards=$3
control() { "$pg_ctl" -s -w -D "$directory/data" -l "$directory/log" -t "$2" -m "$3" "$1" </dev/null; }
held() { cat >/dev/null; }
control start 60 fast || exit 1
: >"$directory/started"
held
rm -f "$directory/holders"
held
control stop 20 fast || control stop 20 immediate
[ "$afterwards" = keep ] || rm -rf "$directory"
"#;

#[derive(Debug)]
pub(super) struct Server {
    directory: Directory,
    binaries: Binaries,
    private: bool,
    holder: Option<File>,
    /// Disconnected once the supervisor that we started has ended.
    supervised: Option<Mutex<Receiver<()>>>,
}

impl Server {
    /// Joins the server of this user, these binaries and this configuration, or starts it.
    pub(super) fn shared(binaries: Binaries) -> io::Result<Self> {
        let settings = VOLATILE.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let mut hasher = DefaultHasher::new();
        (binaries.directory(), &settings, env!("CARGO_PKG_VERSION")).hash(&mut hasher);
        let name = format!("idem-shared-{}-{:08x}", binaries.user, hasher.finish() as u32);
        Self::open(&name, binaries, &settings, false)
    }

    pub(super) fn private(binaries: Binaries, durable: bool, settings: &[(String, String)]) -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        remove_abandoned(&binaries);
        let volatile =
            VOLATILE.iter().filter(|_| !durable).map(|(name, value)| (String::from(*name), String::from(*value)));
        let settings: Vec<_> = volatile.chain(settings.iter().cloned()).collect();
        let name = format!("{PRIVATE_PREFIX}{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Self::open(&name, binaries, &settings, true)
    }

    pub(super) fn directory(&self) -> &Directory {
        &self.directory
    }

    pub(super) fn is_private(&self) -> bool {
        self.private
    }

    pub(super) fn stop(&self, shutdown: Shutdown) -> io::Result<()> {
        self.control("stop", shutdown)
    }

    pub(super) fn start(&self) -> io::Result<()> {
        if self.directory.is_alive() {
            return Err(io::Error::other("the server must be stopped before it is started; use `restart`"));
        }
        self.control("start", Shutdown::Fast)
    }

    /// Runs `pg_ctl`, which holds the pipe meanwhile: if we are killed, the supervisor stops what it just started.
    fn control(&self, verb: &str, shutdown: Shutdown) -> io::Result<()> {
        let holder = self.holder.as_ref().map(File::try_clone).transpose()?;
        pg_ctl(&self.directory, &self.binaries, verb, shutdown, holder.map_or_else(Stdio::null, Stdio::from))
    }

    fn open(name: &str, binaries: Binaries, settings: &[(String, String)], private: bool) -> io::Result<Self> {
        let directory = Directory::create(std::env::temp_dir().join(name), &binaries)?;
        let starter = directory.starter()?;
        starter.lock()?;
        let mut server = Self { directory, binaries, private, holder: None, supervised: None };
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            let supervisor = server.directory.supervisor()?;
            match supervisor.try_lock() {
                Ok(()) => return server.launch(&starter, supervisor, settings).map(|()| server),
                Err(TryLockError::Error(error)) => return Err(error),
                Err(TryLockError::WouldBlock) if server.join()? => return Ok(server),
                Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(5)),
            }
        }
        Err(failure(&server.directory, "the previous server did not stop"))
    }

    /// Holds a server that has a supervisor. False if it is about to stop.
    fn join(&mut self) -> io::Result<bool> {
        let Ok(holder) = self.directory.hold() else { return Ok(false) };
        self.holder = Some(holder);
        if wait_until(PATIENCE / 4, || self.directory.is_ready() || !self.is_supervised()) {
            return Ok(self.directory.is_ready());
        }
        // Somebody killed the server and left the supervisor: it will stop ours when the time comes.
        self.control("start", Shutdown::Fast)?;
        Ok(true)
    }

    fn is_supervised(&self) -> bool {
        self.directory.supervisor().is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
    }

    /// Starts a server and its supervisor, which inherits the lock on `supervisor`.
    fn launch(&mut self, starter: &File, supervisor: File, settings: &[(String, String)]) -> io::Result<()> {
        if self.directory.is_alive() {
            // Its supervisor was killed.
            stop_orphan(&self.directory, &self.binaries);
        }
        let initialised = self.directory.path().join("initialised");
        if initialised.exists() {
            if self.supervise(supervisor.try_clone()?).is_ok() {
                return Ok(());
            }
            // The data of a server that was killed with its machine, or another process has its number: start afresh.
            fs::remove_file(&initialised)?;
        }
        self.initialise(starter, settings)?;
        File::create(&initialised)?;
        self.supervise(supervisor)
    }

    /// `initdb` inherits the lock on `starter`: if we are killed, the next one to start waits for it.
    fn initialise(&self, starter: &File, settings: &[(String, String)]) -> io::Result<()> {
        let data = self.directory.data();
        if data.exists() {
            fs::remove_dir_all(&data)?;
        }
        self.directory.remove_socket();
        let output = self
            .binaries
            .program("initdb")
            .args(["--no-sync", "--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--pgdata"])
            .arg(&data)
            .stdin(starter.try_clone()?)
            .process_group(0)
            .output()?;
        if !output.status.success() {
            return Err(io::Error::other(format!("`initdb` failed: {}", String::from_utf8_lossy(&output.stderr))));
        }
        let mut file = OpenOptions::new().append(true).open(data.join("postgresql.conf"))?;
        file.write_all(configuration(self.directory.path(), settings).as_bytes())
    }

    fn supervise(&mut self, supervisor: File) -> io::Result<()> {
        let holders = self.directory.holders();
        let started = self.directory.path().join("started");
        let _ = fs::remove_file(&started);
        let _ = fs::remove_file(&holders);
        if !self.binaries.command("mkfifo").args(["-m", "600"]).arg(&holders).status()?.success() {
            return Err(io::Error::other(format!("`mkfifo` failed in `{}`", self.directory.path().display())));
        }
        self.holder = Some(self.directory.hold()?);
        let mut child = self
            .binaries
            .command("sh")
            .args(["-c", SUPERVISOR, "idem-postgres"])
            .args([self.directory.path(), &self.binaries.directory().join("pg_ctl")])
            .arg(if self.private { "remove" } else { "keep" })
            .process_group(0) // an interrupt at the terminal must not reach it
            .stdin(File::open(&holders)?)
            .stdout(Stdio::null())
            .stderr(supervisor)
            .spawn()?;
        // Not only ready: a stop before the supervisor has seen the start would look like a failed start to it.
        wait_until(PATIENCE, || started.exists() || has_ended(&mut child));
        if !started.exists() {
            let failure = failure(&self.directory, "Postgres did not start");
            self.holder = None;
            let _ = child.wait();
            return Err(failure);
        }
        let (ended, supervised) = mpsc::channel();
        self.supervised = Some(Mutex::new(supervised));
        thread::spawn(move || {
            let _ = child.wait();
            drop(ended);
        });
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.holder = None;
        if self.private {
            // So that a program that ends now leaves nothing behind, not even for a moment.
            let supervised = self.supervised.take().and_then(|supervised| supervised.into_inner().ok());
            let _ = supervised.map(|ended| ended.recv_timeout(PATIENCE));
            let _ = fs::remove_dir_all(self.directory.path());
        }
    }
}

fn pg_ctl(directory: &Directory, binaries: &Binaries, verb: &str, shutdown: Shutdown, stdin: Stdio) -> io::Result<()> {
    let mode = match shutdown {
        Shutdown::Fast => "fast",
        Shutdown::Immediate => "immediate",
    };
    let output = binaries
        .program("pg_ctl")
        .args(["-s", "-w", "-t", "60", "-m", mode, "-D"])
        .arg(directory.data())
        .arg("-l")
        .arg(directory.path().join("log"))
        .arg(verb)
        .process_group(0)
        .stdin(stdin)
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    Err(failure(directory, &format!("`pg_ctl {verb}` failed: {}", message.trim())))
}

fn stop_orphan(directory: &Directory, binaries: &Binaries) {
    for shutdown in [Shutdown::Fast, Shutdown::Immediate] {
        if pg_ctl(directory, binaries, "stop", shutdown, Stdio::null()).is_ok() {
            return;
        }
    }
}

/// Removes the directories of private servers whose supervisors were killed.
fn remove_abandoned(binaries: &Binaries) {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(PRIVATE_PREFIX) && is_old(&entry.path()) {
            let directory = Directory::new(entry.path());
            let (Ok(starter), Ok(supervisor)) = (directory.starter(), directory.supervisor()) else { continue };
            if starter.try_lock().is_ok() && supervisor.try_lock().is_ok() {
                if directory.is_alive() {
                    stop_orphan(&directory, binaries);
                }
                let _ = fs::remove_dir_all(directory.path());
            }
        }
    }
}

/// A directory that was made a moment ago may not have its locks yet.
fn is_old(path: &Path) -> bool {
    let modified = fs::symlink_metadata(path).and_then(|metadata| metadata.modified()).ok();
    modified.and_then(|time| time.elapsed().ok()).is_some_and(|age| age > PATIENCE)
}

fn configuration(directory: &Path, settings: &[(String, String)]) -> String {
    let socket_directory = format!("\"{}\"", directory.to_string_lossy().replace('"', "\"\""));
    let own = [("listen_addresses", ""), ("max_connections", "300"), ("unix_socket_directories", &socket_directory)];
    own.into_iter()
        .chain(settings.iter().map(|(name, value)| (name.as_str(), value.as_str())))
        .map(|(name, value)| format!("{name} = '{}'\n", value.replace('\'', "''")))
        .collect()
}

fn has_ended(child: &mut Child) -> bool {
    !matches!(child.try_wait(), Ok(None))
}

fn wait_until(patience: Duration, mut done: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < patience {
        if done() {
            return true;
        }
        thread::sleep(Duration::from_millis(5));
    }
    false
}

fn failure(directory: &Directory, what: &str) -> io::Error {
    io::Error::other(format!("{what} in `{}`: {}", directory.path().display(), directory.log()))
}
