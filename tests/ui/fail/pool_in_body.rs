//! A pool that the state holds.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[derive(Clone, FromRef)]
struct Shop {
    idempotency: Idempotency,
    pool: sqlx::PgPool,
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, State(shop): State<Shop>, tx: &mut Tx) -> Result<StatusCode, ApiError> {
    sqlx::query("INSERT INTO orders DEFAULT VALUES").execute(&shop.pool).await?;
    Ok(save(tx).await)
}

fn main() {
    let _: MethodRouter<Shop> = post(create_order);
}
