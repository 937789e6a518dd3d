//! A pool that a pattern takes out of the state, whatever it is called.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[derive(Clone, FromRef)]
struct Shop {
    idempotency: Idempotency,
    orders: sqlx::PgPool,
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, State(Shop { orders, .. }): State<Shop>, tx: &mut Tx) -> StatusCode {
    drop(orders);
    save(tx).await
}

fn main() {
    let _: MethodRouter<Shop> = post(create_order);
}
