//! Ours.

use axum::extract::FromRef;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use idem_benches::Result;
use idem_benches::application::Tenant;
use idem_benches::stage::CONNECTIONS;
use idem_runtime::{Idempotency, Tx, idempotent};
use serde_json::Value;
use sqlx::postgres::PgPoolOptions;

use crate::orders::{INSERT, SLOW, created, product_and_quantity};

#[derive(Clone)]
struct AppState(Idempotency);

impl FromRef<AppState> for Idempotency {
    fn from_ref(state: &AppState) -> Self {
        state.0.clone()
    }
}

type Created = std::result::Result<(StatusCode, Json<Value>), (StatusCode, String)>;

async fn insert(tx: &mut Tx, body: &Value) -> Created {
    let (product, quantity) = product_and_quantity(body);
    let inserted = sqlx::query_scalar(INSERT).bind(product).bind(quantity).fetch_one(tx).await;
    let id = inserted.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    Ok(created(id, body))
}

#[idempotent(scope = tenant.id(), ttl = "24h")]
async fn create(tenant: Tenant, tx: &mut Tx, Json(body): Json<Value>) -> Created {
    insert(tx, &body).await
}

#[idempotent(scope = tenant.id(), ttl = "24h")]
async fn slow(tenant: Tenant, tx: &mut Tx, Json(body): Json<Value>) -> Created {
    let answer = insert(tx, &body).await;
    tokio::time::sleep(SLOW).await;
    answer
}

#[idempotent(scope = tenant.id(), ttl = "24h")]
async fn crash(tenant: Tenant, tx: &mut Tx, Json(body): Json<Value>) -> Created {
    let _ = insert(tx, &body).await;
    std::process::abort()
}

pub(super) fn wrap(url: &str, crashing: bool) -> Result<Router> {
    let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect_lazy(url)?;
    let crash = if crashing { post(crash) } else { post(create) };
    let routes = Router::new().route("/orders", post(create)).route("/slow", post(slow)).route("/crash", crash);
    Ok(routes.with_state(AppState(Idempotency::new(pool))))
}
