//! The rules that the caller can set, and those that a server's answer sets: what is retried, and when.

use std::time::{Duration, Instant};

use idem_client::classify::{self, Fate, Verdict};
use idem_client::{Builder, Client, Key, Reason, ResponseExt as _};

use crate::support::{Act, Answer, SchedulingDelay, Server, answer};

fn builder() -> Builder {
    Client::builder().back_off(Duration::from_millis(1), Duration::from_millis(1))
}

fn key() -> Key {
    Key::of("charge", &4711)
}

/// Sends to a server that gives this answer first and then a good one; says how often it was sent and the last status.
async fn sent_after(builder: Builder, first: Answer) -> (usize, Option<u16>) {
    let server = Server::script([Act::Refuse(first), Act::Answer(answer(201))]).await;
    let client = builder.build().unwrap();
    let sent = client.post(server.url("/charges")).key(key()).body("amount=7").send().await;
    (server.seen().len(), sent.ok().map(|response| response.status().as_u16()))
}

#[tokio::test]
async fn the_caller_says_what_is_retried() {
    let own = || {
        builder().classify(|attempt| match attempt.status.as_u16() {
            529 => Verdict::Retry(Fate::Unknown),
            400 if attempt.body.starts_with(b"slow down") => Verdict::Retry(Fate::Refused),
            404 if attempt.headers.contains_key("x-not-yet") => Verdict::Retry(Fate::Refused),
            503 => Verdict::Final,
            _ => classify::standard(attempt),
        })
    };
    for (first, retried) in [
        (answer(529), true),
        (answer(400).body("slow down, please"), true),
        (answer(400).body("no"), false),
        (answer(404).header("x-not-yet", "1"), true),
        (answer(404), false),
        (answer(503), false),
        (answer(429), true),
    ] {
        let (times, status) = sent_after(own(), first.clone()).await;
        assert_eq!((times == 2, status == Some(201)), (retried, retried), "{first:?}");
    }
    // The default leaves them to the caller.
    assert_eq!(sent_after(builder(), answer(529)).await, (1, Some(529)));
}

#[tokio::test]
async fn what_the_caller_calls_unknown_is_treated_so() {
    let refused = builder().classify(|_| Verdict::Retry(Fate::Refused)).attempts(2).build().unwrap();
    let lost = builder().classify(|_| Verdict::Retry(Fate::Unknown)).attempts(2).build().unwrap();
    let unsettled = builder().classify(|_| Verdict::Unsettled).build().unwrap();
    let server = Server::script([Act::Refuse(answer(418))]).await;
    let send = |client: &Client| client.post(server.url("/charges")).key(Key::random()).send();
    assert!(!send(&refused).await.unwrap_err().may_have_happened());
    assert!(send(&lost).await.unwrap_err().may_have_happened());
    let response = send(&unsettled).await.unwrap();
    assert!(!response.settled() && response.may_have_happened());
}

#[tokio::test]
async fn stripes_rules_are_those_of_its_sdks() {
    let json = |status, body: &str| answer(status).header("content-type", "application/json").body(body);
    let busy = r#"{"error":{"type":"invalid_request_error","code":"idempotency_key_in_use"}}"#;
    for (first, retried) in [
        (answer(500), true),
        (answer(500).header("stripe-should-retry", "false"), false),
        (answer(400).header("stripe-should-retry", "true"), true),
        (answer(429), false),
        (answer(429).header("stripe-should-retry", "true"), true),
        (answer(409).header("stripe-should-retry", "false"), false),
        (json(409, busy), true),
        (json(402, r#"{"error":{"type":"card_error","code":"card_declined"}}"#), false),
        (answer(500).header("idempotent-replayed", "true"), false),
    ] {
        let (times, _) = sent_after(builder().stripe(), first.clone()).await;
        assert_eq!(times == 2, retried, "{first:?}");
    }
}

#[tokio::test]
async fn awss_rules_are_those_of_its_sdks() {
    let json = |name| {
        answer(400)
            .header("content-type", "application/x-amz-json-1.0")
            .body(format!(r#"{{"__type":"com.amazon#{name}"}}"#))
    };
    for (first, retried) in [
        (json("ThrottlingException"), true),
        (json("TransactionInProgressException"), true),
        (json("ValidationException"), false),
        (answer(500), true),
        (answer(501), false),
    ] {
        let (times, _) = sent_after(builder().aws(), first.clone()).await;
        assert_eq!(times == 2, retried, "{first:?}");
    }
}

#[tokio::test]
async fn an_operation_that_takes_longer_than_all_attempts_is_waited_for() {
    let takes = Duration::from_millis(2_500);
    let started = Instant::now();
    let problem = r#"{"type":"https://shop.example/problems#in-flight"}"#;
    let in_flight = move || answer(409).header("content-type", "application/problem+json").body(problem);
    let server = Server::start(move |number, _| match number {
        0 => Act::Slow(takes, answer(201)),
        _ if started.elapsed() < takes => Act::Refuse(in_flight()),
        _ => Act::Answer(answer(201).header("idempotency-replayed", "true")),
    })
    .await;
    let client = Client::builder().attempts(2).attempt_timeout(Duration::from_millis(200)).build().unwrap();
    let response = client.post(server.url("/charges")).key(key()).send().await.unwrap();
    assert!(response.is_replay() && response.settled());
    assert!(response.attempts() > 3, "in flight counts against no limit: {}", response.attempts());
    server.assert_same_request(response.attempts() as usize);
    assert_eq!(server.effects(), [key().as_str()]);
    let least = server.gaps().into_iter().skip(1).min().unwrap();
    assert!(least >= Duration::from_millis(95), "{least:?}");
}

#[tokio::test]
async fn an_operation_in_flight_for_ever_is_given_up_at_the_deadline() {
    let server = Server::script([Act::Refuse(answer(409).header("retry-after", "0"))]).await;
    let client = Client::builder().deadline(Duration::from_millis(900)).build().unwrap();
    let delay = SchedulingDelay::measure();
    let started = Instant::now();
    let error = client.post(server.url("/charges")).key(key()).send().await.unwrap_err();
    assert!(started.elapsed() < Duration::from_millis(900) + delay.allowance());
    let gave_up = error.gave_up().unwrap();
    assert!(matches!(gave_up.reason(), Reason::DeadlinePassed | Reason::RetryAfter(_)), "{error}");
    assert!(gave_up.may_have_happened(), "{error}");
    // What may be sent once is not sent to ask, either.
    let once = client.post(server.url("/charges")).key(Key::random()).attempts(1).send().await.unwrap_err();
    assert_eq!((once.gave_up().unwrap().reason(), once.gave_up().unwrap().attempts()), (Reason::AttemptsSpent, 1));
}

#[tokio::test]
async fn no_answer_brings_a_retry_within_milliseconds() {
    let client = builder().build().unwrap();
    for (name, value) in [
        ("retry-after", "0"),
        ("retry-after", "-1"),
        ("retry-after", "0.001"),
        ("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT"),
        ("retry-after-ms", "1"),
    ] {
        for status in [409, 429, 503] {
            let first = answer(status).header("retry-after", "0").header(name, value);
            let server = Server::script([Act::Refuse(first), Act::Answer(answer(201))]).await;
            client.post(server.url("/charges")).key(Key::random()).send().await.unwrap();
            assert!(server.gaps()[0] >= Duration::from_millis(95), "{status} {name}: {value}: {:?}", server.gaps());
        }
    }
}

#[tokio::test]
async fn fractions_of_a_second_are_waited_for() {
    let delay = SchedulingDelay::measure();
    for (name, value) in [("retry-after", "0.35"), ("retry-after-ms", "350")] {
        let server = Server::script([Act::Refuse(answer(503).header(name, value)), Act::Answer(answer(201))]).await;
        builder().build().unwrap().post(server.url("/charges")).key(key()).send().await.unwrap();
        let gap = server.gaps()[0];
        assert!(gap >= Duration::from_millis(345) && gap < Duration::from_millis(352) + delay.allowance(), "{gap:?}");
    }
}

#[tokio::test]
async fn a_host_that_is_down_does_not_cost_another_one_its_retries() {
    let down = Server::script([Act::DropBefore]).await;
    let client = builder().breaker(10_000, Duration::from_secs(1)).build().unwrap();
    loop {
        let error = client.post(down.url("/charges")).key(Key::random()).send().await.unwrap_err();
        if error.gave_up().unwrap().reason() == Reason::BudgetSpent {
            break;
        }
    }
    let shaky = Server::script([Act::DropAfter, Act::DropAfter, Act::Answer(answer(201))]).await;
    assert_eq!(client.post(shaky.url("/charges")).key(key()).send().await.unwrap().status(), 201);
    assert_eq!(client.budgets().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_starts_at_once_may_retry_all_of_it() {
    // Of the first attempts a fifth lose their answer, a fifth are cut off, a fifth time out; the second is answered.
    let seen = std::sync::Mutex::new(std::collections::HashMap::<String, usize>::new());
    let server = Server::start(move |number, request| {
        let mut seen = seen.lock().unwrap();
        let times = seen.entry(request.key().unwrap().to_owned()).or_default();
        *times += 1;
        match (*times, number % 5) {
            (1, 0) => Act::DropAfter,
            (1, 1) => Act::DropBefore,
            (1, 2) => Act::Never,
            _ => Act::Answer(answer(201)),
        }
    })
    .await;
    let client = Client::builder().attempt_timeout(Duration::from_secs(1)).build().unwrap();
    let sends: Vec<_> = (0..100)
        .map(|id| tokio::spawn(client.post(server.url("/charges")).key(Key::of("charge", &id)).send()))
        .collect();
    let mut given_up = Vec::new();
    for send in sends {
        given_up.extend(send.await.unwrap().err().map(|error| error.gave_up().unwrap().reason()));
    }
    assert!(given_up.is_empty(), "{} of 100: {given_up:?}", given_up.len());
    let effects = server.effects();
    assert_eq!(effects.iter().collect::<std::collections::HashSet<_>>().len(), effects.len());
}
