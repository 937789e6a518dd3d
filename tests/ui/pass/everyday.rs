//! What applications write every day, and what only looks like a mistake.

#![warn(clippy::pedantic)]
#![deny(warnings)]
#![forbid(unsafe_code)]
#![allow(clippy::wildcard_imports, clippy::too_many_arguments)]

#[path = "../application.rs"]
mod application;

use application::*;

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{MatchedPath, OriginalUri};
use axum::http::{HeaderMap, Method};
use sqlx::{Acquire, Connection, PgConnection, PgPool, Postgres, QueryBuilder, Row};

mod bank {
    #[derive(serde::Deserialize)]
    pub struct Transaction {
        pub id: String,
        pub amount: i64,
    }
}

mod jobs {
    #[derive(serde::Deserialize)]
    pub struct Operation {
        pub id: String,
        pub amount: i64,
    }
}

#[derive(Clone, FromRef)]
struct Shop {
    idempotency: Idempotency,
    pool: PgPool,
    rates: Arc<HashMap<String, i64>>,
}

/// The state of an application that shares all of it, which cannot implement `FromRef` for `Idempotency`.
#[derive(Clone)]
struct Shared {
    idempotency: Idempotency,
    rates: HashMap<String, i64>,
}

async fn insert(connection: &mut PgConnection, amount: i64) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("INSERT INTO orders (amount) VALUES ($1) RETURNING id").bind(amount).fetch_one(connection).await
}

async fn insert_through(tx: &mut Tx, amount: i64) -> Result<i64, sqlx::Error> {
    insert(tx, amount).await
}

#[idempotent(scope = transaction.id, ttl = "24h", fingerprint = transaction.amount)]
async fn payload_called_transaction(
    tx: &mut Tx,
    Json(transaction): Json<bank::Transaction>,
) -> Result<StatusCode, ApiError> {
    insert(tx, transaction.amount).await?;
    Ok(StatusCode::CREATED)
}

#[idempotent(scope = "bank", key = transaction.id, ttl = "24h")]
async fn function_of_a_transaction(
    idempotency: &Idempotency,
    tx: &mut Tx,
    transaction: bank::Transaction,
) -> Result<Receipt, ConsumerError> {
    book(tx, transaction.amount).await
}

#[idempotent(scope = "bank", key = transaction.id, ttl = "24h")]
async fn function_of_a_borrowed_transaction(
    idempotency: &Idempotency,
    tx: &mut Tx,
    transaction: &bank::Transaction,
) -> Result<Receipt, ConsumerError> {
    book(tx, transaction.amount).await
}

mod consumer {
    use super::jobs::Operation;
    use super::{ConsumerError, Idempotency, Receipt, Tx, book, idempotent};

    #[idempotent(scope = "jobs", key = job.id, ttl = "24h")]
    pub async fn function_of_an_operation(
        idempotency: &Idempotency,
        tx: &mut Tx,
        job: Operation,
    ) -> Result<Receipt, ConsumerError> {
        book(tx, job.amount).await
    }

    #[idempotent(scope = "jobs", key = job.id, ttl = "24h")]
    pub async fn function_of_a_borrowed_operation(
        idempotency: &Idempotency,
        tx: &mut Tx,
        job: &Operation,
    ) -> Result<Receipt, ConsumerError> {
        book(tx, job.amount).await
    }
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn savepoint(tenant: Tenant, tx: &mut Tx, Json(new): Json<NewOrder>) -> Result<StatusCode, ApiError> {
    {
        let mut tx = tx.begin().await?;
        insert(&mut tx, new.total).await?;
        tx.commit().await?;
    }
    let mut undone = tx.begin().await?;
    insert(&mut undone, new.total).await?;
    undone.rollback().await?;
    insert_through(tx, tenant.id).await?;
    Ok(StatusCode::CREATED)
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn savepoint_in_a_part(tenant: Tenant, op: &mut Operation) -> Result<StatusCode, ApiError> {
    let id: i64 = op
        .transaction("order", async |tx| {
            let mut tx = tx.begin().await?;
            let id = insert(&mut tx, 1).await?;
            tx.commit().await?;
            Ok::<_, ApiError>(id)
        })
        .await?;
    for (index, share) in [id, tenant.id].into_iter().enumerate() {
        op.step(("charge", index), async |_key| Ok::<i64, ApiError>(share)).await?;
    }
    Ok(StatusCode::CREATED)
}

macro_rules! endpoint {
    ($name:ident, $ttl:literal, $lease:expr, $failures:expr, $state:ty, $runtime:path) => {
        #[idempotent(scope = tenant.id, ttl = $ttl, lease = $lease, failures = $failures, state = $state, crate = $runtime)]
        async fn $name(tenant: Tenant, tx: &mut Tx) -> Result<String, ApiError> {
            insert(tx, tenant.id).await?;
            Ok(tenant.name)
        }
    };
    ($name:ident, $ttl:expr, $key:ident) => {
        #[idempotent(scope = tenant.id, ttl = $ttl, key = $key)]
        async fn $name(tenant: Tenant, tx: &mut Tx) -> Result<String, ApiError> {
            insert(tx, tenant.id).await?;
            Ok(tenant.name)
        }
    };
    ($name:ident, $key:expr) => {
        #[idempotent(scope = global, ttl = "1h", key = $key)]
        async fn $name(tenant: Tenant, tx: &mut Tx) -> Result<String, ApiError> {
            insert(tx, tenant.id).await?;
            Ok(tenant.name)
        }
    };
}

endpoint!(from_literals, "24h", "2m", "replay", AppState, ::idem_runtime);
endpoint!(from_expressions, "24h", optional);
endpoint!(from_a_word, optional);

#[idempotent(scope = tenant.id, ttl = "24h", allow(unused_tx))]
async fn only_reads(tenant: Tenant, _tx: &mut Tx) -> String {
    tenant.name
}

#[idempotent(scope = tenant.id, ttl = "24h", allow(pool, unused_tx))]
async fn only_reads_elsewhere(
    tenant: Tenant,
    State(Shop { pool, .. }): State<Shop>,
    _: &mut Tx,
) -> Result<String, ApiError> {
    let row = sqlx::query("SELECT name FROM tenants WHERE id = $1").bind(tenant.id).fetch_one(&pool).await?;
    Ok(row.get("name"))
}

#[expect(unused_variables)]
#[idempotent(scope = tenant.id, ttl = "24h")]
async fn not_written_yet(tenant: Tenant, tx: &mut Tx, Json(new): Json<NewOrder>) -> StatusCode {
    todo!("{} {}", tenant.id, new.total)
}

#[idempotent(scope = tenant.id, ttl = "24h", idempotency = state.idempotency)]
async fn shared_state(
    tenant: Tenant,
    State(state): State<Arc<Shared>>,
    tx: &mut Tx,
    Json(new): Json<NewOrder>,
) -> Result<StatusCode, ApiError> {
    let rate = state.rates.get(&new.number).copied().unwrap_or(tenant.id);
    insert(tx, new.total * rate).await?;
    Ok(StatusCode::CREATED)
}

#[idempotent(scope = tenant.id, ttl = "24h", idempotency = handle, state = (), fingerprint = new.total)]
async fn handle_in_an_extension(
    tenant: Tenant,
    Extension(handle): Extension<Arc<Idempotency>>,
    tx: &mut Tx,
    Json(new): Json<NewOrder>,
) -> Result<StatusCode, ApiError> {
    insert(tx, new.total + tenant.id).await?;
    Ok(StatusCode::CREATED)
}

#[idempotent(scope = (tenant.id, method.as_str()), ttl = "24h", state = Shop)]
async fn many_extractors(
    tenant: Tenant,
    method: Method,
    OriginalUri(uri): OriginalUri,
    path: Option<MatchedPath>,
    headers: HeaderMap,
    Path((shop, number)): Path<(i64, String)>,
    Query(query): Query<HashMap<String, String>>,
    State(rates): State<Arc<HashMap<String, i64>>>,
    tx: &mut Tx,
    Form(new): Form<NewOrder>,
) -> Result<(StatusCode, [(&'static str, String); 1], Json<Order>), ApiError> {
    let mut insert = QueryBuilder::<Postgres>::new("INSERT INTO lines (shop, number, amount) ");
    insert.push_values([new.total, shop], |mut row, amount| {
        row.push_bind(shop).push_bind(&number).push_bind(amount);
    });
    insert.build().execute(&mut *tx).await?;
    let found = (headers.len(), path.is_some(), query.len(), rates.len());
    let location = format!("{uri} {method} {found:?}");
    Ok((StatusCode::CREATED, [("location", location)], Json(Order { id: tenant.id })))
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn batch(tenant: Tenant, tx: &mut Tx, Json(amounts): Json<Vec<i64>>) -> Result<Json<Vec<i64>>, ApiError> {
    let mut ids = Vec::with_capacity(amounts.len());
    for amount in amounts {
        ids.push(insert(tx, amount + tenant.id).await?);
    }
    let connection = tx.acquire().await?;
    connection.ping().await?;
    Ok(Json(ids))
}

fn main() {
    for handler in [
        post(payload_called_transaction),
        post(savepoint),
        post(savepoint_in_a_part),
        post(from_literals),
        post(from_expressions),
        post(from_a_word),
        post(only_reads),
        post(not_written_yet),
        post(batch),
    ] {
        routed(handler);
    }
    let _: MethodRouter<Shop> = post(only_reads_elsewhere).put(many_extractors);
    let _: MethodRouter<Arc<Shared>> = post(shared_state);
    let _: MethodRouter<()> = post(handle_in_an_extension);
    let _ = (function_of_a_transaction, function_of_a_borrowed_transaction);
    let _ = (consumer::function_of_an_operation, consumer::function_of_a_borrowed_operation);
}
