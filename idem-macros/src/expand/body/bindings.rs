//! What the names in a body stand for, as far as the tokens of their `let` tell. Blocks do not end a name here: a name
//! that was once the transaction is never taken for a pool.

use std::collections::{HashMap, HashSet};

use proc_macro2::{Delimiter, Ident, TokenStream, TokenTree};
use quote::ToTokens;

use super::super::arguments::{Arguments, Unit};
use super::super::tokens::{self, is_punct, mention, trees, word};
use super::pools;
use super::statements;

/// A `let`, `const`, `static` or `for` and what it takes its value from.
struct Binding {
    names: Vec<Ident>,
    value: TokenStream,
}

/// A literal with its text.
pub(super) type Text = (String, TokenStream);

#[derive(Default)]
pub(super) struct Bindings {
    /// `tx`, the parameters of the closures of `op.transaction`, and what is made of them.
    pub(super) transactions: HashSet<String>,
    /// `op` and its other names.
    pub(super) operations: HashSet<String>,
    /// Bound to something that ends in a name that surely is a pool's.
    pub(super) pools: HashSet<String>,
    /// Bound to something that ends in a name that may be a pool's.
    pub(super) databases: HashSet<String>,
    /// Made from a payload, so that nothing in it is a pool.
    pub(super) payloads: HashSet<String>,
    /// Bound by the body itself, to something else.
    pub(super) others: HashSet<String>,
    /// Bound to a query.
    pub(super) queries: HashSet<String>,
    /// Bound to a `QueryBuilder`.
    pub(super) builders: HashSet<String>,
    /// The literals in the values of the names.
    pub(super) texts: HashMap<String, Vec<Text>>,
}

impl Bindings {
    pub(super) fn read(body: &TokenStream, arguments: &Arguments) -> Self {
        let mut this = Self::default();
        let unit = arguments.unit_name();
        match arguments.unit {
            Unit::Transaction => this.transactions.extend(unit),
            Unit::Operation => this.operations.extend(unit),
        }
        this.payloads.extend(arguments.names_of_payloads());
        let mut found = Vec::new();
        collect(body, &mut found);
        collect_parameters(body, &mut this);
        for Binding { names, value } in found {
            this.bind(&names, &value);
        }
        this
    }

    fn bind(&mut self, names: &[Ident], value: &TokenStream) {
        let mentions = |set: &HashSet<String>| mention(value, &|name| set.contains(name));
        let is_transaction = mentions(&self.transactions);
        let is_operation = is_other_name_of(value, &self.operations);
        let is_payload = mentions(&self.payloads);
        let (is_pool, is_database) = pools::ends_in_a_pool(value, self);
        let (is_pool, is_database) =
            (is_pool && !is_transaction && !is_payload, is_database && !is_transaction && !is_payload);
        let is_builder = mention(value, &|name| name == "QueryBuilder");
        let is_query = is_builder || mention(value, &|name| statements::is_query(name)) || mentions(&self.queries);
        let mut texts = statements::texts(value);
        if !has_calls(value) {
            let known = tokens::idents(value).into_iter().filter_map(|name| self.texts.get(&name.to_string()));
            texts.extend(known.flatten().cloned());
            texts.extend(statements::constants(value));
        }
        for name in names {
            let name = word(Some(&TokenTree::Ident(name.clone()))).unwrap_or_default();
            for (is_one, set) in [
                (is_transaction, &mut self.transactions),
                (is_operation, &mut self.operations),
                (is_payload && !is_transaction, &mut self.payloads),
                (is_pool, &mut self.pools),
                (is_database, &mut self.databases),
                (!(is_transaction || is_payload || is_database), &mut self.others),
                (is_query, &mut self.queries),
                (is_builder, &mut self.builders),
            ] {
                if is_one {
                    set.insert(name.clone());
                }
            }
            self.texts.entry(name).or_default().extend(texts.iter().cloned());
        }
    }
}

/// Whether a function makes something else of what is in it.
fn has_calls(value: &TokenStream) -> bool {
    let trees = trees(value);
    let is_call = |pair: &[TokenTree]| matches!(pair, [TokenTree::Ident(_), TokenTree::Group(group)] if group.delimiter() == Delimiter::Parenthesis);
    trees.windows(2).any(is_call)
        || trees.iter().any(|tree| matches!(tree, TokenTree::Group(group) if has_calls(&group.stream())))
}

/// `op`, `&mut *op` or `&mut op`.
fn is_other_name_of(value: &TokenStream, names: &HashSet<String>) -> bool {
    let trees = trees(value);
    let (last, before) = match trees.as_slice() {
        [before @ .., last] => (last, before),
        [] => return false,
    };
    let is_plain = before.iter().all(|tree| {
        is_punct(Some(tree), '&') || is_punct(Some(tree), '*') || word(Some(tree)).is_some_and(|word| word == "mut")
    });
    is_plain && word(Some(last)).is_some_and(|name| names.contains(&name))
}

fn collect(body: &TokenStream, found: &mut Vec<Binding>) {
    let trees = trees(body);
    for position in 0..trees.len() {
        match &trees[position] {
            TokenTree::Group(group) => collect(&group.stream(), found),
            TokenTree::Ident(keyword) => {
                let after = &trees[position + 1..];
                match keyword.to_string().as_str() {
                    "let" | "const" | "static" => found.extend(assigned(after)),
                    "for" => found.extend(iterated(after)),
                    _ => {}
                }
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

/// Behind `let`: the names of the pattern, and the value up to the semicolon, `else` or the block of an `if let`.
fn assigned(after: &[TokenTree]) -> Option<Binding> {
    let end = after.iter().position(|tree| is_punct(Some(tree), ';')).unwrap_or(after.len());
    let equals = (0..end).find(|position| {
        is_punct(after.get(*position), '=')
            && !is_punct(after.get(position + 1), '=')
            && !is_punct(after.get(position + 1), '>')
            && !is_punct(position.checked_sub(1).and_then(|before| after.get(before)), '=')
    })?;
    let colon = after[..equals].iter().position(|tree| is_punct(Some(tree), ':'));
    let is_type = colon.is_some_and(|colon| !is_punct(after.get(colon + 1), ':'));
    let pattern = &after[..colon.filter(|_| is_type).unwrap_or(equals)];
    let value = &after[equals + 1..end];
    let length = value.iter().position(|tree| word(Some(tree)).is_some_and(|word| word == "else"));
    Some(Binding { names: names_of(pattern), value: stream(&value[..length.unwrap_or(value.len())]) })
}

/// Behind `for`: the names of the pattern, and what is iterated over.
fn iterated(after: &[TokenTree]) -> Option<Binding> {
    let within = after.iter().position(|tree| word(Some(tree)).is_some_and(|word| word == "in"))?;
    let block = after[within..]
        .iter()
        .position(|tree| matches!(tree, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace))?;
    Some(Binding { names: names_of(&after[..within]), value: stream(&after[within + 1..within + block]) })
}

fn names_of(pattern: &[TokenTree]) -> Vec<Ident> {
    let idents = tokens::idents(&stream(pattern)).into_iter();
    let is_name = |ident: &Ident| !["mut", "ref", "_"].iter().any(|word| ident == word);
    idents.filter(is_name).collect()
}

/// The parameters of closures: those of `op.transaction(…)` are transactions, the others are not pools for their name alone.
fn collect_parameters(body: &TokenStream, bindings: &mut Bindings) {
    let trees = trees(body);
    for position in 0..trees.len() {
        if let TokenTree::Group(group) = &trees[position] {
            collect_parameters(&group.stream(), bindings);
            let method = word(position.checked_sub(1).and_then(|before| trees.get(before)));
            let is_part = method.is_some_and(|method| method == "transaction")
                && is_punct(position.checked_sub(2).and_then(|before| trees.get(before)), '.');
            for argument in tokens::split(group.stream()) {
                let Some(parameters) = closure_parameters(&argument) else { continue };
                let names = parameters.iter().map(ToString::to_string);
                if is_part && !bindings.operations.is_empty() {
                    bindings.transactions.extend(names.take(1));
                } else {
                    bindings.others.extend(names);
                }
            }
        }
    }
}

/// The names between the bars of a closure such as `async move |mut tx: &mut Tx| …`.
fn closure_parameters(closure: &TokenStream) -> Option<Vec<Ident>> {
    let trees = trees(closure);
    let start =
        trees.iter().position(|tree| !word(Some(tree)).is_some_and(|word| word == "async" || word == "move"))?;
    if !is_punct(trees.get(start), '|') {
        return None;
    }
    let length = trees[start + 1..].iter().position(|tree| is_punct(Some(tree), '|'))?;
    Some(names_of(&trees[start + 1..start + 1 + length]))
}

fn stream(trees: &[TokenTree]) -> TokenStream {
    trees.iter().map(ToTokens::to_token_stream).collect()
}
