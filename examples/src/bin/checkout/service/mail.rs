//! The mail service's API, and what the relay does with a message.

use std::time::Duration;

use idem_runtime::Message;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
pub(super) struct Mail {
    pub(super) to: String,
    pub(super) subject: String,
    pub(super) total_cents: i64,
}

#[derive(Clone)]
pub(super) struct MailService {
    client: reqwest::Client,
    url: String,
}

impl MailService {
    pub(super) fn new(address: &str) -> Result<Self, reqwest::Error> {
        let client = reqwest::Client::builder().timeout(Duration::from_secs(20)).build()?;
        Ok(Self { client, url: format!("http://{address}/emails") })
    }

    /// The relay delivers at least once. The message's key makes that one e-mail.
    pub(super) async fn deliver(&self, message: Message) -> Result<(), idem_examples::Error> {
        let mail: Mail = message.payload()?;
        let request = self.client.post(&self.url).header("Idempotency-Key", message.key().as_str());
        request.json(&mail).send().await?.error_for_status()?;
        Ok(())
    }
}
