//! A command in a constant.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, tx: &mut Tx, Json(new): Json<NewOrder>) -> Result<StatusCode, ApiError> {
    const DONE: &str = "COMMIT";
    sqlx::query(DONE).execute(&mut *tx).await?;
    Ok(StatusCode::CREATED)
}

fn main() {
    routed(post(create_order));
}
