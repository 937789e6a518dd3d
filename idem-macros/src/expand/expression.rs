//! The expressions of `scope`, `key` and `fingerprint`: evaluated over references to the arguments, so that the handler
//! still gets every argument whole.

use std::collections::HashSet;

use proc_macro2::{Delimiter, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Expr, Lit, Pat};

/// Every name that occurs in the tokens, also as an inline argument of a format string.
pub(super) fn names(tokens: TokenStream) -> HashSet<String> {
    let mut names = HashSet::new();
    collect_names(tokens, &mut names);
    names
}

fn collect_names(tokens: TokenStream, names: &mut HashSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(name) => {
                names.insert(name.unraw().to_string());
            }
            TokenTree::Group(group) => collect_names(group.stream(), names),
            TokenTree::Literal(literal) => {
                if let Lit::Str(text) = Lit::new(literal) {
                    names.extend(format_arguments(&text.value()));
                }
            }
            TokenTree::Punct(_) => {}
        }
    }
}

/// The `name` of each `{name}` and `{name:…}`.
fn format_arguments(text: &str) -> Vec<String> {
    let openings = text.split('{').skip(1);
    let names =
        openings.map(|after| after.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or_default());
    names.filter(|name| !name.is_empty()).map(ToOwned::to_owned).collect()
}

/// The names that a pattern binds.
pub(super) fn bound(pattern: &Pat) -> Vec<Ident> {
    let mut found = Vec::new();
    collect_bound(pattern, &mut found);
    found
}

fn collect_bound(pattern: &Pat, found: &mut Vec<Ident>) {
    match pattern {
        Pat::Ident(ident) => {
            found.push(ident.ident.clone());
            if let Some((_, inner)) = &ident.subpat {
                collect_bound(inner, found);
            }
        }
        Pat::Or(or) => or.cases.iter().for_each(|case| collect_bound(case, found)),
        Pat::Paren(paren) => collect_bound(&paren.pat, found),
        Pat::Reference(reference) => collect_bound(&reference.pat, found),
        Pat::Slice(slice) => slice.elems.iter().for_each(|element| collect_bound(element, found)),
        Pat::Struct(fields) => fields.fields.iter().for_each(|field| collect_bound(&field.pat, found)),
        Pat::Tuple(tuple) => tuple.elems.iter().for_each(|element| collect_bound(element, found)),
        Pat::TupleStruct(tuple) => tuple.elems.iter().for_each(|element| collect_bound(element, found)),
        Pat::Type(typed) => collect_bound(&typed.pat, found),
        _ => {}
    }
}

/// The pattern for a reference to the argument: without `mut` and `ref`, which a match through a reference forbids.
pub(super) fn pattern_by_reference(pattern: &Pat) -> TokenStream {
    strip_modes(pattern.to_token_stream())
}

fn strip_modes(tokens: TokenStream) -> TokenStream {
    let kept = tokens.into_iter().filter_map(|token| match token {
        TokenTree::Ident(word) if word == "mut" || word == "ref" => None,
        TokenTree::Group(group) => {
            let mut stripped = proc_macro2::Group::new(group.delimiter(), strip_modes(group.stream()));
            stripped.set_span(group.span());
            Some(TokenTree::Group(stripped))
        }
        other => Some(other),
    });
    kept.collect()
}

/// The expression by reference. A tuple is taken apart, so that its fields are borrowed and not moved.
pub(super) fn by_reference(expression: &Expr) -> TokenStream {
    let span = Span::mixed_site().located_at(expression.span());
    match expression {
        Expr::Paren(paren) => by_reference(&paren.expr),
        Expr::Group(group) => by_reference(&group.expr),
        Expr::Tuple(tuple) if !tuple.elems.is_empty() => {
            let elements = tuple.elems.iter().map(by_reference);
            quote_spanned!(span=> &(#(#elements,)*))
        }
        _ if binds_tightly(expression) => quote_spanned!(span=> &#expression),
        _ => {
            let mut grouped = proc_macro2::Group::new(Delimiter::Parenthesis, expression.to_token_stream());
            grouped.set_span(span);
            let reference = quote_spanned!(span=> &);
            quote!(#reference #grouped)
        }
    }
}

fn binds_tightly(expression: &Expr) -> bool {
    matches!(
        expression,
        Expr::Path(_)
            | Expr::Field(_)
            | Expr::MethodCall(_)
            | Expr::Call(_)
            | Expr::Macro(_)
            | Expr::Index(_)
            | Expr::Lit(_)
            | Expr::Reference(_)
            | Expr::Unary(_)
            | Expr::Block(_)
    )
}
