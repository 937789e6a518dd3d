//! The retry budget against a dead server, at a thousand requests a second. A program of its own, so that its load does not
//! disturb the tests that look at the clock.

#[allow(dead_code, reason = "shared with the tests that use the rest of it")]
#[path = "it/support.rs"]
mod support;

use std::time::{Duration, Instant};

use idem_client::{Client, Key, Reason};

use support::{Act, Server, answer};

const SECONDS: u64 = 3;
const PER_SECOND: u64 = 1_000;

/// Sends a thousand requests a second for three seconds and gives back why each was given up.
async fn at_a_thousand_a_second(client: &Client, url: &str) -> Vec<Reason> {
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    let mut sends = Vec::new();
    for tick in 0..SECONDS * 100 {
        ticks.tick().await;
        for number in 0..PER_SECOND / 100 {
            let request = client.post(url).key(Key::of("order", &(tick * 10 + number))).body("x");
            sends.push(tokio::spawn(request.send()));
        }
    }
    let mut reasons = Vec::new();
    for send in sends {
        reasons.push(send.await.unwrap().unwrap_err().gave_up().unwrap().reason());
    }
    reasons
}

/// The bounds must hold whatever the machine's speed, so time is bounded once and load is counted.
async fn assert_extra_load_is_bounded(act: Act) {
    let server = Server::script([act.clone()]).await;
    // The breaker would end the test's load before the budget is felt.
    let client = Client::builder().breaker(10_000, Duration::from_secs(1)).build().unwrap();
    let started = Instant::now();
    let url = server.url("/orders");
    let sending = at_a_thousand_a_second(&client, &url);
    let reasons = tokio::time::timeout(Duration::from_secs(60), sending).await.expect("bounded in time");
    let requests = SECONDS * PER_SECOND;
    let sent = server.seen().len() as u64;
    assert!(sent <= requests + requests / 10, "{act:?}: {sent} sent for {requests} in {:?}", started.elapsed());
    assert!(sent >= requests + requests / 20, "{act:?}: the budget is there to be used: {sent} sent for {requests}");
    let spent = reasons.iter().filter(|reason| **reason == Reason::BudgetSpent).count();
    assert!(spent as u64 > requests * 8 / 10, "{act:?}: most fail fast: {spent}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_server_sees_a_tenth_more_at_most() {
    assert_extra_load_is_bounded(Act::DropBefore).await;
    assert_extra_load_is_bounded(Act::Refuse(answer(503))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_on_an_operation_in_flight_gives_nothing_back() {
    assert_extra_load_is_bounded(Act::Refuse(answer(409).header("retry-after", "0"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_breaker_a_dead_server_is_left_alone() {
    let server = Server::script([Act::Refuse(answer(503))]).await;
    let client = Client::builder().build().unwrap();
    let reasons = at_a_thousand_a_second(&client, &server.url("/orders")).await;
    let requests = SECONDS * PER_SECOND;
    assert!((server.seen().len() as u64) < requests / 10, "{}", server.seen().len());
    let unsent = reasons.iter().filter(|reason| **reason == Reason::BreakerOpen).count();
    assert!(unsent as u64 > requests * 8 / 10, "{unsent}");
}

#[tokio::test]
async fn a_spent_budget_stays_spent_after_successes() {
    let server =
        Server::start(|number, _| if number % 2 == 0 { Act::DropAfter } else { Act::Answer(answer(201)) }).await;
    let client = Client::builder().retry_budget(0.0, 3).build().unwrap();
    let send = |id| client.post(server.url("/orders")).key(Key::of("order", &id)).send();
    for id in 0..3 {
        assert_eq!(send(id).await.unwrap().status(), 201);
    }
    assert_eq!(client.budget().left, 0);
    let error = send(3).await.unwrap_err();
    assert_eq!(error.gave_up().unwrap().reason(), Reason::BudgetSpent);
    assert!(error.gave_up().unwrap().may_have_happened());
    assert_eq!(server.seen().len(), 7);
}
