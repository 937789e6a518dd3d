//! In the company of other attributes.

#![warn(clippy::pedantic)]
#![deny(warnings)]
#![forbid(unsafe_code)]
#![allow(clippy::wildcard_imports)]

#[path = "../application.rs"]
mod application;

use application::*;

/// Creates an order.
///
/// In two paragraphs.
#[doc(alias = "order")]
#[must_use]
#[inline]
#[cfg(not(windows))]
#[cfg_attr(all(), doc(alias = "purchase"), allow(clippy::needless_pass_by_value))]
#[cfg_attr(all(), tracing::instrument(skip_all))]
#[idempotent(scope = tenant.id, ttl = "24h")]
async fn documented(tenant: Tenant, tx: &mut Tx) -> String {
    let _ = sqlx::query("SELECT 1").execute(tx).await;
    tenant.name
}

#[deprecated = "there is another one"]
#[idempotent(scope = tenant.id, ttl = "24h")]
async fn deprecated(tenant: Tenant, tx: &mut Tx) -> String {
    let _ = sqlx::query("SELECT 1").execute(tx).await;
    tenant.name
}

#[expect(unused_variables)]
#[idempotent(scope = tenant.id, ttl = "24h")]
async fn expected(tenant: Tenant, tx: &mut Tx) -> StatusCode {
    let unused = 1;
    save(tx).await
}

#[allow(dead_code)]
#[idempotent(scope = tenant.id, ttl = "24h")]
async fn not_used(tenant: Tenant, tx: &mut Tx) -> String {
    let _ = sqlx::query("SELECT 1").execute(tx).await;
    tenant.name
}

#[expect(dead_code)]
#[idempotent(scope = tenant.id, ttl = "24h")]
async fn not_used_either(tenant: Tenant, tx: &mut Tx) -> String {
    let _ = sqlx::query("SELECT 1").execute(tx).await;
    tenant.name
}

#[idempotent(scope = tenant.id, ttl = "24h")]
#[tracing::instrument(skip(tenant), fields(tenant = tenant.id))]
async fn instrumented_below(tenant: Tenant, tx: &mut Tx) -> Result<String, ApiError> {
    sqlx::query("SELECT 1").execute(tx).await?;
    Ok(tenant.name)
}

#[tracing::instrument(skip(tenant), fields(tenant = tenant.id))]
#[idempotent(scope = tenant.id, ttl = "24h")]
async fn instrumented_above(tenant: Tenant, tx: &mut Tx) -> Result<String, ApiError> {
    sqlx::query("SELECT 1").execute(tx).await?;
    Ok(tenant.name)
}

#[idempotent(scope = tenant.id, ttl = "24h")]
#[axum::debug_handler(state = AppState)]
async fn debugged(tenant: Tenant, tx: &mut Tx, Json(new): Json<NewOrder>) -> Result<String, ApiError> {
    sqlx::query("SELECT 1").bind(new.total).execute(tx).await?;
    Ok(tenant.name)
}

#[idempotent(scope = tenant.id, ttl = "24h", state = AppState)]
#[axum::debug_handler]
async fn debugged_with_our_state(tenant: Tenant, tx: &mut Tx) -> Result<String, ApiError> {
    sqlx::query("SELECT 1").execute(tx).await?;
    Ok(tenant.name)
}

#[idempotent(scope = tenant.id, ttl = "24h")]
#[axum::debug_handler]
async fn debugged_with_its_state(
    tenant: Tenant,
    State(state): State<AppState>,
    tx: &mut Tx,
) -> Result<String, ApiError> {
    sqlx::query("SELECT 1").execute(tx).await?;
    drop(state);
    Ok(tenant.name)
}

#[derive(Clone, FromRef)]
struct Shop {
    idempotency: Idempotency,
    mailer: Mailer,
}

#[derive(Clone)]
struct Mailer;

#[idempotent(scope = tenant.id, ttl = "24h")]
#[axum::debug_handler]
async fn debugged_with_a_part_of_the_state(
    tenant: Tenant,
    State(mailer): State<Mailer>,
    tx: &mut Tx,
    Json(new): Json<NewOrder>,
) -> Result<String, ApiError> {
    sqlx::query("SELECT 1").bind(new.total).execute(tx).await?;
    let Mailer = mailer;
    Ok(tenant.name)
}

#[idempotent(scope = tenant.id, ttl = "24h")]
#[cfg_attr(all(), axum::debug_handler)]
async fn debugged_without_a_state(tenant: Tenant, tx: &mut Tx, Json(new): Json<NewOrder>) -> Result<String, ApiError> {
    sqlx::query("SELECT 1").bind(new.total).execute(tx).await?;
    Ok(tenant.name)
}

#[derive(Deserialize, utoipa::ToSchema)]
struct Described {
    total: i64,
}

#[utoipa::path(post, path = "/orders", responses((status = 201)))]
#[idempotent(scope = tenant.id, ttl = "24h")]
async fn described(tenant: Tenant, tx: &mut Tx, Json(new): Json<Described>) -> Result<String, ApiError> {
    sqlx::query("SELECT 1").bind(new.total).execute(tx).await?;
    Ok(tenant.name)
}

fn main() {
    #[expect(deprecated)]
    routed(post(deprecated));
    routed(post(documented));
    routed(post(expected));
    routed(post(instrumented_below));
    routed(post(instrumented_above));
    routed(post(debugged));
    routed(post(debugged_with_our_state));
    routed(post(debugged_with_its_state));
    let _: MethodRouter<Shop> = post(debugged_with_a_part_of_the_state);
    routed(post(debugged_without_a_state));
    routed(post(described));
    let _ = <__path_described as utoipa::Path>::operation();
}
