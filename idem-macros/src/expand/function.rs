//! The annotated function: its signature parsed, its body left as tokens, so that a half-typed body still expands to
//! something an editor can complete in.

use proc_macro2::{Group, TokenStream, TokenTree};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::{Attribute, Ident, Safety, Signature, Token, Visibility, token};

use super::errors::Errors;

#[derive(Clone)]
pub(super) struct Function {
    pub(super) attributes: Vec<Attribute>,
    pub(super) visibility: Visibility,
    pub(super) signature: Signature,
    /// In its braces.
    pub(super) body: Group,
}

impl Function {
    /// `None` if the item is no function with a body, which is reported.
    pub(super) fn parse(item: TokenStream, errors: &Errors) -> Option<Self> {
        match syn::parse2(item) {
            Ok(function) => Some(function),
            Err(error) => {
                errors.push(error);
                None
            }
        }
    }

    pub(super) fn name(&self) -> String {
        self.signature.ident.unraw().to_string()
    }

    pub(super) fn has_receiver(&self) -> bool {
        self.signature.receiver().is_some()
    }
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        let visibility = input.parse()?;
        reject_other_items(input)?;
        let signature: Signature = input.parse()?;
        if input.peek(Token![;]) {
            let message =
                "`#[idempotent]` must be on a function with a body; put it on a free function that the method calls";
            return Err(syn::Error::new(signature.ident.span(), message));
        }
        if !input.peek(token::Brace) {
            return Err(input.error("expected the body of the function"));
        }
        let TokenTree::Group(body) = input.parse()? else {
            return Err(input.error("expected the body of the function"));
        };
        let rest: TokenStream = input.parse()?;
        if !rest.is_empty() {
            return Err(syn::Error::new_spanned(rest, "unexpected tokens after the function"));
        }
        Ok(Self { attributes, visibility, signature, body })
    }
}

fn reject_other_items(input: ParseStream<'_>) -> syn::Result<()> {
    let ahead = input.fork();
    let Ok(word) = ahead.call(Ident::parse_any) else {
        return Err(input.error("`#[idempotent]` must be on an `async fn`"));
    };
    let is_constant = word == "const"
        && !(ahead.peek(Token![async])
            || ahead.peek(Token![unsafe])
            || ahead.peek(Token![extern])
            || ahead.peek(Token![fn]));
    let others = ["struct", "enum", "union", "trait", "impl", "mod", "use", "static", "type", "macro_rules"];
    if is_constant || others.iter().any(|other| word == other) {
        let article = if word == "enum" || word == "impl" { "an" } else { "a" };
        let message =
            format!("`#[idempotent]` must be on an `async fn`, not on {article} `{word}`; put it on each handler");
        return Err(syn::Error::new(word.span(), message));
    }
    Ok(())
}

/// Removes from the signature what the compiler would reject a second time.
pub(super) fn make_acceptable(signature: &mut Signature) {
    signature.constness = None;
    signature.safety = Safety::Default;
    signature.abi = None;
    signature.variadic = None;
    signature.asyncness = Some(signature.asyncness.unwrap_or_default());
}

/// The function as it was written, with the given attributes.
pub(super) fn written(attributes: &[Attribute], signature: &Signature, body: &TokenStream) -> TokenStream {
    let mut tokens = TokenStream::new();
    for attribute in attributes {
        attribute.to_tokens(&mut tokens);
    }
    signature.to_tokens(&mut tokens);
    body.to_tokens(&mut tokens);
    tokens
}
