//! What was asked for, what was answered and what must be there in the end.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::http::Answer;
use crate::messages;
use crate::server::Order;

/// How the application is meant to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ending {
    Success,
    Refusal,
}

/// The handler that is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Order,
    Patient,
    Repeatable,
    Checkout,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Order, Self::Patient, Self::Repeatable, Self::Checkout];

    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Order => "/orders",
            Self::Patient => "/patient",
            Self::Repeatable => "/repeatable",
            Self::Checkout => "/checkouts",
        }
    }
}

/// One operation, from its client's point of view.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    pub(crate) order: Order,
    pub(crate) key: String,
    fate: Fate,
    first: Option<Final>,
    /// How many more final answers there were, and one that differs.
    later: u64,
    other: Option<Final>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    UnderWay,
    Answered,
    /// The client went away.
    Abandoned,
    /// The client tried for so long in vain.
    Stuck(Duration),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Final {
    status: u16,
    location: Option<Bytes>,
    body: Bytes,
}

impl From<Answer> for Final {
    fn from(answer: Answer) -> Self {
        let location = answer.headers.get("location").map(|value| Bytes::copy_from_slice(value.as_bytes()));
        Self { status: answer.status, location, body: answer.body }
    }
}

/// What the database and the provider hold, by operation.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    pub(crate) orders: HashMap<u64, u64>,
    pub(crate) reservations: HashMap<u64, u64>,
    pub(crate) charges: HashMap<u64, u64>,
    pub(crate) confirmations: HashMap<u64, u64>,
}

/// How often something happened on the way.
#[derive(Debug, Default, Clone)]
pub(crate) struct Tally {
    pub(crate) requests: u64,
    pub(crate) replays: u64,
    pub(crate) hang_ups: u64,
    pub(crate) unanswered: u64,
    pub(crate) statuses: HashMap<u16, u64>,
    pub(crate) longest: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    entries: Mutex<Vec<Entry>>,
    tally: Mutex<Tally>,
}

/// Counts for the summary.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) operations: [usize; 4],
    pub(crate) successes: usize,
    pub(crate) refusals: usize,
    pub(crate) abandoned: usize,
    pub(crate) under_way: usize,
    pub(crate) compared: u64,
}

impl Ledger {
    pub(crate) fn begin(&self, kind: Kind, ending: Ending, key: String) -> u64 {
        let mut entries = self.entries();
        let operation = entries.len() as u64;
        let order = Order { operation, tenant: operation % 16, ending };
        entries.push(Entry { kind, order, key, fate: Fate::UnderWay, first: None, later: 0, other: None });
        operation
    }

    pub(crate) fn entry(&self, operation: u64) -> Entry {
        self.entries()[operation as usize].clone()
    }

    /// A client got a final answer.
    pub(crate) fn answered(&self, operation: u64, answer: Answer) {
        let entry = &mut self.entries()[operation as usize];
        entry.fate = Fate::Answered;
        let answer = Final::from(answer);
        match &entry.first {
            None => entry.first = Some(answer),
            Some(first) => {
                entry.later += 1;
                if *first != answer {
                    entry.other = Some(answer);
                }
            }
        }
    }

    pub(crate) fn abandon(&self, operation: u64) {
        self.entries()[operation as usize].fate = Fate::Abandoned;
    }

    pub(crate) fn give_up(&self, operation: u64, after: Duration) {
        self.entries()[operation as usize].fate = Fate::Stuck(after);
    }

    pub(crate) fn abandoned(&self) -> Vec<u64> {
        let entries = self.entries();
        entries.iter().filter(|entry| entry.fate == Fate::Abandoned).map(|entry| entry.order.operation).collect()
    }

    pub(crate) fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().expect("no panic")
    }

    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for entry in self.entries().iter() {
            totals.operations[entry.kind as usize] += 1;
            totals.compared += entry.later;
            match (entry.fate, &entry.first) {
                (Fate::UnderWay, _) => totals.under_way += 1,
                (Fate::Abandoned, _) => totals.abandoned += 1,
                (_, Some(Final { status: 201, .. })) => totals.successes += 1,
                (_, Some(_)) => totals.refusals += 1,
                (_, None) => {}
            }
        }
        totals
    }

    /// Where effects and answers are not what the promise says.
    pub(crate) fn violations(&self, effects: &Effects) -> Vec<String> {
        let entries = self.entries();
        let mut violations: Vec<_> = entries.iter().flat_map(|entry| violations(entry, effects)).collect();
        let tables = [&effects.orders, &effects.reservations, &effects.charges, &effects.confirmations];
        let unknown =
            tables.into_iter().flat_map(HashMap::keys).filter(|operation| **operation >= entries.len() as u64);
        violations.extend(unknown.map(|operation| format!("operation {operation} was never asked for")));
        violations
    }

    /// The keys that never came to an end.
    pub(crate) fn stuck(&self) -> Vec<String> {
        let describe = |entry: &Entry| match entry.fate {
            Fate::Answered => None,
            Fate::Stuck(after) => Some(format!("{} has no final answer after {after:?}", name(entry))),
            Fate::UnderWay | Fate::Abandoned => Some(format!("{} has no final answer", name(entry))),
        };
        self.entries().iter().filter_map(describe).collect()
    }

    pub(crate) fn any_successful_order(&self) -> Option<u64> {
        let successful = |entry: &&Entry| {
            entry.kind != Kind::Checkout && entry.first.as_ref().is_some_and(|answer| answer.status == 201)
        };
        self.entries().iter().find(successful).map(|entry| entry.order.operation)
    }

    /// As if a retry had got another answer.
    pub(crate) fn forge_answer(&self, operation: u64) {
        let entry = &mut self.entries()[operation as usize];
        entry.other = entry.first.clone().map(|answer| Final { body: Bytes::from_static(b"forged"), ..answer });
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().expect("no panic")
    }
}

fn name(entry: &Entry) -> String {
    format!("operation {} ({})", entry.order.operation, entry.kind.path())
}

fn violations(entry: &Entry, effects: &Effects) -> Vec<String> {
    let count = |table: &HashMap<u64, u64>| table.get(&entry.order.operation).copied().unwrap_or(0);
    let found =
        [count(&effects.orders), count(&effects.reservations), count(&effects.charges), count(&effects.confirmations)];
    let exactly = match (entry.kind, entry.first.as_ref().map(|answer| answer.status)) {
        (_, None) => None,
        (Kind::Checkout, Some(201)) => Some([0, 1, 1, 1]),
        (Kind::Checkout, Some(402)) => Some([0, 1, 0, 0]),
        (_, Some(201)) => Some([1, 0, 0, 0]),
        (_, Some(402)) => Some([0, 0, 0, 0]),
        (_, Some(status)) => return vec![format!("{} was answered {status}", name(entry))],
    };
    let mut violations = Vec::new();
    let description = |rule: &str| {
        let [orders, reservations, charges, confirmations] = found;
        format!(
            "{}: {rule}: {orders} orders, {reservations} reservations, {charges} charges, {confirmations} confirmations",
            name(entry)
        )
    };
    match exactly {
        Some(exactly) if found != exactly => {
            violations.push(description("answered, and its effects are not exactly once"));
        }
        None if found.iter().any(|count| *count > 1) => violations.push(description("an effect happened twice")),
        _ => {}
    }
    let refused = entry.first.as_ref().is_some_and(|answer| answer.status == 402);
    if entry.first.is_some() && refused != (entry.order.ending == Ending::Refusal) {
        violations.push(format!("{} was answered as another request is", name(entry)));
    }
    if let Some(other) = &entry.other {
        violations.push(format!("{} was answered {:?} and then {other:?}", name(entry), entry.first));
    }
    violations
}

/// What was found wrong, and what became of the messages.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) messages: messages::Totals,
    pub(crate) violations: Vec<String>,
}

impl Verdict {
    pub(crate) fn add(&mut self, violations: Vec<String>) {
        for violation in violations {
            if !self.violations.contains(&violation) {
                self.violations.push(violation);
            }
        }
    }

    pub(crate) fn holds(&self) -> bool {
        self.violations.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderMap;

    use super::*;

    fn answer(status: u16, body: &'static str) -> Answer {
        Answer { status, headers: HeaderMap::new(), body: Bytes::from_static(body.as_bytes()) }
    }

    fn ledger(kind: Kind, ending: Ending, status: Option<u16>) -> Ledger {
        let ledger = Ledger::default();
        let operation = ledger.begin(kind, ending, "k".to_owned());
        if let Some(status) = status {
            ledger.answered(operation, answer(status, "first"));
        }
        ledger
    }

    fn effects(orders: u64, reservations: u64, charges: u64, confirmations: u64) -> Effects {
        let table = |count: u64| if count == 0 { HashMap::new() } else { HashMap::from([(0, count)]) };
        Effects {
            orders: table(orders),
            reservations: table(reservations),
            charges: table(charges),
            confirmations: table(confirmations),
        }
    }

    #[test]
    fn what_was_promised_is_no_violation() {
        for (kind, ending, status, found) in [
            (Kind::Order, Ending::Success, Some(201), effects(1, 0, 0, 0)),
            (Kind::Order, Ending::Refusal, Some(402), effects(0, 0, 0, 0)),
            (Kind::Patient, Ending::Success, None, effects(1, 0, 0, 0)),
            (Kind::Repeatable, Ending::Success, None, effects(0, 0, 0, 0)),
            (Kind::Checkout, Ending::Success, Some(201), effects(0, 1, 1, 1)),
            (Kind::Checkout, Ending::Refusal, Some(402), effects(0, 1, 0, 0)),
            (Kind::Checkout, Ending::Success, None, effects(0, 1, 1, 0)),
        ] {
            assert_eq!(ledger(kind, ending, status).violations(&found), [""; 0]);
        }
    }

    #[test]
    fn what_was_not_promised_is_one() {
        for (kind, ending, status, found) in [
            (Kind::Order, Ending::Success, Some(201), effects(0, 0, 0, 0)),
            (Kind::Order, Ending::Success, Some(201), effects(2, 0, 0, 0)),
            (Kind::Order, Ending::Success, None, effects(2, 0, 0, 0)),
            (Kind::Order, Ending::Refusal, Some(402), effects(1, 0, 0, 0)),
            (Kind::Order, Ending::Success, Some(402), effects(0, 0, 0, 0)),
            (Kind::Order, Ending::Success, Some(422), effects(0, 0, 0, 0)),
            (Kind::Checkout, Ending::Success, Some(201), effects(0, 1, 1, 0)),
            (Kind::Checkout, Ending::Success, Some(201), effects(0, 1, 2, 1)),
            (Kind::Checkout, Ending::Refusal, Some(402), effects(0, 1, 0, 1)),
            (Kind::Checkout, Ending::Success, None, effects(0, 1, 1, 2)),
        ] {
            assert_eq!(ledger(kind, ending, status).violations(&found).len(), 1, "{kind:?} {ending:?} {status:?}");
        }
    }

    #[test]
    fn different_answers_stuck_keys_and_unknown_operations_are_noticed() {
        let ledger = ledger(Kind::Order, Ending::Success, Some(201));
        let found = effects(1, 0, 0, 0);
        ledger.answered(0, answer(201, "first"));
        assert_eq!(ledger.violations(&found), [""; 0]);
        ledger.answered(0, answer(201, "second"));
        assert_eq!(ledger.violations(&found).len(), 1);
        assert_eq!(ledger.stuck(), [""; 0]);
        let never = Effects { charges: HashMap::from([(7, 1)]), ..effects(1, 0, 0, 0) };
        assert_eq!(ledger.violations(&never).len(), 2);
        ledger.begin(Kind::Order, Ending::Success, "l".to_owned());
        assert_eq!(ledger.stuck().len(), 1);
    }
}
