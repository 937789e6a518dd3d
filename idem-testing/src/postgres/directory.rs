//! What lies in a server's directory, and what it says about the server.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use super::binaries::Binaries;

/// The path of a Unix socket has at most 103 bytes on macOS, and the socket's name takes 14.
const LONGEST: usize = 89;

const SOCKET: &str = ".s.PGSQL.5432";

#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
}

impl Directory {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Creates it where it is missing. It must be ours: anyone may create a name in the temporary directory.
    pub(super) fn create(path: PathBuf, binaries: &Binaries) -> io::Result<Self> {
        if path.as_os_str().len() > LONGEST {
            let path = path.display();
            return Err(io::Error::other(format!("`{path}` must be at most {LONGEST} bytes; use a shorter `TMPDIR`")));
        }
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => other?,
        }
        let found = fs::symlink_metadata(&path)?;
        let servers_user = binaries.account.map(|account| account.user);
        if !found.is_dir() || !(found.uid() == binaries.user || Some(found.uid()) == servers_user) {
            let path = path.display();
            return Err(io::Error::other(format!("`{path}` must be a directory of this user; use another `TMPDIR`")));
        }
        if let Some(account) = binaries.account {
            chown(&path, Some(account.user), Some(account.group))?;
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700))?;
        Ok(Self { path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn data(&self) -> PathBuf {
        self.path.join("data")
    }

    /// The pipe that holders keep open. It exists while the server may be joined.
    pub(super) fn holders(&self) -> PathBuf {
        self.path.join("holders")
    }

    /// Locked by whoever starts or joins the server, while it does so.
    pub(super) fn starter(&self) -> io::Result<File> {
        self.lock_file("starter")
    }

    /// Locked by the supervisor for as long as it lives; its messages are in it.
    pub(super) fn supervisor(&self) -> io::Result<File> {
        self.lock_file("supervisor")
    }

    fn lock_file(&self, name: &str) -> io::Result<File> {
        OpenOptions::new().append(true).create(true).open(self.path.join(name))
    }

    /// Opens the pipe as a holder. For reading too, because opening a pipe for writing alone waits for a reader.
    pub(super) fn hold(&self) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).open(self.holders())
    }

    /// Whether a server process exists: it listens from its first moment to its last.
    pub(super) fn is_alive(&self) -> bool {
        UnixStream::connect(self.path.join(SOCKET)).is_ok()
    }

    /// Removes the socket of a server that is dead: its lock file may name a process that exists again.
    pub(super) fn remove_socket(&self) {
        for name in [SOCKET, &format!("{SOCKET}.lock")] {
            let _ = fs::remove_file(self.path.join(name));
        }
    }

    /// Whether the server accepts sessions: Postgres writes its state into the eighth line.
    pub(super) fn is_ready(&self) -> bool {
        let state = fs::read_to_string(self.data().join("postmaster.pid"));
        state.is_ok_and(|text| text.lines().nth(7).is_some_and(|line| line.trim() == "ready")) && self.is_alive()
    }

    /// What the supervisor and the server said last.
    pub(super) fn log(&self) -> String {
        let read = |name| fs::read(self.path.join(name)).unwrap_or_default();
        let text = [read("supervisor"), read("log")].concat();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}
