//! Sends e-mails, one for each key.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::Value;

use super::hold::{Hold, Place};
use super::ledger::Ledger;

#[derive(Clone)]
struct MailService {
    ledger: Ledger,
    hold: Hold,
}

pub(super) fn router() -> Router {
    let service = MailService { ledger: Ledger::default(), hold: Hold::new() };
    Router::new()
        .route("/emails", post(send))
        .route("/ledger", get(async |State(service): State<MailService>| service.ledger.shown()))
        .with_state(service.clone())
        .merge(service.hold.router())
}

async fn send(State(service): State<MailService>, headers: HeaderMap, Json(mail): Json<Value>) -> StatusCode {
    let Some(key) = headers.get("idempotency-key").and_then(|key| key.to_str().ok()).map(str::to_owned) else {
        return StatusCode::BAD_REQUEST;
    };
    let total_cents = mail["total_cents"].as_i64().unwrap_or_default();
    // In a task of its own: a caller who hangs up does not stop a mail service.
    let working = tokio::spawn(async move {
        if !service.hold.come_by(Place::Request, total_cents).await {
            return StatusCode::GATEWAY_TIMEOUT;
        }
        service.deliver(&key, total_cents, mail);
        service.hold.come_by(Place::Answer, total_cents).await;
        StatusCode::ACCEPTED
    });
    working.await.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

impl MailService {
    fn deliver(&self, key: &str, total_cents: i64, mail: Value) {
        let mut lines = self.ledger.lines();
        let line = lines.entry(key.to_owned()).or_default();
        line.calls += 1;
        if line.answer.is_none() {
            line.effects += 1;
            line.amount_cents += total_cents;
            line.about = mail["subject"].as_str().unwrap_or_default().to_owned();
            line.answer = Some(mail);
        }
    }
}
