//! The handlers that are compared: one order written, four ways, and a purchase in several parts, two ways.

mod purchase;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRef, FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use idem_runtime::{Idempotency, Tx, idempotent};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use sqlx::{PgConnection, PgPool};

use crate::Result;

/// An application with all handlers over one pool.
#[derive(Debug, Clone)]
pub struct Application {
    /// The routes.
    pub router: Router,
    /// The pool that all handlers use.
    pub pool: PgPool,
    /// The runtime's handle.
    pub idempotency: Idempotency,
    /// How often the slow handler began.
    pub executions: Arc<AtomicU64>,
}

#[derive(Debug, Clone)]
struct AppState {
    pool: PgPool,
    idempotency: Idempotency,
    executions: Arc<AtomicU64>,
}

impl FromRef<AppState> for Idempotency {
    fn from_ref(state: &AppState) -> Self {
        state.idempotency.clone()
    }
}

impl FromRef<AppState> for PgPool {
    fn from_ref(state: &AppState) -> Self {
        state.pool.clone()
    }
}

impl FromRef<AppState> for Executions {
    fn from_ref(state: &AppState) -> Self {
        Self(Arc::clone(&state.executions))
    }
}

#[derive(Debug, Clone)]
struct Executions(Arc<AtomicU64>);

/// Who asks, by the header `tenant`.
#[derive(Debug)]
pub struct Tenant {
    id: String,
}

impl Tenant {
    /// The tenant's name.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Tenant {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> std::result::Result<Self, StatusCode> {
        let id = parts.headers.get("tenant").and_then(|value| value.to_str().ok()).ok_or(StatusCode::UNAUTHORIZED)?;
        Ok(Self { id: id.to_owned() })
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct NewOrder {
    product: i64,
    quantity: i32,
}

#[derive(Debug, Serialize, Deserialize, sqlx::FromRow)]
struct Order {
    id: i64,
    product: i64,
    quantity: i32,
}

/// Whatever goes wrong is the server's fault here.
#[derive(Debug)]
struct Failure(Box<dyn std::error::Error + Send + Sync>);

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self(error.into())
    }
}

impl From<idem_runtime::Error> for Failure {
    fn from(error: idem_runtime::Error) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, self.0.to_string()).into_response()
    }
}

type Created = std::result::Result<(StatusCode, Json<Order>), Failure>;

async fn insert(connection: &mut PgConnection, tenant: &str, new: &NewOrder) -> sqlx::Result<Order> {
    let insert = "INSERT INTO orders (tenant, product, quantity) VALUES ($1, $2, $3) RETURNING id, product, quantity";
    sqlx::query_as(insert).bind(tenant).bind(new.product).bind(new.quantity).fetch_one(connection).await
}

/// What a developer writes who trusts the network.
async fn plain(State(pool): State<PgPool>, tenant: Tenant, Json(new): Json<NewOrder>) -> Created {
    let mut transaction = pool.begin().await?;
    let order = insert(&mut transaction, &tenant.id, &new).await?;
    transaction.commit().await?;
    Ok((StatusCode::CREATED, Json(order)))
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn annotated(tenant: Tenant, tx: &mut Tx, Json(new): Json<NewOrder>) -> Created {
    let order = insert(tx, &tenant.id, &new).await?;
    Ok((StatusCode::CREATED, Json(order)))
}

#[idempotent(scope = tenant.id, ttl = "1s")]
async fn brief(tenant: Tenant, tx: &mut Tx, Json(new): Json<NewOrder>) -> Created {
    let order = insert(tx, &tenant.id, &new).await?;
    Ok((StatusCode::CREATED, Json(order)))
}

/// Long enough for a storm of duplicates to arrive meanwhile.
const SLOW: Duration = Duration::from_millis(100);

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn slow(tenant: Tenant, State(executions): State<Executions>, tx: &mut Tx, Json(new): Json<NewOrder>) -> Created {
    executions.0.fetch_add(1, Ordering::Relaxed);
    let order = insert(tx, &tenant.id, &new).await?;
    tokio::time::sleep(SLOW).await;
    Ok((StatusCode::CREATED, Json(order)))
}

/// What a developer writes who follows the usual advice: the claim committed, then the work and the response.
async fn usual(
    State(pool): State<PgPool>,
    tenant: Tenant,
    headers: HeaderMap,
    body: Bytes,
) -> std::result::Result<Response, Failure> {
    let Some(key) = headers.get("idempotency-key").and_then(|value| value.to_str().ok()) else {
        return Ok(StatusCode::BAD_REQUEST.into_response());
    };
    let Ok(new) = serde_json::from_slice::<NewOrder>(&body) else {
        return Ok(StatusCode::UNPROCESSABLE_ENTITY.into_response());
    };
    let fingerprint = Sha256::digest(&body);
    let claim = "INSERT INTO usual_keys (scope, key, fingerprint, state, locked_at) \
                 VALUES ($1, $2, $3, 'in_progress', now()) ON CONFLICT DO NOTHING";
    let claimed = sqlx::query(claim).bind(&tenant.id).bind(key).bind(&fingerprint[..]).execute(&pool).await?;
    if claimed.rows_affected() == 0 {
        return Ok(StatusCode::CONFLICT.into_response());
    }
    let mut transaction = pool.begin().await?;
    let order = insert(&mut transaction, &tenant.id, &new).await?;
    let stored = serde_json::to_vec(&order).map_err(|error| Failure(error.into()))?;
    let complete = "UPDATE usual_keys SET state = 'completed', status = 201, body = $3, \
                    expires_at = now() + interval '24 hours' WHERE scope = $1 AND key = $2";
    sqlx::query(complete).bind(&tenant.id).bind(key).bind(&stored).execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok((StatusCode::CREATED, Json(order)).into_response())
}

/// What a replay is compared with: the least that a handler can ask of a database.
async fn select(
    State(pool): State<PgPool>,
    tenant: Tenant,
    Path(key): Path<String>,
) -> std::result::Result<Json<Order>, Failure> {
    let select = "SELECT id, product, quantity FROM orders_by_key WHERE tenant = $1 AND key = $2";
    Ok(Json(sqlx::query_as(select).bind(&tenant.id).bind(&key).fetch_one(&pool).await?))
}

/// Creates the tables of all handlers.
///
/// # Errors
/// If the database refuses.
pub async fn create_tables(pool: &PgPool) -> Result<()> {
    let tables = "
        CREATE TABLE orders (
            id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            tenant text NOT NULL,
            product bigint NOT NULL,
            quantity integer NOT NULL
        );
        CREATE TABLE orders_by_key (
            tenant text NOT NULL,
            key text NOT NULL,
            id bigint NOT NULL,
            product bigint NOT NULL,
            quantity integer NOT NULL,
            PRIMARY KEY (tenant, key)
        );
        CREATE TABLE charges (order_id bigint PRIMARY KEY, charge text NOT NULL);
        CREATE TABLE payments (order_id bigint PRIMARY KEY, charge text NOT NULL);
        CREATE TABLE shipments (order_id bigint PRIMARY KEY);
        CREATE TABLE usual_keys (
            scope text NOT NULL,
            key text NOT NULL,
            fingerprint bytea NOT NULL,
            state text NOT NULL,
            locked_at timestamptz NOT NULL,
            expires_at timestamptz,
            status smallint,
            body bytea,
            PRIMARY KEY (scope, key)
        );";
    sqlx::raw_sql(tables).execute(pool).await?;
    Ok(())
}

impl Application {
    /// The application over a pool, with the runtime's default settings.
    #[must_use]
    pub fn over(pool: PgPool) -> Self {
        let idempotency = Idempotency::new(pool.clone());
        Self::with(pool, idempotency)
    }

    /// The same over the same pool, with `pool_checks(false)`.
    ///
    /// # Errors
    /// None: the setting has no bad value.
    pub fn without_pool_checks(&self) -> Result<Self> {
        let idempotency = Idempotency::builder(self.pool.clone()).pool_checks(false).build()?;
        Ok(Self::with(self.pool.clone(), idempotency))
    }

    /// The application over a pool and a handle of its own.
    #[must_use]
    pub fn with(pool: PgPool, idempotency: Idempotency) -> Self {
        let executions = Arc::default();
        let state =
            AppState { pool: pool.clone(), idempotency: idempotency.clone(), executions: Arc::clone(&executions) };
        let router = Router::new()
            .route("/plain", post(plain))
            .route("/annotated", post(annotated))
            .route("/brief", post(brief))
            .route("/slow", post(slow))
            .route("/usual", post(usual))
            .route("/select/{key}", get(select))
            .merge(purchase::routes())
            .with_state(state);
        Self { router, pool, idempotency, executions }
    }
}

/// An order for the tenant of the benchmarks, under a key.
#[must_use]
pub fn order(path: &str, key: &str) -> Request<Body> {
    let request = Request::post(path)
        .header("tenant", "tenant-1")
        .header("idempotency-key", key)
        .header("content-type", "application/json");
    request.body(Body::from(r#"{"product":42,"quantity":3}"#)).expect("the parts of a request are valid")
}

/// An order under a key that nobody used.
#[must_use]
pub fn fresh(path: &str) -> Request<Body> {
    order(path, uuid::Uuid::new_v4().hyphenated().encode_lower(&mut uuid::Uuid::encode_buffer()))
}

/// A look at the order of a key.
#[must_use]
pub fn look(key: &str) -> Request<Body> {
    let request = Request::get(format!("/select/{key}")).header("tenant", "tenant-1");
    request.body(Body::empty()).expect("the parts of a request are valid")
}
