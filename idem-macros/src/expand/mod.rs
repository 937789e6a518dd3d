//! From tokens to tokens. Options and signature are read, then validated together; code is generated only from what is
//! valid. All mistakes of a function are reported at once, with the user's function still there.
//!
//! Nothing here depends on the compiler: the tests and the fuzz target call [`expand`] on their own tokens.

mod arguments;
mod attributes;
mod duration;
mod errors;
mod expression;
mod function;
mod generate;
mod nearest;
mod options;
mod settings;
mod signature;
mod sql;
mod types;

use proc_macro2::TokenStream;

use arguments::{Arguments, Unit};
use attributes::Attributes;
use errors::Errors;
use function::Function;
use generate::Plan;
use options::Options;
use settings::{Form, Settings};

/// The attribute as a function. Total: any two token streams give tokens, never a panic.
pub(crate) fn expand(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let errors = Errors::new();
    let Some(function) = Function::parse(item.clone(), &errors) else {
        let mut tokens = errors.into_tokens();
        tokens.extend(item);
        return tokens;
    };
    let mut attributes = Attributes::sort(function.attributes.clone(), &errors);
    let plan = plan(attribute, &function, &mut attributes, &errors);
    let fine = errors.is_empty();
    let mut tokens = errors.into_tokens();
    match plan {
        Some(plan) if fine => tokens.extend(plan.generate()),
        _ => tokens.extend(generate::fallback(&function, &attributes, false)),
    }
    tokens
}

fn plan(attribute: TokenStream, function: &Function, attributes: &mut Attributes, errors: &Errors) -> Option<Plan> {
    signature::check(&function.signature, errors);
    let options = Options::parse(attribute.clone(), errors);
    let arguments = Arguments::read(function, options.allow.is_some() || options.mentions("allow"), errors);
    let form = Form {
        is_plain_function: arguments::takes_idempotency(function),
        is_multi_step: arguments.as_ref().is_some_and(|arguments| arguments.unit == Unit::Operation),
    };
    let settings = Settings::validate(options, &form, &attribute, errors)?;
    let arguments = arguments?;
    let has_state_argument =
        arguments.rest().any(|argument| types::name(&argument.ty).is_some_and(|name| name == "State"));
    attributes.complete_debug_handler(settings.state.as_ref(), has_state_argument, errors);
    Some(Plan {
        attributes: Attributes { outer: attributes.outer.clone(), inner: attributes.inner.clone() },
        function: function.clone(),
        arguments,
        settings,
        checks: TokenStream::new(),
    })
}
