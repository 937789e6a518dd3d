//! The checkout's tour holds its promises, and its handlers keep theirs under a fault at every message to Postgres, with the
//! charges counted at the provider.
//!
//! `cargo test -p idem-examples --test checkout -- --nocapture` prints the tables.

#[path = "../src/bin/checkout/outside/mod.rs"]
#[allow(dead_code, unused_imports)]
mod outside;
#[path = "../src/bin/checkout/service/mod.rs"]
#[allow(dead_code, unused_imports)]
mod service;
mod support;

use std::collections::BTreeMap;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use idem_testing::{CrashReport, ExternalCalls, crash_matrix};
use outside::{Line, PROVIDER};
use service::Settings;
use sqlx::PgPool;
use tokio::net::TcpListener;

#[test]
fn every_promise_of_the_tour_holds() {
    support::assert_every_promise_holds(CHECKOUT);
}

const CHECKOUT: &str = env!("CARGO_BIN_EXE_checkout");

#[test]
fn an_ended_tour_takes_the_other_systems_along() {
    assert_eq!(support::end_with(CHECKOUT, "-INT", &[], "payment provider on http://"), Some(130));
    assert_eq!(support::end_with(CHECKOUT, "-KILL", &[], "mail service     on http://"), None);
}

#[test]
fn an_ended_service_takes_the_other_systems_along() {
    assert_eq!(support::end_with(CHECKOUT, "-TERM", &["--serve"], "provider: curl http://"), Some(0));
    assert_eq!(support::end_with(CHECKOUT, "-KILL", &["--serve"], "provider: curl http://"), None);
}

/// The provider, in this process, and a note of every call.
async fn provider(calls: &ExternalCalls) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let calls = calls.clone();
    let router = outside::router(PROVIDER).expect("a provider").layer(from_fn(move |request: Request, next: Next| {
        if let Some(key) = request.headers().get("idempotency-key") {
            calls.record(key.to_str().expect("a key"));
        }
        next.run(request)
    }));
    tokio::spawn(axum::serve(listener, router).into_future());
    address
}

/// One process of the service, with a lease of a second, so that a stall of one and a half exceeds it.
async fn application(pool: PgPool, provider: &str) -> Router {
    service::migrate(&pool).await.expect("migrations");
    let insert =
        "INSERT INTO customers (name, email, token_digest) VALUES ('ada', 'ada@example.org', sha256('ada-token'))
                  ON CONFLICT DO NOTHING";
    sqlx::query(insert).execute(&pool).await.expect("a customer");
    let insert =
        "INSERT INTO products (name, price_cents, stock) VALUES ('beans', 1250, 100000) ON CONFLICT DO NOTHING";
    sqlx::query(insert).execute(&pool).await.expect("a product");
    let mut settings = Settings::new(provider, "127.0.0.1:9");
    settings.patience = std::time::Duration::from_secs(1);
    service::application(pool, &settings).expect("settings").0
}

/// What one checkout does: 1 for the order unless it is cancelled, 10 for its payment, 100 for its receipt, 1,000 for each piece that is sold.
async fn count_effects(pool: PgPool) -> sqlx::Result<i64> {
    let select = "SELECT (SELECT count(*) FROM orders WHERE status <> 'cancelled') + 10 * (SELECT count(*) FROM orders WHERE status = 'paid')
                       + 100 * (SELECT count(*) FROM idem.outbox)
                       + 1000 * (SELECT 100000 - stock FROM products)";
    sqlx::query_scalar(select).fetch_one(&pool).await
}

fn request(path: &str, card: &str) -> Request<Body> {
    let cart = format!(r#"{{"product": "beans", "quantity": 2, "card": "{card}"}}"#);
    let request = Request::post(path).header("content-type", "application/json");
    request.header("authorization", "Bearer ada-token").body(Body::from(cart)).expect("a request")
}

async fn attack(path: &str, card: &str) -> (CrashReport, BTreeMap<String, Line>) {
    let calls = ExternalCalls::new();
    let provider = provider(&calls).await;
    let app = async |pool| application(pool, &provider).await;
    let matrix = crash_matrix(app, request(path, card)).effects(count_effects);
    // A provider without keys sees none.
    let matrix = match (path, card) {
        // It is the call that refuses.
        (_, "tok_declined") => matrix.refuses(),
        ("/checkout", _) => matrix.external_calls(&calls),
        _ => matrix,
    };
    let report = matrix.run().await;
    println!("{report}");
    let ledger = reqwest::get(format!("http://{provider}/ledger")).await.expect("an answer");
    (report, ledger.json().await.expect("a ledger"))
}

fn assert_attacked(report: &CrashReport, statements: &[&str]) {
    for statement in statements {
        let met = report.trials().iter().any(|trial| trial.met().statement.contains(statement));
        assert!(met, "`{statement}` was not attacked\n{report}");
    }
    report.assert_exactly_once();
}

const STATEMENTS: [&str; 6] =
    ["BEGIN", "UPDATE products", "INSERT INTO orders", "UPDATE orders", "recovery_points", "COMMIT"];

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_at_any_message_of_a_checkout_costs_one_charge() {
    let (report, ledger) = attack("/checkout", "tok_visa").await;
    assert_attacked(&report, &STATEMENTS);
    assert!(ledger.len() > report.trials().len() / 2, "{} keys", ledger.len());
    assert!(ledger.iter().all(|(key, line)| key.starts_with("charge-") && line.effects == 1), "{ledger:?}");
    assert!(ledger.values().any(|line| line.calls > 1), "no call was repeated");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_at_any_message_costs_one_charge_at_a_provider_without_keys() {
    let (report, ledger) = attack("/checkout/keyless", "tok_visa").await;
    assert_attacked(&report, &STATEMENTS);
    assert!(ledger.len() > report.trials().len() / 2, "{} references", ledger.len());
    let twice: Vec<_> = ledger.iter().filter(|(_, line)| line.effects != 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_at_any_message_of_a_declined_checkout_returns_the_goods_once() {
    let (report, ledger) = attack("/checkout", "tok_declined").await;
    assert_attacked(&report, &["BEGIN", "UPDATE products", "INSERT INTO orders", "UPDATE orders", "COMMIT"]);
    assert!(ledger.values().all(|line| line.effects == 0 && line.about == "declined"), "{ledger:?}");
}
