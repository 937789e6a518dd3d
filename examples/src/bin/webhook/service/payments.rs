//! What the provider tells us about payments.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use idem_runtime::{Tx, idempotent};
use serde::{Deserialize, Serialize};

use super::signature::Signed;

/// An event, delivered until we answer with 2xx. `attempt` and the like differ between its deliveries and are not read.
#[derive(Deserialize)]
pub(super) struct Event {
    id: String,
    data: Data,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "type")]
enum Data {
    #[serde(rename = "payment.succeeded")]
    PaymentSucceeded { invoice: String, amount_cents: i64 },
    #[serde(rename = "payment.refunded")]
    PaymentRefunded { invoice: String, amount_cents: i64 },
    /// What the provider invents next.
    #[serde(other)]
    Other,
}

/// Both are 5xx, which leaves nothing behind: the provider delivers again, and that delivery runs.
pub(super) enum NotNow {
    UnknownInvoice,
    Database(sqlx::Error),
}

impl From<sqlx::Error> for NotNow {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl IntoResponse for NotNow {
    fn into_response(self) -> Response {
        match self {
            Self::UnknownInvoice => (StatusCode::SERVICE_UNAVAILABLE, "there is no such invoice yet").into_response(),
            Self::Database(error) => {
                tracing::error!(%error, "the database failed");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}

/// Books an event's money, once for each event.
///
/// The event's number is the key, so no header is needed; it is the provider's, and there is one provider, so the scope
/// is global. A redelivery is the same event if it says the same (`fingerprint`), whatever else is on the envelope.
/// While the first delivery is at work another waits for its answer (`in_flight`), because providers count a 409 as an
/// outage. The outcome is kept for longer than the provider redelivers (`ttl`).
#[idempotent(scope = global, key = event.id, fingerprint = event.data, in_flight = "wait 5s", ttl = "30d")]
pub(super) async fn receive(tx: &mut Tx, Signed(event): Signed<Event>) -> Result<StatusCode, NotNow> {
    match event.data {
        Data::PaymentSucceeded { invoice, amount_cents } => book(tx, &invoice, amount_cents).await?,
        Data::PaymentRefunded { invoice, amount_cents } => book(tx, &invoice, -amount_cents).await?,
        Data::Other => tracing::info!("ignored an event of another type"),
    }
    Ok(StatusCode::NO_CONTENT)
}

async fn book(tx: &mut Tx, invoice: &str, amount_cents: i64) -> Result<(), NotNow> {
    let pay = "UPDATE invoices SET paid_cents = paid_cents + $2 WHERE id = $1";
    let paid = sqlx::query(pay).bind(invoice).bind(amount_cents).execute(&mut *tx).await?;
    if paid.rows_affected() == 0 {
        return Err(NotNow::UnknownInvoice);
    }
    let book = "INSERT INTO ledger (invoice, amount_cents) VALUES ($1, $2)";
    sqlx::query(book).bind(invoice).bind(amount_cents).execute(&mut *tx).await?;
    tracing::info!(invoice, amount_cents, "booked");
    Ok(())
}
