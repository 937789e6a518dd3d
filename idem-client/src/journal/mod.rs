//! The journal: what a restarted process must ask about.
//!
//! A process that dies between sending a request and reading its answer has forgotten that it sent anything. The
//! journal remembers: operation, key and request hash are durably written *before* the first attempt and struck off
//! after the answer, so that what is still there after a restart is exactly what nobody knows the outcome of.
//!
//! [`FileJournal`] keeps them in a local file; `PostgresJournal` (feature `postgres`) in a table. A store of your own
//! implements [`Journal`].

use std::fmt;
use std::time::SystemTime;

use async_trait::async_trait;
use uuid::Uuid;

use crate::key::Key;

mod disk;
mod file;
pub(crate) mod format;
#[cfg(feature = "postgres")]
mod postgres;

pub use file::FileJournal;
#[cfg(feature = "postgres")]
pub use postgres::PostgresJournal;

/// An operation that was begun and whose outcome is not known yet.
///
/// A record is identified by its operation and key: sending the same operation again does not make a second one, also
/// when the server has moved to another host. Where it was sent to is told and not compared.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// The operation's name.
    pub operation: String,
    /// The key it is sent with.
    pub key: Key,
    /// Method and URL, without credentials, query and fragment.
    pub target: String,
    /// The SHA-256 of method, path with query, and body.
    pub request_hash: [u8; 32],
    /// When it was first begun.
    pub begun_at: SystemTime,
    /// Which sender began it: a random token, so that no sender withdraws another one's record.
    pub begun_by: Uuid,
}

impl Record {
    /// A record that is begun now.
    #[must_use]
    pub fn new(operation: impl Into<String>, key: Key, target: impl Into<String>, request_hash: [u8; 32]) -> Self {
        Self {
            operation: operation.into(),
            key,
            target: target.into(),
            request_hash,
            begun_at: SystemTime::now(),
            begun_by: Uuid::new_v4(),
        }
    }
}

/// A durable store of begun operations.
///
/// Implementations use the attribute `#[async_trait::async_trait]`.
#[async_trait]
pub trait Journal: fmt::Debug + Send + Sync + 'static {
    /// Writes the record durably, unless one with the same operation and key is there; that one is returned instead.
    ///
    /// # Errors
    ///
    /// When the record may not be durable. The request is not sent then.
    async fn begin(&self, record: &Record) -> Result<Option<Record>, JournalError>;

    /// Strikes the record with this operation and key off: its outcome is known. None there is no error.
    ///
    /// # Errors
    ///
    /// When it may still be there after a restart.
    async fn strike_off(&self, operation: &str, key: &Key) -> Result<(), JournalError>;

    /// Strikes a record off that the caller began (its [`begin`](Self::begin) returned `None`, and `begun_by` is its own)
    /// and of which nothing came, unless another sender has begun the operation too since: that one's outcome may be
    /// another. Says whether it struck the record off.
    ///
    /// # Errors
    ///
    /// When it may still be there after a restart.
    async fn withdraw(&self, record: &Record) -> Result<bool, JournalError>;

    /// All records that were begun and not struck off, oldest first.
    ///
    /// # Errors
    ///
    /// When the store cannot be read.
    async fn pending(&self) -> Result<Vec<Record>, JournalError>;
}

/// The journal could not be read or written. The text says what and where, and never names a key.
#[derive(Debug)]
pub struct JournalError {
    text: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl JournalError {
    /// An error of a journal: lower case, no full stop.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), source: None }
    }

    /// The error with what caused it.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }
}

impl fmt::Display for JournalError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)?;
        self.source.as_ref().map_or(Ok(()), |source| write!(formatter, ": {source}"))
    }
}

impl std::error::Error for JournalError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| &**source as _)
    }
}
