//! Which endings are stored, which leave nothing, and that the database agrees.

use futures_util::FutureExt;
use idem_tests::{App, Then, entry};
use std::panic::AssertUnwindSafe;

#[tokio::test]
async fn a_refusal_rolls_the_writes_back_and_is_replayed_25() {
    let (_database, app) = App::start().await;
    for (key, status) in [("a", 402), ("b", 404), ("c", 422)] {
        let body = entry("refused", Then::Status(status));
        let first = app.post("/entries", key, &body).await;
        assert_eq!((first.status, first.replayed()), (status, false));
        app.post("/entries", key, &body).await.assert_replays(&first);
    }
    assert_eq!((app.entries().await, app.stored().await), (0, 3));
}

#[tokio::test]
async fn a_corrected_retry_needs_a_new_key_24() {
    let (_database, app) = App::start().await;
    assert_eq!(app.post("/entries", "k", &entry("wrong", Then::Status(402))).await.status, 402);
    assert_eq!(app.post("/entries", "k", &entry("right", Then::Created)).await.status, 422);
    assert_eq!(app.post("/entries", "k2", &entry("right", Then::Created)).await.status, 201);
}

#[tokio::test]
async fn a_refusal_is_stored_though_the_handlers_own_error_aborted_the_transaction() {
    let (_database, app) = App::start().await;
    let body = entry("taken", Then::Duplicate);
    let first = app.post("/entries", "k", &body).await;
    assert_eq!((first.status, first.body.as_ref()), (409, b"taken".as_slice()));
    app.post("/entries", "k", &body).await.assert_replays(&first);
    assert_eq!((app.entries().await, app.stored().await), (0, 1));
}

#[tokio::test]
async fn savepoints_work_inside() {
    let (_database, app) = App::start().await;
    let body = entry("saved", Then::Savepoint);
    let first = app.post("/entries", "k", &body).await;
    assert_eq!(first.status, 201);
    app.post("/entries", "k", &body).await.assert_replays(&first);
    assert_eq!(app.entries().await, 1);
}

#[tokio::test]
async fn a_failure_leaves_nothing_and_the_next_retry_runs_23() {
    let (_database, app) = App::start().await;
    // Not to be stored: 5xx, and the statuses that say "not now".
    for status in [500, 502, 503, 408, 425, 429] {
        let body = entry("failed", Then::Status(status));
        for _ in 0..2 {
            let reply = app.post("/entries", "k", &body).await;
            assert_eq!((reply.status, reply.replayed()), (status, false));
        }
        assert_eq!((app.entries().await, app.stored().await), (0, 0), "{status}");
    }
    assert_eq!(app.post("/entries", "k", &entry("other", Then::Created)).await.status, 201, "the key is free");
}

#[tokio::test]
async fn failures_are_replayed_where_the_handler_says_so() {
    let (_database, app) = App::start().await;
    let body = entry("failed", Then::Status(500));
    let first = app.post("/stubborn", "k", &body).await;
    app.post("/stubborn", "k", &body).await.assert_replays(&first);
    assert_eq!((app.entries().await, app.stored().await), (0, 1));
    let busy = entry("busy", Then::Status(429));
    assert!(!app.post("/stubborn", "k2", &busy).await.replayed());
    assert!(!app.post("/stubborn", "k2", &busy).await.replayed());
}

#[tokio::test]
async fn a_panic_leaves_nothing_and_is_still_a_panic_3() {
    let (_database, app) = App::start().await;
    let body = entry("panics", Then::Panic);
    for _ in 0..2 {
        let panic = AssertUnwindSafe(app.post("/entries", "k", &body)).catch_unwind().await.expect_err("a panic");
        let message = panic.downcast_ref::<&str>().copied().unwrap_or_default();
        assert_eq!(message, "the handler panics, as the test asked");
    }
    assert_eq!((app.entries().await, app.stored().await), (0, 0));
    assert_eq!(app.post("/entries", "k", &entry("now", Then::Created)).await.status, 201);
}

#[tokio::test]
async fn what_cannot_be_stored_is_rolled_back_3_29() {
    let (_database, app) = App::start().await;
    for then in [Then::Large(1024 * 1024 + 1), Then::Stream] {
        let reply = app.post("/entries", "k", &entry("big", then)).await;
        assert_eq!((reply.status, reply.problem().as_str()), (500, "response-not-storable"));
        assert_eq!((app.entries().await, app.stored().await), (0, 0));
    }
    let body = entry("fits", Then::Large(1024 * 1024));
    let first = app.post("/entries", "k", &body).await;
    assert_eq!(first.status, 201);
    app.post("/entries", "k", &body).await.assert_replays(&first);
}

#[tokio::test]
async fn a_transaction_that_is_aborted_cannot_claim_success() {
    let (_database, app) = App::start().await;
    for then in [Then::Swallow, Then::Deferred] {
        let reply = app.post("/entries", "k", &entry("lost", then)).await;
        assert_eq!((reply.status, reply.problem().as_str()), (500, "internal"));
        assert_eq!((app.entries().await, app.stored().await), (0, 0));
    }
    assert_eq!(app.post("/entries", "k", &entry("now", Then::Created)).await.status, 201);
}

#[tokio::test]
async fn a_handler_that_ends_the_transaction_is_found_out() {
    let (_database, app) = App::start().await;
    for (number, status) in [201, 409, 429, 500].into_iter().enumerate() {
        for (place, then) in [Then::Escape(status), Then::EscapeAndBegin(status)].into_iter().enumerate() {
            let (key, body) = (format!("k{number}-{place}"), entry("escaped", then));
            let first = app.post("/entries", &key, &body).await;
            assert_eq!((first.status, first.problem().as_str()), (500, "effects-unknown"), "{key}");
            assert_eq!(first.header("retry-after"), "", "a retry would change nothing");
            app.post("/entries", &key, &body).await.assert_replays(&first);
            // What the helper committed is committed, once: that is why the compiler refuses it where it can.
            assert_eq!(app.entries().await, (2 * number + place) as i64 + 1);
            let next = app.post("/entries", "next", &entry("next", Then::Status(500))).await;
            assert_eq!(next.status, 500, "the pool is clean");
        }
    }
    let failed = app.idempotency.failed_operations(100).await.expect("a list");
    assert!(failed.len() == 8 && failed.iter().all(|operation| operation.effects_unknown), "{failed:?}");
    assert!(!app.idempotency.retry_failed(&failed[0]).await.expect("an answer"), "nothing could resume it");
    assert!(app.idempotency.discard_failed(&failed[0]).await.expect("an answer"), "a person frees the key");
    assert_eq!(app.post("/entries", "k0-0", &entry("freed", Then::Created)).await.status, 201);
}
