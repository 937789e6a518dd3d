//! The transaction in a task that outlives the handler.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, tx: &mut Tx, Json(new): Json<NewOrder>) -> StatusCode {
    tokio::spawn(async move {
        let _ = sqlx::query("SELECT 1").execute(&mut *tx).await;
    });
    StatusCode::CREATED
}

fn main() {
    routed(post(create_order));
}
