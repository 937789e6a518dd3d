//! Which of the function's other attributes belong on the generated handler and which on the user's function inside.
//! Lint levels on the handler hold for what is nested in it, so they need not be repeated (and `expect` must not be).

use quote::ToTokens;
use syn::punctuated::Punctuated;
use syn::{Attribute, Meta, Path, Token, Type};

use super::arguments::Arguments;
use super::errors::Errors;
use super::settings::Settings;
use super::types;

const ON_THE_HANDLER: &[&str] =
    &["doc", "must_use", "deprecated", "cfg", "inline", "debug_handler", "allow", "warn", "deny", "forbid", "expect"];

pub(super) struct Attributes {
    /// On the handler that the router gets.
    pub(super) outer: Vec<Attribute>,
    /// On the user's function.
    pub(super) inner: Vec<Attribute>,
}

impl Attributes {
    pub(super) fn sort(written: Vec<Attribute>, errors: &Errors) -> Self {
        let mut sorted = Self { outer: Vec::new(), inner: Vec::new() };
        for attribute in written {
            match name(&attribute).as_str() {
                "idempotent" => {
                    errors.on(&attribute, "`#[idempotent]` must be given once; merge the options and remove this one");
                }
                "path" if is_utoipa(&attribute) => {
                    let message = "`#[utoipa::path]` must stand above `#[idempotent]`, where its generated items stay visible; move it up";
                    errors.on(&attribute, message);
                }
                known if ON_THE_HANDLER.contains(&known) => sorted.outer.push(attribute),
                "cfg_attr" if is_for_the_handler(&attribute) => sorted.outer.push(attribute),
                _ => sorted.inner.push(attribute),
            }
        }
        sorted
    }

    /// With the state type given to `#[debug_handler]`, which would look for it in arguments that are wrapped here.
    pub(super) fn with_state(&self, settings: &Settings, arguments: &Arguments, errors: &Errors) -> Self {
        let state = settings.state.as_ref().or_else(|| only_state(arguments));
        let complete = |attribute: &Attribute| {
            let mut attribute = attribute.clone();
            if let Meta::Path(path) = &attribute.meta
                && name(&attribute) == "debug_handler"
            {
                match state {
                    Some(state) => attribute.meta = syn::parse_quote!(#path(state = #state)),
                    None => errors.on(path, missing_state(path)),
                }
            }
            attribute
        };
        Self { outer: self.outer.iter().map(complete).collect(), inner: self.inner.clone() }
    }
}

/// The type in `State<_>`, if all such arguments have the same.
fn only_state(arguments: &Arguments) -> Option<&Type> {
    let states = arguments.rest().filter(|argument| types::name(&argument.ty).is_some_and(|name| name == "State"));
    let mut states = states.filter_map(|argument| types::type_arguments(&argument.ty).first().copied());
    let first = states.next()?;
    states.all(|other| types::shown(other) == types::shown(first)).then_some(first)
}

fn missing_state(debug_handler: &Path) -> String {
    let shown = debug_handler.to_token_stream().to_string().replace(' ', "");
    format!(
        "`#[{shown}]` must know the state that holds the `Idempotency`; use `#[{shown}(state = AppState)]` with your state's type"
    )
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
