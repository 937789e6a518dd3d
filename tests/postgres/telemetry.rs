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
async fn the_key_is_told_in_an_event_at_debug() {
    let log = log_of_every_ending(LevelFilter::DEBUG).await;
    assert!(log.contains(&format!("key=\"{KEY}-1\"")), "{log}");
    assert!(!log.contains("scope=\"a\""), "the scope is hashed");
}

/// A layer that listens at `DEBUG` must not put the key into the spans that another one writes at `INFO`.
#[tokio::test]
async fn a_layer_at_debug_puts_no_key_into_another_ones_info() {
    use tracing_subscriber::Layer;
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::registry::LookupSpan;
    fn layer<S>(log: &Log, level: LevelFilter) -> impl Layer<S>
    where
        S: tracing::Subscriber + for<'a> LookupSpan<'a>,
    {
        let writer = log.clone();
        let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(move || writer.clone());
        layer.with_span_events(FmtSpan::CLOSE).with_filter(level)
    }
    let (_database, app) = App::start().await;
    let (info, debug) = (Log::default(), Log::default());
    let subscriber =
        tracing_subscriber::registry().with(layer(&info, LevelFilter::INFO)).with(layer(&debug, LevelFilter::DEBUG));
    let guard = tracing::subscriber::set_default(subscriber);
    assert_eq!(app.post("/entries", KEY, &entry("told", Then::Created)).await.status, 201);
    drop(guard);
    let text = |log: &Log| String::from_utf8(log.0.lock().unwrap().clone()).expect("a text");
    assert!(text(&debug).contains(KEY), "{}", text(&debug));
    assert!(text(&info).contains("outcome=\"claimed\"") && !text(&info).contains(KEY), "{}", text(&info));
}

/// What is told of an operation is told by the task that does the work.
#[tokio::test]
async fn a_panic_and_a_client_that_hung_up_are_told_of() {
    let (_database, app) = App::start().await;
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::INFO)
        .with_span_events(FmtSpan::CLOSE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let guard = tracing::subscriber::set_default(subscriber);
    let panics = entry("panics", Then::Panic);
    let panicked =
        futures_util::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(app.post("/entries", "p", &panics)));
    panicked.await.expect_err("a panic");
    for (key, then, status) in [("a", Then::Wait, "claimed"), ("b", Then::Wait, "claimed")] {
        let waits = entry("waits", then);
        tokio::select! {
            _ = app.post("/entries", key, &waits) => panic!("the gate is closed"),
            () = app.gate.arrival() => {}
        }
        app.gate.open(1);
        assert_eq!(app.idempotency.shutdown().await, 0, "{key} {status}");
    }
    drop(guard);
    let text = String::from_utf8(log.0.lock().unwrap().clone()).expect("a text");
    let closed = |outcome: &str| {
        let lines = text.lines().filter(|line| line.contains("close time"));
        lines.filter(|line| line.contains(&format!("outcome=\"{outcome}\""))).count()
    };
    assert_eq!((closed("panicked"), closed("claimed")), (1, 2), "{text}");
    assert!(text.contains("the handler panicked") && text.contains("handler=\"idem_tests::create\""), "{text}");
}
