//! The columns of the matrix.

use std::fmt;
use std::time::Duration;

use crate::lane::TIMEOUT;
use crate::proxy::{Action, Fault, Place, Word};

/// What happens to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Strike {
    /// The connection is cut before a message of the client's: a part of what it sent arrives, or nothing.
    CutBefore,
    /// The server executes what it was asked for, and the connection is cut before one of its messages: the
    /// acknowledgement is lost, all of it or a part.
    AnswerLost,
    /// The server's process is terminated before a round trip.
    BackendKilled,
    /// The process loses its database for good, before a round trip: as if it had been killed. Retries go to another
    /// process.
    CutOff,
    /// What the client sends is held back; it arrives after others may have taken over.
    Stalled,
    /// The server executes what it was asked for, and its answer is held back.
    AnswerStalled,
    /// A round trip is not delivered: the client gets this word of a pooler, or of a server that goes down.
    Refused(Word),
    /// The server executes what it was asked for, and the client gets this word instead of its answer.
    Denied(Word),
}

impl Strike {
    /// All of them, with the [few](Word::FEW) words that stand for all.
    pub const ALL: [Strike; 16] = [
        Strike::CutBefore,
        Strike::AnswerLost,
        Strike::BackendKilled,
        Strike::CutOff,
        Strike::Stalled,
        Strike::AnswerStalled,
        Strike::Refused(Word::FEW[0]),
        Strike::Refused(Word::FEW[1]),
        Strike::Refused(Word::FEW[2]),
        Strike::Refused(Word::FEW[3]),
        Strike::Refused(Word::FEW[4]),
        Strike::Denied(Word::FEW[0]),
        Strike::Denied(Word::FEW[1]),
        Strike::Denied(Word::FEW[2]),
        Strike::Denied(Word::FEW[3]),
        Strike::Denied(Word::FEW[4]),
    ];

    /// Every [word](Word::every), not delivered and executed: 70 in all.
    #[must_use]
    pub fn every_word() -> Vec<Strike> {
        let words = Word::every();
        words.iter().copied().map(Strike::Refused).chain(words.iter().copied().map(Strike::Denied)).collect()
    }

    /// Whether a pooler puts another server in the place of the one that had the transaction, and says so with an error alone.
    pub(super) fn exchanges_session(self) -> bool {
        matches!(self, Strike::Refused(Word::ServerLost { .. }) | Strike::Denied(Word::ServerLost { .. }))
    }

    pub(super) fn fault(self, n: u64, stall: Duration) -> Fault {
        let (place, action) = match self {
            Strike::CutBefore => (Place::Frontend(n), Action::Cut),
            Strike::AnswerLost => (Place::Backend(n), Action::Cut),
            Strike::BackendKilled => (Place::RoundTrip(n), Action::KillBackend),
            Strike::CutOff => (Place::RoundTrip(n), Action::Partition),
            Strike::Stalled => (Place::RoundTrip(n), Action::Stall(stall)),
            Strike::AnswerStalled => (Place::Answer(n), Action::Stall(stall)),
            Strike::Refused(word) => (Place::RoundTrip(n), Action::Answer(word)),
            Strike::Denied(word) => (Place::Answer(n), Action::Answer(word)),
        };
        Fault { place, action }
    }

    /// How long the client waits for the attempt that is struck.
    pub(super) fn patience(self, stall: Duration) -> Duration {
        match self {
            Strike::Stalled | Strike::AnswerStalled => stall / 4,
            // Its process could try to reach the database for long.
            Strike::CutOff => Duration::from_millis(200),
            _ => TIMEOUT,
        }
    }

    pub(super) fn is_stall(self) -> bool {
        matches!(self, Strike::Stalled | Strike::AnswerStalled)
    }

    /// Simple faults explain a finding better than odd ones.
    pub(super) fn rank(self) -> u8 {
        match self {
            Strike::CutOff => 0,
            Strike::AnswerLost => 1,
            Strike::CutBefore => 2,
            Strike::BackendKilled => 3,
            Strike::Stalled => 4,
            Strike::AnswerStalled => 5,
            Strike::Refused(_) => 6,
            Strike::Denied(_) => 7,
        }
    }

    /// The table's column: the words share two.
    pub(super) fn column(self) -> &'static str {
        match self {
            Strike::CutBefore => "cut before",
            Strike::AnswerLost => "answer lost",
            Strike::BackendKilled => "backend killed",
            Strike::CutOff => "cut off",
            Strike::Stalled => "stalled",
            Strike::AnswerStalled => "answer stalled",
            Strike::Refused(_) => "pooler's word",
            Strike::Denied(_) => "pooler's word, executed",
        }
    }
}

impl fmt::Display for Strike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Strike::Refused(word) => write!(f, "pooler's word ({word})"),
            Strike::Denied(word) => write!(f, "pooler's word, executed ({word})"),
            strike => f.pad(strike.column()),
        }
    }
}
