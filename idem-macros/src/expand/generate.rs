//! The code for a valid function: the user's function inside, the values of the options bound, and one call chain into
//! the runtime. Short enough to be read with `cargo expand`.

use std::time::Duration;

use proc_macro2::{Ident, Literal, Span, TokenStream};
use quote::{ToTokens, format_ident, quote};
use syn::{Attribute, Expr, Meta, ReturnType};

use super::arguments::{Argument, Arguments, Parameter, Unit};
use super::attributes::Attributes;
use super::checks;
use super::expression;
use super::function::{self, Function};
use super::settings::{Isolation, Key, Scope, Settings};
use super::spans::Place;

pub(super) fn generate(
    function: &Function,
    attributes: &Attributes,
    arguments: &Arguments,
    settings: &Settings,
) -> TokenStream {
    Plan { function, attributes, arguments, settings }.generate()
}

struct Plan<'a> {
    function: &'a Function,
    attributes: &'a Attributes,
    arguments: &'a Arguments,
    settings: &'a Settings,
}

/// An argument in the generated function.
struct Outer<'a> {
    argument: &'a Argument,
    /// What the generated function calls it.
    name: Ident,
    rank: Rank,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Rank {
    /// Taken as it is.
    Plain,
    /// The last extractor: wrapped, because the fingerprint needs the body.
    Last,
    /// Last unless a later one, which depends on a `cfg`, is there.
    LastUnless(usize),
}

impl Plan<'_> {
    fn generate(&self) -> TokenStream {
        let outer_attributes = &self.attributes.outer;
        let visibility = &self.function.visibility;
        let name = &self.function.signature.ident;
        let outers = self.outers();
        let parameters = self.parameters(&outers);
        let output = self.output();
        let inner =
            function::written(&self.attributes.inner, &self.function.signature, &self.function.body.to_token_stream());
        let checks = checks::of_types(self.arguments, self.settings);
        let bindings = self.bindings(&outers);
        let chain = self.chain(&outers);
        quote! {
            #(#outer_attributes)*
            #visibility async fn #name(#(#parameters),*) #output {
                #inner
                #checks
                #bindings
                #chain
            }
        }
    }

    fn outers(&self) -> Vec<Outer<'_>> {
        let arguments: Vec<&Argument> = self.arguments.outer().collect();
        let last_sure = arguments.iter().rposition(|argument| argument.conditions.is_empty());
        let rank = |position: usize| {
            if self.arguments.is_plain_function || last_sure.is_some_and(|last| position < last) {
                Rank::Plain
            } else if position + 1 == arguments.len() {
                Rank::Last
            } else {
                Rank::LastUnless(position + 1)
            }
        };
        let outers = arguments.iter().enumerate().map(|(position, argument)| Outer {
            argument,
            name: format_ident!("arg{}", position, span = Span::mixed_site()),
            rank: rank(position),
        });
        outers.collect()
    }

    fn parameters(&self, outers: &[Outer<'_>]) -> Vec<TokenStream> {
        let runtime = &self.settings.runtime;
        let last = last_name();
        let mut parameters = Vec::new();
        if !self.arguments.is_plain_function {
            let call = call_name();
            parameters.push(quote!(#call: #runtime::__private::Call));
        }
        for outer in outers {
            let (name, ty, conditions) = (&outer.name, &outer.argument.ty, &outer.argument.conditions);
            let wrapped = quote!(#last: #runtime::__private::Fingerprinted<#ty>);
            match outer.rank {
                Rank::Plain => parameters.push(quote!(#(#conditions)* #name: #ty)),
                Rank::Last => parameters.push(quote!(#(#conditions)* #wrapped)),
                Rank::LastUnless(next) => {
                    let later = any_of(&outers[next..]);
                    parameters.push(quote!(#(#conditions)* #[cfg(#later)] #name: #ty));
                    parameters.push(quote!(#(#conditions)* #[cfg(not(#later))] #wrapped));
                }
            }
        }
        if !self.arguments.is_plain_function && outers.iter().all(|outer| !outer.argument.conditions.is_empty()) {
            let condition = (!outers.is_empty()).then(|| any_of(outers)).map(|any| quote!(#[cfg(not(#any))]));
            parameters.push(quote!(#condition #last: #runtime::__private::Fingerprinted<()>));
        }
        parameters
    }

    fn output(&self) -> TokenStream {
        let runtime = &self.settings.runtime;
        if self.arguments.is_plain_function {
            self.function.signature.output.to_token_stream()
        } else {
            quote!(-> #runtime::__private::Response)
        }
    }

    /// `let scope = …;` and, if they are expressions, `let key = …;` and `let fingerprint = …;`.
    fn bindings(&self, outers: &[Outer<'_>]) -> TokenStream {
        let runtime = &self.settings.runtime;
        let mut bindings = match &self.settings.scope {
            Scope::Global => {
                let scope = format_ident!("scope", span = Span::mixed_site());
                quote!(let #scope = #runtime::__private::global_scope();)
            }
            Scope::Expression(expression) => self.binding("scope", expression, outers),
        };
        if let Key::Expression(expression) = &self.settings.key {
            bindings.extend(self.binding("key", expression, outers));
        }
        if let Some(expression) = &self.settings.fingerprint {
            bindings.extend(self.binding("fingerprint", expression, outers));
        }
        bindings
    }

    fn binding(&self, option: &str, expression: &Expr, outers: &[Outer<'_>]) -> TokenStream {
        let runtime = &self.settings.runtime;
        let used = expression::names(expression.to_token_stream());
        let arguments = outers.iter().map(|outer| bind_argument(outer, outers, &used));
        let name = format_ident!("{option}", span = Span::mixed_site());
        let function = Ident::new(option, Span::call_site());
        let function = Place::of(expression).begin(quote!(#runtime::__private::#function));
        let reference = expression::by_reference(expression);
        quote! {
            let #name = {
                #(#arguments)*
                #function(#reference)
            };
        }
    }

    fn chain(&self, outers: &[Outer<'_>]) -> TokenStream {
        let runtime = &self.settings.runtime;
        let start = if self.arguments.is_plain_function {
            let idempotency = self.idempotency(outers);
            quote!(#runtime::__private::Call::function(#idempotency))
        } else {
            call_name().to_token_stream()
        };
        let label = Literal::string(&format!("::{}", self.function.name()));
        let ttl = duration(self.settings.ttl);
        let options = self.chain_options();
        let run = self.run(outers);
        quote! {
            #start
                .handler(::core::concat!(::core::module_path!(), #label), #ttl)
                #options
                #run
                .await
        }
    }

    fn chain_options(&self) -> TokenStream {
        let runtime = &self.settings.runtime;
        let settings = &self.settings;
        let value = |name: &str| format_ident!("{name}", span = Span::mixed_site());
        let (scope, key, fingerprint, last) = (value("scope"), value("key"), value("fingerprint"), last_name());
        let mut options = quote!(.scope(#scope));
        match &settings.key {
            Key::Header => {}
            Key::Optional => options.extend(quote!(.optional_key())),
            Key::Expression(_) => options.extend(quote!(.key(#key))),
        }
        if settings.fingerprint.is_some() {
            options.extend(quote!(.fingerprint(#fingerprint)));
        } else if !self.arguments.is_plain_function {
            options.extend(quote!(.request(#last.digest)));
        }
        if let Some(wait) = settings.wait.map(duration) {
            options.extend(quote!(.wait(#wait)));
        }
        if settings.replay_failures {
            options.extend(quote!(.replay_failures()));
        }
        if let Some(lease) = settings.lease.map(duration) {
            options.extend(quote!(.lease(#lease)));
        }
        if let Some(isolation) = settings.isolation {
            let level = match isolation {
                Isolation::ReadCommitted => quote!(ReadCommitted),
                Isolation::RepeatableRead => quote!(RepeatableRead),
                Isolation::Serializable => quote!(Serializable),
            };
            options.extend(quote!(.isolation(#runtime::__private::Isolation::#level)));
        }
        options
    }

    /// The call that runs the user's function.
    fn run(&self, outers: &[Outer<'_>]) -> TokenStream {
        let runtime = &self.settings.runtime;
        let name = &self.function.signature.ident;
        let arguments = self.call_arguments(outers);
        let unit = unit_name(self.arguments.unit);
        if self.arguments.is_plain_function {
            let (method, ty) = match self.arguments.unit {
                Unit::Transaction => (quote!(call_transaction), quote!(Tx)),
                Unit::Operation => (quote!(call_operation), quote!(Operation)),
            };
            let method = self.at_output().begin(method);
            return quote! {
                .#method(async move |#unit: &mut #runtime::#ty| #name(#(#arguments),*).await)
            };
        }
        let method = match self.arguments.unit {
            Unit::Transaction => quote!(transaction),
            Unit::Operation => quote!(operation),
        };
        // A future that is not `Send` is one of the function, a result that is no response one of its type.
        let (at_name, at_output) = (Place::of(name), self.at_output());
        let convert = at_output.begin(quote!(#runtime::__private::IntoResponse::into_response));
        let (result, awaited) = (at_output.begin(quote!(#name)), at_output.end(quote!(.await)));
        let pin = at_name.begin(quote!(#runtime::__private::Box::pin));
        let future = at_name.begin(quote!(async move));
        quote! {
            .#method(move |#unit| #pin(#future { #convert(#result(#(#arguments),*)#awaited) }))
        }
    }

    fn at_output(&self) -> Place {
        match &self.function.signature.output {
            ReturnType::Default => Place::of(&self.function.signature.ident),
            ReturnType::Type(_, ty) => Place::of(ty),
        }
    }

    fn call_arguments(&self, outers: &[Outer<'_>]) -> Vec<TokenStream> {
        let unit = unit_name(self.arguments.unit);
        let mut outers_left = outers.iter();
        let mut arguments = Vec::new();
        for parameter in &self.arguments.parameters {
            if matches!(parameter, Parameter::Unit(_)) {
                arguments.push(unit.to_token_stream());
            } else if let Some(outer) = outers_left.next() {
                arguments.extend(outer.each_value(outers, |condition, value| quote!(#condition #value)));
            }
        }
        arguments
    }

    fn idempotency(&self, outers: &[Outer<'_>]) -> Option<Ident> {
        let mut parameters =
            self.arguments.parameters.iter().filter(|parameter| !matches!(parameter, Parameter::Unit(_)));
        let position = parameters.position(|parameter| matches!(parameter, Parameter::Idempotency(_)))?;
        outers.get(position).map(|outer| outer.name.clone())
    }
}

impl Outer<'_> {
    /// The places the argument's value may be in, each with its conditions.
    fn each_value(&self, outers: &[Self], build: impl Fn(TokenStream, TokenStream) -> TokenStream) -> Vec<TokenStream> {
        let conditions = &self.argument.conditions;
        let (name, last) = (&self.name, last_name());
        match self.rank {
            Rank::Plain => vec![build(quote!(#(#conditions)*), quote!(#name))],
            Rank::Last => vec![build(quote!(#(#conditions)*), quote!(#last.value))],
            Rank::LastUnless(next) => {
                let later = any_of(&outers[next..]);
                let plain = build(quote!(#(#conditions)* #[cfg(#later)]), quote!(#name));
                let wrapped = build(quote!(#(#conditions)* #[cfg(not(#later))]), quote!(#last.value));
                vec![plain, wrapped]
            }
        }
    }
}

/// Binds the argument by reference with the user's own pattern, if the expression uses a name of it.
fn bind_argument(outer: &Outer<'_>, outers: &[Outer<'_>], used: &std::collections::HashSet<String>) -> TokenStream {
    use syn::ext::IdentExt;
    let names = expression::bound(&outer.argument.pattern);
    if !names.iter().any(|name| used.contains(&name.unraw().to_string())) {
        return TokenStream::new();
    }
    let pattern = expression::pattern_by_reference(&outer.argument.pattern);
    let bindings = outer.each_value(outers, |condition, value| {
        quote! {
            #condition
            #[allow(unused_variables)]
            let #pattern = &#value;
        }
    });
    bindings.into_iter().collect()
}

fn call_name() -> Ident {
    Ident::new("call", Span::mixed_site())
}

fn last_name() -> Ident {
    Ident::new("last", Span::mixed_site())
}

fn unit_name(unit: Unit) -> Ident {
    let name = match unit {
        Unit::Transaction => "tx",
        Unit::Operation => "op",
    };
    Ident::new(name, Span::mixed_site())
}

/// The condition under which at least one of the arguments is there.
fn any_of(outers: &[Outer<'_>]) -> TokenStream {
    let each = outers.iter().map(|outer| all_of(&outer.argument.conditions));
    quote!(any(#(#each),*))
}

fn all_of(conditions: &[Attribute]) -> TokenStream {
    let predicates = conditions.iter().filter_map(|condition| match &condition.meta {
        Meta::List(list) => Some(&list.tokens),
        _ => None,
    });
    let predicates: Vec<_> = predicates.collect();
    match predicates.as_slice() {
        [one] => one.to_token_stream(),
        several => quote!(all(#(#several),*)),
    }
}

fn duration(duration: Duration) -> TokenStream {
    if duration.subsec_millis() == 0 {
        let seconds = grouped(duration.as_secs());
        quote!(::core::time::Duration::from_secs(#seconds))
    } else {
        let milliseconds = grouped(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX));
        quote!(::core::time::Duration::from_millis(#milliseconds))
    }
}

/// `86_400` reads better than `86400`.
fn grouped(number: u64) -> TokenStream {
    let digits = number.to_string();
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push('_');
        }
        text.push(digit);
    }
    text.parse::<TokenStream>().unwrap_or_else(|_| Literal::u64_unsuffixed(number).to_token_stream())
}
