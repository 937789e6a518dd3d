//! The service, as one would write it.

use std::time::Duration;

use axum::extract::{FromRef, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use idem_runtime::{Idempotency, Tx, idempotent};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tokio::net::TcpListener;

/// Upper bounds in seconds. A replay takes a millisecond or two; a handler takes what it takes.
const DURATIONS: [f64; 9] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5];

#[derive(Clone, FromRef)]
struct AppState {
    idempotency: Idempotency,
    prometheus: PrometheusHandle,
}

#[derive(Deserialize)]
struct NewPayout {
    amount_cents: i64,
}

#[derive(Serialize, sqlx::FromRow)]
struct Payout {
    id: i64,
    merchant: String,
    amount_cents: i64,
}

enum Failure {
    BankClosed,
    Database(sqlx::Error),
}

/// Pays a merchant out. Who calls has been authenticated by the gateway in front, which also wrote the path.
#[idempotent(scope = merchant, ttl = "24h")]
async fn pay_out(
    Path(merchant): Path<String>,
    tx: &mut Tx,
    Json(new): Json<NewPayout>,
) -> Result<(StatusCode, Json<Payout>), Failure> {
    let open: bool = sqlx::query_scalar("SELECT open FROM bank FOR SHARE").fetch_one(&mut *tx).await?;
    if !open {
        return Err(Failure::BankClosed);
    }
    let insert = "INSERT INTO payouts (merchant, amount_cents) VALUES ($1, $2) RETURNING id, merchant, amount_cents";
    let payout = sqlx::query_as(insert).bind(merchant).bind(new.amount_cents).fetch_one(&mut *tx).await?;
    Ok((StatusCode::CREATED, Json(payout)))
}

/// What Prometheus scrapes. In production it is served on a port of its own that only Prometheus reaches.
async fn scrape(State(prometheus): State<PrometheusHandle>) -> String {
    prometheus.render()
}

/// The application's tables and the runtime's.
pub(crate) async fn migrate(pool: &PgPool) -> Result<(), idem_examples::Error> {
    sqlx::migrate!("src/bin/metrics/migrations").run(pool).await?;
    Idempotency::new(pool.clone()).migrate().await?;
    Ok(())
}

/// Serves until `stop` ends, and then until every operation in flight has its answer.
pub(crate) async fn serve(
    pool: PgPool,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), idem_examples::Error> {
    migrate(&pool).await?;
    let prometheus = install_recorder()?;
    let idempotency = Idempotency::new(pool.clone());
    let sweeper = idempotency.sweeper();
    let routes = Router::new()
        .route("/merchants/{merchant}/payouts", post(pay_out))
        .route("/metrics", get(scrape))
        .with_state(AppState { idempotency: idempotency.clone(), prometheus });

    axum::serve(listener, routes).with_graceful_shutdown(stop).await?;

    idempotency.shutdown().await;
    sweeper.stop().await;
    pool.close().await;
    Ok(())
}

/// From here on what the runtime counts goes to Prometheus.
fn install_recorder() -> Result<PrometheusHandle, idem_examples::Error> {
    let durations = Matcher::Full("idem_operation_duration_seconds".to_owned());
    let recorder = PrometheusBuilder::new().set_buckets_for_metric(durations, &DURATIONS)?;
    let prometheus = recorder.install_recorder()?;
    let upkeep = prometheus.clone();
    tokio::spawn(async move {
        let mut interval = tokio::time::interval(Duration::from_secs(5));
        loop {
            interval.tick().await;
            upkeep.run_upkeep();
        }
    });
    Ok(prometheus)
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        match self {
            Self::BankClosed => (StatusCode::SERVICE_UNAVAILABLE, "the bank is closed").into_response(),
            Self::Database(error) => {
                tracing::error!(%error, "the database failed");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}
