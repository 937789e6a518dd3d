//! The arguments: which is `tx` or `op`, which is `&Idempotency`, and which are the rest, for axum to extract or the
//! caller to give.

use std::collections::HashSet;

use quote::ToTokens;
use syn::ext::IdentExt;
use syn::{Attribute, FnArg, Pat, PatType, Type};

use super::errors::Errors;
use super::expression;
use super::function::Function;
use super::types;

/// axum implements `Handler` for 16 arguments, and the claim is one of them.
const MOST_EXTRACTORS: usize = 15;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// `tx: &mut Tx`
    Transaction,
    /// `op: &mut Operation`
    Operation,
}

pub(super) enum Parameter {
    /// `tx` or `op`.
    Unit(UnitParameter),
    /// `&Idempotency`
    Idempotency(Argument),
    /// An extractor of a handler, or a parameter of a plain function.
    Argument(Argument),
}

pub(super) struct UnitParameter {
    pub(super) pattern: Pat,
    pub(super) unit: Unit,
    /// It is taken as it must be.
    pub(super) is_right: bool,
}

pub(super) struct Argument {
    /// Only these of its attributes have a meaning outside of the user's function.
    pub(super) conditions: Vec<Attribute>,
    pub(super) pattern: Pat,
    pub(super) ty: Type,
    /// It is reported: no other check says anything about it, and nothing is generated for it.
    pub(super) is_broken: bool,
}

pub(super) struct Arguments {
    pub(super) unit: Unit,
    pub(super) parameters: Vec<Parameter>,
    /// The function takes `&Idempotency`, so it is called, not routed.
    pub(super) is_plain_function: bool,
}

enum Role {
    Unit(Unit),
    Idempotency,
    /// In a form that does not work.
    WrongUnit(Unit),
    /// The same, or a type of the application with that name.
    MaybeUnit(Unit),
    WrongIdempotency,
    Argument,
}

impl Arguments {
    /// Reads all of them, whatever mistakes there are.
    pub(super) fn read(function: &Function, hints: Hints, errors: &Errors) -> Self {
        let is_plain_function = takes_idempotency(function);
        let has_unit = function.signature.inputs.iter().any(|input| match input {
            FnArg::Typed(argument) => matches!(role(&argument.ty), Role::Unit(_)),
            FnArg::Receiver(_) => false,
        });
        let mut reader = Reader { unit: None, wrong_unit: None, has_unit, parameters: Vec::new(), errors };
        for input in &function.signature.inputs {
            if let FnArg::Typed(argument) = input {
                reader.read(argument);
            }
        }
        reader.check_unit(function, is_plain_function);
        let unit = reader.unit.or(reader.wrong_unit).unwrap_or(Unit::Transaction);
        let mut this = Self { unit, parameters: reader.parameters, is_plain_function };
        let unit = this.unit;
        for argument in this.rest_mut() {
            argument.is_broken = check_pool(argument, unit, hints.allow_pool, is_plain_function, errors);
        }
        if is_plain_function {
            return this;
        }
        if hints.looks_called && this.rest().all(may_be_a_parameter) {
            let message = "a function that is called and not routed must take `&Idempotency`, because it has no state to find it in; add `idempotency: &Idempotency` to the arguments";
            errors.on(&function.signature.ident, message);
            this.is_plain_function = true;
            return this;
        }
        for argument in this.rest_mut() {
            argument.is_broken |= check_extractor(argument, errors);
        }
        this.check_count(errors);
        this
    }

    /// The pattern of `tx` or `op`.
    pub(super) fn unit_pattern(&self) -> Option<&Pat> {
        self.parameters.iter().find_map(|parameter| match parameter {
            Parameter::Unit(parameter) => Some(&parameter.pattern),
            _ => None,
        })
    }

    /// The names bound by arguments that a client sends, in which there is no pool.
    pub(super) fn names_of_payloads(&self) -> Vec<String> {
        const PAYLOADS: &[&str] = &["Json", "Form", "Query", "Path", "Multipart", "HeaderMap", "Bytes", "String"];
        self.names_where(|argument| types::name(&argument.ty).is_some_and(|name| PAYLOADS.contains(&name.as_str())))
    }

    /// The names bound by arguments whose types are pools by name.
    pub(super) fn names_of_pools(&self) -> HashSet<String> {
        self.names_where(|argument| types::pool(&argument.ty).is_some()).into_iter().collect()
    }

    fn names_where(&self, is_meant: impl Fn(&Argument) -> bool) -> Vec<String> {
        let meant = self.rest().filter(|argument| is_meant(argument));
        let names = meant.flat_map(|argument| expression::bound(&argument.pattern));
        names.map(|name| name.unraw().to_string()).collect()
    }

    /// All but `tx`, `op` and `&Idempotency`.
    pub(super) fn rest(&self) -> impl Iterator<Item = &Argument> {
        self.parameters.iter().filter_map(|parameter| match parameter {
            Parameter::Argument(argument) => Some(argument),
            Parameter::Unit(_) | Parameter::Idempotency(_) => None,
        })
    }

    /// All but `tx` and `op`.
    pub(super) fn outer(&self) -> impl Iterator<Item = &Argument> {
        self.parameters.iter().filter_map(|parameter| match parameter {
            Parameter::Argument(argument) | Parameter::Idempotency(argument) => Some(argument),
            Parameter::Unit(_) => None,
        })
    }

    /// What the user calls `tx` or `op`.
    pub(super) fn unit_name(&self) -> Option<String> {
        self.parameters.iter().find_map(|parameter| match parameter {
            Parameter::Unit(UnitParameter { pattern: Pat::Ident(pattern), .. }) => {
                Some(pattern.ident.unraw().to_string())
            }
            _ => None,
        })
    }

    fn rest_mut(&mut self) -> impl Iterator<Item = &mut Argument> {
        self.parameters.iter_mut().filter_map(|parameter| match parameter {
            Parameter::Argument(argument) => Some(argument),
            Parameter::Unit(_) | Parameter::Idempotency(_) => None,
        })
    }

    fn check_count(&self, errors: &Errors) {
        let mut unconditional = self.rest().filter(|argument| argument.conditions.is_empty());
        if let Some(extra) = unconditional.nth(MOST_EXTRACTORS) {
            let message = format!(
                "a handler must have at most {MOST_EXTRACTORS} extractors; use a tuple such as `(a, b): (A, B)` for some of them"
            );
            errors.on(&extra.ty, message);
        }
    }
}

fn check_pool(argument: &Argument, unit: Unit, is_allowed: bool, is_plain_function: bool, errors: &Errors) -> bool {
    let Some(pool) = types::pool(&argument.ty).filter(|_| !is_allowed) else { return false };
    let unit = match unit {
        Unit::Transaction => "`tx`",
        Unit::Operation => "`op.transaction(…)`",
    };
    let message = format!(
        "`{pool}` writes outside of the transaction; use {unit}, or `allow(pool)` in the attribute if this pool is for reading or for another database"
    );
    if is_plain_function {
        errors.beside(pool, message);
        return false;
    }
    errors.on(pool, message);
    true
}

/// Whether this is a function to call: it takes `&Idempotency`, possibly in a wrong form.
pub(super) fn takes_idempotency(function: &Function) -> bool {
    function.signature.inputs.iter().any(|input| match input {
        FnArg::Typed(argument) => matches!(role(&argument.ty), Role::Idempotency | Role::WrongIdempotency),
        FnArg::Receiver(_) => false,
    })
}

/// Whether somebody may give this to a function: no extractor of axum, for which there would be a request.
fn may_be_a_parameter(argument: &Argument) -> bool {
    const EXTRACTORS: &[&str] = &[
        "Json",
        "Form",
        "Query",
        "Path",
        "State",
        "Extension",
        "Multipart",
        "HeaderMap",
        "Bytes",
        "Request",
        "Method",
        "Uri",
        "OriginalUri",
        "MatchedPath",
        "ConnectInfo",
        "TypedHeader",
        "RawQuery",
        "RawForm",
    ];
    !types::name(&argument.ty).is_some_and(|name| EXTRACTORS.contains(&name.as_str()))
}

/// What the options say about the function.
#[derive(Clone, Copy)]
pub(super) struct Hints {
    pub(super) allow_pool: bool,
    /// The key is an expression and the scope is a constant, as only functions that are called have them.
    pub(super) looks_called: bool,
}

struct Reader<'a> {
    unit: Option<Unit>,
    wrong_unit: Option<Unit>,
    /// One of the arguments is `tx` or `op` in the right form, so that others may be called `Operation`.
    has_unit: bool,
    parameters: Vec<Parameter>,
    errors: &'a Errors,
}

impl Reader<'_> {
    fn read(&mut self, argument: &PatType) {
        match role(&argument.ty) {
            Role::Unit(unit) => self.read_unit(unit, argument),
            Role::MaybeUnit(_) if self.has_unit => {
                self.parameters.push(Parameter::Argument(self.argument(argument)));
            }
            Role::WrongUnit(unit) | Role::MaybeUnit(unit) => {
                self.wrong_unit = Some(unit);
                self.errors.on(&argument.ty, form_of(unit));
                self.parameters.push(Parameter::Unit(UnitParameter {
                    pattern: (*argument.pat).clone(),
                    unit,
                    is_right: false,
                }));
            }
            Role::Idempotency => self.parameters.push(Parameter::Idempotency(self.argument(argument))),
            Role::WrongIdempotency => {
                let message = "the `Idempotency` of a function must be borrowed; use `&Idempotency`";
                self.errors.on(&argument.ty, message);
                let argument = Argument { is_broken: true, ..self.argument(argument) };
                self.parameters.push(Parameter::Idempotency(argument));
            }
            Role::Argument => self.parameters.push(Parameter::Argument(self.argument(argument))),
        }
    }

    fn read_unit(&mut self, unit: Unit, argument: &PatType) {
        match self.unit {
            None => self.unit = Some(unit),
            Some(first) if first == unit => {
                let shown = types::shown(&argument.ty);
                self.errors.on(argument, format_args!("`{shown}` must be taken once; remove one of the two"));
            }
            Some(_) => {
                let message = "a function must take either `tx: &mut Tx` or `op: &mut Operation`; use `op.transaction(…)` for the transactions of an operation";
                self.errors.on(argument, message);
            }
        }
        if let Some(condition) = argument.attrs.iter().find(|attribute| is_condition(attribute)) {
            let message = "`tx` and `op` must not depend on a `cfg`; put the `cfg` on two versions of the function";
            self.errors.on(condition, message);
        }
        let parameter = UnitParameter { pattern: (*argument.pat).clone(), unit, is_right: true };
        self.parameters.push(Parameter::Unit(parameter));
    }

    fn argument(&self, argument: &PatType) -> Argument {
        for attribute in &argument.attrs {
            if attribute.path().is_ident("cfg_attr") && attribute.to_token_stream().to_string().contains("cfg (") {
                let message = "a condition on an argument must be a plain `#[cfg(…)]`; use it instead of `cfg_attr`";
                self.errors.on(attribute, message);
            }
        }
        Argument {
            conditions: argument.attrs.iter().filter(|attribute| is_condition(attribute)).cloned().collect(),
            pattern: (*argument.pat).clone(),
            ty: (*argument.ty).clone(),
            is_broken: false,
        }
    }

    fn check_unit(&self, function: &Function, is_plain_function: bool) {
        if self.unit.is_some() || self.wrong_unit.is_some() {
            return;
        }
        let what = if is_plain_function { "an idempotent function" } else { "an idempotent handler" };
        let message = format!(
            "{what} must take `tx: &mut Tx` (one transaction) or `op: &mut Operation` (several steps); add one of them to the arguments"
        );
        self.errors.on(&function.signature.ident, message);
    }
}

fn name_of(pattern: &Pat) -> Option<String> {
    match pattern {
        Pat::Ident(pattern) => Some(pattern.ident.unraw().to_string()),
        _ => None,
    }
}

fn is_condition(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg")
}

fn form_of(unit: Unit) -> &'static str {
    match unit {
        Unit::Transaction => {
            "the transaction must be taken as `&mut Tx`: the claim, the writes and the response share it; use `tx: &mut Tx`"
        }
        Unit::Operation => "the operation must be taken as `&mut Operation`; use `op: &mut Operation`",
    }
}

fn role(ty: &Type) -> Role {
    let (target, borrowed_mutably, plainly) = match types::peel(ty) {
        Type::Reference(reference) => (
            &*reference.elem,
            reference.mutability.is_some(),
            reference.lifetime.as_ref().is_none_or(|lifetime| lifetime.ident != "static"),
        ),
        other => (other, false, false),
    };
    let is_reference = !std::ptr::eq(target, types::peel(ty));
    let generic = !types::type_arguments(target).is_empty();
    match types::name(target).unwrap_or_default().as_str() {
        "Tx" if borrowed_mutably && plainly => Role::Unit(Unit::Transaction),
        "Tx" if is_reference || !generic => Role::WrongUnit(Unit::Transaction),
        "Operation" if borrowed_mutably && plainly => Role::Unit(Unit::Operation),
        "Operation" if !generic && is_runtime_path(target) => Role::MaybeUnit(Unit::Operation),
        "PgTransaction" | "PgConnection" | "PoolConnection" => Role::WrongUnit(Unit::Transaction),
        "Transaction" if types::shown(target).contains("Postgres") => Role::WrongUnit(Unit::Transaction),
        "Transaction" if borrowed_mutably && is_runtime_path(target) => Role::MaybeUnit(Unit::Transaction),
        "Idempotency" if is_reference && !borrowed_mutably => Role::Idempotency,
        "Idempotency" => Role::WrongIdempotency,
        _ => Role::Argument,
    }
}

/// `Operation` alone is by value what the design calls so; a longer path might be the application's own type.
fn is_runtime_path(ty: &Type) -> bool {
    match types::peel(ty) {
        Type::Path(path) => path.path.segments.len() == 1 || path.path.segments[0].ident == "idem_runtime",
        _ => false,
    }
}

/// Reports what cannot be an extractor whatever the state is. The rest is left to the checks of types.
fn check_extractor(argument: &Argument, errors: &Errors) -> bool {
    let ty = types::peel(&argument.ty);
    let name = name_of(&argument.pattern).unwrap_or_else(|| "value".to_owned());
    let shown = types::shown(ty);
    let optional = types::name(ty).is_some_and(|name| name == "Option");
    let is_optional_primitive =
        optional && types::type_arguments(ty).first().is_some_and(|inner| types::is_primitive(inner));
    let message = match ty {
        Type::ImplTrait(_) => format!(
            "argument `{name}` must have a named type, because a handler is not generic; use the extractor's own type"
        ),
        Type::Reference(_) => {
            format!(
                "argument `{name}` must be owned, because axum extracts it from the request; use an extractor such as `Json<T>` instead of `{shown}`"
            )
        }
        Type::Array(_) | Type::FnPtr(_) | Type::Never(_) | Type::Ptr(_) | Type::Slice(_) | Type::TraitObject(_) => {
            format!("argument `{name}` must be an extractor, and `{shown}` is none; use one such as `Json<T>`")
        }
        _ if is_optional_primitive => {
            format!(
                "argument `{name}` must be an extractor, and `{shown}` is none; use `Query<T>` with a field of that type"
            )
        }
        _ if types::is_primitive(ty) => {
            format!("argument `{name}` must be an extractor, and `{shown}` is none; use `Path({name}): Path<{shown}>`")
        }
        _ if types::name(ty).is_some_and(|name| name == "WebSocketUpgrade") => {
            "the response must be stored to be replayed, and a WebSocket has no end; use a route of its own for it"
                .to_owned()
        }
        _ => return false,
    };
    errors.on(ty, message);
    true
}

/// Whether the type is `&Idempotency`.
pub(super) fn is_idempotency(ty: &Type) -> bool {
    matches!(role(ty), Role::Idempotency)
}

/// Whether this is the argument that callers do not give: `tx` or `op`, possibly in a wrong form.
pub(super) fn is_unit(ty: &Type) -> bool {
    matches!(role(ty), Role::Unit(_) | Role::WrongUnit(_) | Role::MaybeUnit(_))
}
