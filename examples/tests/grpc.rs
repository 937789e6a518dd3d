//! A gRPC method that is safe to retry: the service's method calls an annotated function, and the key comes from the metadata.
//!
//! What a `.proto` file would generate is written by hand here, since `protoc` is no dependency of these examples: the two
//! messages, the route, and the client's call.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::routing::post;
use http::uri::PathAndQuery;
use idem_client::classify::{Fate, Verdict, grpc_code};
use idem_examples::until_a_handler_waits;
use idem_runtime::{Error, Idempotency, Tx, idempotent};
use idem_testing::TestDatabase;
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tokio::net::TcpListener;
use tonic::client::Grpc as GrpcClient;
use tonic::server::Grpc as GrpcServer;
use tonic::service::Routes;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;

const CHARGE: &str = "/payments.v1.Payments/Charge";

#[derive(Clone, PartialEq, prost::Message, Serialize)]
struct ChargeRequest {
    #[prost(string, tag = "1")]
    account: String,
    #[prost(int64, tag = "2")]
    amount_cents: i64,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
struct Charged {
    #[prost(int64, tag = "1")]
    charge: i64,
}

#[derive(Debug)]
enum ChargeError {
    Database(sqlx::Error),
    Idempotency(Error),
}

impl From<sqlx::Error> for ChargeError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl From<Error> for ChargeError {
    fn from(error: Error) -> Self {
        Self::Idempotency(error)
    }
}

/// What can be retried with the same key is UNAVAILABLE, and says when; what cannot is another code.
impl From<ChargeError> for Status {
    fn from(error: ChargeError) -> Self {
        let error = match error {
            ChargeError::Database(error) => {
                tracing::error!(%error, "the database failed");
                return Self::unavailable("the database failed; nothing was charged");
            }
            ChargeError::Idempotency(error) => error,
        };
        let message = error.to_string();
        if let Some(retry_after) = error.retry_after() {
            let mut status = Self::unavailable(message);
            // gRPC's own retries honour it.
            let milliseconds = retry_after.as_millis().to_string();
            if let Ok(value) = milliseconds.parse() {
                status.metadata_mut().insert("grpc-retry-pushback-ms", value);
            }
            return status;
        }
        match error {
            Error::Mismatch => Self::failed_precondition(message),
            Error::MissingKey { .. } | Error::InvalidKey(_) => Self::invalid_argument(message),
            _ => Self::internal("the charge failed; nothing was changed"),
        }
    }
}

/// The fingerprint is the message: a key that comes back with another one is a mistake.
#[idempotent(scope = caller, key = key, ttl = "24h", fingerprint = request)]
async fn charge(
    idempotency: &Idempotency,
    tx: &mut Tx,
    caller: String,
    key: String,
    request: ChargeRequest,
) -> Result<Charged, ChargeError> {
    sqlx::query("SELECT FROM accounts WHERE name = $1 FOR UPDATE").bind(&request.account).execute(&mut *tx).await?;
    let insert = sqlx::query_scalar("INSERT INTO charges (account, amount_cents) VALUES ($1, $2) RETURNING id");
    let charge = insert.bind(&request.account).bind(request.amount_cents).fetch_one(&mut *tx).await?;
    Ok(Charged { charge })
}

/// The service's method, as it stands in the generated trait.
async fn charge_method(idempotency: Idempotency, request: Request<ChargeRequest>) -> Result<Response<Charged>, Status> {
    let text = |name| request.metadata().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let caller = text("caller").ok_or_else(|| Status::unauthenticated("the metadata `caller` must say who calls"))?;
    let key = text("idempotency-key")
        .ok_or_else(|| Status::invalid_argument("the metadata `idempotency-key` must carry an idempotency key"))?;
    let charged = charge(&idempotency, caller, key, request.into_inner()).await?;
    Ok(Response::new(charged))
}

async fn route(
    State(idempotency): State<Idempotency>,
    request: http::Request<Body>,
) -> http::Response<tonic::body::Body> {
    let method = service_fn(move |request| charge_method(idempotency.clone(), request));
    GrpcServer::new(ProstCodec::<Charged, ChargeRequest>::default()).unary(method, request).await
}

/// A server of its own, as another process would be.
async fn serve(pool: PgPool) -> Channel {
    let routes = Routes::from(axum::Router::new().route(CHARGE, post(route)).with_state(Idempotency::new(pool)));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(Server::builder().add_routes(routes).serve_with_incoming(TcpIncoming::from(listener)));
    let endpoint = Channel::from_shared(format!("http://{address}")).expect("a URL");
    endpoint.connect().await.expect("a connection")
}

async fn call(channel: &Channel, key: &str, amount_cents: i64) -> Result<Charged, Status> {
    let mut request = Request::new(ChargeRequest { account: "ada".to_owned(), amount_cents });
    request.metadata_mut().insert("caller", "shop".parse().expect("ASCII"));
    if !key.is_empty() {
        request.metadata_mut().insert("idempotency-key", key.parse().expect("ASCII"));
    }
    let mut client = GrpcClient::new(channel.clone());
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let codec = ProstCodec::<ChargeRequest, Charged>::default();
    Ok(client.unary(request, PathAndQuery::from_static(CHARGE), codec).await?.into_inner())
}

async fn start() -> (Arc<TestDatabase>, PgPool, [Channel; 2]) {
    let database = TestDatabase::create().await.expect("a database");
    let pool = database.pool();
    let tables = "CREATE TABLE accounts (name text PRIMARY KEY);
                  INSERT INTO accounts VALUES ('ada');
                  CREATE TABLE charges (id bigserial PRIMARY KEY, account text NOT NULL, amount_cents bigint NOT NULL)";
    sqlx::raw_sql(tables).execute(&pool).await.expect("tables");
    Idempotency::new(pool.clone()).migrate().await.expect("migrations");
    let servers = [serve(database.pool()).await, serve(database.pool()).await];
    (Arc::new(database), pool, servers)
}

async fn charges(pool: &PgPool) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM charges").fetch_one(pool).await.expect("a count")
}

#[tokio::test]
async fn a_retried_call_is_charged_once_whichever_server_it_meets() {
    let (_database, pool, servers) = start().await;
    let first = call(&servers[0], "k1", 500).await.expect("charged");
    for server in &servers {
        assert_eq!(call(server, "k1", 500).await.expect("charged"), first);
    }
    assert_eq!(charges(&pool).await, 1);
    assert_ne!(call(&servers[1], "k2", 500).await.expect("charged"), first);
    assert_eq!(charges(&pool).await, 2);
}

#[tokio::test]
async fn a_call_in_flight_is_unavailable_and_says_when_to_retry() {
    let (_database, pool, servers) = start().await;
    let mut account = pool.begin().await.expect("a transaction");
    sqlx::query("SELECT FROM accounts FOR UPDATE").execute(&mut *account).await.expect("a lock");
    let held = tokio::spawn({
        let server = servers[0].clone();
        async move { call(&server, "k1", 500).await }
    });
    until_a_handler_waits(&pool).await.expect("a handler");
    for server in &servers {
        let busy = call(server, "k1", 500).await.expect_err("in flight");
        assert_eq!(busy.code(), Code::Unavailable, "{busy:?}");
        assert_eq!(busy.metadata().get("grpc-retry-pushback-ms").expect("a pause"), "1000");
        assert!(matches!(grpc_code(busy.code() as i32), Verdict::Retry(_)), "a client retries it");
    }
    account.rollback().await.expect("released");
    let first = held.await.expect("no panic").expect("charged");
    assert_eq!(call(&servers[1], "k1", 500).await.expect("charged"), first);
    assert_eq!(charges(&pool).await, 1);
}

#[tokio::test]
async fn misuse_is_told_and_not_retried() {
    let (_database, pool, servers) = start().await;
    call(&servers[0], "k1", 500).await.expect("charged");
    for (key, amount_cents, code) in [("k1", 501, Code::FailedPrecondition), ("", 500, Code::InvalidArgument)] {
        let refused = call(&servers[1], key, amount_cents).await.expect_err("misuse");
        assert_eq!(refused.code(), code, "{refused:?}");
        assert_eq!(grpc_code(refused.code() as i32), Verdict::Final);
    }
    assert_eq!(charges(&pool).await, 1);
}

#[tokio::test]
async fn without_a_database_nothing_is_charged_and_the_call_can_be_retried() {
    let (database, pool, _) = start().await;
    let away = database.pool();
    let server = serve(away.clone()).await;
    away.close().await;
    let failed = call(&server, "k1", 500).await.expect_err("no database");
    assert_eq!(failed.code(), Code::Unavailable);
    assert_eq!(grpc_code(failed.code() as i32), Verdict::Retry(Fate::Unknown));
    assert_eq!(charges(&pool).await, 0);
}
