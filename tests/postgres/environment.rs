//! Whatever the database looks like: other schemas, other applications, narrow roles, odd session settings.

use std::time::Duration;

use idem_runtime::{Error, Idempotency};
use idem_testing::TestDatabase;
use idem_tests::{App, Then, entry};
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, SqlSafeStr};

async fn answers(app: &App) {
    let body = entry("environment", Then::Created);
    let before = app.entries().await;
    let (key, refused_key) = (format!("k{before}"), format!("r{before}"));
    let first = app.post("/entries", &key, &body).await;
    assert_eq!(first.status, 201, "{first:?}");
    app.post("/entries", &key, &body).await.assert_replays(&first);
    assert_eq!(app.post("/entries", &key, &entry("other", Then::Created)).await.status, 422);
    let refused = entry("refused", Then::Status(402));
    let first = app.post("/entries", &refused_key, &refused).await;
    app.post("/entries", &refused_key, &refused).await.assert_replays(&first);
    assert_eq!(app.entries().await, before + 1);
}

#[tokio::test]
async fn migrations_live_beside_the_host_applications() {
    let database = TestDatabase::create().await.expect("a database");
    let pool = database.pool();
    let host = || {
        let sql = "CREATE TABLE host (id bigint)".into_sql_str();
        Migrator::with_migrations(vec![Migration::new(1, "host".into(), MigrationType::Simple, sql, false)])
    };
    host().run(&pool).await.expect("the host's migrations before ours");
    let app = App::first(&database).await;
    host().run(&pool).await.expect("the host's migrations after ours");
    app.idempotency.migrate().await.expect("a second time changes nothing");
    let applied: i64 =
        sqlx::query_scalar("SELECT count(*) FROM public._sqlx_migrations").fetch_one(&pool).await.expect("a count");
    assert_eq!(applied, 1, "ours are not among the host's");
    answers(&app).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_processes_migrate_at_once() {
    let database = TestDatabase::create().await.expect("a database");
    let migrations = (0..8).map(|_| {
        let idempotency = Idempotency::new(database.pool());
        tokio::spawn(async move { idempotency.migrate().await })
    });
    for migrated in futures_util::future::join_all(migrations).await {
        migrated.expect("no panic").expect("the migrations");
    }
}

/// A snapshot that is older than the lock does not see what its last holder created.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_processes_migrate_at_once_under_an_older_snapshot() {
    for isolation in ["repeatable read", "serializable"] {
        let database = TestDatabase::create().await.expect("a database");
        let pool = || {
            let options = database.connect_options().options([("default_transaction_isolation", isolation)]);
            PgPoolOptions::new().connect_lazy_with(options)
        };
        let migrations = (0..8).map(|_| {
            let idempotency = Idempotency::new(pool());
            tokio::spawn(async move { idempotency.migrate().await })
        });
        for migrated in futures_util::future::join_all(migrations).await {
            migrated.expect("no panic").expect(isolation);
        }
    }
}

#[tokio::test]
async fn a_failed_migration_leaves_nothing_and_holds_no_lock() {
    let database = TestDatabase::create().await.expect("a database");
    let pool = database.pool_with(PgPoolOptions::new().max_connections(1));
    let idempotency = Idempotency::new(pool.clone());
    sqlx::raw_sql("CREATE SCHEMA idem; CREATE TABLE idem.idempotency_keys ()")
        .execute(&pool)
        .await
        .expect("an obstacle");
    let failed = idempotency.migrate().await.expect_err("the obstacle");
    assert!(matches!(failed, Error::Migrate(_)), "{failed}");
    let locks: i64 = sqlx::query_scalar("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")
        .fetch_one(&pool)
        .await
        .expect("a count");
    assert_eq!(locks, 0);
    sqlx::raw_sql("DROP SCHEMA idem CASCADE").execute(&pool).await.expect("the obstacle removed");
    idempotency.migrate().await.expect("the migrations");
}

#[tokio::test]
async fn two_applications_share_a_database_through_two_schemas() {
    let database = TestDatabase::create().await.expect("a database");
    let app = App::first(&database).await;
    let other = Idempotency::builder(database.pool()).schema("other \"app\"").build().expect("settings");
    other.migrate().await.expect("the migrations");
    let other = App::over(database.pool(), other);
    answers(&app).await;
    answers(&other).await;
    // Their keys in flight do not meet, either.
    let held = tokio::spawn({
        let app = app.clone();
        async move { app.post("/entries", "held", &entry("held", Then::Wait)).await }
    });
    app.gate.arrival().await;
    assert_eq!(other.post("/entries", "held", &entry("held", Then::Created)).await.status, 201);
    app.gate.open(1);
    assert_eq!(held.await.expect("no panic").status, 201);
}

#[tokio::test]
async fn a_role_with_usage_and_dml_suffices_at_run_time() {
    let database = TestDatabase::create().await.expect("a database");
    let app = App::first(&database).await;
    let role = format!("{}_narrow", database.name());
    let grants = format!(
        "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA idem TO {role}; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA idem TO {role}; \
         GRANT SELECT, INSERT ON entries TO {role}; GRANT USAGE ON SEQUENCE entries_id_seq TO {role}"
    );
    sqlx::raw_sql(AssertSqlSafe(grants)).execute(&app.pool).await.expect("the grants");
    let pool = PgPoolOptions::new().connect_lazy_with(database.connect_options().username(&role));
    let narrow = App::over(pool.clone(), Idempotency::new(pool));
    answers(&narrow).await;
    assert_eq!(narrow.idempotency.sweep().await.expect("a sweep"), 0);
    let dropped = format!("DROP OWNED BY {role}; DROP ROLE {role}");
    sqlx::raw_sql(AssertSqlSafe(dropped)).execute(&app.pool).await.expect("the role dropped");
}

#[tokio::test]
async fn odd_session_settings_change_nothing() {
    let database = TestDatabase::create().await.expect("a database");
    App::first(&database).await;
    for settings in [
        [("timezone", "Pacific/Kiritimati"), ("search_path", "public")],
        [("search_path", "pg_temp, public"), ("standard_conforming_strings", "off")],
        [("default_transaction_isolation", "repeatable read"), ("bytea_output", "escape")],
        [("default_transaction_isolation", "serializable"), ("datestyle", "German")],
        [("default_transaction_read_only", "off"), ("intervalstyle", "sql_standard")],
        [("default_transaction_deferrable", "on"), ("lock_timeout", "1s")],
    ] {
        let options = database.connect_options().options(settings);
        let pool = PgPoolOptions::new().connect_lazy_with(options);
        let app = App::over(pool.clone(), Idempotency::new(pool));
        answers(&app).await;
    }
}

#[tokio::test]
async fn a_bad_setting_fails_at_build_with_its_name_2() {
    let pool = TestDatabase::create().await.expect("a database").pool();
    let zero = Duration::ZERO;
    let cases: Vec<(&str, Result<Idempotency, Error>)> = vec![
        ("schema", Idempotency::builder(pool.clone()).schema("").build()),
        ("schema", Idempotency::builder(pool.clone()).schema("s".repeat(64)).build()),
        ("header", Idempotency::builder(pool.clone()).header("not a header").build()),
        ("replay_header", Idempotency::builder(pool.clone()).replay_header("").build()),
        ("mismatch_status", Idempotency::builder(pool.clone()).mismatch_status(400).build()),
        ("problem_base_url", Idempotency::builder(pool.clone()).problem_base_url("/problems").build()),
        ("lease", Idempotency::builder(pool.clone()).lease(zero).build()),
        ("lease", Idempotency::builder(pool.clone()).lease(Duration::MAX).build()),
        ("retry_after", Idempotency::builder(pool.clone()).retry_after(zero).build()),
        ("connection_timeout", Idempotency::builder(pool.clone()).connection_timeout(zero).build()),
        ("response_limit", Idempotency::builder(pool.clone()).response_limit(usize::MAX).build()),
        ("never_store", Idempotency::builder(pool.clone()).never_store([42]).build()),
        ("shutdown_limit", Idempotency::builder(pool.clone()).shutdown_limit(zero).build()),
        ("sweep_interval", Idempotency::builder(pool.clone()).sweep_interval(zero).build()),
        ("sweep_batch", Idempotency::builder(pool.clone()).sweep_batch(0).build()),
    ];
    for (name, built) in cases {
        let error = built.expect_err(name);
        assert!(matches!(&error, Error::Setting { name: setting, .. } if *setting == name), "{name}: {error}");
        assert!(error.to_string().starts_with(&format!("`{name}` must")), "{error}");
    }
}

#[tokio::test]
async fn settings_change_what_they_say() {
    let (database, _) = App::start().await;
    let pool = database.pool();
    let builder = Idempotency::builder(pool.clone())
        .header("X-Request-Key")
        .replay_header("X-Replayed")
        .mismatch_status(409)
        .problem_base_url("https://api.example/problems#")
        .never_store([404])
        .response_limit(100);
    let app = App::over(pool, builder.build().expect("settings"));
    let post = |key: &'static str, then: Then| {
        app.send(idem_tests::request("/entries", &[("tenant", "a"), ("x-request-key", key)], &entry("set", then)))
    };
    assert_eq!(post("k", Then::Created).await.status, 201);
    let replay = post("k", Then::Created).await;
    assert_eq!((replay.status, replay.header("x-replayed"), replay.replayed()), (201, "true", false));
    let mismatch = post("k", Then::Status(402)).await;
    assert_eq!((mismatch.status, mismatch.problem().as_str()), (409, "key-reused"));
    assert_eq!(mismatch.json()["type"], "https://api.example/problems#key-reused");
    assert_eq!(mismatch.header("retry-after"), "", "a mismatch is not in flight");
    for _ in 0..2 {
        assert_eq!(post("never", Then::Status(404)).await.header("x-replayed"), "");
    }
    assert_eq!(post("large", Then::Large(101)).await.status, 500);
    let missing = app.post("/entries", "k", &entry("set", Then::Created)).await;
    assert!(missing.json()["detail"].as_str().expect("a detail").contains("x-request-key"), "{missing:?}");
}
