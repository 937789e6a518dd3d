//! Looks for what would tear the transaction or the parts of an operation apart, in the tokens of the body. What tokens
//! cannot show (a helper that commits, a repository with a pool of its own) the runtime notices when the function ends.

mod bindings;
mod commands;
mod parts;
mod pools;
mod statements;

use std::collections::HashSet;

use proc_macro2::{Group, TokenStream, TokenTree};
use syn::ext::IdentExt;

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
    /// It has an `await`.
    pub(super) awaits: bool,
    /// The compiler would report one of the mistakes again, in its own words.
    pub(super) is_reported_again: bool,
}

/// Reports every mistake.
///
/// One pass finds whether there is anything to look at: most bodies have nothing that looks like a pool, a command or a part,
/// and reading tokens is what an attribute takes its time for.
pub(super) fn check(body: &Group, arguments: &Arguments, allowed: &Allowed, errors: &Errors) -> Seen {
    let body = body.stream();
    let glance = Glance::at(&body);
    if !allowed.unused_tx {
        check_use(&glance, arguments, errors);
    }
    let has_parts = arguments.unit == Unit::Operation;
    let mut seen = Seen { pools: HashSet::new(), awaits: glance.names.contains("await"), is_reported_again: false };
    if !(has_parts || glance.has_commands || glance.has_pools) {
        return seen;
    }
    let bindings = Bindings::read(&body, arguments);
    if glance.has_commands {
        statements::check(&body, &bindings, errors);
    }
    if has_parts {
        seen.is_reported_again = parts::check(&body, &bindings, errors);
    }
    if glance.has_pools {
        seen.pools = pools::check(&body, &bindings, arguments, allowed.pool, errors);
    }
    seen
}

/// What occurs in a body, wherever it stands.
#[derive(Default)]
struct Glance {
    names: HashSet<String>,
    is_empty: bool,
    /// Somebody is still writing it.
    is_unfinished: bool,
    /// A literal or a name that is or could be made into a command.
    has_commands: bool,
    /// A name that is taken for a pool.
    has_pools: bool,
}

impl Glance {
    fn at(body: &TokenStream) -> Self {
        let mut glance = Self { is_empty: body.is_empty(), ..Self::default() };
        glance.look(body);
        glance
    }

    fn look(&mut self, tokens: &TokenStream) {
        let mut previous = None;
        for tree in tokens.clone() {
            match &tree {
                TokenTree::Ident(name) => {
                    let name = name.unraw().to_string();
                    self.has_pools |= pools::is_named_like_a_pool(&name);
                    self.has_commands |= name == "concat" || statements::command_named(&name).is_some();
                    previous = Some(name.clone());
                    self.names.insert(name);
                    continue;
                }
                TokenTree::Group(group) => self.look(&group.stream()),
                TokenTree::Literal(literal) => {
                    if let Some(text) = tokens::text(literal) {
                        self.names.extend(expression::format_arguments(&text));
                        // The halves of `"COM" + "MIT"` are words in capitals.
                        self.has_commands |= statements::is_a_piece(&text) || statements::may_have_a_command(&text);
                    }
                }
                TokenTree::Punct(mark) => {
                    let is_macro = mark.as_char() == '!';
                    self.is_unfinished |=
                        is_macro && previous.as_deref().is_some_and(|name| name == "todo" || name == "unimplemented");
                }
            }
            previous = None;
        }
    }
}

/// A function that never names its `tx` writes nothing, or writes it elsewhere.
fn check_use(body: &Glance, arguments: &Arguments, errors: &Errors) {
    let Some(pattern) = arguments.unit_pattern() else { return };
    let is_named = arguments.unit_name().is_some_and(|name| body.names.contains(&name));
    if is_named || body.is_empty || body.is_unfinished {
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
