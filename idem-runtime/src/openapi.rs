//! The contract as OpenAPI, for routes that [`utoipa`] describes (feature `utoipa`).
//!
//! ```
//! use idem_runtime::openapi::{IdempotencyKeyHeader, IdempotencyProblems};
//!
//! #[utoipa::path(post, path = "/orders", params(IdempotencyKeyHeader), responses((status = 201), IdempotencyProblems))]
//! # async fn create_order() {}
//! ```
//!
//! Put `#[utoipa::path]` above `#[idempotent]`.

use std::collections::BTreeMap;

use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{ContentBuilder, Header, RefOr, Required, Response, ResponseBuilder};
use utoipa::{IntoParams, IntoResponses};

/// The request header `Idempotency-Key` of a route that requires it.
///
/// A server that has renamed it describes its own.
#[derive(Debug, Clone, Copy)]
pub struct IdempotencyKeyHeader;

/// The answers of the contract: 400, 409, 422 and 503 as `application/problem+json`.
#[derive(Debug, Clone, Copy)]
pub struct IdempotencyProblems;

impl IntoParams for IdempotencyKeyHeader {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let key = ObjectBuilder::new().schema_type(Type::String).min_length(Some(1)).max_length(Some(255));
        let header = ParameterBuilder::new()
            .name("Idempotency-Key")
            .parameter_in(ParameterIn::Header)
            .required(Required::True)
            .description(Some(
                "Names the operation: the same on every attempt, another for every new operation. 1 to 255 visible ASCII characters.",
            ))
            .schema(Some(key.pattern(Some("^[!-~]+$"))));
        vec![header.build()]
    }
}

impl IntoResponses for IdempotencyProblems {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        [
            ("400", "The idempotency key is missing or malformed; nothing happened", false),
            (
                "409",
                "An operation with this idempotency key is in flight; nothing happened, retry with the same key",
                true,
            ),
            ("422", "The idempotency key was used with another request; nothing happened", false),
            ("503", "The database is away or the outcome is not known yet; retry with the same key", true),
        ]
        .into_iter()
        .map(|(status, description, retry_after)| (status.to_owned(), RefOr::T(problem(description, retry_after))))
        .collect()
    }
}

fn problem(description: &str, retry_after: bool) -> Response {
    let text = || ObjectBuilder::new().schema_type(Type::String);
    let schema = ObjectBuilder::new()
        .property("type", text())
        .property("title", text())
        .property("status", ObjectBuilder::new().schema_type(Type::Integer))
        .property("detail", text());
    let content = ContentBuilder::new().schema(Some(schema)).build();
    let response = ResponseBuilder::new().description(description).content("application/problem+json", content);
    let seconds = || Header::new(ObjectBuilder::new().schema_type(Type::Integer).build());
    if retry_after { response.header("Retry-After", seconds()).build() } else { response.build() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_contract_is_described() {
        let header = serde_json::to_value(IdempotencyKeyHeader::into_params(|| None)).expect("JSON");
        assert_eq!(
            (&header[0]["name"], &header[0]["in"], &header[0]["required"]),
            (&"Idempotency-Key".into(), &"header".into(), &true.into())
        );
        let answers = serde_json::to_value(IdempotencyProblems::responses()).expect("JSON");
        for status in ["400", "409", "422", "503"] {
            assert!(answers[status]["content"]["application/problem+json"].is_object(), "{answers}");
        }
        assert!(answers["409"]["headers"]["Retry-After"].is_object());
    }
}
