//! Operations of more than one commit: after whatever breaks, a retry resumes, and nothing happens twice.

use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{FromRef, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use futures_util::FutureExt;
use idem_runtime::{Error, Idempotency, IdempotencyKey, Operation, Tx, idempotent};
use idem_testing::TestDatabase;
use idem_testing::proxy::{self, Action, Place, Proxy};
use idem_tests::{App, Gate, Reply, Tenant, request};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tower::ServiceExt;

use crate::pools::{guard, prepared_pool};

/// Another system that takes money, and honours idempotency keys if it is asked to.
#[derive(Debug, Default)]
struct Provider {
    /// Effects by key.
    charges: Mutex<HashMap<String, u32>>,
    calls: Mutex<u32>,
    /// The next answers that get lost on the way back.
    lose: Mutex<u32>,
}

impl Provider {
    async fn charge(&self, key: &IdempotencyKey, honours_keys: bool) -> Result<Charge, ApiError> {
        tokio::task::yield_now().await;
        *self.calls.lock().unwrap() += 1;
        let count = {
            let mut charges = self.charges.lock().unwrap();
            let count = charges.entry(key.to_string()).or_default();
            if !honours_keys || *count == 0 {
                *count += 1;
            }
            *count
        };
        let mut lose = self.lose.lock().unwrap();
        if *lose > 0 {
            *lose -= 1;
            return Err(ApiError::Failed);
        }
        Ok(Charge { reference: format!("ch_{key}"), count })
    }

    fn find(&self, key: &IdempotencyKey) -> Option<Charge> {
        let count = *self.charges.lock().unwrap().get(key.as_str())?;
        Some(Charge { reference: format!("ch_{key}"), count })
    }

    fn effects(&self) -> Vec<u32> {
        self.charges.lock().unwrap().values().copied().collect()
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Charge {
    reference: String,
    count: u32,
}

/// What goes wrong at a place of the handler.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    Fail,
    Panic,
    Wait,
    Refuse,
}

/// One process: its state and its routes.
#[derive(Clone)]
struct Process {
    router: Router,
    pool: PgPool,
    world: World,
}

#[derive(Clone)]
struct World {
    idempotency: Idempotency,
    provider: Arc<Provider>,
    gate: Arc<Gate>,
    faults: Arc<Mutex<HashMap<&'static str, VecDeque<Fault>>>>,
    /// Which parts' bodies have run, in this process.
    ran: Arc<Mutex<Vec<&'static str>>>,
    /// What a deploy changed.
    version: Arc<Mutex<u32>>,
}

impl FromRef<World> for Idempotency {
    fn from_ref(world: &World) -> Self {
        world.idempotency.clone()
    }
}

#[derive(Debug)]
enum ApiError {
    Failed,
    Refused,
    Database(sqlx::Error),
    Idempotency(Error),
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        Self::Idempotency(error)
    }
}

impl From<sqlx::Error> for ApiError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        match self {
            Self::Failed => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            Self::Refused => (StatusCode::PAYMENT_REQUIRED, "declined").into_response(),
            Self::Database(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
            Self::Idempotency(error) => error.into_response(),
        }
    }
}

impl World {
    async fn come_by(&self, place: &'static str) -> Result<(), ApiError> {
        self.ran.lock().unwrap().push(place);
        let fault = self.faults.lock().unwrap().get_mut(place).and_then(VecDeque::pop_front);
        match fault {
            Some(Fault::Fail) => Err(ApiError::Failed),
            Some(Fault::Refuse) => Err(ApiError::Refused),
            Some(Fault::Panic) => panic!("the handler panics, as the test asked"),
            Some(Fault::Wait) => {
                self.gate.pass().await;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn fault(&self, place: &'static str, fault: Fault) {
        self.faults.lock().unwrap().entry(place).or_default().push_back(fault);
    }

    fn runs(&self, place: &str) -> usize {
        self.ran.lock().unwrap().iter().filter(|ran| **ran == place).count()
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Cart {
    text: String,
}

async fn insert(tx: &mut Tx, text: &str) -> Result<i64, ApiError> {
    Ok(sqlx::query_scalar("INSERT INTO entries (text) VALUES ($1) RETURNING id").bind(text).fetch_one(tx).await?)
}

async fn mark(tx: &mut Tx, order: i64) -> Result<(), ApiError> {
    sqlx::query("INSERT INTO notes (entry) VALUES ($1)").bind(order).execute(tx).await?;
    Ok(())
}

/// Ends the transaction where a macro cannot see it.
async fn escape(tx: &mut Tx) -> Result<(), ApiError> {
    insert(tx, "escaped").await?;
    sqlx::raw_sql("COMMIT").execute(&mut **tx).await?;
    Ok(())
}

/// Runs one part under a name that a macro cannot see.
async fn part(op: &mut Operation, name: &str) -> Result<i64, ApiError> {
    op.transaction(name, async |tx| insert(tx, name).await).await
}

async fn run(op: &mut Operation, world: &World, cart: &Cart) -> Result<Response, ApiError> {
    world.come_by("before").await?;
    let order: i64 = op
        .transaction("create order", async |tx| {
            let order = insert(tx, &cart.text).await?;
            world.come_by("in create").await?;
            Ok::<_, ApiError>(order)
        })
        .await?;
    world.come_by("after create").await?;
    let version = *world.version.lock().unwrap();
    let name = if version == 1 { "charge another way" } else { "charge" };
    let charge: Charge = op
        .step(name, async |key| {
            world.come_by("in charge").await?;
            let charge = world.provider.charge(&key, true).await?;
            world.come_by("charged").await?;
            Ok::<_, ApiError>(charge)
        })
        .await?;
    world.come_by("after charge").await?;
    op.transaction("mark paid", async |tx| {
        mark(tx, order).await?;
        world.come_by("in mark").await
    })
    .await?;
    world.come_by("after mark").await?;
    Ok((
        StatusCode::CREATED,
        [("location", format!("/orders/{order}"))],
        Json(json!({ "order": order, "charge": charge })),
    )
        .into_response())
}

#[idempotent(scope = tenant.id, ttl = "24h", lease = "3s")]
async fn checkout(
    tenant: Tenant,
    op: &mut Operation,
    State(world): State<World>,
    Json(cart): Json<Cart>,
) -> Result<Response, ApiError> {
    run(op, &world, &cart).await
}

#[idempotent(scope = tenant.id, ttl = "24h", in_flight = "wait 10s")]
async fn patient(
    tenant: Tenant,
    op: &mut Operation,
    State(world): State<World>,
    Json(cart): Json<Cart>,
) -> Result<Response, ApiError> {
    run(op, &world, &cart).await
}

/// With a stop where it has failed.
async fn run_and_stop(op: &mut Operation, world: &World, cart: &Cart) -> Result<Response, ApiError> {
    let ran = run(op, world, cart).await;
    if ran.is_err() {
        world.come_by("failed").await?;
    }
    ran
}

/// Stores its failures, after a stop at the gate.
#[idempotent(scope = tenant.id, ttl = "24h", failures = "replay")]
async fn stubborn(
    tenant: Tenant,
    op: &mut Operation,
    State(world): State<World>,
    Json(cart): Json<Cart>,
) -> Result<Response, ApiError> {
    run_and_stop(op, &world, &cart).await
}

/// Refuses whatever goes wrong, after a stop at the gate.
#[idempotent(scope = tenant.id, ttl = "24h")]
async fn refusing(
    tenant: Tenant,
    op: &mut Operation,
    State(world): State<World>,
    Json(cart): Json<Cart>,
) -> Result<Response, ApiError> {
    run_and_stop(op, &world, &cart).await.map_err(|_| ApiError::Refused)
}

/// Its transaction takes longer than the pause between two renewals of the lease, and the renewals change the row that its
/// snapshot has seen.
#[idempotent(scope = tenant.id, ttl = "24h", lease = "1s", isolation = "serializable")]
async fn slow(
    tenant: Tenant,
    op: &mut Operation,
    State(world): State<World>,
    Json(cart): Json<Cart>,
) -> Result<Json<i64>, ApiError> {
    op.transaction("first", async |tx| insert(tx, "first").await).await?;
    let second = op.transaction("second", async |tx| {
        world.come_by("in second").await?;
        let second = insert(tx, &cart.text).await?;
        sqlx::query("SELECT pg_sleep(0.8)").execute(tx).await?;
        Ok::<_, ApiError>(second)
    });
    Ok(Json(second.await?))
}

/// A provider without keys.
#[idempotent(scope = tenant.id, ttl = "24h")]
async fn keyless(
    tenant: Tenant,
    op: &mut Operation,
    State(world): State<World>,
    Json(cart): Json<Cart>,
) -> Result<Json<Charge>, ApiError> {
    let _ = cart;
    let charge = op
        .step("charge", async |key| {
            world.come_by("in charge").await?;
            let charge = world.provider.charge(&key, false).await?;
            world.come_by("charged").await?;
            Ok::<_, ApiError>(charge)
        })
        .reconcile(async |key| {
            world.come_by("reconcile").await?;
            Ok(world.provider.find(&key))
        })
        .await?;
    Ok(Json(charge))
}

/// Mistakes that only a run shows.
#[idempotent(scope = tenant.id, ttl = "24h")]
async fn mistaken(tenant: Tenant, op: &mut Operation, Json(cart): Json<Cart>) -> Result<String, ApiError> {
    match cart.text.as_str() {
        "twice" => {
            part(op, "twice").await?;
            part(op, "twice").await?;
        }
        "after a failure" => {
            let failed: Result<i64, ApiError> = op.transaction("fails", async |_| Err(ApiError::Refused)).await;
            failed.expect_err("a failure");
            part(op, "follows").await?;
        }
        "escape" => op.transaction("escapes", async |tx| escape(tx).await).await?,
        "escape later" => {
            part(op, "stays").await?;
            op.transaction("escapes later", async |tx| escape(tx).await).await?;
        }
        "refused at the commit" => deferred(op).await.map_err(|_| ApiError::Refused)?,
        "failed at the commit" => deferred(op).await.map_err(|_| ApiError::Failed)?,
        "swallowed at the commit" => _ = deferred(op).await,
        "swallowed at a later commit" => {
            part(op, "stays").await?;
            _ = deferred(op).await;
        }
        "conflict" => conflict(op).await.map_err(|_| ApiError::Refused)?,
        "later conflict" => {
            part(op, "stays").await?;
            conflict(op).await.map_err(|_| ApiError::Refused)?;
        }
        "refused escape" => {
            part(op, "stays").await?;
            let escaped: Result<(), ApiError> =
                op.transaction("escapes and refuses", async |tx| escape(tx).await).await;
            escaped.map_err(|_| ApiError::Refused)?;
        }
        "swallowed no JSON" => {
            let no_json = op.transaction("no JSON", async |tx| {
                insert(tx, "no JSON").await?;
                Ok::<_, ApiError>(HashMap::from([((1, 2), 3)]))
            });
            no_json.await.expect_err("its keys are no strings");
        }
        "swallow" => {
            let order: Result<i64, ApiError> = op
                .transaction("aborted", async |tx| {
                    let order = insert(tx, "aborted").await?;
                    let duplicate = sqlx::query("INSERT INTO entries (id, text) VALUES ($1, 'duplicate')").bind(order);
                    duplicate.execute(tx).await.expect_err("taken");
                    Ok(order)
                })
                .await;
            order.expect_err("an aborted transaction");
        }
        _ => {}
    }
    Ok("no part, no step".to_owned())
}

/// Loses to a concurrent transaction, as far as it can see.
async fn conflict(op: &mut Operation) -> Result<(), ApiError> {
    let lost = op.transaction("conflict", async |tx| {
        insert(tx, "conflict").await?;
        let raise = "DO $$ BEGIN RAISE EXCEPTION 'lost' USING ERRCODE = '40001'; END $$";
        sqlx::query(raise).execute(tx).await?;
        Ok(())
    });
    lost.await
}

/// Writes what a deferred constraint refuses at the commit.
async fn deferred(op: &mut Operation) -> Result<(), ApiError> {
    let refused = op.transaction("deferred", async |tx| {
        insert(tx, "deferred").await?;
        mark(tx, -1).await
    });
    refused.await
}

impl Process {
    fn over(database: &TestDatabase, provider: Arc<Provider>) -> Self {
        Self::over_pool(database.pool(), provider)
    }

    fn over_pool(pool: PgPool, provider: Arc<Provider>) -> Self {
        Self::with(Idempotency::new(pool.clone()), pool, provider)
    }

    fn with(idempotency: Idempotency, pool: PgPool, provider: Arc<Provider>) -> Self {
        let world = World {
            idempotency,
            provider,
            gate: Arc::new(Gate::new()),
            faults: Arc::default(),
            ran: Arc::default(),
            version: Arc::default(),
        };
        let router = Router::new()
            .route("/checkout", post(checkout))
            .route("/patient", post(patient))
            .route("/stubborn", post(stubborn))
            .route("/refusing", post(refusing))
            .route("/slow", post(slow))
            .route("/keyless", post(keyless))
            .route("/mistaken", post(mistaken))
            .with_state(world.clone());
        Self { router, pool, world }
    }

    async fn start() -> (TestDatabase, Self) {
        let (database, _) = App::start().await;
        let process = Self::over(&database, Arc::default());
        (database, process)
    }

    async fn post(&self, path: &str, key: &str, text: &str) -> Reply {
        let request = request(path, &[("tenant", "a"), ("idempotency-key", key)], &Cart { text: text.to_owned() });
        Reply::of(self.router.clone().oneshot(request).await.unwrap_or_else(|error| match error {})).await
    }

    /// Posts until the answer is final.
    async fn retry(&self, path: &str, key: &str, text: &str) -> Reply {
        for _ in 0..400 {
            let reply = self.post(path, key, text).await;
            if ![409, 500, 503].contains(&reply.status) {
                return reply;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("`{key}` is stuck");
    }

    async fn count(&self, table: &str) -> i64 {
        let count = sqlx::AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
        sqlx::query_scalar(count).fetch_one(&self.pool).await.expect("a count")
    }

    /// Waits until the pool's connections have been given back, which happens after the answer.
    async fn idle(&self) {
        while self.pool.size() as usize > self.pool.num_idle() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// One order, one mark, one charge at the provider, nothing in progress.
    async fn assert_once(&self) {
        assert_eq!((self.count("entries").await, self.count("notes").await), (1, 1));
        assert_eq!(self.world.provider.effects(), [1]);
        assert_eq!(self.count("idem.idempotency_keys WHERE status IS NULL").await, 0);
    }
}

const PLACES: [&str; 8] =
    ["before", "in create", "after create", "in charge", "charged", "after charge", "in mark", "after mark"];

#[tokio::test]
async fn an_operation_completes_and_replays() {
    let (_database, process) = Process::start().await;
    let first = process.post("/checkout", "k", "cart").await;
    assert_eq!((first.status, first.replayed()), (201, false), "{first:?}");
    process.post("/checkout", "k", "cart").await.assert_replays(&first);
    assert_eq!(process.post("/checkout", "k", "other").await.status, 422);
    process.assert_once().await;
    let key = process.world.provider.charges.lock().unwrap().keys().next().cloned();
    assert!(key.is_some_and(|key| key.starts_with("charge-") && key.len() <= 64), "the provider's key is derived");
}

#[tokio::test]
async fn a_failure_or_a_panic_at_every_place_resumes_after_the_last_recovery_point_1() {
    for fault in [Fault::Fail, Fault::Panic] {
        for place in PLACES {
            let (_database, process) = Process::start().await;
            process.world.fault(place, fault);
            let sent = AssertUnwindSafe(process.post("/checkout", "k", "cart")).catch_unwind().await;
            match (fault, sent) {
                (Fault::Panic, Err(_)) => {}
                (Fault::Fail, Ok(reply)) => assert_eq!(reply.status, 500),
                other => panic!("{other:?}"),
            }
            // At once: no lease is waited for.
            let reply = process.post("/checkout", "k", "cart").await;
            assert_eq!((reply.status, reply.replayed()), (201, false), "{fault:?} {place}: {reply:?}");
            process.post("/checkout", "k", "cart").await.assert_replays(&reply);
            process.assert_once().await;
            let created = if place == "in create" { 2 } else { 1 };
            assert_eq!(
                process.world.runs("in create"),
                created,
                "{fault:?} {place}: a recorded part does not run again"
            );
            let called = if ["in charge", "charged"].contains(&place) { 2 } else { 1 };
            assert_eq!(process.world.runs("in charge"), called, "{fault:?} {place}");
        }
    }
}

#[tokio::test]
async fn a_refusal_completes_the_operation() {
    let (_database, process) = Process::start().await;
    for (number, place) in PLACES.into_iter().enumerate() {
        process.world.fault(place, Fault::Refuse);
        let key = format!("k{number}");
        let refused = process.post("/checkout", &key, "cart").await;
        assert_eq!((refused.status, refused.body.as_ref()), (402, b"declined".as_slice()), "{place}");
        process.post("/checkout", &key, "cart").await.assert_replays(&refused);
    }
    assert_eq!(process.count("idem.idempotency_keys WHERE status IS NULL").await, 0);
}

#[tokio::test]
async fn a_lost_answer_of_the_provider_is_asked_for_again_with_the_same_key() {
    let (_database, process) = Process::start().await;
    *process.world.provider.lose.lock().unwrap() = 3;
    let reply = process.retry("/checkout", "k", "cart").await;
    assert_eq!(reply.status, 201);
    assert_eq!(*process.world.provider.calls.lock().unwrap(), 4);
    process.assert_once().await;
}

#[tokio::test]
async fn duplicates_in_flight_are_answered_in_this_process_and_in_others() {
    let (database, process) = Process::start().await;
    let other = Process::over(&database, Arc::clone(&process.world.provider));
    for place in ["before", "after create", "in charge", "in mark", "after mark"] {
        let key = format!("k {place}").replace(' ', "-");
        process.world.fault(place, Fault::Wait);
        let first = tokio::spawn({
            let (process, key) = (process.clone(), key.clone());
            async move { process.post("/checkout", &key, "cart").await }
        });
        process.world.gate.arrival().await;
        for duplicate in [&process, &other] {
            let reply = duplicate.post("/checkout", &key, "cart").await;
            assert_eq!(
                (reply.status, reply.problem().as_str(), reply.header("retry-after")),
                (409, "in-flight", "1"),
                "{place}"
            );
        }
        assert_eq!(process.post("/checkout", &key, "other").await.status, 422);
        if place != "before" {
            assert_eq!(
                other.post("/checkout", &key, "other").await.status,
                422,
                "the claim's row holds the fingerprint"
            );
        }
        process.world.gate.open(1);
        let first = first.await.expect("no panic");
        assert_eq!(first.status, 201);
        other.post("/checkout", &key, "cart").await.assert_replays(&first);
    }
}

#[tokio::test]
async fn a_waiting_duplicate_gets_the_answer() {
    let (database, process) = Process::start().await;
    let other = Process::over(&database, Arc::clone(&process.world.provider));
    process.world.fault("after charge", Fault::Wait);
    let post = |process: &Process| {
        let process = process.clone();
        tokio::spawn(async move { process.post("/patient", "k", "cart").await })
    };
    let first = post(&process);
    process.world.gate.arrival().await;
    let waiting = [post(&process), post(&other)];
    process.world.gate.open(1);
    let first = first.await.expect("no panic");
    for reply in waiting {
        reply.await.expect("no panic").assert_replays(&first);
    }
    process.assert_once().await;
}

/// Stall A, let B take over, let A go on: A touches nothing and says so.
#[tokio::test]
async fn an_owner_that_lost_its_lease_changes_nothing_4_5_6() {
    for place in ["after create", "in charge", "charged", "after charge", "in mark", "after mark"] {
        let (database, process) = Process::start().await;
        let other = Process::over(&database, Arc::clone(&process.world.provider));
        process.world.fault(place, Fault::Wait);
        let stalled = tokio::spawn({
            let process = process.clone();
            async move { process.post("/checkout", "k", "cart").await }
        });
        process.world.gate.arrival().await;
        assert_eq!(other.post("/checkout", "k", "cart").await.status, 409);
        // As if A's process had been frozen for longer than its lease.
        let expire = "UPDATE idem.idempotency_keys SET lease_expires_at = clock_timestamp() - interval '1 second'";
        sqlx::query(expire).execute(&process.pool).await.expect("an update");
        let successor = other.post("/checkout", "k", "cart").await;
        assert_eq!((successor.status, successor.replayed()), (201, false), "{place}: {successor:?}");
        process.world.gate.open(1);
        stalled.await.expect("no panic").assert_replays(&successor);
        assert_eq!(process.count("idem.idempotency_keys").await, 1);
        process.assert_once().await;
    }
}

/// A's lease has run out, B looks the operation up, A goes on after all and gives it back, and only then B's take-over
/// arrives: what B has looked up is not where the operation stands.
#[tokio::test]
async fn a_part_recorded_between_a_look_up_and_its_take_over_is_not_run_again() {
    let (database, owner) = Process::start().await;
    let proxy = Proxy::start(&database.url()).expect("a proxy");
    let pool = proxy.pool_with(PgPoolOptions::new().max_connections(1));
    let successor = Process::over_pool(pool, Arc::default());
    assert_eq!(successor.post("/patient", "warm", "cart").await.status, 201);
    successor.world.fault("after create", Fault::Fail);
    assert_eq!(successor.post("/patient", "measured", "cart").await.status, 500);
    successor.idle().await;
    proxy.record();
    assert_eq!(successor.post("/patient", "measured", "cart").await.status, 201);
    let take_over = proxy.recorded().iter().position(|sent| sent.contains("fenced")).expect("a take-over") + 1;
    for table in ["notes", "entries", "idem.idempotency_keys"] {
        let clear = sqlx::AssertSqlSafe(format!("DELETE FROM {table}"));
        sqlx::query(clear).execute(&owner.pool).await.expect("cleared");
    }
    successor.world.provider.charges.lock().unwrap().clear();

    let owner = Process::over(&database, Arc::clone(&successor.world.provider));
    owner.world.fault("after create", Fault::Wait);
    owner.world.fault("after mark", Fault::Fail);
    let first = tokio::spawn({
        let owner = owner.clone();
        async move { owner.post("/patient", "k", "cart").await }
    });
    owner.world.gate.arrival().await;
    let expire = "UPDATE idem.idempotency_keys SET lease_expires_at = clock_timestamp() - interval '1 second'";
    sqlx::query(expire).execute(&owner.pool).await.expect("an update");
    successor.idle().await;
    let place = Place::RoundTrip(take_over as u64);
    proxy.inject(proxy::Fault { place, action: Action::Stall(Duration::from_secs(5)) });
    let second = tokio::spawn({
        let successor = successor.clone();
        async move { successor.post("/patient", "k", "cart").await }
    });
    while !proxy.is_stalling() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    owner.world.gate.open(1);
    assert_eq!(first.await.expect("no panic").status, 500, "the owner has done everything and gives the lease back");
    assert!(proxy.is_stalling(), "the take-over is still on its way");
    assert_eq!(second.await.expect("no panic").status, 201);
    owner.assert_once().await;
}

/// A statement of the last owner may still be on its way when the claim has been given back. If it could renew the lease or
/// record a step then, the key would be stuck, or the next attempt would not know of the step.
#[tokio::test]
async fn what_was_given_back_is_out_of_its_last_owners_reach_4_6() {
    let (_database, process) = Process::start().await;
    process.world.fault("after charge", Fault::Wait);
    process.world.fault("in mark", Fault::Fail);
    let failing = tokio::spawn({
        let process = process.clone();
        async move { process.post("/checkout", "k", "cart").await }
    });
    process.world.gate.arrival().await;
    let token: i64 = sqlx::query_scalar("SELECT token FROM idem.idempotency_keys")
        .fetch_one(&process.pool)
        .await
        .expect("the owner's token");
    process.world.gate.open(1);
    assert_eq!(failing.await.expect("no panic").status, 500);
    let late = "UPDATE idem.idempotency_keys SET lease_expires_at = clock_timestamp() + interval '1 minute' \
                WHERE token = $1 AND status IS NULL";
    let renewed = sqlx::query(late).bind(token).execute(&process.pool).await.expect("an update").rows_affected();
    assert_eq!(renewed, 0);
    assert_eq!(process.post("/checkout", "k", "cart").await.status, 201, "at once");
    process.assert_once().await;
}

#[tokio::test]
async fn an_outcome_that_the_database_refuses_gives_the_lease_back() {
    let (_database, process) = Process::start().await;
    let refuse = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$; \
                  CREATE TRIGGER refuse BEFORE UPDATE ON idem.idempotency_keys \
                  FOR EACH ROW WHEN (NEW.status IS NOT NULL) EXECUTE FUNCTION refuse()";
    sqlx::raw_sql(refuse).execute(&process.pool).await.expect("a trigger");
    let refused = process.post("/checkout", "k", "cart").await;
    assert_eq!((refused.status, refused.problem().as_str()), (500, "internal"));
    sqlx::raw_sql("DROP TRIGGER refuse ON idem.idempotency_keys").execute(&process.pool).await.expect("dropped");
    assert_eq!(process.post("/checkout", "k", "cart").await.status, 201, "at once");
    process.assert_once().await;
}

/// That the database was away is no outcome of the operation, even where failures are outcomes.
#[tokio::test]
async fn a_failure_of_the_database_is_never_the_stored_outcome() {
    for path in ["/stubborn", "/refusing"] {
        the_database_is_away_after_the_charge(path).await;
    }
}

async fn the_database_is_away_after_the_charge(path: &'static str) {
    let (database, _) = App::start().await;
    let pool = database.pool_with(PgPoolOptions::new().max_connections(1));
    let builder = Idempotency::builder(pool.clone()).connection_timeout(Duration::from_millis(100));
    let process = Process::with(builder.build().expect("settings"), pool, Arc::default());
    process.world.fault("in charge", Fault::Wait);
    process.world.fault("failed", Fault::Wait);
    let cut = tokio::spawn({
        let process = process.clone();
        async move { process.post(path, "k", "cart").await }
    });
    process.world.gate.arrival().await;
    let held = process.pool.acquire().await.expect("the only connection");
    process.world.gate.open(1);
    process.world.gate.arrival().await;
    drop(held);
    process.world.gate.open(1);
    assert_eq!(cut.await.expect("no panic").status, 503);
    let resumed = process.post(path, "k", "cart").await;
    assert_eq!((resumed.status, resumed.replayed()), (201, false), "{resumed:?}");
    process.assert_once().await;
    // The handler's own failure is stored.
    process.world.fault("in charge", Fault::Fail);
    let failed = process.post(path, "k2", "cart").await;
    process.post(path, "k2", "cart").await.assert_replays(&failed);
}

#[tokio::test]
async fn a_lease_is_renewed_while_its_handler_runs() {
    let (database, process) = Process::start().await;
    let other = Process::over(&database, Arc::clone(&process.world.provider));
    process.world.fault("after create", Fault::Wait);
    let first = tokio::spawn({
        let process = process.clone();
        async move { process.post("/checkout", "k", "cart").await }
    });
    process.world.gate.arrival().await;
    // Longer than the lease of three seconds.
    tokio::time::sleep(Duration::from_millis(3_500)).await;
    assert_eq!(other.post("/checkout", "k", "cart").await.status, 409);
    process.world.gate.open(1);
    assert_eq!(first.await.expect("no panic").status, 201);
    process.assert_once().await;
}

#[tokio::test]
async fn a_renewal_does_not_conflict_with_the_transaction_that_it_is_for() {
    let (_database, process) = Process::start().await;
    let reply = process.post("/slow", "k", "slow").await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!((process.world.runs("in second"), process.count("entries").await), (1, 2));
}

#[tokio::test]
async fn a_deploy_that_changed_the_steps_is_refused_and_nothing_runs() {
    let (_database, process) = Process::start().await;
    process.world.fault("after charge", Fault::Fail);
    assert_eq!(process.post("/checkout", "k", "cart").await.status, 500);
    *process.world.version.lock().unwrap() = 1;
    let calls = *process.world.provider.calls.lock().unwrap();
    for _ in 0..2 {
        let refused = process.post("/checkout", "k", "cart").await;
        assert_eq!((refused.status, refused.problem().as_str()), (500, "internal"));
    }
    let notes = process.count("notes").await;
    assert_eq!((*process.world.provider.calls.lock().unwrap(), notes), (calls, 0));
    *process.world.version.lock().unwrap() = 0;
    assert_eq!(process.post("/checkout", "k", "cart").await.status, 201, "the old code finishes it");
    process.assert_once().await;
}

#[tokio::test]
async fn a_provider_without_keys_is_asked_what_happened() {
    // It happened, and its answer was lost: found, and not made again.
    let (_database, process) = Process::start().await;
    *process.world.provider.lose.lock().unwrap() = 1;
    assert_eq!(process.post("/keyless", "k", "cart").await.status, 500);
    assert_eq!(process.post("/keyless", "k", "cart").await.status, 200);
    assert_eq!((process.world.provider.effects(), process.world.runs("reconcile")), (vec![1], 1));
    // It did not happen: asked, and then made.
    process.world.fault("in charge", Fault::Fail);
    assert_eq!(process.post("/keyless", "k2", "cart").await.status, 500);
    assert_eq!(process.post("/keyless", "k2", "cart").await.status, 200);
    assert_eq!((process.world.provider.effects(), process.world.runs("reconcile")), (vec![1, 1], 2));
    // The recorded answer is not asked for again.
    assert!(process.post("/keyless", "k2", "cart").await.replayed());
    assert_eq!(process.world.runs("reconcile"), 2);
}

#[tokio::test]
async fn mistakes_that_only_a_run_shows_are_errors() {
    let (_database, process) = Process::start().await;
    for text in ["twice", "after a failure"] {
        let reply = process.post("/mistaken", text.replace(' ', "-").as_str(), text).await;
        assert_eq!((reply.status, reply.problem().as_str()), (500, "internal"), "{text}");
    }
    assert_eq!(process.count("idem.idempotency_keys WHERE status IS NOT NULL").await, 0);
    assert_eq!(process.count("entries WHERE text = 'twice'").await, 1);
    assert_eq!(process.count("entries WHERE text = 'follows'").await, 0);
    let swallowed = process.post("/mistaken", "swallow", "swallow").await;
    assert_eq!(swallowed.status, 500, "an attempt whose commit failed cannot claim success: {swallowed:?}");
    assert_eq!(process.count("entries WHERE text = 'aborted'").await, 0);
    let none = process.post("/mistaken", "none", "none").await;
    assert_eq!(none.status, 200);
    process.post("/mistaken", "none", "none").await.assert_replays(&none);
}

/// The constraint's error is the handler's to map, in the first transaction as in any other.
#[tokio::test]
async fn a_transaction_that_its_commit_refuses_is_rolled_back_and_the_handlers_answer_counts() {
    let (_database, process) = Process::start().await;
    let refused = process.post("/mistaken", "refused", "refused at the commit").await;
    assert_eq!(refused.status, 402, "{refused:?}");
    process.post("/mistaken", "refused", "refused at the commit").await.assert_replays(&refused);

    for _ in 0..2 {
        let failed = process.post("/mistaken", "failed", "failed at the commit").await;
        assert_eq!((failed.status, failed.replayed()), (500, false), "{failed:?}");
    }
    for text in ["swallowed at the commit", "swallowed at a later commit"] {
        for _ in 0..2 {
            let swallowed = process.post("/mistaken", text.replace(' ', "-").as_str(), text).await;
            assert_eq!(swallowed.status, 500, "a part that did not happen is no success: {text}: {swallowed:?}");
        }
    }
    assert_eq!(process.count("entries WHERE text = 'deferred'").await, 0);
    assert_eq!(process.count("entries WHERE text = 'stays'").await, 1, "a part that happened is not repeated");
    let held = "idem.idempotency_keys WHERE status IS NULL AND lease_expires_at > clock_timestamp()";
    assert_eq!(process.count(held).await, 0, "no key is held");
}

/// What stopped a part beside its own code is no outcome, whatever the handler makes of it.
#[tokio::test]
async fn an_interruption_is_never_a_stored_refusal() {
    let (_database, process) = Process::start().await;
    for (text, status) in [("conflict", 503), ("later conflict", 503), ("swallowed no JSON", 500)] {
        for _ in 0..2 {
            let reply = process.post("/mistaken", text.replace(' ', "-").as_str(), text).await;
            assert_eq!((reply.status, reply.replayed()), (status, false), "{text}: {reply:?}");
        }
    }
    assert_eq!(process.count("entries WHERE text IN ('conflict', 'no JSON')").await, 0);
    assert_eq!(process.count("idem.idempotency_keys WHERE status IS NOT NULL").await, 0);
    let held = "idem.idempotency_keys WHERE status IS NULL AND lease_expires_at > clock_timestamp()";
    assert_eq!(process.count(held).await, 0, "no key is held");
}

#[tokio::test]
async fn no_statement_of_an_operation_runs_on_a_connection_that_the_pools_hooks_have_not_prepared() {
    let database = TestDatabase::create().await.expect("a database");
    let direct = App::first(&database).await.pool;
    for table in ["entries", "notes", "idem.idempotency_keys"] {
        guard(&direct, table).await;
    }
    let process = Process::over_pool(prepared_pool(&database), Arc::default());
    process.world.fault("in mark", Fault::Fail);
    assert_eq!(process.post("/checkout", "k", "cart").await.status, 500);
    let first = process.post("/checkout", "k", "cart").await;
    assert_eq!(first.status, 201, "{first:?}");
    process.post("/checkout", "k", "cart").await.assert_replays(&first);
    process.assert_once().await;
}

#[tokio::test]
async fn a_request_dropped_at_any_await_has_one_effect_7() {
    let (_database, process) = Process::start().await;
    for polls in 1..8 {
        let key = format!("k{polls}");
        let request =
            request("/checkout", &[("tenant", "a"), ("idempotency-key", &key)], &Cart { text: "cart".to_owned() });
        crate::hang_up::abandon(process.router.clone().oneshot(request), polls).await;
        assert_eq!(process.retry("/checkout", &key, "cart").await.status, 201);
    }
    assert_eq!((process.count("entries").await, process.count("notes").await), (7, 7));
    assert_eq!(process.world.provider.effects(), [1; 7]);
    assert_eq!(process.world.idempotency.shutdown().await, 0);
}
