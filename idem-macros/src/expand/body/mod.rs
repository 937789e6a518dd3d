//! Looks for what would tear the transaction or the parts of an operation apart, in the tokens of the body. What tokens
//! cannot show (a helper that commits, a repository with a pool of its own) the runtime notices when the function ends.

mod bindings;
mod commands;
mod parts;
mod pools;
mod statements;

use std::collections::HashSet;

use proc_macro2::{Group, TokenStream, TokenTree};

use super::arguments::{Arguments, Unit};
use super::errors::Errors;
use super::expression;
use super::tokens;
use bindings::Bindings;
#[cfg(test)]
pub(super) use commands::transaction_command;

/// What the attribute allows.
pub(super) struct Allowed {
    pub(super) pool: bool,
    pub(super) unused_tx: bool,
}

/// What the body uses that other checks need to know.
pub(super) struct Seen {
    /// The names from which a pool was reached, reported unless pools are allowed.
    pub(super) pools: HashSet<String>,
    /// The compiler would report one of the mistakes again, in its own words.
    pub(super) is_reported_again: bool,
}

/// Reports every mistake.
pub(super) fn check(body: &Group, arguments: &Arguments, allowed: &Allowed, errors: &Errors) -> Seen {
    let bindings = Bindings::read(&body.stream(), arguments);
    if !allowed.unused_tx {
        check_use(body, arguments, errors);
    }
    statements::check(&body.stream(), &bindings, errors);
    let is_reported_again = parts::check(&body.stream(), &bindings, errors);
    let pools = pools::check(&body.stream(), &bindings, arguments, allowed.pool, errors);
    Seen { pools, is_reported_again }
}

/// A function that never names its `tx` writes nothing, or writes it elsewhere.
fn check_use(body: &Group, arguments: &Arguments, errors: &Errors) {
    let Some(pattern) = arguments.unit_pattern() else { return };
    let is_named = arguments.unit_name().is_some_and(|name| expression::names(body.stream()).contains(&name));
    if is_named || body.stream().is_empty() || is_unfinished(&body.stream()) {
        return;
    }
    let message = match arguments.unit {
        Unit::Transaction => {
            "nothing here is written through `tx`; use it for every statement, or `allow(unused_tx)` in the attribute if this function only reads"
        }
        Unit::Operation => {
            "nothing here goes through `op`; use `op.transaction(…)` and `op.step(…)`, or `allow(unused_tx)` in the attribute if this function only reads"
        }
    };
    errors.beside(pattern, message);
}

/// Whether somebody is still writing it.
fn is_unfinished(body: &TokenStream) -> bool {
    let trees = tokens::trees(body);
    trees.windows(2).any(|pair| {
        matches!(pair, [TokenTree::Ident(name), TokenTree::Punct(bang)]
            if bang.as_char() == '!' && (name == "todo" || name == "unimplemented"))
    })
}
