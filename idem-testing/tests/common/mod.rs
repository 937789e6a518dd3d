//! The usual ways to store idempotency keys, with the usual defects: what the kit must catch.
#![allow(dead_code)] // each test program uses a part

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use sqlx::{Executor, PgPool};

/// Claim committed; work committed; response stored. A claim that is older than its lease is taken over, and its owner
/// is not told: there is no fence.
pub(crate) async fn broken_store(pool: PgPool) -> Router {
    let tables = "CREATE TABLE IF NOT EXISTS orders (id bigserial PRIMARY KEY, item text NOT NULL); \
                  CREATE TABLE IF NOT EXISTS claims \
                  (key text PRIMARY KEY, claimed_at timestamptz NOT NULL DEFAULT clock_timestamp(), response text)";
    pool.execute(sqlx::raw_sql(tables)).await.unwrap();
    Router::new().route("/orders", post(create_order)).with_state(pool)
}

pub(crate) fn order() -> Request<Body> {
    Request::post("/orders").body(Body::from("book")).unwrap()
}

pub(crate) async fn count_orders(pool: PgPool) -> sqlx::Result<i64> {
    sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(&pool).await
}

async fn create_order(State(pool): State<PgPool>, headers: HeaderMap, item: String) -> Result<Response, Failure> {
    let key = headers["idempotency-key"].to_str().unwrap();
    let claim = "INSERT INTO claims (key) VALUES ($1) ON CONFLICT (key) DO UPDATE SET claimed_at = clock_timestamp() \
                 WHERE claims.response IS NULL AND claims.claimed_at < clock_timestamp() - interval '100 ms'";
    if sqlx::query(claim).bind(key).execute(&pool).await?.rows_affected() == 0 {
        let select = "SELECT response FROM claims WHERE key = $1";
        let stored: Option<String> = sqlx::query_scalar(select).bind(key).fetch_one(&pool).await?;
        return Ok(match stored {
            Some(response) => (StatusCode::CREATED, [("idempotency-replayed", "true")], response).into_response(),
            None => (StatusCode::CONFLICT, [("retry-after", "1")]).into_response(),
        });
    }
    let insert = "INSERT INTO orders (item) VALUES ($1) RETURNING id";
    let id: i64 = sqlx::query_scalar(insert).bind(item).fetch_one(&pool).await?;
    let update = "UPDATE claims SET response = $2 WHERE key = $1";
    sqlx::query(update).bind(key).bind(id.to_string()).execute(&pool).await?;
    Ok((StatusCode::CREATED, id.to_string()).into_response())
}

/// Looks first and acts then: what is not there yet may be there a moment later.
pub(crate) async fn racy_store(pool: PgPool) -> Router {
    let app = broken_store(pool.clone()).await;
    drop(app);
    Router::new().route("/orders", post(create_order_racily)).with_state(pool)
}

async fn create_order_racily(
    State(pool): State<PgPool>,
    headers: HeaderMap,
    item: String,
) -> Result<Response, Failure> {
    let key = headers["idempotency-key"].to_str().unwrap();
    let select = "SELECT response FROM claims WHERE key = $1";
    let stored: Option<String> = sqlx::query_scalar(select).bind(key).fetch_optional(&pool).await?;
    if let Some(response) = stored {
        return Ok((StatusCode::CREATED, [("idempotency-replayed", "true")], response).into_response());
    }
    let mut transaction = pool.begin().await?;
    let insert = "INSERT INTO orders (item) VALUES ($1) RETURNING id";
    let id: i64 = sqlx::query_scalar(insert).bind(item).fetch_one(&mut *transaction).await?;
    let store = "INSERT INTO claims (key, response) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    sqlx::query(store).bind(key).bind(id.to_string()).execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok((StatusCode::CREATED, id.to_string()).into_response())
}

struct Failure;

impl From<sqlx::Error> for Failure {
    fn from(_: sqlx::Error) -> Self {
        Failure
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}
