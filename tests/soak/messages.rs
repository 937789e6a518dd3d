//! Messages about orders, through the outbox: what each one is meant to be like, what the receiver saw, and what must hold.

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};
use sqlx::PgPool;

use crate::Failure;
use crate::server::Order;

/// How often a relay begins a delivery.
pub(crate) const ATTEMPTS: u32 = 6;

/// Of so many operations, a few whose messages end the process that delivers them, the first ones among them.
const POISON: u64 = 10_000;

/// What is sent about an order.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Message {
    pub(crate) operation: u64,
    pub(crate) poison: bool,
}

impl Message {
    pub(crate) fn about(order: Order) -> Self {
        Self { operation: order.operation, poison: is_poison(order.operation) }
    }

    pub(crate) fn topic(&self) -> &'static str {
        if self.operation.is_multiple_of(5) { "slow" } else { "quick" }
    }
}

fn is_poison(operation: u64) -> bool {
    (7..11).contains(&(operation % POISON))
}

/// A third of the messages keep an order: their tenant's.
pub(crate) fn group(order: Order) -> Option<String> {
    order.operation.is_multiple_of(3).then(|| format!("tenant {}", order.tenant))
}

/// What the receiver saw.
#[derive(Debug, Default, Clone)]
pub(crate) struct Received {
    /// By operation: how often, and with which keys.
    messages: HashMap<u64, (u64, BTreeSet<String>)>,
    /// By group: the operations in the order in which each came for the first time.
    groups: HashMap<String, Vec<u64>>,
}

impl Received {
    pub(crate) fn receive(&mut self, operation: u64, key: &str, group: Option<&str>) {
        let (count, keys) = self.messages.entry(operation).or_default();
        *count += 1;
        keys.insert(key.to_owned());
        if let Some(group) = group.filter(|_| *count == 1) {
            self.groups.entry(group.to_owned()).or_default().push(operation);
        }
    }

    /// As if one had never come.
    pub(crate) fn forget(&mut self, operation: u64) {
        self.messages.remove(&operation);
        self.groups.values_mut().for_each(|group| group.retain(|other| *other != operation));
    }

    /// As if two had come in the wrong order.
    pub(crate) fn swap(&mut self) {
        if let Some(group) = self.groups.values_mut().find(|group| group.len() > 1) {
            group.swap(0, 1);
        }
    }

    /// As if one had come far too often.
    pub(crate) fn repeat(&mut self, operation: u64) {
        self.messages.entry(operation).or_default().0 += 100;
    }
}

/// What the outbox says of a message in the end.
#[derive(Debug, Clone, sqlx::FromRow)]
pub(crate) struct Row {
    operation: i64,
    group_key: Option<String>,
    attempts: i32,
    dead: bool,
    pending: bool,
}

/// In the order in which they were committed, within a group.
pub(crate) async fn outbox(pool: &PgPool) -> Result<Vec<Row>, Failure> {
    let select = "SELECT dedupe_key::bigint AS operation, group_key, attempts, failure IS NOT NULL AS dead, \
                  failure IS NULL AND delivered_at IS NULL AS pending FROM idem.outbox ORDER BY id";
    Ok(sqlx::query_as(select).fetch_all(pool).await?)
}

pub(crate) async fn pending(pool: &PgPool) -> Result<i64, Failure> {
    let count = "SELECT count(*) FROM idem.outbox WHERE delivered_at IS NULL AND failure IS NULL";
    Ok(sqlx::query_scalar(count).fetch_one(pool).await?)
}

/// Counts for the summary.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) repeated: u64,
    pub(crate) in_order: u64,
    pub(crate) poison_dead: u64,
    pub(crate) others_dead: u64,
}

pub(crate) fn totals(rows: &[Row], received: &Received) -> Totals {
    let poison = |row: &&Row| is_poison(row.operation.cast_unsigned());
    Totals {
        sent: rows.len() as u64,
        received: received.messages.len() as u64,
        repeated: received.messages.values().map(|(count, _)| count - 1).sum(),
        in_order: received.groups.values().map(|group| group.len() as u64).sum(),
        poison_dead: rows.iter().filter(|row| row.dead).filter(poison).count() as u64,
        others_dead: rows.iter().filter(|row| row.dead && !poison(row)).count() as u64,
    }
}

/// Lost, doubled beyond at-least-once, out of order, stuck.
pub(crate) fn violations(rows: &[Row], received: &Received, orders: &HashMap<u64, u64>) -> Vec<String> {
    let mut violations = Vec::new();
    let sent: HashMap<u64, &Row> = rows.iter().map(|row| (row.operation.cast_unsigned(), row)).collect();
    for operation in orders.keys().filter(|operation| !sent.contains_key(operation)) {
        violations.push(format!("operation {operation}: its order is committed, and its message is not"));
    }
    for (operation, row) in &sent {
        let (count, keys) = received.messages.get(operation).cloned().unwrap_or_default();
        let (attempts, limit) = (row.attempts.unsigned_abs(), ATTEMPTS);
        if !orders.contains_key(operation) {
            violations.push(format!("operation {operation}: its message is committed, and its order is not"));
        }
        if row.pending {
            violations.push(format!("operation {operation}: its message is stuck after {attempts} attempts"));
        } else if row.dead && attempts < limit {
            violations.push(format!("operation {operation}: its message died after {attempts} attempts"));
        } else if !row.dead && count == 0 {
            violations.push(format!("operation {operation}: its message is lost"));
        }
        if count > u64::from(attempts) || attempts > limit {
            violations.push(format!("operation {operation}: its message came {count} times in {attempts} attempts"));
        }
        if keys.len() > 1 {
            violations.push(format!("operation {operation}: its message came with the keys {keys:?}"));
        }
    }
    for operation in received.messages.keys().filter(|operation| !sent.contains_key(operation)) {
        violations.push(format!("operation {operation}: a message came that was never committed"));
    }
    for (group, operations) in &received.groups {
        let of_group = rows.iter().filter(|row| row.group_key.as_ref() == Some(group) && !row.dead);
        let committed: Vec<u64> = of_group.map(|row| row.operation.cast_unsigned()).collect();
        let living: Vec<u64> =
            operations.iter().copied().filter(|operation| sent.get(operation).is_some_and(|row| !row.dead)).collect();
        if let Some(place) = committed.iter().zip(&living).position(|(one, other)| one != other) {
            violations.push(format!(
                "{group}: out of order: operation {} was committed before, and came after operation {}",
                committed[place], living[place]
            ));
        }
    }
    violations
}
