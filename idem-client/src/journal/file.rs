//! The journal in a local file.
//!
//! One line of JSON for each event, appended and synced to the disk before the caller goes on. One thread owns the
//! file; callers that arrive together share one sync. Strike-offs are written at once but not waited for on the disk:
//! one that is lost leaves an operation to ask about that is long settled, which costs a question and not money.
//!
//! A line that a power cut left half written was never acknowledged, so nothing was sent for it, and opening the file
//! drops it. Damage elsewhere is an error and never skipped: a line that is lost is a payment nobody asks about.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::{Journal, JournalError, Record};
use crate::key::Key;

/// The file is rewritten with the pending records alone when it is longer than this, and than four times them.
const COMPACT_ABOVE: u64 = 1024 * 1024;

/// A journal in a local file that one process at a time may hold open.
///
/// Keep the file where it survives a restart of the process, and give each process its own. It holds keys, so it is
/// readable by its owner alone. A begun operation costs one `fsync`, shared by operations that begin at the same time.
#[derive(Debug)]
pub struct FileJournal {
    commands: mpsc::Sender<Command>,
    path: PathBuf,
}

#[derive(Debug)]
enum Command {
    Begin(Record, oneshot::Sender<io::Result<Option<Record>>>),
    StrikeOff(Id, oneshot::Sender<io::Result<()>>),
    Pending(oneshot::Sender<Vec<Record>>),
}

type Id = (Key, String);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Begin { operation: String, key: String, target: String, request_hash: String, begun_at_ms: u64 },
    StrikeOff { key: String, target: String },
}

impl FileJournal {
    /// Opens the journal, or makes it. Reads it once and rewrites it with what is pending.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or written, when another process holds it open, or when it is damaged: the text
    /// names the file and the line.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, JournalError> {
        let path = path.as_ref().to_path_buf();
        let fail = |error: io::Error| error_at(&path).caused_by(error);
        let lock = lock(&path)?;
        let pending = match fs::read(&path) {
            Ok(bytes) => read(&bytes, &path)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Pending::default(),
            Err(error) => return Err(fail(error)),
        };
        let (file, length) = rewrite(&path, &pending).map_err(fail)?;
        let writer = Writer { path: path.clone(), file, length, pending, broken: false, _lock: lock };
        let (commands, inbox) = mpsc::channel();
        thread::Builder::new().name("idem-journal".into()).spawn(move || writer.run(&inbox)).map_err(fail)?;
        Ok(Self { commands, path })
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, JournalError> {
        let (answer, receiver) = oneshot::channel();
        let gone = || error_at(&self.path).caused_by("its writer has stopped");
        self.commands.send(command(answer)).map_err(|_| gone())?;
        receiver.await.map_err(|_| gone())
    }
}

#[async_trait]
impl Journal for FileJournal {
    async fn begin(&self, record: &Record) -> Result<Option<Record>, JournalError> {
        let record = record.clone();
        let written = self.ask(|answer| Command::Begin(record, answer)).await?;
        written.map_err(|error| error_at(&self.path).caused_by(error))
    }

    async fn strike_off(&self, key: &Key, target: &str) -> Result<(), JournalError> {
        let id = (key.clone(), target.to_owned());
        let written = self.ask(|answer| Command::StrikeOff(id, answer)).await?;
        written.map_err(|error| error_at(&self.path).caused_by(error))
    }

    async fn pending(&self) -> Result<Vec<Record>, JournalError> {
        self.ask(Command::Pending).await
    }
}

fn error_at(path: &Path) -> JournalError {
    JournalError::new(format!("the journal `{}` failed", path.display()))
}

/// Takes the lock that keeps a second process out. It is a file of its own, since the journal itself is replaced when
/// it is rewritten, and the system frees it when the process dies, however it dies.
fn lock(path: &Path) -> Result<File, JournalError> {
    let fail = |error: io::Error| error_at(path).caused_by(error);
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let file = private(OpenOptions::new().write(true).create(true).truncate(false)).open(name).map_err(fail)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(JournalError::new(format!(
            "the journal `{}` must be open in one process; another one holds it, use a file for each",
            path.display()
        ))),
        Err(TryLockError::Error(error)) => Err(fail(error)),
    }
}

#[cfg(unix)]
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    use std::os::unix::fs::OpenOptionsExt as _;
    options.mode(0o600)
}

#[cfg(not(unix))]
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

/// The pending records, in the order in which they were begun.
#[derive(Debug, Default)]
struct Pending {
    records: HashMap<Id, (u64, Record)>,
    begun: u64,
}

impl Pending {
    fn get(&self, id: &Id) -> Option<&Record> {
        self.records.get(id).map(|(_, record)| record)
    }

    fn insert(&mut self, record: Record) {
        self.begun += 1;
        self.records.entry(id_of(&record)).or_insert((self.begun, record));
    }

    fn in_order(&self) -> Vec<Record> {
        let mut records: Vec<_> = self.records.values().collect();
        records.sort_by_key(|(position, _)| *position);
        records.into_iter().map(|(_, record)| record.clone()).collect()
    }
}

fn id_of(record: &Record) -> Id {
    (record.key.clone(), record.target.clone())
}

/// Reads the events of a file. What follows the last line's end was being written when the power went.
fn read(bytes: &[u8], path: &Path) -> Result<Pending, JournalError> {
    let mut pending = Pending::default();
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    for (number, line) in bytes[..whole].split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty()) {
        let damaged = || {
            JournalError::new(format!(
                "line {} of the journal `{}` is damaged; look at it and remove the line, then ask the server about \
                 what was sent around then",
                number + 1,
                path.display()
            ))
        };
        match serde_json::from_slice(line).map_err(|_| damaged())? {
            begin @ Line::Begin { .. } => pending.insert(begin.into_record().ok_or_else(damaged)?),
            Line::StrikeOff { key, target } => {
                pending.records.remove(&(Key::new(key).map_err(|_| damaged())?, target));
            }
        }
    }
    Ok(pending)
}

impl Line {
    fn begin(record: &Record) -> Self {
        let since = record.begun_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self::Begin {
            operation: record.operation.clone(),
            key: record.key.as_str().to_owned(),
            target: record.target.clone(),
            request_hash: record.request_hash.iter().map(|byte| format!("{byte:02x}")).collect(),
            begun_at_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
        }
    }

    fn into_record(self) -> Option<Record> {
        let Self::Begin { operation, key, target, request_hash, begun_at_ms } = self else { return None };
        let key = Key::new(key).ok()?.for_operation(&operation);
        let begun_at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(begun_at_ms))?;
        Some(Record { operation, key, target, request_hash: from_hex(&request_hash)?, begun_at })
    }

    fn append_to(&self, bytes: &mut Vec<u8>) -> io::Result<()> {
        serde_json::to_writer(&mut *bytes, self)?;
        bytes.push(b'\n');
        Ok(())
    }
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (position, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * position..2 * position + 2], 16).ok()?;
    }
    Some(bytes)
}

/// Writes the pending records to a new file and puts it in the old one's place, so that a crash leaves either.
fn rewrite(path: &Path, pending: &Pending) -> io::Result<(File, u64)> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let mut bytes = Vec::new();
    for record in pending.in_order() {
        Line::begin(&record).append_to(&mut bytes)?;
    }
    let mut file = private(OpenOptions::new().write(true).create(true).truncate(true)).open(&name)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    fs::rename(&name, path)?;
    sync_directory(path)?;
    Ok((file, bytes.len() as u64))
}

/// A new name is durable only when its directory is.
fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if cfg!(unix) { File::open(directory)?.sync_all() } else { Ok(()) }
}

/// The thread that owns the file.
struct Writer {
    path: PathBuf,
    file: File,
    length: u64,
    pending: Pending,
    /// After a failed write nobody knows where the file ends, so nothing more is acknowledged.
    broken: bool,
    _lock: File,
}

impl Writer {
    fn run(mut self, inbox: &mpsc::Receiver<Command>) {
        while let Ok(first) = inbox.recv() {
            let batch: Vec<_> = std::iter::once(first).chain(inbox.try_iter()).collect();
            self.work(batch);
        }
    }

    /// Works one batch off: all lines in one write, one sync if anything was begun, then the answers.
    fn work(&mut self, batch: Vec<Command>) {
        let mut bytes = Vec::new();
        let mut encoded = Ok(());
        let mut begins = Vec::new();
        let mut strike_offs = Vec::new();
        let mut readers = Vec::new();
        for command in batch {
            match command {
                Command::Begin(record, answer) => {
                    let before = self.pending.get(&id_of(&record)).cloned();
                    if before.is_none() {
                        encoded = encoded.and(Line::begin(&record).append_to(&mut bytes));
                        self.pending.insert(record);
                    }
                    begins.push((before, answer));
                }
                Command::StrikeOff(id, answer) => {
                    if self.pending.records.remove(&id).is_some() {
                        let (key, target) = id;
                        let line = Line::StrikeOff { key: key.as_str().to_owned(), target };
                        encoded = encoded.and(line.append_to(&mut bytes));
                    }
                    strike_offs.push(answer);
                }
                Command::Pending(answer) => readers.push(answer),
            }
        }
        let written = encoded.and_then(|()| self.append(&bytes, !begins.is_empty()));
        let outcome = || written.as_ref().map(|_| ()).map_err(|error| io::Error::new(error.kind(), error.to_string()));
        for (before, answer) in begins {
            let _ = answer.send(outcome().map(|()| before));
        }
        for answer in strike_offs {
            let _ = answer.send(outcome());
        }
        for answer in readers {
            let _ = answer.send(self.pending.in_order());
        }
        self.compact();
    }

    fn append(&mut self, bytes: &[u8], durably: bool) -> io::Result<()> {
        if self.broken {
            return Err(io::Error::other("an earlier write failed; open the journal again"));
        }
        let written = self.file.write_all(bytes).and_then(|()| if durably { self.file.sync_data() } else { Ok(()) });
        self.broken = written.is_err();
        self.length += bytes.len() as u64;
        written
    }

    fn compact(&mut self) {
        if self.broken || self.length <= COMPACT_ABOVE {
            return;
        }
        let live: usize = self.pending.records.values().map(|(_, record)| 200 + record.target.len()).sum();
        if self.length <= 4 * live as u64 {
            return;
        }
        match rewrite(&self.path, &self.pending) {
            Ok((file, length)) => (self.file, self.length) = (file, length),
            // Only the rename decides which file is the journal; whether it happened is unknown now.
            Err(error) => {
                self.broken = true;
                tracing::error!(path = %self.path.display(), %error, "the journal could not be rewritten");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Directory(PathBuf);

    impl Directory {
        fn new() -> Self {
            let path = std::env::temp_dir().join(format!("idem-client-{}", Key::random()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn journal(&self) -> PathBuf {
            self.0.join("orders.journal")
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn record(id: i64) -> Record {
        Record::new("order-confirm", Key::of("order-confirm", &id), "POST http://shop.example/orders", [7; 32])
    }

    /// Begun times are kept to the millisecond.
    fn keys(records: &[Record]) -> Vec<(String, Key, [u8; 32])> {
        records.iter().map(|record| (record.operation.clone(), record.key.clone(), record.request_hash)).collect()
    }

    async fn close(journal: FileJournal) {
        let path = journal.path.clone();
        drop(journal);
        while lock(&path).is_err() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn what_was_begun_and_not_struck_off_is_pending_after_reopening() {
        let directory = Directory::new();
        let journal = FileJournal::open(directory.journal()).unwrap();
        let records: Vec<_> = (0..5).map(record).collect();
        for record in &records {
            assert_eq!(journal.begin(record).await.unwrap(), None);
        }
        journal.strike_off(&records[1].key, &records[1].target).await.unwrap();
        journal.strike_off(&records[1].key, &records[1].target).await.unwrap();
        journal.strike_off(&records[2].key, "POST http://other.example/orders").await.unwrap();
        close(journal).await;
        let journal = FileJournal::open(directory.journal()).unwrap();
        let expected = [0, 2, 3, 4].map(|index| records[index].clone());
        assert_eq!(keys(&journal.pending().await.unwrap()), keys(&expected));
        assert_eq!(journal.begin(&records[2]).await.unwrap().map(|record| record.key), Some(records[2].key.clone()));
        assert_eq!(journal.pending().await.unwrap().len(), 4);
    }

    #[tokio::test]
    async fn a_half_written_last_line_is_dropped_and_other_damage_is_not() {
        let directory = Directory::new();
        let journal = FileJournal::open(directory.journal()).unwrap();
        journal.begin(&record(1)).await.unwrap();
        journal.begin(&record(2)).await.unwrap();
        close(journal).await;
        let bytes = fs::read(directory.journal()).unwrap();
        let first = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        for cut in first..bytes.len() {
            fs::write(directory.journal(), &bytes[..cut]).unwrap();
            let journal = FileJournal::open(directory.journal()).unwrap();
            assert_eq!(keys(&journal.pending().await.unwrap()), keys(&[record(1)]), "cut at {cut}");
            journal.begin(&record(3)).await.unwrap();
            assert_eq!(journal.pending().await.unwrap().len(), 2, "cut at {cut}");
            close(journal).await;
        }
        fs::write(directory.journal(), [b"{}\n", &bytes[..]].concat()).unwrap();
        let damaged = FileJournal::open(directory.journal()).unwrap_err().to_string();
        assert!(damaged.starts_with("line 1 of the journal"), "{damaged}");
    }

    #[tokio::test]
    async fn a_second_holder_is_refused() {
        let directory = Directory::new();
        let _first = FileJournal::open(directory.journal()).unwrap();
        let refused = FileJournal::open(directory.journal()).unwrap_err().to_string();
        assert!(refused.contains("must be open in one process"), "{refused}");
    }

    #[tokio::test]
    async fn the_file_does_not_grow_for_ever() {
        let directory = Directory::new();
        let journal = FileJournal::open(directory.journal()).unwrap();
        journal.begin(&record(-1)).await.unwrap();
        let most = (0..40).map(|_| "x".repeat(30_000));
        for (id, target) in (0..).zip(most) {
            let mut record = record(id);
            record.target = target;
            journal.begin(&record).await.unwrap();
            journal.strike_off(&record.key, &record.target).await.unwrap();
        }
        // The answer to the last command comes before the file is rewritten; the next one comes after.
        assert_eq!(keys(&journal.pending().await.unwrap()), keys(&[record(-1)]));
        assert!(fs::metadata(directory.journal()).unwrap().len() < COMPACT_ABOVE + 100_000);
        close(journal).await;
        let journal = FileJournal::open(directory.journal()).unwrap();
        assert_eq!(keys(&journal.pending().await.unwrap()), keys(&[record(-1)]));
        assert!(fs::metadata(directory.journal()).unwrap().len() < 1_000);
    }

    #[tokio::test]
    async fn concurrent_operations_are_all_recorded() {
        let directory = Directory::new();
        let journal = std::sync::Arc::new(FileJournal::open(directory.journal()).unwrap());
        let tasks: Vec<_> = (0..200)
            .map(|id| {
                let journal = std::sync::Arc::clone(&journal);
                tokio::spawn(async move { journal.begin(&record(id)).await.unwrap() })
            })
            .collect();
        for task in tasks {
            assert_eq!(task.await.unwrap(), None);
        }
        close(std::sync::Arc::into_inner(journal).unwrap()).await;
        let journal = FileJournal::open(directory.journal()).unwrap();
        assert_eq!(journal.pending().await.unwrap().len(), 200);
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn only_its_owner_can_read_it() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = Directory::new();
        let _journal = FileJournal::open(directory.journal()).unwrap();
        assert_eq!(fs::metadata(directory.journal()).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
