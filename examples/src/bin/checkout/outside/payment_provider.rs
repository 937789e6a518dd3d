//! Takes money. `/charges` honours idempotency keys; `/keyless/charges` has never heard of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use super::hold::{Hold, Place};
use super::ledger::{Ledger, Line};

#[derive(Clone)]
struct Provider {
    ledger: Ledger,
    hold: Hold,
    numbers: Arc<AtomicU32>,
    /// Charges to `tok_outage` fail.
    outage: Arc<AtomicBool>,
}

pub(super) fn router() -> Router {
    let provider = Provider {
        ledger: Ledger::default(),
        hold: Hold::new(),
        numbers: Arc::default(),
        outage: Arc::new(AtomicBool::new(true)),
    };
    Router::new()
        .route("/charges", post(charge))
        .route("/keyless/charges", post(charge_keyless).get(find))
        .route("/ledger", get(async |State(provider): State<Provider>| provider.ledger.shown()))
        .route("/repair", post(async |State(provider): State<Provider>| provider.outage.store(false, Ordering::SeqCst)))
        .with_state(provider.clone())
        .merge(provider.hold.router())
}

async fn charge(State(provider): State<Provider>, headers: HeaderMap, Json(charge): Json<Value>) -> Response {
    let Some(key) = headers.get("idempotency-key").and_then(|key| key.to_str().ok()).map(str::to_owned) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    at_work(provider, amount(&charge), move |provider| provider.charge_once(&key, charge)).await
}

async fn charge_keyless(State(provider): State<Provider>, Json(charge): Json<Value>) -> Response {
    let reference = charge["reference"].as_str().unwrap_or_default().to_owned();
    at_work(provider, amount(&charge), move |provider| provider.charge_always(&reference, &charge)).await
}

#[derive(Deserialize)]
struct Search {
    reference: String,
}

async fn find(State(provider): State<Provider>, Query(search): Query<Search>) -> Response {
    let found = provider.ledger.lines().get(&search.reference).and_then(|line| line.answer.clone());
    found.map_or(StatusCode::NOT_FOUND.into_response(), |answer| Json(answer).into_response())
}

/// In a task of its own: a caller who hangs up does not stop a provider.
async fn at_work(
    provider: Provider,
    amount_cents: i64,
    work: impl FnOnce(&Provider) -> Response + Send + 'static,
) -> Response {
    let working = tokio::spawn(async move {
        if !provider.hold.come_by(Place::Request, amount_cents).await {
            return StatusCode::GATEWAY_TIMEOUT.into_response();
        }
        let answer = work(&provider);
        provider.hold.come_by(Place::Answer, amount_cents).await;
        answer
    });
    working.await.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

fn amount(charge: &Value) -> i64 {
    charge["amount_cents"].as_i64().unwrap_or_default()
}

impl Provider {
    fn charge_once(&self, key: &str, charge: Value) -> Response {
        let mut lines = self.ledger.lines();
        let line = lines.entry(key.to_owned()).or_default();
        line.calls += 1;
        if line.answer.is_some() && line.request != charge {
            return (StatusCode::UNPROCESSABLE_ENTITY, "the key was used for another charge").into_response();
        }
        if line.answer.is_none() && !self.take_money(line, &charge) {
            return (StatusCode::SERVICE_UNAVAILABLE, "the card network is away").into_response();
        }
        Json(line.answer.clone()).into_response()
    }

    fn charge_always(&self, reference: &str, charge: &Value) -> Response {
        let mut lines = self.ledger.lines();
        let line = lines.entry(reference.to_owned()).or_default();
        line.calls += 1;
        self.take_money(line, charge);
        Json(line.answer.clone()).into_response()
    }

    /// False during an outage.
    fn take_money(&self, line: &mut Line, charge: &Value) -> bool {
        let answer = match charge["card"].as_str() {
            Some("tok_outage") if self.outage.load(Ordering::SeqCst) => return false,
            Some("tok_declined") => json!({ "outcome": "declined", "reason": "insufficient funds" }),
            _ => {
                line.effects += 1;
                line.amount_cents += amount(charge);
                let number = self.numbers.fetch_add(1, Ordering::SeqCst) + 1;
                json!({ "outcome": "charged", "charge": format!("ch_{number}") })
            }
        };
        line.about = answer["outcome"].as_str().unwrap_or_default().to_owned();
        line.charge = answer["charge"].as_str().map(str::to_owned);
        line.request = charge.clone();
        line.answer = Some(answer);
        true
    }
}
