//! A handler with a type parameter.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order<T: serde::de::DeserializeOwned>(tenant: Tenant, tx: &mut Tx, Json(new): Json<T>) -> StatusCode {
    save(tx).await
}

fn main() {
    routed(post(create_order::<NewOrder>));
}
