//! Every name of the prelude means something else.

#![warn(clippy::pedantic)]
#![deny(warnings)]
#![forbid(unsafe_code)]
#![allow(clippy::wildcard_imports)]

#[path = "../application.rs"]
mod application;

use application::*;

type Text = String;

mod handlers {
    #![allow(dead_code, non_camel_case_types, unused_macros)]

    use super::application::{Json, NewOrder, Query, StatusCode, Tenant};

    pub mod std {}
    pub mod core {}
    pub mod alloc {}
    pub mod axum {}
    pub mod sqlx {}
    pub mod idem_runtime {}
    pub mod __private {}
    pub mod check {
        #[derive(serde::Deserialize)]
        pub struct Note {
            pub text: super::super::Text,
        }
    }
    pub struct Result;
    pub struct Option;
    pub struct Ok;
    pub struct Err;
    pub struct Some;
    pub struct None;
    pub struct String;
    pub struct Box;
    pub struct Vec;
    pub struct Response;
    pub struct Call;
    pub struct Fingerprinted;
    pub struct Duration;
    pub struct str;
    pub trait IntoResponse {}
    pub trait Into {}
    pub trait From {}
    pub trait Send {}
    pub trait Fn {}
    pub trait Future {}
    pub trait Drop {}

    macro_rules! concat {
        () => {};
    }
    macro_rules! module_path {
        () => {};
    }
    macro_rules! compile_error {
        () => {};
    }

    #[::idem_runtime::idempotent(scope = (tenant.id, new.number), ttl = "24h", key = (new.total), in_flight = "wait 1s")]
    pub async fn create_order(
        tenant: Tenant,
        tx: &mut ::idem_runtime::Tx,
        Query(note): Query<check::Note>,
        Json(new): Json<NewOrder>,
    ) -> ::core::result::Result<StatusCode, StatusCode> {
        match ::sqlx::query("SELECT 1").bind(tenant.id).bind(new.total).bind(note.text).execute(tx).await {
            ::core::result::Result::Ok(_) => ::core::result::Result::Ok(StatusCode::CREATED),
            ::core::result::Result::Err(_) => ::core::result::Result::Err(StatusCode::CONFLICT),
        }
    }
}

fn main() {
    routed(post(handlers::create_order));
}
