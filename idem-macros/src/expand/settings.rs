//! The options after validation. Code generation sees only this.

use std::collections::HashSet;
use std::time::Duration;

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote};
use syn::{Expr, ExprLit, Lit, Type};

use super::duration;
use super::errors::Errors;
use super::expression::peeled;
use super::nearest::nearest;
use super::options::{Options, Written};

pub(super) struct Settings {
    /// The path of the runtime, `::idem_runtime` unless renamed.
    pub(super) runtime: TokenStream,
    pub(super) scope: Scope,
    pub(super) key: Key,
    pub(super) ttl: Duration,
    pub(super) wait: Option<Duration>,
    pub(super) replay_failures: bool,
    pub(super) lease: Option<Duration>,
    pub(super) isolation: Option<Isolation>,
    pub(super) fingerprint: Option<Expr>,
    pub(super) state: Option<Type>,
    pub(super) idempotency: Option<Expr>,
    pub(super) allow_pool: bool,
}

pub(super) enum Scope {
    Global,
    Expression(Expr),
}

pub(super) enum Key {
    Header,
    Optional,
    Expression(Expr),
}

#[derive(Clone, Copy)]
pub(super) enum Isolation {
    ReadCommitted,
    RepeatableRead,
    Serializable,
}

/// What the signature says about the function that the options must agree with.
pub(super) struct Form {
    /// It takes `&Idempotency` and is called, not routed.
    pub(super) is_plain_function: bool,
    /// It takes `op: &mut Operation`.
    pub(super) is_multi_step: bool,
}

impl Settings {
    /// What is missing or wrong is reported, and the generated code does without it. `wrong` names the options whose
    /// expressions must not be used.
    pub(super) fn validate(
        options: Options,
        form: &Form,
        wrong: &HashSet<String>,
        whole: &TokenStream,
        errors: &Errors,
    ) -> Self {
        let missing = Missing { options: &options, whole, errors };
        if options.scope.is_none() {
            missing.report(
                "scope",
                "whose keys these are; use `scope = tenant.id`, or `scope = global` to share one space",
            );
        }
        if options.ttl.is_none() {
            missing.report("ttl", "how long an outcome is replayed; use `ttl = \"24h\"`");
        }
        if form.is_plain_function && options.key.is_none() {
            missing.report("key", "the key of this call, because a function that takes `&Idempotency` has no header; use `key = message.id`");
        }
        check_combinations(&options, form, errors);
        let ttl = options.ttl.as_ref().and_then(|ttl| read_ttl(ttl, errors));
        let wait = options.in_flight.as_ref().and_then(|in_flight| read_in_flight(in_flight, errors));
        let replay_failures = options.failures.as_ref().is_some_and(|failures| read_failures(failures, errors));
        let lease = options.lease.as_ref().and_then(|lease| read_lease(lease, errors));
        let isolation = options.isolation.as_ref().and_then(|isolation| read_isolation(isolation, errors));
        check_within_ttl(&options, ttl, lease, wait, errors);
        let used = |option: Option<Written<Expr>>| {
            option.filter(|option| !wrong.contains(&option.name.to_string())).map(|option| option.value)
        };
        let allow_pool = options.allows("pool");
        Self {
            runtime: options.runtime.map_or_else(|| quote!(::idem_runtime), |path| path.value.into_token_stream()),
            scope: used(options.scope).map_or(Scope::Global, read_scope),
            key: used(options.key).map_or(Key::Header, read_key),
            ttl: ttl.unwrap_or(Duration::from_secs(1)),
            wait,
            replay_failures,
            lease,
            isolation,
            fingerprint: used(options.fingerprint),
            state: options.state.map(|state| state.value),
            idempotency: used(options.idempotency).filter(|_| !form.is_plain_function),
            allow_pool,
        }
    }
}

struct Missing<'a> {
    options: &'a Options,
    whole: &'a TokenStream,
    errors: &'a Errors,
}

impl Missing<'_> {
    /// There is no token to stand on but what is written instead, or the attribute itself.
    fn report(&self, name: &str, meaning: &str) {
        if self.options.mentions(name) {
            return;
        }
        let message = format!("option `{name}` must say {meaning}");
        if self.whole.is_empty() {
            self.errors.push(syn::Error::new(Span::call_site(), message));
        } else {
            self.errors.beside(self.whole, message);
        }
    }
}

fn check_combinations(options: &Options, form: &Form, errors: &Errors) {
    if let Some(key) = &options.key {
        let word = keyword(&key.value).unwrap_or_default();
        if form.is_plain_function && (word == "header" || word == "optional") {
            let message = "option `key` must be an expression, because a function that takes `&Idempotency` has no header; use `key = message.id`";
            errors.beside(&key.value, message);
        } else if form.is_multi_step && word == "optional" {
            let message = "`key = optional` must go with `tx: &mut Tx`, because the steps of an `Operation` need a key; use `key = header`";
            errors.beside(&key.value, message);
        }
    }
    if form.is_plain_function {
        if let Some(state) = &options.state {
            errors.beside(&state.name, "option `state` must go with a handler, because a function that takes `&Idempotency` is not routed; remove it");
        }
        if let Some(idempotency) = &options.idempotency {
            errors.beside(&idempotency.name, "option `idempotency` must go with a handler, because a function takes `&Idempotency` as an argument; remove it");
        }
        if let Some(failures) = &options.failures {
            errors.beside(&failures.name, "option `failures` must go with a handler, because the `Err` of a function always releases the key; remove it");
        }
    }
}

fn read_scope(value: Expr) -> Scope {
    match keyword(&value).as_deref() {
        Some("global") => Scope::Global,
        _ => Scope::Expression(value),
    }
}

fn read_key(value: Expr) -> Key {
    match keyword(&value).as_deref() {
        Some("header") => Key::Header,
        Some("optional") => Key::Optional,
        _ => Key::Expression(value),
    }
}

/// Whether the value is a word with a meaning of its own and no expression.
pub(super) fn is_keyword(option: &Written<Expr>) -> bool {
    let word = keyword(&option.value).unwrap_or_default();
    match option.name.to_string().as_str() {
        "scope" => word == "global",
        "key" => word == "header" || word == "optional",
        _ => false,
    }
}

/// The one identifier that an expression consists of.
fn keyword(value: &Expr) -> Option<String> {
    match peeled(value) {
        Expr::Path(path) => path.path.get_ident().map(ToString::to_string),
        _ => None,
    }
}

/// The text of a string literal, or an error that shows one: what was written, if it only lacks the quotes.
fn read_text(option: &Written<Expr>, example: &str, is_text: impl Fn(&str) -> bool, errors: &Errors) -> Option<String> {
    if let Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) = peeled(&option.value) {
        return Some(text.value());
    }
    let name = &option.name;
    let written = option.value.to_token_stream().to_string();
    let example = if is_text(&written) { written.as_str() } else { example };
    errors
        .beside(&option.value, format_args!("option `{name}` must be a string literal; use `{name} = \"{example}\"`"));
    None
}

fn read_duration(option: &Written<Expr>, errors: &Errors) -> Option<Duration> {
    let example = if option.name == "ttl" { "24h" } else { "60s" };
    let text = read_text(option, example, |text| duration::parse(text).is_ok(), errors)?;
    match duration::parse(&text) {
        Ok(duration) => Some(duration),
        Err(error) => {
            errors.beside(&option.value, format_args!("option `{}` {error}", option.name));
            None
        }
    }
}

fn read_ttl(option: &Written<Expr>, errors: &Errors) -> Option<Duration> {
    let ttl = read_duration(option, errors)?;
    if ttl < Duration::from_secs(1) {
        errors.beside(&option.value, "option `ttl` must be at least a second; use a duration such as `24h`");
        return None;
    }
    Some(ttl)
}

/// Below this, what the handler does is no longer what takes the time.
fn read_lease(option: &Written<Expr>, errors: &Errors) -> Option<Duration> {
    let lease = read_duration(option, errors)?;
    if lease < Duration::from_secs(1) {
        errors.beside(&option.value, "option `lease` must be at least a second; use a duration such as `60s`");
        return None;
    }
    Some(lease)
}

/// An outcome that is gone before a duplicate may see it is no outcome.
fn check_within_ttl(
    options: &Options,
    ttl: Option<Duration>,
    lease: Option<Duration>,
    wait: Option<Duration>,
    errors: &Errors,
) {
    let Some(ttl) = ttl else { return };
    if let Some(option) = options.lease.as_ref().filter(|_| lease.is_some_and(|lease| lease > ttl)) {
        let message = "option `lease` must not be longer than `ttl`, because a claim must not outlive its outcome; use a shorter one";
        errors.beside(&option.value, message);
    }
    if let Some(option) = options.in_flight.as_ref().filter(|_| wait.is_some_and(|wait| wait > ttl)) {
        let message = "the time to wait must not be longer than `ttl`, because the outcome may be gone by then; use a shorter one";
        errors.beside(&option.value, message);
    }
}

/// The time to wait behind `wait`, `None` for other words.
fn wait_of(text: &str) -> Option<&str> {
    text.trim().strip_prefix("wait").filter(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
}

fn read_in_flight(option: &Written<Expr>, errors: &Errors) -> Option<Duration> {
    let is_text = |text: &str| text == "reject" || wait_of(text).is_some_and(|wait| duration::parse(wait).is_ok());
    let text = read_text(option, "wait 2s", is_text, errors)?;
    if text.trim() == "reject" {
        return None;
    }
    let Some(wait) = wait_of(&text) else {
        errors
            .on(&option.value, format_args!("option `in_flight` must be `\"reject\"` or `\"wait 2s\"`, not `{text}`"));
        return None;
    };
    match duration::parse(wait) {
        Ok(wait) => Some(wait),
        Err(duration::DurationError::Empty) => {
            errors.beside(&option.value, "option `in_flight` must say how long to wait; use `\"wait 2s\"`");
            None
        }
        Err(error) => {
            errors.beside(&option.value, format_args!("the time to wait {error}"));
            None
        }
    }
}

fn read_failures(option: &Written<Expr>, errors: &Errors) -> bool {
    let is_text = |text: &str| text == "release" || text == "replay";
    match read_text(option, "replay", is_text, errors).as_deref() {
        Some("release") | None => false,
        Some("replay") => true,
        Some(other) => {
            let message = match nearest(other, ["release", "replay"]) {
                Some(known) => format!("option `failures` must be `\"release\"` or `\"replay\"`; use `\"{known}\"`"),
                None => format!("option `failures` must be `\"release\"` or `\"replay\"`, not `{other}`"),
            };
            errors.beside(&option.value, message);
            false
        }
    }
}

fn read_isolation(option: &Written<Expr>, errors: &Errors) -> Option<Isolation> {
    const LEVELS: &[&str] = &["read committed", "repeatable read", "serializable"];
    let text = read_text(option, "serializable", |text| LEVELS.contains(&text), errors)?;
    match text.as_str() {
        "read committed" => Some(Isolation::ReadCommitted),
        "repeatable read" => Some(Isolation::RepeatableRead),
        "serializable" => Some(Isolation::Serializable),
        other => {
            let message = match nearest(other, LEVELS.iter().copied()) {
                Some(known) => format!("option `isolation` has no level `{other}`; use `\"{known}\"`"),
                None => format!(
                    "option `isolation` must be `\"read committed\"`, `\"repeatable read\"` or `\"serializable\"`, not `{other}`"
                ),
            };
            errors.beside(&option.value, message);
            None
        }
    }
}
