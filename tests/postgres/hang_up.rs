//! The client hung up: the operation goes on to its end, and never has two effects.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use idem_tests::{App, Then, entry, request};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceExt;

/// Posts until the answer is final, as a client retries.
async fn retry(app: &App, key: &str, text: &str) -> u16 {
    loop {
        let reply = app.post("/entries", key, &entry(text, Then::Created)).await;
        if reply.status != 409 {
            return reply.status;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Polls a future `polls` times and drops it. Whether it was done by then.
pub(crate) async fn abandon<F: Future>(future: F, polls: usize) -> bool {
    let mut future = pin!(future);
    for _ in 0..polls {
        let polled = std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
        if polled.is_ready() {
            return true;
        }
        tokio::time::sleep(Duration::from_micros(300)).await;
    }
    false
}

#[tokio::test]
async fn a_request_dropped_at_any_await_has_one_effect_7() {
    let (_database, app) = App::start().await;
    let headers = |key: &str| [("tenant".to_owned(), "a".to_owned()), ("idempotency-key".to_owned(), key.to_owned())];
    let mut rounds = 0;
    loop {
        let key = format!("k{rounds}");
        let headers = headers(&key);
        let headers: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let request = request("/entries", &headers, &entry(&key, Then::Created));
        let done = abandon(app.router.clone().oneshot(request), rounds + 1).await;
        assert_eq!(retry(&app, &key, &key).await, 201);
        let effects: i64 = sqlx::query_scalar("SELECT count(*) FROM entries WHERE text = $1")
            .bind(&key)
            .fetch_one(&app.pool)
            .await
            .expect("a count");
        assert_eq!(effects, 1, "dropped after {} polls", rounds + 1);
        rounds += 1;
        if done && rounds > 5 {
            break;
        }
    }
    assert_eq!(app.idempotency.shutdown().await, 0);
}

#[tokio::test]
async fn a_connection_closed_at_any_time_has_one_effect_7() {
    let (_database, app) = App::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let router = app.router.clone();
    tokio::spawn(async move { axum::serve(listener, router).await });
    for round in 0..60_u64 {
        let key = format!("k{round}");
        let body = serde_json::to_string(&entry(&key, Then::Created)).expect("JSON");
        let length = body.len();
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        let head = format!(
            "POST /entries HTTP/1.1\r\nhost: x\r\ntenant: a\r\nidempotency-key: {key}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        stream.write_all((head + &body).as_bytes()).await.expect("sent");
        tokio::time::sleep(Duration::from_micros(round * 100)).await;
        drop(stream);
        assert_eq!(retry(&app, &key, &key).await, 201);
    }
    assert_eq!((app.entries().await, app.stored().await), (60, 60));
}

#[tokio::test]
async fn an_operation_whose_client_is_gone_completes_and_is_replayed() {
    let (_database, app) = App::start().await;
    let client = tokio::spawn({
        let app = app.clone();
        async move { app.post("/entries", "k", &entry("held", Then::Wait)).await }
    });
    app.gate.arrival().await;
    client.abort();
    assert!(client.await.expect_err("aborted").is_cancelled());
    assert_eq!(app.post("/entries", "k", &entry("held", Then::Wait)).await.status, 409);
    app.gate.open(1);
    assert_eq!(app.idempotency.shutdown().await, 0, "shutdown waits for it");
    assert!(app.post("/entries", "k", &entry("held", Then::Wait)).await.replayed());
    assert_eq!(app.entries().await, 1);
}

#[tokio::test]
async fn shutdown_gives_up_at_its_limit() {
    let (database, _) = App::start().await;
    let pool = database.pool();
    let builder = idem_runtime::Idempotency::builder(pool.clone()).shutdown_limit(Duration::from_millis(50));
    let app = App::over(pool, builder.build().expect("settings"));
    let client = tokio::spawn({
        let app = app.clone();
        async move { app.post("/entries", "k", &entry("held", Then::Wait)).await }
    });
    app.gate.arrival().await;
    assert_eq!(app.idempotency.shutdown().await, 1);
    app.gate.open(1);
    assert_eq!(client.await.expect("no panic").status, 201);
}
