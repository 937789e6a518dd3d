//! The processes of the tour, and what each of them has on its books.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use idem_examples::{Client, Error, Reply, Request, Server, Stage, get, post, until};
use idem_testing::TestDatabase;
use sqlx::PgPool;
use tokio::time::{Instant, sleep};

use crate::outside::{self, Line};

/// How long an operation of a dead process belongs to it, in seconds. A service would rather take a minute.
pub(super) const PATIENCE: u64 = 2;

pub(super) struct World {
    database_url: String,
    pub(super) pool: PgPool,
    pub(super) provider: Server,
    pub(super) mail: Server,
    pub(super) client: Client,
    /// Whose operation each key at the provider belongs to: a derived key does not show the key that it was derived from.
    owners: Mutex<BTreeMap<String, String>>,
}

/// What is on the books for one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Books {
    /// Calls to the provider.
    pub(super) calls: u32,
    /// The derived keys with which money was taken.
    pub(super) keys: usize,
    /// How often money was taken.
    pub(super) charges: u32,
    /// E-mails that went out.
    pub(super) emails: u32,
    /// Orders in the database, and how they stand.
    pub(super) orders: Vec<String>,
}

impl Books {
    /// One of each.
    pub(super) fn once(calls: u32) -> Self {
        Self { calls, keys: 1, charges: 1, emails: 1, orders: vec!["paid".to_owned()] }
    }
}

impl World {
    pub(super) async fn start(stage: &Stage, database: &TestDatabase) -> Result<Self, Error> {
        let pool = database.pool();
        sqlx::raw_sql(include_str!("stops.sql")).execute(&pool).await?;
        let (provider, mail) = (Server::companion(outside::PROVIDER).await?, Server::companion(outside::MAIL).await?);
        Ok(Self {
            database_url: database.url(),
            pool,
            provider,
            mail,
            client: stage.client.clone(),
            owners: Mutex::default(),
        })
    }

    /// A server that leaves abandoned operations to their clients.
    pub(super) async fn server(&self) -> Result<Server, Error> {
        self.server_with([("COMPLETER", "off")]).await
    }

    pub(super) async fn server_with<const N: usize>(&self, environment: [(&str, &str); N]) -> Result<Server, Error> {
        let patience = PATIENCE.to_string();
        let others =
            [("PROVIDER", self.provider.address()), ("MAIL", self.mail.address()), ("PATIENCE", patience.as_str())];
        Server::start_with(&self.database_url, others.into_iter().chain(environment)).await
    }

    /// What happened to a key, as the service tells it: the state and the last recorded step.
    pub(super) async fn status(&self, server: &Server, key: &str) -> Result<(String, String), Error> {
        let reply = self.client.send(server.address(), &status(key)).await?;
        let text = |name| reply.field(name).as_str().unwrap_or_default().to_owned();
        Ok((text("state"), text("step")))
    }

    pub(super) async fn until_completed(&self, server: &Server, key: &str) -> Result<(), Error> {
        until("the operation is completed", || async { Ok(self.status(server, key).await?.0 == "completed") }).await
    }

    /// Waits until the relay has nothing more to deliver.
    pub(super) async fn until_delivered(&self) -> Result<(), Error> {
        let waiting = "SELECT count(*) FROM idem.outbox WHERE delivered_at IS NULL";
        until("the e-mails are delivered", || async {
            Ok(sqlx::query_scalar::<_, i64>(waiting).fetch_one(&self.pool).await? == 0)
        })
        .await
    }

    pub(super) async fn provider_ledger(&self) -> Result<BTreeMap<String, Line>, Error> {
        self.ledger(&self.provider).await
    }

    pub(super) async fn mail_ledger(&self) -> Result<BTreeMap<String, Line>, Error> {
        self.ledger(&self.mail).await
    }

    async fn ledger(&self, server: &Server) -> Result<BTreeMap<String, Line>, Error> {
        let reply = self.client.send(server.address(), &get("/ledger")).await?;
        Ok(serde_json::from_slice(&reply.body)?)
    }

    /// What the provider, the mail service and the database say of one operation. `answer` names the order; without one, it
    /// is the one that is reserved.
    pub(super) async fn books(&self, key: &str, answer: &Reply) -> Result<Books, Error> {
        let order = answer.field("order").as_i64();
        let (provider, mail) = (self.provider_ledger().await?, self.mail_ledger().await?);
        let charge = answer.field("charge").as_str().map(str::to_owned);
        self.own(key, charge.as_deref(), &provider);
        let lines: Vec<&Line> =
            provider.iter().filter(|(derived, _)| self.is_of(derived, key)).map(|(_, line)| line).collect();
        let subject = order.map(|order| format!("Your receipt for order {order}")).unwrap_or_default();
        let select = "SELECT status FROM orders WHERE id = $1 OR charge = $2 OR ($1 IS NULL AND status = 'reserved') ORDER BY id";
        let orders = sqlx::query_scalar(select).bind(order).bind(charge).fetch_all(&self.pool).await?;
        Ok(Books {
            calls: lines.iter().map(|line| line.calls).sum(),
            keys: lines.iter().filter(|line| line.effects > 0).count(),
            charges: lines.iter().map(|line| line.effects).sum(),
            emails: mail.values().filter(|line| line.about == subject).map(|line| line.effects).sum(),
            orders,
        })
    }

    /// Notes as `key`'s what nobody else's is: the line of its charge, or, while there is no charge, every line.
    fn own(&self, key: &str, charge: Option<&str>, provider: &BTreeMap<String, Line>) {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        for (derived, line) in provider {
            if charge.is_none() || line.charge.as_deref() == charge {
                owners.entry(derived.clone()).or_insert_with(|| key.to_owned());
            }
        }
    }

    fn is_of(&self, derived: &str, key: &str) -> bool {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner).get(derived).is_some_and(|owner| owner == key)
    }

    /// Shows what the provider and the mail service have on their books for one operation.
    pub(super) async fn show_books(&self, stage: &mut Stage, key: &str, answer: &Reply) -> Result<Books, Error> {
        let books = self.books(key, answer).await?;
        for (derived, line) in self.provider_ledger().await? {
            if self.is_of(&derived, key) {
                let (calls, charges) = (times(line.calls, "call"), times(line.effects, "charge"));
                let amount = format!("{}.{:02}", line.amount_cents / 100, line.amount_cents % 100);
                stage.show_lines("provider", [format!("{derived} .. {calls}, {charges}, {amount}")]);
            }
        }
        stage.show_lines("mail", [times(books.emails, "e-mail")]);
        stage.show_lines("database", [format!("order {}", books.orders.join(", "))]);
        Ok(books)
    }

    /// Retries as a client does, while the answer is that the operation is in flight or something is away.
    pub(super) async fn send_until_answered(&self, server: &Server, request: &Request) -> Result<Reply, Error> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let reply = self.client.send(server.address(), request).await?;
            match reply.header("retry-after").parse() {
                Ok(seconds) if Instant::now() < deadline => sleep(Duration::from_secs(seconds)).await,
                _ => return Ok(reply),
            }
        }
    }
}

/// A purchase of Ada's.
#[derive(Clone, Copy)]
pub(super) struct Cart<'a> {
    pub(super) path: &'a str,
    pub(super) key: &'a str,
    pub(super) card: &'a str,
    pub(super) quantity: i64,
}

impl<'a> Cart<'a> {
    pub(super) fn new(key: &'a str) -> Self {
        Self { path: "/checkout", key, card: "tok_visa", quantity: 2 }
    }

    pub(super) fn request(&self) -> Request {
        let Self { quantity, card, .. } = self;
        let cart = format!(r#"{{"product": "beans", "quantity": {quantity}, "card": "{card}"}}"#);
        post(self.path).header("Authorization", "Bearer ada-token").key(self.key).json(cart)
    }

    pub(super) fn total_cents(&self) -> i64 {
        self.quantity * 1_250
    }
}

pub(super) fn status(key: &str) -> Request {
    get(format!("/orders/status/{key}")).header("Authorization", "Bearer ada-token")
}

fn times(count: u32, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
