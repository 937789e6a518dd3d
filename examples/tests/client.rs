//! Both halves together, over the real server: what the client says is what the database says.

use std::time::Duration;

use axum::extract::{FromRef, FromRequestParts};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::routing::post;
use axum::{Json, Router};
use idem_client::{Client, FileJournal, Key, Reason, ResponseExt as _};
use idem_runtime::{Idempotency, Tx, idempotent};
use idem_testing::TestDatabase;
use serde_json::{Value, json};
use sqlx::PgPool;

#[derive(Clone, FromRef)]
struct AppState {
    idempotency: Idempotency,
}

/// The customer, behind a check of the token, which stands in front of the operation and knows no key.
struct Customer {
    id: i64,
}

impl<S: Sync> FromRequestParts<S> for Customer {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, StatusCode> {
        let token = parts.headers.get("authorization").and_then(|token| token.to_str().ok());
        if token == Some("Bearer fresh") { Ok(Self { id: 1 }) } else { Err(StatusCode::UNAUTHORIZED) }
    }
}

async fn insert(tx: &mut Tx, customer: &Customer, order: &Value) -> Result<(), StatusCode> {
    let insert = sqlx::query("INSERT INTO orders (customer, product) VALUES ($1, $2)").bind(customer.id);
    let inserted = insert.bind(order["product"].to_string()).execute(&mut *tx).await;
    inserted.map(drop).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
}

#[idempotent(scope = customer.id, ttl = "24h")]
async fn quick(customer: Customer, tx: &mut Tx, Json(order): Json<Value>) -> Result<StatusCode, StatusCode> {
    insert(tx, &customer, &order).await?;
    Ok(StatusCode::CREATED)
}

/// Takes longer than the client's attempts.
#[idempotent(scope = customer.id, ttl = "24h")]
async fn slow(customer: Customer, tx: &mut Tx, Json(order): Json<Value>) -> Result<StatusCode, StatusCode> {
    insert(tx, &customer, &order).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    Ok(StatusCode::CREATED)
}

async fn book(connection: &mut sqlx::PgConnection) -> sqlx::Result<()> {
    sqlx::raw_sql("COMMIT").execute(connection).await.map(drop)
}

/// Calls something that commits behind its back.
#[idempotent(scope = customer.id, ttl = "24h")]
async fn escapes(customer: Customer, tx: &mut Tx, Json(order): Json<Value>) -> Result<StatusCode, StatusCode> {
    insert(tx, &customer, &order).await?;
    book(&mut *tx).await.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok(StatusCode::CREATED)
}

struct Shop {
    pool: PgPool,
    url: String,
    client: Client,
    _database: TestDatabase,
    journal: std::path::PathBuf,
}

impl Drop for Shop {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.journal);
    }
}

impl Shop {
    async fn open() -> Self {
        let database = TestDatabase::create().await.unwrap();
        let pool = database.pool();
        let create = "CREATE TABLE orders (customer bigint NOT NULL, product text NOT NULL)";
        sqlx::query(create).execute(&pool).await.unwrap();
        let idempotency = Idempotency::new(pool.clone());
        idempotency.migrate().await.unwrap();
        let routes =
            Router::new().route("/quick", post(quick)).route("/slow", post(slow)).route("/escapes", post(escapes));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = routes.with_state(AppState { idempotency });
        tokio::spawn(async move { axum::serve(listener, app).await });
        let journal = std::env::temp_dir().join(format!("idem-both-halves-{}", Key::random()));
        let client = Client::builder().journal(FileJournal::open(&journal).unwrap());
        let client = client.attempt_timeout(Duration::from_millis(700)).build().unwrap();
        Self { pool, url, client, _database: database, journal }
    }

    fn order(&self, route: &str, key: &Key, token: &str, product: &str) -> idem_client::RequestBuilder {
        let request = self.client.post(format!("{}/{route}", self.url)).key(key).operation("order");
        request.bearer_auth(token).json(&json!({ "product": product }))
    }

    async fn orders(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(&self.pool).await.unwrap()
    }

    async fn pending(&self) -> usize {
        self.client.pending().await.unwrap().len()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operation_longer_than_its_attempts_ends_in_its_own_answer() {
    let shop = Shop::open().await;
    let key = Key::of("order", &1);
    let answer = shop.order("slow", &key, "fresh", "gift").send().await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.is_replay(), answer.settled()), (201, true, true));
    assert_eq!((shop.orders().await, shop.pending().await), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_token_after_a_lost_answer_does_not_settle_the_order() {
    let shop = Shop::open().await;
    let key = Key::of("order", &1);
    // Given up while the operation runs: its answer is lost.
    let lost = shop.order("slow", &key, "fresh", "gift").attempts(1).send().await.unwrap_err();
    assert!(lost.may_have_happened());
    let refused = shop.order("slow", &key, "stale", "gift").send().await.unwrap();
    assert_eq!((refused.status().as_u16(), refused.settled(), refused.may_have_happened()), (401, false, true));
    assert_eq!(shop.pending().await, 1);
    // Mended as the pages say: a fresh token, the same key.
    let answer = shop.order("slow", &key, "fresh", "gift").send().await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.settled()), (201, true));
    assert_eq!((shop.orders().await, shop.pending().await), (1, 0));
    // On the only attempt the same refusal is certain.
    let refused = shop.order("quick", &Key::of("order", &2), "stale", "gift").send().await.unwrap();
    assert_eq!((refused.settled(), refused.may_have_happened(), shop.pending().await), (true, false, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_body_does_not_strike_the_real_order_off() {
    let shop = Shop::open().await;
    let key = Key::of("order", &1);
    shop.order("slow", &key, "fresh", "gift").attempts(1).send().await.unwrap_err();
    let mismatch = shop.order("slow", &key, "fresh", "another gift").send().await.unwrap();
    assert_eq!((mismatch.status().as_u16(), mismatch.settled(), shop.pending().await), (422, false, 1));
    let answer = shop.order("slow", &key, "fresh", "gift").send().await.unwrap();
    assert_eq!((answer.status().as_u16(), shop.orders().await, shop.pending().await), (201, 1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn effects_that_the_server_does_not_know_are_for_a_person() {
    let shop = Shop::open().await;
    let key = Key::of("order", &1);
    for _ in 0..2 {
        let error = shop.order("escapes", &key, "fresh", "gift").send().await.unwrap_err();
        let gave_up = error.gave_up().unwrap();
        assert_eq!((gave_up.reason(), gave_up.attempts()), (Reason::EffectsUnknown, 1), "{error}");
        assert!(gave_up.may_have_happened() && error.to_string().contains("a person must look"), "{error}");
        assert_eq!((shop.orders().await, shop.pending().await), (1, 1), "once, and still on record");
    }
}
