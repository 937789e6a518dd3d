//! What Postgres does, one atomic step at a time.

use super::{Claim, Outcome, Snapshot, State};

/// A row of the table. It lives for as long as the retention that it was written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Row {
    pub(super) outcome: Outcome,
    pub(super) retention: u8,
}

impl Row {
    pub(super) fn is_live(self, state: &State) -> bool {
        self.retention == state.expiries
    }
}

/// A backend with its transaction, and what is on the wire to and from it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Session {
    /// Whose it is, or was.
    pub(super) request: u8,
    /// Whether the process can still read from it. If not, it ends once Postgres notices.
    pub(super) connected: bool,
    pub(super) message: Option<Message>,
    /// How many commands of the message have been executed.
    executed: u8,
    pub(super) reply: Option<Reply>,
    locked: bool,
    /// What `set_config('idem.claim', …)` remembers.
    claimed: bool,
    /// What the transaction sees, where that is fixed.
    snapshot: Option<Option<Row>>,
    inserted: Option<Row>,
}

/// Commands that travel together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Message {
    /// BEGIN, the try-lock and the look-up.
    Begin,
    /// The insert, with the deletion of an expired row before it, and COMMIT.
    Complete { outcome: Outcome, replaces_expired: bool },
    /// ROLLBACK, the try-lock, the insert and COMMIT.
    Refuse { outcome: Outcome, replaces_expired: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Reply {
    LookedUp {
        claimed: bool,
        row: Option<Row>,
    },
    Stored,
    /// 23505: somebody else's row is there.
    Rival,
    /// 40001.
    Conflict,
}

impl Session {
    pub(super) fn begin(request: u8) -> Self {
        Self {
            request,
            connected: true,
            message: Some(Message::Begin),
            executed: 0,
            reply: None,
            locked: false,
            claimed: false,
            snapshot: None,
            inserted: None,
        }
    }

    pub(super) fn send(&mut self, message: Message) {
        (self.message, self.executed, self.reply) = (Some(message), 0, None);
    }

    /// In a transaction, and waiting for its client. The answer may not have been read yet.
    pub(super) fn is_idle(&self) -> bool {
        self.connected && self.message.is_none()
    }

    fn answer(&mut self, reply: Reply) {
        (self.message, self.executed, self.reply) = (None, 0, Some(reply));
    }

    fn lose_transaction(&mut self) {
        (self.locked, self.claimed, self.snapshot, self.inserted) = (false, false, None, None);
    }
}

impl Claim {
    pub(super) fn can_execute(&self, state: &State, session: usize) -> bool {
        let Some(message) = state.sessions[session].message else { return false };
        !self.inserts_next(&state.sessions[session], message) || !self.is_blocked(state, session)
    }

    fn inserts_next(&self, session: &Session, message: Message) -> bool {
        match message {
            Message::Begin => false,
            Message::Complete { .. } => session.executed == u8::from(!self.protocol.one_commit),
            Message::Refuse { .. } => session.executed == 2,
        }
    }

    /// An insert waits for a rival's, until that one has committed or not.
    fn is_blocked(&self, state: &State, session: usize) -> bool {
        let rival = |(other, rival): (usize, &Session)| other != session && rival.inserted.is_some();
        self.protocol.primary_key && state.sessions.iter().enumerate().any(rival)
    }

    /// The next command of the session's message.
    pub(super) fn execute(&self, state: &mut State, session: usize) {
        let message = state.sessions[session].message.expect("only sessions with a message execute");
        let executed = state.sessions[session].executed;
        state.sessions[session].executed += 1;
        match (message, executed) {
            (Message::Begin, 0) if self.protocol.snapshot == Snapshot::BeforeLock => {
                state.sessions[session].snapshot = Some(state.row);
                state.sessions[session].executed = 1;
            }
            (Message::Begin, 0 | 1) => {
                self.try_lock(state, session);
                state.sessions[session].executed = 2;
            }
            (Message::Begin, _) => {
                let row = state.sessions[session].snapshot.unwrap_or(state.row);
                let claimed = state.sessions[session].claimed;
                state.sessions[session].answer(Reply::LookedUp { claimed, row });
            }
            (Message::Complete { outcome, .. }, 0) if !self.protocol.one_commit => {
                state.effects.push((outcome.by, state.expiries));
                state.sessions[session].lose_transaction();
            }
            (Message::Complete { .. }, _) if state.sessions[session].inserted.is_some() => {
                commit(state, session, self.protocol.one_commit)
            }
            (Message::Complete { outcome, replaces_expired }, _) => {
                self.insert(state, session, outcome, replaces_expired)
            }
            (Message::Refuse { .. }, 0) => state.sessions[session].lose_transaction(),
            (Message::Refuse { .. }, 1) => self.try_lock(state, session),
            (Message::Refuse { outcome, replaces_expired }, 2) => {
                self.insert(state, session, outcome, replaces_expired)
            }
            (Message::Refuse { .. }, _) => commit(state, session, false),
        }
    }

    fn try_lock(&self, state: &mut State, session: usize) {
        let free = !self.protocol.lock || state.sessions.iter().all(|session| !session.locked);
        let session = &mut state.sessions[session];
        (session.locked, session.claimed) = (free, free);
    }

    /// An error ends the message, and with it the commit behind the insert.
    fn insert(&self, state: &mut State, session: usize, outcome: Outcome, replaces_expired: bool) {
        let row = Row { outcome, retention: state.expiries };
        if self.protocol.primary_key {
            let deletes = replaces_expired && self.protocol.replaces_expired;
            let expired = state.row.is_some_and(|row| !row.is_live(state));
            let changed = state.sessions[session].snapshot.is_some_and(|snapshot| snapshot != state.row);
            if deletes && changed {
                return state.sessions[session].answer(Reply::Conflict);
            }
            if state.row.is_some() && !(expired && deletes) {
                return state.sessions[session].answer(Reply::Rival);
            }
        }
        state.sessions[session].inserted = Some(row);
    }
}

fn commit(state: &mut State, session: usize, with_effect: bool) {
    let row = state.sessions[session].inserted.expect("a commit follows an insert");
    state.row = Some(row);
    state.outcomes.push(row);
    if with_effect {
        state.effects.push((row.outcome.by, row.retention));
    }
    state.sessions[session].lose_transaction();
    state.sessions[session].answer(Reply::Stored);
}
