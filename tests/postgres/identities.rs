//! Which operation a key is for: handler, method and path count whatever the attribute says of the payload.

use axum::extract::FromRef;
use axum::http::{Method, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, post};
use axum::{Json, Router};
use idem_runtime::{Error, Idempotency, IdempotencyKey, Operation, Tx, idempotent};
use idem_testing::TestDatabase;
use idem_tests::{Reply, Tenant, request};
use sqlx::PgPool;
use tower::ServiceExt;

async fn write(tx: &mut Tx, text: &str) -> StatusCode {
    let written = sqlx::query("INSERT INTO entries (text) VALUES ($1)").bind(text).execute(tx).await;
    written.map_or(StatusCode::INTERNAL_SERVER_ERROR, |_| StatusCode::CREATED)
}

#[idempotent(scope = tenant.id, ttl = "24h", fingerprint = amount)]
async fn charge(tenant: Tenant, tx: &mut Tx, Json(amount): Json<i64>) -> (StatusCode, &'static str) {
    (write(tx, "charge").await, "charged")
}

#[idempotent(scope = tenant.id, ttl = "24h", fingerprint = amount)]
async fn refund(tenant: Tenant, tx: &mut Tx, Json(amount): Json<i64>) -> (StatusCode, &'static str) {
    (write(tx, "refund").await, "refunded")
}

#[derive(Debug)]
struct Failed(Error);

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        self.0.into_response()
    }
}

/// Answers with the key that a provider would get.
#[idempotent(scope = tenant.id, ttl = "24h")]
async fn derives(tenant: Tenant, op: &mut Operation) -> Result<String, Failed> {
    let call = async |key: IdempotencyKey| Ok::<_, Failed>(key.to_string());
    op.step("charge", call).await
}

#[derive(Clone, FromRef)]
struct AppState {
    idempotency: Idempotency,
}

fn router(idempotency: Idempotency) -> Router {
    Router::new()
        .route("/charges", any(charge))
        .route("/other/charges", any(charge))
        .route("/refunds", any(refund))
        .route("/derives", post(derives))
        .with_state(AppState { idempotency })
}

async fn start() -> (TestDatabase, PgPool, Router) {
    let database = TestDatabase::create().await.expect("a database");
    let pool = database.pool();
    idem_tests::create_tables(&pool).await;
    let idempotency = Idempotency::new(pool.clone());
    idempotency.migrate().await.expect("the migrations");
    (database, pool, router(idempotency))
}

async fn send(router: &Router, method: &Method, path: &str, key: &str, amount: i64) -> Reply {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("tenant", "a")
        .header("idempotency-key", key)
        .header("content-type", "application/json")
        .body(axum::body::Body::from(amount.to_string()))
        .expect("a request");
    Reply::of(router.clone().oneshot(request).await.expect("an answer")).await
}

async fn entries(pool: &PgPool) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM entries").fetch_one(pool).await.expect("a count")
}

#[tokio::test]
async fn handler_method_and_path_count_whatever_the_fingerprint_is() {
    let (_database, pool, router) = start().await;
    let mut operations = Vec::new();
    for method in [Method::POST, Method::PUT, Method::PATCH] {
        for path in ["/charges", "/other/charges", "/refunds"] {
            for amount in [1, 2] {
                operations.push((method.clone(), path, amount));
            }
        }
    }
    for (number, (method, path, amount)) in operations.iter().enumerate() {
        let key = format!("k{number}");
        let first = send(&router, method, path, &key, *amount).await;
        assert_eq!((first.status, first.replayed()), (201, false), "{first:?}");
        for (other, other_path, other_amount) in &operations {
            let reply = send(&router, other, other_path, &key, *other_amount).await;
            let what = format!("{method} {path} {amount}, then {other} {other_path} {other_amount}: {reply:?}");
            if (other, other_path, other_amount) == (method, path, amount) {
                assert!(reply.status == 201 && reply.replayed(), "{what}");
            } else {
                assert_eq!((reply.status, reply.problem().as_str()), (422, "key-reused"), "{what}");
            }
        }
        // The expression takes the place of the query.
        let reply = send(&router, method, &format!("{path}?page=2"), &key, *amount).await;
        assert!(reply.status == 201 && reply.replayed(), "{method} {path} {amount}: {reply:?}");
    }
    assert_eq!(entries(&pool).await, i64::try_from(operations.len()).expect("a number"), "one effect each");
}

#[tokio::test]
async fn a_head_request_does_not_use_up_a_key() {
    let (_database, pool, router) = start().await;
    for _ in 0..2 {
        assert_eq!(send(&router, &Method::HEAD, "/charges", "k", 1).await.status, 201);
    }
    assert_eq!(entries(&pool).await, 0, "it asks, and changes nothing");
    let first = send(&router, &Method::POST, "/refunds", "k", 2).await;
    assert_eq!((first.status, first.replayed()), (201, false), "{first:?}");
    assert_eq!(entries(&pool).await, 1);
}

#[tokio::test]
async fn one_key_is_another_one_at_a_provider_for_each_tenant_and_schema_41() {
    let database = TestDatabase::create().await.expect("a database");
    let mut keys = std::collections::BTreeSet::new();
    let schemas = ["idem", "other", "idem1"];
    let tenants = ["a", "b", "1a"];
    for schema in schemas {
        let idempotency = Idempotency::builder(database.pool()).schema(schema).build().expect("settings");
        idempotency.migrate().await.expect("the migrations");
        let router = router(idempotency);
        for tenant in tenants {
            for key in ["1", "11"] {
                let headers = [("tenant", tenant), ("idempotency-key", key)];
                let sent = router.clone().oneshot(request("/derives", &headers, &())).await.expect("an answer");
                let reply = Reply::of(sent).await;
                assert_eq!(reply.status, 200, "{reply:?}");
                let derived = format!("{:?}", reply.body);
                assert!(keys.insert(derived), "{schema} {tenant} {key}: {reply:?}");
            }
        }
    }
    assert_eq!(keys.len(), schemas.len() * tenants.len() * 2);
}
