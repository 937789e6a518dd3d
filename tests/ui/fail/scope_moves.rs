//! A scope that moves out of an argument.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

impl Tenant {
    fn into_name(self) -> String {
        self.name
    }

    fn rename(&mut self) -> i64 {
        self.id += 1;
        self.id
    }
}

#[idempotent(scope = tenant.into_name(), ttl = "24h")]
async fn create_order(tenant: Tenant, tx: &mut Tx, Json(new): Json<NewOrder>) -> StatusCode {
    save(tx).await
}

fn main() {
    routed(post(create_order));
}
