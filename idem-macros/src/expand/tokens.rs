//! Reading tokens that are not parsed: calls, their arguments, and the text of literals.

use proc_macro2::{Delimiter, Ident, Literal, TokenStream, TokenTree};
use quote::ToTokens;
use syn::Lit;
use syn::ext::IdentExt;

pub(super) fn trees(tokens: &TokenStream) -> Vec<TokenTree> {
    tokens.clone().into_iter().collect()
}

pub(super) fn is_punct(tree: Option<&TokenTree>, character: char) -> bool {
    matches!(tree, Some(TokenTree::Punct(punct)) if punct.as_char() == character)
}

/// The text of an identifier.
pub(super) fn word(tree: Option<&TokenTree>) -> Option<String> {
    match tree {
        Some(TokenTree::Ident(word)) => Some(word.unraw().to_string()),
        _ => None,
    }
}

/// The first identifier of this name, at any depth.
pub(super) fn find_ident(tokens: &TokenStream, name: &str) -> Option<Ident> {
    tokens.clone().into_iter().find_map(|tree| match tree {
        TokenTree::Ident(ident) => (ident == name).then_some(ident),
        TokenTree::Group(group) => find_ident(&group.stream(), name),
        TokenTree::Punct(_) | TokenTree::Literal(_) => None,
    })
}

/// Every identifier, at any depth.
pub(super) fn idents(tokens: &TokenStream) -> Vec<Ident> {
    let mut found = Vec::new();
    collect_idents(tokens, &mut found);
    found
}

fn collect_idents(tokens: &TokenStream, found: &mut Vec<Ident>) {
    for tree in tokens.clone() {
        match tree {
            TokenTree::Ident(ident) => found.push(ident),
            TokenTree::Group(group) => collect_idents(&group.stream(), found),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

/// Whether one of the names occurs, at any depth.
pub(super) fn mention(tokens: &TokenStream, is_meant: &dyn Fn(&str) -> bool) -> bool {
    idents(tokens).iter().any(|ident| is_meant(&ident.unraw().to_string()))
}

/// The arguments of a call that starts here, behind a turbofish if there is one.
pub(super) fn called(after: &[TokenTree]) -> Option<Vec<TokenStream>> {
    match after.get(turbofish(after)) {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis => Some(split(group.stream())),
        _ => None,
    }
}

pub(super) fn called_as_macro(after: &[TokenTree]) -> Option<Vec<TokenStream>> {
    match after {
        [TokenTree::Punct(bang), TokenTree::Group(group), ..] if bang.as_char() == '!' => Some(split(group.stream())),
        _ => None,
    }
}

/// How many tokens `::<…>` takes here.
pub(super) fn turbofish(after: &[TokenTree]) -> usize {
    let is = |position: usize, character: char| is_punct(after.get(position), character);
    if !(is(0, ':') && is(1, ':') && is(2, '<')) {
        return 0;
    }
    let mut depth = 0_usize;
    for position in 2..after.len() {
        if is(position, '<') {
            depth += 1;
        } else if is(position, '>') && !is(position - 1, '-') {
            depth -= 1;
        }
        if depth == 0 {
            return position + 1;
        }
    }
    0
}

/// Splits at commas that are in no group.
pub(super) fn split(tokens: TokenStream) -> Vec<TokenStream> {
    let mut parts = vec![TokenStream::new()];
    for token in tokens {
        let is_comma = is_punct(Some(&token), ',');
        match parts.last_mut() {
            Some(part) if !is_comma => part.extend([token]),
            _ => parts.push(TokenStream::new()),
        }
    }
    if parts.last().is_some_and(TokenStream::is_empty) {
        parts.pop();
    }
    parts
}

/// The value of a string literal, and the literal, through the invisible groups of macros.
pub(super) fn string_literal(tokens: &TokenStream) -> Option<(String, TokenStream)> {
    match trees(tokens).as_slice() {
        [TokenTree::Literal(literal)] => Some((text(literal)?, literal.to_token_stream())),
        [TokenTree::Group(group)] if group.delimiter() == Delimiter::None => string_literal(&group.stream()),
        _ => None,
    }
}

pub(super) fn text(literal: &Literal) -> Option<String> {
    match Lit::new(literal.clone()) {
        Lit::Str(text) => Some(text.value()),
        _ => None,
    }
}

/// Where the expression begins that ends before `end`: behind the last token that cannot be inside of a method chain.
pub(super) fn start_of_chain(trees: &[TokenTree], end: usize) -> usize {
    let mut start = end;
    while start > 0 {
        let belongs = match &trees[start - 1] {
            TokenTree::Punct(punct) => match punct.as_char() {
                '.' | ':' | '?' | '&' | '*' | '!' | '<' => true,
                '>' => !is_punct(start.checked_sub(2).and_then(|before| trees.get(before)), '='),
                '\'' => true,
                _ => is_inside_turbofish(trees, start - 1),
            },
            TokenTree::Ident(ident) => !["let", "return", "match", "if", "in", "move", "async", "while", "else"]
                .iter()
                .any(|word| ident == word),
            TokenTree::Group(group) => group.delimiter() != Delimiter::Brace,
            TokenTree::Literal(_) => true,
        };
        if !belongs {
            break;
        }
        start -= 1;
    }
    start
}

/// A comma or an equals sign between `<` and `>` of the same call.
fn is_inside_turbofish(trees: &[TokenTree], position: usize) -> bool {
    if !is_punct(trees.get(position), ',') {
        return false;
    }
    let before = (0..position).rev().take_while(|before| !is_punct(trees.get(*before), ';'));
    let mut depth = 0_i32;
    for before in before {
        if is_punct(trees.get(before), '>') && !is_punct(before.checked_sub(1).and_then(|at| trees.get(at)), '=') {
            depth -= 1;
        } else if is_punct(trees.get(before), '<') {
            depth += 1;
            if depth > 0 {
                return is_punct(before.checked_sub(1).and_then(|at| trees.get(at)), ':');
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::*;

    #[test]
    fn a_turbofish_is_passed_over() {
        let after = |tokens: TokenStream| trees(&tokens);
        assert!(called(&after(quote!(::<_, Order>("SELECT 1")))).is_some());
        assert!(called(&after(quote!(::<Vec<Vec<fn() -> u8>>>("SELECT 1")))).is_some());
        assert!(called(&after(quote!(::<Vec<u8>))).is_none());
        assert!(called(&after(quote!(: "SELECT 1"))).is_none());
    }

    #[test]
    fn a_chain_begins_where_its_expression_does() {
        for (tokens, chain) in [
            (quote!(let a = q("x").bind(1)), quote!(q("x").bind(1))),
            (quote!(a; sqlx::query_as::<_, Order>("x")), quote!(sqlx::query_as::<_, Order>("x"))),
            (quote!(a, state.pool), quote!(state.pool)),
            (quote!(return (&mut *tx)), quote!((&mut *tx))),
            (quote!(x => pool), quote!(pool)),
            (quote!({ a } pool), quote!(pool)),
        ] {
            let trees = trees(&tokens);
            let found: TokenStream = trees[start_of_chain(&trees, trees.len())..].iter().cloned().collect();
            assert_eq!(found.to_string(), chain.to_string());
        }
    }
}
