//! What a process does with a request: the life of a request in idem-runtime, without its handler's work.

use super::postgres::{Message, Reply, Row, Session};
use super::{Claim, Kind, Outcome, State, Verdict};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Request {
    pub(super) process: u8,
    pub(super) phase: Phase,
    /// The handler has left its transaction.
    pub(super) left: bool,
    /// One of the handler's statements has failed.
    pub(super) failed: bool,
    /// What would have told of an escape was lost, or the storing of it given up.
    pub(super) lost: bool,
    /// The retention in which a client had been told, when its look-up began, that the effects are not known.
    pub(super) late: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// It waits for the request that the registry holds.
    Waiting,
    /// It begins a transaction, tries the lock and looks up.
    Asking {
        purpose: Purpose,
    },
    /// The handler runs.
    Running {
        replaces_expired: bool,
    },
    /// The outcome is on its way into the table.
    Storing {
        outcome: Outcome,
        replaces_expired: bool,
        /// A refusal, behind the rollback of an aborted transaction.
        aborted: bool,
    },
    /// The handler's writes are rolled back, and nothing is stored.
    Releasing {
        aborted: bool,
    },
    /// The commit has failed. Before that is answered, the witness is asked.
    CommitFailed {
        rival: bool,
    },
    /// It is an escape; whatever is open is rolled back.
    GivingUp,
    /// That it is an escape is on its way into the table.
    StoringUnknown,
    Ended(Answer),
    /// The process died.
    Died,
}

/// Why the table is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Purpose {
    /// A request came in.
    Enter,
    /// The insert met a row.
    Rival,
    /// The commit's acknowledgement was lost.
    Resolve,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Answer {
    /// `found`: it was looked up after its acknowledgement was lost.
    Final { outcome: Outcome, found: bool },
    /// 409.
    InFlight,
    /// 5xx: a retry will learn more. Also the handler's own, whose writes are rolled back.
    Unavailable,
}

impl Phase {
    /// Its connection alone can tell whether it is an escape.
    pub(super) fn needs_the_witness(self) -> bool {
        matches!(self, Self::Running { .. } | Self::Storing { .. } | Self::Releasing { .. } | Self::CommitFailed { .. })
    }
}

impl Request {
    pub(super) fn new(process: u8, phase: Phase) -> Self {
        Self { process, phase, left: false, failed: false, lost: false, late: None }
    }

    pub(super) fn is_alive(&self) -> bool {
        !matches!(self.phase, Phase::Ended(_) | Phase::Died)
    }

    pub(super) fn end(&mut self, answer: Answer) {
        self.phase = Phase::Ended(answer);
    }

    pub(super) fn final_answer(&self) -> Option<Outcome> {
        match self.phase {
            Phase::Ended(Answer::Final { outcome, .. }) => Some(outcome),
            _ => None,
        }
    }
}

impl Claim {
    /// Whether the registry answers this request; `Some(false)`: not before the request that it holds has looked up.
    pub(super) fn registry_answers(&self, state: &State, request: &Request) -> Option<bool> {
        let occupant = state.registries[usize::from(request.process)]?;
        let phase = state.requests[usize::from(occupant)].phase;
        Some(!matches!(phase, Phase::Waiting | Phase::Asking { purpose: Purpose::Enter }))
    }

    pub(super) fn arrive(&self, state: &mut State, process: u8) {
        let request = state.requests.len() as u8;
        state.requests.push(Request::new(process, Phase::Waiting));
        if state.registries[usize::from(process)].is_none() {
            self.enter(state, request);
        }
    }

    pub(super) fn enter(&self, state: &mut State, request: u8) {
        let process = state.requests[usize::from(request)].process;
        state.registries[usize::from(process)] = Some(request);
        self.ask(state, request, Purpose::Enter);
    }

    pub(super) fn ask(&self, state: &mut State, request: u8, purpose: Purpose) {
        state.sessions.push(Session::begin(request));
        state.requests[usize::from(request)].phase = Phase::Asking { purpose };
    }

    pub(super) fn finish(&self, state: &mut State, request: u8, verdict: Verdict) {
        let Phase::Running { replaces_expired } = state.requests[usize::from(request)].phase else {
            unreachable!("only a handler that runs ends")
        };
        let outcome = |kind| Outcome { by: request, kind };
        let (message, phase) = match verdict {
            Verdict::Commit => {
                let outcome = outcome(Kind::Success);
                (
                    Message::Complete { outcome, replaces_expired },
                    Phase::Storing { outcome, replaces_expired, aborted: false },
                )
            }
            Verdict::Refuse => {
                let outcome = outcome(Kind::Refusal);
                (
                    Message::RollBack { aborted: false, then: Some((outcome, replaces_expired)) },
                    Phase::Storing { outcome, replaces_expired, aborted: false },
                )
            }
            Verdict::Release => (Message::RollBack { aborted: false, then: None }, Phase::Releasing { aborted: false }),
        };
        if let Some(session) = state.session_of(request) {
            state.sessions[session].send(message);
        }
        state.requests[usize::from(request)].phase = phase;
    }

    pub(super) fn receive(&self, state: &mut State, session: usize) {
        let request = state.sessions[session].request;
        let reply = state.sessions[session].reply.take().expect("only what was answered is received");
        let go_on = |state: &mut State, message, phase| {
            state.sessions[session].send(message);
            state.requests[usize::from(request)].phase = phase;
        };
        match (state.requests[usize::from(request)].phase, reply) {
            (Phase::Asking { purpose }, Reply::LookedUp { claimed, row }) => {
                self.judge(state, session, purpose, claimed, row);
            }
            (Phase::StoringUnknown, Reply::Stored) => {
                state.sessions.remove(session);
                self.say_unknown(state, request);
            }
            (Phase::GivingUp, _) => self.escaped(state, request),
            (_, Reply::NotOurs | Reply::Committed) => go_on(state, Message::RollBackAll, Phase::GivingUp),
            (Phase::Storing { outcome, .. }, Reply::Stored) => {
                state.sessions.remove(session);
                self.end(state, request, Answer::Final { outcome, found: false });
            }
            (Phase::Storing { outcome, .. }, failed) if outcome.kind == Kind::Success => {
                let phase = Phase::CommitFailed { rival: failed == Reply::Rival };
                go_on(state, Message::RollBack { aborted: true, then: None }, phase);
            }
            (Phase::CommitFailed { rival }, Reply::Outside) => {
                go_on(state, Message::AskWitness, Phase::CommitFailed { rival });
            }
            (Phase::Storing { .. }, Reply::Rival) => {
                state.sessions.remove(session);
                self.ask(state, request, Purpose::Rival);
            }
            (Phase::CommitFailed { .. }, _) => {
                state.sessions.remove(session);
                self.commit_failed(state, request);
            }
            (Phase::Storing { .. }, Reply::Conflict) | (Phase::Releasing { .. }, Reply::Done) => {
                state.sessions.remove(session);
                self.end(state, request, Answer::Unavailable);
            }
            (Phase::Storing { outcome, replaces_expired, aborted: false }, _) => {
                let then = Some((outcome, replaces_expired));
                let phase = Phase::Storing { outcome, replaces_expired, aborted: true };
                go_on(state, Message::RollBack { aborted: true, then }, phase);
            }
            (Phase::Releasing { aborted: false }, _) => {
                let phase = Phase::Releasing { aborted: true };
                go_on(state, Message::RollBack { aborted: true, then: None }, phase);
            }
            (_, Reply::Outside) => go_on(state, Message::RollBackAll, Phase::GivingUp),
            (phase, reply) => unreachable!("{reply:?} in {phase:?}"),
        }
    }

    fn commit_failed(&self, state: &mut State, request: u8) {
        match state.requests[usize::from(request)].phase {
            Phase::CommitFailed { rival: true } => self.ask(state, request, Purpose::Rival),
            _ => self.end(state, request, Answer::Unavailable),
        }
    }

    /// Makes the escape final for its key, on another connection.
    fn escaped(&self, state: &mut State, request: u8) {
        state.sessions.retain(|session| session.request != request || !session.connected);
        if !self.protocol.stores_escapes {
            return self.say_unknown(state, request);
        }
        state.sessions.push(Session::store_unknown(request));
        state.requests[usize::from(request)].phase = Phase::StoringUnknown;
    }

    fn say_unknown(&self, state: &mut State, request: u8) {
        let freed = |retention| retention < state.expiries;
        let stored = state.outcomes.iter().rev().find(|row| row.outcome.by == request);
        if !stored.is_some_and(|row| freed(row.retention)) {
            state.said_unknown = Some(state.expiries);
        }
        let outcome = Outcome { by: request, kind: Kind::Unknown };
        self.end(state, request, Answer::Final { outcome, found: false });
    }

    /// The database stayed away for too long.
    pub(super) fn give_up_storing(&self, state: &mut State, request: u8) {
        if let Some(session) = state.session_of(request) {
            state.sessions[session].connected = false;
        }
        state.requests[usize::from(request)].lost = true;
        let outcome = Outcome { by: request, kind: Kind::Unknown };
        self.end(state, request, Answer::Final { outcome, found: false });
    }

    /// What the look-up means.
    fn judge(&self, state: &mut State, session: usize, purpose: Purpose, claimed: bool, row: Option<Row>) {
        let request = state.sessions[session].request;
        match (row, purpose) {
            (Some(row), _) if row.is_live(state) => {
                // The rollback travels behind the answer.
                state.sessions[session].connected = false;
                let found = purpose == Purpose::Resolve && row.outcome.by == request;
                self.end(state, request, Answer::Final { outcome: row.outcome, found });
            }
            (_, Purpose::Resolve) if !claimed => {
                // The commit may still be on its way: look again.
                state.sessions.remove(session);
                self.ask(state, request, Purpose::Resolve);
            }
            _ if !claimed => {
                state.sessions[session].connected = false;
                self.end(state, request, Answer::InFlight);
            }
            (row, Purpose::Enter) => {
                let late = state.sessions[session].late;
                let request = &mut state.requests[usize::from(request)];
                (request.phase, request.late) = (Phase::Running { replaces_expired: row.is_some() }, late);
            }
            (_, Purpose::Rival | Purpose::Resolve) => {
                state.sessions.remove(session);
                self.end(state, request, Answer::Unavailable);
            }
        }
    }

    /// The connection was lost, and the process notices.
    pub(super) fn notice_loss(&self, state: &mut State, request: u8) {
        match state.requests[usize::from(request)].phase {
            Phase::CommitFailed { .. } => self.commit_failed(state, request),
            Phase::GivingUp | Phase::StoringUnknown => self.escaped(state, request),
            Phase::Storing { outcome, .. } if !self.protocol.looks_up_lost_commits => {
                self.end(state, request, Answer::Final { outcome, found: false });
            }
            Phase::Storing { .. } | Phase::Asking { purpose: Purpose::Resolve } => {
                self.ask(state, request, Purpose::Resolve);
            }
            _ => self.end(state, request, Answer::Unavailable),
        }
    }

    /// It has been looked up often enough.
    pub(super) fn give_up_looking_up(&self, state: &mut State, request: u8) {
        if let Some(session) = state.session_of(request) {
            state.sessions[session].connected = false;
        }
        self.end(state, request, Answer::Unavailable);
    }

    fn end(&self, state: &mut State, request: u8, answer: Answer) {
        state.requests[usize::from(request)].end(answer);
        let process = state.requests[usize::from(request)].process;
        let entry = &mut state.registries[usize::from(process)];
        if *entry != Some(request) || !self.protocol.leaves_registry {
            return;
        }
        *entry = None;
        if let Answer::Final { outcome, .. } = answer {
            // Who waited for it gets the outcome from memory.
            let waiting = |waiting: &&mut Request| waiting.process == process && waiting.phase == Phase::Waiting;
            for waiting in state.requests.iter_mut().filter(waiting) {
                waiting.end(Answer::Final { outcome, found: false });
            }
        }
    }
}
