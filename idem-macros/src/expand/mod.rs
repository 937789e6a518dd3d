//! From tokens to tokens. Options and signature are read, then validated together; code is generated only from what is
//! valid. All mistakes of a function are reported at once, with the user's function still there.
//!
//! Nothing here depends on the compiler: the tests and the fuzz target call [`expand`] on their own tokens.

mod arguments;
mod attributes;
mod body;
mod checks;
mod duration;
mod errors;
mod expression;
mod fallback;
mod function;
mod generate;
mod nearest;
mod options;
mod settings;
mod signature;
mod spans;
#[cfg(test)]
mod tests;
mod tokens;
mod types;
mod values;

use proc_macro2::TokenStream;

use arguments::{Arguments, Unit};
use attributes::Attributes;
use body::Allowed;
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
    let generated = expand_function(attribute, &function, &errors);
    let mut tokens = errors.into_tokens();
    tokens.extend(generated);
    tokens
}

fn expand_function(attribute: TokenStream, function: &Function, errors: &Errors) -> TokenStream {
    let attributes = Attributes::sort(function.attributes.clone(), errors);
    signature::check(function, &attribute, errors);
    let options = Options::parse(attribute.clone(), errors);
    let allowed = Allowed { pool: options.allows("pool"), unused_tx: options.allows("unused_tx") };
    let looks_called = expression::looks_called(&options);
    let arguments = Arguments::read(function, arguments::Hints { allow_pool: allowed.pool, looks_called }, errors);
    let form =
        Form { is_plain_function: arguments.is_plain_function, is_multi_step: arguments.unit == Unit::Operation };
    let result = checks::of_result(&function.signature, form.is_plain_function, errors);
    checks::of_order(&arguments, errors);
    let seen = body::check(&function.body, &arguments, &allowed, errors);
    if let Some(allow) = &options.allow_pool {
        checks::of_allowed_pool(allow, function, &arguments, &seen.pools, errors);
    }
    let wrong = expression::check(&options, &arguments, errors);
    let settings = Settings::validate(options, &form, &wrong, &attribute, errors);
    let plan = Plan {
        function,
        attributes: &attributes,
        arguments: &arguments,
        settings: &settings,
        seen: &seen,
        has_storable_result: result,
        is_nested: errors.are_blocking(),
    };
    if errors.are_blocking() { fallback::fallback(&plan) } else { plan.generate() }
}
