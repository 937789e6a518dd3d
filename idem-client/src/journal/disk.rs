//! The file under a journal: found once, locked itself, appended to, and put in order again after a failure.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::JournalError;
use super::format::{self, Contents, HEADER, Pending};

/// How often opening looks again when the file's holder replaces it at that moment.
const MOST_LOOKS: usize = 10;

/// A journal's file, held by this process alone.
#[derive(Debug)]
pub(super) struct Disk {
    /// Without symbolic links and from the root, so that neither a link nor a change of directory moves the journal.
    path: PathBuf,
    file: File,
    /// How far the file is whole and acknowledged.
    length: u64,
    /// After a failed write nobody knows what is on the disk: nothing more is acknowledged before it is in order again.
    broken: bool,
}

/// What was found when the file was opened.
pub(super) struct Opened {
    pub(super) disk: Disk,
    pub(super) pending: Pending,
    /// How many bytes at the end were no whole line.
    pub(super) cut: u64,
}

impl Disk {
    /// Opens the file, or makes it; takes its lock; reads it. A file that is no journal is left as it is.
    pub(super) fn open(path: &Path) -> Result<Opened, JournalError> {
        let fail = |error: io::Error| error_at(path).caused_by(error);
        let (mut file, path) = lock(path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(fail)?;
        let Contents { pending, whole, lacks_end } =
            format::read(&bytes).map_err(|trouble| error_at(&path).caused_by(trouble.to_string()))?;
        let cut = (bytes.len() - whole) as u64;
        let mut disk = Self { path, file, length: whole as u64, broken: false };
        if cut > 0 {
            disk.file.set_len(disk.length).map_err(fail)?;
        }
        if whole == 0 {
            disk.append(HEADER, true).map_err(fail)?;
            sync_directory(&disk.path).map_err(fail)?;
        } else if lacks_end {
            disk.append(b"\n", true).map_err(fail)?;
        }
        Ok(Opened { disk, pending, cut })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Writes at the end. What could not be written whole is taken off again: it was never acknowledged.
    pub(super) fn append(&mut self, bytes: &[u8], durably: bool) -> io::Result<()> {
        if self.broken {
            return Err(io::Error::other("an earlier write failed and the file is not in order again"));
        }
        let written = self.write_at_end(bytes, durably);
        if written.is_ok() {
            self.length += bytes.len() as u64;
        } else {
            self.broken = true;
            let _ = self.file.set_len(self.length);
        }
        written
    }

    fn write_at_end(&mut self, bytes: &[u8], durably: bool) -> io::Result<()> {
        if durably && !self.is_in_its_place() {
            return Err(io::Error::other("the file was moved or removed while it was open"));
        }
        self.file.seek(SeekFrom::Start(self.length))?;
        self.file.write_all(bytes)?;
        if durably { self.file.sync_data() } else { Ok(()) }
    }

    /// A record in a file that is not found by its name after a restart is no record.
    fn is_in_its_place(&self) -> bool {
        is_same_file(&self.file, &self.path).unwrap_or(false)
    }

    /// Puts the file in order after a failed write. After a failed sync the system may have forgotten what it did not
    /// write, so the records are written anew. A file with a second name cannot be replaced without parting the two, so
    /// it is cut back to what was acknowledged.
    pub(super) fn recover(&mut self, pending: &Pending) -> io::Result<()> {
        if !self.is_in_its_place() {
            return self.replace(pending, |new, path| {
                // Not over what somebody else has put there.
                fs::hard_link(new, path)?;
                fs::remove_file(new)
            });
        }
        if has_one_name(&self.file)? {
            return self.rewrite(pending);
        }
        self.file.set_len(self.length)?;
        self.file.sync_all()?;
        self.broken = false;
        Ok(())
    }

    /// Writes the pending records to a new file and puts it in the old one's place, so that a crash leaves either.
    pub(super) fn rewrite(&mut self, pending: &Pending) -> io::Result<()> {
        self.replace(pending, |new, path| fs::rename(new, path))
    }

    fn replace(&mut self, pending: &Pending, put: impl Fn(&Path, &Path) -> io::Result<()>) -> io::Result<()> {
        let mut name = self.path.as_os_str().to_owned();
        name.push(format!(".{}.new", Uuid::new_v4()));
        let bytes = format::whole_file(pending);
        let replaced = write_new(Path::new(&name), &bytes).and_then(|file| {
            // Only the name decides which file is the journal; if this fails, whether it has it is unknown.
            self.broken = true;
            put(Path::new(&name), &self.path)?;
            sync_directory(&self.path)?;
            Ok(file)
        });
        if replaced.is_err() {
            let _ = fs::remove_file(&name);
        }
        self.file = replaced?;
        (self.length, self.broken) = (bytes.len() as u64, false);
        Ok(())
    }

    /// Whether replacing the file would leave another name of it behind.
    pub(super) fn may_be_replaced(&self) -> bool {
        !self.broken && self.is_in_its_place() && has_one_name(&self.file).unwrap_or(false)
    }
}

pub(super) fn error_at(path: &Path) -> JournalError {
    JournalError::new(format!("the journal `{}` failed", path.display()))
}

/// The new file has its lock before it has the journal's name: there is no moment at which another process gets it.
fn write_new(path: &Path, bytes: &[u8]) -> io::Result<File> {
    let mut file = private(OpenOptions::new().read(true).write(true).create_new(true)).open(path)?;
    file.try_lock()?;
    file.write_all(bytes)?;
    file.sync_all()?;
    Ok(file)
}

/// Opens the file and takes the lock that keeps a second holder out. The lock is on the file itself, whatever name it
/// was opened by, and the system frees it when the process dies, however it dies.
fn lock(path: &Path) -> Result<(File, PathBuf), JournalError> {
    let fail = |error: io::Error| error_at(path).caused_by(error);
    for _ in 0..MOST_LOOKS {
        let options = &mut OpenOptions::new();
        let file = private(options.read(true).write(true).create(true).truncate(false)).open(path).map_err(fail)?;
        if !file.metadata().map_err(fail)?.is_file() {
            return Err(error_at(path).caused_by("a journal must be a file"));
        }
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(JournalError::new(format!(
                    "the journal `{}` must be open in one process and once; it is held already, use a file for each",
                    path.display()
                )));
            }
            Err(TryLockError::Error(error)) => return Err(fail(error)),
        }
        let resolved = fs::canonicalize(path).map_err(fail)?;
        // Its holder may have put a new file in its place between our opening it and our getting its lock.
        if is_same_file(&file, &resolved).map_err(fail)? {
            return Ok((file, resolved));
        }
    }
    Err(error_at(path).caused_by("another process keeps replacing it"))
}

#[cfg(unix)]
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    use std::os::unix::fs::OpenOptionsExt as _;
    options.mode(0o600)
}

#[cfg(unix)]
fn is_same_file(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt as _;
    let (opened, named) = (file.metadata()?, fs::metadata(path)?);
    Ok((opened.dev(), opened.ino()) == (named.dev(), named.ino()))
}

#[cfg(unix)]
fn has_one_name(file: &File) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt as _;
    Ok(file.metadata()?.nlink() == 1)
}

#[cfg(not(unix))]
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

#[cfg(not(unix))]
fn is_same_file(_: &File, _: &Path) -> io::Result<bool> {
    Ok(true)
}

#[cfg(not(unix))]
fn has_one_name(_: &File) -> io::Result<bool> {
    Ok(true)
}

/// A new name is durable only when its directory is.
fn sync_directory(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(directory) if cfg!(unix) => File::open(directory)?.sync_all(),
        _ => Ok(()),
    }
}
