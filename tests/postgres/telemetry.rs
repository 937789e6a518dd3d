//! What an operator sees: how each operation ended, and never a key or a body.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem_runtime::Idempotency;
use idem_testing::TestDatabase;
use idem_tests::{App, Then, entry, request};
use sqlx::ConnectOptions;
use sqlx::postgres::PgPoolOptions;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::format::FmtSpan;

/// Collects what is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

const KEY: &str = "secret-key-of-the-client";
const BODY: &str = "secret-body-of-the-client";

/// Every kind of ending, over a pool that takes every statement for slow.
async fn log_of_every_ending(level: LevelFilter) -> String {
    let database = TestDatabase::create().await.expect("a database");
    App::first(&database).await;
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_span_events(FmtSpan::CLOSE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let guard = tracing::subscriber::set_default(subscriber);
    let options = database.connect_options().log_slow_statements(log::LevelFilter::Warn, Duration::ZERO);
    let pool = PgPoolOptions::new().max_connections(2).connect_lazy_with(options);
    let builder = Idempotency::builder(pool.clone()).connection_timeout(Duration::from_millis(100));
    let app = App::over(pool.clone(), builder.build().expect("settings"));
    let post = |number: u32, then: Then| {
        let app = app.clone();
        async move { app.post("/entries", &format!("{KEY}-{number}"), &entry(BODY, then)).await.status }
    };
    assert_eq!(post(1, Then::Created).await, 201);
    assert_eq!(post(1, Then::Created).await, 201);
    assert_eq!(post(1, Then::Status(402)).await, 422);
    assert_eq!(post(2, Then::Status(402)).await, 402);
    assert_eq!(post(3, Then::Status(500)).await, 500);
    assert_eq!(post(4, Then::Escape(201)).await, 500);
    assert_eq!(post(5, Then::Stream).await, 500);
    assert_eq!(post(6, Then::Deferred).await, 500);
    assert_eq!(post(7, Then::Terminate).await, 503);
    let held = tokio::spawn(post(8, Then::Wait));
    app.gate.arrival().await;
    assert_eq!(post(8, Then::Wait).await, 409);
    app.gate.open(1);
    assert_eq!(held.await.expect("no panic"), 201);
    let missing = app.send(request("/entries", &[("tenant", "a")], &entry(BODY, Then::Created))).await;
    assert_eq!(missing.status, 400);
    let all = [pool.acquire().await.expect("a connection"), pool.acquire().await.expect("a connection")];
    assert_eq!(post(9, Then::Created).await, 503);
    drop(all);
    drop(guard);
    let bytes = log.0.lock().unwrap().clone();
    String::from_utf8(bytes).expect("a text")
}

#[tokio::test]
async fn keys_and_bodies_stay_out_of_the_log_at_info_also_of_slow_statements() {
    let log = log_of_every_ending(LevelFilter::INFO).await;
    let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    for secret in [KEY, BODY] {
        assert!(!log.contains(secret), "{log}");
        assert!(!log.contains(&hex(secret)), "{log}");
    }
    assert!(log.contains("slow statement"), "the handler's own statements are logged, without their values");
    for outcome in ["claimed", "replayed", "mismatch", "released", "failed", "in_flight", "missing_key", "unavailable"]
    {
        assert!(log.contains(&format!("outcome=\"{outcome}\"")), "{outcome}: {log}");
    }
    assert!(log.contains("handler=\"idem_tests::create\""), "{log}");
    assert!(log.contains("the response must have a known length to be stored"), "{log}");
    assert!(log.contains("a helper of it, committed the transaction"), "{log}");
}

#[tokio::test]
async fn the_key_is_in_the_span_at_debug() {
    let log = log_of_every_ending(LevelFilter::DEBUG).await;
    assert!(log.contains(&format!("key=\"{KEY}-1\"")), "{log}");
    assert!(!log.contains("scope=\"a\""), "the scope is hashed");
}
