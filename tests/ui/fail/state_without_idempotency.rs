//! A state without an `Idempotency`.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

/// Has no `Idempotency`.
#[derive(Clone)]
struct Shop;

#[idempotent(scope = tenant.id, ttl = "24h", state = Shop)]
async fn create_order(tenant: Tenant, tx: &mut Tx, Json(new): Json<NewOrder>) -> StatusCode {
    save(tx).await
}

fn main() {
    let _: Router<()> = Router::new().route("/orders", post(create_order)).with_state(Shop);
}
