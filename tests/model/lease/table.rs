//! What Postgres does: each statement is judged and executed at once.

use super::{Lease, State};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Row {
    InProgress { token: u8, leased: bool, parts: Parts },
    Completed(Outcome),
}

/// In a token: no attempt has it.
const GIVEN_BACK: u8 = 0x80;

/// The recovery points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Parts {
    /// The first transaction was refused, and the claim made without it.
    Nothing,
    Ordered,
    /// The call was started, and may have happened.
    CallStarted,
    Charged,
    Paid,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Outcome {
    /// The attempt that stored it.
    pub(super) by: u8,
    pub(super) refused: bool,
    /// Whether it says that the effects are not known.
    pub(super) unknown: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Statement {
    LookUp,
    /// The first transaction's writes with the claim.
    Begin {
        token: u8,
    },
    /// The claim alone, after the server refused the first transaction's commit.
    ClaimAnew {
        token: u8,
    },
    /// The first transaction's writes with their recovery point, where a claim is there already.
    Order {
        token: u8,
    },
    TakeOver {
        token: u8,
        last_token: u8,
        seen: Parts,
    },
    RecordStart {
        token: u8,
    },
    RecordCharge {
        token: u8,
    },
    /// The last transaction's writes with their recovery point.
    Pay {
        token: u8,
    },
    /// The recovery point alone: only where the protocol is broken so.
    RecordPayment {
        token: u8,
    },
    Complete {
        token: u8,
        by: u8,
        refused: bool,
    },
    GiveBack {
        token: u8,
    },
    /// That the effects are not known, in the row under the token.
    UpdateUnknown {
        token: u8,
        by: u8,
    },
    /// The same where there is no row yet.
    InsertUnknown {
        by: u8,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Reply {
    Seen(Option<Row>),
    Done,
    /// No row was touched.
    Refused,
}

impl Row {
    pub(super) fn is_leased(self) -> bool {
        matches!(self, Self::InProgress { leased: true, .. })
    }

    pub(super) fn with_lease(self, held: bool) -> Self {
        match self {
            Self::InProgress { token, parts, .. } => Self::InProgress { token, leased: held, parts },
            completed => completed,
        }
    }

    /// The token goes with the lease: what its owner has sent and has not arrived touches the row no more.
    fn given_back(self) -> Self {
        match self {
            Self::InProgress { token, parts, .. } => {
                Self::InProgress { token: token | GIVEN_BACK, leased: false, parts }
            }
            completed => completed,
        }
    }

    pub(super) fn token(self) -> Option<u8> {
        match self {
            Self::InProgress { token, .. } => Some(token),
            Self::Completed(_) => None,
        }
    }

    pub(super) fn outcome(self) -> Option<Outcome> {
        match self {
            Self::InProgress { .. } => None,
            Self::Completed(outcome) => Some(outcome),
        }
    }
}

impl Lease {
    pub(super) fn execute(&self, state: &mut State, statement: Statement) -> Reply {
        let owned = |token: u8| state.row.and_then(Row::token) == Some(token);
        let in_progress = matches!(state.row, Some(Row::InProgress { .. }));
        match statement {
            Statement::LookUp => return Reply::Seen(state.row),
            Statement::Begin { token } => {
                if state.row.is_some() && self.protocol.primary_key {
                    return Reply::Refused;
                }
                state.orders += 1;
                state.row = Some(Row::InProgress { token, leased: true, parts: Parts::Ordered });
            }
            Statement::ClaimAnew { token } => {
                if state.row.is_some() && self.protocol.primary_key {
                    return Reply::Refused;
                }
                state.row = Some(Row::InProgress { token, leased: true, parts: Parts::Nothing });
            }
            Statement::Order { token } => {
                if !(owned(token) || in_progress && !self.protocol.commits_by_token) {
                    return Reply::Refused;
                }
                state.orders += 1;
                let token = state.row.and_then(Row::token).expect("it is in progress");
                return record(state, token, Parts::Ordered);
            }
            Statement::TakeOver { token, last_token, seen } => match state.row {
                Some(Row::InProgress { token: found, leased: false, parts })
                    if found == last_token && (parts == seen || !self.protocol.takes_over_what_it_saw) =>
                {
                    state.row = Some(Row::InProgress { token, leased: true, parts });
                }
                _ => return Reply::Refused,
            },
            Statement::RecordStart { token } => return record(state, token, Parts::CallStarted),
            Statement::RecordCharge { token } => return record(state, token, Parts::Charged),
            Statement::RecordPayment { token } => return record(state, token, Parts::Paid),
            Statement::Pay { token } => {
                if !(owned(token) || in_progress && !self.protocol.commits_by_token) {
                    return Reply::Refused;
                }
                state.payments += 1;
                if self.protocol.records_with_writes {
                    let token = state.row.and_then(Row::token).expect("it is in progress");
                    return record(state, token, Parts::Paid);
                }
            }
            Statement::Complete { token, by, refused } => {
                if !(owned(token) || in_progress && !self.protocol.completes_by_token) {
                    return Reply::Refused;
                }
                state.row = Some(Row::Completed(Outcome { by, refused, unknown: false }));
            }
            Statement::UpdateUnknown { token, by } => {
                if !(owned(token) && self.protocol.updates_unknown) {
                    return Reply::Refused;
                }
                state.row = Some(Row::Completed(Outcome { by, refused: false, unknown: true }));
            }
            Statement::InsertUnknown { by } => {
                if state.row.is_none() && self.protocol.inserts_unknown {
                    state.row = Some(Row::Completed(Outcome { by, refused: false, unknown: true }));
                }
            }
            Statement::GiveBack { token } => {
                if !owned(token) {
                    return Reply::Refused;
                }
                state.row = state.row.map(Row::given_back);
            }
        }
        Reply::Done
    }
}

/// Appends a recovery point, which renews the lease too.
fn record(state: &mut State, token: u8, parts: Parts) -> Reply {
    if state.row.and_then(Row::token) != Some(token) {
        return Reply::Refused;
    }
    state.row = Some(Row::InProgress { token, leased: true, parts });
    Reply::Done
}
