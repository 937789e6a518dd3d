//! What can be seen of the attempts, and that none of it carries a secret.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem_client::{Client, FileJournal, Key, NextStep, Reason};
#[cfg(feature = "metrics")]
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

use crate::one_layer::Log;
use crate::support::{Act, Directory, Server, answer};

#[tokio::test]
async fn each_attempt_retry_and_giving_up_has_its_event() {
    let acts = [Act::DropAfter, Act::Refuse(answer(503)), Act::Refuse(answer(409).header("retry-after", "0"))];
    let server =
        Server::script([acts.as_slice(), &[Act::Answer(answer(201)), Act::Refuse(answer(429))]].concat()).await;
    let client = Client::builder().back_off(Duration::from_millis(1), Duration::from_millis(1)).build().unwrap();
    let send = |id: i64| client.post(server.url("/orders")).key(Key::of("place-order", &id)).send();
    let (log, _guard) = Log::start(tracing::Level::DEBUG);
    send(1).await.unwrap();
    send(2).await.unwrap_err();
    let text = log.text();
    let count = |level: &str, parts: &[&str]| {
        let own = text.lines().filter(|line| line.contains("idem_client") && line.contains(level));
        own.filter(|line| parts.iter().all(|part| line.contains(part))).count()
    };
    assert_eq!(count("DEBUG", &["attempt", "took_ms"]), 8, "{text}");
    assert_eq!(count("INFO", &["retry", "wait_ms", "reason=broken"]), 1, "{text}");
    assert_eq!(count("INFO", &["retry", "reason=503"]), 1, "{text}");
    assert_eq!(count("INFO", &["retry", "reason=\"in_flight\""]), 1, "{text}");
    assert_eq!(count("INFO", &["retry", "reason=429"]), 3, "{text}");
    assert_eq!(count("WARN", &["gave up", "all attempts are used up", "may_have_happened=false"]), 1, "{text}");
    assert_eq!(count("", &["operation=\"place-order\""]), 8 + 6 + 1, "{text}");
}

#[tokio::test]
async fn the_application_is_told_of_each_attempt() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let telling = Arc::clone(&told);
    let client = Client::builder().back_off(Duration::from_millis(1), Duration::from_millis(1));
    let client = client.on_attempt(move |attempt| {
        let status = attempt.status.map(|status| status.as_u16());
        telling.lock().unwrap().push((attempt.number, status, attempt.failure, attempt.next));
    });
    let client = client.attempts(3).build().unwrap();
    let server = Server::script([Act::DropBefore, Act::Refuse(answer(401)), Act::Refuse(answer(503))]).await;
    let send = |id: i64| client.post(server.url("/orders")).key(Key::of("place-order", &id)).send();
    send(1).await.unwrap();
    send(2).await.unwrap_err();
    let told = told.lock().unwrap();
    let retries = |next| matches!(next, NextStep::Retry { .. });
    assert!(matches!(told[0], (1, None, Some("broken"), next) if retries(next)), "{told:?}");
    assert_eq!(told[1], (2, Some(401), None, NextStep::Answer { settled: false }));
    assert!(matches!(told[2], (1, Some(503), None, next) if retries(next)), "{told:?}");
    assert!(matches!(told[3], (2, Some(503), None, next) if retries(next)), "{told:?}");
    let gave_up = NextStep::GiveUp { reason: Reason::AttemptsSpent, may_have_happened: true };
    assert_eq!(told[4], (3, Some(503), None, gave_up));
    assert_eq!(told.len(), 5);
}

#[tokio::test]
async fn giving_up_without_an_attempt_is_no_attempt() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let telling = Arc::clone(&told);
    let client = Client::builder().back_off(Duration::from_millis(1), Duration::from_millis(1));
    let client = client.breaker(1, Duration::from_secs(5)).on_attempt(move |attempt| {
        telling.lock().unwrap().push((
            attempt.number,
            attempt.failure,
            matches!(attempt.next, NextStep::GiveUp { .. }),
        ));
    });
    let client = client.build().unwrap();
    let server = Server::script([Act::DropAfter]).await;
    let (log, _guard) = Log::start(tracing::Level::DEBUG);
    let error = client.post(server.url("/orders")).key(Key::of("order", &1)).send().await.unwrap_err();
    assert_eq!(error.gave_up().unwrap().reason(), Reason::BreakerOpen);
    client.post(server.url("/orders")).key(Key::of("order", &2)).send().await.unwrap_err();
    assert_eq!(*told.lock().unwrap(), [(1, Some("broken"), false), (1, None, true), (0, None, true)]);
    let text = log.text();
    assert_eq!(
        text.lines().filter(|line| line.contains("idem_client") && line.contains("took_ms")).count(),
        1,
        "{text}"
    );
}

const SECRETS: [&str; 7] =
    ["s3cret-key", "s3cret-body", "s3cret-query", "hunter2", "s3cret-token", "s3cret-answer", "s3cret-header"];

/// Every way a delivery can go, with a secret wherever one can be.
async fn go_every_way(client: &Client, server: &Server) {
    for id in 0..server_acts().len() {
        let url = server.url("/orders?token=s3cret-query#s3cret-query").replace("http://", "http://user:hunter2@");
        let request = client.post(url).key(Key::new(format!("s3cret-key-{id}")).unwrap()).bearer_auth("s3cret-token");
        let _ = request.header("x-own", "s3cret-header").body("s3cret-body").attempts(2).send().await;
    }
    // An operation that is named after its path, with the key in it.
    let named = client.put(server.url("/orders/s3cret-key-3")).key(Key::new("s3cret-key-3").unwrap());
    let _ = named.body("s3cret-body").attempts(2).send().await;
    let nowhere = client.post("http://user:hunter2@127.0.0.1:1/orders?token=s3cret-query");
    let _ = nowhere.key(Key::new("s3cret-key").unwrap()).body("s3cret-body").send().await;
    let stream = reqwest::Body::wrap_stream(futures_util::stream::iter([Ok::<_, std::io::Error>("s3cret-body")]));
    let _ = client.post(server.url("/orders")).key(Key::new("s3cret-key").unwrap()).body(stream).send().await;
}

fn server_acts() -> Vec<Act> {
    let secret = |status| answer(status).body("s3cret-answer").header("set-cookie", "s3cret-answer");
    let problem = |status, name| {
        let body = format!(r#"{{"type":"https://shop.example/#{name}","detail":"s3cret-answer"}}"#);
        answer(status).header("content-type", "application/problem+json").body(body)
    };
    vec![
        Act::Answer(secret(201)),
        Act::DropAfter,
        Act::Never,
        Act::ResetMidBody(secret(201)),
        Act::Refuse(secret(401)),
        Act::Refuse(secret(500)),
        Act::Refuse(secret(503)),
        Act::Refuse(secret(429).header("retry-after", "3600")),
        Act::Refuse(secret(302).header("location", "/login?token=s3cret-query")),
        Act::Refuse(problem(422, "key-reused")),
        Act::Refuse(problem(409, "in-flight")),
        Act::Refuse(problem(500, "effects-unknown")),
    ]
}

#[tokio::test]
async fn keys_bodies_credentials_and_queries_are_in_nothing_that_is_seen() {
    let directory = Directory::new();
    let seen = Arc::new(Mutex::new(String::new()));
    let watching = Arc::clone(&seen);
    let server = Server::start(|_, request| {
        let key = request.key().unwrap();
        let number: usize = key.rsplit('-').next().unwrap().parse().unwrap();
        server_acts()[number].clone()
    })
    .await;
    let client = Client::builder()
        .journal(FileJournal::open(directory.path("orders.journal")).unwrap())
        .back_off(Duration::from_millis(1), Duration::from_millis(1))
        .attempt_timeout(Duration::from_millis(300))
        .deadline(Duration::from_secs(2))
        .on_attempt(move |attempt| watching.lock().unwrap().push_str(&format!("{attempt:?}\n")))
        .build()
        .unwrap();
    let (log, _guard) = Log::start(tracing::Level::TRACE);
    go_every_way(&client, &server).await;
    let own: String =
        log.text().lines().filter(|line| line.contains("idem_client")).map(|line| format!("{line}\n")).collect();
    assert!(own.matches("attempt").count() > 20, "{own}");
    let (told, shown) = (seen.lock().unwrap().clone(), format!("{client:?}"));
    for secret in SECRETS {
        for text in [&own, &told, &shown] {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
    }
}

#[cfg(feature = "metrics")]
#[tokio::test]
async fn attempts_and_retries_are_counted_by_host_and_word() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let server =
        Server::script([Act::DropAfter, Act::Refuse(answer(503)), Act::Answer(answer(201)), Act::Refuse(answer(429))])
            .await;
    let client = Client::builder().back_off(Duration::from_millis(1), Duration::from_millis(1)).build().unwrap();
    let send = |id: i64| {
        let key = Key::new(format!("s3cret-key-{id}")).unwrap();
        client.post(server.url("/orders?token=s3cret-query")).key(key).bearer_auth("s3cret-token").body("s3cret-body")
    };
    send(1).send().await.unwrap();
    send(2).send().await.unwrap_err();
    let mut counted = Vec::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let labels: Vec<_> =
            key.key().labels().map(|label| (label.key().to_owned(), label.value().to_owned())).collect();
        let text = format!("{} {labels:?}", key.key().name());
        assert!(!SECRETS.iter().any(|secret| text.contains(secret)), "{text}");
        assert!(labels.contains(&("host".to_owned(), server.base.clone())), "{text}");
        let word = labels.iter().find(|(name, _)| name != "host").map(|(_, word)| word.clone()).unwrap_or_default();
        if let DebugValue::Counter(count) = value {
            counted.push((key.key().name().to_owned(), word, count));
        }
    }
    counted.sort();
    let expected = [
        ("idem_client_attempts_total", "201", 1),
        ("idem_client_attempts_total", "429", 4),
        ("idem_client_attempts_total", "503", 1),
        ("idem_client_attempts_total", "broken", 1),
        ("idem_client_given_up_total", "attempts_spent", 1),
        ("idem_client_retries_total", "429", 3),
        ("idem_client_retries_total", "503", 1),
        ("idem_client_retries_total", "broken", 1),
    ];
    assert_eq!(counted, expected.map(|(name, word, count)| (name.to_owned(), word.to_owned(), count)));
}
