//! `query_as` with a turbofish.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, tx: &mut Tx, Json(new): Json<NewOrder>) -> Result<StatusCode, ApiError> {
    let (id,) = sqlx::query_as::<_, (i64,)>("ROLLBACK").fetch_one(&mut *tx).await?;
    let _: i64 = id;
    Ok(StatusCode::CREATED)
}

fn main() {
    routed(post(create_order));
}
