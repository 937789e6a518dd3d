//! A pool in the body is a way past the transaction. Which names are taken for pools stands in the attribute's docs.

use std::collections::HashSet;

use proc_macro2::{Delimiter, Ident, TokenStream, TokenTree};
use syn::ext::IdentExt;

use super::super::arguments::{Arguments, Unit};
use super::super::errors::Errors;
use super::super::tokens::{called, is_punct, mention, start_of_chain, trees, word};
use super::bindings::Bindings;
use super::statements::is_query;

/// Names that stand for a database only where a statement is run on them.
const DATABASES: &[&str] = &["db", "database", "conn", "connection", "pg", "postgres", "postgresql"];

/// Pools of something else.
const OTHER_POOLS: &[&str] = &[
    "amqp", "browser", "buffer", "cache", "http", "lapin", "mail", "memory", "object", "rabbit", "rayon", "redis",
    "smtp", "string", "task", "thread", "worker",
];

/// Methods that run a statement on their argument.
const RUN_ON_ARGUMENT: &[&str] =
    &["execute", "execute_many", "fetch", "fetch_all", "fetch_many", "fetch_one", "fetch_optional"];

/// The same of sea-orm, whose other arguments are seldom references.
const SAVE_ON_ARGUMENT: &[&str] = &["delete", "exec", "exec_with_returning", "insert", "save", "update"];

/// Methods that take a connection or a transaction from their receiver.
const TAKE_FROM_RECEIVER: &[&str] = &["acquire", "begin", "begin_with", "try_acquire", "try_begin", "try_begin_with"];

/// Calls behind a pool's name after which it is still the pool.
const TRANSPARENT: &[&str] = &[
    "as_mut",
    "as_ref",
    "borrow",
    "clone",
    "deref",
    "expect",
    "get",
    "get_or_init",
    "inner",
    "to_owned",
    "unwrap",
    "read",
    "write",
    "lock",
];

/// Whether the name is taken for a pool wherever it is given away.
pub(in super::super) fn is_surely_named_like_a_pool(name: &str) -> bool {
    let name = name.to_lowercase();
    let name = name.trim_matches('_');
    let kind = name.strip_suffix("_pool").or_else(|| name.strip_prefix("pool_")).or_else(|| name.strip_suffix("pool"));
    kind.is_some_and(|kind| !OTHER_POOLS.iter().any(|other| kind.ends_with(other)))
        && (name.ends_with("_pool") || name.starts_with("pool_") || ["pool", "pgpool", "dbpool"].contains(&name))
}

/// Whether the name is taken for a pool where a statement is run on it.
pub(in super::super) fn is_named_like_a_pool(name: &str) -> bool {
    // Most names are none, and there are many.
    let has =
        |part: &str| name.as_bytes().windows(part.len()).any(|window| window.eq_ignore_ascii_case(part.as_bytes()));
    if !["pool", "db", "data", "conn", "pg", "postgres"].into_iter().any(has) {
        return false;
    }
    let lower = name.to_lowercase();
    let lower = lower.trim_matches('_');
    let is_database = DATABASES.iter().any(|database| {
        lower == *database
            || lower.strip_suffix(database).is_some_and(|rest| rest.ends_with('_'))
            || lower.strip_prefix(database).is_some_and(|rest| rest.starts_with('_'))
    });
    is_database || is_surely_named_like_a_pool(name)
}

/// Reports every pool that something is written to or could be. Gives the names from which they were reached.
pub(super) fn check(
    body: &TokenStream,
    bindings: &Bindings,
    arguments: &Arguments,
    allowed: bool,
    errors: &Errors,
) -> HashSet<String> {
    let reported = arguments.names_of_pools();
    let mut walk = Walk { bindings, reported, unit: arguments.unit, allowed, seen: HashSet::new(), errors };
    walk.tokens(body);
    walk.seen
}

/// Whether a value is a pool wherever it is given away, as far as its end tells, or only where a statement is run on it.
pub(super) fn ends_in_a_pool(value: &TokenStream, bindings: &Bindings) -> (bool, bool) {
    End::of(value).map_or((false, false), |end| (end.is_surely_pool(bindings), end.is_pool(bindings)))
}

/// Where a path such as `&state.pool` or `POOL.get().unwrap()` ends.
struct End {
    /// What it starts from, if that is a name.
    root: String,
    name: Ident,
    /// Without what stands before and behind it.
    path: TokenStream,
    is_reference: bool,
    /// A name alone, and no field of something.
    is_alone: bool,
}

impl End {
    fn of(tokens: &TokenStream) -> Option<Self> {
        let mut trees = trees(tokens);
        let prefix = trees.iter().take_while(|tree| {
            is_punct(Some(tree), '&') || is_punct(Some(tree), '*') || word(Some(tree)).is_some_and(|word| word == "mut")
        });
        let prefix = prefix.count();
        let is_reference = is_punct(trees.first(), '&');
        trees.drain(..prefix);
        if let [TokenTree::Group(group)] = trees.as_slice()
            && group.delimiter() != Delimiter::Brace
        {
            return Self::of(&group.stream()).map(|end| Self { is_reference: is_reference || end.is_reference, ..end });
        }
        while shorten(&mut trees) {}
        let name = match trees.as_slice() {
            [.., TokenTree::Ident(name)] => name.clone(),
            [.., TokenTree::Ident(name), TokenTree::Group(group)]
                if group.delimiter() == Delimiter::Parenthesis && group.stream().is_empty() =>
            {
                name.clone()
            }
            _ => return None,
        };
        let is_path = trees.iter().all(|tree| match tree {
            TokenTree::Ident(_) => true,
            TokenTree::Group(group) => group.delimiter() == Delimiter::Parenthesis,
            TokenTree::Punct(punct) => matches!(punct.as_char(), '.' | ':' | '?'),
            TokenTree::Literal(_) => true,
        });
        let root = match trees.first() {
            Some(TokenTree::Group(group)) => {
                let inside = group.stream().into_iter().find_map(|tree| match tree {
                    TokenTree::Ident(ident) if ident != "mut" => Some(ident.unraw().to_string()),
                    _ => None,
                });
                inside.unwrap_or_default()
            }
            first => word(first).unwrap_or_default(),
        };
        let is_alone = trees.len() == 1;
        is_path.then(|| Self { root, name, path: trees.into_iter().collect(), is_reference, is_alone })
    }

    fn text(&self) -> String {
        self.name.unraw().to_string()
    }

    /// Whether the name says so, or its `let`.
    fn is_pool(&self, bindings: &Bindings) -> bool {
        let is_elsewhere = bindings.transactions.contains(&self.root) || bindings.payloads.contains(&self.root);
        let is_named = if self.is_alone && bindings.others.contains(&self.root) {
            is_surely_named_like_a_pool(&self.text())
        } else {
            is_named_like_a_pool(&self.text())
        };
        let is_bound =
            self.is_alone && (bindings.pools.contains(&self.root) || bindings.databases.contains(&self.root));
        !is_elsewhere && (is_named || is_bound)
    }

    fn is_surely_pool(&self, bindings: &Bindings) -> bool {
        let name = self.text();
        // Nothing but a database is worth a static of that name.
        let is_static = !name.chars().any(char::is_lowercase);
        self.is_pool(bindings)
            && (is_static || is_surely_named_like_a_pool(&name) || self.is_alone && bindings.pools.contains(&self.root))
    }

    fn shown(&self) -> String {
        let text = self.path.to_string();
        text.split_whitespace().collect::<String>()
    }
}

/// Drops `?`, `.await` and calls that give the pool itself from the end.
fn shorten(trees: &mut Vec<TokenTree>) -> bool {
    let length = match trees.as_slice() {
        [.., TokenTree::Punct(punct)] if punct.as_char() == '?' => 1,
        [_, .., TokenTree::Punct(dot), TokenTree::Ident(word)] if dot.as_char() == '.' && word == "await" => 2,
        [_, .., TokenTree::Punct(dot), TokenTree::Ident(index)]
            if dot.as_char() == '.' && index.to_string().parse::<u8>().is_ok() =>
        {
            2
        }
        [_, .., TokenTree::Punct(dot), TokenTree::Literal(_)] if dot.as_char() == '.' => 2,
        [_, .., TokenTree::Punct(dot), TokenTree::Ident(method), TokenTree::Group(group)]
            if dot.as_char() == '.'
                && group.delimiter() == Delimiter::Parenthesis
                && TRANSPARENT.iter().any(|known| method == known) =>
        {
            3
        }
        _ => return false,
    };
    trees.truncate(trees.len() - length);
    !trees.is_empty()
}

struct Walk<'a> {
    bindings: &'a Bindings,
    /// Names of arguments whose types are reported.
    reported: HashSet<String>,
    unit: Unit,
    allowed: bool,
    seen: HashSet<String>,
    errors: &'a Errors,
}

impl Walk<'_> {
    fn tokens(&mut self, tokens: &TokenStream) {
        let trees = trees(tokens);
        for position in 0..trees.len() {
            match &trees[position] {
                TokenTree::Ident(name) => self.call(&name.unraw().to_string(), &trees, position),
                TokenTree::Group(group) => self.tokens(&group.stream()),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }

    /// A call of `name`, if it is one.
    fn call(&mut self, name: &str, trees: &[TokenTree], position: usize) {
        let after = &trees[position + 1..];
        let Some(arguments) = called(after) else { return };
        let before = |distance: usize| position.checked_sub(distance).and_then(|at| trees.get(at));
        let is_method = is_punct(before(1), '.');
        let is_path = is_punct(before(1), ':');
        let end = position.saturating_sub(1);
        let receiver = &trees[if is_method { start_of_chain(trees, end) } else { end }..end];
        if is_method && self.is_taken_from(name, receiver, &arguments) {
            return;
        }
        if is_path && (TAKE_FROM_RECEIVER.contains(&name) || RUN_ON_ARGUMENT.contains(&name)) {
            if let Some(end) = arguments.first().and_then(End::of).filter(|end| end.is_pool(self.bindings)) {
                self.report(&end);
            }
        } else if is_method && RUN_ON_ARGUMENT.contains(&name) {
            self.run_on_argument(receiver, &arguments);
        } else if is_method && SAVE_ON_ARGUMENT.contains(&name) && arguments.len() == 1 {
            let end = End::of(&arguments[0]).filter(|end| end.is_reference && end.is_pool(self.bindings));
            if let Some(end) = end {
                self.report(&end);
            }
        } else if !is_definition(before(1)) && !is_harmless(name) {
            self.given_away(&arguments);
        }
    }

    /// `state.db.begin()`, and `state.pool.execute("…")`.
    fn is_taken_from(&mut self, method: &str, receiver: &[TokenTree], arguments: &[TokenStream]) -> bool {
        let takes = TAKE_FROM_RECEIVER.contains(&method);
        let runs = RUN_ON_ARGUMENT.contains(&method) && !arguments.is_empty();
        let gets = method == "get" && arguments.is_empty();
        if !(takes || runs || gets) {
            return false;
        }
        let Some(end) = End::of(&receiver.iter().cloned().collect()) else { return false };
        let is_pool = if takes || runs && arguments.iter().any(|argument| self.is_statement(argument)) {
            end.is_pool(self.bindings)
        } else {
            // `POOL.get()` gives a static's pool, not a pool's connection.
            end.is_surely_pool(self.bindings) && (runs || end.text().chars().any(char::is_lowercase))
        };
        if is_pool {
            self.report(&end);
        }
        is_pool
    }

    fn is_statement(&self, argument: &TokenStream) -> bool {
        super::statements::texts(argument).iter().any(|(text, _)| super::statements::looks_like_sql(text))
            || mention(argument, &|name| is_query(name) || self.bindings.queries.contains(name))
    }

    /// `query.execute(&state.pool)`
    fn run_on_argument(&mut self, receiver: &[TokenTree], arguments: &[TokenStream]) {
        let [argument] = arguments else { return };
        let Some(end) = End::of(argument) else { return };
        let receiver: TokenStream = receiver.iter().cloned().collect();
        let runs_a_query =
            mention(&receiver, &|name| is_query(name) || name == "build" || self.bindings.queries.contains(name));
        let is_pool = if runs_a_query { end.is_pool(self.bindings) } else { end.is_surely_pool(self.bindings) };
        if is_pool {
            self.report(&end);
        }
    }

    /// A pool that a function gets may write to.
    fn given_away(&mut self, arguments: &[TokenStream]) {
        for argument in arguments {
            if let Some(end) = End::of(argument).filter(|end| end.is_surely_pool(self.bindings)) {
                self.report(&end);
            }
        }
    }

    fn report(&mut self, end: &End) {
        self.seen.insert(end.root.clone());
        if self.allowed || self.reported.contains(&end.root) {
            return;
        }
        let unit = match self.unit {
            Unit::Transaction => "`tx`",
            Unit::Operation => "`op.transaction(…)`",
        };
        let message = format!(
            "`{}` writes outside of the transaction; use {unit}, or `allow(pool)` in the attribute if this pool is for reading or for another database",
            end.shown()
        );
        self.errors.beside(&end.path, message);
    }
}

/// Whether this is no call but the head of a function.
fn is_definition(before: Option<&TokenTree>) -> bool {
    word(before).is_some_and(|word| word == "fn")
}

/// Calls that write nothing with what they get.
fn is_harmless(name: &str) -> bool {
    name.starts_with("bind") || ["drop", "Some", "Ok", "Err", "assert", "size", "ptr_eq"].contains(&name)
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::*;

    #[test]
    fn names_of_pools() {
        for name in ["pool", "POOL", "_pool", "pg_pool", "DB_POOL", "write_pool", "pool_of_orders", "pgpool"] {
            assert!(is_surely_named_like_a_pool(name), "{name}");
        }
        for name in ["db", "DB", "conn", "pg", "main_db", "db_conn", "database", "postgres"] {
            assert!(is_named_like_a_pool(name) && !is_surely_named_like_a_pool(name), "{name}");
        }
        for name in ["spool", "pooled", "thread_pool", "REDIS_POOL", "worker_pool", "dbx", "connect", "page", "carpool"]
        {
            assert!(!is_named_like_a_pool(name), "{name}");
        }
    }

    #[test]
    fn ends_of_paths() {
        for (tokens, shown) in [
            (quote!(&state.pool), "state.pool"),
            (quote!(&mut *conn), "conn"),
            (quote!(state.pool.clone()), "state.pool"),
            (quote!(POOL.get().unwrap()), "POOL"),
            (quote!(&*POOL), "POOL"),
            (quote!(pool().await), "pool()"),
            (quote!(&state.pool()), "state.pool()"),
            (quote!((&state.db)), "state.db"),
            (quote!(&crate::db::POOL), "crate::db::POOL"),
            (quote!(&self.0.pool), "self.0.pool"),
            (quote!(&state.pool.0), "state.pool"),
        ] {
            assert_eq!(End::of(&tokens).map(|end| end.shown()).as_deref(), Some(shown), "{tokens}");
        }
        assert!(End::of(&quote!(&state.pool.size() + 1)).is_none());
    }
}
