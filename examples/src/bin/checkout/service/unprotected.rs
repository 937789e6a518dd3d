//! The same checkout without idem, as the control of the tour: what a retry does to it is what the others prevent.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::{Value, json};
use sqlx::PgPool;

use super::checkout::Cart;
use super::customer::Customer;
use super::error::ApiError;
use super::provider::{Payment, Provider};

pub(super) async fn checkout(
    customer: Customer,
    State(pool): State<PgPool>,
    State(provider): State<Provider>,
    Json(cart): Json<Cart>,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let quantity = i64::from(cart.quantity.get());
    let reserve = "WITH product AS (UPDATE products SET stock = stock - $3 WHERE name = $2 RETURNING name, price_cents)
                   INSERT INTO orders (customer_id, product, quantity, total_cents)
                   SELECT $1, name, $3, price_cents * $3 FROM product RETURNING id, total_cents";
    let reserved = sqlx::query_as(reserve).bind(customer.id).bind(&cart.product).bind(quantity).fetch_optional(&pool);
    let (order, total_cents): (i64, i64) = reserved.await?.ok_or(ApiError::OutOfStock)?;
    // A key of its own for each call: the provider cannot know that they are one.
    let key = format!("order-{order}");
    match provider.charge(&key, total_cents, &cart.card).await? {
        Payment::Declined { reason } => Err(ApiError::Declined { reason }),
        Payment::Charged { charge } => {
            let update = "UPDATE orders SET status = 'paid', charge = $2 WHERE id = $1";
            sqlx::query(update).bind(order).bind(&charge).execute(&pool).await?;
            Ok((StatusCode::CREATED, Json(json!({ "order": order, "charge": charge }))))
        }
    }
}
