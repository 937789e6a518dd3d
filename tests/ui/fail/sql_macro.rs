//! `COMMIT` in `query!`.

#![allow(unused_variables)]

#[path = "../application.rs"]
mod application;

use application::*;

/// Stands for sqlx's macro, which needs a database to compile.
macro_rules! query {
    ($sql:literal) => {
        sqlx::query($sql)
    };
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, tx: &mut Tx) -> Result<StatusCode, ApiError> {
    query!("COMMIT").execute(&mut *tx).await?;
    Ok(StatusCode::CREATED)
}

fn main() {
    routed(post(create_order));
}
