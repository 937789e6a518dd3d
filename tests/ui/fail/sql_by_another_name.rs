//! A command given to a function by another name.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

use sqlx::query as q;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, tx: &mut Tx, Json(new): Json<NewOrder>) -> Result<StatusCode, ApiError> {
    q("COMMIT").execute(&mut *tx).await?;
    Ok(StatusCode::CREATED)
}

fn main() {
    routed(post(create_order));
}
