//! The `#[idempotent]` attribute of [idem-runtime]. Depend on that crate: it re-exports the attribute, and the code
//! generated here only works with the runtime of the same version.
//!
//! [idem-runtime]: https://docs.rs/idem-runtime

mod expand;

use proc_macro::TokenStream;

/// Makes an axum handler, or a plain function that takes `&Idempotency`, safe to retry.
///
/// The claim on the idempotency key, everything the function writes through `tx`, and the stored result are one
/// Postgres commit. A retry gets the stored result and the body does not run again.
///
/// ```ignore
/// #[idempotent(scope = tenant.id, ttl = "24h")]
/// async fn create_order(
///     tenant: Tenant,
///     tx: &mut Tx,
///     Json(new): Json<NewOrder>,
/// ) -> Result<(StatusCode, Json<Order>), ApiError> {
///     let order = sqlx::query_as("INSERT INTO orders …").fetch_one(&mut *tx).await?;
///     Ok((StatusCode::CREATED, Json(order)))
/// }
/// ```
///
/// # Options
///
/// | option | default | meaning |
/// | --- | --- | --- |
/// | `scope = expr` | required | who owns the key; evaluated over references to the arguments. `scope = global` shares one key space |
/// | `ttl = "24h"` | required | how long the outcome is replayed, counted from completion: 1 second to 365 days |
/// | `key = header`, `optional` or an expression | `header` | where the key comes from; without a key, `optional` runs the handler in a plain transaction |
/// | `in_flight = "reject"` or `"wait 2s"` | `"reject"` | what a duplicate of a running request does: 409 at once, or after waiting |
/// | `failures = "release"` or `"replay"` | `"release"` | whether a 5xx releases the key or is stored and replayed |
/// | `lease = "60s"` | the builder's | how long a claim may sit idle before others may take over |
/// | `isolation = "serializable"` | the database's | also `"repeatable read"` and `"read committed"` |
/// | `fingerprint = expr` | the request | what counts as the same request; evaluated like `scope` |
/// | `state = AppState` | none | checks the handler against the state type, for errors that name the argument |
/// | `allow(pool)` | | permits a connection pool among the arguments |
/// | `crate = path` | `::idem_runtime` | the runtime's path, if it was renamed |
///
/// Durations are a whole number and a unit (`s`, `m`, `h`, `d`, `w` or the word), or a sum such as `"1h 30m"`.
///
/// # The function
///
/// It is `async` and takes exactly one of `tx: &mut Tx` (one transaction) and `op: &mut Operation` (several steps), in
/// any place, besides at most 15 extractors. With an argument of type `&Idempotency` it is a plain function to be
/// called, not routed: then `key = expr` is required and the result is a `Result<T, E>`.
///
/// # Other attributes
///
/// `#[axum::debug_handler]` stands below `#[idempotent]`, `#[utoipa::path]` above it, `#[tracing::instrument]` in
/// either place. Lint levels, docs and `#[cfg]` apply to the whole.
#[proc_macro_attribute]
pub fn idempotent(attribute: TokenStream, item: TokenStream) -> TokenStream {
    expand::expand(attribute.into(), item.into()).into()
}
