//! The retry budget against a dead server, at a thousand requests a second. A program of its own, so that its load does not
//! disturb the tests that look at the clock.

#[allow(dead_code, reason = "shared with the tests that use the rest of it")]
#[path = "it/support.rs"]
mod support;

use std::time::{Duration, Instant};

use idem_client::{Client, Key, Reason};
use tokio::sync::Mutex;

use support::{Act, Server, answer};

const SECONDS: u64 = 3;
const PER_SECOND: u64 = 1_000;
const PATIENCE: Duration = Duration::from_secs(60);

/// What became of the requests, as the client saw it.
struct Load {
    attempts: u64,
    reasons: Vec<Reason>,
}

impl Load {
    fn count(&self, reason: Reason) -> u64 {
        self.reasons.iter().filter(|given| **given == reason).count() as u64
    }
}

/// Sends a thousand requests a second for three seconds; all of them are given up.
async fn at_a_thousand_a_second(client: &Client, url: &str) -> Load {
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    let mut sends = Vec::new();
    for tick in 0..SECONDS * 100 {
        ticks.tick().await;
        for number in 0..PER_SECOND / 100 {
            let request = client.post(url).key(Key::of("order", &(tick * 10 + number))).body("x");
            sends.push(tokio::spawn(request.send()));
        }
    }
    let mut load = Load { attempts: 0, reasons: Vec::new() };
    for send in sends {
        let error = send.await.unwrap().unwrap_err();
        let gave_up = error.gave_up().unwrap();
        load.attempts += u64::from(gave_up.attempts());
        load.reasons.push(gave_up.reason());
    }
    load
}

/// One test at a time: the machine has to make the load, too.
static MACHINE: Mutex<()> = Mutex::const_new(());

/// Load is counted and not timed, so the bounds hold on a slow machine too; all of it is bounded in time once.
async fn assert_extra_load_is_bounded(act: Act) {
    let server = Server::script([act.clone()]).await;
    // The breaker would end the test's load before the budget is felt.
    // Time must not end requests before the budget does, on a machine that is busy with other things too.
    let client = Client::builder().breaker(10_000, Duration::from_secs(1)).deadline(PATIENCE);
    let client = client.attempt_timeout(PATIENCE).build().unwrap();
    let url = server.url("/orders");
    let started = Instant::now();
    let sending = at_a_thousand_a_second(&client, &url);
    let load = tokio::time::timeout(2 * PATIENCE, sending).await.expect("bounded in time");
    let requests = SECONDS * PER_SECOND;
    let (attempts, arrived) = (load.attempts, server.seen().len() as u64);
    assert!(arrived <= attempts, "{act:?}: {arrived} arrived of {attempts}");
    // A machine that cannot keep the pace is quiet in the end, and a quiet client has its floor every ten seconds.
    let floor = 10 * (started.elapsed().as_secs() / 10);
    assert!(attempts <= requests + requests / 10 + floor, "{act:?}: {attempts} attempts for {requests}");
    assert!(attempts >= requests + 10, "{act:?}: the budget is there to be used: {attempts} attempts");
    let spent = load.count(Reason::BudgetSpent);
    assert!(spent > requests / 2, "{act:?}: most fail fast: {spent}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_server_sees_a_tenth_more_at_most() {
    let _machine = MACHINE.lock().await;
    assert_extra_load_is_bounded(Act::DropBefore).await;
    assert_extra_load_is_bounded(Act::Refuse(answer(503))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_on_an_operation_in_flight_gives_nothing_back_and_takes_nothing() {
    let _machine = MACHINE.lock().await;
    let server = Server::script([Act::Refuse(answer(409).header("retry-after", "0"))]).await;
    let client = Client::builder().deadline(Duration::from_secs(4)).attempt_timeout(PATIENCE).build().unwrap();
    let url = server.url("/orders");
    let sends: Vec<_> = (0..200).map(|id| tokio::spawn(client.post(&url).key(Key::of("order", &id)).send())).collect();
    let mut attempts = 0;
    for send in sends {
        let error = send.await.unwrap().unwrap_err();
        let gave_up = error.gave_up().unwrap();
        assert!(matches!(gave_up.reason(), Reason::DeadlinePassed | Reason::RetryAfter(_)), "{error}");
        assert!(gave_up.may_have_happened(), "{error}");
        assert!(gave_up.attempts() > 4, "waiting uses no attempts up: {error}");
        attempts += gave_up.attempts();
    }
    assert_eq!(client.budget(&reqwest::Url::parse(&url).unwrap()).retries, 0);
    // The waits double from a tenth of a second: in four seconds nobody asks more than about ten times.
    assert!(attempts <= 12 * 200, "{attempts} attempts");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_breaker_a_dead_server_is_left_alone() {
    let _machine = MACHINE.lock().await;
    let server = Server::script([Act::Refuse(answer(503))]).await;
    let client = Client::builder().build().unwrap();
    let load = at_a_thousand_a_second(&client, &server.url("/orders")).await;
    let requests = SECONDS * PER_SECOND;
    assert!((server.seen().len() as u64) < requests / 10, "{}", server.seen().len());
    let unsent = load.count(Reason::BreakerOpen);
    assert!(unsent > requests / 2, "{unsent}");
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
    assert_eq!(client.budget(&reqwest::Url::parse(&server.base).unwrap()).left, 0);
    let error = send(3).await.unwrap_err();
    assert_eq!(error.gave_up().unwrap().reason(), Reason::BudgetSpent);
    assert!(error.gave_up().unwrap().may_have_happened());
    assert_eq!(server.seen().len(), 7);
}
