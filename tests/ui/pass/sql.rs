//! SQL that only looks like the end of a transaction, and names that only look like ours.

#![warn(clippy::pedantic)]
#![deny(warnings)]
#![forbid(unsafe_code)]
#![allow(clippy::wildcard_imports)]

#[path = "../application.rs"]
mod application;

use application::*;

struct Workflow;

impl Workflow {
    fn commit(&self) -> &Self {
        self
    }

    fn execute(&self, _: &str) -> &Self {
        self
    }

    fn begin(&self, _: &str) -> &Self {
        self
    }
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn create_order(tenant: Tenant, tx: &mut Tx) -> Result<StatusCode, ApiError> {
    for statement in [
        sqlx::query("SAVEPOINT before"),
        sqlx::query("ROLLBACK TO SAVEPOINT before"),
        sqlx::query("-- COMMIT\nROLLBACK TO before"),
        sqlx::query("RELEASE SAVEPOINT before"),
        sqlx::query("SELECT CASE WHEN true THEN 'COMMIT' ELSE '; COMMIT' END"),
        sqlx::query("DO $$ BEGIN PERFORM 1; END; $$"),
        sqlx::query("UPDATE repositories SET commit = $1 /* ; COMMIT */ WHERE id = $2"),
        sqlx::query(r#"INSERT INTO "COMMIT" VALUES (E'\'; COMMIT')"#),
        sqlx::query("PREPARE plan AS SELECT 1"),
    ] {
        statement.execute(&mut *tx).await?;
    }
    sqlx::raw_sql("SELECT 1; SELECT 2;").execute(&mut *tx).await?;
    let _: (i64,) = sqlx::query_as("SELECT 1").bind("COMMIT").fetch_one(&mut *tx).await?;
    let workflow = Workflow;
    workflow.commit().execute("order").begin("BEGIN");
    let _ = tenant.id;
    Ok(StatusCode::CREATED)
}

fn main() {
    routed(post(create_order));
}
