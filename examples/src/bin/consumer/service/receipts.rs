//! What is told to others once a payment is booked. The messages are in the booking's own commit; the relay delivers them, each topic
//! at its own pace.

use std::time::Duration;

use idem_runtime::{Error, Idempotency, Message, Relay, Tx};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::payments::{Booked, Payment};
use super::settings::Settings;

/// Where customers' receipts go, as topic and as stream.
pub(crate) const RECEIPTS: &str = "receipts";
/// Where the archive's copies go: a slow system.
pub(crate) const ARCHIVE: &str = "archive";

/// How many copies the archive takes at once.
const ARCHIVERS: u32 = 2;

#[derive(Debug, Serialize, Deserialize)]
struct Receipt {
    payment: String,
    account: String,
    balance_cents: i64,
}

/// Receipts of one account arrive in the order of its bookings.
pub(super) async fn announce(tx: &mut Tx, payment: &Payment, booked: &Booked) -> Result<(), Error> {
    let receipt =
        Receipt { payment: payment.id.clone(), account: payment.account.clone(), balance_cents: booked.balance_cents };
    tx.outbox().group(&payment.account).send(RECEIPTS, &payment.id, &receipt).await?;
    tx.outbox().send(ARCHIVE, &payment.id, &receipt).await?;
    Ok(())
}

type Delivered = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// A message may come twice; its key lets the receiver notice.
async fn append(mut redis: MultiplexedConnection, message: Message) -> Delivered {
    let receipt: Receipt = message.payload()?;
    let key = message.key();
    let fields = [("payment", receipt.payment.as_str()), ("account", &receipt.account), ("key", key.as_str())];
    let _: Option<String> = redis.xadd(message.topic(), "*", &fields).await?;
    Ok(())
}

pub(super) fn start(
    idempotency: &Idempotency,
    redis: MultiplexedConnection,
    settings: &Settings,
) -> Result<Relay, Error> {
    let (archive, pause) = (redis.clone(), settings.archive_pause);
    let poison = settings.poison.clone();
    let relay = idempotency
        .relay()
        .on(RECEIPTS, move |message| {
            // As a stack overflow in a library would, or the kernel when memory runs out.
            if poison.as_deref() == Some(message.dedupe_key()) {
                std::process::abort();
            }
            append(redis.clone(), message)
        })
        .on(ARCHIVE, move |message| {
            let archive = archive.clone();
            async move {
                sleep(pause).await;
                append(archive, message).await
            }
        })
        .limit(ARCHIVERS)
        .timeout(Duration::from_secs(60));
    relay.start()
}
