//! Reading needs no key.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::Serialize;
use sqlx::PgPool;

#[derive(Serialize, sqlx::FromRow)]
pub(super) struct Account {
    name: String,
    balance_cents: i64,
    bookings: i64,
}

pub(super) async fn get_account(
    State(pool): State<PgPool>,
    Path(name): Path<String>,
) -> Result<Json<Account>, StatusCode> {
    let select = "SELECT name, balance_cents, (SELECT count(*) FROM bookings WHERE account = name) AS bookings
                  FROM accounts WHERE name = $1";
    let account = sqlx::query_as(select).bind(name).fetch_optional(&pool).await.map_err(|error| {
        tracing::error!(%error, "the database failed");
        StatusCode::INTERNAL_SERVER_ERROR
    })?;
    account.map(Json).ok_or(StatusCode::NOT_FOUND)
}
