//! The shop that is bought from: the service of the `checkout` example, with its payment provider and its mail service.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use idem_examples::Error;
use idem_testing::TestDatabase;
use sqlx::PgPool;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::outside::{self, Line};
use crate::service::{self, Settings};

/// How long the e-mails of the last orders may take.
const MAIL_PATIENCE: Duration = Duration::from_secs(60);

/// The customer's API token.
pub(crate) const TOKEN: &str = "ada-token";

pub(crate) struct Shop {
    database: TestDatabase,
    address: SocketAddr,
    provider: SocketAddr,
    mail: SocketAddr,
    stop: watch::Sender<bool>,
    serving: JoinHandle<Result<(), Error>>,
}

/// What is on the books in the end.
pub(crate) struct Books {
    pub(crate) orders: u64,
    pub(crate) distinct: u64,
    pub(crate) paid: u64,
    pub(crate) charges: u64,
    pub(crate) emails: u64,
}

impl Books {
    pub(crate) fn duplicates(&self) -> u64 {
        self.orders - self.distinct
    }
}

impl Shop {
    /// Over a new database, with as many different products as there are orders to come.
    pub(crate) async fn open(products: u32) -> Result<Self, Error> {
        let database = TestDatabase::create().await?;
        let pool = database.pool();
        service::migrate(&pool).await?;
        stock_up(&pool, products).await?;
        let stop = watch::Sender::new(false);
        let provider = outside(outside::PROVIDER, &stop).await?;
        let mail = outside(outside::MAIL, &stop).await?;
        // The client's retries finish what is left half done; nobody else shall.
        let settings = Settings { completer: false, ..Settings::new(provider.to_string(), mail.to_string()) };
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let serving = tokio::spawn(service::serve(pool, settings, listener, stopped(&stop)));
        Ok(Self { database, address, provider, mail, stop, serving })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for what is under way and closes the books.
    pub(crate) async fn close(self) -> Result<Books, Error> {
        let count = "SELECT count(*), count(DISTINCT product), count(charge) FROM orders";
        let pool = self.database.pool();
        let deadline = Instant::now() + MAIL_PATIENCE;
        let books = loop {
            let (orders, distinct, paid): (i64, i64, i64) = sqlx::query_as(count).fetch_one(&pool).await?;
            let books = Books {
                orders: u64::try_from(orders)?,
                distinct: u64::try_from(distinct)?,
                paid: u64::try_from(paid)?,
                charges: effects(self.provider).await?,
                emails: effects(self.mail).await?,
            };
            // Receipts leave through the outbox, a little after the order.
            if books.emails >= books.paid || Instant::now() > deadline {
                break books;
            }
            sleep(Duration::from_millis(100)).await;
        };
        pool.close().await;
        self.stop.send_replace(true);
        self.serving.await??;
        Ok(books)
    }
}

async fn stock_up(pool: &PgPool, products: u32) -> Result<(), Error> {
    sqlx::raw_sql(include_str!("../checkout/demo.sql")).execute(pool).await?;
    let stock = "INSERT INTO products (name, price_cents, stock)
                 SELECT 'gift-' || number, 1000 + number, 100 FROM generate_series(1, $1) AS number";
    sqlx::query(stock).bind(i32::try_from(products)?).execute(pool).await?;
    Ok(())
}

async fn outside(name: &'static str, stop: &watch::Sender<bool>) -> Result<SocketAddr, Error> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(outside::serve(name, listener, stopped(stop)));
    Ok(address)
}

/// Ends when the shop is closed, or dropped.
fn stopped(stop: &watch::Sender<bool>) -> impl Future<Output = ()> + Send + 'static {
    let mut stop = stop.subscribe();
    async move {
        let _ = stop.wait_for(|stop| *stop).await;
    }
}

/// How often another system did something, by its own books.
async fn effects(of: SocketAddr) -> Result<u64, Error> {
    let ledger: BTreeMap<String, Line> = reqwest::get(format!("http://{of}/ledger")).await?.json().await?;
    Ok(ledger.values().map(|line| u64::from(line.effects)).sum())
}
