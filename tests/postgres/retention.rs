//! Keys are remembered for their retention: from completion, by the database's clock, and no longer.

use std::time::Duration;

use futures_util::future::join_all;
use idem_runtime::Idempotency;
use idem_tests::{App, Then, entry};
use sqlx::PgPool;

async fn expire_all(pool: &PgPool) {
    sqlx::query("UPDATE idem.idempotency_keys SET expires_at = clock_timestamp()")
        .execute(pool)
        .await
        .expect("an update");
}

#[tokio::test]
async fn after_its_retention_a_key_runs_again() {
    let (_database, app) = App::start().await;
    let body = entry("again", Then::Created);
    let first = app.post("/forgetful", "k", &body).await;
    app.post("/forgetful", "k", &body).await.assert_replays(&first);
    expire_all(&app.pool).await;
    let second = app.post("/forgetful", "k", &body).await;
    assert_eq!((second.status, second.replayed()), (201, false), "expired but not swept is absent");
    app.post("/forgetful", "k", &body).await.assert_replays(&second);
    assert_eq!((app.entries().await, app.stored().await), (2, 1));
}

#[tokio::test]
async fn an_expired_key_takes_another_payload_and_a_refusal() {
    let (_database, app) = App::start().await;
    app.post("/entries", "k", &entry("first", Then::Created)).await;
    expire_all(&app.pool).await;
    let body = entry("second", Then::Status(402));
    let refused = app.post("/entries", "k", &body).await;
    assert_eq!((refused.status, refused.replayed()), (402, false));
    app.post("/entries", "k", &body).await.assert_replays(&refused);
    expire_all(&app.pool).await;
    // The replay's transaction ends a moment after its answer.
    let mut failed = app.post("/entries", "k", &entry("third", Then::Status(500))).await;
    while failed.status == 409 {
        failed = app.post("/entries", "k", &entry("third", Then::Status(500))).await;
    }
    assert_eq!(failed.status, 500);
    assert_eq!(app.post("/entries", "k", &entry("fourth", Then::Created)).await.status, 201);
    assert_eq!((app.entries().await, app.stored().await), (2, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn duplicates_of_an_expired_key_run_once_while_sweepers_run() {
    let (database, app) = App::start().await;
    let sweeping = [app.idempotency.clone(), App::another(&database).idempotency];
    for round in 0..10 {
        app.post("/entries", "k", &entry("old", Then::Created)).await;
        expire_all(&app.pool).await;
        let before = app.entries().await;
        let processes = [app.clone(), App::another(&database)];
        let posts = (0..20).map(|number| {
            let app = processes[number % 2].clone();
            tokio::spawn(async move { app.post("/entries", "k", &entry("old", Then::Created)).await })
        });
        let sweeps = sweeping.iter().map(|idempotency| idempotency.sweep());
        let (replies, swept) = tokio::join!(join_all(posts), join_all(sweeps));
        let swept: u64 = swept.into_iter().map(|swept| swept.expect("a sweep")).sum();
        assert!(swept <= 1, "round {round}: a live row must not be swept");
        let mut executed = replies.iter().flatten().filter(|reply| reply.status == 201 && !reply.replayed()).count();
        if replies.iter().flatten().all(|reply| reply.status == 409) {
            // The last round's replays may hold the lock for a moment longer: the clients retry, as they are told.
            let mut retried = app.post("/entries", "k", &entry("old", Then::Created)).await;
            while retried.status == 409 {
                retried = app.post("/entries", "k", &entry("old", Then::Created)).await;
            }
            executed += usize::from(!retried.replayed());
        }
        assert_eq!(executed, 1, "round {round}: {replies:?}");
        assert_eq!((app.entries().await, app.stored().await), (before + 1, 1), "round {round}");
    }
}

#[tokio::test]
async fn retention_counts_from_completion_15() {
    let (_database, app) = App::start().await;
    let body = entry("slow", Then::Sleep(1_200));
    let first = app.post("/forgetful", "k", &body).await;
    assert_eq!(first.status, 201);
    // The transaction began longer ago than the retention of a second; the answer has just been given.
    app.post("/forgetful", "k", &body).await.assert_replays(&first);
}

#[tokio::test]
async fn the_sweeper_deletes_what_has_expired_and_nothing_else_17() {
    let (database, app) = App::start().await;
    for number in 0..25 {
        app.post("/entries", &format!("old{number}"), &entry("old", Then::Created)).await;
    }
    expire_all(&app.pool).await;
    for number in 0..5 {
        app.post("/entries", &format!("new{number}"), &entry("new", Then::Created)).await;
    }
    let node = || {
        let builder = Idempotency::builder(database.pool()).sweep_batch(4).sweep_interval(Duration::from_millis(5));
        builder.build().expect("settings").sweeper()
    };
    let nodes = [node(), node(), node()];
    while app.stored().await > 5 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let swept = join_all(nodes.map(idem_runtime::Sweeper::stop)).await;
    assert_eq!(swept.iter().sum::<u64>(), 25, "every row is swept once: {swept:?}");
    assert_eq!(app.stored().await, 5);
}

#[tokio::test]
async fn the_sweeper_outlives_the_databases_absence() {
    let (database, app) = App::start().await;
    app.post("/entries", "k", &entry("old", Then::Created)).await;
    expire_all(&app.pool).await;
    let rename = |from: &str, to: &str| format!("ALTER TABLE idem.{from} RENAME TO {to}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(rename("idempotency_keys", "away"))).execute(&app.pool).await.expect("a rename");
    let builder = Idempotency::builder(database.pool()).sweep_interval(Duration::from_millis(5));
    let sweeper = builder.build().expect("settings").sweeper();
    tokio::time::sleep(Duration::from_millis(50)).await;
    sqlx::raw_sql(sqlx::AssertSqlSafe(rename("away", "idempotency_keys"))).execute(&app.pool).await.expect("a rename");
    while sweeper.swept() < 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(sweeper.stop().await, 1);
}
