//! Checks by type, for what only the compiler can know: whether an extractor may stand where it stands, whether its
//! payload deserializes, whether the state holds what is taken from it. Each is one call into the runtime under the
//! span of the type it is about; the names there become the error's text.

use std::collections::HashSet;

use proc_macro2::{Delimiter, Ident, Span, TokenStream};
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::{Pat, ReturnType, Signature, Type, TypeParamBound};

use super::arguments::{Argument, Arguments};
use super::body::Seen;
use super::errors::Errors;
use super::expression;
use super::function::Function;
use super::settings::Settings;
use super::spans::Place;
use super::tokens;
use super::types;

/// Extractors of axum about which the runtime knows more than the compiler would say. A type of the application that
/// happens to have such a name passes: the runtime looks at the type.
const KNOWN: &[&str] = &["Body", "Bytes", "Form", "Json", "Path", "Query", "RawForm", "Request", "String"];

/// Of those, the ones whose payload is deserialized.
const PAYLOAD: &[&str] = &["Form", "Json", "Path", "Query"];

/// Extractors that hold what a client sends, and no pool.
const WITHOUT_POOL: &[&str] = &["HeaderMap", "MatchedPath", "Method", "Multipart", "OriginalUri", "RawQuery", "Uri"];

/// Whether the runtime knows more about the extractor than axum's own checks do.
pub(super) fn is_known(argument: &Argument) -> bool {
    types::name(&argument.ty).is_some_and(|name| KNOWN.contains(&name.as_str()))
}

/// The checks of the state, as a constant of the argument that takes the handle out of it.
pub(super) fn of_state(settings: &Settings) -> Option<TokenStream> {
    let state = settings.state.as_ref().filter(|_| settings.idempotency.is_none())?;
    let runtime = &settings.runtime;
    let place = Place::of(state);
    let (begin, end) = (place.begin(quote!(#runtime::attribute::state::<)), place.end(quote!(>();)));
    Some(constant(state, &quote!(#begin #state #end)))
}

/// The checks of an extractor, as a constant of its wrapper: with an error in it the router has nothing more to say.
pub(super) fn of_extractor(extractor: &Argument, later: &[&Argument], settings: &Settings) -> Option<TokenStream> {
    let runtime = &settings.runtime;
    let rank = Rank::before(later);
    let mut checks: TokenStream = check_known(extractor, rank, settings).into_iter().collect();
    if !checks.is_empty() {
        checks = quote!(use #runtime::attribute::Unknown as _; #checks);
    }
    if let Some(state) = &settings.state {
        checks.extend(check_with_state(extractor, rank, state, runtime));
    }
    (!checks.is_empty()).then(|| constant(&extractor.ty, &checks))
}

/// In the compiler's texts a constant shows as what stands in its place.
fn constant(place: &Type, checks: &TokenStream) -> TokenStream {
    Place::of(place).around(Delimiter::Brace, quote!(let _: fn() = || { #checks }; true))
}

/// By type, whatever the names are: the extractors give no pool and nothing that is as good as one, and their patterns
/// take none out of them.
pub(super) fn of_pools(arguments: &Arguments, settings: &Settings, seen: &Seen) -> Option<TokenStream> {
    if arguments.is_plain_function || settings.allow_pool {
        return None;
    }
    let runtime = &settings.runtime;
    let extractors = arguments.rest().filter(|argument| !argument.is_broken && !is_reported(argument, seen));
    let checks: Vec<TokenStream> = extractors.filter_map(|extractor| check_pool(extractor, settings)).collect();
    (!checks.is_empty()).then(|| {
        quote! {
            const _: fn() = || {
                use #runtime::attribute::Unknown as _;
                #(#checks)*
            };
        }
    })
}

/// The body shows that a pool is in it, or its type does.
fn is_reported(argument: &Argument, seen: &Seen) -> bool {
    types::pool(&argument.ty).is_some()
        || expression::bound(&argument.pattern).iter().any(|name| seen.pools.contains(&name.unraw().to_string()))
}

fn check_pool(extractor: &Argument, settings: &Settings) -> Option<TokenStream> {
    let Argument { conditions, ty, pattern, .. } = extractor;
    let is_payload = |name: String| KNOWN.contains(&name.as_str()) || WITHOUT_POOL.contains(&name.as_str());
    if types::name(ty).is_some_and(is_payload) {
        return None;
    }
    let runtime = &settings.runtime;
    let names = expression::bound(pattern);
    if !is_taken_apart(pattern) || names.is_empty() {
        let value = Ident::new("value", Span::mixed_site());
        // An extractor without generics is at most a pool's wrapper itself; `State<Arc<_>>` takes more steps.
        let steps = if types::type_arguments(ty).is_empty() { 1 } else { 3 };
        let checks = ["holds_no_pool", "holds_no_wrapped_pool", "holds_no_deeply_wrapped_pool"].into_iter().take(steps);
        let checks = checks.map(|check| check_value(&value, Place::of(ty), check, runtime));
        return Some(quote!(#(#conditions)* let _ = |#value: #ty| { #(#checks)* };));
    }
    // What the pattern leaves behind does not reach the function.
    let fields = names.iter().flat_map(|name| {
        ["is_no_pool", "holds_no_pool"].map(|check| check_value(name, Place::of(name), check, runtime))
    });
    Some(quote! {
        #(#conditions)*
        #[allow(unused)]
        let _ = |#pattern: #ty| { #(#fields)* };
    })
}

fn check_value(value: &Ident, place: Place, check: &str, runtime: &TokenStream) -> TokenStream {
    let check = Ident::new(check, Span::call_site());
    let begin = place.begin(quote!(#runtime::attribute::Value::of));
    let value = place.around(Delimiter::Parenthesis, quote!(&#value));
    let end = place.begin(quote!(.#check();));
    quote!(#begin #value #end)
}

/// Whether there is a pattern inside of the extractor's own, as in `State(AppState { pool, .. })`.
fn is_taken_apart(pattern: &Pat) -> bool {
    match pattern {
        Pat::Struct(_) => true,
        Pat::TupleStruct(tuple) => {
            tuple.elems.len() > 1 || tuple.elems.iter().any(|inner| !matches!(inner, Pat::Ident(_) | Pat::Wild(_)))
        }
        Pat::Tuple(_) => true,
        _ => false,
    }
}

/// Words in the names of what may hold a pool.
const LIKE_A_POOL: &[&str] = &[
    "conn",
    "connection",
    "dao",
    "database",
    "db",
    "extension",
    "pg",
    "pool",
    "postgres",
    "repo",
    "repository",
    "service",
    "sql",
    "state",
    "store",
];

/// The words of `pg_pool`, `PgPool` and `POOL`, in lower case.
fn words_of(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut previous_is_lower = false;
    for character in name.chars() {
        if character == '_' || character.is_uppercase() && previous_is_lower {
            words.push(String::new());
        }
        previous_is_lower = character.is_lowercase();
        if let Some(word) = words.last_mut().filter(|_| character != '_') {
            word.extend(character.to_lowercase());
        }
    }
    words
}

/// `allow(pool)` where nothing is or could be a pool.
pub(super) fn of_allowed_pool(
    allow: &Ident,
    function: &Function,
    arguments: &Arguments,
    seen: &HashSet<String>,
    errors: &Errors,
) {
    let is_like_a_pool = |name: &str| words_of(name).iter().any(|word| LIKE_A_POOL.contains(&word.as_str()));
    let types = arguments.rest().any(|argument| {
        tokens::mention(&argument.ty.to_token_stream(), &is_like_a_pool)
            || tokens::mention(&argument.pattern.to_token_stream(), &is_like_a_pool)
    });
    let in_body = tokens::mention(&function.body.stream(), &|name| name != "sqlx" && is_like_a_pool(name));
    if seen.is_empty() && !types && !in_body {
        errors.beside(allow, "there is no pool here to allow; remove `allow(pool)`");
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
    fn before(later: &[&Argument]) -> Self {
        if later.is_empty() {
            Self::Last
        } else if later.iter().any(|argument| argument.conditions.is_empty()) {
            Self::BeforeTheLast
        } else {
            Self::Either
        }
    }
}

fn check_known(extractor: &Argument, rank: Rank, settings: &Settings) -> Option<TokenStream> {
    let ty = &extractor.ty;
    let name = types::name(ty)?;
    if !KNOWN.contains(&name.as_str()) {
        return None;
    }
    // An error about a payload is one about the type in the extractor, any other one about the extractor.
    let place = match types::type_arguments(ty).as_slice() {
        [payload] if PAYLOAD.contains(&name.as_str()) && rank == Rank::Last => Place::of(payload),
        _ => Place::of(ty),
    };
    let runtime = &settings.runtime;
    let begin = place.begin(quote!(#runtime::attribute::Extractor::<));
    let end = place.end(match rank {
        Rank::Last => quote!(>::last();),
        Rank::BeforeTheLast => quote!(>::before_the_last();),
        Rank::Either => return None,
    });
    Some(quote!(#begin #ty #end))
}

fn check_with_state(extractor: &Argument, rank: Rank, state: &Type, runtime: &TokenStream) -> Option<TokenStream> {
    let ty = &extractor.ty;
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
    let (begin, end) = (place.begin(quote!(#runtime::attribute::#check)), place.end(end));
    Some(quote!(#begin #checked #end))
}

/// Bodies that consume the request, by names that axum compiles only with a feature.
pub(super) fn of_order(arguments: &Arguments, errors: &Errors) {
    let extractors: Vec<&Argument> = arguments.rest().collect();
    for (position, extractor) in extractors.iter().enumerate() {
        let is_body = types::name(&extractor.ty).is_some_and(|name| name == "Multipart");
        if is_body && Rank::before(&extractors[position + 1..]) == Rank::BeforeTheLast {
            errors.on(
                &extractor.ty,
                "`Multipart` consumes the request's body and must be the last extractor; move it to the end",
            );
        }
    }
}

/// Results that have no end, or none known in advance, by name.
pub(super) fn of_result(signature: &Signature, is_plain_function: bool, errors: &Errors) -> bool {
    match &signature.output {
        ReturnType::Type(_, ty) if !is_plain_function => check_result(ty, errors),
        ReturnType::Default if is_plain_function => {
            let message = "a function that takes `&Idempotency` must return what is stored; use `-> Result<T, E>`";
            errors.on(&signature.ident, message);
            false
        }
        _ => true,
    }
}

/// Whether it can be stored, as far as its name tells.
fn check_result(ty: &Type, errors: &Errors) -> bool {
    let ty = types::peel(ty);
    let all = |types: Vec<&Type>| {
        types.into_iter().map(|ty| check_result(ty, errors)).filter(|is_storable| !is_storable).count() == 0
    };
    match ty {
        Type::Tuple(tuple) => all(tuple.elems.iter().collect()),
        Type::ImplTrait(implemented) if implemented.bounds.iter().any(is_stream) => {
            report_stream("stream", ty, errors);
            false
        }
        Type::Path(_) => {
            let name = types::name(ty).unwrap_or_default();
            let arguments = types::type_arguments(ty);
            match name.as_str() {
                "Sse" | "Body" | "StreamBody" | "BodyDataStream" | "BodyStream" | "BoxStream" | "ReaderStream" => {
                    report_stream(&name, ty, errors);
                    false
                }
                "Option" => all(arguments),
                _ if name.ends_with("Result") => all(arguments),
                _ => true,
            }
        }
        _ => true,
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
    errors.beside(ty, message);
}
