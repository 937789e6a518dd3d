//! What a process does with one request: idem-runtime's `operation/`, with a handler of three parts.

use super::table::{Outcome, Parts, Reply, Row, Statement};
use super::{Lease, Provider, State};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Attempt {
    pub(super) token: u8,
    pub(super) phase: Phase,
    /// On the wire to Postgres, and back.
    pub(super) statement: Option<Statement>,
    pub(super) reply: Option<Reply>,
    /// Whether it has taken the operation over from another one.
    pub(super) resumed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    LookingUp,
    Beginning,
    ClaimingAnew,
    /// The server has refused its first transaction, and the handler answers for it.
    Answering,
    /// It runs the first transaction under a claim that was made without it.
    Ordering,
    TakingOver(Parts),
    RecordingStart,
    /// It asks the provider whether an earlier attempt's call has happened.
    Reconciling,
    Calling,
    RecordingCharge,
    Paying,
    /// Only where the protocol is broken so.
    RecordingPayment,
    Completing {
        refused: bool,
    },
    GivingBack,
    /// A helper has committed the transaction of the part, and the handler goes on.
    Escaped,
    StoringUnknown,
    InsertingUnknown,
    /// It has lost the claim, and looks what became of the operation.
    LookingForRival,
    Ended(Answer),
    Died,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Answer {
    Final(Outcome, Whose),
    /// 409.
    InFlight,
    /// 409: another attempt has taken over, and has not completed yet.
    LostClaim,
    /// 500: what the operation has changed is not known.
    EffectsUnknown,
    /// 503.
    Unavailable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Whose {
    Own,
    Found,
}

impl Attempt {
    pub(super) fn is_alive(&self) -> bool {
        !matches!(self.phase, Phase::Ended(_) | Phase::Died)
    }

    /// Its lease is renewed in the background.
    pub(super) fn holds_a_claim(&self) -> bool {
        match self.phase {
            Phase::LookingUp | Phase::Beginning | Phase::ClaimingAnew => false,
            Phase::TakingOver(_) | Phase::LookingForRival => false,
            Phase::StoringUnknown | Phase::InsertingUnknown => false,
            _ => self.is_alive(),
        }
    }

    pub(super) fn final_answer(&self) -> Option<Outcome> {
        match self.phase {
            Phase::Ended(Answer::Final(outcome, _)) => Some(outcome),
            _ => None,
        }
    }

    pub(super) fn completed_itself(&self) -> bool {
        matches!(self.phase, Phase::Ended(Answer::Final(_, Whose::Own)))
    }

    fn send(&mut self, phase: Phase, statement: Statement) {
        (self.phase, self.statement) = (phase, Some(statement));
    }

    fn complete(&mut self, number: u8, refused: bool) {
        let token = self.token;
        self.send(Phase::Completing { refused }, Statement::Complete { token, by: number, refused });
    }

    fn end(&mut self, answer: Answer) {
        self.phase = Phase::Ended(answer);
    }

    fn look_for_rival(&mut self) {
        self.send(Phase::LookingForRival, Statement::LookUp);
    }
}

impl Lease {
    pub(super) fn arrive(&self, state: &mut State) {
        let token = if self.protocol.token_an_attempt { state.attempts.len() as u8 } else { 0 };
        let statement = Some(Statement::LookUp);
        state.attempts.push(Attempt { token, phase: Phase::LookingUp, statement, reply: None, resumed: false });
    }

    pub(super) fn execute_of(&self, state: &mut State, attempt: u8) {
        let statement = state.attempts[usize::from(attempt)].statement.take().expect("it has sent a statement");
        let reply = self.execute(state, statement);
        state.attempts[usize::from(attempt)].reply = Some(reply);
    }

    pub(super) fn receive(&self, state: &mut State, number: u8) {
        let attempt = &mut state.attempts[usize::from(number)];
        let token = attempt.token;
        let reply = attempt.reply.take().expect("it was answered");
        match (attempt.phase, reply) {
            (Phase::LookingUp, Reply::Seen(row)) => look(attempt, row),
            (Phase::LookingForRival, Reply::Seen(Some(Row::Completed(outcome)))) => {
                attempt.end(Answer::Final(outcome, if outcome.by == number { Whose::Own } else { Whose::Found }));
            }
            (Phase::LookingForRival, _) => attempt.end(Answer::LostClaim),
            (Phase::TakingOver(_), Reply::Refused) => attempt.end(Answer::InFlight),
            (Phase::StoringUnknown, Reply::Refused) => {
                attempt.send(Phase::InsertingUnknown, Statement::InsertUnknown { by: number });
            }
            (Phase::StoringUnknown | Phase::InsertingUnknown, _) => attempt.end(Answer::EffectsUnknown),
            (Phase::GivingBack, _) => attempt.end(Answer::Unavailable),
            (_, Reply::Refused) => attempt.look_for_rival(),
            (Phase::ClaimingAnew, _) => attempt.phase = Phase::Answering,
            (Phase::Beginning | Phase::Ordering, _) => self.go_on(attempt, number, Parts::Ordered),
            (Phase::TakingOver(parts), _) => {
                attempt.resumed = true;
                self.go_on(attempt, number, parts);
            }
            (Phase::RecordingStart, _) => attempt.phase = Phase::Calling,
            (Phase::RecordingCharge, _) => self.go_on(attempt, number, Parts::Charged),
            (Phase::Paying, _) if !self.protocol.records_with_writes => {
                attempt.send(Phase::RecordingPayment, Statement::RecordPayment { token });
            }
            (Phase::Paying | Phase::RecordingPayment, _) => self.go_on(attempt, number, Parts::Paid),
            (Phase::Completing { refused }, _) => {
                attempt.end(Answer::Final(Outcome { by: number, refused, unknown: false }, Whose::Own));
            }
            (phase, reply) => unreachable!("{reply:?} in {phase:?}"),
        }
    }

    /// The next part after those recorded.
    fn go_on(&self, attempt: &mut Attempt, number: u8, recorded: Parts) {
        let token = attempt.token;
        match (recorded, self.protocol.provider) {
            (Parts::Nothing, _) => attempt.send(Phase::Ordering, Statement::Order { token }),
            (Parts::Ordered, Provider::Keyed) => attempt.phase = Phase::Calling,
            (Parts::Ordered, Provider::Reconciled) => {
                attempt.send(Phase::RecordingStart, Statement::RecordStart { token });
            }
            (Parts::CallStarted, _) => attempt.phase = Phase::Reconciling,
            (Parts::Charged, _) => attempt.send(Phase::Paying, Statement::Pay { token }),
            (Parts::Paid, _) => attempt.complete(number, false),
        }
    }

    /// Asks the provider, or calls it.
    pub(super) fn call(&self, state: &mut State, number: u8) {
        let attempt = &mut state.attempts[usize::from(number)];
        if attempt.phase == Phase::Reconciling && state.charges == 0 {
            attempt.phase = Phase::Calling;
            return;
        }
        let token = attempt.token;
        let calls = attempt.phase == Phase::Calling;
        attempt.send(Phase::RecordingCharge, Statement::RecordCharge { token });
        if calls {
            self.charge(state);
        }
    }

    pub(super) fn charge(&self, state: &mut State) {
        match self.protocol.provider {
            Provider::Keyed => state.charges = 1,
            Provider::Reconciled => state.charges += 1,
        }
    }

    /// The server refuses the commit that is on its way.
    pub(super) fn refuse_first(&self, state: &mut State, number: u8) {
        let attempt = &mut state.attempts[usize::from(number)];
        let token = attempt.token;
        attempt.send(Phase::ClaimingAnew, Statement::ClaimAnew { token });
    }

    /// A helper commits the writes of the part that has begun: its statement is not sent.
    pub(super) fn escape(&self, state: &mut State, number: u8) {
        match state.attempts[usize::from(number)].phase {
            Phase::Paying => state.payments += 1,
            _ => state.orders += 1,
        }
        let attempt = &mut state.attempts[usize::from(number)];
        (attempt.phase, attempt.statement) = (Phase::Escaped, None);
        state.escapes += 1;
    }

    /// The part ends: it commits, or its future was dropped and it is rolled back. Both ask for the marks.
    pub(super) fn end_escaped(&self, state: &mut State, number: u8) {
        let attempt = &mut state.attempts[usize::from(number)];
        let token = attempt.token;
        if self.protocol.mark && self.protocol.stores_escapes {
            attempt.send(Phase::StoringUnknown, Statement::UpdateUnknown { token, by: number });
        } else {
            // The handler fails, and the operation is for the next attempt.
            attempt.send(Phase::GivingBack, Statement::GiveBack { token });
        }
    }

    /// The handler answers for its first transaction: with a refusal, which completes the operation, or with a failure.
    pub(super) fn answer(&self, state: &mut State, number: u8, refuses: bool) {
        let attempt = &mut state.attempts[usize::from(number)];
        let token = attempt.token;
        if refuses {
            attempt.complete(number, true);
        } else {
            attempt.send(Phase::GivingBack, Statement::GiveBack { token });
        }
    }

    /// The handler answers 402, which completes the operation.
    pub(super) fn refuse(&self, state: &mut State, number: u8) {
        state.attempts[usize::from(number)].complete(number, true);
    }

    /// The answer of a statement was lost, and the attempt notices.
    pub(super) fn notice_loss(&self, state: &mut State, number: u8) {
        let attempt = &mut state.attempts[usize::from(number)];
        let token = attempt.token;
        match attempt.phase {
            Phase::Completing { refused } => attempt.complete(number, refused),
            Phase::Ordering
            | Phase::RecordingStart
            | Phase::RecordingCharge
            | Phase::Paying
            | Phase::RecordingPayment => {
                attempt.send(Phase::GivingBack, Statement::GiveBack { token });
            }
            Phase::StoringUnknown => {
                attempt.send(Phase::StoringUnknown, Statement::UpdateUnknown { token, by: number });
            }
            Phase::InsertingUnknown => {
                attempt.send(Phase::InsertingUnknown, Statement::InsertUnknown { by: number });
            }
            // Whether the claim was taken is not known. If it was, it runs out by itself.
            _ => attempt.end(Answer::Unavailable),
        }
    }
}

fn look(attempt: &mut Attempt, row: Option<Row>) {
    let token = attempt.token;
    match row {
        None => attempt.send(Phase::Beginning, Statement::Begin { token }),
        Some(Row::Completed(outcome)) => attempt.end(Answer::Final(outcome, Whose::Found)),
        Some(Row::InProgress { leased: true, .. }) => attempt.end(Answer::InFlight),
        Some(Row::InProgress { token: last_token, parts, .. }) => {
            attempt.send(Phase::TakingOver(parts), Statement::TakeOver { token, last_token, seen: parts });
        }
    }
}
