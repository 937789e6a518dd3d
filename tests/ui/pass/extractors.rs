//! Every extractor in a place where it may stand.

#![warn(clippy::pedantic)]
#![deny(warnings)]
#![forbid(unsafe_code)]
#![allow(clippy::wildcard_imports)]

#[path = "../application.rs"]
mod application;

use application::*;

use axum::body::{Body, Bytes};
use axum::extract::rejection::JsonRejection;
use axum::extract::{MatchedPath, OriginalUri, RawForm, RawQuery};
use axum::http::{HeaderMap, Method};

macro_rules! accepted {
    ($($name:ident($($argument:pat = $ty:ty),*),)*) => {
        $(
            #[idempotent(scope = tenant.id, ttl = "24h", state = AppState)]
            async fn $name(tenant: Tenant, tx: &mut Tx, $($argument: $ty),*) -> String {
                let _ = sqlx::query("SELECT 1").execute(tx).await;
                tenant.name
            }
        )*

        fn main() {
            $(routed(post($name));)*
            routed(post(many));
        }
    };
}

accepted! {
    json(_ = Json<NewOrder>),
    form(_ = Form<NewOrder>),
    json_of_a_list(_ = Json<Vec<NewOrder>>),
    json_or_why_not(_ = Result<Json<NewOrder>, JsonRejection>),
    json_if_there_is_one(_ = Option<Json<NewOrder>>),
    bytes(_ = Bytes),
    text(_ = String),
    body(_ = Body),
    raw_form(_ = RawForm),
    request(_ = Request),
    multipart(_ = Multipart),
    query(_ = Query<NewOrder>),
    path(_ = Path<(i64, String)>),
    path_of_one(_ = Path<i64>),
    state(_ = State<AppState>),
    part_of_the_state(_ = State<Idempotency>),
    extension(_ = Extension<i64>),
    headers(_ = HeaderMap),
    method(_ = Method),
    raw_query(_ = RawQuery),
    original_uri(_ = OriginalUri),
    matched_path(_ = Option<MatchedPath>),
    nested(_ = (Path<i64>, Query<NewOrder>), _ = (HeaderMap, Bytes)),
    before_a_body(_ = Path<i64>, _ = Query<NewOrder>, _ = State<AppState>, _ = Json<NewOrder>),
}

/// As many as a handler can have.
#[expect(clippy::too_many_arguments)]
#[idempotent(scope = a.id, ttl = "24h")]
async fn many(
    a: Tenant,
    _: Tenant,
    _: Tenant,
    _: Tenant,
    _: Tenant,
    _: Tenant,
    _: Tenant,
    _: Tenant,
    tx: &mut Tx,
    _: Tenant,
    _: Tenant,
    _: Tenant,
    _: Tenant,
    _: Tenant,
    _: Tenant,
    Json(new): Json<NewOrder>,
) -> String {
    let _ = sqlx::query("SELECT 1").execute(tx).await;
    format!("{} {}", a.name, new.total)
}
