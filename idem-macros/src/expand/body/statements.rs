//! SQL in the body. Where a literal is SQL and where it is somebody's word can only be guessed from what it is given to.

use std::cell::RefCell;
use std::collections::HashSet;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens;
use syn::ext::IdentExt;

use super::super::errors::Errors;
use super::super::tokens::{
    called, called_as_macro, idents, is_punct, mention, split, start_of_chain, string_literal, text, trees, word,
};
use super::bindings::{Bindings, Text};
use super::commands::transaction_command;

/// Functions and macros that take SQL first.
const QUERIES: &[&str] = &[
    "query",
    "query_as",
    "query_as_unchecked",
    "query_as_with",
    "query_scalar",
    "query_scalar_unchecked",
    "query_scalar_with",
    "query_unchecked",
    "query_with",
    "raw_sql",
];

/// Methods of an executor: of `tx`, they take SQL; of a query, they take an executor.
const RUN: &[&str] = &[
    "batch_execute",
    "describe",
    "execute",
    "execute_many",
    "fetch",
    "fetch_all",
    "fetch_many",
    "fetch_one",
    "fetch_optional",
    "prepare",
    "prepare_with",
    "simple_query",
];

/// Types that wrap SQL, and the function of each.
const WRAPPERS: &[(&str, &str)] =
    &[("QueryBuilder", "new"), ("QueryBuilder", "with_arguments"), ("SqlStr", "from_static")];

/// Macros in which a word in capitals is for people.
const FOR_PEOPLE: &[&str] = &[
    "anyhow",
    "assert",
    "assert_eq",
    "assert_ne",
    "bail",
    "dbg",
    "debug",
    "debug_span",
    "ensure",
    "eprint",
    "eprintln",
    "error",
    "error_span",
    "event",
    "format",
    "info",
    "info_span",
    "json",
    "log",
    "matches",
    "panic",
    "print",
    "println",
    "span",
    "todo",
    "trace",
    "trace_span",
    "unimplemented",
    "unreachable",
    "vec",
    "warn",
    "warn_span",
    "write",
    "writeln",
];

pub(super) fn is_query(name: &str) -> bool {
    QUERIES.contains(&name) || name == "QueryBuilder" || name == "sqlx"
}

/// Whether a text begins as statements do.
pub(super) fn looks_like_sql(text: &str) -> bool {
    let first = text.split_whitespace().next().unwrap_or_default().to_uppercase();
    ["INSERT", "UPDATE", "DELETE", "SELECT", "WITH", "MERGE", "CALL", "CREATE", "ALTER", "DROP", "COPY"]
        .contains(&&*first)
}

/// Every string literal, at any depth.
pub(super) fn texts(tokens: &TokenStream) -> Vec<Text> {
    let mut found = Vec::new();
    collect_texts(tokens, &mut found);
    found
}

/// The constants that are named for a command, with its text.
pub(super) fn constants(tokens: &TokenStream) -> Vec<Text> {
    let named = idents(tokens).into_iter().filter_map(|ident| {
        let command = command_named(&ident.unraw().to_string())?;
        Some((command.to_owned(), ident.to_token_stream()))
    });
    named.collect()
}

fn collect_texts(tokens: &TokenStream, found: &mut Vec<Text>) {
    let trees = trees(tokens);
    for (position, tree) in trees.iter().enumerate() {
        match tree {
            TokenTree::Literal(literal) => {
                found.extend(text(literal).map(|text| (text, literal.to_token_stream())));
            }
            TokenTree::Group(group) => {
                let before = |distance: usize| position.checked_sub(distance).and_then(|at| trees.get(at));
                let is_concat = is_punct(before(1), '!') && word(before(2)).is_some_and(|name| name == "concat");
                match is_concat.then(|| joined(&split(group.stream()))).flatten() {
                    Some(text) => found.push(text),
                    None => collect_texts(&group.stream(), found),
                }
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) => {}
        }
    }
}

pub(super) fn check(body: &TokenStream, bindings: &Bindings, errors: &Errors) {
    Walk { bindings, reported: RefCell::default(), errors }.tokens(body);
}

struct Walk<'a> {
    bindings: &'a Bindings,
    /// A literal may be seen twice: in its `let` and in its query.
    reported: RefCell<HashSet<String>>,
    errors: &'a Errors,
}

impl Walk<'_> {
    fn tokens(&self, tokens: &TokenStream) {
        let trees = trees(tokens);
        for position in 0..trees.len() {
            match &trees[position] {
                TokenTree::Ident(name) => self.name(&name.unraw().to_string(), &trees, position),
                TokenTree::Group(group) => self.tokens(&group.stream()),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }

    fn name(&self, name: &str, trees: &[TokenTree], position: usize) {
        let after = &trees[position + 1..];
        let before = |distance: usize| position.checked_sub(distance).and_then(|at| trees.get(at));
        let is_method = is_punct(before(1), '.');
        let is_path = is_punct(before(1), ':');
        if let Some(arguments) = called_as_macro(after) {
            self.of_macro(name, &arguments);
            return;
        }
        let Some(arguments) = called(after) else { return };
        if is_method {
            let end = position - 1;
            let receiver: TokenStream = trees[start_of_chain(trees, end)..end].iter().cloned().collect();
            self.of_method(name, &receiver, &arguments);
        } else if QUERIES.contains(&name) {
            let path = if is_path { word(before(3)) } else { None };
            if path.is_none_or(|path| path.starts_with("sqlx") || path == "query") {
                self.sql(arguments.first());
            }
        } else if is_path
            && RUN.contains(&name)
            && arguments.first().is_some_and(|first| self.is_of_the_transaction(first))
        {
            self.sql(arguments.get(1));
        } else if name == "AssertSqlSafe"
            || is_path
                && WRAPPERS.iter().any(|(ty, function)| *function == name && mentions_before(trees, position, ty))
        {
            self.sql(arguments.first());
        }
    }

    /// `sqlx::query!("…")`, and the application's own macros that get `tx` too.
    fn of_macro(&self, name: &str, arguments: &[TokenStream]) {
        if QUERIES.contains(&name) {
            self.sql(arguments.get(usize::from(name.starts_with("query_as"))));
        } else if !FOR_PEOPLE.contains(&name) && arguments.iter().any(|argument| self.is_of_the_transaction(argument)) {
            let literals = arguments.iter().filter_map(string_literal);
            for text in literals.filter(|(text, _)| is_in_capitals(text)) {
                self.text(&text);
            }
        }
    }

    fn of_method(&self, name: &str, receiver: &TokenStream, arguments: &[TokenStream]) {
        if RUN.contains(&name) && self.is_executor(receiver) {
            self.sql(arguments.first());
        } else if RUN.contains(&name) && arguments.first().is_some_and(|first| self.is_of_the_transaction(first)) {
            self.calls_of_chain(receiver);
        } else if name.starts_with("push") && mention(receiver, &|name| self.bindings.builders.contains(name)) {
            self.sql(arguments.first());
        }
    }

    /// What runs on the transaction is SQL, whatever the function or macro is called that took it.
    fn calls_of_chain(&self, receiver: &TokenStream) {
        let trees = trees(receiver);
        for position in 0..trees.len() {
            let TokenTree::Ident(name) = &trees[position] else { continue };
            let is_method = is_punct(position.checked_sub(1).and_then(|before| trees.get(before)), '.');
            let after = &trees[position + 1..];
            let arguments = called(after).or_else(|| called_as_macro(after)).unwrap_or_default();
            if !is_method || name == "query" {
                arguments.iter().for_each(|argument| self.sql(Some(argument)));
            }
        }
        if let [TokenTree::Ident(name)] = trees.as_slice() {
            self.bound(&name.unraw().to_string());
        }
    }

    /// `tx`, `(&mut *tx)` or `conn`, and no longer expression that mentions it.
    fn is_executor(&self, receiver: &TokenStream) -> bool {
        let names = idents(receiver);
        let names: Vec<String> =
            names.iter().map(|name| name.unraw().to_string()).filter(|name| name != "mut").collect();
        matches!(names.as_slice(), [name] if self.bindings.transactions.contains(name))
    }

    fn is_of_the_transaction(&self, tokens: &TokenStream) -> bool {
        mention(tokens, &|name| self.bindings.transactions.contains(name))
    }

    /// An argument that is SQL.
    fn sql(&self, argument: Option<&TokenStream>) {
        let Some(argument) = argument else { return };
        if let Some(text) = literal_text(argument) {
            self.text(&text);
            return;
        }
        for text in &texts(argument) {
            self.text(text);
        }
        for ident in idents(argument) {
            if !self.bound(&ident.unraw().to_string()) {
                constants(&ident.to_token_stream()).iter().for_each(|constant| _ = self.text(constant));
            }
        }
    }

    /// A name with a literal in its value. Whether there was a command in it.
    fn bound(&self, name: &str) -> bool {
        let texts = self.bindings.texts.get(name).into_iter().flatten();
        texts.filter(|text| self.text(text)).count() > 0
    }

    fn text(&self, (text, literal): &Text) -> bool {
        let command = transaction_command(text);
        if let Some(command) = &command {
            self.report(command, literal);
        }
        command.is_some()
    }

    fn report(&self, command: &str, tokens: &TokenStream) {
        let place = tokens.clone().into_iter().map(|tree| format!("{tree} {:?}", tree.span())).collect();
        if self.reported.borrow_mut().insert(place) {
            let message = format!(
                "`{command}` must not stand in the SQL of an idempotent function: the claim, the writes and the response are one transaction; remove it, or use `SAVEPOINT` for a part to undo"
            );
            self.errors.beside(tokens, message);
        }
    }
}

/// Whether `ty` stands before the function of a path, behind which generics may be.
fn mentions_before(trees: &[TokenTree], position: usize, ty: &str) -> bool {
    let start = start_of_chain(trees, position);
    trees[start..position].iter().any(|tree| word(Some(tree)).is_some_and(|word| word == ty))
}

const COMMANDS: &[&str] = &["COMMIT", "ROLLBACK", "BEGIN", "ABORT", "END", "START", "PREPARE"];

/// Whether the text may be half of a command, put together by `+`.
pub(super) fn is_a_piece(text: &str) -> bool {
    let text = text.trim();
    let begins = |command: &str| command.get(..text.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(text));
    text.len() > 1 && COMMANDS.iter().any(|command| begins(command))
}

/// Whether the word of a command occurs in the text at all.
pub(super) fn may_have_a_command(text: &str) -> bool {
    let mut words = text.split(|character: char| !character.is_ascii_alphabetic());
    words.any(|word| COMMANDS.iter().any(|command| command.eq_ignore_ascii_case(word)))
}

fn is_in_capitals(text: &str) -> bool {
    !text.chars().any(char::is_lowercase)
}

/// The command that a constant is named for.
pub(super) fn command_named(name: &str) -> Option<&'static str> {
    if name.chars().any(char::is_lowercase) {
        return None;
    }
    let name = name.strip_prefix("SQL_").unwrap_or(name);
    let name = ["_SQL", "_STATEMENT", "_STMT", "_QUERY", "_TRANSACTION", "_TX"]
        .iter()
        .find_map(|suffix| name.strip_suffix(suffix))
        .unwrap_or(name);
    ["COMMIT", "ROLLBACK", "BEGIN", "ABORT", "START", "END"].into_iter().find(|command| *command == name)
}

/// The text of an SQL argument, if it is a literal or made of literals, and the literal to stand on.
fn literal_text(tokens: &TokenStream) -> Option<Text> {
    let trees: Vec<TokenTree> = tokens.clone().into_iter().collect();
    match trees.as_slice() {
        [TokenTree::Literal(literal)] => Some((text(literal)?, literal.to_token_stream())),
        [TokenTree::Group(group)] if group.delimiter() != Delimiter::Bracket => literal_text(&group.stream()),
        [TokenTree::Punct(reference), rest @ ..] if reference.as_char() == '&' => {
            literal_text(&rest.iter().cloned().collect())
        }
        [.., TokenTree::Ident(wrapper), TokenTree::Group(group)] if wrapper == "AssertSqlSafe" => {
            literal_text(&group.stream())
        }
        [.., TokenTree::Ident(name), TokenTree::Punct(bang), TokenTree::Group(group)] if bang.as_char() == '!' => {
            let arguments = split(group.stream());
            match name.to_string().as_str() {
                "concat" => joined(&arguments),
                "format" => literal_text(arguments.first()?),
                _ => None,
            }
        }
        [TokenTree::Literal(_), TokenTree::Punct(plus), ..] if plus.as_char() == '+' => {
            let pieces: Vec<TokenStream> = trees.iter().step_by(2).map(ToTokens::to_token_stream).collect();
            joined(&pieces)
        }
        _ => None,
    }
}

fn joined(pieces: &[TokenStream]) -> Option<Text> {
    let texts: Vec<Text> = pieces.iter().filter_map(literal_text).collect();
    let (_, first) = texts.first()?;
    Some((texts.iter().map(|(text, _)| text.as_str()).collect(), first.clone()))
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::*;

    fn sql_of(tokens: TokenStream) -> Option<String> {
        literal_text(&tokens).map(|(text, _)| text)
    }

    #[test]
    fn sql_is_read_through_the_ways_to_write_a_literal() {
        assert_eq!(sql_of(quote!("COMMIT")), Some("COMMIT".into()));
        assert_eq!(sql_of(quote!(r#"COMMIT"#)), Some("COMMIT".into()));
        assert_eq!(sql_of(quote!(&"COMMIT")), Some("COMMIT".into()));
        assert_eq!(sql_of(quote!(("COMMIT"))), Some("COMMIT".into()));
        assert_eq!(sql_of(quote!(concat!("COM", "MIT"))), Some("COMMIT".into()));
        assert_eq!(sql_of(quote!("COM" + "MIT")), Some("COMMIT".into()));
        assert_eq!(sql_of(quote!(sqlx::AssertSqlSafe(format!("COMMIT {}", name)))), Some("COMMIT {}".into()));
        assert_eq!(sql_of(quote!(STATEMENT)), None);
        assert_eq!(sql_of(quote!(b"COMMIT")), None);
        assert_eq!(sql_of(quote!(statement("COMMIT"))), None);
        assert_eq!(sql_of(quote!()), None);
    }

    #[test]
    fn constants_named_for_a_command() {
        for name in ["COMMIT", "SQL_ROLLBACK", "BEGIN_SQL", "START_TRANSACTION", "END_TX"] {
            assert!(command_named(name).is_some(), "{name}");
        }
        for name in ["INSERT_COMMIT", "commit", "ENDPOINT", "COMMITS", "BEGINNING", "STARTED"] {
            assert!(command_named(name).is_none(), "{name}");
        }
    }
}
