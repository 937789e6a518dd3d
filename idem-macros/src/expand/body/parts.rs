//! The parts of an operation are found again by their names, in order: each name once, and none inside of another part.

use std::collections::HashSet;

use proc_macro2::{Delimiter, Ident, TokenStream, TokenTree};
use syn::ext::IdentExt;

use super::super::errors::Errors;
use super::super::tokens::{called, is_punct, split, string_literal, trees, word};
use super::bindings::Bindings;

/// Whether there is a mistake that the compiler would report again: a part borrows the operation until it ends.
pub(super) fn check(body: &TokenStream, bindings: &Bindings, errors: &Errors) -> bool {
    let mut walk = Walk { bindings, names: HashSet::new(), is_nested: false, errors };
    if !bindings.operations.is_empty() {
        walk.tokens(body, Place::default());
    }
    walk.is_nested
}

/// Where a part stands.
#[derive(Clone, Copy, Default)]
struct Place {
    /// In a loop or a closure, which may run more than once.
    repeated: Option<&'static str>,
    inside_of_a_part: bool,
}

struct Walk<'a> {
    bindings: &'a Bindings,
    names: HashSet<String>,
    is_nested: bool,
    errors: &'a Errors,
}

impl Walk<'_> {
    fn tokens(&mut self, tokens: &TokenStream, place: Place) {
        let trees = trees(tokens);
        // The next block belongs to a loop.
        let mut head_of_loop = false;
        let mut closure = false;
        let mut position = 0;
        while position < trees.len() {
            let repeated = if closure { Some("closure") } else { place.repeated };
            let here = Place { repeated, ..place };
            match &trees[position] {
                TokenTree::Ident(keyword) if keyword == "for" && is_punct(trees.get(position + 1), '<') => {}
                TokenTree::Ident(keyword) if keyword == "for" || keyword == "while" || keyword == "loop" => {
                    head_of_loop = true;
                }
                TokenTree::Ident(method) => {
                    if let Some(arguments) = self.part(method, &trees, position) {
                        self.check_part(method, &arguments, here);
                        for argument in arguments.iter().skip(1) {
                            // The closure of a part runs once; a loop inside of it is its own.
                            self.tokens(&body_of(argument), Place { inside_of_a_part: true, repeated: None });
                        }
                        position += 1;
                        while !matches!(&trees[position], TokenTree::Group(_)) {
                            position += 1;
                        }
                    } else if method == "reconcile"
                        && is_punct(position.checked_sub(1).and_then(|at| trees.get(at)), '.')
                    {
                        // Its closure belongs to the step before it.
                        if let Some(TokenTree::Group(group)) = trees.get(position + 1) {
                            self.tokens(&group.stream(), Place { inside_of_a_part: true, repeated: None });
                            position += 1;
                        }
                    }
                }
                TokenTree::Group(group) => {
                    let is_block = group.delimiter() == Delimiter::Brace;
                    let repeated = if head_of_loop && is_block { Some("loop") } else { here.repeated };
                    head_of_loop &= !is_block;
                    self.tokens(&group.stream(), Place { repeated, ..here });
                }
                TokenTree::Punct(mark) => match mark.as_char() {
                    '|' if !closure && starts_closure(&trees, position) => {
                        closure = true;
                        position = end_of_parameters(&trees, position);
                    }
                    ',' | ';' => closure = false,
                    _ => {}
                },
                TokenTree::Literal(_) => {}
            }
            position += 1;
        }
    }

    /// The arguments, if this is a part: `op.step(…)` or `op.transaction(…)`.
    fn part(&self, method: &Ident, trees: &[TokenTree], position: usize) -> Option<Vec<TokenStream>> {
        let is_part = method == "step" || method == "transaction";
        let before = |distance: usize| position.checked_sub(distance).and_then(|at| trees.get(at));
        let receiver = word(before(2))?;
        let is_operation = is_punct(before(1), '.') && self.bindings.operations.contains(&receiver);
        if is_part && is_operation { called(&trees[position + 1..]) } else { None }
    }

    fn check_part(&mut self, method: &Ident, arguments: &[TokenStream], place: Place) {
        let Some(written) = arguments.first() else { return };
        if place.inside_of_a_part {
            let message = "a step must not be inside of another, because each is recorded as a whole; move it before or behind the other";
            self.errors.beside(method, message);
            self.is_nested = true;
            return;
        }
        if let Some((name, literal)) = string_literal(written) {
            self.check_name(&name, &literal, method, place);
        } else if let Some([name, index]) = pair(written) {
            self.check_indexed(&name, &index, method, place);
        } else {
            let message = format!(
                "the name of a step must be a string literal, because a retry finds the step by it; use `{method}(\"charge\", …)`, or `{method}((\"charge\", index), …)` in a loop"
            );
            self.errors.beside(written, message);
        }
    }

    fn check_name(&mut self, name: &str, literal: &TokenStream, method: &Ident, place: Place) {
        if name.is_empty() {
            self.errors
                .beside(literal, "the name of a step must not be empty; use a word for what it does, such as `charge`");
        } else if let Some(what) = place.repeated {
            let message = format!(
                "a step in a {what} must have a name for each round, because a retry finds the step by it; use `{method}((\"{name}\", index), …)`, or move the {what} into one step"
            );
            self.errors.beside(literal, message);
        } else if !self.names.insert(name.to_owned()) {
            let message = format!(
                "the step `{name}` must have a name of its own, because a retry finds the step by it; use another name"
            );
            self.errors.beside(literal, message);
        }
    }

    fn check_indexed(&mut self, name: &TokenStream, index: &TokenStream, method: &Ident, place: Place) {
        let Some((text, literal)) = string_literal(name) else {
            let message = format!(
                "the first part of a step's name must be a string literal, because a retry finds the step by it; use `{method}((\"charge\", index), …)`"
            );
            self.errors.beside(name, message);
            return;
        };
        if text.is_empty() {
            self.errors
                .beside(literal, "the name of a step must not be empty; use a word for what it does, such as `charge`");
        } else if place.repeated.is_some() && is_literal(index) {
            let message = "the index in a step's name must differ from round to round, because a retry finds the step by it; use the number or the identifier of the round";
            self.errors.beside(index, message);
        }
    }
}

/// The two elements of a tuple.
fn pair(tokens: &TokenStream) -> Option<[TokenStream; 2]> {
    match trees(tokens).as_slice() {
        [TokenTree::Group(group)] if group.delimiter() == Delimiter::None => pair(&group.stream()),
        [TokenTree::Group(group)] if group.delimiter() == Delimiter::Parenthesis => {
            split(group.stream()).try_into().ok()
        }
        _ => None,
    }
}

fn is_literal(tokens: &TokenStream) -> bool {
    matches!(trees(tokens).as_slice(), [TokenTree::Literal(_)])
}

/// What a closure runs; all of it if it is none.
fn body_of(argument: &TokenStream) -> TokenStream {
    let trees = trees(argument);
    let start = trees.iter().position(|tree| is_punct(Some(tree), '|'));
    match start {
        Some(start) if starts_closure(&trees, start) => {
            trees[(end_of_parameters(&trees, start) + 1).min(trees.len())..].iter().cloned().collect()
        }
        _ => argument.clone(),
    }
}

/// Whether the bar begins a closure and is no operator and no pattern.
fn starts_closure(trees: &[TokenTree], position: usize) -> bool {
    match position.checked_sub(1).and_then(|before| trees.get(before)) {
        None => true,
        Some(TokenTree::Ident(word)) => {
            ["move", "async", "return", "else"].contains(&word.unraw().to_string().as_str())
        }
        Some(TokenTree::Punct(mark)) => {
            let is_arrow =
                mark.as_char() == '>' && is_punct(position.checked_sub(2).and_then(|before| trees.get(before)), '=');
            matches!(mark.as_char(), ',' | '=' | ';' | '(') || is_arrow
        }
        Some(TokenTree::Group(_) | TokenTree::Literal(_)) => false,
    }
}

/// The position of the bar that closes the parameters.
fn end_of_parameters(trees: &[TokenTree], start: usize) -> usize {
    let length = trees[start + 1..].iter().position(|tree| is_punct(Some(tree), '|'));
    length.map_or(start, |length| start + 1 + length)
}
