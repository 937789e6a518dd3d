//! A pool under another name.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

type Database = sqlx::PgPool;

#[derive(Clone, FromRef)]
struct Shop {
    idempotency: Idempotency,
    database: Database,
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, tx: &mut Tx, State(database): State<Database>) -> StatusCode {
    save(tx).await
}

fn main() {
    let _: MethodRouter<Shop> = post(create_order);
}
