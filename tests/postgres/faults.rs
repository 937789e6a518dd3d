//! The database breaks under an operation: nothing is left behind, and the service recovers by itself.

use std::time::Duration;

use idem_runtime::Idempotency;
use idem_testing::proxy::{Action, Fault, Place, Proxy};
use idem_testing::{Postgres, Shutdown, TestDatabase};
use idem_tests::{App, Reply, Then, entry};
use sqlx::postgres::PgPoolOptions;

/// Posts until the answer is no transient one.
async fn retry(app: &App, key: &str, then: impl Fn() -> Then) -> Reply {
    for _ in 0..100 {
        let reply = app.post("/entries", key, &entry("retried", then())).await;
        if ![409, 500, 503].contains(&reply.status) {
            return reply;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the key `{key}` is stuck");
}

#[tokio::test]
async fn a_terminated_backend_leaves_nothing_and_the_key_is_free_1() {
    let (_database, app) = App::start().await;
    // The handler does not notice; the commit does.
    let reply = app.post("/entries", "k", &entry("lost", Then::Terminate)).await;
    assert_eq!((reply.status, reply.problem().as_str()), (503, "unavailable"));
    assert_eq!((app.entries().await, app.stored().await), (0, 0));
    // The handler's next statement notices.
    let held = tokio::spawn({
        let app = app.clone();
        async move { app.post("/entries", "k2", &entry("retried", Then::Wait)).await }
    });
    app.gate.arrival().await;
    let terminated = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                      WHERE datname = current_database() AND state = 'idle in transaction'";
    let count: i64 = sqlx::query_scalar(terminated).fetch_one(&app.pool).await.expect("a count");
    assert_eq!(count, 1);
    app.gate.open(2);
    assert_eq!(held.await.expect("no panic").status, 503);
    assert_eq!(app.entries().await, 0);
    assert_eq!(retry(&app, "k2", || Then::Wait).await.status, 201);
    assert_eq!((app.entries().await, app.stored().await), (1, 1));
}

#[tokio::test]
async fn a_stopped_postgres_is_503_and_then_all_is_well() {
    for shutdown in [Shutdown::Fast, Shutdown::Immediate] {
        let postgres = tokio::task::spawn_blocking(Postgres::private).await.expect("no panic").expect("a server");
        let database = TestDatabase::create_on(&postgres).await.expect("a database");
        let app = App::first(&database).await;
        let pool = app.pool.clone();
        let builder = Idempotency::builder(pool.clone()).connection_timeout(Duration::from_millis(500));
        let app = App::over(pool, builder.build().expect("settings"));
        assert_eq!(app.post("/entries", "before", &entry("before", Then::Created)).await.status, 201);
        let held = tokio::spawn({
            let app = app.clone();
            async move { app.post("/entries", "k", &entry("retried", Then::Wait)).await }
        });
        app.gate.arrival().await;
        let server = postgres.clone();
        tokio::task::spawn_blocking(move || server.stop(shutdown)).await.expect("no panic").expect("stopped");
        app.gate.open(10);
        let cut = held.await.expect("no panic");
        assert_eq!(cut.status, 503, "{cut:?}");
        let away = app.post("/entries", "k", &entry("retried", Then::Wait)).await;
        assert_eq!((away.status, away.problem().as_str(), away.header("retry-after")), (503, "unavailable", "1"));
        let server = postgres.clone();
        tokio::task::spawn_blocking(move || server.start()).await.expect("no panic").expect("started");
        assert_eq!(retry(&app, "k", || Then::Wait).await.status, 201);
        assert!(app.post("/entries", "before", &entry("before", Then::Created)).await.replayed());
        assert_eq!((app.entries().await, app.stored().await), (2, 2));
    }
}

#[tokio::test]
async fn an_owner_that_stalls_past_its_lease_loses_its_transaction_4() {
    let (database, app) = App::start().await;
    let other = App::another(&database);
    let stalled = tokio::spawn({
        let app = app.clone();
        async move { app.post("/hasty", "k", &entry("stalled", Then::Wait)).await }
    });
    app.gate.arrival().await;
    assert_eq!(other.post("/hasty", "k", &entry("stalled", Then::Wait)).await.status, 409);
    // Postgres ends the idle transaction after the lease of one second; then anyone may take over, in any process.
    other.gate.open(1);
    let mut successor = other.post("/hasty", "k", &entry("stalled", Then::Wait)).await;
    while successor.status == 409 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        successor = other.post("/hasty", "k", &entry("stalled", Then::Wait)).await;
    }
    assert_eq!((successor.status, successor.replayed()), (201, false));
    app.gate.open(1);
    stalled.await.expect("no panic").assert_replays(&successor);
    assert_eq!((app.entries().await, app.stored().await), (1, 1));
}

#[tokio::test]
async fn the_stalled_owners_process_takes_over_from_itself_5() {
    let (_database, app) = App::start().await;
    let stalled = tokio::spawn({
        let app = app.clone();
        async move { app.post("/hasty", "k", &entry("stalled", Then::Wait)).await }
    });
    app.gate.arrival().await;
    let successor = tokio::spawn({
        let app = app.clone();
        async move {
            loop {
                let reply = app.post("/hasty", "k", &entry("stalled", Then::Wait)).await;
                if reply.status != 409 {
                    return reply;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    });
    app.gate.arrival().await;
    // Both tasks of this process stand at the gate; only the second one's transaction is alive.
    app.gate.open(2);
    let (stalled, successor) = (stalled.await.expect("no panic"), successor.await.expect("no panic"));
    assert_eq!(successor.status, 201, "{successor:?}");
    assert!(stalled.status == 503 || stalled.replayed(), "{stalled:?}");
    assert_eq!((app.entries().await, app.stored().await), (1, 1));
}

#[tokio::test]
async fn tables_that_are_missing_are_a_500_for_the_log() {
    let database = TestDatabase::create().await.expect("a database");
    let app = App::another(&database);
    idem_tests::create_tables(&app.pool).await;
    let reply = app.post("/entries", "k", &entry("never", Then::Created)).await;
    assert_eq!((reply.status, reply.problem().as_str()), (500, "internal"));
    assert!(!String::from_utf8_lossy(&reply.body).contains("relation"), "a client learns nothing of the insides");
    assert_eq!(app.entries().await, 0);
    app.idempotency.migrate().await.expect("the migrations");
    assert_eq!(app.post("/entries", "k", &entry("now", Then::Created)).await.status, 201);
}

/// A network that swallows messages never says so.
#[tokio::test]
async fn a_silent_network_is_an_answer_within_the_limits() {
    // Nothing stays prepared: the look-up and the handler's two queries take two round trips each.
    const BEGIN: u64 = 1;
    const LOOK_UP: u64 = 3;
    const COMMIT: u64 = 8;
    let places = [Place::RoundTrip(BEGIN), Place::Answer(BEGIN), Place::RoundTrip(LOOK_UP), Place::Answer(LOOK_UP)];
    let places = places.into_iter().chain([Place::RoundTrip(COMMIT), Place::Answer(COMMIT)]);
    let (database, direct) = App::start().await;
    let proxy = Proxy::start(&database.url()).expect("a proxy");
    let pool = proxy.pool_with(PgPoolOptions::new().max_connections(2));
    let builder = Idempotency::builder(pool.clone()).connection_timeout(Duration::from_millis(300));
    let builder = builder.lease(Duration::from_secs(1)).pool_checks(false).prepared_statements(false);
    let app = App::over(pool.clone(), builder.build().expect("settings"));
    for (number, place) in places.enumerate() {
        let warm = app.post("/entries", &format!("warm{number}"), &entry("warm", Then::Created)).await;
        assert_eq!(warm.status, 201, "{warm:?}");
        while pool.num_idle() < pool.size() as usize {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        proxy.inject(Fault { place, action: Action::Stall(Duration::from_secs(3_600)) });
        let key = format!("k{number}");
        let silent = entry("retried", Then::Created);
        let answered = tokio::time::timeout(Duration::from_secs(10), app.post("/entries", &key, &silent));
        let answered = answered.await.unwrap_or_else(|_| panic!("{place:?}: no answer: {:?}", proxy.met()));
        assert!([201, 409, 503].contains(&answered.status), "{place:?}: {answered:?}");
        let met = proxy.met().unwrap_or_else(|| panic!("{place:?} was not met"));
        let ours = ["BEGIN", "SELECT $1::pg_catalog", "SELECT CASE WHEN pg_catalog"];
        assert!(ours.iter().any(|start| met.statement.starts_with(start)), "{place:?} is {met:?}");
        let last = retry(&app, &key, || Then::Created).await;
        assert_eq!(last.status, 201, "{place:?}: {last:?}");
    }
    let retried = "SELECT count(*) FROM entries WHERE text = 'retried'";
    let count: i64 = sqlx::query_scalar(retried).fetch_one(&direct.pool).await.expect("a count");
    assert_eq!(count, 6, "each once");
}
