//! One layer retries: a second one is refused, and an outer one is noticed.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use http::Extensions;
use idem_client::{Client, Error, Key, Layer, Overrides, Refusal};
use reqwest::{Request, Response};
use reqwest_middleware::{ClientBuilder, Middleware, Next};

use crate::support::{Act, Server, answer};

fn layer() -> Layer {
    Client::builder().back_off(Duration::from_millis(1), Duration::from_millis(1)).build_layer().unwrap()
}

fn http() -> reqwest::Client {
    reqwest::Client::builder().redirect(idem_client::redirect_policy()).build().unwrap()
}

#[tokio::test]
async fn two_layers_are_refused_before_anything_is_sent() {
    let server = Server::script([Act::Answer(answer(201))]).await;
    let twice = ClientBuilder::new(http()).with(layer()).with(layer()).build();
    let error = Error::from(twice.post(server.url("/orders")).send().await.unwrap_err());
    assert!(matches!(error, Error::Refused(Refusal::InstalledTwice)), "{error}");
    assert!(error.to_string().contains("must be installed once"), "{error}");
    assert_eq!(server.seen().len(), 0);
}

#[tokio::test]
async fn the_layer_works_in_a_stack_of_ones_own() {
    let server = Server::script([Act::Refuse(answer(503)), Act::Answer(answer(201)), Act::Refuse(answer(503))]).await;
    let stack = ClientBuilder::new(http()).with(layer()).build();
    let key = Key::of("order", &1);
    let response = stack.post(server.url("/orders")).header("idempotency-key", &key).body("x").send().await.unwrap();
    assert_eq!(response.status(), 201);
    server.assert_same_request(2);
    let request = stack.post(server.url("/orders")).header("idempotency-key", &key);
    let error = request.with_extension(Overrides::new().attempts(1)).send().await.unwrap_err();
    assert_eq!(Error::from(error).gave_up().unwrap().attempts(), 1);
    assert_eq!(server.seen().len(), 3);
}

/// A foreign middleware that sends everything again until it succeeds, three times at most.
struct OuterRetries;

#[async_trait]
impl Middleware for OuterRetries {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> reqwest_middleware::Result<Response> {
        let mut last = next.clone().run(request.try_clone().unwrap(), extensions).await;
        for _ in 0..2 {
            if last.is_ok() {
                break;
            }
            last = next.clone().run(request.try_clone().unwrap(), extensions).await;
        }
        last
    }
}

/// Collects what is logged.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    pub(crate) fn start(level: tracing::Level) -> (Self, tracing::subscriber::DefaultGuard) {
        // Whether an event is of interest is asked once, of the thread that comes by first. A test without a log must not
        // answer for one that has one, so every thread has a subscriber, and this one wants everything.
        static EVERYWHERE: std::sync::Once = std::sync::Once::new();
        EVERYWHERE.call_once(|| {
            let all = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(io::sink);
            tracing::subscriber::set_global_default(all.finish()).unwrap();
        });
        let log = Self::default();
        let writer = log.clone();
        let subscriber =
            tracing_subscriber::fmt().with_max_level(level).with_ansi(false).with_writer(move || writer.clone());
        (log, tracing::subscriber::set_default(subscriber.finish()))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

#[tokio::test]
async fn an_outer_layer_that_retries_is_noticed() {
    let (log, _guard) = Log::start(tracing::Level::WARN);
    let server = Server::script([Act::Refuse(answer(503))]).await;
    let stack = ClientBuilder::new(http()).with(OuterRetries).with(layer()).build();
    stack.post(server.url("/orders")).header("idempotency-key", "secret-key").send().await.unwrap_err();
    assert_eq!(log.text().matches("an outer layer retries too").count(), 1, "{}", log.text());
    assert!(log.text().contains("a middleware above sends the request again"), "{}", log.text());
    assert!(!log.text().contains("secret-key"), "{}", log.text());
}

#[tokio::test]
async fn an_attempt_counter_on_the_request_is_noticed() {
    for counter in ["idempotency-attempt", "x-envoy-attempt-count", "x-retry-count", "x-stainless-retry-count"] {
        let (log, _guard) = Log::start(tracing::Level::WARN);
        let server = Server::script([Act::Answer(answer(201))]).await;
        let client = Client::builder().build().unwrap();
        for _ in 0..3 {
            let request = client.post(server.url("/orders")).key(Key::of("order", &1)).header(counter, "2");
            request.send().await.unwrap();
        }
        assert_eq!(log.text().matches("an outer layer retries too").count(), 1, "said once: {}", log.text());
        assert!(log.text().contains(counter), "{}", log.text());
        assert_eq!(server.seen()[0].headers["idempotency-attempt"], ["1"]);
    }
}

#[tokio::test]
async fn a_plain_request_is_not_suspected_and_logs_hold_no_keys_or_bodies() {
    let (log, _guard) = Log::start(tracing::Level::DEBUG);
    let server = Server::script([Act::DropAfter, Act::Refuse(answer(503)), Act::Answer(answer(201))]).await;
    let client = Client::builder().build().unwrap();
    let send = || client.post(server.url("/orders?token=s3cret")).key(Key::new("secret-key").unwrap()).body("s3cret");
    send().send().await.unwrap();
    send().send().await.unwrap();
    assert!(!log.text().contains("an outer layer"), "{}", log.text());
    let own: String = log.text().lines().filter(|line| line.contains("idem_client")).collect();
    for secret in ["secret-key", "s3cret"] {
        assert!(!own.contains(secret), "{own}");
    }
}

#[tokio::test]
async fn a_dropped_attempt_is_not_taken_for_a_second_layer() {
    struct OuterTimeout;

    #[async_trait]
    impl Middleware for OuterTimeout {
        async fn handle(
            &self,
            request: Request,
            extensions: &mut Extensions,
            next: Next<'_>,
        ) -> reqwest_middleware::Result<Response> {
            let first = next.clone().run(request.try_clone().unwrap(), extensions);
            if let Ok(response) = tokio::time::timeout(Duration::from_millis(50), first).await {
                return response;
            }
            next.run(request, extensions).await
        }
    }

    let server = Server::script([Act::Never, Act::Answer(answer(201))]).await;
    let stack = ClientBuilder::new(http()).with(OuterTimeout).with(layer()).build();
    let response = stack.post(server.url("/orders")).header("idempotency-key", "k").send().await.unwrap();
    assert_eq!(response.status(), 201);
}
