//! The contract check over the same handlers.

use axum::Extension;
use axum::body::Body;
use axum::http::Request;
use idem_testing::{Contract, ContractReport, ExternalCalls, contract};

use crate::handlers::{application, count_checkouts, count_events, count_orders};
use crate::request;

fn order(path: &str, customer: &'static str) -> Request<Body> {
    let mut request = request(path, r#"{"product": 1, "quantity": 2}"#);
    request.headers_mut().insert("customer", customer.parse().unwrap());
    request
}

fn orders(path: &'static str) -> Contract<'static> {
    let other_route = if path == "/orders" { "/patient" } else { "/orders" };
    contract(application, order(path, "1"))
        .other_scope(order(path, "2"))
        .other_route(order(other_route, "1"))
        .json_by_meaning()
        .effects(count_orders)
}

const SEPARATOR: &str = "no owner and key together are those of somebody else";
const EXTERNAL: [&str; 2] = ["a replay makes no external call", "a provider that fails once is no outcome"];
const EXPIRY: &str = "after its retention a key is new";
const ORDERS_ONLY: [&str; 4] = [SEPARATOR, EXTERNAL[0], EXTERNAL[1], EXPIRY];

/// What was not tried is exact: a rule that is left out by mistake is no tick.
fn check(report: &ContractReport, not_tried: &[&str]) {
    report.assert_ok();
    let left: Vec<_> = report.not_tried().map(|(rule, _)| rule).collect();
    assert_eq!(left, not_tried, "{report}");
}

#[tokio::test]
async fn orders_keep_the_contract() {
    let other = request("/orders", r#"{"product": 1, "quantity": 3}"#);
    check(&orders("/orders").other_request(other).run().await, &ORDERS_ONLY);
}

#[tokio::test]
async fn orders_that_wait_for_each_other_keep_the_contract() {
    check(&orders("/patient").run().await, &ORDERS_ONLY);
}

#[tokio::test]
async fn orders_with_and_without_a_key_keep_the_contract() {
    check(&orders("/guests").key_optional().run().await, &ORDERS_ONLY);
}

#[tokio::test]
async fn a_refusal_keeps_the_contract() {
    let refused = |customer| {
        let mut request = request("/orders", r#"{"product": 2, "quantity": 2}"#);
        request.headers_mut().insert("customer", customer);
        request
    };
    let report = contract(application, refused("1".parse().unwrap()))
        .refuses()
        .other_scope(refused("2".parse().unwrap()))
        .effects(count_orders)
        .run()
        .await;
    let not_tried = [
        "another route under a used key is not replayed",
        "JSON in another order is the same request",
        "keys that differ in one character are different keys",
        SEPARATOR,
        EXTERNAL[0],
        EXTERNAL[1],
        EXPIRY,
    ];
    check(&report, &not_tried);
}

#[tokio::test]
async fn a_checkout_keeps_the_contract_and_its_provider_is_called_once() {
    let calls = ExternalCalls::new();
    let app = async |pool| application(pool).await.layer(Extension(calls.clone()));
    let report = contract(app, order("/checkout", "1"))
        .other_scope(order("/checkout", "2"))
        .other_route(order("/orders", "1"))
        .json_by_meaning()
        .external_calls(&calls)
        .effects(count_checkouts)
        .run()
        .await;
    check(&report, &[SEPARATOR, EXPIRY]);
}

#[tokio::test]
async fn events_whose_key_is_in_the_payload_keep_the_contract() {
    let event = |id: &str| request("/events", format!(r#"{{"id": "{id}", "amount": 7}}"#));
    let other = |id: &str| request("/events", format!(r#"{{"id": "{id}", "amount": 8}}"#));
    let report = contract(application, event).other_request(other).effects(count_events).run().await;
    // No key header, and one provider.
    let not_tried = [
        "another route under a used key is not replayed",
        "JSON in another order is the same request",
        "a request without a key is refused, or has its effect each time where keys are optional",
        "a malformed key is refused",
        "`key` and `\"key\"` are one key, or one of them is refused",
        "the longest key is a key",
        "keys that differ in one character are different keys",
        "the same key of somebody else is another key",
        SEPARATOR,
        EXTERNAL[0],
        EXTERNAL[1],
        EXPIRY,
    ];
    check(&report, &not_tried);
}
