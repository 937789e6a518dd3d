//! The matrix catches what it must. What it passes is tested with the real runtime, in the package `idem-tests`.

mod common;

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use common::{broken_store, count_orders, order};
use idem_testing::{Strike, crash_matrix};

#[tokio::test]
async fn a_store_with_two_commits_and_no_fence_is_caught() {
    let report =
        crash_matrix(broken_store, order()).effects(count_orders).stall(Duration::from_millis(400)).run().await;
    println!("{report}");
    let caught = |strike: Strike, statement: &str, what: &str| {
        let mut trials = report.trials().iter();
        trials.any(|trial| {
            trial.strike() == strike
                && trial.met().statement.starts_with(statement)
                && trial.violations().iter().any(|violation| violation.contains(what))
        })
    };
    let twice = "the effect is 2; without a fault it is 1";
    assert!(caught(Strike::AnswerLost, "INSERT INTO orders", twice), "{report}");
    assert!(caught(Strike::CutBefore, "UPDATE claims", twice), "{report}");
    assert!(caught(Strike::BackendKilled, "UPDATE claims", twice), "{report}");
    assert!(caught(Strike::Stalled, "INSERT INTO orders", twice), "{report}");
    // Which promise breaks there depends on who comes first when the stall is over.
    let stalled_update = |what| caught(Strike::Stalled, "UPDATE claims", what);
    assert!(stalled_update("differs") || stalled_update(twice), "{report}");
    assert!(!caught(Strike::CutBefore, "INSERT INTO claims", twice), "{report}");
    assert!(report.trials().iter().filter(|trial| !trial.violations().is_empty()).count() > 20, "{report}");
    let table = report.to_string();
    assert!(table.contains("✗") && table.contains("promises broken"), "{table}");
}

#[tokio::test]
#[should_panic(expected = "promises broken")]
async fn the_assertion_fails_with_the_table() {
    let report = crash_matrix(broken_store, order()).effects(count_orders).strikes(&[Strike::AnswerLost]).run().await;
    report.assert_exactly_once();
}

#[tokio::test]
async fn an_app_that_does_not_use_the_pool_is_not_taken_for_a_safe_one() {
    static CALLS: AtomicI64 = AtomicI64::new(0);
    let handler = async || {
        CALLS.fetch_add(1, Ordering::Relaxed);
        StatusCode::CREATED
    };
    let app = async |_pool| Router::new().route("/orders", post(handler));
    let report = crash_matrix(app, order()).effects(async |_pool| Ok(CALLS.load(Ordering::Relaxed))).run().await;
    let found: Vec<_> = report.findings().iter().map(|finding| finding.rule).collect();
    assert_eq!(found, ["the application uses the pool that it is given"], "{report}");
    assert!(report.trials().is_empty(), "{report}");
}
