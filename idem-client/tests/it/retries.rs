//! What is retried, what is not, and what the caller hears.

use std::time::{Duration, Instant, SystemTime};

use idem_client::{Attempts, Client, Error, Failure, Key, KeyProblem, Reason, Refusal};

use crate::support::{Act, SchedulingDelay, Seen, Server, answer};

fn client() -> Client {
    let builder = Client::builder().back_off(Duration::from_millis(20), Duration::from_millis(100));
    builder.attempt_timeout(Duration::from_millis(400)).deadline(Duration::from_secs(10)).build().unwrap()
}

fn key() -> Key {
    Key::of("order-confirm", &4711)
}

async fn send(client: &Client, server: &Server) -> Result<reqwest::Response, Error> {
    client.post(server.url("/orders?dry_run=0")).key(key()).body("{\"total\":7}").send().await
}

/// One failed attempt and then a good one: the same request twice, one effect, the whole answer.
async fn assert_recovers(first: Act) {
    let server = Server::script([first.clone(), Act::Answer(answer(201).header("location", "/orders/1"))]).await;
    let response = send(&client(), &server).await.unwrap();
    assert_eq!(response.status(), 201, "{first:?}");
    assert_eq!(response.headers()["location"], "/orders/1");
    assert_eq!(response.url().as_str(), server.url("/orders?dry_run=0"));
    assert_eq!(response.extensions().get(), Some(&Attempts(2)));
    assert!(response.remote_addr().is_some());
    assert_eq!(response.text().await.unwrap(), "answer 201");
    server.assert_same_request(2);
    let seen = server.seen();
    assert_eq!(seen[0].key(), Some(key().as_str()));
    assert_eq!(seen[0].body, "{\"total\":7}");
    assert_eq!(
        seen.iter().map(|request| request.header("idempotency-attempt")).collect::<Vec<_>>(),
        [Some("1"), Some("2")]
    );
    assert_eq!(server.effects(), [key().as_str()], "{first:?}");
}

#[tokio::test]
async fn lost_answers_and_requests_are_sent_again_with_the_same_key() {
    assert_recovers(Act::DropBefore).await;
    assert_recovers(Act::DropAfter).await;
    assert_recovers(Act::ResetMidBody(answer(201).body("a body that is cut short in the middle"))).await;
    assert_recovers(Act::Slow(Duration::from_secs(2), answer(201))).await;
    assert_recovers(Act::Never).await;
}

#[tokio::test]
async fn overload_and_gateway_answers_are_sent_again() {
    for status in [408, 425, 429, 502, 503, 504] {
        assert_recovers(Act::Refuse(answer(status))).await;
    }
}

#[tokio::test]
async fn a_conflict_is_waited_out_only_when_it_means_in_flight() {
    assert_recovers(Act::Refuse(answer(409).header("retry-after", "0"))).await;
    let problem = r#"{"type":"https://idem.example/problems/in-flight","title":"in flight","status":409}"#;
    assert_recovers(Act::Refuse(answer(409).header("content-type", "application/problem+json").body(problem))).await;
    assert_final(Act::Answer(answer(409))).await;
    let own = r#"{"type":"https://shop.example/problems/sold-out","status":409}"#;
    assert_final(Act::Answer(answer(409).header("content-type", "application/problem+json").body(own))).await;
}

#[tokio::test]
async fn a_server_may_have_its_own_word_for_in_flight() {
    let server = Server::script([Act::Refuse(answer(409).body("BUSY")), Act::Answer(answer(201))]).await;
    let client = Client::builder().in_flight_when(|answer| &answer.body[..] == b"BUSY").build().unwrap();
    assert_eq!(send(&client, &server).await.unwrap().status(), 201);
    server.assert_same_request(2);
}

async fn assert_final(act: Act) {
    let server = Server::script([act.clone(), Act::Answer(answer(200).body("a second attempt"))]).await;
    let response = send(&client(), &server).await.unwrap();
    assert_ne!(response.status(), 200, "{act:?}");
    assert!(response.text().await.unwrap() != "a second attempt");
    server.assert_same_request(1);
}

#[tokio::test]
async fn the_servers_word_is_final() {
    for status in [400, 401, 403, 404, 409, 410, 422, 500, 501] {
        assert_final(Act::Answer(answer(status))).await;
    }
}

#[tokio::test]
async fn a_write_without_a_key_is_sent_once() {
    for status in [429, 500, 502, 503, 504] {
        let server = Server::script([Act::Answer(answer(status).header("retry-after", "0"))]).await;
        for request in [client().post(server.url("/orders")), client().patch(server.url("/orders"))] {
            assert_eq!(request.body("x").send().await.unwrap().status(), status);
        }
        let seen = server.seen();
        assert_eq!(seen.len(), 2);
        assert!(seen.iter().all(|request| request.key().is_none()));
        assert_eq!(server.effects(), ["-", "-"]);
    }
    let server = Server::script([Act::DropAfter]).await;
    let error = client().post(server.url("/orders")).body("x").send().await.unwrap_err();
    let gave_up = error.gave_up().unwrap();
    assert_eq!((gave_up.reason(), gave_up.attempts(), gave_up.key()), (Reason::NoKey, 1, None));
    assert!(gave_up.may_have_happened());
    assert_eq!(server.effects(), ["-"]);
}

#[tokio::test]
async fn methods_that_http_calls_idempotent_need_no_key() {
    let server = Server::script([Act::DropBefore, Act::Answer(answer(200))]).await;
    assert_eq!(client().get(server.url("/orders/1")).send().await.unwrap().status(), 200);
    assert_eq!(server.seen().len(), 2);
    let server = Server::script([Act::Refuse(answer(503)), Act::Answer(answer(200))]).await;
    assert_eq!(client().delete(server.url("/orders/1")).send().await.unwrap().status(), 200);
    assert_eq!(server.seen().len(), 2);
}

#[tokio::test]
async fn a_random_key_is_made_once_for_all_attempts() {
    let acts = [Act::DropAfter, Act::Refuse(answer(503)), Act::Answer(answer(201))];
    let server = Server::script(acts).await;
    let client = Client::builder().random_keys(true).back_off(Duration::from_millis(1), Duration::from_millis(1));
    let client = client.build().unwrap();
    assert_eq!(client.post(server.url("/orders")).body("x").send().await.unwrap().status(), 201);
    server.assert_same_request(3);
    assert_eq!(server.effects(), [server.seen()[0].key().unwrap()]);
    client.post(server.url("/orders")).body("x").send().await.unwrap();
    client.get(server.url("/orders")).send().await.unwrap();
    let seen = server.seen();
    assert_ne!(seen[0].key(), seen[3].key());
    assert_eq!(seen[4].key(), None);
}

#[tokio::test]
async fn the_callers_own_key_is_never_replaced() {
    let server = Server::script([Act::DropAfter, Act::Answer(answer(201))]).await;
    let client = Client::builder().random_keys(true).build().unwrap();
    client.post(server.url("/orders")).header("Idempotency-Key", "\"mine\"").body("x").send().await.unwrap();
    server.assert_same_request(2);
    assert_eq!(server.seen()[0].key(), Some("\"mine\""));
}

#[tokio::test]
async fn a_key_that_is_none_or_two_is_refused_unsent() {
    let server = Server::script([Act::Answer(answer(201))]).await;
    let post = || client().post(server.url("/orders")).body("x");
    let refusals = [
        post().header("idempotency-key", "").send().await,
        post().header("idempotency-key", "a b").send().await,
        post().header("idempotency-key", "a").header("idempotency-key", "b").send().await,
        post().header("idempotency-key", "a").key(key()).send().await,
    ];
    let problems: Vec<String> = refusals
        .into_iter()
        .map(|refused| match refused.unwrap_err() {
            Error::Refused(Refusal::Key(problem)) => format!("{problem:?}"),
            other => panic!("{other}"),
        })
        .collect();
    let invalid = format!("{:?}", KeyProblem::Invalid(Key::new("").unwrap_err()));
    assert_eq!(problems, [invalid.as_str(), invalid.as_str(), "Repeated", "Conflict"]);
    assert_eq!(server.seen().len(), 0);
}

#[tokio::test]
async fn a_body_that_cannot_be_sent_twice_is_refused_before_the_first_attempt() {
    let server = Server::script([Act::Answer(answer(201))]).await;
    let stream = || {
        let chunks = ["{\"total\"", ":7}"].map(Ok::<_, std::io::Error>);
        reqwest::Body::wrap_stream(futures_util::stream::iter(chunks))
    };
    let refused = client().post(server.url("/orders")).key(key()).body(stream()).send().await.unwrap_err();
    assert!(matches!(refused, Error::Refused(Refusal::StreamingBody)), "{refused}");
    assert!(refused.to_string().contains("must be in memory or a `ReplayableBody`; use bytes or text"), "{refused}");
    assert_eq!(server.seen().len(), 0, "nothing was sent");
    // What is sent once may stream.
    let once = client().post(server.url("/orders")).key(key()).attempts(1).body(stream()).send().await.unwrap();
    assert_eq!(once.status(), 201);
    client().post(server.url("/orders")).body(stream()).send().await.unwrap();
    assert_eq!(server.seen().len(), 2);
    assert!(server.seen()[0].body.contains("{\"total\""));
}

#[tokio::test]
async fn retry_after_wins_over_the_jitter_in_both_forms() {
    // A date has whole seconds: the one two seconds ahead is between one and two away.
    let delay = SchedulingDelay::measure();
    let in_two_seconds = || httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(2));
    for status in [429, 503] {
        for date in [false, true] {
            let (form, least) = if date { (in_two_seconds(), 0.9) } else { ("1".to_owned(), 1.0) };
            let server = Server::script([
                Act::Refuse(answer(status).header("retry-after", form.clone())),
                Act::Answer(answer(201)),
            ])
            .await;
            send(&client(), &server).await.unwrap();
            let gap = server.gaps()[0].as_secs_f64();
            // The jitter of at most 20 ms comes on top.
            let most = if date { 2.0 } else { 1.0 } + 0.02 + delay.allowance().as_secs_f64();
            assert!((least..most).contains(&gap), "{status} {form}: {gap}");
        }
    }
}

#[tokio::test]
async fn a_retry_after_past_the_deadline_gives_up_at_once() {
    let far = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(3600));
    for form in ["60".to_owned(), far, "99999999999999999999".to_owned()] {
        let server = Server::script([Act::Refuse(answer(503).header("retry-after", form.clone()))]).await;
        let delay = SchedulingDelay::measure();
        let started = Instant::now();
        let error = send(&client(), &server).await.unwrap_err();
        assert!(started.elapsed() < delay.allowance() + Duration::from_millis(100), "{form}: {:?}", started.elapsed());
        let gave_up = error.gave_up().unwrap();
        assert!(matches!(gave_up.reason(), Reason::RetryAfter(_)), "{error}");
        server.assert_same_request(1);
    }
}

#[tokio::test]
async fn attempts_are_counted_and_waits_stay_within_the_bounds() {
    let server = Server::script([Act::Refuse(answer(503))]).await;
    let client = Client::builder().back_off(Duration::from_millis(100), Duration::from_millis(150)).build().unwrap();
    let delay = SchedulingDelay::measure();
    let error = send(&client, &server).await.unwrap_err();
    assert_eq!(error.gave_up().unwrap().attempts(), 4);
    assert_eq!(error.gave_up().unwrap().reason(), Reason::AttemptsSpent);
    server.assert_same_request(4);
    for (gap, most) in server.gaps().iter().zip([100, 150, 150]) {
        assert!(*gap <= Duration::from_millis(most) + delay.allowance(), "{:?}", server.gaps());
    }
}

#[tokio::test]
async fn one_request_may_have_limits_of_its_own() {
    let server = Server::script([Act::Refuse(answer(503))]).await;
    let post = || client().post(server.url("/orders")).key(key());
    post().attempts(2).send().await.unwrap_err();
    assert_eq!(server.seen().len(), 2);
    let refused = post().deadline(Duration::MAX).send().await.unwrap_err();
    assert!(matches!(refused, Error::Refused(Refusal::Setting(_))), "{refused}");
    assert_eq!(server.seen().len(), 2);
    let slow = Server::script([Act::Never]).await;
    let delay = SchedulingDelay::measure();
    let started = Instant::now();
    let request = client().post(slow.url("/orders")).key(key()).attempt_timeout(Duration::from_millis(50));
    let error = request.attempts(2).operation("slow-order").send().await.unwrap_err();
    let most = Duration::from_millis(2 * 50 + 20) + 2 * delay.allowance();
    assert!(started.elapsed() < most, "{:?}", started.elapsed());
    assert_eq!(error.gave_up().unwrap().operation(), "slow-order");
}

#[tokio::test]
async fn the_deadline_is_kept_to_within_one_scheduling_delay() {
    let deadline = Duration::from_millis(700);
    // Never answered: the last attempt is cut at the deadline. Always refused: no wait is begun that would pass it.
    for act in [Act::Never, Act::Slow(Duration::from_millis(300), answer(503)), Act::DropAfter] {
        let server = Server::script([act.clone()]).await;
        let client = Client::builder().attempts(100).deadline(deadline).retry_budget(10.0, 1000);
        let client = client.breaker(1000, Duration::from_secs(5)).build().unwrap();
        let delay = SchedulingDelay::measure();
        let started = Instant::now();
        let error = send(&client, &server).await.unwrap_err();
        let took = started.elapsed();
        assert!(took <= deadline + delay.allowance(), "{act:?}: {took:?} with {:?}", delay.allowance());
        assert_eq!(error.gave_up().unwrap().reason(), Reason::DeadlinePassed, "{act:?}");
    }
}

#[tokio::test]
async fn the_deadline_goes_downstream_and_shrinks() {
    let server = Server::script([Act::Slow(Duration::from_millis(100), answer(503)), Act::Answer(answer(201))]).await;
    send(&client(), &server).await.unwrap();
    let told: Vec<u64> =
        server.seen().iter().map(|seen| seen.header("x-request-timeout-ms").unwrap().parse().unwrap()).collect();
    assert!((9_000..=10_000).contains(&told[0]) && told[1] <= told[0] - 100, "{told:?}");
    // A nearer deadline that is on the request already is the one that counts.
    let never = Server::script([Act::Never]).await;
    let delay = SchedulingDelay::measure();
    let started = Instant::now();
    let request = client().post(never.url("/orders")).key(key()).header("x-request-timeout-ms", "150");
    request.send().await.unwrap_err();
    assert!(started.elapsed() < Duration::from_millis(150) + delay.allowance(), "{:?}", started.elapsed());
    assert_eq!(never.seen()[0].headers["x-request-timeout-ms"].len(), 1);
    // A deadline that has passed already: nothing is sent.
    let request = client().post(never.url("/orders")).key(key()).header("x-request-timeout-ms", "0");
    let error = request.send().await.unwrap_err();
    let gave_up = error.gave_up().unwrap();
    assert_eq!((gave_up.reason(), gave_up.attempts()), (Reason::DeadlinePassed, 0));
    assert!(!gave_up.may_have_happened());
    assert_eq!(never.seen().len(), 1);
}

#[tokio::test]
async fn giving_up_says_the_state_of_the_world() {
    let acts = [Act::DropAfter, Act::Refuse(answer(503).body("no")), Act::Never, Act::DropBefore];
    let server = Server::script(acts).await;
    let client = Client::builder().status_url("/status/{key}").attempt_timeout(Duration::from_millis(100));
    let client = client.build().unwrap();
    let url = server.url("/orders?token=secret").replace("http://", "http://user:hunter2@");
    let error = client.post(url).key(key()).body("secret body").send().await.unwrap_err();
    let gave_up = error.gave_up().unwrap();
    assert_eq!(gave_up.key(), Some(&key()));
    assert_eq!(gave_up.attempts(), 4);
    assert_eq!(gave_up.reason(), Reason::AttemptsSpent);
    assert!(gave_up.may_have_happened());
    assert_eq!(gave_up.last_status().map(|status| status.as_u16()), Some(503));
    assert_eq!(&gave_up.last_answer().unwrap().body[..], b"no");
    assert!(matches!(gave_up.last_failure(), Some(Failure::Broken(_))));
    let status_url = server.url(&format!("/status/{}", key()));
    assert_eq!(gave_up.status_url().unwrap().as_str(), status_url);
    let text = error.to_string();
    for part in ["gave up on `order-confirm`", "at least 4 times", "503", "it may have happened", &status_url] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let everything = format!("{text} {error:?} {:?}", std::error::Error::source(&error).map(ToString::to_string));
    for secret in ["secret", "hunter2"] {
        assert!(!everything.contains(secret), "{everything}");
    }
}

#[tokio::test]
async fn what_certainly_did_not_happen_is_said_so() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/orders", unused.local_addr().unwrap());
    drop(unused);
    let error = client().post(url).key(key()).send().await.unwrap_err();
    let gave_up = error.gave_up().unwrap();
    assert!(matches!(gave_up.last_failure(), Some(Failure::Connect(_))), "{error:?}");
    assert_eq!((gave_up.attempts(), gave_up.may_have_happened()), (4, false));
    assert!(error.to_string().ends_with("; it has not happened"), "{error}");
    let server = Server::script([Act::Refuse(answer(429))]).await;
    assert!(!send(&client(), &server).await.unwrap_err().gave_up().unwrap().may_have_happened());
    let server = Server::script([Act::Refuse(answer(429)), Act::DropBefore, Act::Refuse(answer(429))]).await;
    assert!(send(&client(), &server).await.unwrap_err().gave_up().unwrap().may_have_happened());
}

#[tokio::test]
async fn a_long_body_is_not_held_in_memory_and_arrives_whole() {
    let long: String = (0..40_000).map(|number| char::from(b'a' + (number % 26) as u8)).collect();
    let with_length = Act::Answer(answer(200).body(long.clone()));
    let client = Client::builder().buffer_limit(10_000).build().unwrap();
    let server = Server::script([with_length]).await;
    assert_eq!(client.get(server.url("/report")).send().await.unwrap().text().await.unwrap(), long);
    // Without a length the client finds out while it reads, and goes on from there.
    let server = chunked_server(long.clone()).await;
    let response = client.get(&server).send().await.unwrap();
    assert_eq!(response.url().as_str(), format!("{server}/"));
    assert_eq!(response.text().await.unwrap(), long);
}

async fn chunked_server(body: String) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 4096]).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
        for chunk in body.as_bytes().chunks(3_000) {
            let head = format!("{:x}\r\n", chunk.len());
            stream.write_all(&[head.as_bytes(), chunk, b"\r\n"].concat()).await.unwrap();
        }
        stream.write_all(b"0\r\n\r\n").await.unwrap();
        let _ = stream.read(&mut [0; 16]).await;
    });
    base
}

#[tokio::test]
async fn events_without_end_are_handed_over_at_once() {
    let server = Server::start(|_, _: &Seen| {
        Act::Answer(answer(200).header("content-type", "text/event-stream").body("data: 1\n\n"))
    })
    .await;
    let response = client().get(server.url("/events")).send().await.unwrap();
    assert_eq!(response.text().await.unwrap(), "data: 1\n\n");
}

#[tokio::test]
async fn the_key_header_has_the_name_that_the_provider_wants() {
    let server = Server::script([Act::DropBefore, Act::Answer(answer(201))]).await;
    let name = http::HeaderName::from_static("paypal-request-id");
    let client = Client::builder().key_header(name).deadline_header(None).build().unwrap();
    send(&client, &server).await.unwrap();
    for request in server.seen() {
        assert_eq!(request.header("paypal-request-id"), Some(key().as_str()));
        assert_eq!((request.key(), request.header("x-request-timeout-ms")), (None, None));
    }
}

#[tokio::test]
async fn settings_out_of_range_are_refused_where_they_are_set() {
    let refusals = [
        Client::builder().attempts(0).build().unwrap_err(),
        Client::builder().deadline(Duration::MAX).build().unwrap_err(),
        Client::builder().retry_budget(f64::INFINITY, 1).build().unwrap_err(),
        Client::builder().breaker(0, Duration::from_secs(1)).build().unwrap_err(),
        Client::builder().breaker(1, Duration::ZERO).build().unwrap_err(),
        Client::builder().status_url("/status").build().unwrap_err(),
    ];
    for refusal in refusals {
        assert!(refusal.to_string().contains("must"), "{refusal}");
    }
}

#[tokio::test]
async fn a_caller_that_goes_away_leaves_nothing_running() {
    let server = Server::script([Act::Refuse(answer(503))]).await;
    let slow = Client::builder().back_off(Duration::from_millis(50), Duration::from_millis(50)).build().unwrap();
    let url = server.url("/orders");
    let sending = tokio::spawn(async move { slow.post(url).key(key()).send().await });
    while server.seen().is_empty() {
        tokio::task::yield_now().await;
    }
    sending.abort();
    assert!(sending.await.unwrap_err().is_cancelled());
    let seen = server.seen().len();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(server.seen().len(), seen);
}
