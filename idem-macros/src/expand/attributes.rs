//! Which of the function's other attributes belong on the generated handler and which on the user's function inside.
//! Lint levels on the handler hold for what is nested in it, so they need not be repeated (and `expect` must not be).

use syn::punctuated::Punctuated;
use syn::{Attribute, Meta, Token};

use super::errors::Errors;

const ON_THE_HANDLER: &[&str] =
    &["doc", "must_use", "deprecated", "cfg", "inline", "allow", "warn", "deny", "forbid", "expect"];

pub(super) struct Attributes {
    /// On the handler that the router gets.
    pub(super) outer: Vec<Attribute>,
    /// On the user's function.
    pub(super) inner: Vec<Attribute>,
    /// axum's, which must see the user's extractors and none of the generated ones.
    pub(super) debug_handler: Option<Attribute>,
}

impl Attributes {
    pub(super) fn sort(written: Vec<Attribute>, errors: &Errors) -> Self {
        let mut sorted = Self { outer: Vec::new(), inner: Vec::new(), debug_handler: None };
        for attribute in written {
            match name(&attribute).as_str() {
                "idempotent" => {
                    errors.beside(
                        &attribute,
                        "`#[idempotent]` must be given once; merge the options and remove this one",
                    );
                }
                "path" if is_utoipa(&attribute) => {
                    let message = "`#[utoipa::path]` must stand above `#[idempotent]`, where its generated items stay visible; move it up";
                    errors.beside(&attribute, message);
                }
                "debug_handler" => sorted.debug_handler = Some(attribute),
                "cfg_attr" if is_for_debugging(&attribute) => sorted.debug_handler = Some(attribute),
                known if ON_THE_HANDLER.contains(&known) => sorted.outer.push(attribute),
                "cfg_attr" if is_for_the_handler(&attribute) => sorted.outer.push(attribute),
                _ => sorted.inner.push(attribute),
            }
        }
        sorted
    }
}

fn name(attribute: &Attribute) -> String {
    attribute.path().segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default()
}

/// `path` alone could be anybody's; with these arguments it is utoipa's.
fn is_utoipa(attribute: &Attribute) -> bool {
    let segments = &attribute.path().segments;
    let has_arguments = matches!(&attribute.meta, Meta::List(_));
    segments.first().is_some_and(|first| first.ident == "utoipa") || segments.len() == 1 && has_arguments
}

/// A `cfg_attr` moves as a whole, so only one that holds nothing but attributes of the handler goes there.
fn is_for_the_handler(attribute: &Attribute) -> bool {
    let parser = Punctuated::<Meta, Token![,]>::parse_terminated;
    let Ok(parts) = attribute.parse_args_with(parser) else { return false };
    parts.len() > 1
        && parts.iter().skip(1).all(|part| {
            part.path().segments.last().is_some_and(|segment| ON_THE_HANDLER.iter().any(|known| segment.ident == known))
        })
}

/// `#[cfg_attr(debug_assertions, axum::debug_handler)]`
fn is_for_debugging(attribute: &Attribute) -> bool {
    let parser = Punctuated::<Meta, Token![,]>::parse_terminated;
    let Ok(parts) = attribute.parse_args_with(parser) else { return false };
    parts.len() == 2 && parts[1].path().segments.last().is_some_and(|segment| segment.ident == "debug_handler")
}
