//! A purchase in four parts, three transactions and a call to a provider, two ways.

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use idem_runtime::{Operation, idempotent};
use sqlx::{PgConnection, PgPool};

use super::{AppState, Created, Failure, NewOrder, Order, Tenant, insert};

pub(super) fn routes() -> Router<AppState> {
    Router::new().route("/parts", post(parts)).route("/operation", post(operation))
}

/// What a developer writes by hand who notes what the provider said before going on, but nothing else to resume from.
async fn parts(State(pool): State<PgPool>, tenant: Tenant, Json(new): Json<NewOrder>) -> Created {
    let mut transaction = pool.begin().await?;
    let order = insert(&mut transaction, &tenant.id, &new).await?;
    transaction.commit().await?;

    let charge = charge(&order).await?;
    let note = "INSERT INTO charges (order_id, charge) VALUES ($1, $2)";
    sqlx::query(note).bind(order.id).bind(&charge).execute(&pool).await?;

    let mut transaction = pool.begin().await?;
    mark_paid(&mut transaction, &order, &charge).await?;
    transaction.commit().await?;

    let mut transaction = pool.begin().await?;
    ship(&mut transaction, &order).await?;
    transaction.commit().await?;
    Ok((StatusCode::CREATED, Json(order)))
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn operation(tenant: Tenant, op: &mut Operation, Json(new): Json<NewOrder>) -> Created {
    let order = op.transaction("order", async |tx| insert(tx, &tenant.id, &new).await.map_err(Failure::from)).await?;
    let charge = op.step("charge", async |_key| charge(&order).await).await?;
    op.transaction("mark paid", async |tx| mark_paid(tx, &order, &charge).await).await?;
    op.transaction("ship", async |tx| ship(tx, &order).await).await?;
    Ok((StatusCode::CREATED, Json(order)))
}

/// A provider that answers at once: any time that it took would only bring the two ways closer.
async fn charge(order: &Order) -> Result<String, Failure> {
    tokio::task::yield_now().await;
    Ok(format!("ch_{}", order.id))
}

async fn mark_paid(connection: &mut PgConnection, order: &Order, charge: &str) -> Result<(), Failure> {
    let insert = "INSERT INTO payments (order_id, charge) VALUES ($1, $2)";
    sqlx::query(insert).bind(order.id).bind(charge).execute(connection).await?;
    Ok(())
}

async fn ship(connection: &mut PgConnection, order: &Order) -> Result<(), Failure> {
    let insert = "INSERT INTO shipments (order_id) VALUES ($1)";
    sqlx::query(insert).bind(order.id).execute(connection).await?;
    Ok(())
}
