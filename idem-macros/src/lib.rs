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
/// | `idempotency = expr` | the state, by `FromRef` | where the handle is; evaluated like `scope`, to an `Idempotency`, a reference or an `Arc` |
/// | `state = AppState` | none | checks the handler against the state type, for errors that name the argument |
/// | `allow(pool)` | | permits a connection pool: for reading, or of another database |
/// | `allow(unused_tx)` | | permits a function that writes nothing through `tx` |
/// | `crate = path` | `::idem_runtime` | the runtime's path, if it was renamed |
///
/// Durations are a whole number and a unit (`s`, `m`, `h`, `d`, `w` or the word), or a sum such as `"1h 30m"`. A lease is at least a
/// second, and neither it nor the time to wait is longer than `ttl`.
///
/// `scope`, `key` and `fingerprint` must depend on an argument (the scope of a function that is called need not), and `key` on one
/// that `scope` does not name. A fresh value such as `Uuid::new_v4()`, and an empty stand-in for a missing one such as
/// `unwrap_or_default()`, are refused.
///
/// # The function
///
/// It is `async` and takes exactly one of `tx: &mut Tx` (one transaction) and `op: &mut Operation` (several steps), in
/// any place, besides at most 15 extractors. With an argument of type `&Idempotency` it is a plain function to be
/// called, not routed: then `key = expr` is required and the result is a `Result<T, E>`.
///
/// The parts of an operation are named by string literals, each once; in a loop or a closure by a literal and an index,
/// `op.step(("charge item", index), …)`.
///
/// # What is taken for a pool
///
/// What is written through a pool is not part of the transaction. Without `allow(pool)` the attribute refuses
///
/// - arguments whose type names `PgPool`, `MySqlPool`, `SqlitePool`, `AnyPool`, `DbPool`, `DatabaseConnection` or a `Pool<…>`, unless it
///   also names Redis, AMQP, SMTP, Memcached, threads or workers, and arguments that are by type an `sqlx::Pool` or dereference to one
///   in up to three steps, whatever they are called; so for each name that a pattern such as `State(AppState { pool, .. })` binds;
/// - in the body, `pool`, `*_pool`, `pool_*`, `pgpool` and `dbpool` where they are given to a function or a statement, or a connection or a
///   transaction is taken from them, as names, fields, functions or statics; but not `redis_pool`, `thread_pool` and the like;
/// - in the body, `db`, `database`, `conn`, `connection`, `pg`, `postgres` and `postgresql`, alone or as the first or last word of a
///   name, where a query runs on them or `begin` or `acquire` is called on them.
///
/// Names bound from `tx` or from a payload (`Json`, `Form`, `Query`, `Path`) are never taken for pools. A repository that holds a pool of
/// its own is beyond what a macro can see.
///
/// # What is taken for transaction control
///
/// `COMMIT`, `ROLLBACK`, `BEGIN`, `END`, `ABORT`, `START TRANSACTION` and `PREPARE TRANSACTION` at the start of a statement, in literals given to
/// sqlx's queries, to `QueryBuilder`, to methods of `tx` and to whatever else runs on `tx`; also through `let`, `const`, `for`,
/// `concat!` and `format!` in the body, and constants named for a command. Constants and files elsewhere, and helpers, are beyond
/// what a macro can see; the runtime notices when the function ends.
///
/// # Other attributes
///
/// `#[axum::debug_handler]` stands below `#[idempotent]`, `#[utoipa::path]` above it, `#[tracing::instrument]` in
/// either place. Lint levels, docs and `#[cfg]` apply to the whole.
#[proc_macro_attribute]
pub fn idempotent(attribute: TokenStream, item: TokenStream) -> TokenStream {
    expand::expand(attribute.into(), item.into()).into()
}
