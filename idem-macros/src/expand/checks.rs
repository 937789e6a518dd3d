//! Checks by type, for what only the compiler can know: whether an extractor may stand where it stands, whether its
//! payload deserializes, whether the state holds what is taken from it. Each is one call into the runtime under the
//! span of the type it is about; the names there become the error's text.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{ReturnType, Signature, Type, TypeParamBound};

use super::arguments::{Argument, Arguments};
use super::errors::Errors;
use super::settings::Settings;
use super::types;

/// Extractors of axum about which the runtime knows more than the compiler would say. A type of the application that
/// happens to have such a name passes: the runtime looks at the type.
const KNOWN: &[&str] = &["Body", "Bytes", "Form", "Json", "Path", "Query", "RawForm", "Request", "String"];

/// Extractors in which the runtime looks for a pool.
const MAY_HOLD_A_POOL: &[&str] = &["Extension", "State"];

/// `const _: fn() = || { … };`, or nothing if there is nothing to check.
pub(super) fn of_types(arguments: &Arguments, settings: &Settings) -> TokenStream {
    if arguments.is_plain_function() {
        return TokenStream::new();
    }
    let runtime = &settings.runtime;
    let extractors: Vec<&Argument> = arguments.rest().collect();
    let mut known = TokenStream::new();
    let mut by_state = TokenStream::new();
    for (position, extractor) in extractors.iter().enumerate() {
        let place = Place::of(position, &extractors);
        known.extend(check_known(extractor, &place, settings.allow_pool));
        if let Some(state) = &settings.state {
            by_state.extend(check_with_state(extractor, &place, state));
        }
    }
    if let Some(state) = &settings.state {
        let span = at(state);
        by_state = quote_spanned!(span=> check::state::<#state>(); #by_state);
    }
    match (known.is_empty(), by_state.is_empty()) {
        (true, true) => TokenStream::new(),
        (true, false) => quote!(const _: fn() = || { use #runtime::__private::check; #by_state };),
        (false, _) => quote! {
            const _: fn() = || {
                use #runtime::__private::check::{self, Unknown as _};
                #known
                #by_state
            };
        },
    }
}

/// Where an extractor stands, and under which condition if that depends on a `cfg`.
enum Place {
    Last,
    BeforeTheLast,
    Either,
}

impl Place {
    fn of(position: usize, extractors: &[&Argument]) -> Self {
        let later = &extractors[position + 1..];
        if later.is_empty() {
            Self::Last
        } else if later.iter().any(|argument| argument.conditions.is_empty()) {
            Self::BeforeTheLast
        } else {
            Self::Either
        }
    }
}

fn at(tokens: &impl ToTokens) -> Span {
    Span::mixed_site().located_at(tokens.span())
}

fn check_known(extractor: &Argument, place: &Place, allow_pool: bool) -> Option<TokenStream> {
    let ty = &extractor.ty;
    let name = types::name(ty)?;
    let place = match place {
        Place::Last => "last",
        Place::BeforeTheLast => "before_the_last",
        Place::Either => return None,
    };
    let span = at(ty);
    let place = Ident::new(place, span);
    let conditions = &extractor.conditions;
    let is_known = KNOWN.contains(&name.as_str()) || !allow_pool && MAY_HOLD_A_POOL.contains(&name.as_str());
    is_known.then(|| quote_spanned!(span=> #(#conditions)* check::Extractor::<#ty>::#place();))
}

fn check_with_state(extractor: &Argument, place: &Place, state: &Type) -> Option<TokenStream> {
    let ty = &extractor.ty;
    let name = types::name(ty).unwrap_or_default();
    let conditions = &extractor.conditions;
    let span = at(ty);
    if let ("State", [part]) = (name.as_str(), types::type_arguments(ty).as_slice()) {
        let span = at(part);
        return Some(quote_spanned!(span=> #(#conditions)* check::part_of_state::<#part, #state>();));
    }
    let check = match place {
        _ if KNOWN.contains(&name.as_str()) || name == "Multipart" => return None,
        Place::Last => quote_spanned!(span=> check::extractor_of_the_request::<#ty, #state, _>()),
        Place::BeforeTheLast => quote_spanned!(span=> check::extractor_of_parts::<#ty, #state>()),
        Place::Either => return None,
    };
    Some(quote!(#(#conditions)* #check;))
}

/// Bodies that consume the request, by names that axum compiles only with a feature.
pub(super) fn of_order(arguments: &Arguments, errors: &Errors) {
    let extractors: Vec<&Argument> = arguments.rest().collect();
    for (position, extractor) in extractors.iter().enumerate() {
        let is_body = types::name(&extractor.ty).is_some_and(|name| name == "Multipart");
        if is_body && matches!(Place::of(position, &extractors), Place::BeforeTheLast) {
            errors.on(
                &extractor.ty,
                "`Multipart` consumes the request's body and must be the last extractor; move it to the end",
            );
        }
    }
}

/// Results that have no end, or none known in advance, by name.
pub(super) fn of_result(signature: &Signature, is_plain_function: bool, errors: &Errors) {
    match &signature.output {
        ReturnType::Type(_, ty) if !is_plain_function => check_result(ty, errors),
        ReturnType::Default if is_plain_function => {
            let message = "a function that takes `&Idempotency` must return what is stored; use `-> Result<T, E>`";
            errors.on(&signature.ident, message);
        }
        _ => {}
    }
}

fn check_result(ty: &Type, errors: &Errors) {
    let ty = types::peel(ty);
    match ty {
        Type::Tuple(tuple) => tuple.elems.iter().for_each(|element| check_result(element, errors)),
        Type::ImplTrait(implemented) if implemented.bounds.iter().any(is_stream) => report_stream("stream", ty, errors),
        Type::Path(_) => {
            let name = types::name(ty).unwrap_or_default();
            let arguments = types::type_arguments(ty);
            match name.as_str() {
                "Sse" | "Body" | "StreamBody" | "BodyDataStream" | "BodyStream" | "BoxStream" | "ReaderStream" => {
                    report_stream(&name, ty, errors);
                }
                "Option" => arguments.iter().for_each(|argument| check_result(argument, errors)),
                _ if name.ends_with("Result") => arguments.iter().for_each(|argument| check_result(argument, errors)),
                _ => {}
            }
        }
        _ => {}
    }
}

fn is_stream(bound: &TypeParamBound) -> bool {
    match bound {
        TypeParamBound::Trait(bound) => {
            bound.path.segments.last().is_some_and(|last| last.ident == "Stream" || last.ident == "TryStream")
        }
        _ => false,
    }
}

fn report_stream(name: &str, ty: &Type, errors: &Errors) {
    let message = format!(
        "the response must be stored to be replayed, and a `{name}` has no known end; use a whole body such as `Json<T>`, `String` or `Bytes`"
    );
    errors.on(ty, message);
}
