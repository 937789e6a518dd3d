//! Looks for what would tear the transaction or the steps apart, in the tokens of the body. What it cannot see (SQL in
//! a constant, a helper function) the runtime notices when it completes.

use std::collections::HashMap;

use proc_macro2::{Delimiter, Group, Ident, Literal, TokenStream, TokenTree};
use quote::ToTokens;
use syn::Lit;

use super::arguments::{Arguments, Unit};
use super::errors::Errors;
use super::sql;

/// Functions and macros that take SQL, and how many arguments may come before it.
const TAKE_SQL: &[(&str, usize)] = &[
    ("query", 0),
    ("query_with", 0),
    ("query_as", 0),
    ("query_as_with", 0),
    ("query_scalar", 0),
    ("query_scalar_with", 0),
    ("raw_sql", 0),
    ("execute", 1),
    ("execute_many", 1),
    ("fetch_one", 1),
    ("fetch_all", 1),
    ("fetch_optional", 1),
    ("fetch_many", 1),
    ("query_unchecked", 0),
    ("query_as_unchecked", 0),
    ("query_scalar_unchecked", 0),
];

/// Reports every mistake. True if there is one that the compiler would report again, in its own words.
pub(super) fn check(body: &Group, arguments: &Arguments, errors: &Errors) -> bool {
    let unit_name = arguments.unit_name().map(ToOwned::to_owned);
    let transactions = match arguments.unit {
        Unit::Transaction => unit_name.iter().cloned().collect(),
        Unit::Operation => Vec::new(),
    };
    let operation = unit_name.filter(|_| arguments.unit == Unit::Operation);
    let mut walk = Walk { transactions, operation, steps: HashMap::new(), is_reported_again: false, errors };
    walk.tokens(body.stream());
    walk.is_reported_again
}

struct Walk<'a> {
    /// What the transaction is called: the argument, or the parameters of `op.transaction`'s closures.
    transactions: Vec<String>,
    operation: Option<String>,
    steps: HashMap<String, ()>,
    is_reported_again: bool,
    errors: &'a Errors,
}

impl Walk<'_> {
    fn tokens(&mut self, tokens: TokenStream) {
        let trees: Vec<TokenTree> = tokens.into_iter().collect();
        for position in 0..trees.len() {
            match &trees[position] {
                TokenTree::Ident(name) => self.name(name, &trees[position + 1..]),
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }

    fn name(&mut self, name: &Ident, after: &[TokenTree]) {
        let text = name.to_string();
        if let Some((_, before_sql)) = TAKE_SQL.iter().find(|(function, _)| *function == text) {
            if let Some(arguments) = called(after) {
                self.sql(&arguments[..arguments.len().min(before_sql + 1)]);
            } else if let Some(arguments) = called_as_macro(after) {
                let before_sql = usize::from(text.starts_with("query_as"));
                self.sql(arguments.get(before_sql..=before_sql).unwrap_or_default());
            }
        }
        if let [TokenTree::Punct(dot), TokenTree::Ident(method), after @ ..] = after
            && dot.as_char() == '.'
        {
            self.method(&text, method, after);
        }
    }

    fn sql(&self, arguments: &[TokenStream]) {
        for (text, literal) in arguments.iter().filter_map(literal_text) {
            if let Some(command) = sql::transaction_command(&text) {
                let message = format!(
                    "`{command}` must not stand in the SQL of an idempotent function: the claim, the writes and the response are one transaction; remove it, or use `SAVEPOINT` for a part to undo"
                );
                self.errors.on(literal, message);
            }
        }
    }

    fn method(&mut self, receiver: &str, method: &Ident, after: &[TokenTree]) {
        let Some(arguments) = called(after) else { return };
        let name = method.to_string();
        if self.transactions.iter().any(|transaction| transaction == receiver) {
            self.transaction_method(receiver, method, &name);
        }
        if self.operation.as_deref() == Some(receiver) && (name == "step" || name == "transaction") {
            self.step(receiver, method, &arguments);
        }
    }

    fn transaction_method(&mut self, receiver: &str, method: &Ident, name: &str) {
        let instead = match name {
            "commit" => "the transaction is committed together with the response when the function returns",
            "rollback" => "a response of 4xx or 5xx rolls the writes back",
            _ => return,
        };
        self.is_reported_again = true;
        self.errors.on(method, format_args!("`{receiver}.{name}()` does not exist: {instead}; remove the call"));
    }

    fn step(&mut self, receiver: &str, method: &Ident, arguments: &[TokenStream]) {
        let Some(written) = arguments.first() else { return };
        if let Some(parameter) = arguments.get(1).filter(|_| method == "transaction").and_then(closure_parameter) {
            self.transactions.push(parameter);
        }
        for inside in &arguments[1..] {
            self.steps_inside(receiver, inside.clone());
        }
        let Some((name, literal)) = string_literal(written) else {
            let message = format!(
                "the name of a step must be a string literal, because a retry finds the step by it; use `{receiver}.{method}(\"charge\", …)`"
            );
            self.errors.on(written, message);
            return;
        };
        if name.is_empty() {
            self.errors
                .on(literal, "the name of a step must not be empty; use a word for what it does, such as `charge`");
        } else if self.steps.insert(name.clone(), ()).is_some() {
            let message = format!(
                "the step `{name}` must have a name of its own, because a retry finds the step by it; use another name"
            );
            self.errors.on(literal, message);
        }
    }

    /// A step borrows the operation until it ends.
    fn steps_inside(&mut self, receiver: &str, tokens: TokenStream) {
        let trees: Vec<TokenTree> = tokens.into_iter().collect();
        for window in trees.windows(4) {
            let [TokenTree::Ident(name), TokenTree::Punct(dot), TokenTree::Ident(method), TokenTree::Group(_)] = window
            else {
                continue;
            };
            if name == receiver && dot.as_char() == '.' && (method == "step" || method == "transaction") {
                self.is_reported_again = true;
                let message = "a step must not be inside of another, because each is recorded as a whole; move it before or behind the other";
                self.errors.on(method, message);
            }
        }
        for tree in trees {
            if let TokenTree::Group(group) = tree {
                self.steps_inside(receiver, group.stream());
            }
        }
    }
}

/// The arguments of a call that starts here, behind a turbofish if there is one.
fn called(after: &[TokenTree]) -> Option<Vec<TokenStream>> {
    let position = turbofish(after);
    match after.get(position) {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis => Some(split(group.stream())),
        _ => None,
    }
}

fn called_as_macro(after: &[TokenTree]) -> Option<Vec<TokenStream>> {
    match after {
        [TokenTree::Punct(bang), TokenTree::Group(group), ..] if bang.as_char() == '!' => Some(split(group.stream())),
        _ => None,
    }
}

/// How many tokens `::<…>` takes here.
fn turbofish(after: &[TokenTree]) -> usize {
    let is = |position: usize, character: char| matches!(after.get(position), Some(TokenTree::Punct(punct)) if punct.as_char() == character);
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
fn split(tokens: TokenStream) -> Vec<TokenStream> {
    let mut parts = vec![TokenStream::new()];
    for token in tokens {
        let is_comma = matches!(&token, TokenTree::Punct(punct) if punct.as_char() == ',');
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

/// The text of an SQL argument, if it is a literal or made of literals, and the literal to stand on.
fn literal_text(tokens: &TokenStream) -> Option<(String, TokenStream)> {
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

fn joined(pieces: &[TokenStream]) -> Option<(String, TokenStream)> {
    let texts: Vec<(String, TokenStream)> = pieces.iter().filter_map(literal_text).collect();
    let (_, first) = texts.first()?;
    Some((texts.iter().map(|(text, _)| text.as_str()).collect(), first.clone()))
}

fn string_literal(tokens: &TokenStream) -> Option<(String, TokenStream)> {
    let trees: Vec<TokenTree> = tokens.clone().into_iter().collect();
    match trees.as_slice() {
        [TokenTree::Literal(literal)] => Some((text(literal)?, literal.to_token_stream())),
        [TokenTree::Group(group)] if group.delimiter() == Delimiter::None => string_literal(&group.stream()),
        _ => None,
    }
}

fn text(literal: &Literal) -> Option<String> {
    match Lit::new(literal.clone()) {
        Lit::Str(text) => Some(text.value()),
        _ => None,
    }
}

/// The first parameter of a closure such as `async |tx| …`, if it is a plain name.
fn closure_parameter(closure: &TokenStream) -> Option<String> {
    let mut trees = closure
        .clone()
        .into_iter()
        .skip_while(|token| !matches!(token, TokenTree::Punct(punct) if punct.as_char() == '|'));
    trees.next()?;
    match trees.next()? {
        TokenTree::Ident(name) => Some(name.to_string()),
        _ => None,
    }
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
    fn a_turbofish_is_passed_over() {
        let after = |tokens: TokenStream| tokens.into_iter().collect::<Vec<_>>();
        assert!(called(&after(quote!(::<_, Order>("SELECT 1")))).is_some());
        assert!(called(&after(quote!(::<Vec<Vec<fn() -> u8>>>("SELECT 1")))).is_some());
        assert!(called(&after(quote!(::<Vec<u8>))).is_none());
        assert!(called(&after(quote!(: "SELECT 1"))).is_none());
    }
}
