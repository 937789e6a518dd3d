//! A customer's money.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use idem_runtime::{Tx, idempotent};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;

use super::customer::Customer;
use super::error::ApiError;

#[derive(Deserialize)]
pub(super) struct Deposit {
    amount_cents: std::num::NonZero<u32>,
}

#[derive(Serialize)]
pub(super) struct Account {
    name: String,
    balance_cents: i64,
}

/// Pays money in. Sent twice with one key, it is paid in once.
#[idempotent(scope = customer.id, ttl = "24h")]
pub(super) async fn deposit(
    customer: Customer,
    tx: &mut Tx,
    Json(deposit): Json<Deposit>,
) -> Result<(StatusCode, Json<Account>), ApiError> {
    let amount_cents = i64::from(deposit.amount_cents.get());
    sqlx::query("INSERT INTO deposits (customer_id, amount_cents) VALUES ($1, $2)")
        .bind(customer.id)
        .bind(amount_cents)
        .execute(&mut *tx)
        .await?;
    let balance_cents = credit(tx, customer.id, amount_cents).await?;
    Ok((StatusCode::CREATED, Json(Account { name: customer.name, balance_cents })))
}

/// Reading needs no key.
pub(super) async fn get_account(customer: Customer, State(pool): State<PgPool>) -> Result<Json<Account>, ApiError> {
    let balance_cents = sqlx::query_scalar("SELECT balance_cents FROM customers WHERE id = $1")
        .bind(customer.id)
        .fetch_one(&pool)
        .await?;
    Ok(Json(Account { name: customer.name, balance_cents }))
}

/// Takes money from a balance that covers it.
pub(super) async fn charge(tx: &mut Tx, customer: i64, total_cents: i64) -> Result<(), ApiError> {
    let charge = "UPDATE customers SET balance_cents = balance_cents - $2 WHERE id = $1 AND balance_cents >= $2";
    let charged = sqlx::query(charge).bind(customer).bind(total_cents).execute(&mut *tx).await?;
    if charged.rows_affected() == 0 {
        return Err(ApiError::InsufficientBalance { total_cents });
    }
    Ok(())
}

/// Adds money to a balance and says what is in it now.
pub(super) async fn credit(tx: &mut Tx, customer: i64, amount_cents: i64) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("UPDATE customers SET balance_cents = balance_cents + $2 WHERE id = $1 RETURNING balance_cents")
        .bind(customer)
        .bind(amount_cents)
        .fetch_one(&mut *tx)
        .await
}
