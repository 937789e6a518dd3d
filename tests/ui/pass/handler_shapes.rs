//! Where the transaction may stand, and what a handler may return.

#![warn(clippy::pedantic)]
#![deny(warnings)]
#![forbid(unsafe_code)]
#![allow(clippy::wildcard_imports)]

#[path = "../application.rs"]
mod application;

use application::*;

use axum::body::Body;
use axum::http::HeaderMap;
use axum::response::{Html, Redirect};

type ApiResult<T> = Result<T, ApiError>;

async fn write(tx: &mut Tx) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO orders DEFAULT VALUES").execute(tx).await.map(drop)
}

#[idempotent(scope = global, ttl = "24h")]
async fn alone(tx: &mut Tx) {
    let _ = write(tx).await;
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn first(tx: &mut Tx, tenant: Tenant) -> ApiResult<String> {
    write(tx).await?;
    Ok(tenant.name)
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn last(tenant: Tenant, tx: &mut Tx) -> impl IntoResponse + use<> {
    let written = write(tx).await;
    (StatusCode::CREATED, format!("{} {}", tenant.name, written.is_ok()))
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn opaque(tenant: Tenant, tx: &mut Tx) -> impl IntoResponse {
    let written = write(tx).await;
    (StatusCode::CREATED, format!("{} {}", tenant.name, written.is_ok()))
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn by_path(tenant: Tenant, database: &mut idem_runtime::Tx) -> Response<Body> {
    match write(database).await {
        Ok(()) => Html(tenant.name).into_response(),
        Err(error) => ApiError::from(error).into_response(),
    }
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn redirects(tenant: Tenant, tx: &mut Tx) -> Result<Redirect, (StatusCode, HeaderMap, String)> {
    let failed = |error: sqlx::Error| (StatusCode::BAD_GATEWAY, HeaderMap::new(), error.to_string());
    write(tx).await.map_err(failed)?;
    Ok(Redirect::to(&tenant.name))
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn names_its_error(tenant: Tenant, tx: &mut Tx) -> axum::response::Result<Json<Order>> {
    write(tx).await.map_err(ApiError::from)?;
    Ok(Json(Order { id: tenant.id }))
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn wraps_a_body(tenant: Tenant, tx: &mut Tx) -> Json<Option<Vec<Order>>> {
    let written = write(tx).await;
    Json(written.is_ok().then(|| vec![Order { id: tenant.id }]))
}

fn main() {
    for handler in [
        post(alone),
        post(first),
        post(last),
        post(opaque),
        post(by_path),
        post(redirects),
        post(names_its_error),
        post(wraps_a_body),
    ] {
        routed(handler);
    }
}
