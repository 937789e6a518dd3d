//! Where Postgres is installed, and who may run it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PROGRAMS: [&str; 3] = ["initdb", "pg_ctl", "postgres"];

/// Where packages put Postgres: each holds one folder a version, with `bin` in it.
const INSTALLATIONS: [&str; 5] = [
    "/usr/lib/postgresql",                          // Debian: 15/bin
    "/usr",                                         // PGDG's RPMs: pgsql-16/bin
    "/opt/homebrew/opt",                            // Homebrew: postgresql@17/bin
    "/usr/local/opt",                               // Homebrew on Intel
    "/Applications/Postgres.app/Contents/Versions", // 17/bin
];

#[derive(Debug)]
pub(super) struct Binaries {
    directory: PathBuf,
    /// Our own user.
    pub(super) user: u32,
    /// Whom the server runs as when we are root.
    pub(super) account: Option<Account>,
}

/// A user and group to run as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) user: u32,
    pub(super) group: u32,
}

impl Binaries {
    pub(super) fn find() -> io::Result<Self> {
        let user = current_user()?;
        let account = if user == 0 { Some(unprivileged_account(&fs::read_to_string("/etc/passwd")?)?) } else { None };
        Ok(Self { directory: find_directory()?, user, account })
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// One of Postgres's programs, run as the server's user.
    pub(super) fn program(&self, name: &str) -> Command {
        self.command(self.directory.join(name))
    }

    /// Any program, run as the server's user, with nothing inherited that would change what Postgres does.
    pub(super) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new(program);
        command.current_dir("/").stdin(Stdio::null()).env("LC_ALL", "C");
        for variable in ["PGDATA", "PGPORT", "PGHOST", "PGUSER", "PGOPTIONS"] {
            command.env_remove(variable);
        }
        if let Some(account) = self.account {
            command.uid(account.user).gid(account.group);
        }
        command
    }
}

/// std has no `geteuid`.
fn current_user() -> io::Result<u32> {
    let output = Command::new("id").arg("-u").output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().map_err(|_| io::Error::other(format!("`id -u` must print a number; it printed `{text}`")))
}

fn unprivileged_account(passwd: &str) -> io::Result<Account> {
    let account = |name: &str| {
        let fields: Vec<_> = passwd.lines().map(|line| line.split(':').collect()).find(|f: &Vec<_>| f[0] == name)?;
        Some(Account { user: fields.get(2)?.parse().ok()?, group: fields.get(3)?.parse().ok()? })
    };
    account("postgres").or_else(|| account("nobody")).ok_or_else(|| {
        io::Error::other("Postgres must not run as root, and neither `postgres` nor `nobody` exists; use another user")
    })
}

fn find_directory() -> io::Result<PathBuf> {
    if let Some(directory) = std::env::var_os("PG_BIN").map(PathBuf::from) {
        return if is_complete(&directory) {
            Ok(directory)
        } else {
            Err(io::Error::other(format!(
                "`PG_BIN` must be a directory with `initdb`, `pg_ctl` and `postgres`; use another than `{}`",
                directory.display()
            )))
        };
    }
    let on_path = std::env::var_os("PATH").and_then(|path| std::env::split_paths(&path).find(|d| is_complete(d)));
    on_path.or_else(|| newest_of(&INSTALLATIONS)).ok_or_else(|| {
        io::Error::other(
            "no Postgres on this machine; use `apt install postgresql`, `dnf install postgresql-server` or \
             `brew install postgresql@17`, or set `PG_BIN` (its programs) or `DATABASE_URL` (a running server)",
        )
    })
}

fn is_complete(directory: &Path) -> bool {
    PROGRAMS.iter().all(|program| directory.join(program).exists())
}

fn newest_of(installations: &[&str]) -> Option<PathBuf> {
    installations
        .iter()
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flatten()
        .flatten()
        .filter_map(|entry| Some((version(entry.file_name().to_str()?)?, entry.path().join("bin"))))
        .filter(|(_, directory)| is_complete(directory))
        .max()
        .map(|(_, directory)| directory)
}

/// The major version in a folder's name: `15`, `pgsql-16`, `postgresql@17`, `9.6`.
fn version(folder: &str) -> Option<u32> {
    let number = folder.trim_start_matches("postgresql").trim_start_matches("pgsql").trim_start_matches(['@', '-']);
    number.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_all_packagers_have_a_version() {
        for (folder, expected) in
            [("15", Some(15)), ("pgsql-16", Some(16)), ("postgresql@17", Some(17)), ("9.6", Some(9)), ("share", None)]
        {
            assert_eq!(version(folder), expected, "{folder}");
        }
    }

    #[test]
    fn root_becomes_postgres_or_else_nobody() {
        let nobody = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65533:nobody:/:/sbin/nologin\n";
        assert_eq!(unprivileged_account(nobody).unwrap(), Account { user: 65534, group: 65533 });
        let both = format!("{nobody}postgres:x:104:105::/var/lib/postgresql:/bin/bash\n");
        assert_eq!(unprivileged_account(&both).unwrap(), Account { user: 104, group: 105 });
        assert!(unprivileged_account("root:x:0:0::/:/bin/sh").is_err());
    }
}
