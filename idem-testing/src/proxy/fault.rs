//! Where and how to strike.

use std::fmt;
use std::time::Duration;

use super::word::Word;

/// A single blow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where it strikes.
    pub place: Place,
    /// What it does.
    pub action: Action,
}

/// A message, counted from 1 since the fault was injected and over all connections of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// The n-th message that a client sends.
    Frontend(u64),
    /// The n-th message that the server sends.
    Backend(u64),
    /// The first message that a client sends in the n-th round trip.
    RoundTrip(u64),
    /// The first message that the server sends in the n-th round trip.
    Answer(u64),
}

/// What happens to the message and its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The connection is cut and the message lost. If it is one of the server's, the server first completes what it was
    /// asked for, so the effect is there and its acknowledgement is not.
    Cut,
    /// The message is delivered and the connection cut after it. If it is a client's, the server completes what it was
    /// asked for, and its answer is lost.
    CutAfter,
    /// The message is held back, and delivered late even if its sender hung up meanwhile.
    Stall(Duration),
    /// The session's server process is terminated (`pg_terminate_backend`) before the message is delivered.
    KillBackend,
    /// All connections of the proxy are cut, and new ones are refused until [`Proxy::heal`](super::Proxy::heal): what
    /// the database sees of a client process that is killed.
    Partition,
    /// The client is answered with this word in the server's place.
    ///
    /// If the message is a client's, it is not delivered, nor is the rest of its round trip; if it is one of the server's,
    /// the server first completes what it was asked for, so the effect is there and the word denies it. While a session
    /// begins, any word ends it.
    Answer(Word),
}

/// Who sends a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Client to server.
    Frontend,
    /// Server to client.
    Backend,
}

/// The message that a fault struck.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Met {
    /// Who sent it.
    pub direction: Direction,
    /// The protocol's name for it, such as `Bind` or `ReadyForQuery`.
    pub message: &'static str,
    /// The SQL text that it belongs to, with `?` for each literal; `connect`, `ping` or `disconnect` if to none.
    pub statement: String,
    /// The round trip that it belongs to, counted from 1 since the fault was injected.
    pub round_trip: u64,
    /// Why the blow could not be dealt: the role may not terminate the backend, say.
    pub failure: Option<String>,
}

impl Met {
    /// The statement in at most so many characters.
    pub(crate) fn short_statement(&self, length: usize) -> String {
        shorten(&self.statement, length)
    }
}

impl fmt::Display for Met {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sender = match self.direction {
            Direction::Frontend => "the client's",
            Direction::Backend => "the server's",
        };
        write!(f, "{sender} {} of `{}`", self.message, self.statement)
    }
}

/// One line of at most so many characters. Of several commands, the end of the last is shown too: it may be `COMMIT`.
pub(crate) fn shorten(text: &str, length: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let count = line.chars().count();
    if count <= length {
        return line;
    }
    let last = line.rsplit_once("; ").map_or("", |(_, last)| last);
    let tail = if last.chars().count() <= length / 2 { last } else { "" };
    let head: String = line.chars().take(length - 1 - tail.chars().count()).collect();
    format!("{head}…{tail}")
}
