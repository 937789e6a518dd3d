//! Buying: goods in this database, money at a provider, an e-mail. No single transaction holds all three, so the handler
//! takes `op: &mut Operation` and is cut into parts. Each is recorded when it is done, and a retry goes on after the last one.

use axum::Json;
use axum::extract::State;
use axum::http::header::LOCATION;
use axum::http::{HeaderName, StatusCode};
use idem_runtime::{Operation, Tx, idempotent};
use serde::{Deserialize, Serialize};

use super::customer::Customer;
use super::error::ApiError;
use super::mail::Mail;
use super::provider::{Payment, Provider};

#[derive(Deserialize)]
pub(super) struct Cart {
    pub(super) product: String,
    pub(super) quantity: std::num::NonZero<u16>,
    /// The provider's token for a card. Never a card's number: the request is kept until the operation is completed.
    pub(super) card: String,
}

#[derive(Serialize, Deserialize)]
struct Order {
    id: i64,
    product: String,
    quantity: i32,
    total_cents: i64,
}

#[derive(Serialize)]
pub(super) struct Receipt {
    order: i64,
    total_cents: i64,
    charge: String,
}

type Answer = Result<(StatusCode, [(HeaderName, String); 1], Json<Receipt>), ApiError>;

/// Takes the goods, charges the card, marks the order as paid and has the receipt sent.
#[idempotent(scope = customer.id, ttl = "24h")]
pub(super) async fn checkout(
    customer: Customer,
    op: &mut Operation,
    State(provider): State<Provider>,
    Json(cart): Json<Cart>,
) -> Answer {
    let order = op.transaction("reserve stock", async |tx| reserve_stock(tx, &customer, &cart).await).await?;
    let payment =
        op.step("charge", async |key| provider.charge(key.as_str(), order.total_cents, &cart.card).await).await?;
    settle(op, &customer, order, payment).await
}

/// The same with a provider that knows no idempotency keys: an attempt that finds the call begun asks before it calls.
#[idempotent(scope = customer.id, ttl = "24h")]
pub(super) async fn checkout_without_keys(
    customer: Customer,
    op: &mut Operation,
    State(provider): State<Provider>,
    Json(cart): Json<Cart>,
) -> Answer {
    let order = op.transaction("reserve stock", async |tx| reserve_stock(tx, &customer, &cart).await).await?;
    let payment = op
        .step("charge", async |key| provider.charge_keyless(key.as_str(), order.total_cents, &cart.card).await)
        .reconcile(async |key| provider.find_by_reference(key.as_str()).await)
        .await?;
    settle(op, &customer, order, payment).await
}

/// What follows is decided by a recorded result, so every attempt takes the same way.
async fn settle(op: &mut Operation, customer: &Customer, order: Order, payment: Payment) -> Answer {
    match payment {
        Payment::Charged { charge } => {
            op.transaction("mark paid", async |tx| mark_paid(tx, customer, &order, &charge).await).await?;
            let location = [(LOCATION, format!("/orders/{}", order.id))];
            let receipt = Receipt { order: order.id, total_cents: order.total_cents, charge };
            Ok((StatusCode::CREATED, location, Json(receipt)))
        }
        // A decline is an answer and not a failure: it is recorded, and what was done is undone.
        Payment::Declined { reason } => {
            op.transaction("return stock", async |tx| return_stock(tx, &order).await).await?;
            Err(ApiError::Declined { reason })
        }
    }
}

/// Takes goods from a stock that holds enough of them, for an order that is not paid yet.
async fn reserve_stock(tx: &mut Tx, customer: &Customer, cart: &Cart) -> Result<Order, ApiError> {
    let quantity = i32::from(cart.quantity.get());
    let take = "UPDATE products SET stock = stock - $2 WHERE name = $1 AND stock >= $2 RETURNING price_cents";
    let price_cents: Option<i64> =
        sqlx::query_scalar(take).bind(&cart.product).bind(quantity).fetch_optional(&mut *tx).await?;
    let total_cents = price_cents.ok_or(ApiError::OutOfStock)? * i64::from(quantity);
    let insert =
        "INSERT INTO orders (customer_id, product, quantity, total_cents) VALUES ($1, $2, $3, $4) RETURNING id";
    let order = sqlx::query_scalar(insert).bind(customer.id).bind(&cart.product).bind(quantity).bind(total_cents);
    Ok(Order { id: order.fetch_one(&mut *tx).await?, product: cart.product.clone(), quantity, total_cents })
}

/// The receipt goes out if and only if this commits: the message is a row of the same transaction.
async fn mark_paid(tx: &mut Tx, customer: &Customer, order: &Order, charge: &str) -> Result<(), ApiError> {
    let update = "UPDATE orders SET status = 'paid', charge = $2 WHERE id = $1";
    sqlx::query(update).bind(order.id).bind(charge).execute(&mut *tx).await?;
    let mail = Mail {
        to: customer.email.clone(),
        subject: format!("Your receipt for order {}", order.id),
        total_cents: order.total_cents,
    };
    tx.outbox().send("receipt", &format!("order:{}", order.id), &mail).await?;
    Ok(())
}

async fn return_stock(tx: &mut Tx, order: &Order) -> Result<(), ApiError> {
    let put_back = "UPDATE products SET stock = stock + $2 WHERE name = $1";
    sqlx::query(put_back).bind(&order.product).bind(order.quantity).execute(&mut *tx).await?;
    sqlx::query("UPDATE orders SET status = 'cancelled' WHERE id = $1").bind(order.id).execute(&mut *tx).await?;
    Ok(())
}
