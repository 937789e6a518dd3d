//! What a function must be to be wrapped at all.

use quote::ToTokens;
use syn::{FnArg, GenericParam, Ident, Safety, Signature};

use super::errors::Errors;
use super::function::Function;
use super::tokens;

pub(super) fn check(function: &Function, errors: &Errors) {
    let signature = &function.signature;
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
    check_generics(function, errors);
    if signature.ident == "main" {
        errors.on(&signature.ident, "`main` is not retried by anybody; put `#[idempotent]` on a handler");
    }
}

/// One name stands for one kind of response, so each instance of a generic function needs a handler of its own.
fn check_generics(function: &Function, errors: &Errors) {
    let Signature { ident: name, generics, .. } = &function.signature;
    let mut parameters = generics.params.iter();
    if let Some(first) = generics.params.first() {
        if parameters.all(|parameter| matches!(parameter, GenericParam::Lifetime(_))) {
            let message = "an idempotent function must not have lifetime parameters; use `'_` or leave the lifetime out";
            errors.on(&generics.params, message);
        } else {
            let types = generics.type_params().next().map_or_else(|| first.to_token_stream().to_string(), |ty| ty.ident.to_string());
            let message = format!(
                "an idempotent function must not be generic, because its name must say which responses it stores; remove the attribute here and write it on a function for each `{types}`: `#[idempotent(…)] async fn {name}_of_orders(tenant: Tenant, tx: &mut Tx, …) -> … {{ {name}::<Orders>(tenant, tx, …).await }}`"
            );
            errors.on(&generics.params, message);
        }
    }
    if let Some(itself) = self_type(function) {
        let message = format!(
            "`Self` does not reach into an idempotent function; use the name of the type, or write the attribute on a free function: `#[idempotent(…)] async fn {name}(tenant: Tenant, tx: &mut Tx, …) -> … {{ Orders::{name}(tenant, tx, …).await }}`"
        );
        errors.on(itself, message);
    }
}

/// A `Self` that means the type around the function, and not one that the body implements something for.
pub(super) fn self_type(function: &Function) -> Option<Ident> {
    let body = function.body.stream();
    let has_types = tokens::mention(&body, &|word| ["impl", "struct", "enum", "trait"].contains(&word));
    let in_signature = tokens::idents(&function.signature.to_token_stream());
    let in_body = if has_types { Vec::new() } else { tokens::idents(&body) };
    in_signature.into_iter().chain(in_body).find(|ident| ident == "Self")
}
