//! Messages that go out if and only if the write was committed, at least once, in order within a group.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::extract::{FromRef, State};
use axum::http::StatusCode;
use axum::routing::post;
use idem_runtime::{Idempotency, Message, Tx, idempotent};
use idem_testing::TestDatabase;
use idem_tests::{App, request};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tower::ServiceExt;

#[derive(Clone)]
struct Shop {
    idempotency: Idempotency,
}

impl FromRef<Shop> for Idempotency {
    fn from_ref(shop: &Shop) -> Self {
        shop.idempotency.clone()
    }
}

#[derive(Serialize, Deserialize)]
struct Order {
    messages: Vec<String>,
    group: Option<String>,
    status: u16,
}

#[idempotent(scope = global, ttl = "24h")]
async fn order(tx: &mut Tx, State(_shop): State<Shop>, Json(order): Json<Order>) -> Result<StatusCode, StatusCode> {
    for message in &order.messages {
        let outbox = tx.outbox();
        let outbox = if let Some(group) = &order.group { outbox.group(group) } else { outbox };
        outbox.send("mail", message, message).await.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    }
    StatusCode::from_u16(order.status).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
}

struct Process {
    router: Router,
    idempotency: Idempotency,
    pool: PgPool,
}

impl Process {
    fn over(database: &TestDatabase) -> Self {
        let pool = database.pool();
        let builder = Idempotency::builder(pool.clone()).relay_interval(Duration::from_millis(10));
        let idempotency = builder
            .delivery_attempts(2)
            .delivery_timeout(Duration::from_millis(500))
            .relay_lease(Duration::from_secs(1))
            .build()
            .expect("settings");
        let router = Router::new().route("/orders", post(order)).with_state(Shop { idempotency: idempotency.clone() });
        Self { router, idempotency, pool }
    }

    async fn order(&self, key: &str, messages: &[&str], group: Option<&str>, status: u16) -> u16 {
        let messages = messages.iter().map(ToString::to_string).collect();
        let body = Order { messages, group: group.map(str::to_owned), status };
        let request = request("/orders", &[("idempotency-key", key)], &body);
        self.router.clone().oneshot(request).await.unwrap_or_else(|error| match error {}).status().as_u16()
    }

    async fn undelivered(&self) -> i64 {
        let count = "SELECT count(*) FROM idem.outbox WHERE delivered_at IS NULL AND failure IS NULL";
        sqlx::query_scalar(count).fetch_one(&self.pool).await.expect("a count")
    }

    async fn until_delivered(&self) {
        for _ in 0..1_500 {
            if self.undelivered().await == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{} messages are stuck", self.undelivered().await);
    }
}

/// A receiver that remembers keys, and fails as it is told to.
#[derive(Default)]
struct Receiver {
    deliveries: Mutex<Vec<String>>,
    effects: Mutex<HashMap<String, u32>>,
    failing: Mutex<HashMap<String, u32>>,
}

impl Receiver {
    fn receive(&self, message: &Message) -> Result<(), String> {
        let text: String = message.payload().expect("a text");
        self.deliveries.lock().unwrap().push(text.clone());
        let mut effects = self.effects.lock().unwrap();
        let effect = effects.entry(message.key().to_string()).or_default();
        *effect = 1;
        match self.failing.lock().unwrap().get_mut(&text) {
            Some(0) | None => Ok(()),
            Some(left) => {
                *left -= 1;
                Err("not now".to_owned())
            }
        }
    }
}

fn relay(process: &Process, receiver: &Arc<Receiver>) -> idem_runtime::Relay {
    let receiver = Arc::clone(receiver);
    let relay = process.idempotency.relay().on_any(move |message| {
        let receiver = Arc::clone(&receiver);
        async move { receiver.receive(&message) }
    });
    relay.start().expect("a relay")
}

async fn start() -> (TestDatabase, Process, Arc<Receiver>) {
    let (database, _) = App::start().await;
    let process = Process::over(&database);
    (database, process, Arc::default())
}

#[tokio::test]
async fn a_message_goes_out_if_and_only_if_its_write_was_committed() {
    let (database, process, receiver) = start().await;
    assert_eq!(process.order("a", &["sent"], None, 201).await, 201);
    assert_eq!(process.order("a", &["sent"], None, 201).await, 201, "a replay writes nothing");
    assert_eq!(process.order("b", &["refused"], None, 402).await, 402);
    assert_eq!(process.order("c", &["failed"], None, 500).await, 500);
    assert_eq!(process.order("d", &["sent", "also"], None, 201).await, 201, "one topic and key is one message");
    let nodes = [relay(&process, &receiver), relay(&Process::over(&database), &receiver), relay(&process, &receiver)];
    process.until_delivered().await;
    let mut total = 0;
    for node in nodes {
        total += node.stop().await;
    }
    let mut deliveries = receiver.deliveries.lock().unwrap().clone();
    deliveries.sort();
    assert_eq!((deliveries.as_slice(), total), (["also".to_owned(), "sent".to_owned()].as_slice(), 2));
}

#[tokio::test]
async fn a_group_is_delivered_in_order_through_failures() {
    let (database, process, receiver) = start().await;
    let names: Vec<String> = (0..12).map(|number| format!("m{number:02}")).collect();
    for (number, name) in names.iter().enumerate() {
        process.order(&format!("k{number}"), &[name], Some("order-7"), 201).await;
        process.order(&format!("x{number}"), &[&format!("x{name}")], None, 201).await;
    }
    receiver.failing.lock().unwrap().insert("m03".to_owned(), 1);
    let nodes = [relay(&process, &receiver), relay(&Process::over(&database), &receiver)];
    process.until_delivered().await;
    for node in nodes {
        node.stop().await;
    }
    let deliveries = receiver.deliveries.lock().unwrap().clone();
    let of_group: Vec<String> = deliveries.into_iter().filter(|text| text.starts_with('m')).collect();
    let mut expected = names;
    expected.insert(4, "m03".to_owned());
    assert_eq!(of_group, expected);
}

#[tokio::test]
async fn a_message_that_cannot_be_delivered_is_a_dead_letter_and_its_group_goes_on() {
    let (_database, process, receiver) = start().await;
    receiver.failing.lock().unwrap().insert("dead".to_owned(), 2);
    process.order("a", &["dead", "next"], Some("g"), 201).await;
    let node = relay(&process, &receiver);
    process.until_delivered().await;
    let dead = process.idempotency.dead_letters(10).await.expect("a list");
    assert_eq!((dead.len(), dead[0].failure.as_str(), dead[0].message.dedupe_key()), (1, "not now", "dead"));
    assert_eq!(receiver.deliveries.lock().unwrap().as_slice(), ["dead", "dead", "next"]);
    // A person has it delivered after all.
    assert!(process.idempotency.redeliver(&dead[0]).await.expect("given back"));
    process.until_delivered().await;
    node.stop().await;
    assert!(!process.idempotency.discard_dead_letter(&dead[0]).await.expect("not dead any more"));
    assert_eq!(receiver.deliveries.lock().unwrap().last().map(String::as_str), Some("dead"));
}

#[tokio::test]
async fn a_slow_or_panicking_delivery_is_repeated_and_has_one_effect() {
    let (_database, process, receiver) = start().await;
    process.order("a", &["slow", "panics"], None, 201).await;
    let node = process.idempotency.relay().on_any({
        let receiver = Arc::clone(&receiver);
        move |message| {
            let receiver = Arc::clone(&receiver);
            async move {
                receiver.receive(&message)?;
                if message.attempt() == 1 && message.dedupe_key() == "slow" {
                    tokio::time::sleep(Duration::from_secs(60)).await;
                }
                assert!(message.attempt() > 1, "the handler panics, as the test asked");
                Ok::<_, String>(())
            }
        }
    });
    let node = node.start().expect("a relay");
    process.until_delivered().await;
    node.stop().await;
    assert_eq!(receiver.deliveries.lock().unwrap().len(), 4);
    assert_eq!(receiver.effects.lock().unwrap().values().copied().collect::<Vec<_>>(), [1, 1]);
}

/// A closure may panic before it has made a future, for example at a payload that does not parse.
#[tokio::test]
async fn a_relay_outlives_a_closure_that_panics() {
    let (_database, process, receiver) = start().await;
    process.order("a", &["poison"], None, 201).await;
    process.order("b", &["good"], None, 201).await;
    let node = process.idempotency.relay().on_any({
        let receiver = Arc::clone(&receiver);
        move |message| {
            assert_ne!(message.dedupe_key(), "poison", "the closure panics, as the test asked");
            let received = receiver.receive(&message);
            async move { received }
        }
    });
    let node = node.start().expect("a relay");
    process.until_delivered().await;
    node.stop().await;
    assert_eq!(receiver.deliveries.lock().unwrap().as_slice(), ["good"]);
    let dead = process.idempotency.dead_letters(10).await.expect("a list");
    assert_eq!((dead.len(), dead[0].message.dedupe_key()), (1, "poison"));
}

/// Postgres refuses a NUL in a text, and the receiver chooses the text.
#[tokio::test]
async fn whatever_the_receiver_says_a_message_becomes_a_dead_letter() {
    let (_database, process, _) = start().await;
    process.order("a", &["dead"], None, 201).await;
    let node = process.idempotency.relay().on_any(|_| async { Err::<(), _>("no\0t now") });
    let node = node.start().expect("a relay");
    process.until_delivered().await;
    node.stop().await;
    let dead = process.idempotency.dead_letters(10).await.expect("a list");
    assert_eq!((dead.len(), dead[0].failure.as_str()), (1, "no\u{fffd}t now"));
}

#[tokio::test]
async fn a_relay_that_dies_after_taking_a_message_costs_time_and_nothing_else() {
    let (database, process, receiver) = start().await;
    process.order("a", &["held"], None, 201).await;
    let (taken, was_taken) = tokio::sync::oneshot::channel();
    let taken = Mutex::new(Some(taken));
    let dying = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    // A pool of its own: connections belong to the runtime that opened them.
    let idempotency = Process::over(&database).idempotency;
    dying.spawn(async move {
        let relay = idempotency.relay().on_any(move |_| {
            if let Some(taken) = taken.lock().unwrap().take() {
                let _ = taken.send(());
            }
            std::future::pending::<Result<(), String>>()
        });
        let relay = relay.start().expect("a relay");
        std::future::pending::<()>().await;
        drop(relay);
    });
    was_taken.await.expect("taken");
    dying.shutdown_background();
    let node = relay(&process, &receiver);
    process.until_delivered().await;
    node.stop().await;
    assert_eq!(receiver.deliveries.lock().unwrap().as_slice(), ["held"]);
}

#[tokio::test]
async fn a_low_id_that_commits_late_is_delivered_36() {
    let (_database, process, receiver) = start().await;
    let mut late = process.pool.begin().await.expect("a transaction");
    let insert = "INSERT INTO idem.outbox (topic, dedupe_key, payload) VALUES ('mail', 'late', '\"late\"')";
    sqlx::query(insert).execute(&mut *late).await.expect("a low id");
    process.order("a", &["early"], None, 201).await;
    let node = relay(&process, &receiver);
    process.until_delivered().await;
    assert_eq!(receiver.deliveries.lock().unwrap().as_slice(), ["early"]);
    late.commit().await.expect("committed");
    process.until_delivered().await;
    node.stop().await;
    assert_eq!(receiver.deliveries.lock().unwrap().as_slice(), ["early", "late"]);
}

#[tokio::test]
async fn keys_of_different_messages_differ_38() {
    let (_database, process, receiver) = start().await;
    let mut tx = process.pool.begin().await.expect("a transaction");
    for (topic, dedupe_key) in [("ab", "c"), ("a", "bc"), ("a:b", "c"), ("a", "b:c")] {
        let insert = sqlx::query("INSERT INTO idem.outbox (topic, dedupe_key, payload) VALUES ($1, $2, '\"x\"')");
        insert.bind(topic).bind(dedupe_key).execute(&mut *tx).await.expect("a message");
    }
    tx.commit().await.expect("committed");
    let node = relay(&process, &receiver);
    process.until_delivered().await;
    node.stop().await;
    assert_eq!(receiver.effects.lock().unwrap().len(), 4);
}

#[tokio::test]
async fn delivered_messages_are_swept_after_their_retention() {
    let (database, process, receiver) = start().await;
    process.order("a", &["old", "new"], None, 201).await;
    let node = relay(&process, &receiver);
    process.until_delivered().await;
    node.stop().await;
    assert_eq!(process.idempotency.sweep().await.expect("a sweep"), 0);
    let age = "UPDATE idem.outbox SET delivered_at = delivered_at - interval '8 days' WHERE dedupe_key = 'old'";
    sqlx::query(age).execute(&process.pool).await.expect("an update");
    assert_eq!(Process::over(&database).idempotency.sweep().await.expect("a sweep"), 1);
}
