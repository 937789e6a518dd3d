//! Where the handle is found, and names of parts in a loop.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Extension, Json, Router};
use idem_runtime::{Error, Idempotency, Operation, Tx, idempotent};
use idem_tests::{App, Reply, Tenant, request};
use serde_json::{Value, json};
use sqlx::PgPool;
use tower::ServiceExt;

/// A state that is shared as a whole: `FromRef` cannot be implemented for its `Arc`.
struct Shared {
    idempotency: Idempotency,
}

async fn insert(tx: &mut Tx, text: &str) -> StatusCode {
    let inserted = sqlx::query("INSERT INTO entries (text) VALUES ($1)").bind(text).execute(tx).await;
    if inserted.is_ok() { StatusCode::CREATED } else { StatusCode::INTERNAL_SERVER_ERROR }
}

#[idempotent(scope = tenant.id, ttl = "24h", idempotency = state.idempotency)]
async fn from_the_state(
    tenant: Tenant,
    State(state): State<Arc<Shared>>,
    tx: &mut Tx,
    Json(text): Json<String>,
) -> StatusCode {
    assert!(Arc::strong_count(&state) > 0);
    insert(tx, &text).await
}

#[idempotent(scope = tenant.id, ttl = "24h", idempotency = handle, fingerprint = text)]
async fn from_an_extension(
    tenant: Tenant,
    Extension(handle): Extension<Arc<Idempotency>>,
    tx: &mut Tx,
    Json(text): Json<String>,
) -> StatusCode {
    insert(tx, &text).await
}

async fn send(router: &Router, key: &str, text: &str) -> Reply {
    let headers = [("idempotency-key", key), ("tenant", "a")];
    Reply::of(router.clone().oneshot(request("/", &headers, &json!(text))).await.expect("an answer")).await
}

async fn entries(pool: &PgPool) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM entries").fetch_one(pool).await.expect("a count")
}

#[tokio::test]
async fn the_handle_may_be_in_any_argument() {
    let (_database, app) = App::start().await;
    let state = Arc::new(Shared { idempotency: app.idempotency.clone() });
    let routers = [
        Router::new().route("/", post(from_the_state)).with_state(state),
        Router::new().route("/", post(from_an_extension)).layer(Extension(Arc::new(app.idempotency.clone()))),
    ];
    for (position, router) in routers.iter().enumerate() {
        let key = format!("k{position}");
        let before = entries(&app.pool).await;
        let first = send(router, &key, "a").await;
        assert_eq!(first.status, 201);
        let second = send(router, &key, "a").await;
        second.assert_replays(&first);
        assert_eq!(send(router, &key, "b").await.status, 422);
        assert_eq!(entries(&app.pool).await, before + 1, "one row for three requests");
    }
}

/// Charges by derived key, and the items whose next charge fails.
#[derive(Default)]
struct Provider {
    charges: Mutex<HashMap<String, u32>>,
    fail: Mutex<Vec<i64>>,
}

impl Provider {
    fn charge(&self, key: &str, item: i64) -> Result<i64, Error> {
        let mut fail = self.fail.lock().unwrap();
        if let Some(position) = fail.iter().position(|failing| *failing == item) {
            fail.remove(position);
            return Err(Error::LostClaim);
        }
        *self.charges.lock().unwrap().entry(key.to_owned()).or_default() += 1;
        Ok(item * 2)
    }
}

#[idempotent(scope = "carts", key = id, ttl = "24h")]
async fn charge_all(
    idempotency: &Idempotency,
    op: &mut Operation,
    id: &str,
    provider: Arc<Provider>,
    items: Vec<i64>,
) -> Result<Value, Error> {
    let mut charged = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let amount: i64 = op.step(("charge item", index), async |key| provider.charge(key.as_str(), *item)).await?;
        let count: i64 = op
            .transaction(("book item", index), async |tx| {
                sqlx::query("INSERT INTO entries (text) VALUES ('item')").execute(tx).await.map_err(Error::Database)?;
                Ok::<_, Error>(amount)
            })
            .await?;
        charged.push(count);
    }
    Ok(json!(charged))
}

#[tokio::test]
async fn each_round_of_a_loop_has_a_name_of_its_own() {
    let (_database, app) = App::start().await;
    let provider = Arc::new(Provider::default());
    provider.fail.lock().unwrap().push(30);
    let call = || charge_all(&app.idempotency, "cart", provider.clone(), vec![10, 20, 30, 20]);
    call().await.expect_err("the third charge fails");
    let charged = call().await.expect("the rest is charged");
    assert_eq!(charged, json!([20, 40, 60, 40]));
    assert_eq!(call().await.expect("recorded"), charged);
    let charges = provider.charges.lock().unwrap().clone();
    assert_eq!(charges.len(), 4, "a key for each round, also for equal items: {charges:?}");
    assert!(charges.values().all(|count| *count == 1), "no item is charged twice: {charges:?}");
    assert_eq!(entries(&app.pool).await, 4, "a row for each item");
}
