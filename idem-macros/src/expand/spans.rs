//! Where the compiler's errors about generated code stand: on the user's tokens that they are about. Only the place of
//! a token is changed, never what its name means.

use proc_macro2::{Delimiter, Group, Span, TokenStream, TokenTree};
use quote::ToTokens;

/// The ends of some tokens of the user. What is generated from the one to the other is underlined from end to end.
#[derive(Clone, Copy)]
pub(super) struct Place {
    first: Span,
    last: Span,
}

impl Place {
    pub(super) fn of(tokens: &impl ToTokens) -> Self {
        let mut spans = tokens.to_token_stream().into_iter().map(|token| token.span());
        let first = spans.next().unwrap_or_else(Span::call_site);
        Self { first, last: spans.last().unwrap_or(first) }
    }

    /// The span of the first token, as it is.
    pub(super) fn first(self) -> Span {
        self.first
    }

    /// Puts generated tokens at the beginning.
    pub(super) fn begin(self, tokens: TokenStream) -> TokenStream {
        relocated(tokens, self.first)
    }

    /// Brackets at the beginning around tokens that stay where they are.
    pub(super) fn around(self, delimiter: Delimiter, inside: TokenStream) -> TokenStream {
        let mut group = Group::new(delimiter, inside);
        group.set_span(Span::call_site().located_at(self.first));
        TokenTree::Group(group).into()
    }

    /// Puts generated tokens at the end.
    pub(super) fn end(self, tokens: TokenStream) -> TokenStream {
        relocated(tokens, self.last)
    }
}

fn relocated(tokens: TokenStream, place: Span) -> TokenStream {
    let tokens = tokens.into_iter().map(|token| match token {
        TokenTree::Group(group) => {
            let mut relocated = Group::new(group.delimiter(), relocated(group.stream(), place));
            relocated.set_span(group.span().located_at(place));
            TokenTree::Group(relocated)
        }
        mut other => {
            other.set_span(other.span().located_at(place));
            other
        }
    });
    tokens.collect()
}
