//! Checks by type, for what only the compiler can know: whether an extractor may stand where it stands, whether its
//! payload deserializes, whether the state holds what is taken from it. Each is one call into the runtime under the
//! span of the type it is about; the names there become the error's text.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{ReturnType, Signature, Type, TypeParamBound};

use super::arguments::{Argument, Arguments};
use super::errors::Errors;
use super::settings::Settings;
use super::spans::Place;
use super::types;

/// Extractors of axum about which the runtime knows more than the compiler would say. A type of the application that
/// happens to have such a name passes: the runtime looks at the type.
const KNOWN: &[&str] = &["Body", "Bytes", "Form", "Json", "Path", "Query", "RawForm", "Request", "String"];

/// Of those, the ones whose payload is deserialized.
const PAYLOAD: &[&str] = &["Form", "Json", "Path", "Query"];

/// Extractors in which the runtime looks for a pool.
const MAY_HOLD_A_POOL: &[&str] = &["Extension", "State"];

/// `const _: fn() = || { … };`, or nothing if there is nothing to check.
pub(super) fn of_types(arguments: &Arguments, settings: &Settings) -> TokenStream {
    if arguments.is_plain_function {
        return TokenStream::new();
    }
    let runtime = &settings.runtime;
    let extractors: Vec<&Argument> = arguments.rest().collect();
    let mut known = TokenStream::new();
    let mut by_state = settings.state.as_ref().map(|state| check_state(state, runtime)).unwrap_or_default();
    for (position, extractor) in extractors.iter().enumerate() {
        let rank = Rank::of(position, &extractors);
        known.extend(check_known(extractor, rank, settings));
        if let Some(state) = &settings.state {
            by_state.extend(check_with_state(extractor, rank, state, runtime));
        }
    }
    if known.is_empty() && by_state.is_empty() {
        return TokenStream::new();
    }
    let unknown = (!known.is_empty()).then(|| quote!(use #runtime::__private::check::Unknown as _;));
    quote! {
        const _: fn() = || {
            #unknown
            #known
            #by_state
        };
    }
}

/// Where an extractor stands among the others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rank {
    Last,
    BeforeTheLast,
    /// That depends on a `cfg`.
    Either,
}

impl Rank {
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

fn check_state(state: &Type, runtime: &TokenStream) -> TokenStream {
    let place = Place::of(state);
    let (begin, end) = (place.begin(quote!(#runtime::__private::check::state::<)), place.end(quote!(>();)));
    quote!(#begin #state #end)
}

fn check_known(extractor: &Argument, rank: Rank, settings: &Settings) -> Option<TokenStream> {
    let (ty, conditions) = (&extractor.ty, &extractor.conditions);
    let name = types::name(ty)?;
    let is_known = KNOWN.contains(&name.as_str()) || !settings.allow_pool && MAY_HOLD_A_POOL.contains(&name.as_str());
    if !is_known {
        return None;
    }
    // An error about a payload is one about the type in the extractor, any other one about the extractor.
    let place = match types::type_arguments(ty).as_slice() {
        [payload] if PAYLOAD.contains(&name.as_str()) && rank == Rank::Last => Place::of(payload),
        _ => Place::of(ty),
    };
    let runtime = &settings.runtime;
    let begin = place.begin(quote!(#runtime::__private::check::Extractor::<));
    let end = place.end(match rank {
        Rank::Last => quote!(>::last();),
        Rank::BeforeTheLast => quote!(>::before_the_last();),
        Rank::Either => return None,
    });
    Some(quote!(#(#conditions)* #begin #ty #end))
}

fn check_with_state(extractor: &Argument, rank: Rank, state: &Type, runtime: &TokenStream) -> Option<TokenStream> {
    let (ty, conditions) = (&extractor.ty, &extractor.conditions);
    let name = types::name(ty).unwrap_or_default();
    let (checked, check, end) = match (name.as_str(), types::type_arguments(ty).as_slice(), rank) {
        ("State", [part], _) => (*part, quote!(part_of_state::<), quote!(, #state>();)),
        ("Multipart", ..) => return None,
        (known, ..) if KNOWN.contains(&known) => return None,
        (.., Rank::Last) => (ty, quote!(extractor_of_the_request::<), quote!(, #state, _>();)),
        (.., Rank::BeforeTheLast) => (ty, quote!(extractor_of_parts::<), quote!(, #state>();)),
        (.., Rank::Either) => return None,
    };
    let place = Place::of(checked);
    let (begin, end) = (place.begin(quote!(#runtime::__private::check::#check)), place.end(end));
    Some(quote!(#(#conditions)* #begin #checked #end))
}

/// Bodies that consume the request, by names that axum compiles only with a feature.
pub(super) fn of_order(arguments: &Arguments, errors: &Errors) {
    let extractors: Vec<&Argument> = arguments.rest().collect();
    for (position, extractor) in extractors.iter().enumerate() {
        let is_body = types::name(&extractor.ty).is_some_and(|name| name == "Multipart");
        if is_body && Rank::of(position, &extractors) == Rank::BeforeTheLast {
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
