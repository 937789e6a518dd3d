//! Stops the service at an exact place, from outside of it: at a statement in Postgres, or at a call to another system.

use std::time::Duration;

use idem_examples::{Error, Server, get, post};
use sqlx::{PgPool, Postgres, Transaction};
use tokio::time::{Instant, sleep};

use super::world::World;
use crate::outside::{Awaited, Place};

/// Where to stop.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stop {
    /// At a statement: see `stops.sql`.
    Statement(&'static str),
    /// At a call to the payment provider.
    Charge(Place),
    /// At a call to the mail service.
    Email(Place),
}

/// A place that is guarded until it is left.
pub(super) struct Guard<'a> {
    world: &'a World,
    stop: Stop,
    /// Holds the lock that the statement waits for.
    lock: Option<Transaction<'static, Postgres>>,
}

impl<'a> Guard<'a> {
    /// `total_cents` tells the call or delivery that is meant from others.
    pub(super) async fn at(world: &'a World, stop: Stop, total_cents: i64) -> Result<Self, Error> {
        let mut lock = None;
        match stop {
            Stop::Statement(place) => {
                let mut transaction = world.pool.begin().await?;
                sqlx::query("SELECT pg_advisory_xact_lock(7, 7)").execute(&mut *transaction).await?;
                lock = Some(transaction);
                let insert = sqlx::query("INSERT INTO tour.stop VALUES ($1, $2)").bind(place).bind(total_cents);
                insert.execute(&world.pool).await?;
            }
            Stop::Charge(place) | Stop::Email(place) => {
                let awaited = Awaited { place, amount_cents: total_cents };
                let hold = post("/hold").json(serde_json::to_string(&awaited)?);
                world.client.send(other_system(world, stop).address(), &hold).await?;
            }
        }
        Ok(Self { world, stop, lock })
    }

    /// Waits until the service has come there.
    pub(super) async fn is_met(&self) -> Result<(), Error> {
        match self.stop {
            Stop::Statement(place) => until_a_session_waits(&self.world.pool, place).await,
            Stop::Charge(_) | Stop::Email(_) => {
                let address = other_system(self.world, self.stop).address();
                self.world.client.send(address, &get("/hold/is-held")).await?;
                Ok(())
            }
        }
    }

    /// After the service was killed: its statement is rolled back with its session, its call is lost on the way, or the
    /// answer to it arrives nowhere.
    pub(super) async fn leave(self) -> Result<(), Error> {
        let Some(lock) = self.lock else {
            let end = if matches!(self.stop, Stop::Charge(Place::Request)) { "/hold/lose" } else { "/hold/release" };
            self.world.client.send(other_system(self.world, self.stop).address(), &post(end)).await?;
            return Ok(());
        };
        let pool = &self.world.pool;
        // Postgres would find out by itself that the client is gone, only later.
        let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_locks
                   WHERE locktype = 'advisory' AND classid = 7 AND NOT granted";
        sqlx::query(end).execute(pool).await?;
        while sessions_waiting(pool).await? > 0 {
            sleep(Duration::from_millis(5)).await;
        }
        sqlx::query("DELETE FROM tour.stop").execute(pool).await?;
        lock.rollback().await?;
        Ok(())
    }

    /// Lets a held call go on.
    pub(super) async fn release(self) -> Result<(), Error> {
        self.world.client.send(other_system(self.world, self.stop).address(), &post("/hold/release")).await?;
        Ok(())
    }
}

fn other_system(world: &World, stop: Stop) -> &Server {
    if matches!(stop, Stop::Email(_)) { &world.mail } else { &world.provider }
}

async fn sessions_waiting(pool: &PgPool) -> Result<i64, sqlx::Error> {
    let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 7 AND NOT granted";
    sqlx::query_scalar(waiting).fetch_one(pool).await
}

async fn until_a_session_waits(pool: &PgPool, place: &str) -> Result<(), Error> {
    let deadline = Instant::now() + Duration::from_secs(30);
    while sessions_waiting(pool).await? == 0 {
        if Instant::now() > deadline {
            return Err(format!("nothing came to `{place}`").into());
        }
        sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}
