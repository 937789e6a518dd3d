//! `commit` in a transaction of an operation.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

use idem_runtime::Operation;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, op: &mut Operation, Json(new): Json<NewOrder>) -> Result<StatusCode, ApiError> {
    let _: i64 = op
        .transaction("order", async |orders| {
            orders.commit().await?;
            Ok::<_, ApiError>(1)
        })
        .await?;
    Ok(StatusCode::CREATED)
}

fn main() {
    routed(post(create_order));
}
