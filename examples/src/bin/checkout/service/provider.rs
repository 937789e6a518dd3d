//! The payment provider's API.

use std::time::Duration;

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::error::ApiError;

/// What the provider answered. Recorded, so a decline is not asked again and a charge is not made again.
#[derive(Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub(super) enum Payment {
    Charged { charge: String },
    Declined { reason: String },
}

#[derive(Clone)]
pub(super) struct Provider {
    client: reqwest::Client,
    url: String,
}

impl Provider {
    pub(super) fn new(address: &str) -> Result<Self, reqwest::Error> {
        let client = reqwest::Client::builder().timeout(Duration::from_secs(20)).build()?;
        Ok(Self { client, url: format!("http://{address}") })
    }

    /// Any number of calls with one key is one charge: the provider promises it.
    pub(super) async fn charge(&self, key: &str, amount_cents: i64, card: &str) -> Result<Payment, ApiError> {
        let request = self.client.post(format!("{}/charges", self.url)).header("Idempotency-Key", key);
        let charge = request.json(&json!({ "amount_cents": amount_cents, "card": card })).send();
        Ok(charge.await?.error_for_status()?.json().await?)
    }

    /// Every call is a charge.
    pub(super) async fn charge_keyless(
        &self,
        reference: &str,
        amount_cents: i64,
        card: &str,
    ) -> Result<Payment, ApiError> {
        let request = self.client.post(format!("{}/keyless/charges", self.url));
        let charge = json!({ "reference": reference, "amount_cents": amount_cents, "card": card });
        Ok(request.json(&charge).send().await?.error_for_status()?.json().await?)
    }

    /// Whether there is a charge with this reference.
    pub(super) async fn find_by_reference(&self, reference: &str) -> Result<Option<Payment>, ApiError> {
        let request = self.client.get(format!("{}/keyless/charges", self.url)).query(&[("reference", reference)]);
        let found = request.send().await?;
        if found.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        Ok(Some(found.error_for_status()?.json().await?))
    }
}
