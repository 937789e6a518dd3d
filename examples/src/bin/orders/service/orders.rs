//! Orders: placed, read and cancelled.
//!
//! A handler that changes something takes `tx: &mut Tx` and writes through it: its writes, the claim on the idempotency
//! key and the response are then one commit. Rows are always locked in the order product, customer, so that two
//! operations never wait for each other in a circle.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderName, StatusCode};
use idem_runtime::{Tx, idempotent};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;

use super::account::{charge, credit};
use super::customer::Customer;
use super::error::ApiError;

#[derive(Deserialize)]
pub(super) struct NewOrder {
    product: String,
    quantity: std::num::NonZero<u16>,
}

#[derive(Serialize, sqlx::FromRow)]
pub(super) struct Order {
    id: i64,
    product: String,
    quantity: i32,
    total_cents: i64,
    status: String,
}

/// Places an order: takes the stock, charges the balance and writes the order, all or nothing.
#[idempotent(scope = customer.id, ttl = "24h")]
pub(super) async fn create_order(
    customer: Customer,
    tx: &mut Tx,
    Json(new): Json<NewOrder>,
) -> Result<(StatusCode, [(HeaderName, String); 1], Json<Order>), ApiError> {
    let quantity = i32::from(new.quantity.get());
    let price_cents = take_stock(tx, &new.product, quantity).await?;
    let total_cents = price_cents * i64::from(quantity);
    charge(tx, customer.id, total_cents).await?;
    let order: Order = sqlx::query_as(
        "INSERT INTO orders (customer_id, product, quantity, total_cents) VALUES ($1, $2, $3, $4)
         RETURNING id, product, quantity, total_cents, status",
    )
    .bind(customer.id)
    .bind(new.product)
    .bind(quantity)
    .bind(total_cents)
    .fetch_one(&mut *tx)
    .await?;
    tracing::info!(order = order.id, total_cents, "order placed");
    Ok((StatusCode::CREATED, [(LOCATION, format!("/orders/{}", order.id))], Json(order)))
}

/// Cancels an order: puts the goods back and refunds the money, once.
#[idempotent(scope = customer.id, ttl = "24h")]
pub(super) async fn cancel_order(
    customer: Customer,
    Path(id): Path<i64>,
    tx: &mut Tx,
) -> Result<Json<Order>, ApiError> {
    let mut order = lock_order(tx, customer.id, id).await?;
    if order.status == "cancelled" {
        return Err(ApiError::AlreadyCancelled);
    }
    order.status = "cancelled".to_owned();
    sqlx::query("UPDATE orders SET status = 'cancelled' WHERE id = $1").bind(id).execute(&mut *tx).await?;
    return_stock(tx, &order.product, order.quantity).await?;
    credit(tx, customer.id, order.total_cents).await?;
    tracing::info!(order = order.id, refunded_cents = order.total_cents, "order cancelled");
    Ok(Json(order))
}

/// Reading needs no key.
pub(super) async fn get_order(
    customer: Customer,
    State(pool): State<PgPool>,
    Path(id): Path<i64>,
) -> Result<Json<Order>, ApiError> {
    let select = "SELECT id, product, quantity, total_cents, status FROM orders WHERE id = $1 AND customer_id = $2";
    let order = sqlx::query_as(select).bind(id).bind(customer.id).fetch_optional(&pool).await?;
    order.map(Json).ok_or(ApiError::UnknownOrder)
}

/// Takes goods from a stock that holds enough of them, and says what one costs.
async fn take_stock(tx: &mut Tx, product: &str, quantity: i32) -> Result<i64, ApiError> {
    let take = "UPDATE products SET stock = stock - $2 WHERE name = $1 AND stock >= $2 RETURNING price_cents";
    let price_cents = sqlx::query_scalar(take).bind(product).bind(quantity).fetch_optional(&mut *tx).await?;
    if let Some(price_cents) = price_cents {
        return Ok(price_cents);
    }
    let exists = "SELECT EXISTS (SELECT FROM products WHERE name = $1)";
    let exists: bool = sqlx::query_scalar(exists).bind(product).fetch_one(&mut *tx).await?;
    Err(if exists { ApiError::OutOfStock } else { ApiError::UnknownProduct })
}

async fn return_stock(tx: &mut Tx, product: &str, quantity: i32) -> Result<(), sqlx::Error> {
    let put_back = "UPDATE products SET stock = stock + $2 WHERE name = $1";
    sqlx::query(put_back).bind(product).bind(quantity).execute(&mut *tx).await.map(drop)
}

/// Locks the order, so that two cancellations with different keys cannot both find it placed.
async fn lock_order(tx: &mut Tx, customer: i64, id: i64) -> Result<Order, ApiError> {
    let select = "SELECT id, product, quantity, total_cents, status FROM orders
                  WHERE id = $1 AND customer_id = $2 FOR UPDATE";
    let order = sqlx::query_as(select).bind(id).bind(customer).fetch_optional(&mut *tx).await?;
    order.ok_or(ApiError::UnknownOrder)
}
