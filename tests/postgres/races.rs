//! Two of us are here: duplicates at the same time, in one process and in several.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use idem_runtime::Idempotency;
use idem_testing::TestDatabase;
use idem_tests::{App, Reply, Then, entry};
use sqlx::postgres::PgPoolOptions;
use tokio::sync::Barrier;

/// Sends one request `count` times at once, spread over `apps`.
async fn storm(apps: &[App], count: usize, path: &'static str, key: &str) -> Vec<Reply> {
    let barrier = Arc::new(Barrier::new(count));
    let requests = (0..count).map(|number| {
        let (app, barrier, key) = (apps[number % apps.len()].clone(), Arc::clone(&barrier), key.to_owned());
        tokio::spawn(async move {
            barrier.wait().await;
            app.post(path, &key, &entry("storm", Then::Created)).await
        })
    });
    join_all(requests).await.into_iter().map(|reply| reply.expect("no panic")).collect()
}

/// One execution; everyone else has 409 or the replay; never 5xx.
fn assert_one_execution(replies: &[Reply]) {
    let executed: Vec<_> = replies.iter().filter(|reply| reply.status == 201 && !reply.replayed()).collect();
    assert_eq!(executed.len(), 1, "{replies:?}");
    for reply in replies {
        match reply.status {
            201 if reply.replayed() => reply.assert_replays(executed[0]),
            201 => {}
            409 => assert_eq!((reply.problem().as_str(), reply.header("retry-after")), ("in-flight", "1")),
            other => panic!("{other} is no answer for a duplicate: {reply:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn duplicates_at_once_in_one_process_13() {
    let (_database, app) = App::start().await;
    for (round, count) in [2, 100, 2, 100, 2].into_iter().enumerate() {
        let replies = storm(std::slice::from_ref(&app), count, "/entries", &format!("k{round}")).await;
        assert_one_execution(&replies);
        assert_eq!(app.entries().await, round as i64 + 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn duplicates_at_once_in_four_processes_13() {
    let (database, app) = App::start().await;
    let mut apps = vec![app.clone()];
    apps.extend((0..3).map(|_| App::another(&database)));
    for (round, count) in [4, 100, 4, 100, 4, 4, 4].into_iter().enumerate() {
        let replies = storm(&apps, count, "/entries", &format!("k{round}")).await;
        assert_one_execution(&replies);
        assert_eq!(app.entries().await, round as i64 + 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn under_an_older_snapshot_the_primary_key_judges() {
    let (database, app) = App::start().await;
    let mut apps = vec![app.clone()];
    apps.extend((0..3).map(|_| App::another(&database)));
    for (round, path) in ["/repeatable", "/serializable", "/repeatable", "/serializable"].into_iter().enumerate() {
        let replies = storm(&apps, 40, path, &format!("k{round}")).await;
        let executed = replies.iter().filter(|reply| reply.status == 201 && !reply.replayed()).count();
        assert_eq!(executed, 1, "{replies:?}");
        // A serialization failure is an honest 503: nothing was left behind, and a retry gets the replay.
        assert!(replies.iter().all(|reply| [201, 409, 503].contains(&reply.status)), "{replies:?}");
        assert_eq!(app.entries().await, round as i64 + 1);
    }
}

#[tokio::test]
async fn a_duplicate_in_flight_is_answered_at_once() {
    let (database, app) = App::start().await;
    let other = App::another(&database);
    let body = entry("held", Then::Wait);
    let first = tokio::spawn({
        let app = app.clone();
        async move { app.post("/entries", "k", &entry("held", Then::Wait)).await }
    });
    app.gate.arrival().await;
    for process in [&app, &other] {
        let reply =
            tokio::time::timeout(Duration::from_secs(2), process.post("/entries", "k", &body)).await.expect("at once");
        assert_eq!((reply.status, reply.problem().as_str(), reply.header("retry-after")), (409, "in-flight", "1"));
    }
    let mismatch = app.post("/entries", "k", &entry("other", Then::Created)).await;
    assert_eq!(mismatch.status, 422, "in one process a mismatch shows in flight, too");
    app.gate.open(1);
    let first = first.await.expect("no panic");
    assert_eq!(first.status, 201);
    other.post("/entries", "k", &body).await.assert_replays(&first);
    assert_eq!(app.entries().await, 1);
}

#[tokio::test]
async fn a_waiting_duplicate_gets_the_first_ones_answer() {
    let (database, app) = App::start().await;
    let other = App::another(&database);
    let post = |process: &App| {
        let process = process.clone();
        tokio::spawn(async move { process.post("/patient", "k", &entry("held", Then::Wait)).await })
    };
    let first = post(&app);
    app.gate.arrival().await;
    let waiting = [post(&app), post(&app), post(&other)];
    let impatient = app.post("/impatient", "k2", &entry("short", Then::Created)).await;
    assert_eq!(impatient.status, 201, "other keys are not held up");
    app.gate.open(1);
    let first = first.await.expect("no panic");
    assert_eq!((first.status, first.replayed()), (201, false));
    for reply in waiting {
        reply.await.expect("no panic").assert_replays(&first);
    }
    assert_eq!(app.entries().await, 2);
}

#[tokio::test]
async fn a_waiting_duplicate_runs_when_the_first_one_is_released_or_gives_up_in_time() {
    let (_database, app) = App::start().await;
    let post = |path: &'static str, then: Then| {
        let app = app.clone();
        tokio::spawn(async move { app.post(path, "k", &entry("held", then)).await })
    };
    let first = post("/impatient", Then::Wait);
    app.gate.arrival().await;
    let reply = post("/impatient", Then::Wait).await.expect("no panic");
    assert_eq!(reply.status, 409, "the time is up");
    first.abort();
    app.gate.open(1);
    // The client hung up; the operation went on.
    let mut last = app.post("/impatient", "k", &entry("held", Then::Wait)).await;
    while last.status == 409 {
        last = app.post("/impatient", "k", &entry("held", Then::Wait)).await;
    }
    assert!(last.replayed());
    assert_eq!(app.entries().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn five_hundred_waiters_hold_no_connection() {
    let database = TestDatabase::create().await.expect("a database");
    App::first(&database).await;
    let pool = database.pool_with(PgPoolOptions::new().max_connections(5));
    let app = App::over(pool.clone(), Idempotency::new(pool.clone()));
    let first = tokio::spawn({
        let app = app.clone();
        async move { app.post("/patient", "k", &entry("held", Then::Wait)).await }
    });
    app.gate.arrival().await;
    let waiting: Vec<_> = (0..500)
        .map(|_| {
            let app = app.clone();
            tokio::spawn(async move { app.post("/patient", "k", &entry("held", Then::Wait)).await })
        })
        .collect();
    // Others are served while they wait.
    for number in 0..20 {
        let reply = app.post("/entries", &format!("other{number}"), &entry("other", Then::Created)).await;
        assert_eq!(reply.status, 201);
    }
    assert!(pool.size() <= 5);
    app.gate.open(1);
    let first = first.await.expect("no panic");
    for reply in waiting {
        reply.await.expect("no panic").assert_replays(&first);
    }
    assert_eq!(app.entries().await, 21);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_storm_on_one_key_costs_one_connection() {
    let database = TestDatabase::create().await.expect("a database");
    App::first(&database).await;
    let pool = database.pool_with(PgPoolOptions::new().max_connections(5));
    let app = App::over(pool.clone(), Idempotency::new(pool.clone()));
    let first = tokio::spawn({
        let app = app.clone();
        async move { app.post("/entries", "k", &entry("held", Then::Wait)).await }
    });
    app.gate.arrival().await;
    let body = entry("held", Then::Wait);
    let duplicates = join_all((0..1_000).map(|_| app.post("/entries", "k", &body))).await;
    assert!(duplicates.iter().all(|reply| reply.status == 409));
    assert_eq!(pool.size(), 1, "duplicates in flight in this process do not touch the database");
    app.gate.open(1);
    assert_eq!(first.await.expect("no panic").status, 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ten_serializable_writers_on_distinct_keys_all_succeed_within_a_few_retries_12() {
    let (_database, app) = App::start().await;
    let barrier = Arc::new(Barrier::new(10));
    let writers = (0..10).map(|number| {
        let (app, barrier) = (app.clone(), Arc::clone(&barrier));
        tokio::spawn(async move {
            barrier.wait().await;
            for attempt in 1..=10_u32 {
                let reply = app.post("/serializable", &format!("k{number}"), &entry("shared", Then::Count)).await;
                if reply.status == 201 {
                    return attempt;
                }
                assert!([409, 503].contains(&reply.status), "{reply:?}");
                assert_eq!(reply.header("retry-after"), "1");
                tokio::time::sleep(Duration::from_millis(u64::from(attempt) * 10 * (number + 1))).await;
            }
            panic!("writer {number} never got through");
        })
    });
    join_all(writers).await.into_iter().for_each(|attempts| assert!(attempts.expect("no panic") <= 10));
    assert_eq!((app.entries().await, app.stored().await), (10, 10));
}
