//! Handlers as users write them, and what they do to the database.

use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Json, Router};
use idem_runtime::{Error, Idempotency, IdempotencyKey, Operation, Tx, idempotent};
use idem_testing::{ExternalCalls, ProviderDown};
use serde::{Deserialize, Serialize};
use sqlx::{Connection, PgPool};

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS customers (id bigserial PRIMARY KEY, email text NOT NULL UNIQUE);
    CREATE TABLE IF NOT EXISTS products (id bigint PRIMARY KEY, stock bigint NOT NULL);
    CREATE TABLE IF NOT EXISTS orders (
        id bigserial PRIMARY KEY, customer bigint NOT NULL, product bigint NOT NULL, quantity bigint NOT NULL,
        giver bigint REFERENCES customers DEFERRABLE INITIALLY DEFERRED);
    CREATE TABLE IF NOT EXISTS payments (id bigserial PRIMARY KEY, order_id bigint NOT NULL, charge text NOT NULL);
    CREATE TABLE IF NOT EXISTS events (number bigserial PRIMARY KEY, id text NOT NULL, amount bigint NOT NULL);
    INSERT INTO customers (email) VALUES ('taken@example.org') ON CONFLICT DO NOTHING;
    INSERT INTO products VALUES (1, 1000000), (2, 1) ON CONFLICT DO NOTHING;";

/// One process of the application. A lease of a second, so that a stall of one and a half exceeds it.
pub(crate) async fn application(pool: PgPool) -> Router {
    create_tables(&pool).await;
    process(pool, Duration::from_secs(1))
}

/// What the first process creates.
pub(crate) async fn create_tables(pool: &PgPool) {
    sqlx::raw_sql(TABLES).execute(pool).await.expect("the application's tables");
    Idempotency::new(pool.clone()).migrate().await.expect("the migrations");
}

/// A process over a database that has its tables.
pub(crate) fn process(pool: PgPool, lease: Duration) -> Router {
    let builder = Idempotency::builder(pool).lease(lease);
    let idempotency = builder.build().expect("the settings");
    Router::new()
        .route("/orders", post(create_order))
        .route("/guests", post(create_guest_order))
        .route("/patient", post(create_order_patiently))
        .route("/events", post(receive_event))
        .route("/checkout", post(checkout))
        .route("/charges", post(create_charge))
        .route("/careless", post(create_charge_carelessly))
        .route("/baskets", post(create_basket))
        .route("/customers", post(create_customer))
        .route("/gifts", post(create_gift))
        .route("/bookings", post(create_booking))
        .route("/deliveries", post(deliver))
        .route("/deliveries-in-steps", post(deliver_in_steps))
        .with_state(idempotency)
}

pub(crate) async fn count_orders(pool: PgPool) -> sqlx::Result<i64> {
    sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(&pool).await
}

pub(crate) async fn count_events(pool: PgPool) -> sqlx::Result<i64> {
    sqlx::query_scalar("SELECT count(*) FROM events").fetch_one(&pool).await
}

/// Orders and payments: 2 for each checkout.
pub(crate) async fn count_checkouts(pool: PgPool) -> sqlx::Result<i64> {
    let select = "SELECT (SELECT count(*) FROM orders) + (SELECT count(*) FROM payments)";
    sqlx::query_scalar(select).fetch_one(&pool).await
}

/// How many pieces of both products are sold.
pub(crate) async fn count_stock(pool: PgPool) -> sqlx::Result<i64> {
    sqlx::query_scalar("SELECT -sum(stock)::bigint FROM products").fetch_one(&pool).await
}

pub(crate) struct Customer(i64);

impl<S: Send + Sync> FromRequestParts<S> for Customer {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, StatusCode> {
        let id = parts.headers.get("customer").and_then(|value| value.to_str().ok()?.parse().ok());
        id.map(Self).ok_or(StatusCode::UNAUTHORIZED)
    }
}

#[derive(Deserialize)]
struct NewOrder {
    product: i64,
    quantity: i64,
}

#[derive(Serialize)]
struct Order {
    id: i64,
    quantity: i64,
}

enum Failure {
    Provider,
    OutOfStock,
    Taken,
    Database(sqlx::Error),
    Operation(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Operation(error)
    }
}

impl From<ProviderDown> for Failure {
    fn from(_: ProviderDown) -> Self {
        Self::Provider
    }
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        match self {
            Self::Provider => StatusCode::BAD_GATEWAY.into_response(),
            Self::OutOfStock => (StatusCode::PAYMENT_REQUIRED, "out of stock").into_response(),
            Self::Taken => (StatusCode::CONFLICT, "this address is taken").into_response(),
            Self::Operation(error) => error.into_response(),
            Self::Database(error) => {
                tracing::debug!(%error, "the database failed");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}

async fn insert_order(tx: &mut Tx, customer: &Customer, new: &NewOrder) -> sqlx::Result<Order> {
    let insert = "INSERT INTO orders (customer, product, quantity) VALUES ($1, $2, $3) RETURNING id";
    let query = sqlx::query_scalar(insert).bind(customer.0).bind(new.product).bind(new.quantity);
    Ok(Order { id: query.fetch_one(&mut *tx).await?, quantity: new.quantity })
}

#[idempotent(scope = customer.0, ttl = "24h")]
async fn create_order(
    customer: Customer,
    tx: &mut Tx,
    Json(new): Json<NewOrder>,
) -> Result<(StatusCode, Json<Order>), Failure> {
    let order = insert_order(tx, &customer, &new).await?;
    let update = "UPDATE products SET stock = stock - $2 WHERE id = $1 AND stock >= $2";
    let updated = sqlx::query(update).bind(new.product).bind(new.quantity).execute(&mut *tx).await?;
    if updated.rows_affected() == 0 {
        return Err(Failure::OutOfStock);
    }
    Ok((StatusCode::CREATED, Json(order)))
}

#[idempotent(scope = customer.0, ttl = "24h", in_flight = "wait 5s")]
async fn create_order_patiently(
    customer: Customer,
    tx: &mut Tx,
    Json(new): Json<NewOrder>,
) -> Result<(StatusCode, Json<Order>), Failure> {
    Ok((StatusCode::CREATED, Json(insert_order(tx, &customer, &new).await?)))
}

#[idempotent(scope = customer.0, ttl = "24h", key = optional)]
async fn create_guest_order(
    customer: Customer,
    tx: &mut Tx,
    Json(new): Json<NewOrder>,
) -> Result<(StatusCode, Json<Order>), Failure> {
    Ok((StatusCode::CREATED, Json(insert_order(tx, &customer, &new).await?)))
}

#[derive(Deserialize)]
struct Event {
    id: String,
    amount: i64,
}

#[idempotent(scope = global, key = event.id, ttl = "7d")]
async fn receive_event(tx: &mut Tx, Json(event): Json<Event>) -> Result<StatusCode, Failure> {
    let insert = "INSERT INTO events (id, amount) VALUES ($1, $2)";
    sqlx::query(insert).bind(&event.id).bind(event.amount).execute(&mut *tx).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The provider honours keys: any number of calls with one key is one charge.
#[idempotent(scope = customer.0, ttl = "24h")]
async fn create_charge(
    customer: Customer,
    Extension(provider): Extension<ExternalCalls>,
    tx: &mut Tx,
    Json(new): Json<NewOrder>,
) -> Result<(StatusCode, Json<Order>), Failure> {
    let order = insert_order(tx, &customer, &new).await?;
    provider.record(tx.key().derive("charge").as_str());
    Ok((StatusCode::CREATED, Json(order)))
}

/// A key of the attempt's own: the provider charges for each.
#[idempotent(scope = customer.0, ttl = "24h")]
async fn create_charge_carelessly(
    customer: Customer,
    Extension(provider): Extension<ExternalCalls>,
    tx: &mut Tx,
    Json(new): Json<NewOrder>,
) -> Result<(StatusCode, Json<Order>), Failure> {
    let order = insert_order(tx, &customer, &new).await?;
    provider.record(tx.key().derive(&format!("charge-{}", uuid::Uuid::from_u128(order.id as u128))).as_str());
    Ok((StatusCode::CREATED, Json(order)))
}

#[derive(Serialize)]
struct Receipt {
    order: i64,
    charge: String,
}

/// Three commits and a call between them.
#[idempotent(scope = customer.0, ttl = "24h")]
async fn checkout(
    customer: Customer,
    Extension(provider): Extension<ExternalCalls>,
    op: &mut Operation,
    Json(new): Json<NewOrder>,
) -> Result<(StatusCode, Json<Receipt>), Failure> {
    let order: i64 = op
        .transaction("create order", async |tx| Ok::<_, Failure>(insert_order(tx, &customer, &new).await?.id))
        .await?;
    let charge: String = op
        .step("charge", async |key: IdempotencyKey| {
            provider.call(key.as_str())?;
            Ok::<_, Failure>(format!("charge of order {order}"))
        })
        .await?;
    op.transaction("mark paid", async |tx| {
        let insert = "INSERT INTO payments (order_id, charge) VALUES ($1, $2)";
        sqlx::query(insert).bind(order).bind(&charge).execute(&mut *tx).await?;
        Ok::<_, Failure>(())
    })
    .await?;
    Ok((StatusCode::CREATED, Json(Receipt { order, charge })))
}

/// One order for each product, and none for a product that is in the basket already.
#[idempotent(scope = customer.0, ttl = "24h")]
async fn create_basket(
    customer: Customer,
    tx: &mut Tx,
    Json(products): Json<Vec<i64>>,
) -> Result<(StatusCode, Json<Vec<Order>>), Failure> {
    let mut orders: Vec<Order> = Vec::new();
    for (position, product) in products.iter().enumerate() {
        let mut savepoint = Connection::begin(&mut **tx).await?;
        let insert = "INSERT INTO orders (customer, product, quantity) VALUES ($1, $2, 1) RETURNING id";
        let id = sqlx::query_scalar(insert).bind(customer.0).bind(product).fetch_one(&mut *savepoint).await?;
        if products[..position].contains(product) {
            savepoint.rollback().await?;
        } else {
            savepoint.commit().await?;
            orders.push(Order { id, quantity: 1 });
        }
    }
    Ok((StatusCode::CREATED, Json(orders)))
}

#[idempotent(scope = customer.0, ttl = "24h")]
async fn create_customer(
    customer: Customer,
    tx: &mut Tx,
    Json(email): Json<String>,
) -> Result<(StatusCode, Json<i64>), Failure> {
    let insert = "INSERT INTO customers (email) VALUES ($1) RETURNING id";
    match sqlx::query_scalar(insert).bind(email).fetch_one(&mut *tx).await {
        Err(sqlx::Error::Database(error)) if error.is_unique_violation() => Err(Failure::Taken),
        id => Ok((StatusCode::CREATED, Json(id?))),
    }
}

/// The giver is checked when the transaction commits, and does not exist.
#[idempotent(scope = customer.0, ttl = "24h")]
async fn create_gift(customer: Customer, tx: &mut Tx, Json(giver): Json<i64>) -> Result<StatusCode, Failure> {
    let insert = "INSERT INTO orders (customer, product, quantity, giver) VALUES ($1, 1, 1, $2)";
    sqlx::query(insert).bind(customer.0).bind(giver).execute(&mut *tx).await?;
    Ok(StatusCode::CREATED)
}

/// The author reads `Error::Database` as "the server refused the commit": another booking was faster.
enum BookingError {
    Taken,
    Operation(Error),
}

impl From<Error> for BookingError {
    fn from(error: Error) -> Self {
        match error {
            Error::Database(_) => Self::Taken,
            error => Self::Operation(error),
        }
    }
}

impl From<sqlx::Error> for BookingError {
    fn from(error: sqlx::Error) -> Self {
        Self::Operation(Error::Database(error))
    }
}

impl IntoResponse for BookingError {
    fn into_response(self) -> Response {
        match self {
            Self::Taken => (StatusCode::CONFLICT, "this place is taken").into_response(),
            Self::Operation(error) => error.into_response(),
        }
    }
}

async fn book(tx: &mut Tx, customer: &Customer, new: &NewOrder) -> Result<i64, BookingError> {
    Ok(insert_order(tx, customer, new).await?.id)
}

/// Every part's failure may become a refusal.
#[idempotent(scope = customer.0, ttl = "24h")]
async fn create_booking(
    customer: Customer,
    Extension(provider): Extension<ExternalCalls>,
    op: &mut Operation,
    Json(new): Json<NewOrder>,
) -> Result<(StatusCode, Json<Receipt>), BookingError> {
    let order: i64 = op.transaction("book", async |tx| book(tx, &customer, &new).await).await?;
    let charge: String = op
        .step("charge", async |key: IdempotencyKey| {
            provider.record(key.as_str());
            Ok::<_, BookingError>(format!("charge of order {order}"))
        })
        .await?;
    op.transaction("mark paid", async |tx| {
        let insert = "INSERT INTO payments (order_id, charge) VALUES ($1, $2)";
        sqlx::query(insert).bind(order).bind(&charge).execute(&mut *tx).await?;
        Ok::<_, BookingError>(())
    })
    .await?;
    Ok((StatusCode::CREATED, Json(Receipt { order, charge })))
}

#[derive(Serialize, Deserialize)]
struct Booked {
    order: i64,
}

#[idempotent(scope = "deliveries", key = event.id, ttl = "7d")]
async fn on_event(idempotency: &Idempotency, tx: &mut Tx, event: Event) -> Result<Booked, Failure> {
    let insert = "INSERT INTO events (id, amount) VALUES ($1, $2) RETURNING number";
    let order = sqlx::query_scalar(insert).bind(&event.id).bind(event.amount).fetch_one(&mut *tx).await?;
    Ok(Booked { order })
}

#[idempotent(scope = "deliveries in steps", key = event.id, ttl = "7d")]
async fn on_event_in_steps(idempotency: &Idempotency, op: &mut Operation, event: Event) -> Result<Booked, Failure> {
    for_both(op, &event).await
}

async fn for_both(op: &mut Operation, event: &Event) -> Result<Booked, Failure> {
    let insert = async |tx: &mut Tx| {
        let insert = "INSERT INTO events (id, amount) VALUES ($1, $2) RETURNING number";
        let number = sqlx::query_scalar(insert).bind(&event.id).bind(event.amount).fetch_one(&mut *tx).await?;
        Ok::<i64, Failure>(number)
    };
    let order = op.transaction("receive", insert).await?;
    op.transaction("confirm", insert).await?;
    Ok(Booked { order })
}

/// What calls a consumer: a queue that delivers over HTTP, whose deliveries are repeated until they are answered with 2xx.
async fn deliver(State(idempotency): State<Idempotency>, Json(event): Json<Event>) -> Result<Json<Booked>, Failure> {
    on_event(&idempotency, event).await.map(Json)
}

async fn deliver_in_steps(
    State(idempotency): State<Idempotency>,
    Json(event): Json<Event>,
) -> Result<Json<Booked>, Failure> {
    on_event_in_steps(&idempotency, event).await.map(Json)
}
