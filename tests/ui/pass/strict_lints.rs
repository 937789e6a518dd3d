//! Under lints that are off by default.

#![warn(clippy::pedantic)]
#![deny(warnings)]
#![forbid(unsafe_code)]
#![deny(rust_2021_compatibility, rust_2024_compatibility)]
#![allow(clippy::wildcard_imports)]

#[path = "../application.rs"]
mod application;

use application::*;
use idem_runtime::Operation;

/// Handlers.
pub mod orders {
    #![deny(
        clippy::allow_attributes_without_reason,
        elided_lifetimes_in_paths,
        explicit_outlives_requirements,
        keyword_idents,
        let_underscore_drop,
        missing_debug_implementations,
        missing_docs,
        rust_2018_idioms,
        single_use_lifetimes,
        trivial_casts,
        trivial_numeric_casts,
        unit_bindings,
        unreachable_pub,
        unused_import_braces,
        unused_lifetimes,
        unused_qualifications,
        unused_results,
        variant_size_differences
    )]

    use super::*;

    /// Creates an order.
    ///
    /// # Errors
    /// What the database says.
    #[idempotent(scope = tenant.id, ttl = "24h", state = AppState, key = optional, in_flight = "wait 1s")]
    pub async fn create(
        tenant: Tenant,
        State(_): State<AppState>,
        tx: &mut Tx,
        Json(new): Json<NewOrder>,
    ) -> Result<StatusCode, ApiError> {
        let _ = sqlx::query("SELECT 1").bind(new.total).execute(&mut *tx).await?;
        Ok(StatusCode::CREATED)
    }

    /// Pays an order.
    ///
    /// # Errors
    /// What the database says.
    #[idempotent(scope = (tenant.id, new.number), ttl = "24h")]
    pub async fn pay(tenant: Tenant, op: &mut Operation, Json(new): Json<NewOrder>) -> Result<StatusCode, ApiError> {
        op.step("charge", async |_: idem_runtime::IdempotencyKey| Ok::<(), ApiError>(())).await?;
        Ok(StatusCode::CREATED)
    }

    /// Books a payment.
    ///
    /// # Errors
    /// What the database says.
    #[idempotent(scope = "payments", key = payment.id, ttl = "7d")]
    pub async fn book(idempotency: &Idempotency, tx: &mut Tx, payment: Payment) -> Result<Receipt, ConsumerError> {
        let _ = sqlx::query("SELECT 1").execute(&mut *tx).await?;
        Ok(Receipt { id: payment.amount })
    }
}

fn main() {
    routed(post(orders::create));
    routed(post(orders::pay));
    let _ = async |idempotency: &Idempotency, payment: Payment| orders::book(idempotency, payment).await.is_ok();
}
