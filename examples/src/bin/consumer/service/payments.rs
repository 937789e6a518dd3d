//! What a message does. It takes `tx: &mut Tx` and writes through it: the message's id in the inbox, the booking and the balance
//! are one commit, and a redelivery gets the recorded result.

use std::fmt;

use idem_runtime::{Error, Idempotency, Tx, idempotent};
use serde::{Deserialize, Serialize};
use sqlx::{Connection, PgConnection, PgPool};

use super::receipts::announce;

/// The message. Its id is the payment's and not the broker's, so that a producer that publishes twice is covered too.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Payment {
    pub(super) id: String,
    pub(super) account: String,
    pub(super) amount_cents: i64,
}

/// What was booked.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Booked {
    pub(super) booking: i64,
    pub(super) balance_cents: i64,
}

#[derive(Debug)]
pub(super) enum ConsumerError {
    UnknownAccount,
    Database(sqlx::Error),
    /// In flight with another consumer, used with another payment, or without a database.
    Inbox(Error),
}

impl From<sqlx::Error> for ConsumerError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl From<Error> for ConsumerError {
    fn from(error: Error) -> Self {
        Self::Inbox(error)
    }
}

impl fmt::Display for ConsumerError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownAccount => formatter.write_str("there is no such account"),
            Self::Database(error) => error.fmt(formatter),
            Self::Inbox(error) => error.fmt(formatter),
        }
    }
}

impl ConsumerError {
    /// Whether another delivery of the message can end in another way.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Self::UnknownAccount => false,
            Self::Database(_) => true,
            Self::Inbox(error) => !matches!(error, Error::Mismatch | Error::InvalidKey(_)),
        }
    }
}

/// Books a payment, once. `fingerprint` makes an id that comes back with another payment an error instead of a replay.
#[idempotent(scope = "payments", key = payment.id, ttl = "7d", fingerprint = payment)]
pub(super) async fn on_payment(
    idempotency: &Idempotency,
    tx: &mut Tx,
    payment: Payment,
) -> Result<Booked, ConsumerError> {
    let booked = book(tx, &payment).await?;
    announce(tx, &payment, &booked).await?;
    Ok(booked)
}

/// The same without an inbox, as the control of the tour.
pub(super) async fn on_payment_unprotected(pool: &PgPool, payment: Payment) -> Result<Booked, ConsumerError> {
    let mut connection = pool.acquire().await?;
    let mut transaction = connection.begin().await?;
    let booked = book(&mut transaction, &payment).await?;
    transaction.commit().await?;
    Ok(booked)
}

async fn book(connection: &mut PgConnection, payment: &Payment) -> Result<Booked, ConsumerError> {
    let credit = "UPDATE accounts SET balance_cents = balance_cents + $2 WHERE name = $1 RETURNING balance_cents";
    let credited: Option<i64> = sqlx::query_scalar(credit)
        .bind(&payment.account)
        .bind(payment.amount_cents)
        .fetch_optional(&mut *connection)
        .await?;
    let balance_cents = credited.ok_or(ConsumerError::UnknownAccount)?;
    let insert = "INSERT INTO bookings (payment, account, amount_cents) VALUES ($1, $2, $3) RETURNING id";
    let booking = sqlx::query_scalar(insert)
        .bind(&payment.id)
        .bind(&payment.account)
        .bind(payment.amount_cents)
        .fetch_one(&mut *connection)
        .await?;
    Ok(Booked { booking, balance_cents })
}
