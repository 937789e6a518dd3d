//! One request, one connection: a full pool is a queue and never a deadlock, and what goes back to it is clean.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use idem_runtime::Idempotency;
use idem_testing::TestDatabase;
use idem_tests::{App, Reply, Then, entry, request};
use sqlx::postgres::PgPoolOptions;
use sqlx::{PgConnection, PgPool};

async fn with_pool_of(size: u32) -> (TestDatabase, App) {
    let database = TestDatabase::create().await.expect("a database");
    App::first(&database).await;
    let pool = database.pool_with(PgPoolOptions::new().max_connections(size));
    let app = App::over(pool.clone(), Idempotency::new(pool));
    (database, app)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn forty_requests_through_one_and_five_connections_10() {
    for size in [1, 5] {
        let (_database, app) = with_pool_of(size).await;
        // Twenty operations, each sent twice.
        let requests = (0..40).map(|number| {
            let app = app.clone();
            tokio::spawn(async move {
                app.post("/entries", &format!("k{}", number / 2), &entry("each", Then::Sleep(5))).await
            })
        });
        let replies = tokio::time::timeout(Duration::from_secs(20), join_all(requests)).await.expect("no hang");
        for reply in replies {
            let reply = reply.expect("no panic");
            assert!([201, 409].contains(&reply.status), "pool of {size}: {reply:?}");
        }
        assert_eq!(app.entries().await, 20);
        let replays = (0..40).map(|number| {
            let app = app.clone();
            tokio::spawn(async move {
                app.post("/entries", &format!("k{}", number / 2), &entry("each", Then::Sleep(5))).await
            })
        });
        for reply in tokio::time::timeout(Duration::from_secs(20), join_all(replays)).await.expect("no hang") {
            assert!(reply.expect("no panic").replayed(), "pool of {size}");
        }
    }
}

#[tokio::test]
async fn an_exhausted_pool_is_503_and_nothing_runs() {
    let database = TestDatabase::create().await.expect("a database");
    App::first(&database).await;
    let pool = database.pool_with(PgPoolOptions::new().max_connections(1));
    let builder = Idempotency::builder(pool.clone()).connection_timeout(Duration::from_millis(100));
    let app = App::over(pool.clone(), builder.retry_after(Duration::from_millis(1_500)).build().expect("settings"));
    let held = pool.acquire().await.expect("the connection");
    let started = Instant::now();
    let reply = app.post("/entries", "k", &entry("never", Then::Created)).await;
    assert_eq!((reply.status, reply.problem().as_str(), reply.header("retry-after")), (503, "unavailable", "2"));
    assert!(started.elapsed() < Duration::from_secs(2));
    drop(held);
    assert_eq!(app.post("/entries", "k", &entry("never", Then::Created)).await.status, 201);
    assert_eq!(app.entries().await, 1);
}

/// The only connection is outside any transaction, and sqlx knows it.
async fn assert_clean(app: &App, ending: &str) {
    let acquired = tokio::time::timeout(Duration::from_secs(5), app.pool.acquire()).await;
    let mut connection = acquired.expect("no leak").expect("a connection");
    assert!(!sqlx::Connection::is_in_transaction(&*connection), "{ending}");
    // Two statements outside a transaction have different transaction ids; inside one, the same.
    let mut ids = Vec::new();
    for _ in 0..2 {
        let id: String = sqlx::query_scalar("SELECT pg_current_xact_id()::text")
            .fetch_one(&mut *connection)
            .await
            .expect("a clean session");
        ids.push(id);
    }
    assert_ne!(ids[0], ids[1], "{ending}");
    let claim: Option<String> = sqlx::query_scalar("SELECT nullif(current_setting('idem.claim', true), '')")
        .fetch_one(&mut *connection)
        .await
        .expect("a setting");
    assert_eq!(claim, None, "{ending}");
}

fn endings() -> [Then; 18] {
    [
        Then::Created,
        Then::Status(402),
        Then::Status(500),
        Then::Duplicate,
        Then::Savepoint,
        Then::LeakSavepoint,
        Then::Swallow,
        Then::Conflict(409),
        Then::Conflict(500),
        Then::Deferred,
        Then::Escape(201),
        Then::EscapeAndBegin(201),
        Then::Escape(402),
        Then::EscapeAndBegin(402),
        Then::Escape(500),
        Then::Stream,
        Then::Terminate,
        Then::Panic,
    ]
}

#[tokio::test]
async fn every_ending_gives_a_clean_connection_back_9() {
    let (_database, app) = with_pool_of(1).await;
    for (number, then) in endings().into_iter().enumerate() {
        let (ending, key) = (format!("{then:?}"), format!("k{number}"));
        let sent = tokio::spawn({
            let app = app.clone();
            async move { app.post("/entries", &key, &entry("any", then)).await }
        });
        let _ = sent.await;
        assert_clean(&app, &ending).await;
    }
}

#[tokio::test]
async fn every_ending_without_a_key_gives_a_clean_connection_back_9() {
    let (_database, app) = with_pool_of(1).await;
    for then in endings() {
        let ending = format!("{then:?}");
        let request = request("/optional", &[("tenant", "a")], &entry("any", then));
        let sent = tokio::spawn({
            let app = app.clone();
            async move { app.send(request).await }
        });
        let _ = sent.await;
        assert_clean(&app, &ending).await;
    }
}

/// They share one look-up, and must not wait for one after the other when it fails.
#[tokio::test]
async fn duplicates_of_one_key_wait_for_a_connection_together() {
    let database = TestDatabase::create().await.expect("a database");
    App::first(&database).await;
    let pool = database.pool_with(PgPoolOptions::new().max_connections(1));
    let builder = Idempotency::builder(pool.clone()).connection_timeout(Duration::from_millis(300));
    let app = App::over(pool.clone(), builder.build().expect("settings"));
    let _held = pool.acquire().await.expect("the connection");
    let duplicates = (0..20).map(|_| {
        let app = app.clone();
        async move { app.post("/entries", "k", &entry("never", Then::Created)).await }
    });
    let started = Instant::now();
    for reply in join_all(duplicates).await {
        assert_eq!((reply.status, reply.problem().as_str()), (503, "unavailable"));
    }
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
}

#[tokio::test]
async fn connections_that_died_in_the_pool_are_not_noticed() {
    for checks in [true, false] {
        let database = TestDatabase::create().await.expect("a database");
        let direct = App::first(&database).await.pool;
        let pool = database.pool_with(PgPoolOptions::new().max_connections(3));
        let builder = Idempotency::builder(pool.clone()).pool_checks(checks);
        let app = App::over(pool, builder.build().expect("settings"));
        for round in 0..3 {
            // Several at once, so that the pool has several connections to lose.
            let keys = (0..3).map(|number| format!("k{round}-{number}"));
            let posted = join_all(keys.clone().map(|key| app_post(app.clone(), key))).await;
            assert!(posted.iter().all(|reply| reply.status == 201), "pool checks: {checks}: {posted:?}");
            kill_idle(&direct).await;
            for (key, first) in keys.zip(&posted) {
                app_post(app.clone(), key).await.assert_replays(first);
                kill_idle(&direct).await;
            }
        }
        assert_eq!((app.entries().await, app.stored().await), (9, 9));
    }
}

async fn app_post(app: App, key: String) -> Reply {
    app.post("/entries", &key, &entry("once", Then::Created)).await
}

/// Ends the sessions of everybody else, and waits until they are gone.
async fn kill_idle(direct: &PgPool) {
    let kill = "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity \
                WHERE datname = current_database() AND pid <> pg_backend_pid()";
    let _: i64 = sqlx::query_scalar(kill).fetch_one(direct).await.expect("a count");
}

/// A pool whose hooks prepare its connections, and whose preparation ends with each use.
pub(crate) fn prepared_pool(database: &TestDatabase) -> PgPool {
    async fn prepare(connection: &mut PgConnection, prepared: &'static str) -> sqlx::Result<bool> {
        let set = "SELECT set_config('app.prepared', $1, false)";
        sqlx::query(set).bind(prepared).execute(connection).await.map(|_| true)
    }
    let options = PgPoolOptions::new()
        .max_connections(2)
        .after_connect(|connection, _| Box::pin(async { prepare(connection, "yes").await.map(drop) }))
        .before_acquire(|connection, _| Box::pin(prepare(connection, "yes")))
        .after_release(|connection, _| Box::pin(prepare(connection, "no")));
    database.pool_with(options)
}

/// Has a table take rows from prepared connections only.
pub(crate) async fn guard(pool: &PgPool, table: &str) {
    let check = "CHECK (coalesce(current_setting('app.prepared', true), '') = 'yes')";
    let guard = sqlx::AssertSqlSafe(format!("ALTER TABLE {table} ADD {check}"));
    sqlx::query(guard).execute(pool).await.expect("a constraint");
}

/// Row-level security and its like rest on such hooks.
#[tokio::test]
async fn no_statement_runs_on_a_connection_that_the_pools_hooks_have_not_prepared() {
    let database = TestDatabase::create().await.expect("a database");
    let direct = App::first(&database).await.pool;
    guard(&direct, "entries").await;
    guard(&direct, "idem.idempotency_keys").await;
    let pool = prepared_pool(&database);
    let app = App::over(pool.clone(), Idempotency::new(pool));
    for key in ["a", "b", "c"] {
        let first = app.post("/entries", key, &entry("prepared", Then::Created)).await;
        assert_eq!(first.status, 201, "{first:?}");
        app.post("/entries", key, &entry("prepared", Then::Created)).await.assert_replays(&first);
    }
    assert_eq!(app.stored().await, 3);
}
