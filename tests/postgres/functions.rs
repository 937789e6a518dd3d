//! Functions that are called: message consumers with an inbox, over one transaction and over steps.

use std::sync::Arc;
use std::time::Duration;

use idem_runtime::{Error, Idempotency, Operation, Status, Tx, idempotent};
use idem_testing::TestDatabase;
use idem_tests::{App, Gate};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::Barrier;

#[derive(Debug, Clone)]
struct Payment {
    id: String,
    amount: i64,
    then: Then,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Then {
    Book,
    Fail,
    Panic,
    Wait,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Receipt {
    entry: i64,
    amount: i64,
}

#[derive(Debug)]
enum ConsumerError {
    Rejected,
    Database,
    Idempotency(Error),
}

impl From<Error> for ConsumerError {
    fn from(error: Error) -> Self {
        Self::Idempotency(error)
    }
}

impl From<sqlx::Error> for ConsumerError {
    fn from(_: sqlx::Error) -> Self {
        Self::Database
    }
}

async fn book(tx: &mut Tx, gate: &Gate, payment: &Payment) -> Result<Receipt, ConsumerError> {
    let insert = sqlx::query_scalar("INSERT INTO entries (text) VALUES ($1) RETURNING id").bind(payment.id.clone());
    let entry = insert.fetch_one(tx).await?;
    match payment.then {
        Then::Book => {}
        Then::Fail => return Err(ConsumerError::Rejected),
        Then::Panic => panic!("the handler panics, as the test asked"),
        Then::Wait => gate.pass().await,
    }
    Ok(Receipt { entry, amount: payment.amount })
}

#[idempotent(scope = "payments", key = payment.id, ttl = "7d")]
async fn on_payment(
    idempotency: &Idempotency,
    tx: &mut Tx,
    gate: Arc<Gate>,
    payment: Payment,
) -> Result<Receipt, ConsumerError> {
    book(tx, &gate, &payment).await
}

#[idempotent(scope = "checked", key = payment.id, ttl = "7d", fingerprint = payment.amount)]
async fn on_checked(
    idempotency: &Idempotency,
    tx: &mut Tx,
    gate: Arc<Gate>,
    payment: Payment,
) -> Result<Receipt, ConsumerError> {
    book(tx, &gate, &payment).await
}

#[idempotent(scope = "steps", key = payment.id, ttl = "7d")]
async fn on_payment_in_steps(
    idempotency: &Idempotency,
    op: &mut Operation,
    gate: Arc<Gate>,
    payment: Payment,
    fail: bool,
) -> Result<Receipt, ConsumerError> {
    let receipt = op.transaction("book", async |tx| book(tx, &gate, &payment).await).await?;
    let doubled: i64 = op.step("double", async |_key| Ok::<_, ConsumerError>(payment.amount * 2)).await?;
    if fail {
        return Err(ConsumerError::Rejected);
    }
    Ok(Receipt { amount: doubled, ..receipt })
}

/// Another consumer of the same messages, whose author chose the same scope.
#[idempotent(scope = "payments", key = payment.id, ttl = "7d")]
async fn on_payment_notify(
    idempotency: &Idempotency,
    tx: &mut Tx,
    gate: Arc<Gate>,
    payment: Payment,
) -> Result<Receipt, ConsumerError> {
    book(tx, &gate, &payment).await
}

/// What a deploy turned from an external call into a transaction.
async fn charge(op: &mut Operation, name: &str, deployed: bool) -> Result<i64, ConsumerError> {
    if deployed {
        op.transaction(name, async |_| Ok(1)).await
    } else {
        op.step(name, async |_| Err(ConsumerError::Rejected)).reconcile(async |_| Ok(None)).await
    }
}

#[idempotent(scope = "changed", key = id, ttl = "7d")]
async fn on_changed(
    idempotency: &Idempotency,
    op: &mut Operation,
    id: &str,
    deployed: bool,
) -> Result<i64, ConsumerError> {
    charge(op, "charge", deployed).await
}

fn payment(id: &str, then: Then) -> Payment {
    Payment { id: id.to_owned(), amount: 100, then }
}

async fn start() -> (TestDatabase, PgPool, Idempotency, Arc<Gate>) {
    let (database, app) = App::start().await;
    (database, app.pool, app.idempotency, app.gate)
}

async fn entries(pool: &PgPool) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM entries").fetch_one(pool).await.expect("a count")
}

#[tokio::test]
async fn a_redelivery_gets_the_recorded_result() {
    let (database, pool, idempotency, gate) = start().await;
    let first = on_payment(&idempotency, gate.clone(), payment("m1", Then::Book)).await.expect("booked");
    let other_process = Idempotency::new(database.pool());
    for consumer in [&idempotency, &other_process] {
        // What is in the message does not count, only its id, unless the attribute says so.
        let again = on_payment(consumer, gate.clone(), payment("m1", Then::Fail)).await.expect("recorded");
        assert_eq!(again, first);
    }
    assert_eq!(entries(&pool).await, 1);
    on_payment(&idempotency, gate.clone(), payment("m2", Then::Book)).await.expect("booked");
    assert_eq!(entries(&pool).await, 2);
    assert_eq!(idempotency.status("payments", "m1").await.expect("a status"), Status::Completed { status: 200 });
}

#[tokio::test]
async fn an_error_or_a_panic_leaves_nothing_and_the_redelivery_runs() {
    let (_database, pool, idempotency, gate) = start().await;
    let failed = on_payment(&idempotency, gate.clone(), payment("m1", Then::Fail)).await;
    assert!(matches!(failed, Err(ConsumerError::Rejected)));
    let panicked = tokio::spawn({
        let (idempotency, gate) = (idempotency.clone(), gate.clone());
        async move { on_payment(&idempotency, gate, payment("m1", Then::Panic)).await }
    });
    assert!(panicked.await.expect_err("a panic").is_panic());
    assert_eq!(entries(&pool).await, 0);
    on_payment(&idempotency, gate, payment("m1", Then::Book)).await.expect("booked");
    assert_eq!(entries(&pool).await, 1);
}

#[tokio::test]
async fn in_flight_and_mismatch_come_out_as_the_callers_error() {
    let (database, pool, idempotency, gate) = start().await;
    let held = tokio::spawn({
        let (idempotency, gate) = (idempotency.clone(), gate.clone());
        async move { on_checked(&idempotency, gate, payment("m1", Then::Wait)).await }
    });
    gate.arrival().await;
    let other_process = Idempotency::new(database.pool());
    for consumer in [&idempotency, &other_process] {
        let busy = on_checked(consumer, gate.clone(), payment("m1", Then::Book)).await;
        assert!(matches!(busy, Err(ConsumerError::Idempotency(Error::InFlight { .. }))), "{busy:?}");
    }
    gate.open(1);
    let first = held.await.expect("no panic").expect("booked");
    assert_eq!(on_checked(&idempotency, gate.clone(), payment("m1", Then::Book)).await.expect("recorded"), first);
    let other = Payment { amount: 1, ..payment("m1", Then::Book) };
    let mismatch = on_checked(&idempotency, gate.clone(), other).await;
    assert!(matches!(mismatch, Err(ConsumerError::Idempotency(Error::Mismatch))), "{mismatch:?}");
    let natural = || on_checked(&idempotency, gate.clone(), payment("two words", Then::Book));
    let booked = natural().await.expect("an identifier with a space is no poison");
    assert_eq!(natural().await.expect("recorded"), booked);
    let empty = on_checked(&idempotency, gate.clone(), payment("", Then::Book)).await;
    assert!(matches!(empty, Err(ConsumerError::Idempotency(Error::InvalidKey(_)))), "{empty:?}");
    assert_eq!(entries(&pool).await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_message_delivered_to_many_consumers_at_once_has_one_effect() {
    let (database, pool, idempotency, gate) = start().await;
    let consumers = [idempotency, Idempotency::new(database.pool()), Idempotency::new(database.pool())];
    let barrier = Arc::new(Barrier::new(60));
    let deliveries = (0..60).map(|number| {
        let (idempotency, gate, barrier) = (consumers[number % 3].clone(), gate.clone(), Arc::clone(&barrier));
        tokio::spawn(async move {
            barrier.wait().await;
            loop {
                match on_payment(&idempotency, gate.clone(), payment("m1", Then::Book)).await {
                    Err(ConsumerError::Idempotency(Error::InFlight { .. })) => {
                        tokio::time::sleep(Duration::from_millis(5)).await
                    }
                    received => return received.expect("a receipt").entry,
                }
            }
        })
    });
    let receipts = futures_util::future::join_all(deliveries).await;
    let receipts: std::collections::HashSet<_> =
        receipts.into_iter().map(|receipt| receipt.expect("no panic")).collect();
    assert_eq!((receipts.len(), entries(&pool).await), (1, 1));
}

#[tokio::test]
async fn steps_resume_in_functions_too() {
    let (_database, pool, idempotency, gate) = start().await;
    let failed = on_payment_in_steps(&idempotency, gate.clone(), payment("m1", Then::Book), true).await;
    assert!(matches!(failed, Err(ConsumerError::Rejected)));
    assert_eq!(entries(&pool).await, 1, "what was committed stays");
    let receipt =
        on_payment_in_steps(&idempotency, gate.clone(), payment("m1", Then::Fail), false).await.expect("resumed");
    assert_eq!(receipt.amount, 200);
    let again = on_payment_in_steps(&idempotency, gate, payment("m1", Then::Fail), true).await.expect("recorded");
    assert_eq!((again, entries(&pool).await), (receipt, 1));
}

/// A function's call is no task of its own: dropping it anywhere rolls back, and the only connection comes back clean.
#[tokio::test]
async fn a_call_dropped_at_any_await_leaves_nothing_and_a_clean_pool_9() {
    let (database, pool, ..) = start().await;
    let single = database.pool_with(PgPoolOptions::new().max_connections(1));
    let idempotency = Idempotency::new(single.clone());
    let gate = Arc::new(Gate::new());
    for polls in 1..40 {
        let id = format!("m{polls}");
        let done =
            crate::hang_up::abandon(on_payment(&idempotency, gate.clone(), payment(&id, Then::Book)), polls).await;
        let count: i64 = tokio::time::timeout(
            Duration::from_secs(5),
            sqlx::query_scalar("SELECT count(*) FROM entries WHERE text = $1").bind(&id).fetch_one(&single),
        )
        .await
        .expect("no leak")
        .expect("a clean session");
        assert!(count == i64::from(done) || !done, "polls {polls}");
        let mut retried = on_payment(&idempotency, gate.clone(), payment(&id, Then::Book)).await;
        while matches!(retried, Err(ConsumerError::Idempotency(Error::InFlight { .. } | Error::Unavailable { .. }))) {
            tokio::time::sleep(Duration::from_millis(5)).await;
            retried = on_payment(&idempotency, gate.clone(), payment(&id, Then::Book)).await;
        }
        retried.expect("booked");
        let ids: Vec<String> = {
            let mut connection = single.acquire().await.expect("a connection");
            let mut ids = Vec::new();
            for _ in 0..2 {
                let id = sqlx::query_scalar("SELECT pg_current_xact_id()::text").fetch_one(&mut *connection).await;
                ids.push(id.expect("a clean session"));
            }
            ids
        };
        assert_ne!(ids[0], ids[1], "polls {polls}: outside any transaction");
    }
    assert_eq!(entries(&pool).await, 39);
}

/// A message that is taken for another consumer's must not be dropped in silence.
#[tokio::test]
async fn two_functions_that_share_a_scope_and_a_key_do_not_share_a_result() {
    let (_database, pool, idempotency, gate) = start().await;
    on_payment(&idempotency, gate.clone(), payment("m1", Then::Book)).await.expect("booked");
    let other = on_payment_notify(&idempotency, gate, payment("m1", Then::Book)).await;
    assert!(matches!(other, Err(ConsumerError::Idempotency(Error::Mismatch))), "{other:?}");
    assert_eq!(entries(&pool).await, 1);
}

#[tokio::test]
async fn a_refused_deploy_names_the_step() {
    let (_database, _pool, idempotency, _gate) = start().await;
    let started = on_changed(&idempotency, "m1", false).await;
    assert!(matches!(started, Err(ConsumerError::Rejected)), "{started:?}");
    let changed = on_changed(&idempotency, "m1", true).await;
    let Err(ConsumerError::Idempotency(Error::StepsChanged { recorded, asked })) = changed else {
        panic!("{changed:?}");
    };
    assert_eq!((recorded.as_deref(), asked.as_deref()), (Some("charge"), Some("charge")));
}

#[tokio::test]
async fn a_shutdown_waits_for_calls_too() {
    let (database, pool, _, gate) = start().await;
    let builder = Idempotency::builder(database.pool()).shutdown_limit(Duration::from_millis(100));
    let idempotency = builder.build().expect("settings");
    let held = tokio::spawn({
        let (idempotency, gate) = (idempotency.clone(), gate.clone());
        async move { on_payment(&idempotency, gate, payment("m1", Then::Wait)).await }
    });
    gate.arrival().await;
    assert_eq!(idempotency.shutdown().await, 1);
    gate.open(1);
    held.await.expect("no panic").expect("booked");
    assert_eq!((idempotency.shutdown().await, entries(&pool).await), (0, 1));
}
