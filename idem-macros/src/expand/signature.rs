//! What a function must be to be wrapped at all.

use proc_macro2::{Group, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{FnArg, GenericParam, Ident, Pat, ReturnType, Safety, Signature, Type};

use super::errors::Errors;
use super::function::Function;
use super::tokens;
use super::types;

pub(super) fn check(function: &Function, attribute: &TokenStream, errors: &Errors) {
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
    check_generics(function, attribute, errors);
    if signature.ident == "main" {
        errors.on(&signature.ident, "`main` is not retried by anybody; put `#[idempotent]` on a handler");
    }
}

/// One name stands for one kind of response, so each instance of a generic function needs a handler of its own.
fn check_generics(function: &Function, attribute: &TokenStream, errors: &Errors) {
    let Signature { ident: name, generics, .. } = &function.signature;
    if !generics.params.is_empty() {
        if generics.params.iter().all(|parameter| matches!(parameter, GenericParam::Lifetime(_))) {
            let message =
                "an idempotent function must not have lifetime parameters; use `'_` or leave the lifetime out";
            errors.on(&generics.params, message);
        } else {
            let concrete: Vec<String> = generics.params.iter().filter_map(concrete).collect();
            let callee = format!("{name}::<{}>", concrete.join(", "));
            let message = format!(
                "an idempotent function must not be generic, because its name must say which responses it stores; remove the attribute here and route a function with concrete types: `{}`",
                wrapper(function, attribute, &callee)
            );
            errors.on(&generics.params, message);
        }
    }
    if let Some(itself) = self_type(function) {
        let message = format!(
            "`Self` does not reach into an idempotent function; use the name of the type, or remove the attribute here and route a function that calls this one: `{}`",
            wrapper(function, attribute, &format!("Orders::{name}"))
        );
        errors.on(itself, message);
    }
}

/// What stands for a generic parameter in the function to write.
fn concrete(parameter: &GenericParam) -> Option<String> {
    match parameter {
        GenericParam::Type(ty) => Some(format!("Concrete{}", ty.ident)),
        GenericParam::Const(_) => Some("1".to_owned()),
        GenericParam::Lifetime(_) => None,
    }
}

/// The function to write instead, which calls this one.
fn wrapper(function: &Function, attribute: &TokenStream, callee: &str) -> String {
    let signature = &function.signature;
    let generics: Vec<Ident> = signature.generics.type_params().map(|ty| ty.ident.clone()).collect();
    let mut parameters = Vec::new();
    let mut names = Vec::new();
    for (position, input) in signature.inputs.iter().enumerate() {
        let FnArg::Typed(argument) = input else { continue };
        let name = match &*argument.pat {
            Pat::Ident(pattern) => pattern.ident.to_string(),
            _ => format!("argument{position}"),
        };
        parameters.push(format!("{name}: {}", shown_as_concrete(&argument.ty, &generics)));
        names.push(name);
    }
    let output = match &signature.output {
        ReturnType::Default => String::new(),
        ReturnType::Type(_, ty) => format!(" -> {}", shown_as_concrete(ty, &generics)),
    };
    format!(
        "#[idempotent({attribute})] async fn {}_concrete({}){output} {{ {callee}({}).await }}",
        signature.ident,
        parameters.join(", "),
        names.join(", ")
    )
}

fn shown_as_concrete(ty: &Type, generics: &[Ident]) -> String {
    let tokens = with_concrete(ty.to_token_stream(), generics);
    syn::parse2(tokens).map_or_else(|_| types::shown(ty), |ty: Type| types::shown(&ty))
}

fn with_concrete(tokens: TokenStream, generics: &[Ident]) -> TokenStream {
    let trees = tokens.into_iter().map(|tree| match tree {
        TokenTree::Ident(ident) if generics.contains(&ident) => {
            TokenTree::Ident(Ident::new(&format!("Concrete{ident}"), ident.span()))
        }
        TokenTree::Ident(ident) if ident == "Self" => TokenTree::Ident(Ident::new("Orders", ident.span())),
        TokenTree::Group(group) => {
            TokenTree::Group(Group::new(group.delimiter(), with_concrete(group.stream(), generics)))
        }
        other => other,
    });
    trees.collect()
}

/// A `Self` that means the type around the function, and not one that the body implements something for.
pub(super) fn self_type(function: &Function) -> Option<Ident> {
    let is_self = |tokens: &TokenStream| tokens::find_ident(tokens, "Self");
    let in_signature = is_self(&function.signature.to_token_stream());
    in_signature.or_else(|| {
        let body = function.body.stream();
        let found = is_self(&body)?;
        let has_types = tokens::mention(&body, &|word| ["impl", "struct", "enum", "trait"].contains(&word));
        (!has_types).then_some(found)
    })
}
