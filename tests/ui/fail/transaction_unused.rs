//! Nothing is written through the transaction.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, _tx: &mut Tx, State(repository): State<Repository>) -> StatusCode {
    repository.insert().await
}

#[derive(Clone)]
struct Repository;

impl Repository {
    async fn insert(&self) -> StatusCode {
        StatusCode::CREATED
    }
}

#[derive(Clone, FromRef)]
struct Shop {
    idempotency: Idempotency,
    repository: Repository,
}

fn main() {
    let _: MethodRouter<Shop> = post(create_order);
}
