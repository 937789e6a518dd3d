//! The contract check over the same handlers.

use axum::body::Body;
use axum::http::Request;
use idem_testing::{ContractReport, contract};

use crate::handlers::{application, count_events, count_orders};
use crate::request;

fn order(path: &str, customer: &'static str) -> Request<Body> {
    let mut request = request(path, r#"{"product": 1, "quantity": 2}"#);
    request.headers_mut().insert("customer", customer.parse().unwrap());
    request
}

fn check(report: &ContractReport, not_checked: usize) {
    println!("{report}");
    report.assert_ok();
    assert_eq!(report.to_string().matches("not checked").count(), not_checked);
}

#[tokio::test]
async fn orders_keep_the_contract() {
    let report = contract(application, order("/orders", "1"))
        .other_request(request("/orders", r#"{"product": 1, "quantity": 3}"#))
        .other_scope(order("/orders", "2"))
        .effects(count_orders)
        .run()
        .await;
    check(&report, 0);
}

#[tokio::test]
async fn orders_that_wait_for_each_other_keep_the_contract() {
    let report = contract(application, order("/patient", "1"))
        .other_scope(order("/patient", "2"))
        .effects(count_orders)
        .run()
        .await;
    check(&report, 0);
}

#[tokio::test]
async fn orders_with_and_without_a_key_keep_the_contract() {
    let report = contract(application, order("/guests", "1"))
        .other_scope(order("/guests", "2"))
        .key_optional()
        .effects(count_orders)
        .run()
        .await;
    check(&report, 0);
}

#[tokio::test]
async fn a_refusal_keeps_the_contract() {
    let refused = |customer| {
        let mut request = request("/orders", r#"{"product": 2, "quantity": 2}"#);
        request.headers_mut().insert("customer", customer);
        request
    };
    let report = contract(application, refused("1".parse().unwrap()))
        .other_scope(refused("2".parse().unwrap()))
        .effects(count_orders)
        .run()
        .await;
    check(&report, 0);
}

#[tokio::test]
async fn events_whose_key_is_in_the_payload_keep_the_contract() {
    let event = |id: &str| request("/events", format!(r#"{{"id": "{id}", "amount": 7}}"#));
    let other = |id: &str| request("/events", format!(r#"{{"id": "{id}", "amount": 8}}"#));
    let report = contract(application, event).other_request(other).effects(count_events).run().await;
    // No key header, and one provider.
    check(&report, 4);
}
