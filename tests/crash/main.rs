//! The crash matrix over handlers of every kind: a fault at each message of each, BEGIN and COMMIT included.
//!
//! `cargo test -p idem-tests --test crash -- --nocapture` prints the tables.

mod contract;
mod handlers;
mod words;

use axum::Extension;
use axum::body::Body;
use axum::http::Request;
use handlers::{application, count_checkouts, count_events, count_orders, count_stock};
use idem_testing::{CrashReport, ExternalCalls, Strike, crash_matrix};

fn request(path: &str, body: impl Into<Body>) -> Request<Body> {
    Request::post(path).header("content-type", "application/json").header("customer", "1").body(body.into()).unwrap()
}

fn check(report: CrashReport, statements: &[&str]) {
    println!("{report}");
    for statement in statements {
        let met = report.trials().iter().any(|trial| trial.met().statement.contains(statement));
        assert!(met, "`{statement}` was not attacked\n{report}");
    }
    report.assert_exactly_once();
}

#[tokio::test]
async fn an_order_is_placed_once() {
    let report = crash_matrix(application, request("/orders", r#"{"product": 1, "quantity": 2}"#))
        .effects(count_orders)
        .run()
        .await;
    check(report, &["BEGIN", "UPDATE products", "INSERT INTO orders", "idempotency_keys", "COMMIT"]);
}

#[tokio::test]
async fn stock_is_taken_once() {
    let report = crash_matrix(application, request("/orders", r#"{"product": 1, "quantity": 2}"#))
        .effects(count_stock)
        .before_each(async |pool| {
            sqlx::query("UPDATE products SET stock = 10 WHERE id = 1").execute(&pool).await.map(drop)
        })
        .run()
        .await;
    check(report, &["BEGIN", "UPDATE products", "INSERT INTO orders", "COMMIT"]);
}

/// The handler inserts the order before it finds that there is no stock.
#[tokio::test]
async fn a_refusal_leaves_no_writes_and_is_the_same_for_every_retry() {
    let report = crash_matrix(application, request("/orders", r#"{"product": 2, "quantity": 2}"#))
        .refuses()
        .effects(count_orders)
        .run()
        .await;
    check(report, &["BEGIN", "UPDATE products", "idempotency_keys"]);
}

#[tokio::test]
async fn savepoints_are_left_as_the_handler_left_them() {
    let report = crash_matrix(application, request("/baskets", "[1, 1, 2]")).effects(count_orders).run().await;
    check(report, &["BEGIN", "SAVEPOINT", "ROLLBACK TO SAVEPOINT", "RELEASE SAVEPOINT", "COMMIT"]);
}

#[tokio::test]
async fn a_webhook_is_received_once() {
    let event = |id: &str| request("/events", format!(r#"{{"id": "{id}", "amount": 7}}"#));
    let report = crash_matrix(application, event).effects(count_events).run().await;
    check(report, &["BEGIN", "INSERT INTO events", "COMMIT"]);
}

#[tokio::test]
async fn a_provider_is_called_with_one_derived_key_and_a_careless_handler_is_caught() {
    for (path, is_careful) in [("/charges", true), ("/careless", false)] {
        let calls = ExternalCalls::new();
        let app = async |pool| application(pool).await.layer(Extension(calls.clone()));
        let report = crash_matrix(app, request(path, r#"{"product": 1, "quantity": 2}"#))
            .effects(count_orders)
            .external_calls(&calls)
            .strikes(&[Strike::CutBefore, Strike::AnswerLost])
            .run()
            .await;
        println!("{report}");
        let counts = calls.counts();
        if is_careful {
            report.assert_exactly_once();
            assert!(counts.keys().all(|key| key.starts_with("charge-")), "{counts:?}");
            assert!(counts.values().any(|count| *count > 1), "no call was repeated: {counts:?}");
        } else {
            let found: Vec<_> = report.findings().iter().map(|finding| finding.rule).collect();
            assert_eq!(found, ["each external call carries one key"], "{report}");
        }
    }
}

#[tokio::test]
async fn a_checkout_of_several_commits_is_completed_once_with_one_charge() {
    let calls = ExternalCalls::new();
    let app = async |pool| application(pool).await.layer(Extension(calls.clone()));
    let report = crash_matrix(app, request("/checkout", r#"{"product": 1, "quantity": 2}"#))
        .effects(count_checkouts)
        .external_calls(&calls)
        .run()
        .await;
    check(report, &["BEGIN", "INSERT INTO orders", "INSERT INTO payments", "idempotency_keys", "COMMIT"]);
    assert!(calls.counts().keys().all(|key| key.starts_with("charge-")));
}

#[tokio::test]
async fn a_unique_violation_that_the_handler_maps_to_409_is_stored_as_its_refusal() {
    let report = crash_matrix(application, request("/customers", r#""taken@example.org""#))
        .refuses()
        .effects(async |pool| sqlx::query_scalar("SELECT count(*) FROM customers").fetch_one(&pool).await)
        .run()
        .await;
    check(report, &["BEGIN", "INSERT INTO customers", "idempotency_keys"]);
}

#[tokio::test]
async fn a_deferred_constraint_that_fails_at_commit_leaves_nothing() {
    let report = crash_matrix(application, request("/gifts", "7")).refuses().effects(count_orders).run().await;
    check(report, &["BEGIN", "INSERT INTO orders", "COMMIT"]);
}
