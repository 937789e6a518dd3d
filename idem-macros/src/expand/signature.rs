//! What a function must be to be wrapped at all.

use quote::ToTokens;
use syn::{FnArg, Safety, Signature};

use super::errors::Errors;

pub(super) fn check(signature: &Signature, errors: &Errors) {
    if let Some(FnArg::Receiver(receiver)) = signature.inputs.first() {
        let message = "an idempotent function must be a free function, because a handler has no `self`; use `State<…>` to reach shared values";
        errors.on(receiver, message);
    }
    if signature.asyncness.is_none() {
        errors.on(signature.fn_token, "an idempotent function must be async; use `async fn`");
    }
    if let Some(constness) = &signature.constness {
        errors.on(constness, "an idempotent function must not be `const`; remove it");
    }
    if let Safety::Unsafe(unsafety) = &signature.safety {
        errors.on(unsafety, "an idempotent function must not be `unsafe`; use an `unsafe` block in its body");
    }
    if let Some(abi) = &signature.abi {
        errors.on(abi, "an idempotent function must not be `extern`; remove it");
    }
    if let Some(variadic) = &signature.variadic {
        errors.on(variadic, "an idempotent function must not be variadic; use an extractor for each argument");
    }
    if !signature.generics.params.is_empty() {
        let message = "an idempotent function must not be generic, because its name must say which responses it stores; use concrete types";
        errors.on(signature.generics.params.to_token_stream(), message);
    }
    if signature.ident == "main" {
        errors.on(&signature.ident, "`main` is not retried by anybody; put `#[idempotent]` on a handler");
    }
}
