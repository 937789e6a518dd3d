//! Whether the values of `scope`, `key` and `fingerprint` say what they must: who asks, which request it is, and what it
//! asks for. A constant, a fresh value and a default all compile, and then strangers share a key or nobody finds it again.

use std::collections::HashSet;

use proc_macro2::{Ident, TokenStream, TokenTree};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::{Expr, Lit};

use super::errors::Errors;
use super::expression;
use super::options::Written;
use super::tokens;

/// Methods and functions that give another form of the same value.
const CONVERSIONS: &[&str] = &[
    "as_bytes",
    "as_ref",
    "as_str",
    "clone",
    "copied",
    "cloned",
    "into",
    "to_lowercase",
    "to_owned",
    "to_string",
    "to_uppercase",
    "trim",
];

/// Functions that give another value each time.
const FRESH: &[&str] = &[
    "getrandom",
    "nanoid",
    "new_v1",
    "new_v4",
    "new_v6",
    "new_v7",
    "now",
    "now_local",
    "now_utc",
    "now_v1",
    "now_v6",
    "now_v7",
    "rand",
    "random",
    "rng",
    "thread_rng",
];

/// What an option is about, and what is known of the function.
pub(super) struct Context<'a> {
    /// The names bound by the arguments.
    pub(super) arguments: &'a [String],
    /// It takes `&Idempotency`.
    pub(super) is_plain_function: bool,
    pub(super) scope: Option<&'a Expr>,
    pub(super) errors: &'a Errors,
}

impl Context<'_> {
    /// Reports one mistake at most. Whether there was one.
    pub(super) fn check(&self, option: &Written<Expr>) -> bool {
        let name = option.name.to_string();
        let value = &option.value;
        self.check_words(&name, value)
            || self.check_question_mark(&name, value)
            || self.check_fresh(&name, value)
            || self.check_constant(&name, value)
            || self.check_default(&name, value)
            || name == "key" && self.check_key_in_scope(value)
    }

    /// Words have no quotes, and the name of the header is the builder's.
    fn check_words(&self, option: &str, value: &Expr) -> bool {
        let Some(text) = literal_text(value) else { return false };
        let words: &[&str] = match option {
            "scope" => &["global"],
            "key" => &["header", "optional"],
            _ => &[],
        };
        let message = if let Some(word) = words.iter().find(|word| text.eq_ignore_ascii_case(word)) {
            format!("option `{option}` must have its words without quotes; use `{option} = {word}`")
        } else if option == "key" && text.to_lowercase().contains("key") && !self.is_plain_function {
            "option `key` must not name the header, which is the builder's to choose; use `key = header`".to_owned()
        } else if option == "scope" && text.is_empty() {
            "option `scope` must not be empty; use `scope = global` to share one space".to_owned()
        } else {
            return false;
        };
        self.errors.beside(value, message);
        true
    }

    fn check_question_mark(&self, option: &str, value: &Expr) -> bool {
        let Some(mark) = find(&value.to_token_stream(), &|tree| tokens::is_punct(Some(tree), '?')) else {
            return false;
        };
        let message = format!(
            "`?` must not stand in `{option}`, which has nothing to return to; use an extractor that rejects the request"
        );
        self.errors.beside(mark, message);
        true
    }

    fn check_fresh(&self, option: &str, value: &Expr) -> bool {
        let Some(call) = fresh(&value.to_token_stream()) else { return false };
        let advice =
            if option == "scope" { "a value of the request such as `tenant.id`" } else { "a value of the request" };
        let message = format!(
            "`{call}` in `{option}` is another value for each request, so that no retry finds its key; use {advice}"
        );
        self.errors.beside(call, message);
        true
    }

    fn check_constant(&self, option: &str, value: &Expr) -> bool {
        let is_constant = !self.depends_on_an_argument(value);
        let message = match option {
            _ if !is_constant => return false,
            "scope" if self.is_plain_function => return false,
            "scope" => {
                "option `scope` must depend on who sends the request; use `scope = tenant.id`, or `scope = global` to share one space"
            }
            "key" if self.is_plain_function => {
                "option `key` must depend on the arguments, because one key for all calls answers the second with the result of the first; use `key = message.id`"
            }
            "key" => {
                "option `key` must depend on the request, because one key for all requests answers the second with the response of the first; use `key = header`, or a field of the payload such as `key = event.id`"
            }
            _ => {
                "option `fingerprint` must depend on the request, because a constant takes every request for the same; use a field of the payload such as `fingerprint = order.total`, or remove it"
            }
        };
        self.errors.beside(value, message);
        true
    }

    fn depends_on_an_argument(&self, value: &Expr) -> bool {
        let names = expression::names(value.to_token_stream());
        self.arguments.iter().any(|argument| names.contains(argument))
    }

    fn check_default(&self, option: &str, value: &Expr) -> bool {
        if option == "fingerprint" {
            return false;
        }
        let any_constant = option == "key";
        let Some(default) = self.default_at_the_end(value, any_constant) else { return false };
        let message = if option == "key" {
            format!(
                "`{default}` in `key` takes all requests without a value for one and the same; use an extractor that rejects them"
            )
        } else {
            format!(
                "`{default}` in `scope` puts all requests without a value into one space; use an extractor that rejects them, or say who owns the key, as in `unwrap_or(\"anonymous\")`"
            )
        };
        self.errors.beside(default, message);
        true
    }

    /// The method that stands in for a missing value, if the whole value is that.
    fn default_at_the_end(&self, value: &Expr, any_constant: bool) -> Option<Ident> {
        match value {
            Expr::Paren(paren) => self.default_at_the_end(&paren.expr, any_constant),
            Expr::Group(group) => self.default_at_the_end(&group.expr, any_constant),
            Expr::Reference(reference) => self.default_at_the_end(&reference.expr, any_constant),
            Expr::Unary(unary) => self.default_at_the_end(&unary.expr, any_constant),
            Expr::Cast(cast) => self.default_at_the_end(&cast.expr, any_constant),
            Expr::Tuple(tuple) => {
                let dependent = tuple.elems.iter().filter(|element| self.depends_on_an_argument(element));
                let defaults: Vec<_> =
                    dependent.map(|element| self.default_at_the_end(element, any_constant)).collect();
                defaults.into_iter().collect::<Option<Vec<_>>>()?.into_iter().next()
            }
            Expr::MethodCall(call) => {
                let given = call.args.first();
                let is_default = match call.method.to_string().as_str() {
                    "unwrap_or_default" | "map_or_default" => true,
                    "unwrap_or" | "map_or" | "unwrap_or_else" | "map_or_else" => given
                        .is_some_and(|given| is_empty(given) || any_constant && !self.depends_on_an_argument(given)),
                    method if CONVERSIONS.contains(&method) => {
                        return self.default_at_the_end(&call.receiver, any_constant);
                    }
                    _ => false,
                };
                is_default.then(|| call.method.clone())
            }
            _ => None,
        }
    }

    fn check_key_in_scope(&self, key: &Expr) -> bool {
        let Some(scope) = self.scope else { return false };
        let (of_key, of_scope) = (parts(key), parts(scope));
        let is_part_of = |part: &String| {
            of_scope
                .iter()
                .any(|whole| part == whole || part.strip_prefix(whole).is_some_and(|rest| rest.starts_with('.')))
        };
        if of_key.is_empty() || !of_key.iter().all(is_part_of) {
            return false;
        }
        let message = "option `key` must not be a part of `scope`, because it is the same for all requests of that scope; use `key = header`, or a field that names the request such as `key = event.id`";
        self.errors.beside(key, message);
        true
    }
}

/// The text of a string literal, through parentheses and references.
fn literal_text(value: &Expr) -> Option<String> {
    match value {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Str(text) => Some(text.value()),
            _ => None,
        },
        Expr::Paren(paren) => literal_text(&paren.expr),
        Expr::Group(group) => literal_text(&group.expr),
        Expr::Reference(reference) => literal_text(&reference.expr),
        _ => None,
    }
}

fn find(tokens: &TokenStream, is_meant: &dyn Fn(&TokenTree) -> bool) -> Option<TokenTree> {
    tokens.clone().into_iter().find_map(|tree| match &tree {
        TokenTree::Group(group) => find(&group.stream(), is_meant),
        tree if is_meant(tree) => Some(tree.clone()),
        _ => None,
    })
}

/// The name of a call that gives another value each time.
fn fresh(tokens: &TokenStream) -> Option<Ident> {
    let trees = tokens::trees(tokens);
    for (position, tree) in trees.iter().enumerate() {
        match tree {
            TokenTree::Group(group) => {
                if let Some(found) = fresh(&group.stream()) {
                    return Some(found);
                }
            }
            TokenTree::Ident(name) => {
                let after = &trees[position + 1..];
                let is_call = tokens::called(after).is_some() || tokens::called_as_macro(after).is_some();
                let is_ulid = name == "new"
                    && trees[..position]
                        .iter()
                        .rev()
                        .nth(2)
                        .is_some_and(|ty| tokens::word(Some(ty)).is_some_and(|ty| ty == "Ulid"));
                let is_fresh = FRESH.iter().any(|known| name == known) && is_call
                    || is_ulid
                    || (name == "fastrand" || name == "rand") && tokens::is_punct(after.first(), ':');
                if is_fresh {
                    return Some(name.clone());
                }
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
    None
}

/// `""`, `String::new()`, `Default::default()`, `Uuid::nil()`, the functions of these names, and closures that give one.
fn is_empty(value: &Expr) -> bool {
    match value {
        Expr::Closure(closure) => is_empty(&closure.body),
        Expr::Call(call) => {
            call.args.is_empty() && is_empty(&call.func) || call.args.len() == 1 && is_empty(&call.args[0])
        }
        Expr::MethodCall(call) => CONVERSIONS.iter().any(|known| call.method == known) && is_empty(&call.receiver),
        Expr::Path(path) => path.path.segments.last().is_some_and(|last| {
            path.path.segments.len() > 1 && ["new", "default", "nil"].iter().any(|name| last.ident == name)
        }),
        other => literal_text(other).is_some_and(|text| text.is_empty()),
    }
}

/// The values that an expression is made of, without their conversions.
fn parts(value: &Expr) -> HashSet<String> {
    match value {
        Expr::Lit(_) => HashSet::new(),
        Expr::Paren(paren) => parts(&paren.expr),
        Expr::Group(group) => parts(&group.expr),
        Expr::Reference(reference) => parts(&reference.expr),
        Expr::Unary(unary) => parts(&unary.expr),
        Expr::Cast(cast) => parts(&cast.expr),
        Expr::Tuple(tuple) => tuple.elems.iter().flat_map(parts).collect(),
        Expr::MethodCall(call) if CONVERSIONS.iter().any(|known| call.method == known) => parts(&call.receiver),
        Expr::Call(call) if call.args.len() == 1 && is_conversion(&call.func) => parts(&call.args[0]),
        Expr::Macro(call) if call.mac.path.is_ident("format") => parts_of_format(&call.mac.tokens),
        Expr::Path(path) if path.path.get_ident().is_none() => HashSet::new(),
        other => HashSet::from([canonical(other)]),
    }
}

fn is_conversion(function: &Expr) -> bool {
    let Expr::Path(path) = function else { return false };
    path.path.segments.last().is_some_and(|last| last.ident == "from" || last.ident == "to_string")
}

fn parts_of_format(tokens: &TokenStream) -> HashSet<String> {
    let arguments = tokens::split(tokens.clone());
    let template = arguments.first().cloned().unwrap_or_default();
    let inline = expression::names(template);
    let given = arguments.iter().skip(1).filter_map(|argument| syn::parse2::<Expr>(argument.clone()).ok());
    inline.into_iter().chain(given.flat_map(|argument| parts(&argument))).collect()
}

/// The tokens without white space and raw marks.
fn canonical(value: &Expr) -> String {
    let unraw = value.to_token_stream().into_iter().map(|tree| match tree {
        TokenTree::Ident(ident) => ident.unraw().to_string(),
        other => other.to_string(),
    });
    unraw.collect::<String>().split_whitespace().collect()
}
