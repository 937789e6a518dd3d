//! What a type is, as far as its name tells.

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::{GenericArgument, Ident, PathArguments, PathSegment, Type};

/// The type inside invisible groups and parentheses.
pub(super) fn peel(ty: &Type) -> &Type {
    match ty {
        Type::Group(group) => peel(&group.elem),
        Type::Paren(paren) => peel(&paren.elem),
        _ => ty,
    }
}

pub(super) fn last_segment(ty: &Type) -> Option<&PathSegment> {
    match peel(ty) {
        Type::Path(path) => path.path.segments.last(),
        _ => None,
    }
}

/// The last name of a path type: `Json` of `axum::Json<Order>`.
pub(super) fn name(ty: &Type) -> Option<String> {
    last_segment(ty).map(|segment| segment.ident.to_string())
}

/// The type arguments of the last segment.
pub(super) fn type_arguments(ty: &Type) -> Vec<&Type> {
    let Some(PathArguments::AngleBracketed(generics)) = last_segment(ty).map(|segment| &segment.arguments) else {
        return Vec::new();
    };
    let types = generics.args.iter().filter_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    });
    types.collect()
}

/// The type as a reader would write it.
pub(super) fn shown(ty: &Type) -> String {
    let mut text = ty.to_token_stream().to_string();
    for (spaced, tight) in [(" :: ", "::"), (" < ", "<"), (" >", ">"), ("& ", "&"), (" ,", ","), (":: ", "::")] {
        text = text.replace(spaced, tight);
    }
    text
}

/// Types that are pools whatever they are made of.
const POOLS: &[&str] =
    &["PgPool", "AnyPool", "MySqlPool", "SqlitePool", "DatabaseConnection", "DbPool", "PgConnectionPool"];

/// What a payload is, not what the application holds.
const PAYLOADS: &[&str] = &["Json", "Form", "Query", "Path", "Multipart"];

/// The name of a pool anywhere in the type.
pub(super) fn pool(ty: &Type) -> Option<Ident> {
    // A type of the application may be called `Pool`; nobody's pool is an extractor by itself.
    let is_bare = matches!(peel(ty), Type::Path(path) if path.path.get_ident().is_some_and(|name| name == "Pool"));
    if is_bare || name(ty).is_some_and(|name| PAYLOADS.contains(&name.as_str())) {
        return None;
    }
    let mut names = Vec::new();
    collect_names(ty.to_token_stream(), &mut names);
    let is_of_something_else = names.iter().any(|name| {
        let name = name.to_string().to_lowercase();
        ["redis", "lapin", "amqp", "memcache", "smtp", "thread", "worker"].iter().any(|other| name.contains(other))
    });
    names.into_iter().find(|name| POOLS.iter().any(|pool| name == pool) || name == "Pool" && !is_of_something_else)
}

fn collect_names(tokens: TokenStream, names: &mut Vec<Ident>) {
    for token in tokens {
        match token {
            TokenTree::Ident(name) => names.push(name),
            TokenTree::Group(group) => collect_names(group.stream(), names),
            _ => {}
        }
    }
}

const PRIMITIVES: &[&str] = &[
    "i8", "i16", "i32", "i64", "i128", "isize", "u8", "u16", "u32", "u64", "u128", "usize", "f32", "f64", "bool",
    "char",
];

/// A number, `bool` or `char`, which nothing extracts from a request.
pub(super) fn is_primitive(ty: &Type) -> bool {
    match peel(ty) {
        Type::Path(path) if path.qself.is_none() => {
            path.path.get_ident().is_some_and(|name| PRIMITIVES.iter().any(|primitive| name == primitive))
        }
        _ => false,
    }
}
