//! An `Rc` over an await.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

use std::rc::Rc;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, tx: &mut Tx, Json(new): Json<NewOrder>) -> StatusCode {
    let counter = Rc::new(1);
    let _ = sqlx::query("SELECT 1").execute(&mut *tx).await;
    drop(counter);
    StatusCode::CREATED
}

fn main() {
    routed(post(create_order));
}
