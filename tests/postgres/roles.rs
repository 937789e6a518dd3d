//! Row-level security: a handler takes a role on, and our own statements run as the role that began.
//!
//! {how the role is taken} × {transaction, without a key, first part, later part, function} × {success, refusal, failure}.

use axum::extract::FromRef;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use idem_runtime::{Error, Idempotency, Operation, Tx, idempotent};
use idem_testing::TestDatabase;
use idem_tests::{Reply, Tenant, request};
use serde::{Deserialize, Serialize};
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgPoolOptions;
use tower::ServiceExt;

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Takes {
    sql: String,
    status: u16,
}

#[derive(Debug)]
enum Failed {
    Status(u16),
    Sql(String),
    Idempotency(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Idempotency(error)
    }
}

impl From<sqlx::Error> for Failed {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error.to_string())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        match self {
            Self::Status(status) => StatusCode::from_u16(status).expect("a status").into_response(),
            Self::Sql(error) => (StatusCode::IM_A_TEAPOT, error).into_response(),
            Self::Idempotency(error) => error.into_response(),
        }
    }
}

async fn take(tx: &mut Tx, takes: &Takes) -> Result<(), Failed> {
    sqlx::raw_sql(AssertSqlSafe(takes.sql.clone())).execute(&mut **tx).await?;
    // The policy lets through what belongs to the current role, and nothing else.
    sqlx::query("INSERT INTO documents (owner) VALUES (current_user)").execute(&mut *tx).await?;
    if takes.status == 201 { Ok(()) } else { Err(Failed::Status(takes.status)) }
}

#[idempotent(scope = tenant.id, ttl = "24h", key = optional)]
async fn in_transaction(tenant: Tenant, tx: &mut Tx, Json(takes): Json<Takes>) -> Result<StatusCode, Failed> {
    take(tx, &takes).await?;
    Ok(StatusCode::CREATED)
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn in_first(tenant: Tenant, op: &mut Operation, Json(takes): Json<Takes>) -> Result<StatusCode, Failed> {
    op.transaction("takes", async |tx| take(tx, &takes).await).await?;
    Ok(StatusCode::CREATED)
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn in_later(tenant: Tenant, op: &mut Operation, Json(takes): Json<Takes>) -> Result<StatusCode, Failed> {
    op.transaction("before", async |tx| {
        sqlx::query("SELECT 1").execute(tx).await?;
        Ok::<_, Failed>(())
    })
    .await?;
    op.transaction("takes", async |tx| take(tx, &takes).await).await?;
    Ok(StatusCode::CREATED)
}

#[idempotent(scope = "functions", key = id, ttl = "24h")]
async fn function(idempotency: &Idempotency, tx: &mut Tx, id: String, takes: Takes) -> Result<i64, Failed> {
    take(tx, &takes).await?;
    Ok(1)
}

#[derive(Clone, FromRef)]
struct AppState {
    idempotency: Idempotency,
}

async fn count(pool: &sqlx::PgPool, what: &'static str) -> i64 {
    sqlx::query_scalar(what).fetch_one(pool).await.expect("a count")
}

const DOCUMENTS: &str = "SELECT count(*) FROM documents";

#[tokio::test]
async fn our_statements_run_as_the_role_that_began_47() {
    let database = TestDatabase::create().await.expect("a database");
    let pool = database.pool_with(PgPoolOptions::new().max_connections(1));
    let role = format!("{}_tenant", database.name());
    let setup = format!(
        "CREATE TABLE documents (owner text NOT NULL); ALTER TABLE documents ENABLE ROW LEVEL SECURITY; \
         CREATE POLICY own ON documents USING (owner = current_user) WITH CHECK (owner = current_user); \
         CREATE ROLE {role}; GRANT SELECT, INSERT ON documents TO {role}"
    );
    sqlx::raw_sql(AssertSqlSafe(setup)).execute(&pool).await.expect("the tables");
    let idempotency = Idempotency::new(pool.clone());
    idempotency.migrate().await.expect("the migrations");
    let router = Router::new()
        .route("/transaction", post(in_transaction))
        .route("/first", post(in_first))
        .route("/later", post(in_later))
        .with_state(AppState { idempotency: idempotency.clone() });
    let began: String =
        sqlx::query_scalar("SELECT current_user || session_user").fetch_one(&pool).await.expect("a role");
    for sql in [
        format!("SET LOCAL ROLE {role}"),
        format!("SET ROLE {role}"),
        format!("SELECT set_config('role', '{role}', true)"),
        format!("SELECT set_config('role', '{role}', false)"),
        format!("SET LOCAL SESSION AUTHORIZATION {role}"),
        format!("SET SESSION AUTHORIZATION {role}"),
    ] {
        for status in [201, 409, 500] {
            let takes = Takes { sql: sql.clone(), status };
            for (path, key) in [
                ("/transaction", true),
                ("/transaction", false),
                ("/first", true),
                ("/later", true),
                ("function", true),
            ] {
                let what = format!("{sql} {status} {path} {key}");
                let before = count(&pool, DOCUMENTS).await;
                let name = what.replace(' ', "_").replace('\'', "");
                for attempt in 0..2 {
                    if path == "function" {
                        match function(&idempotency, name.clone(), takes.clone()).await {
                            Ok(1) => assert_eq!(status, 201, "{what}"),
                            Err(Failed::Status(failed)) => assert_eq!(failed, status, "{what}"),
                            other => panic!("{what}: {other:?}"),
                        }
                    } else {
                        let mut headers = vec![("tenant", "a")];
                        headers.extend(key.then_some(("idempotency-key", name.as_str())));
                        let sent = router.clone().oneshot(request(path, &headers, &takes)).await;
                        let reply = Reply::of(sent.expect("an answer")).await;
                        assert_eq!(reply.status, status, "{what} {attempt}: {reply:?}");
                        assert_eq!(reply.replayed(), key && attempt == 1 && status != 500, "{what} {attempt}");
                    }
                    let now: String = sqlx::query_scalar("SELECT current_user || session_user")
                        .fetch_one(&pool)
                        .await
                        .expect("a role");
                    assert_eq!(now, began, "{what} {attempt}: the pool's connection");
                }
                let effects = if status != 201 {
                    0
                } else if key {
                    1
                } else {
                    2
                };
                assert_eq!(count(&pool, DOCUMENTS).await - before, effects, "{what}");
            }
        }
    }
    let dropped = format!("DROP OWNED BY {role}; DROP ROLE {role}");
    sqlx::raw_sql(AssertSqlSafe(dropped)).execute(&pool).await.expect("the role dropped");
}
