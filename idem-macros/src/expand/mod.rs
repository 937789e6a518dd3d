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
mod sql;
#[cfg(test)]
mod tests;
mod types;

use proc_macro2::TokenStream;

use arguments::{Arguments, Unit};
use attributes::Attributes;
use errors::Errors;
use function::Function;
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
    let mut expansion = Expansion { function: &function, drop_body: false, errors: &errors };
    let attributes = Attributes::sort(function.attributes.clone(), &errors);
    let generated = expansion.expand(attribute, &attributes);
    let drop_body = expansion.drop_body;
    let is_valid = errors.is_empty();
    let mut tokens = errors.into_tokens();
    match generated {
        Some(generated) if is_valid => tokens.extend(generated),
        _ => tokens.extend(fallback::fallback(&function, &attributes, drop_body)),
    }
    tokens
}

struct Expansion<'a> {
    function: &'a Function,
    /// The body makes an error that is already reported.
    drop_body: bool,
    errors: &'a Errors,
}

impl Expansion<'_> {
    /// `None` if there is too little to generate from; whether there was a mistake, only the errors tell.
    fn expand(&mut self, attribute: TokenStream, attributes: &Attributes) -> Option<TokenStream> {
        let (function, errors) = (self.function, self.errors);
        signature::check(&function.signature, errors);
        let options = Options::parse(attribute.clone(), errors);
        let arguments = Arguments::read(function, options.mentions("allow"), errors);
        let form =
            Form { is_plain_function: arguments.is_plain_function, is_multi_step: arguments.unit == Unit::Operation };
        checks::of_result(&function.signature, form.is_plain_function, errors);
        checks::of_order(&arguments, errors);
        self.drop_body = body::check(&function.body, &arguments, errors);
        expression::check(&options, &arguments, errors);
        let settings = Settings::validate(options, &form, &attribute, errors)?;
        let attributes = attributes.with_state(&settings, &arguments, errors);
        Some(generate::generate(function, &attributes, &arguments, &settings))
    }
}
