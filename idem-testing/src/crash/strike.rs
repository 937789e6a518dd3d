//! The columns of the matrix.

use std::fmt;
use std::time::Duration;

use crate::lane::TIMEOUT;
use crate::proxy::{Action, Fault, Place};

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
}

impl Strike {
    /// All of them.
    pub const ALL: [Strike; 6] = [
        Strike::CutBefore,
        Strike::AnswerLost,
        Strike::BackendKilled,
        Strike::CutOff,
        Strike::Stalled,
        Strike::AnswerStalled,
    ];

    pub(super) fn fault(self, n: u64, stall: Duration) -> Fault {
        let (place, action) = match self {
            Strike::CutBefore => (Place::Frontend(n), Action::Cut),
            Strike::AnswerLost => (Place::Backend(n), Action::Cut),
            Strike::BackendKilled => (Place::RoundTrip(n), Action::KillBackend),
            Strike::CutOff => (Place::RoundTrip(n), Action::Partition),
            Strike::Stalled => (Place::RoundTrip(n), Action::Stall(stall)),
            Strike::AnswerStalled => (Place::Answer(n), Action::Stall(stall)),
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
}

impl fmt::Display for Strike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Strike::CutBefore => "cut before",
            Strike::AnswerLost => "answer lost",
            Strike::BackendKilled => "backend killed",
            Strike::CutOff => "cut off",
            Strike::Stalled => "stalled",
            Strike::AnswerStalled => "answer stalled",
        })
    }
}
