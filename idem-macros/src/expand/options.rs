//! The options as they are written: names known, values of the right form, each at most once. Whether the values make
//! sense is for `settings` to say.

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::{Expr, Ident, Lit, Path, Token, Type, token};

use super::errors::Errors;
use super::nearest::nearest;
use super::tokens;

/// Every option, with an example of its use.
const KNOWN: &[(&str, &str)] = &[
    ("scope", "scope = tenant.id"),
    ("ttl", "ttl = \"24h\""),
    ("key", "key = header"),
    ("in_flight", "in_flight = \"wait 2s\""),
    ("failures", "failures = \"replay\""),
    ("lease", "lease = \"60s\""),
    ("isolation", "isolation = \"serializable\""),
    ("fingerprint", "fingerprint = order.total"),
    ("state", "state = AppState"),
    ("idempotency", "idempotency = state.idempotency"),
    ("allow", "allow(pool)"),
    ("crate", "crate = ::idem_runtime"),
];

/// An option with the name it was written with, for errors that stand on the name.
pub(super) struct Written<T> {
    pub(super) name: Ident,
    pub(super) value: T,
}

#[derive(Default)]
pub(super) struct Options {
    pub(super) scope: Option<Written<Expr>>,
    pub(super) ttl: Option<Written<Expr>>,
    pub(super) key: Option<Written<Expr>>,
    pub(super) in_flight: Option<Written<Expr>>,
    pub(super) failures: Option<Written<Expr>>,
    pub(super) lease: Option<Written<Expr>>,
    pub(super) isolation: Option<Written<Expr>>,
    pub(super) fingerprint: Option<Written<Expr>>,
    pub(super) state: Option<Written<Type>>,
    pub(super) idempotency: Option<Written<Expr>>,
    pub(super) allow_pool: Option<Ident>,
    pub(super) allow_unused_tx: Option<Ident>,
    pub(super) runtime: Option<Written<Path>>,
    /// The names of all options that were there, read or not: what could not be read is not missing too.
    mentioned: Vec<String>,
}

impl Options {
    /// Reads all options, reporting each mistake and going on behind it.
    pub(super) fn parse(attribute: TokenStream, errors: &Errors) -> Self {
        let mut options = Self::default();
        let parser = |input: ParseStream<'_>| {
            while !input.is_empty() {
                if let Err(error) = options.parse_option(input, errors) {
                    errors.push(error);
                    skip_option(input);
                }
            }
            Ok(())
        };
        if let Err(error) = parser.parse2(attribute) {
            errors.push(error);
        }
        options
    }

    /// Whether an option of this name was written, even if it could not be read.
    pub(super) fn mentions(&self, name: &str) -> bool {
        self.mentioned.iter().any(|mentioned| mentioned == name)
    }

    fn parse_option(&mut self, input: ParseStream<'_>, errors: &Errors) -> syn::Result<()> {
        if !input.peek(Ident::peek_any) {
            return Err(input.error(format_args!("expected an option; use {}", listed())));
        }
        let name = input.call(Ident::parse_any)?;
        let text = name.unraw().to_string();
        let Some((_, example)) = KNOWN.iter().find(|(known, _)| *known == text) else {
            return Err(syn::Error::new(name.span(), unknown(&text)));
        };
        self.mentioned.push(text.clone());
        if text == "allow" {
            self.parse_allow(input, &name, example, errors)?;
        } else {
            parse_equals(input, &name, example)?;
            self.parse_value(input, name, &text, errors)?;
        }
        let at_end = input.is_empty() || input.parse::<Option<Token![,]>>()?.is_some();
        if at_end {
            return Ok(());
        }
        let error = input.error("expected `,` before the next option");
        if !starts_option(input) {
            return Err(error);
        }
        errors.push(error);
        Ok(())
    }

    fn parse_value(&mut self, input: ParseStream<'_>, name: Ident, text: &str, errors: &Errors) -> syn::Result<()> {
        let slot = match text {
            "state" => {
                let value =
                    input.parse().map_err(|error: syn::Error| must_be("state", "a type", "AppState", &error))?;
                set(&mut self.state, name, value, errors);
                return Ok(());
            }
            "crate" => {
                let value = input.call(Path::parse_mod_style);
                let value = value.map_err(|error| must_be("crate", "a path", "::idem_runtime", &error))?;
                set(&mut self.runtime, name, value, errors);
                return Ok(());
            }
            "scope" => &mut self.scope,
            "ttl" => &mut self.ttl,
            "key" => &mut self.key,
            "in_flight" => &mut self.in_flight,
            "failures" => &mut self.failures,
            "lease" => &mut self.lease,
            "isolation" => &mut self.isolation,
            "idempotency" => &mut self.idempotency,
            _ => &mut self.fingerprint,
        };
        let value = if TEXTS.contains(&text) && !input.peek(Lit) && !input.peek(token::Group) {
            // Not an expression, but the words that should stand in quotes.
            Expr::Verbatim(words(input)?)
        } else {
            input.parse()?
        };
        set(slot, name, value, errors);
        Ok(())
    }

    fn parse_allow(&mut self, input: ParseStream<'_>, name: &Ident, example: &str, errors: &Errors) -> syn::Result<()> {
        if !input.peek(token::Paren) {
            let message = format_args!("option `{name}` must name what it allows; use `{example}`");
            return Err(syn::Error::new(name.span(), message));
        }
        let content;
        syn::parenthesized!(content in input);
        if content.is_empty() {
            return Err(syn::Error::new(name.span(), not_allowed("nothing")));
        }
        let allowed: TokenStream = content.parse()?;
        for allowed in tokens::split(allowed) {
            let word = syn::parse2::<Ident>(allowed.clone()).ok();
            let slot = match word.as_ref().map(ToString::to_string).as_deref() {
                Some("pool") => &mut self.allow_pool,
                Some("unused_tx") => &mut self.allow_unused_tx,
                _ => {
                    // Whatever it was meant to allow is not reported too.
                    self.mentioned.extend(["pool", "unused_tx"].map(|known| format!("allow({known})")));
                    errors.beside(&allowed, not_allowed(&format!("`{allowed}`")));
                    continue;
                }
            };
            if slot.is_some() {
                errors.beside(&allowed, format_args!("`{allowed}` must be allowed once; remove one of the two"));
            }
            *slot = word;
        }
        Ok(())
    }

    /// Whether something is allowed, or might have been meant to be.
    pub(super) fn allows(&self, what: &str) -> bool {
        let slot = if what == "pool" { &self.allow_pool } else { &self.allow_unused_tx };
        slot.is_some() || self.mentions(&format!("allow({what})"))
    }
}

/// Options whose value is a text.
const TEXTS: &[&str] = &["ttl", "in_flight", "failures", "lease", "isolation"];

/// All tokens up to the next comma.
fn words(input: ParseStream<'_>) -> syn::Result<TokenStream> {
    let mut words = TokenStream::new();
    while !input.is_empty() && !input.peek(Token![,]) {
        words.extend([input.parse::<TokenTree>()?]);
    }
    Ok(words)
}

fn not_allowed(what: &str) -> String {
    format!("option `allow` must be `allow(pool)` or `allow(unused_tx)`: {what} cannot be allowed")
}

fn must_be(option: &str, what: &str, example: &str, error: &syn::Error) -> syn::Error {
    syn::Error::new(error.span(), format_args!("option `{option}` must be {what}; use `{option} = {example}`"))
}

fn set<T>(slot: &mut Option<Written<T>>, name: Ident, value: T, errors: &Errors) {
    if slot.is_some() {
        errors.beside(&name, format_args!("option `{name}` must be given once; remove one of the two"));
    } else {
        *slot = Some(Written { name, value });
    }
}

fn parse_equals(input: ParseStream<'_>, name: &Ident, example: &str) -> syn::Result<()> {
    if input.peek(token::Paren) {
        return Err(syn::Error::new(
            name.span(),
            format_args!("option `{name}` must be written with `=`; use `{example}`"),
        ));
    }
    if !input.peek(Token![=]) {
        return Err(syn::Error::new(name.span(), format_args!("option `{name}` must have a value; use `{example}`")));
    }
    let equals: Token![=] = input.parse()?;
    if input.is_empty() || input.peek(Token![,]) {
        let tokens = [name.to_token_stream(), equals.to_token_stream()];
        let tokens: TokenStream = tokens.into_iter().collect();
        return Err(syn::Error::new_spanned(
            tokens,
            format_args!("option `{name}` must have a value; use `{example}`"),
        ));
    }
    Ok(())
}

fn unknown(written: &str) -> String {
    match nearest(written, KNOWN.iter().map(|(known, _)| *known)) {
        Some(known) => format!("unknown option `{written}`; use `{known}`"),
        None => format!("unknown option `{written}`; use one of {}", listed()),
    }
}

fn listed() -> String {
    let names: Vec<String> = KNOWN.iter().map(|(known, _)| format!("`{known}`")).collect();
    names.join(", ")
}

fn starts_option(input: ParseStream<'_>) -> bool {
    let follows = input.peek2(Token![=]) || input.peek2(token::Paren) || input.peek2(Token![,]);
    input.peek(Ident::peek_any) && follows
}

/// Goes behind the next comma that is followed by another option.
fn skip_option(input: ParseStream<'_>) {
    while !input.is_empty() {
        let Ok(token) = input.parse::<TokenTree>() else { return };
        let is_comma = matches!(&token, TokenTree::Punct(punct) if punct.as_char() == ',');
        if is_comma && starts_option(input) {
            return;
        }
    }
}
