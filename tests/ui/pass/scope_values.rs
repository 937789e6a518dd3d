//! What a scope may be.

#![warn(clippy::pedantic)]
#![deny(warnings)]
#![forbid(unsafe_code)]
#![allow(clippy::wildcard_imports)]

#[path = "../application.rs"]
mod application;

use application::*;

use std::borrow::Cow;
use std::sync::Arc;

use uuid::Uuid;

const SHOP: &str = "shop";

struct Owner {
    id: Uuid,
    name: String,
    shared: Arc<str>,
    borrowed: Cow<'static, str>,
    boxed: Box<str>,
    parent: Option<i64>,
    regions: Vec<u8>,
}

impl Owner {
    fn initial(&self) -> &str {
        &self.name[..1]
    }

    fn label(&self, prefix: &str) -> String {
        format!("{prefix}{}", self.name)
    }
}

fn owner_of(owner: &Owner) -> Uuid {
    owner.id
}

fn decorated(text: &str, decorate: impl Fn(&str) -> String) -> String {
    decorate(text)
}

fn quoted(text: &str) -> String {
    format!("'{text}'")
}

impl<S: Sync> FromRequestParts<S> for Owner {
    type Rejection = StatusCode;

    async fn from_request_parts(_: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Err(StatusCode::UNAUTHORIZED)
    }
}

macro_rules! accepted {
    (|$owner:ident| $($name:ident: $scope:expr,)*) => {
        $(
            #[idempotent(scope = $scope, ttl = "24h")]
            async fn $name($owner: Owner, tx: &mut Tx) -> StatusCode {
                let _ = sqlx::query("SELECT 1").execute(tx).await;
                StatusCode::CREATED
            }
        )*
    };
}

accepted! {
    |owner|
    from_a_function: Uuid::from_u128(owner.id.as_u128()).to_string(),
    from_a_macro: format!("{}", owner.id),
}

#[idempotent(scope = owner.id, ttl = "24h")]
async fn uuid(owner: Owner, tx: &mut Tx) -> String {
    written(owner, tx).await
}

#[idempotent(scope = owner.name, ttl = "24h")]
async fn string(owner: Owner, tx: &mut Tx) -> String {
    written(owner, tx).await
}

#[idempotent(scope = &owner.name, ttl = "24h")]
async fn reference(owner: Owner, tx: &mut Tx) -> String {
    written(owner, tx).await
}

#[idempotent(scope = *owner.shared, ttl = "24h")]
async fn dereferenced(owner: Owner, tx: &mut Tx) -> String {
    written(owner, tx).await
}

#[idempotent(scope = (owner.shared, owner.borrowed, owner.boxed), ttl = "24h")]
async fn tuple_of_fields(owner: Owner, tx: &mut Tx) -> String {
    written(owner, tx).await
}

#[idempotent(scope = (owner.id, ("a", owner.name), SHOP), ttl = "24h")]
async fn tuple_in_tuple(owner: Owner, tx: &mut Tx) -> String {
    written(owner, tx).await
}

#[idempotent(scope = owner.initial(), ttl = "24h")]
async fn method(owner: Owner, tx: &mut Tx) -> String {
    written(owner, tx).await
}

#[idempotent(scope = owner.label(SHOP).to_lowercase(), ttl = "24h")]
async fn method_chain(owner: Owner, tx: &mut Tx) -> String {
    written(owner, tx).await
}

#[idempotent(scope = owner_of(owner), ttl = "24h")]
async fn function(owner: Owner, tx: &mut Tx) -> String {
    written(owner, tx).await
}

#[idempotent(scope = decorated(&owner.name, quoted), ttl = "24h")]
async fn function_given_a_function(owner: Owner, tx: &mut Tx) -> String {
    written(owner, tx).await
}

#[idempotent(scope = format!("{}:{tenant_name}", owner.id, tenant_name = owner.name), ttl = "24h")]
async fn formatted(owner: Owner, tx: &mut Tx) -> String {
    written(owner, tx).await
}

#[idempotent(scope = format!("{shop}/{number:>3}"), ttl = "24h")]
async fn formatted_inline(Path((shop, number)): Path<(String, i64)>, tx: &mut Tx) -> String {
    let _ = sqlx::query("SELECT 1").execute(tx).await;
    format!("{shop}{number}")
}

#[idempotent(scope = owner.parent.unwrap_or(0), ttl = "24h")]
async fn decided_option(owner: Owner, tx: &mut Tx) -> String {
    written(owner, tx).await
}

#[idempotent(scope = match owner.parent { Some(parent) => parent.to_string(), None => owner.name.clone() }, ttl = "24h")]
async fn matched(owner: Owner, tx: &mut Tx) -> String {
    written(owner, tx).await
}

#[idempotent(scope = if owner.regions.is_empty() { 0 } else { owner.regions[0] }, ttl = "24h")]
async fn branched(owner: Owner, tx: &mut Tx) -> String {
    written(owner, tx).await
}

#[idempotent(scope = { let first = &owner.regions[0]; first + 1 }, ttl = "24h")]
async fn computed(owner: Owner, tx: &mut Tx) -> String {
    written(owner, tx).await
}

#[idempotent(scope = owner.parent.map_or_else(|| owner.name.clone(), |parent| parent.to_string()), ttl = "24h")]
async fn closures(owner: Owner, tx: &mut Tx) -> String {
    written(owner, tx).await
}

#[idempotent(scope = owner.regions.len() as u64 + 1, ttl = "24h")]
async fn arithmetic(owner: Owner, tx: &mut Tx) -> String {
    written(owner, tx).await
}

#[idempotent(scope = (owner.regions[0], -i64::from(owner.regions[1])), ttl = "24h")]
async fn indexed(owner: Owner, tx: &mut Tx) -> String {
    written(owner, tx).await
}

#[idempotent(scope = order.number, ttl = "24h", key = format!("{}-{}", order.number, order.total), fingerprint = order.total)]
async fn out_of_the_body(tx: &mut Tx, Json(order): Json<NewOrder>) -> String {
    let _ = sqlx::query("SELECT 1").execute(tx).await;
    order.number
}

#[idempotent(scope = global, ttl = "24h")]
async fn global(owner: Owner, tx: &mut Tx) -> String {
    written(owner, tx).await
}

async fn written(owner: Owner, tx: &mut Tx) -> String {
    let _ = sqlx::query("SELECT 1").execute(tx).await;
    owner.name
}

fn main() {
    for handler in [
        post(from_a_function),
        post(from_a_macro),
        post(uuid),
        post(string),
        post(reference),
        post(dereferenced),
        post(tuple_of_fields),
        post(tuple_in_tuple),
        post(method),
        post(method_chain),
        post(function),
        post(function_given_a_function),
        post(formatted),
        post(formatted_inline),
        post(decided_option),
        post(matched),
        post(branched),
        post(computed),
        post(closures),
        post(arithmetic),
        post(indexed),
        post(out_of_the_body),
        post(global),
    ] {
        routed(handler);
    }
}
