//! The processes of the tour, and what the broker and the database say.

use std::collections::BTreeSet;
use std::time::Duration;

use idem_examples::{Error, Facts, Server, Stage, until};
use idem_runtime::Idempotency;
use idem_testing::TestDatabase;
use redis::aio::MultiplexedConnection;
use redis::streams::{StreamPendingReply, StreamRangeReply};
use redis::{AsyncCommands, Client, cmd};
use sqlx::{PgPool, Postgres, Transaction};
use tokio::time::{Instant, sleep};

use crate::broker;
use crate::service::{DEAD, GROUP, STREAM};

pub(super) struct World {
    database_url: String,
    pub(super) pool: PgPool,
    pub(super) redis: Server,
    connection: MultiplexedConnection,
}

/// What is booked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Books {
    pub(super) bookings: i64,
    /// Different payments among the bookings.
    pub(super) payments: i64,
    pub(super) ada: i64,
    pub(super) grace: i64,
    /// Messages for a person.
    pub(super) dead: usize,
}

impl World {
    pub(super) async fn start(database: &TestDatabase) -> Result<Self, Error> {
        let redis = Server::companion(broker::REDIS).await?;
        let client = Client::open(format!("redis://{}", redis.address()))?;
        let deadline = Instant::now() + Duration::from_secs(30);
        let connection = loop {
            match client.get_multiplexed_async_connection().await {
                Ok(connection) => break connection,
                Err(error) if Instant::now() > deadline => return Err(error.into()),
                Err(_) => sleep(Duration::from_millis(20)).await,
            }
        };
        Ok(Self { database_url: database.url(), pool: database.pool(), redis, connection })
    }

    pub(super) async fn stop(self) -> Result<(), Error> {
        self.pool.close().await;
        self.redis.stop().await?;
        Ok(())
    }

    fn redis(&self) -> MultiplexedConnection {
        self.connection.clone()
    }

    pub(super) async fn consumer(&self, environment: &[(&str, &str)]) -> Result<Server, Error> {
        let environment = environment.iter().copied().chain([("REDIS", self.redis.address())]);
        Server::start_with(&self.database_url, environment).await
    }

    /// Publishes a payment to Ada.
    pub(super) async fn publish(&self, stage: &mut Stage, id: &str, amount_cents: i64) -> Result<(), Error> {
        let amount = amount_cents.to_string();
        let fields = [("id", id), ("account", "ada"), ("amount_cents", amount.as_str())];
        let message: Option<String> = self.redis().xadd(STREAM, "*", &fields).await?;
        let message = message.unwrap_or_default();
        stage.show_lines("published", [format!("{message}: {id}, {amount_cents} cents to Ada")]);
        Ok(())
    }

    /// Publishes payments to Grace, each so many times, far apart.
    pub(super) async fn publish_storm(&self, payments: usize, publications: usize) -> Result<(), Error> {
        let mut pipeline = redis::pipe();
        for _ in 0..publications {
            for number in 0..payments {
                let (id, amount) = (format!("storm-{number}"), storm_amount(number as i64).to_string());
                let fields = [("id", id.as_str()), ("account", "grace"), ("amount_cents", amount.as_str())];
                pipeline.xadd(STREAM, "*", &fields).ignore();
            }
        }
        pipeline.query_async::<()>(&mut self.redis()).await?;
        Ok(())
    }

    /// Delivered, and not acknowledged.
    pub(super) async fn pending(&self) -> Result<usize, Error> {
        let pending: StreamPendingReply = self.redis().xpending(STREAM, GROUP).await?;
        Ok(pending.count())
    }

    /// Waits until every message is delivered and acknowledged.
    pub(super) async fn until_acknowledged(&self) -> Result<(), Error> {
        until("every message is acknowledged", || async {
            let groups: redis::streams::StreamInfoGroupsReply = self.redis().xinfo_groups(STREAM).await?;
            let group = groups.groups.iter().find(|group| group.name == GROUP);
            Ok(group.is_some_and(|group| group.lag == Some(0) && group.pending == 0))
        })
        .await
    }

    /// Different payments in a stream that the relay fills.
    pub(super) async fn told(&self, stream: &str) -> Result<BTreeSet<String>, Error> {
        let entries: StreamRangeReply = self.redis().xrange_all(stream).await?;
        Ok(entries.ids.iter().filter_map(|entry| entry.get("payment")).collect())
    }

    /// Messages that a relay gave up, with the attempts that were made.
    pub(super) async fn dead_letters(&self) -> Result<Vec<(String, i32)>, Error> {
        let dead = Idempotency::new(self.pool.clone()).dead_letters(10).await?;
        Ok(dead.iter().map(|dead| (dead.message.dedupe_key().to_owned(), dead.message.attempt())).collect())
    }

    /// Waits until the relay has nothing more to deliver.
    pub(super) async fn until_told(&self) -> Result<(), Error> {
        let waiting = "SELECT count(*) FROM idem.outbox WHERE delivered_at IS NULL AND failure IS NULL";
        until("every message is delivered", || async {
            Ok(sqlx::query_scalar::<_, i64>(waiting).fetch_one(&self.pool).await? == 0)
        })
        .await
    }

    /// From now on the broker keeps everybody waiting who acknowledges or reads.
    pub(super) async fn refuse_writes(&self) -> Result<(), Error> {
        cmd("CLIENT").arg("PAUSE").arg(60_000).arg("WRITE").query_async::<()>(&mut self.redis()).await?;
        Ok(())
    }

    pub(super) async fn accept_writes(&self) -> Result<(), Error> {
        cmd("CLIENT").arg("UNPAUSE").query_async::<()>(&mut self.redis()).await?;
        Ok(())
    }

    /// Holds the row that a booking writes first.
    pub(super) async fn hold_account(&self) -> Result<Transaction<'static, Postgres>, Error> {
        let mut transaction = self.pool.begin().await?;
        sqlx::query("SELECT FROM accounts WHERE name = 'ada' FOR UPDATE").execute(&mut *transaction).await?;
        Ok(transaction)
    }

    pub(super) async fn books(&self) -> Result<Books, Error> {
        let select = "SELECT (SELECT count(*) FROM bookings), (SELECT count(DISTINCT payment) FROM bookings),
                             (SELECT balance_cents FROM accounts WHERE name = 'ada'),
                             (SELECT balance_cents FROM accounts WHERE name = 'grace')";
        let (bookings, payments, ada, grace) = sqlx::query_as(select).fetch_one(&self.pool).await?;
        Ok(Books { bookings, payments, ada, grace, dead: self.redis().xlen(DEAD).await? })
    }

    pub(super) async fn show_books(&self, stage: &mut Stage) -> Result<Books, Error> {
        let books = self.books().await?;
        let money = |cents: i64| format!("{}.{:02}", cents / 100, cents % 100);
        let messages: usize = self.redis().xlen(STREAM).await?;
        let pending = self.pending().await?;
        let broker = format!("{messages} messages, {pending} not acknowledged, {} among the dead", books.dead);
        stage.show_lines("broker", [broker]);
        let facts: Facts = vec![
            ("bookings", format!("{} of {} payments", books.bookings, books.payments)),
            ("balances", format!("Ada {}, Grace {}", money(books.ada), money(books.grace))),
        ];
        stage.show_facts(&facts);
        Ok(books)
    }
}

/// Different for each payment, so that a sum tells one from another.
pub(super) fn storm_amount(number: i64) -> i64 {
    100 + number
}
