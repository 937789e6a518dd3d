//! The arguments: which is `tx` or `op`, which is `&Idempotency`, and which are the rest, for axum to extract or the
//! caller to give.

use quote::ToTokens;
use syn::ext::IdentExt;
use syn::{Attribute, FnArg, Pat, PatType, Type};

use super::errors::Errors;
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
    /// The place of `tx` or `op`, and the name it was given.
    Unit(Option<String>),
    /// `&Idempotency`
    Idempotency(Argument),
    /// An extractor of a handler, or a parameter of a plain function.
    Argument(Argument),
}

pub(super) struct Argument {
    /// Only these of its attributes have a meaning outside of the user's function.
    pub(super) conditions: Vec<Attribute>,
    pub(super) pattern: Pat,
    pub(super) ty: Type,
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
    /// The unit in a form that does not work, and what to write.
    WrongUnit(&'static str),
    WrongIdempotency,
    Argument,
}

impl Arguments {
    /// Reads all of them, whatever mistakes there are.
    pub(super) fn read(function: &Function, allow_pool: bool, errors: &Errors) -> Self {
        let is_plain_function = takes_idempotency(function);
        let mut reader = Reader { unit: None, wrong_unit: false, parameters: Vec::new(), errors };
        for input in &function.signature.inputs {
            if let FnArg::Typed(argument) = input {
                reader.read(argument);
            }
        }
        reader.check_unit(function, is_plain_function);
        let unit = reader.unit.unwrap_or(Unit::Transaction);
        let this = Self { unit, parameters: reader.parameters, is_plain_function };
        for argument in this.rest() {
            this.check_pool(argument, allow_pool, errors);
            if !is_plain_function {
                check_extractor(argument, errors);
            }
        }
        if !is_plain_function {
            this.check_count(errors);
        }
        this
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
    pub(super) fn unit_name(&self) -> Option<&str> {
        self.parameters.iter().find_map(|parameter| match parameter {
            Parameter::Unit(name) => name.as_deref(),
            _ => None,
        })
    }

    fn check_pool(&self, argument: &Argument, allow_pool: bool, errors: &Errors) {
        let Some(pool) = types::pool(&argument.ty).filter(|_| !allow_pool) else { return };
        let unit = match self.unit {
            Unit::Transaction => "`tx`",
            Unit::Operation => "`op.transaction(…)`",
        };
        let message = format!(
            "`{pool}` writes outside of the transaction; use {unit}, or `allow(pool)` in the attribute if this pool is for reading or for another database"
        );
        errors.on(pool, message);
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

/// Whether this is a function to call: it takes `&Idempotency`, possibly in a wrong form.
pub(super) fn takes_idempotency(function: &Function) -> bool {
    function.signature.inputs.iter().any(|input| match input {
        FnArg::Typed(argument) => matches!(role(&argument.ty), Role::Idempotency | Role::WrongIdempotency),
        FnArg::Receiver(_) => false,
    })
}

struct Reader<'a> {
    unit: Option<Unit>,
    wrong_unit: bool,
    parameters: Vec<Parameter>,
    errors: &'a Errors,
}

impl Reader<'_> {
    fn read(&mut self, argument: &PatType) {
        match role(&argument.ty) {
            Role::Unit(unit) => self.read_unit(unit, argument),
            Role::WrongUnit(message) => {
                self.wrong_unit = true;
                self.errors.on(&argument.ty, message);
                self.parameters.push(Parameter::Unit(name_of(&argument.pat)));
            }
            Role::Idempotency => self.parameters.push(Parameter::Idempotency(self.argument(argument))),
            Role::WrongIdempotency => {
                let message = "the `Idempotency` of a function must be borrowed; use `&Idempotency`";
                self.errors.on(&argument.ty, message);
                self.parameters.push(Parameter::Idempotency(self.argument(argument)));
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
        self.parameters.push(Parameter::Unit(name_of(&argument.pat)));
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
        }
    }

    fn check_unit(&self, function: &Function, is_plain_function: bool) {
        if self.unit.is_some() || self.wrong_unit {
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

fn role(ty: &Type) -> Role {
    const TRANSACTION: &str = "the transaction must be taken as `&mut Tx`: the claim, the writes and the response share it; use `tx: &mut Tx`";
    const OPERATION: &str = "the operation must be taken as `&mut Operation`; use `op: &mut Operation`";
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
        "Tx" if is_reference || !generic => Role::WrongUnit(TRANSACTION),
        "Operation" if borrowed_mutably && plainly => Role::Unit(Unit::Operation),
        "Operation" if is_reference => Role::WrongUnit(OPERATION),
        "Operation" if !generic && is_runtime_path(target) => Role::WrongUnit(OPERATION),
        "Transaction" | "PgTransaction" | "PgConnection" if is_reference => Role::WrongUnit(TRANSACTION),
        "PgTransaction" | "PgConnection" | "PoolConnection" => Role::WrongUnit(TRANSACTION),
        "Transaction" if generic && types::shown(target).contains("Postgres") => Role::WrongUnit(TRANSACTION),
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

/// What cannot be an extractor whatever the state is. The rest is left to the checks of types.
fn check_extractor(argument: &Argument, errors: &Errors) {
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
        _ => return,
    };
    errors.on(ty, message);
}

/// Whether the type is `&Idempotency`.
pub(super) fn is_idempotency(ty: &Type) -> bool {
    matches!(role(ty), Role::Idempotency)
}

/// Whether this is the argument that callers do not give: `tx` or `op`, possibly in a wrong form.
pub(super) fn is_unit(ty: &Type) -> bool {
    matches!(role(ty), Role::Unit(_) | Role::WrongUnit(_))
}
