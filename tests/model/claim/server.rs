//! What a process does with a request: the life of a request in idem-runtime, without its handler's work.

use super::postgres::{Message, Reply, Row, Session};
use super::{Claim, Outcome, State, Verdict};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Request {
    pub(super) process: u8,
    pub(super) phase: Phase,
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
    },
    /// The rollback is on its way.
    Releasing,
    /// That the effects are not known is on its way into the table.
    StoringEscape,
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
    /// 5xx: a retry will learn more.
    Unavailable,
    /// 5xx of the handler's own, which says that nothing was changed.
    RolledBack,
}

impl Request {
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
        state.requests.push(Request { process, phase: Phase::Waiting });
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
        let session = state.session_of(request);
        if verdict == Verdict::Release {
            // The rollback is waited for.
            let Some(session) = session else { return self.end(state, request, Answer::Unavailable) };
            state.sessions[session].send(Message::Release);
            state.requests[usize::from(request)].phase = Phase::Releasing;
            return;
        }
        let outcome = Outcome { by: request, refused: verdict == Verdict::Refuse, unknown: false };
        if let Some(session) = session {
            state.sessions[session].send(match verdict {
                Verdict::Refuse => Message::Refuse { outcome, replaces_expired },
                _ => Message::Complete { outcome, replaces_expired },
            });
        }
        state.requests[usize::from(request)].phase = Phase::Storing { outcome };
    }

    pub(super) fn receive(&self, state: &mut State, session: usize) {
        let request = state.sessions[session].request;
        let reply = state.sessions[session].reply.take().expect("only what was answered is received");
        match (state.requests[usize::from(request)].phase, reply) {
            (Phase::Asking { purpose }, Reply::LookedUp { claimed, row }) => {
                self.judge(state, session, purpose, claimed, row);
            }
            (Phase::Storing { outcome }, Reply::Stored) => {
                state.sessions.remove(session);
                self.end(state, request, Answer::Final { outcome, found: false });
            }
            (Phase::Storing { .. }, Reply::Rival) => {
                state.sessions.remove(session);
                self.ask(state, request, Purpose::Rival);
            }
            (Phase::Storing { .. }, Reply::Conflict) => {
                state.sessions.remove(session);
                self.end(state, request, Answer::Unavailable);
            }
            (Phase::Storing { .. }, Reply::Aborted) => {
                // Another message asks the witness and rolls back.
                state.sessions[session].send(Message::Release);
                state.requests[usize::from(request)].phase = Phase::Releasing;
            }
            (Phase::Releasing, Reply::RolledBack) => {
                state.sessions.remove(session);
                self.end(state, request, Answer::RolledBack);
            }
            (Phase::Storing { .. } | Phase::Releasing, Reply::Escaped) => {
                state.sessions.remove(session);
                if !self.protocol.stores_escapes {
                    return self.end(state, request, Answer::Unavailable);
                }
                let outcome = Outcome { by: request, refused: false, unknown: true };
                state.sessions.push(Session::store_escape(request, outcome));
                state.requests[usize::from(request)].phase = Phase::StoringEscape;
            }
            (Phase::StoringEscape, Reply::Stored) => {
                let outcome = state.row.expect("something is stored").outcome;
                state.sessions.remove(session);
                self.end(state, request, Answer::Final { outcome, found: false });
            }
            (phase, reply) => unreachable!("{reply:?} in {phase:?}"),
        }
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
                state.requests[usize::from(request)].phase = Phase::Running { replaces_expired: row.is_some() };
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
            Phase::Storing { outcome } if !self.protocol.looks_up_lost_commits => {
                self.end(state, request, Answer::Final { outcome, found: false });
            }
            Phase::Storing { .. } | Phase::Asking { purpose: Purpose::Resolve } => {
                self.ask(state, request, Purpose::Resolve);
            }
            Phase::StoringEscape => {
                let outcome = Outcome { by: request, refused: false, unknown: true };
                state.sessions.push(Session::store_escape(request, outcome));
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
        if state.escaped == Some(request) {
            // Nobody will store it any more.
            state.escaped = None;
        }
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
