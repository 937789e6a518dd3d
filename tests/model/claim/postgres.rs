//! What Postgres does, one atomic step at a time.

use super::{Claim, Effect, Kind, Outcome, Snapshot, State};

/// A row of the table. It lives for as long as the retention that it was written in, and without a known outcome until a person
/// frees the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Row {
    pub(super) outcome: Outcome,
    pub(super) retention: u8,
}

impl Row {
    pub(super) fn is_live(self, state: &State) -> bool {
        self.retention == state.expiries || self.outcome.kind == Kind::Unknown
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
    /// What the claim's value says of the lock.
    claimed: bool,
    transaction: Transaction,
    /// A statement has failed: nothing answers before the rollback, and the locks are gone.
    aborted: bool,
    /// The session's value, outside of the claim's transaction.
    witness: bool,
    /// The retention in which a client had been told, when the look-up began, that the effects are not known.
    pub(super) late: Option<u8>,
    /// What the transaction sees, where that is fixed.
    snapshot: Option<Option<Row>>,
    inserted: Option<Row>,
}

/// Which transaction is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Transaction {
    None,
    /// The one that was begun for the claim: with the claim's local value, and with what the handler wrote.
    Claims,
    /// One that a helper began.
    Helpers,
    /// The one behind `AND CHAIN`, or of an outcome's own.
    Ours,
}

/// What a handler may do to its transaction that it must not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Act {
    /// `COMMIT`, or `ROLLBACK; BEGIN; write; COMMIT`; then `BEGIN`, or nothing.
    Leave { commits: bool, begins: bool },
    /// A statement fails, and the handler swallows the error.
    Fail,
}

/// Commands that travel together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Message {
    /// BEGIN, the try-lock with both marks, and the look-up.
    Begin,
    Act(Act),
    /// The insert, which asks for the claim, with the deletion of an expired row before it, and COMMIT AND CHAIN.
    Complete {
        outcome: Outcome,
        replaces_expired: bool,
    },
    /// The question for the claim, ROLLBACK AND CHAIN and the question for the witness; then for a refusal the try-lock, the insert
    /// and COMMIT AND CHAIN. `aborted`: without the first question.
    RollBack {
        aborted: bool,
        then: Option<(Outcome, bool)>,
    },
    AskWitness,
    /// ROLLBACK and the question for the witness.
    RollBackAll,
    /// The row of an escape in a transaction of its own: BEGIN, the deletion of an expired row, the insert ON CONFLICT DO NOTHING,
    /// COMMIT.
    StoreUnknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Reply {
    LookedUp {
        claimed: bool,
        row: Option<Row>,
    },
    Stored,
    Done,
    /// 23505: somebody else's row is there.
    Rival,
    /// 40001.
    Conflict,
    /// IDM01: not the claim's transaction.
    NotOurs,
    /// IDM02: the witness is there.
    Committed,
    /// 25P02: a statement failed before.
    Aborted,
    /// 25P01: AND CHAIN outside of a transaction.
    Outside,
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
            transaction: Transaction::None,
            aborted: false,
            witness: false,
            late: None,
            snapshot: None,
            inserted: None,
        }
    }

    /// A connection of its own for the row of an escape.
    pub(super) fn store_unknown(request: u8) -> Self {
        Self { message: Some(Message::StoreUnknown), ..Self::begin(request) }
    }

    /// `unseen`: also where nothing tells afterwards that this is not the claim's transaction.
    pub(super) fn can_fail(&self, unseen: bool) -> bool {
        let seen = match self.transaction {
            Transaction::Claims => true,
            Transaction::Helpers => self.witness || unseen,
            Transaction::None | Transaction::Ours => false,
        };
        seen && !self.aborted
    }

    /// The setting is local to the claim's transaction.
    pub(super) fn can_time_out(&self) -> bool {
        self.is_idle() && self.transaction == Transaction::Claims && !self.aborted
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

    fn end_transaction(&mut self, next: Transaction) {
        (self.transaction, self.aborted) = (next, false);
        (self.locked, self.claimed, self.snapshot, self.inserted) = (false, false, None, None);
    }

    fn commit_by_hand(&mut self, next: Transaction) -> bool {
        let committed = self.transaction == Transaction::Claims && !self.aborted;
        self.witness |= committed;
        self.end_transaction(next);
        committed
    }

    /// An error ends the message, and the transaction is aborted, or was none.
    fn fail(&mut self, reply: Reply) {
        if self.transaction == Transaction::None {
            self.end_transaction(Transaction::None);
        }
        (self.aborted, self.locked, self.inserted) = (self.transaction != Transaction::None, false, None);
        self.answer(reply);
    }
}

impl Claim {
    pub(super) fn can_execute(&self, state: &State, session: usize) -> bool {
        let Some(message) = state.sessions[session].message else { return false };
        !self.inserts_next(&state.sessions[session], message) || !self.is_blocked(state, session)
    }

    fn inserts_next(&self, session: &Session, message: Message) -> bool {
        match message {
            Message::Complete { .. } => session.executed == u8::from(!self.protocol.one_commit),
            Message::RollBack { .. } => session.executed == 2,
            Message::StoreUnknown => session.executed == 0,
            Message::Begin | Message::Act(_) | Message::AskWitness | Message::RollBackAll => false,
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
            (Message::Begin, _) => self.begin(state, session, executed),
            (Message::Act(act), _) => execute_act(state, session, act, executed),
            (Message::Complete { outcome, .. }, 0) if !self.protocol.one_commit => {
                let retention = state.expiries;
                state.effects.push(Effect { by: outcome.by, retention, escaped: false });
                state.sessions[session].end_transaction(Transaction::Claims);
            }
            (Message::Complete { .. }, _) if state.sessions[session].inserted.is_some() => {
                self.commit(state, session, self.protocol.one_commit);
            }
            (Message::Complete { outcome, replaces_expired }, _) => match self.ask_claim(&state.sessions[session]) {
                Some(reply) => state.sessions[session].fail(reply),
                None => self.insert(state, session, outcome, replaces_expired),
            },
            (Message::RollBack { aborted, then }, 0) => self.roll_back(state, session, aborted, then.is_none()),
            (Message::RollBack { .. }, 1) => self.try_lock(state, session),
            (Message::RollBack { then: Some((outcome, replaces_expired)), .. }, 2) => {
                self.insert(state, session, outcome, replaces_expired);
            }
            (Message::RollBack { .. }, _) => self.commit(state, session, false),
            (Message::AskWitness, _) => self.ask_witness(&mut state.sessions[session], true),
            (Message::RollBackAll, _) => {
                state.sessions[session].end_transaction(Transaction::None);
                self.ask_witness(&mut state.sessions[session], true);
            }
            (Message::StoreUnknown, 0) => store_unknown(state, session),
            (Message::StoreUnknown, _) => self.commit(state, session, false),
        }
    }

    fn begin(&self, state: &mut State, session: usize, executed: u8) {
        if executed == 0 {
            state.sessions[session].transaction = Transaction::Claims;
            state.sessions[session].late = state.said_unknown;
        }
        match executed {
            0 if self.protocol.snapshot == Snapshot::BeforeLock => {
                state.sessions[session].snapshot = Some(state.row);
                state.sessions[session].executed = 1;
            }
            0 | 1 => {
                self.try_lock(state, session);
                state.sessions[session].executed = 2;
            }
            _ => {
                let row = state.sessions[session].snapshot.unwrap_or(state.row);
                let claimed = state.sessions[session].claimed;
                state.sessions[session].answer(Reply::LookedUp { claimed, row });
            }
        }
    }

    /// What the question for the claim fails with.
    fn ask_claim(&self, session: &Session) -> Option<Reply> {
        match session.transaction {
            _ if session.aborted => Some(Reply::Aborted),
            Transaction::Claims => None,
            _ if self.protocol.mark && self.protocol.fence => Some(Reply::NotOurs),
            // AND CHAIN fails, and with it what the message did.
            Transaction::None => Some(Reply::Outside),
            Transaction::Helpers | Transaction::Ours => None,
        }
    }

    fn roll_back(&self, state: &mut State, session: usize, aborted: bool, ends: bool) {
        let session = &mut state.sessions[session];
        let refused = match session.transaction {
            _ if !aborted => self.ask_claim(session),
            Transaction::None => Some(Reply::Outside),
            _ => None,
        };
        if let Some(reply) = refused {
            return session.fail(reply);
        }
        session.end_transaction(Transaction::Ours);
        self.ask_witness(session, ends);
    }

    fn ask_witness(&self, session: &mut Session, ends: bool) {
        if session.witness && self.protocol.witness {
            session.fail(Reply::Committed);
        } else if ends {
            session.answer(Reply::Done);
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
                return state.sessions[session].fail(Reply::Conflict);
            }
            if state.row.is_some() && !(expired && deletes) {
                return state.sessions[session].fail(Reply::Rival);
            }
        }
        state.sessions[session].inserted = Some(row);
    }

    fn commit(&self, state: &mut State, session: usize, with_effect: bool) {
        let transaction = state.sessions[session].transaction;
        // Where a rival's row was there, nothing was inserted.
        if let Some(row) = state.sessions[session].inserted {
            state.row = Some(row);
            state.outcomes.push(row);
            if with_effect && transaction == Transaction::Claims {
                state.effects.push(Effect { by: row.outcome.by, retention: row.retention, escaped: false });
            }
        }
        let session = &mut state.sessions[session];
        session.end_transaction(Transaction::Ours);
        let told_too_late = self.protocol.mark && !self.protocol.fence && transaction == Transaction::Helpers;
        session.answer(if told_too_late { Reply::NotOurs } else { Reply::Stored });
    }
}

fn execute_act(state: &mut State, number: usize, act: Act, executed: u8) {
    let session = &mut state.sessions[number];
    let next = |begins| if begins { Transaction::Helpers } else { Transaction::None };
    let committed = match act {
        Act::Leave { commits: true, begins } => session.commit_by_hand(next(begins)),
        Act::Leave { commits: false, .. } if executed == 0 => return session.end_transaction(Transaction::None),
        Act::Leave { commits: false, begins } => {
            session.end_transaction(next(begins));
            true
        }
        Act::Fail => {
            (session.aborted, session.locked) = (true, false);
            false
        }
    };
    session.message = None;
    if committed {
        let by = session.request;
        state.effects.push(Effect { by, retention: state.expiries, escaped: true });
    }
}

/// Waits for a rival's insert, as every insert does.
fn store_unknown(state: &mut State, session: usize) {
    let outcome = Outcome { by: state.sessions[session].request, kind: Kind::Unknown };
    let row = Row { outcome, retention: state.expiries };
    let free = state.row.is_none_or(|row| !row.is_live(state));
    state.sessions[session].inserted = free.then_some(row);
}
