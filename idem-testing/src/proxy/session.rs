//! What the messages of one connection mean.

use std::collections::HashMap;

use super::counts::Counts;
use super::message::Message;

/// What the proxy must know of a session to name and count what passes.
#[derive(Debug, Default)]
pub(super) struct Session {
    /// The process that serves it, from `BackendKeyData`.
    pub(super) backend: Option<i32>,
    /// Whether the server has let the client in.
    pub(super) established: bool,
    /// Whether the client waits for an answer.
    awaits: bool,
    /// Whether the answer to the current round trip has begun.
    answered: bool,
    /// What the current round trip is about.
    pub(super) statement: String,
    prepared: HashMap<String, String>,
    in_transaction: bool,
    wrote: bool,
}

impl Session {
    /// Takes note of a client's message. True if a round trip begins with it.
    pub(super) fn frontend(&mut self, message: &Message, counts: &mut Counts) -> bool {
        counts.frontend_messages += 1;
        let begins = !self.awaits && message.kind != b'X';
        if begins {
            counts.round_trips += 1;
            self.awaits = true;
            self.answered = false;
            self.statement = String::from(if message.kind == 0 { "connect" } else { "ping" });
        }
        let mut texts = message.texts();
        match message.kind {
            b'Q' => self.statement = texts.next().unwrap_or_default().to_owned(),
            b'P' => {
                let (name, statement) = (texts.next().unwrap_or_default(), texts.next().unwrap_or_default());
                self.statement = statement.to_owned();
                self.prepared.insert(name.to_owned(), statement.to_owned());
            }
            b'B' => {
                let name = texts.nth(1).unwrap_or_default();
                self.statement = self.prepared.get(name).cloned().unwrap_or_default();
            }
            b'C' if message.payload().first() == Some(&b'S') => {
                let name = texts.next().unwrap_or_default().get(1..).unwrap_or_default().to_owned();
                self.statement = self.prepared.remove(&name).unwrap_or_default();
            }
            b'X' => "disconnect".clone_into(&mut self.statement),
            _ => {}
        }
        counts.statements += u64::from(matches!(message.kind, b'Q' | b'E'));
        begins
    }

    /// Takes note of a server's message. True if the answer to a round trip begins with it.
    pub(super) fn backend(&mut self, message: &Message, counts: &mut Counts) -> bool {
        counts.backend_messages += 1;
        let begins = self.awaits && !self.answered;
        self.answered = true;
        match message.kind {
            b'K' => self.backend = message.number().map(u32::cast_signed),
            b'C' => self.completed(message.texts().next().unwrap_or_default(), counts),
            b'Z' => {
                self.established = true;
                self.awaits = false;
                self.in_transaction = message.payload() != b"I";
                counts.commits += u64::from(self.wrote && !self.in_transaction);
                self.wrote = false;
            }
            _ => {}
        }
        begins
    }

    fn completed(&mut self, tag: &str, counts: &mut Counts) {
        match tag.split(' ').next().unwrap_or_default() {
            "BEGIN" | "START" => self.in_transaction = true,
            "COMMIT" => {
                counts.commits += 1;
                self.in_transaction = false;
            }
            "ROLLBACK" => self.in_transaction = false,
            "SELECT" | "SHOW" | "SET" | "RESET" | "DISCARD" | "FETCH" | "LISTEN" | "UNLISTEN" | "EXPLAIN" | "CLOSE" => {
            }
            _ => self.wrote |= !self.in_transaction,
        }
    }
}
