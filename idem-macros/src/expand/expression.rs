//! The expressions of `scope`, `key` and `fingerprint`: evaluated over references to the arguments, so that the handler
//! still gets every argument whole.

use std::collections::HashSet;

use proc_macro2::{Ident, TokenStream, TokenTree};
use quote::{ToTokens, quote_spanned};
use syn::ext::IdentExt;
use syn::{Expr, Lit, Pat};

use super::arguments::Arguments;
use super::errors::Errors;
use super::nearest::nearest;
use super::options::Options;
use super::settings;
use super::spans::Place;
use super::values::Context;

/// Every name that occurs in the tokens, also as an inline argument of a format string.
pub(super) fn names(tokens: TokenStream) -> HashSet<String> {
    let mut names = HashSet::new();
    collect_names(tokens, &mut names);
    names
}

fn collect_names(tokens: TokenStream, names: &mut HashSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(name) => {
                names.insert(name.unraw().to_string());
            }
            TokenTree::Group(group) => collect_names(group.stream(), names),
            TokenTree::Literal(literal) => {
                if let Lit::Str(text) = Lit::new(literal) {
                    names.extend(format_arguments(&text.value()));
                }
            }
            TokenTree::Punct(_) => {}
        }
    }
}

/// The `name` of each `{name}` and `{name:…}`.
pub(super) fn format_arguments(text: &str) -> Vec<String> {
    let openings = text.split('{').skip(1);
    let names =
        openings.map(|after| after.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or_default());
    names.filter(|name| !name.is_empty()).map(ToOwned::to_owned).collect()
}

/// The names that a pattern binds.
pub(super) fn bound(pattern: &Pat) -> Vec<Ident> {
    let mut found = Vec::new();
    collect_bound(pattern, &mut found);
    found
}

fn collect_bound(pattern: &Pat, found: &mut Vec<Ident>) {
    match pattern {
        Pat::Ident(ident) => {
            found.push(ident.ident.clone());
            if let Some((_, inner)) = &ident.subpat {
                collect_bound(inner, found);
            }
        }
        Pat::Or(or) => or.cases.iter().for_each(|case| collect_bound(case, found)),
        Pat::Paren(paren) => collect_bound(&paren.pat, found),
        Pat::Reference(reference) => collect_bound(&reference.pat, found),
        Pat::Slice(slice) => slice.elems.iter().for_each(|element| collect_bound(element, found)),
        Pat::Struct(fields) => fields.fields.iter().for_each(|field| collect_bound(&field.pat, found)),
        Pat::Tuple(tuple) => tuple.elems.iter().for_each(|element| collect_bound(element, found)),
        Pat::TupleStruct(tuple) => tuple.elems.iter().for_each(|element| collect_bound(element, found)),
        Pat::Type(typed) => collect_bound(&typed.pat, found),
        _ => {}
    }
}

/// The pattern for a reference to the argument: without `mut` and `ref`, which a match through a reference forbids.
pub(super) fn pattern_by_reference(pattern: &Pat) -> TokenStream {
    strip_modes(pattern.to_token_stream())
}

fn strip_modes(tokens: TokenStream) -> TokenStream {
    let kept = tokens.into_iter().filter_map(|token| match token {
        TokenTree::Ident(word) if word == "mut" || word == "ref" => None,
        TokenTree::Group(group) => {
            let mut stripped = proc_macro2::Group::new(group.delimiter(), strip_modes(group.stream()));
            stripped.set_span(group.span());
            Some(TokenTree::Group(stripped))
        }
        other => Some(other),
    });
    kept.collect()
}

/// The expression by reference. A tuple is taken apart, so that its fields are borrowed and not moved.
pub(super) fn by_reference(expression: &Expr) -> TokenStream {
    let span = Place::of(expression).first();
    match expression {
        Expr::Paren(paren) => by_reference(&paren.expr),
        Expr::Group(group) => by_reference(&group.expr),
        Expr::Tuple(tuple) if !tuple.elems.is_empty() => {
            let elements = tuple.elems.iter().map(by_reference);
            quote_spanned!(span=> &(#(#elements,)*))
        }
        _ if binds_tightly(expression) => quote_spanned!(span=> &#expression),
        _ => quote_spanned!(span=> &(#expression)),
    }
}

fn binds_tightly(expression: &Expr) -> bool {
    matches!(
        expression,
        Expr::Path(_)
            | Expr::Field(_)
            | Expr::MethodCall(_)
            | Expr::Call(_)
            | Expr::Macro(_)
            | Expr::Index(_)
            | Expr::Lit(_)
            | Expr::Reference(_)
            | Expr::Unary(_)
            | Expr::Block(_)
    )
}

/// What a function offers to the expressions of its options.
struct Names {
    /// Bound by the arguments that may be used.
    available: Vec<String>,
    /// `tx` or `op`, which does not exist yet.
    unit: Option<String>,
}

/// Reports what is wrong with the expressions of `scope`, `key`, `fingerprint` and `idempotency`. Gives the names of the
/// options that must not be used.
pub(super) fn check(options: &Options, arguments: &Arguments, errors: &Errors) -> HashSet<String> {
    let bound = arguments.outer().flat_map(|argument| bound(&argument.pattern));
    let names = Names { available: bound.map(|name| name.unraw().to_string()).collect(), unit: arguments.unit_name() };
    let values = Context {
        arguments: &names.available,
        is_plain_function: arguments.is_plain_function,
        scope: options.scope.as_ref().filter(|scope| !settings::is_keyword(scope)).map(|scope| &scope.value),
        errors,
    };
    let mut wrong = HashSet::new();
    for option in [&options.scope, &options.key, &options.fingerprint, &options.idempotency].into_iter().flatten() {
        if settings::is_keyword(option) {
            continue;
        }
        let name = option.name.to_string();
        let is_wrong = check_names(&name, &option.value, &names, errors)
            || name != "idempotency" && values.check(option)
            || !arguments.is_plain_function && is_of_a_broken_argument(&option.value, arguments);
        if is_wrong {
            wrong.insert(name);
        }
    }
    wrong
}

/// What is not generated for an argument cannot be used either.
fn is_of_a_broken_argument(expression: &Expr, arguments: &Arguments) -> bool {
    let used = names(expression.to_token_stream());
    let mut broken = arguments.rest().filter(|argument| argument.is_broken);
    broken.any(|argument| bound(&argument.pattern).iter().any(|name| used.contains(&name.unraw().to_string())))
}

/// Reports the values in `expression` that are no argument. Only what must be a value in lower case counts: functions,
/// paths and constants are the application's.
fn check_names(option: &str, expression: &Expr, names: &Names, errors: &Errors) -> bool {
    let mut found = false;
    let mut roots = Vec::new();
    collect_roots(expression, &mut roots);
    for root in roots {
        let text = root.unraw().to_string();
        let is_value = text.starts_with(|c: char| c.is_lowercase() || c == '_');
        if !is_value || text == "self" || names.available.contains(&text) {
            continue;
        }
        let is_alone = matches!(peeled(expression), Expr::Path(_));
        errors.beside(&root, unknown_name(option, &text, names, is_alone));
        found = true;
    }
    found
}

/// The expression inside of the invisible groups that macros leave.
pub(super) fn peeled(expression: &Expr) -> &Expr {
    match expression {
        Expr::Group(group) => peeled(&group.expr),
        other => other,
    }
}

/// `is_alone`: the option has no more of a value than this name, which may have been meant to be one of its words.
fn unknown_name(option: &str, text: &str, names: &Names, is_alone: bool) -> String {
    let words: &[&str] = match option {
        "scope" if is_alone => &["global"],
        "key" if is_alone => &["header", "optional"],
        _ => &[],
    };
    if let Some(word) = nearest(text, words.iter().copied()) {
        return format!("`{text}` is no word of `{option}` and no argument of the function; use `{option} = {word}`");
    }
    if names.unit.as_deref() == Some(text) {
        return format!("`{text}` does not exist yet when `{option}` is evaluated; use the other arguments");
    }
    let available = names.available.iter().map(String::as_str);
    match (nearest(text, available.clone()), names.available.as_slice()) {
        (Some(near), _) => format!("`{text}` is no argument of the function; use `{near}`"),
        (None, []) => {
            format!("`{text}` is no argument of the function, and there is none that `{option}` could use; add one")
        }
        (None, [one]) => format!("`{text}` is no argument of the function; use `{one}`"),
        (None, several) => {
            let listed: Vec<String> = several.iter().map(|name| format!("`{name}`")).collect();
            format!("`{text}` is no argument of the function; use one of {}", listed.join(", "))
        }
    }
}

/// The names that values start from: `tenant` of `tenant.owner().id`. A name given to a call may be a function, so
/// it is left to the compiler; so are closures and blocks, which have names of their own.
fn collect_roots(expression: &Expr, roots: &mut Vec<Ident>) {
    match expression {
        Expr::Path(path) if path.qself.is_none() => roots.extend(path.path.get_ident().cloned()),
        Expr::Field(field) => collect_roots(&field.base, roots),
        Expr::MethodCall(call) => {
            collect_roots(&call.receiver, roots);
            collect_roots_of_arguments(&call.args, roots);
        }
        Expr::Call(call) => collect_roots_of_arguments(&call.args, roots),
        Expr::Reference(reference) => collect_roots(&reference.expr, roots),
        Expr::Unary(unary) => collect_roots(&unary.expr, roots),
        Expr::Paren(paren) => collect_roots(&paren.expr, roots),
        Expr::Group(group) => collect_roots(&group.expr, roots),
        Expr::Cast(cast) => collect_roots(&cast.expr, roots),
        Expr::Try(attempt) => collect_roots(&attempt.expr, roots),
        Expr::Index(index) => collect_roots(&index.expr, roots),
        Expr::Tuple(tuple) => tuple.elems.iter().for_each(|element| collect_roots(element, roots)),
        Expr::Binary(binary) => {
            collect_roots(&binary.left, roots);
            collect_roots(&binary.right, roots);
        }
        _ => {}
    }
}

fn collect_roots_of_arguments<'a>(arguments: impl IntoIterator<Item = &'a Expr>, roots: &mut Vec<Ident>) {
    arguments
        .into_iter()
        .filter(|argument| !matches!(argument, Expr::Path(_)))
        .for_each(|argument| collect_roots(argument, roots));
}

/// Whether the options are those of a function that is called: a key of its own, and a scope that is the same for all.
pub(super) fn looks_called(options: &Options) -> bool {
    let has_key = options
        .key
        .as_ref()
        .is_some_and(|key| !settings::is_keyword(key) && !matches!(peeled(&key.value), Expr::Lit(_)));
    let scope = options.scope.as_ref().map(|scope| peeled(&scope.value));
    has_key
        && matches!(scope, Some(Expr::Lit(literal)) if matches!(&literal.lit, Lit::Str(text) if !text.value().is_empty()))
}
