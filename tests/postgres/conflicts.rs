//! A transaction that loses to a concurrent one is no outcome: a retry may win. It is found on every way on which it can be found.
//!
//! {where the statement fails} × {which error type carries it} × {transaction, part, without a key}.

use std::fmt;

use axum::extract::FromRef;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use idem_runtime::{Error, Idempotency, Operation, Tx, idempotent};
use idem_testing::TestDatabase;
use idem_tests::{Reply, Tenant, request};
use serde::{Deserialize, Serialize};
use sqlx::{Connection, PgConnection};
use tower::ServiceExt;

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Way {
    Executor,
    Deref,
    Connection,
    Savepoint,
}

const WAYS: [Way; 4] = [Way::Executor, Way::Deref, Way::Connection, Way::Savepoint];

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Loses {
    code: String,
    way: Way,
    status: u16,
}

/// An application's error as most are: an enum over what can go wrong, and a status for each.
#[derive(Debug)]
enum AppError {
    Repository(RepositoryError, u16),
    Idempotency(Error),
}

#[derive(Debug)]
struct RepositoryError(sqlx::Error);

impl fmt::Display for RepositoryError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the repository failed")
    }
}

impl std::error::Error for RepositoryError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

impl fmt::Display for AppError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the application failed")
    }
}

impl std::error::Error for AppError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Repository(error, _) => Some(error),
            Self::Idempotency(error) => Some(error),
        }
    }
}

impl From<Error> for AppError {
    fn from(error: Error) -> Self {
        Self::Idempotency(error)
    }
}

impl IntoResponse for AppError {
    fn into_response(self) -> Response {
        match self {
            Self::Repository(_, status) => StatusCode::from_u16(status).expect("a status").into_response(),
            Self::Idempotency(error) => error.into_response(),
        }
    }
}

fn raise(code: &str) -> sqlx::AssertSqlSafe<String> {
    sqlx::AssertSqlSafe(format!("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{code}'; END $$"))
}

async fn repository(connection: &mut PgConnection, code: &str) -> sqlx::Result<()> {
    sqlx::query("INSERT INTO entries (text) VALUES ('lost')").execute(&mut *connection).await?;
    sqlx::query(raise(code)).execute(connection).await.map(drop)
}

async fn lose(tx: &mut Tx, loses: &Loses) -> Result<(), AppError> {
    let lost = match loses.way {
        Way::Executor => sqlx::query(raise(&loses.code)).execute(&mut *tx).await.map(drop),
        Way::Deref => sqlx::query(raise(&loses.code)).execute(&mut **tx).await.map(drop),
        Way::Connection => repository(tx, &loses.code).await,
        Way::Savepoint => {
            let mut savepoint = Connection::begin(&mut **tx).await.expect("a savepoint");
            repository(&mut savepoint, &loses.code).await
        }
    };
    lost.map_err(|error| AppError::Repository(RepositoryError(error), loses.status))
}

#[idempotent(scope = tenant.id, ttl = "24h", key = optional)]
async fn in_transaction(tenant: Tenant, tx: &mut Tx, Json(loses): Json<Loses>) -> Result<StatusCode, AppError> {
    lose(tx, &loses).await?;
    Ok(StatusCode::CREATED)
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn in_parts(tenant: Tenant, op: &mut Operation, Json(loses): Json<Loses>) -> Result<StatusCode, AppError> {
    op.transaction("first", async |tx| {
        let written = sqlx::query("SELECT 1").execute(&mut *tx).await.map(drop);
        written.map_err(|error| AppError::Repository(RepositoryError(error), 500))
    })
    .await?;
    op.transaction("loses", async |tx| lose(tx, &loses).await).await?;
    Ok(StatusCode::CREATED)
}

#[idempotent(scope = tenant.id, ttl = "24h")]
async fn in_the_first_part(
    tenant: Tenant,
    op: &mut Operation,
    Json(loses): Json<Loses>,
) -> Result<StatusCode, AppError> {
    op.transaction("loses", async |tx| lose(tx, &loses).await).await?;
    Ok(StatusCode::CREATED)
}

/// Turns the error into a status by itself: nothing is left to look through.
#[idempotent(scope = tenant.id, ttl = "24h")]
async fn opaque(tenant: Tenant, tx: &mut Tx, Json(loses): Json<Loses>) -> StatusCode {
    match lose(tx, &loses).await {
        Ok(()) => StatusCode::CREATED,
        Err(_) => StatusCode::from_u16(loses.status).expect("a status"),
    }
}

#[derive(Clone, FromRef)]
struct AppState {
    idempotency: Idempotency,
}

async fn start() -> (TestDatabase, sqlx::PgPool, Router) {
    let database = TestDatabase::create().await.expect("a database");
    let pool = database.pool();
    idem_tests::create_tables(&pool).await;
    let idempotency = Idempotency::new(pool.clone());
    idempotency.migrate().await.expect("the migrations");
    let router = Router::new()
        .route("/transaction", post(in_transaction))
        .route("/parts", post(in_parts))
        .route("/first", post(in_the_first_part))
        .route("/opaque", post(opaque))
        .with_state(AppState { idempotency });
    (database, pool, router)
}

async fn count(pool: &sqlx::PgPool, what: &'static str) -> i64 {
    sqlx::query_scalar(what).fetch_one(pool).await.expect("a count")
}

const STORED: &str = "SELECT count(*) FROM idem.idempotency_keys WHERE status IS NOT NULL";
const ENTRIES: &str = "SELECT count(*) FROM entries";

#[tokio::test]
async fn a_lost_conflict_is_found_on_every_way_and_is_no_outcome_43() {
    let (_database, pool, router) = start().await;
    for code in ["40001", "40P01"] {
        for way in WAYS {
            for status in [409, 422, 500] {
                for path in ["/transaction", "/parts", "/first"] {
                    for key in [Some("k"), None] {
                        if key.is_none() && path != "/transaction" {
                            continue;
                        }
                        let loses = Loses { code: code.to_owned(), way, status };
                        let key = key.map(|key| format!("{key}-{code}-{way:?}-{status}"));
                        let mut headers = vec![("tenant", path)];
                        headers.extend(key.as_deref().map(|key| ("idempotency-key", key)));
                        for _ in 0..2 {
                            let sent = router.clone().oneshot(request(path, &headers, &loses));
                            let reply = Reply::of(sent.await.expect("an answer")).await;
                            let what = format!("{code} {way:?} {status} {path} {key:?}: {reply:?}");
                            assert_eq!((reply.status, reply.problem().as_str()), (503, "unavailable"), "{what}");
                            assert!(!reply.header("retry-after").is_empty() && !reply.replayed(), "{what}");
                        }
                    }
                }
            }
        }
    }
    assert_eq!((count(&pool, STORED).await, count(&pool, ENTRIES).await), (0, 0));
}

/// What stays unseen is documented beside `Tx`: this is the form that does.
#[tokio::test]
async fn a_conflict_that_a_helper_hides_behind_a_status_is_seen_through_the_executor_only() {
    let (_database, pool, router) = start().await;
    for (way, seen) in [(Way::Executor, true), (Way::Connection, false)] {
        let loses = Loses { code: "40001".to_owned(), way, status: 409 };
        let key = format!("{way:?}");
        let headers = [("tenant", "a"), ("idempotency-key", key.as_str())];
        let sent = router.clone().oneshot(request("/opaque", &headers, &loses));
        let reply = Reply::of(sent.await.expect("an answer")).await;
        assert_eq!(reply.status, if seen { 503 } else { 409 }, "{way:?}");
    }
    assert_eq!(
        (count(&pool, STORED).await, count(&pool, ENTRIES).await),
        (1, 0),
        "a refusal without a trace of the writes"
    );
}

/// Any other error stays what the handler makes of it.
#[tokio::test]
async fn a_broken_constraint_is_a_refusal_on_every_way() {
    let (_database, pool, router) = start().await;
    for way in WAYS {
        for path in ["/transaction", "/first", "/parts"] {
            let loses = Loses { code: "23505".to_owned(), way, status: 409 };
            let key = format!("{way:?}");
            let headers = [("tenant", path), ("idempotency-key", key.as_str())];
            for replayed in [false, true] {
                let sent = router.clone().oneshot(request(path, &headers, &loses));
                let reply = Reply::of(sent.await.expect("an answer")).await;
                assert_eq!((reply.status, reply.replayed()), (409, replayed), "{way:?} {path}: {reply:?}");
            }
        }
    }
    assert_eq!(count(&pool, ENTRIES).await, 0);
}
