//! Every option, and every form of its value.

#![warn(clippy::pedantic)]
#![deny(warnings)]
#![forbid(unsafe_code)]
#![allow(clippy::wildcard_imports)]

#[path = "../application.rs"]
mod application;

use application::*;

use sqlx::PgPool;

macro_rules! accepted {
    (|$tenant:ident, $new:ident| $($name:ident: [$($option:tt)*],)*) => {
        $(
            #[idempotent(scope = $tenant.id, $($option)*)]
            async fn $name($tenant: Tenant, tx: &mut Tx, Json($new): Json<NewOrder>) -> String {
                let _ = sqlx::query("SELECT 1").execute(tx).await;
                format!("{} {}", $tenant.id, $new.total)
            }
        )*

        fn main() {
            $(routed(post($name));)*
            routed(post(reads_elsewhere));
        }
    };
}

accepted! {
    |tenant, new|
    seconds: [ttl = "90s"],
    minutes: [ttl = "5 minutes"],
    a_sum: [ttl = "1h 30m"],
    weeks: [ttl = "2w",],
    the_longest: [ttl = "365d"],
    raw_text: [ttl = r"24h"],
    key_of_the_header: [ttl = "24h", key = header],
    key_if_there_is_one: [ttl = "24h", key = optional],
    key_of_the_payload: [ttl = "24h", key = new.number],
    reject: [ttl = "24h", in_flight = "reject"],
    wait: [ttl = "24h", in_flight = "wait 250ms"],
    release: [ttl = "24h", failures = "release"],
    replay: [ttl = "24h", failures = "replay"],
    lease: [ttl = "24h", lease = "2m"],
    read_committed: [ttl = "24h", isolation = "read committed"],
    repeatable_read: [ttl = "24h", isolation = "repeatable read"],
    serializable: [ttl = "24h", isolation = "serializable"],
    fingerprint: [ttl = "24h", fingerprint = new.total],
    fingerprint_of_several: [ttl = "24h", fingerprint = (new.total, new.number, tenant.name)],
    state: [ttl = "24h", state = AppState],
    state_by_path: [ttl = "24h", state = crate::application::AppState],
    runtime: [ttl = "24h", crate = ::idem_runtime],
    any_order: [state = AppState, lease = "60s", ttl = "24h", failures = "replay", key = optional],
}

#[idempotent(scope = tenant.id, ttl = "24h", allow(pool))]
async fn reads_elsewhere(tenant: Tenant, Extension(pool): Extension<PgPool>, tx: &mut Tx) -> String {
    let (_, _) = (sqlx::query("SELECT 1").execute(tx).await, sqlx::query("SELECT 1").execute(&pool).await);
    tenant.name
}
