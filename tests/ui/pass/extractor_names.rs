//! Types of the application that are called like extractors of axum, but are not those.

#![warn(clippy::pedantic)]
#![deny(warnings)]
#![forbid(unsafe_code)]
#![allow(clippy::wildcard_imports)]

use axum::http::request::Parts;
use idem_runtime::{Tx, idempotent};

macro_rules! extractor {
    ($name:ident<$payload:ident>) => {
        struct $name<$payload>(core::marker::PhantomData<fn() -> $payload>);
        extractor!([$payload] $name<$payload>);
    };
    ($name:ident) => {
        struct $name;
        extractor!([] $name);
    };
    ([$($payload:ident)?] $name:ty) => {
        impl<S: Sync, $($payload)?> axum::extract::FromRequestParts<S> for $name {
            type Rejection = axum::http::StatusCode;

            async fn from_request_parts(_: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
                Err(axum::http::StatusCode::UNAUTHORIZED)
            }
        }
    };
}

extractor!(Json<T>);
extractor!(Form<T>);
extractor!(Query<T>);
extractor!(Path<T>);
extractor!(Bytes);
extractor!(Body);
extractor!(Request);
extractor!(String);
extractor!(RawForm);
extractor!(State);
extractor!(Pool);
extractor!(Transaction);

/// Deserializes from nothing.
struct Opaque;

#[expect(clippy::too_many_arguments)]
#[idempotent(scope = global, ttl = "24h")]
async fn create_order(
    Json(..): Json<Opaque>,
    Form(..): Form<Opaque>,
    Query(..): Query<Opaque>,
    Bytes: Bytes,
    Body: Body,
    Request: Request,
    String: String,
    RawForm: RawForm,
    State: State,
    Pool: Pool,
    Transaction: Transaction,
    tx: &mut Tx,
    Path(..): Path<Opaque>,
) {
    let _ = (sqlx::query("SELECT 1").execute(tx).await, Opaque);
}

fn main() {
    let _: axum::routing::MethodRouter<idem_runtime::Idempotency> = axum::routing::post(create_order);
}
