//! The journal in a local file.
//!
//! One line for each event ([`format`](super::format)), appended and synced to the disk before the caller goes on. One
//! thread owns the file; callers that arrive together share one sync. Strike-offs are written at once but not waited for
//! on the disk: one that is lost leaves an operation to ask about that is long settled, which costs a question and not
//! money.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::disk::{Disk, Opened, error_at};
use super::format::{Line, Pending, id_of};
use super::{Journal, JournalError, Record};
use crate::key::Key;
use crate::under_way::Id;

/// The file is rewritten with the pending records alone when it is longer than this, and than four times them.
const COMPACT_ABOVE: u64 = 1024 * 1024;

/// A journal in a local file that one process at a time may hold open.
///
/// Keep the file where it survives a restart of the process, and give each process its own. It holds keys, so it is
/// readable by its owner alone. A begun operation costs one `fsync`, shared by operations that begin at the same time.
///
/// When the disk is full, operations are refused, unsent, until there is room; then the journal goes on by itself.
#[derive(Debug)]
pub struct FileJournal {
    commands: mpsc::Sender<Command>,
    path: PathBuf,
    cut: u64,
}

#[derive(Debug)]
enum Command {
    Begin(Record, oneshot::Sender<io::Result<Option<Record>>>),
    StrikeOff(Id, oneshot::Sender<()>),
    Withdraw(Record, oneshot::Sender<bool>),
    Pending(oneshot::Sender<Vec<Record>>),
}

impl FileJournal {
    /// Opens the journal, or makes it.
    ///
    /// The path is resolved once: a symbolic link stays one, and a later change of directory changes nothing.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or written; when it is held already, by whatever name; when it is no journal, or one
    /// of another version (it is left as it is); or when it is damaged: the text names the file and the line.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, JournalError> {
        let Opened { disk, pending, cut } = Disk::open(path.as_ref())?;
        let path = disk.path().to_path_buf();
        if cut > 0 {
            tracing::warn!(path = %path.display(), bytes = cut, "the journal was cut in its last line, which was dropped");
        }
        let mut writer = Writer { disk, pending, unwritten: Vec::new() };
        writer.compact();
        let (commands, inbox) = mpsc::channel();
        let spawned = thread::Builder::new().name("idem-journal".into()).spawn(move || writer.run(&inbox));
        spawned.map_err(|error| error_at(&path).caused_by(error))?;
        Ok(Self { commands, path, cut })
    }

    /// How many bytes at the file's end were no whole line when it was opened, and were dropped. A crash in the middle
    /// of a write leaves such a tail, and nothing was sent for it. Where the file was cut by something else, ask the
    /// servers about what was sent last.
    #[must_use]
    pub fn cut_tail(&self) -> u64 {
        self.cut
    }

    /// The file's path, without symbolic links.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
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
        self.ask(|answer| Command::Begin(record, answer)).await?.map_err(|error| error_at(&self.path).caused_by(error))
    }

    async fn strike_off(&self, operation: &str, key: &Key) -> Result<(), JournalError> {
        let id = (operation.to_owned(), key.clone());
        self.ask(|answer| Command::StrikeOff(id, answer)).await
    }

    async fn withdraw(&self, record: &Record) -> Result<bool, JournalError> {
        let record = record.clone();
        self.ask(|answer| Command::Withdraw(record, answer)).await
    }

    async fn pending(&self) -> Result<Vec<Record>, JournalError> {
        self.ask(Command::Pending).await
    }
}

/// The thread that owns the file.
struct Writer {
    disk: Disk,
    pending: Pending,
    /// Strike-offs that could not be written. What is struck off stays so, and they are written when there is room.
    unwritten: Vec<Id>,
}

/// An operation that is begun: its record of before, and who waits.
type Begin = (Id, Option<Record>, oneshot::Sender<io::Result<Option<Record>>>);

/// One batch of commands: what is to be written, and who waits for it.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    /// Records that are on file only if this batch is written.
    begun: HashSet<Id>,
    begins: Vec<Begin>,
    /// Records that this batch strikes off.
    struck_off: Vec<Id>,
    strike_offs: Vec<oneshot::Sender<()>>,
    withdrawals: Vec<(bool, oneshot::Sender<bool>)>,
    readers: Vec<oneshot::Sender<Vec<Record>>>,
}

impl Writer {
    fn run(mut self, inbox: &mpsc::Receiver<Command>) {
        while let Ok(first) = inbox.recv() {
            let commands: Vec<_> = std::iter::once(first).chain(inbox.try_iter()).collect();
            self.work(commands);
        }
    }

    /// Works one batch off: all lines in one write, one sync if anything was begun, then the answers.
    fn work(&mut self, commands: Vec<Command>) {
        if self.disk.is_broken()
            && let Err(error) = self.disk.recover(&self.pending)
        {
            tracing::debug!(path = %self.disk.path().display(), %error, "the journal is not in order yet");
        }
        let mut batch = Batch::default();
        for id in std::mem::take(&mut self.unwritten) {
            Line::strike_off(&id).append_to(&mut batch.bytes);
            batch.struck_off.push(id);
        }
        commands.into_iter().for_each(|command| self.take(command, &mut batch));
        let durably = !batch.begun.is_empty();
        let written = if batch.bytes.is_empty() { Ok(()) } else { self.disk.append(&batch.bytes, durably) };
        if let Err(error) = &written {
            tracing::error!(path = %self.disk.path().display(), %error, "the journal could not be written");
            // Nobody was told that these are on file, so they are not pending.
            for id in &batch.begun {
                self.pending.remove(id);
            }
            self.unwritten = std::mem::take(&mut batch.struck_off);
        }
        let readers = std::mem::take(&mut batch.readers);
        self.strike_off_abandoned(&batch.answer(&written));
        for answer in readers {
            let _ = answer.send(self.pending.in_order());
        }
        self.compact();
    }

    fn take(&mut self, command: Command, batch: &mut Batch) {
        match command {
            Command::Begin(record, answer) => {
                let id = id_of(&record);
                let before = self.pending.get(&id).cloned();
                if before.is_none() {
                    Line::begin(&record).append_to(&mut batch.bytes);
                    self.pending.insert(record);
                    batch.begun.insert(id.clone());
                }
                batch.begins.push((id, before, answer));
            }
            Command::StrikeOff(id, answer) => {
                self.strike_off(&id, batch);
                batch.strike_offs.push(answer);
            }
            Command::Withdraw(record, answer) => {
                let id = id_of(&record);
                let own = self.pending.get(&id).is_some_and(|there| there.begun_by == record.begun_by);
                if own {
                    self.strike_off(&id, batch);
                }
                batch.withdrawals.push((own, answer));
            }
            Command::Pending(answer) => batch.readers.push(answer),
        }
    }

    fn strike_off(&mut self, id: &Id, batch: &mut Batch) {
        if self.pending.remove(id) {
            Line::strike_off(id).append_to(&mut batch.bytes);
            batch.struck_off.push(id.clone());
        }
    }

    /// Nobody waited for these records any more when they were on file, so nothing is sent for them.
    fn strike_off_abandoned(&mut self, abandoned: &[Id]) {
        let mut batch = Batch::default();
        abandoned.iter().for_each(|id| self.strike_off(id, &mut batch));
        if !batch.bytes.is_empty()
            && let Err(error) = self.disk.append(&batch.bytes, false)
        {
            tracing::warn!(%error, "an operation that was never sent could not be struck off the journal");
            self.unwritten = batch.struck_off;
        }
    }

    fn compact(&mut self) {
        let length = self.disk.length();
        if length <= COMPACT_ABOVE || length <= 4 * self.pending.size() || !self.disk.may_be_replaced() {
            return;
        }
        if let Err(error) = self.disk.rewrite(&self.pending) {
            tracing::error!(path = %self.disk.path().display(), %error, "the journal could not be rewritten");
        }
    }
}

impl Batch {
    /// Answers those who write; gives back what was begun and of which nobody hears.
    fn answer(self, written: &io::Result<()>) -> Vec<Id> {
        let outcome = || match written {
            Ok(()) => Ok(()),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        };
        let mut unheard = Vec::new();
        let mut heard = HashSet::new();
        for (id, before, answer) in self.begins {
            // What was on file before this batch is there whether or not the batch could be written.
            let answered = match before {
                Some(record) if !self.begun.contains(&id) => answer.send(Ok(Some(record))),
                before => answer.send(outcome().map(|()| before)),
            };
            if answered.is_ok() {
                heard.insert(id);
            } else {
                unheard.push(id);
            }
        }
        for answer in self.strike_offs {
            let _ = answer.send(());
        }
        for (own, answer) in self.withdrawals {
            let _ = answer.send(own);
        }
        unheard.retain(|id| self.begun.contains(id) && !heard.contains(id));
        unheard
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

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
        let file = fs::File::open(journal.path()).unwrap();
        drop(journal);
        while file.try_lock().is_err() {
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
        journal.strike_off("order-confirm", &records[1].key).await.unwrap();
        journal.strike_off("order-confirm", &records[1].key).await.unwrap();
        journal.strike_off("another-operation", &records[2].key).await.unwrap();
        close(journal).await;
        let journal = FileJournal::open(directory.journal()).unwrap();
        let expected = [0, 2, 3, 4].map(|index| records[index].clone());
        assert_eq!(keys(&journal.pending().await.unwrap()), keys(&expected));
        assert_eq!(journal.begin(&records[2]).await.unwrap().map(|record| record.key), Some(records[2].key.clone()));
        assert_eq!(journal.pending().await.unwrap().len(), 4);
    }

    #[tokio::test]
    async fn a_cut_tail_is_dropped_and_told_and_the_journal_goes_on() {
        let directory = Directory::new();
        let journal = FileJournal::open(directory.journal()).unwrap();
        assert_eq!(journal.cut_tail(), 0);
        journal.begin(&record(1)).await.unwrap();
        let first = fs::metadata(directory.journal()).unwrap().len();
        journal.begin(&record(2)).await.unwrap();
        close(journal).await;
        let bytes = fs::read(directory.journal()).unwrap();
        for cut in first as usize..bytes.len() {
            fs::write(directory.journal(), &bytes[..cut]).unwrap();
            let journal = FileJournal::open(directory.journal()).unwrap();
            let whole = cut == bytes.len() - 1;
            assert_eq!(journal.cut_tail(), if whole { 0 } else { cut as u64 - first }, "cut at {cut}");
            let left = if whole { vec![record(1), record(2)] } else { vec![record(1)] };
            assert_eq!(keys(&journal.pending().await.unwrap()), keys(&left), "cut at {cut}");
            journal.begin(&record(3)).await.unwrap();
            close(journal).await;
            let journal = FileJournal::open(directory.journal()).unwrap();
            assert_eq!(
                (journal.pending().await.unwrap().len(), journal.cut_tail()),
                (left.len() + 1, 0),
                "cut at {cut}"
            );
            close(journal).await;
        }
    }

    #[tokio::test]
    async fn what_is_no_journal_or_damaged_is_refused_and_left_as_it_is() {
        let directory = Directory::new();
        let journal = FileJournal::open(directory.journal()).unwrap();
        journal.begin(&record(1)).await.unwrap();
        journal.begin(&record(2)).await.unwrap();
        close(journal).await;
        let mut damaged = fs::read(directory.journal()).unwrap();
        let middle = damaged.len() / 2;
        damaged[middle] ^= 1;
        for (bytes, said) in [
            (&b"customer,total\nada,7\n"[..], "it is no journal and was left as it is"),
            (b"{\"begin\":{}}\n", "it is no journal"),
            (b"no newline", "it is no journal"),
            (&[0; 64], "it is no journal"),
            (b"idem-client journal, version 2\nx\n", "it has another version"),
            (b"idem-client jour", "it is cut in its first line"),
            (&damaged, "is damaged; look at it"),
        ] {
            fs::write(directory.journal(), bytes).unwrap();
            let before = fs::metadata(directory.journal()).unwrap().modified().unwrap();
            let refused = FileJournal::open(directory.journal()).unwrap_err().to_string();
            assert!(refused.contains(said), "{refused}");
            assert_eq!(fs::read(directory.journal()).unwrap(), bytes, "{said}");
            assert_eq!(fs::metadata(directory.journal()).unwrap().modified().unwrap(), before);
            assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 1, "and nothing is left beside it");
        }
        let refused = FileJournal::open(&directory.0).unwrap_err().to_string();
        assert!(refused.contains("directory"), "{refused}");
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn one_file_is_one_journal_by_whatever_name() {
        use std::os::unix::fs::symlink;
        let directory = Directory::new();
        let (link, other) = (directory.0.join("link"), directory.0.join("other"));
        symlink(directory.journal(), &link).unwrap();
        // The link points to nothing yet.
        let journal = FileJournal::open(&link).unwrap();
        fs::hard_link(directory.journal(), &other).unwrap();
        for name in [&directory.journal(), &link, &other] {
            let refused = FileJournal::open(name).unwrap_err().to_string();
            assert!(refused.contains("must be open in one process and once"), "{refused}");
        }
        fill_up(&journal).await;
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(FileJournal::open(&other).is_err(), "the names have not been parted");
        close(journal).await;
        fs::remove_file(&other).unwrap();
        let journal = FileJournal::open(&link).unwrap();
        fill_up(&journal).await;
        let length = fs::metadata(directory.journal()).unwrap().len();
        assert!(length < COMPACT_ABOVE + 100_000, "with one name it is rewritten: {length}");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(FileJournal::open(directory.journal()).is_err(), "the new file has the lock too");
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_journal_that_was_moved_or_removed_loses_nothing_and_writes_over_nothing() {
        for removed in [true, false] {
            let directory = Directory::new();
            let journal = FileJournal::open(directory.journal()).unwrap();
            journal.begin(&record(1)).await.unwrap();
            if removed {
                fs::remove_file(directory.journal()).unwrap();
            } else {
                fs::rename(directory.journal(), directory.0.join("moved")).unwrap();
            }
            fs::write(directory.journal(), "somebody else's").unwrap();
            let refused = journal.begin(&record(2)).await.unwrap_err().to_string();
            assert!(refused.contains("was moved or removed"), "{refused}");
            journal.begin(&record(2)).await.unwrap_err();
            assert_eq!(keys(&journal.pending().await.unwrap()), keys(&[record(1)]));
            assert_eq!(fs::read(directory.journal()).unwrap(), b"somebody else's");
            fs::remove_file(directory.journal()).unwrap();
            journal.begin(&record(3)).await.unwrap();
            close(journal).await;
            let journal = FileJournal::open(directory.journal()).unwrap();
            assert_eq!(keys(&journal.pending().await.unwrap()), keys(&[record(1), record(3)]));
        }
    }

    #[tokio::test]
    async fn what_was_struck_off_while_nothing_could_be_written_stays_so() {
        let directory = Directory::new();
        let journal = FileJournal::open(directory.journal()).unwrap();
        journal.begin(&record(1)).await.unwrap();
        let second = record(2);
        journal.begin(&second).await.unwrap();
        let aside = directory.0.join("aside");
        fs::rename(directory.journal(), &aside).unwrap();
        fs::create_dir(directory.journal()).unwrap();
        journal.begin(&record(3)).await.unwrap_err();
        journal.strike_off("order-confirm", &record(1).key).await.unwrap();
        assert!(journal.withdraw(&second).await.unwrap());
        assert_eq!(journal.pending().await.unwrap(), []);
        fs::remove_dir(directory.journal()).unwrap();
        journal.begin(&record(4)).await.unwrap();
        close(journal).await;
        let journal = FileJournal::open(directory.journal()).unwrap();
        assert_eq!(keys(&journal.pending().await.unwrap()), keys(&[record(4)]));
    }

    #[tokio::test]
    async fn a_second_holder_is_refused() {
        let directory = Directory::new();
        let _first = FileJournal::open(directory.journal()).unwrap();
        let refused = FileJournal::open(directory.journal()).unwrap_err().to_string();
        assert!(refused.contains("must be open in one process and once"), "{refused}");
    }

    /// More than a mebibyte of operations that are over.
    async fn fill_up(journal: &FileJournal) {
        for id in 0..40 {
            let mut record = record(id);
            record.target = "x".repeat(30_000);
            journal.begin(&record).await.unwrap();
            journal.strike_off(&record.operation, &record.key).await.unwrap();
        }
        journal.pending().await.unwrap();
    }

    #[tokio::test]
    async fn the_file_does_not_grow_for_ever() {
        let directory = Directory::new();
        let journal = FileJournal::open(directory.journal()).unwrap();
        journal.begin(&record(-1)).await.unwrap();
        fill_up(&journal).await;
        // The answer to the last command comes before the file is rewritten; the next one comes after.
        assert_eq!(keys(&journal.pending().await.unwrap()), keys(&[record(-1)]));
        assert!(fs::metadata(directory.journal()).unwrap().len() < COMPACT_ABOVE + 100_000);
        close(journal).await;
        let journal = FileJournal::open(directory.journal()).unwrap();
        assert_eq!(keys(&journal.pending().await.unwrap()), keys(&[record(-1)]));
        assert!(fs::metadata(directory.journal()).unwrap().len() < COMPACT_ABOVE + 100_000);
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

    #[tokio::test]
    async fn a_sender_withdraws_its_own_record_alone() {
        let directory = Directory::new();
        let journal = FileJournal::open(directory.journal()).unwrap();
        let (first, second) = (record(1), record(1));
        assert!(journal.begin(&first).await.unwrap().is_none() && journal.begin(&second).await.unwrap().is_some());
        assert!(!journal.withdraw(&second).await.unwrap());
        assert_eq!(journal.pending().await.unwrap().len(), 1);
        assert!(journal.withdraw(&first).await.unwrap() && !journal.withdraw(&first).await.unwrap());
        assert_eq!(journal.pending().await.unwrap().len(), 0);
    }

    #[tokio::test]
    async fn what_nobody_waited_for_was_never_begun() {
        let directory = Directory::new();
        let Opened { disk, pending, .. } = Disk::open(&directory.journal()).unwrap();
        let mut writer = Writer { disk, pending, unwritten: Vec::new() };
        let begin = |id| {
            let (answer, receiver) = oneshot::channel();
            (Command::Begin(record(id), answer), receiver)
        };
        let (abandoned, gone) = begin(1);
        drop(gone);
        let (shared, gone) = begin(2);
        drop(gone);
        let ((shared_too, heard), (plain, heard_too)) = (begin(2), begin(3));
        let (reading, read) = oneshot::channel();
        writer.work(vec![abandoned, shared, shared_too, plain, Command::Pending(reading)]);
        let expected = keys(&[record(2), record(3)]);
        assert!(heard.await.unwrap().unwrap().is_some() && heard_too.await.unwrap().unwrap().is_none());
        assert_eq!(keys(&read.await.unwrap()), expected);
        drop(writer);
        let journal = FileJournal::open(directory.journal()).unwrap();
        assert_eq!(keys(&journal.pending().await.unwrap()), expected);
    }
}
