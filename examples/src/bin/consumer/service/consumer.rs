//! The loop: read, book, acknowledge. A message is acknowledged after its effect, so a consumer that dies between the two has
//! it delivered again, to another: at least once. The inbox makes that exactly once.

use std::time::Duration;

use idem_runtime::Idempotency;
use redis::aio::MultiplexedConnection;
use redis::streams::{StreamAutoClaimOptions, StreamAutoClaimReply, StreamId, StreamReadOptions, StreamReadReply};
use redis::{AsyncCommands, AsyncConnectionConfig, Client, RedisResult};
use sqlx::PgPool;
use tokio::sync::watch;
use tokio::time::sleep;

use super::payments::{Booked, ConsumerError, Payment, on_payment, on_payment_unprotected};
use super::settings::Settings;

/// The stream of payments.
pub(crate) const STREAM: &str = "payments";
/// Where messages go that can never be booked.
pub(crate) const DEAD: &str = "payments:dead";
/// The group whose consumers share the stream.
pub(crate) const GROUP: &str = "bookkeeping";

/// How many messages are read at once.
const BATCH: usize = 16;

pub(super) struct Consumer {
    idempotency: Idempotency,
    pool: PgPool,
    redis: MultiplexedConnection,
    name: String,
    patience: Duration,
    inbox: bool,
}

/// # Errors
/// If the broker does not answer.
pub(super) async fn connect(settings: &Settings) -> RedisResult<MultiplexedConnection> {
    let client = Client::open(format!("redis://{}", settings.redis))?;
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(30)));
    client.get_multiplexed_async_connection_with_config(&config).await
}

impl Consumer {
    pub(super) async fn connect(
        idempotency: Idempotency,
        pool: PgPool,
        settings: &Settings,
    ) -> Result<Self, idem_examples::Error> {
        let mut redis = connect(settings).await?;
        let created: RedisResult<()> = redis.xgroup_create_mkstream(STREAM, GROUP, "0").await;
        if let Err(error) = created
            && error.code() != Some("BUSYGROUP")
        {
            return Err(error.into());
        }
        let name = format!("consumer-{}", std::process::id());
        Ok(Self { idempotency, pool, redis, name, patience: settings.patience, inbox: settings.inbox })
    }

    pub(super) async fn run(&mut self, stopped: watch::Receiver<bool>) {
        while !*stopped.borrow() {
            if let Err(error) = self.round(&stopped).await {
                tracing::warn!(%error, "the broker failed; trying again");
                sleep(Duration::from_millis(200)).await;
            }
        }
    }

    /// First what other consumers have left lying, then what is new.
    async fn round(&mut self, stopped: &watch::Receiver<bool>) -> RedisResult<()> {
        let options = StreamAutoClaimOptions::default().count(BATCH);
        let patience = u64::try_from(self.patience.as_millis()).unwrap_or(u64::MAX);
        let left: StreamAutoClaimReply =
            self.redis.xautoclaim_options(STREAM, GROUP, &self.name, patience, "0-0", options).await?;
        self.handle(left.claimed, stopped).await?;
        let options = StreamReadOptions::default().group(GROUP, &self.name).count(BATCH).block(100);
        let new: Option<StreamReadReply> = self.redis.xread_options(&[STREAM], &[">"], &options).await?;
        let messages = new.into_iter().flat_map(|reply| reply.keys).flat_map(|key| key.ids);
        self.handle(messages.collect(), stopped).await
    }

    async fn handle(&mut self, messages: Vec<StreamId>, stopped: &watch::Receiver<bool>) -> RedisResult<()> {
        for message in messages {
            // What is not begun is left to the others.
            if *stopped.borrow() {
                break;
            }
            match self.book(&message).await {
                Ok(Some(booked)) => {
                    tracing::info!(message = message.id, booked.booking, booked.balance_cents, "booked");
                }
                Ok(None) => self.bury(&message, "it is no payment").await?,
                // Not acknowledged: it will be delivered again.
                Err(error) if error.is_passing() => {
                    tracing::warn!(message = message.id, %error, "not booked yet");
                    continue;
                }
                Err(error) => self.bury(&message, &error.to_string()).await?,
            }
            let _: usize = self.redis.xack(STREAM, GROUP, &[&message.id]).await?;
        }
        Ok(())
    }

    /// `None` if the message cannot be read.
    async fn book(&self, message: &StreamId) -> Result<Option<Booked>, ConsumerError> {
        let (Some(id), Some(account), Some(amount_cents)) =
            (message.get("id"), message.get("account"), message.get("amount_cents"))
        else {
            return Ok(None);
        };
        let payment = Payment { id, account, amount_cents };
        if self.inbox {
            on_payment(&self.idempotency, payment).await.map(Some)
        } else {
            on_payment_unprotected(&self.pool, payment).await.map(Some)
        }
    }

    /// Puts a message where a person finds it.
    async fn bury(&mut self, message: &StreamId, reason: &str) -> RedisResult<()> {
        tracing::warn!(message = message.id, reason, "a message can never be booked");
        let fields = [("message", message.id.as_str()), ("reason", reason)];
        let _: Option<String> = self.redis.xadd(DEAD, "*", &fields).await?;
        Ok(())
    }
}
