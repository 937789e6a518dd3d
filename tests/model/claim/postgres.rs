//! What Postgres does, one atomic step at a time.

use super::{Claim, Outcome, Snapshot, State, Way};

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
    /// The open transaction is the claim's: its mark is there.
    marked: bool,
    /// A statement has failed in it.
    aborted: bool,
    /// The claim's transaction was committed, and not by us: the witness is there.
    witnessed: bool,
}

/// Commands that travel together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Message {
    /// BEGIN, the try-lock and the look-up.
    Begin,
    /// The insert, with the deletion of an expired row before it, and COMMIT.
    Complete { outcome: Outcome, replaces_expired: bool },
    /// The mark, ROLLBACK, the witness, the try-lock, the insert and COMMIT. Without the mark for an aborted transaction.
    Refuse { outcome: Outcome, replaces_expired: bool },
    /// The mark, ROLLBACK and the witness. Without the mark for an aborted transaction.
    Release,
    /// On another connection: the insert of an unknown outcome where there is none yet, and COMMIT.
    StoreEscape { outcome: Outcome },
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
    RolledBack,
    /// The mark is gone, or the witness is there.
    Escaped,
    /// 25P02, in answer to a commit: it is rolled back.
    Aborted,
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
            marked: false,
            aborted: false,
            witnessed: false,
        }
    }

    pub(super) fn store_escape(request: u8, outcome: Outcome) -> Self {
        Self { message: Some(Message::StoreEscape { outcome }), ..Self::begin(request) }
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.aborted
    }

    pub(super) fn is_storing(&self) -> bool {
        matches!(self.message, Some(Message::Complete { .. } | Message::Refuse { .. }))
    }

    /// The open transaction is not the claim's, and nothing tells of what became of that one.
    pub(super) fn is_without_a_trace(&self) -> bool {
        !self.marked && !self.witnessed
    }

    /// What a handler's helper does, seen from the server.
    pub(super) fn leave(&mut self, way: Way) {
        match way {
            Way::Fail => self.aborted = true,
            // It only rolls back what has failed.
            _ if self.aborted => {
                self.lose_transaction();
                self.aborted = false;
            }
            Way::Commit => {
                self.witnessed |= self.marked;
                self.lose_transaction();
            }
            Way::RollBack => self.lose_transaction(),
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
        self.marked = false;
    }
}

impl Claim {
    pub(super) fn can_execute(&self, state: &State, session: usize) -> bool {
        let Some(message) = state.sessions[session].message else { return false };
        !self.inserts_next(&state.sessions[session], message) || !self.is_blocked(state, session)
    }

    fn inserts_next(&self, session: &Session, message: Message) -> bool {
        match message {
            Message::Begin | Message::Release => false,
            // `ON CONFLICT DO NOTHING` waits, too.
            Message::StoreEscape { .. } => true,
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
        if let Some(reply) = self.asked(&state.sessions[session], message, executed) {
            return state.sessions[session].answer(reply);
        }
        match (message, executed) {
            (Message::Release, _) => {
                state.sessions[session].lose_transaction();
                state.sessions[session].answer(Reply::RolledBack);
            }
            (Message::StoreEscape { outcome }, _) => {
                if state.row.is_none_or(|row| !row.is_live(state)) {
                    let row = Row { outcome, retention: state.expiries };
                    state.row = Some(row);
                    state.outcomes.push(row);
                }
                if state.escaped == Some(outcome.by) {
                    state.escaped = None;
                }
                state.sessions[session].answer(Reply::Stored);
            }
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

    /// The answer of a check that fails, before the message does anything.
    fn asked(&self, session: &Session, message: Message, executed: u8) -> Option<Reply> {
        let escaped = match message {
            Message::Begin | Message::StoreEscape { .. } => return None,
            _ if executed > 0 => return None,
            Message::Complete { .. } if session.aborted => return Some(Reply::Aborted),
            Message::Complete { .. } => self.protocol.mark && !session.marked,
            Message::Refuse { .. } | Message::Release if session.aborted => self.protocol.witness && session.witnessed,
            Message::Refuse { .. } | Message::Release => self.protocol.mark && (!session.marked || session.witnessed),
        };
        escaped.then_some(Reply::Escaped)
    }

    fn try_lock(&self, state: &mut State, session: usize) {
        let free = !self.protocol.lock || state.sessions.iter().all(|session| !session.locked);
        let session = &mut state.sessions[session];
        (session.locked, session.claimed, session.marked) = (free, free, true);
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
