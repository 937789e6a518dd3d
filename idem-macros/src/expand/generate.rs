//! The code for a valid function: the user's function inside, the values of the options bound, and one call chain into
//! the runtime. Short enough to be read with `cargo expand`.

use std::collections::HashSet;
use std::time::Duration;

use proc_macro2::{Delimiter, Group, Ident, Literal, Span, TokenStream};
use quote::{ToTokens, format_ident, quote};
use syn::ext::IdentExt;
use syn::{Attribute, Expr, FnArg, Meta, Pat, ReturnType, Signature};

use super::arguments::{self, Argument, Arguments, Parameter, Unit};
use super::attributes::Attributes;
use super::body::Seen;
use super::checks;
use super::expression;
use super::function::{self, Function};
use super::settings::{Isolation, Key, Scope, Settings};
use super::spans::Place;

/// All that is known of the function.
pub(super) struct Plan<'a> {
    pub(super) function: &'a Function,
    pub(super) attributes: &'a Attributes,
    pub(super) arguments: &'a Arguments,
    pub(super) settings: &'a Settings,
    pub(super) seen: &'a Seen,
    /// Nothing in its type says that the result cannot be stored.
    pub(super) has_storable_result: bool,
    /// It is not fit to be a handler: what is generated is never called, but shows the compiler what else is wrong.
    pub(super) is_nested: bool,
}

/// An argument in the generated function.
struct Outer<'a> {
    argument: &'a Argument,
    /// What the generated function calls it.
    name: Ident,
}

impl Plan<'_> {
    pub(super) fn generate(&self) -> TokenStream {
        let outer_attributes = &self.attributes.outer;
        let visibility = &self.function.visibility;
        let debugged = self.debugged();
        let mut handler = quote!(#(#outer_attributes)* #visibility);
        handler.extend(self.handler());
        handler.extend(debugged);
        handler
    }

    /// The generated function without attributes and visibility.
    pub(super) fn handler(&self) -> TokenStream {
        let name = &self.function.signature.ident;
        let outers = self.outers();
        let parameters = self.parameters(&outers);
        let output = self.output();
        let inner = self.inner();
        let bindings = self.bindings(&outers);
        let chain = self.chain(&outers);
        // From the user's own first token to the user's own braces, so that the compiler takes it for the user's function
        // and reports, for one thing, a handler that nobody routes.
        let Signature { fn_token, .. } = &self.function.signature;
        let asyncness = self.function.signature.asyncness.unwrap_or_default();
        let pools = checks::of_pools(self.arguments, self.settings, self.seen);
        let mut body = Group::new(Delimiter::Brace, quote!(#inner #pools #bindings #chain));
        body.set_span(self.function.body.span());
        quote!(#asyncness #fn_token #name(#(#parameters),*) #output #body)
    }

    /// `#[debug_handler]` looks at the extractors about which the runtime knows nothing, and sees none of the generated ones.
    fn debugged(&self) -> Option<TokenStream> {
        let debug_handler = self.attributes.debug_handler.as_ref()?;
        let name = &self.function.signature.ident;
        let runtime = &self.settings.runtime;
        let unknown = self.arguments.rest().filter(|argument| !checks::is_known(argument));
        let parameters = unknown.map(|Argument { conditions, ty, .. }| quote!(#(#conditions)* _: #ty));
        Some(quote! {
            const _: () = {
                #[allow(dead_code, clippy::unused_async)]
                #debug_handler
                async fn #name(#(#parameters),*) -> #runtime::__private::Response {
                    ::core::unreachable!()
                }
            };
        })
    }

    fn outers(&self) -> Vec<Outer<'_>> {
        let name = |position| format_ident!("arg{}", position, span = Span::mixed_site());
        let outers = self.arguments.outer().enumerate();
        outers.map(|(position, argument)| Outer { argument, name: name(position) }).collect()
    }

    /// The user's function. An argument that only the attribute uses is used.
    fn inner(&self) -> TokenStream {
        let used = self.used_names();
        let mut signature = self.signature();
        for input in &mut signature.inputs {
            if let FnArg::Typed(argument) = input
                && (binds_any(&argument.pat, &used) || arguments::is_idempotency(&argument.ty))
            {
                argument.attrs.push(syn::parse_quote!(#[allow(unused_variables)]));
            }
        }
        let body = if self.seen.is_reported_again {
            quote!({ ::core::unimplemented!() })
        } else {
            self.function.body.to_token_stream()
        };
        let inner = function::written(&self.attributes.inner, &signature, &body);
        // It must be async, whatever a lint says.
        let allowed = (!self.seen.awaits).then(|| quote!(#[allow(clippy::unused_async)]));
        quote!(#allowed #inner)
    }

    /// The user's signature; in a function that is wrong, without what is reported.
    fn signature(&self) -> Signature {
        let mut signature = self.function.signature.clone();
        if !self.is_nested {
            return signature;
        }
        function::make_acceptable(&mut signature);
        let runtime = &self.settings.runtime;
        let arguments = signature.inputs.iter_mut().filter_map(|input| match input {
            FnArg::Typed(argument) => Some(argument),
            FnArg::Receiver(_) => None,
        });
        for (argument, parameter) in arguments.zip(&self.arguments.parameters) {
            let Parameter::Unit(parameter) = parameter else { continue };
            argument.attrs.clear();
            if !parameter.is_right {
                *argument.ty = match parameter.unit {
                    Unit::Transaction => syn::parse_quote!(&mut #runtime::Tx),
                    Unit::Operation => syn::parse_quote!(&mut #runtime::Operation),
                };
            }
        }
        signature
    }

    /// The types of `tx` and `op` that are reported, so that their names are used.
    pub(super) fn units_as_written(&self) -> TokenStream {
        let arguments = self.function.signature.inputs.iter().filter_map(|input| match input {
            FnArg::Typed(argument) => Some(&argument.ty),
            FnArg::Receiver(_) => None,
        });
        let arguments = arguments.zip(&self.arguments.parameters);
        let wrong = arguments.filter_map(|(ty, parameter)| match parameter {
            Parameter::Unit(parameter) if !parameter.is_right => Some(quote! {
                #[allow(dead_code)]
                const _: () = { fn as_written(_: #ty) {} };
            }),
            _ => None,
        });
        wrong.collect()
    }

    fn parameters(&self, outers: &[Outer<'_>]) -> Vec<TokenStream> {
        let outers: Vec<&Outer<'_>> = outers.iter().filter(|outer| !outer.argument.is_broken).collect();
        if self.arguments.is_plain_function {
            let parameters = outers
                .iter()
                .map(|Outer { argument: Argument { conditions, ty, .. }, name }| quote!(#(#conditions)* #name: #ty));
            return parameters.collect();
        }
        let runtime = &self.settings.runtime;
        let call = call_name();
        let extractor = if self.settings.idempotency.is_some() {
            quote!(#runtime::attribute::IdempotencyFromArguments)
        } else {
            quote!(#runtime::attribute::IdempotencyFromState)
        };
        let checks = checks::of_state(self.settings).map(|checks| quote!(<#checks>));
        let mut parameters = vec![quote!(#call: #extractor #checks)];
        for (position, outer) in outers.iter().enumerate() {
            self.push_extractor(outer, &outers[position + 1..], &mut parameters);
        }
        if self.needs_body() && outers.iter().all(|outer| !outer.argument.conditions.is_empty()) {
            let condition = (!outers.is_empty()).then(|| any_of(&outers)).map(|any| quote!(#[cfg(not(#any))]));
            let wrapped = self.fingerprinted(&quote!(()), &quote!(()), None);
            parameters.push(quote!(#condition #wrapped));
        }
        parameters
    }

    /// The last extractor is wrapped, because the fingerprint needs the body. If which one is the last depends on a
    /// `cfg`, each that could be is there in both forms.
    fn push_extractor(&self, outer: &Outer<'_>, later: &[&Outer<'_>], parameters: &mut Vec<TokenStream>) {
        let Outer { argument: argument @ Argument { conditions, ty, .. }, name } = outer;
        let sure_later = later.iter().any(|outer| outer.argument.conditions.is_empty());
        let arguments: Vec<&Argument> = later.iter().map(|outer| outer.argument).collect();
        let checks = checks::of_extractor(argument, &arguments, self.settings);
        let checks = checks.map(|checks| quote!(, #checks));
        let runtime = &self.settings.runtime;
        let wrapper = if later.is_empty() { quote!(CheckedLast) } else { quote!(Checked) };
        let plain = match &checks {
            Some(checks) => quote!(#runtime::attribute::#wrapper(#name): #runtime::attribute::#wrapper<#ty #checks>),
            None => quote!(#name: #ty),
        };
        if !self.needs_body() || sure_later {
            parameters.push(quote!(#(#conditions)* #plain));
            return;
        }
        let wrapped = self.fingerprinted(&name.to_token_stream(), &ty.to_token_stream(), checks);
        if later.is_empty() {
            parameters.push(quote!(#(#conditions)* #wrapped));
        } else {
            let any_later = any_of(later);
            let this = all_of(conditions);
            let (before, last) = match &this {
                None => (quote!(#any_later), quote!(not(#any_later))),
                Some(this) => (quote!(all(#this, #any_later)), quote!(all(#this, not(#any_later)))),
            };
            parameters.push(quote!(#[cfg(#before)] #plain));
            parameters.push(quote!(#[cfg(#last)] #wrapped));
        }
    }

    fn fingerprinted(&self, name: &TokenStream, ty: &TokenStream, checks: Option<TokenStream>) -> TokenStream {
        let wrapper = &self.settings.runtime;
        let wrapper = quote!(#wrapper::attribute::WithFingerprint);
        let digest = digest_name();
        quote!(#wrapper { value: #name, #digest }: #wrapper<#ty #checks>)
    }

    /// For the fingerprint, or to be stored with an operation that somebody else may have to complete.
    fn needs_body(&self) -> bool {
        let is_handler = !self.arguments.is_plain_function;
        is_handler && (self.settings.fingerprint.is_none() || self.arguments.unit == Unit::Operation)
    }

    fn output(&self) -> TokenStream {
        let runtime = &self.settings.runtime;
        if self.arguments.is_plain_function {
            self.function.signature.output.to_token_stream()
        } else {
            quote!(-> #runtime::__private::Response)
        }
    }

    /// `let scope = { … };`, or `let (scope, key, fingerprint) = { … };` with the options that are expressions.
    fn bindings(&self, outers: &[Outer<'_>]) -> TokenStream {
        let runtime = &self.settings.runtime;
        let expressions = self.expressions();
        let used = self.used_names();
        let arguments: Vec<TokenStream> = outers.iter().filter_map(|outer| bind_argument(outer, &used)).collect();
        let mut names: Vec<Ident> = expressions.iter().map(|(option, _)| value_name(option)).collect();
        let mut values: Vec<TokenStream> =
            expressions.iter().map(|(option, expression)| self.encoded(option, expression)).collect();
        if matches!(self.settings.scope, Scope::Global) {
            names.insert(0, value_name("scope"));
            values.insert(0, quote!(#runtime::attribute::global_scope()));
        }
        let (names, values) = match (names.as_slice(), values.as_slice()) {
            ([name], [value]) => (quote!(#name), quote!(#value)),
            _ => (quote!((#(#names),*)), quote!((#(#values),*))),
        };
        if arguments.is_empty() {
            return quote!(let #names = #values;);
        }
        // A pattern may bind more than the expressions use.
        quote! {
            #[allow(unused_variables)]
            let #names = {
                #(#arguments)*
                #values
            };
        }
    }

    fn expressions(&self) -> Vec<(&'static str, &Expr)> {
        let Settings { scope, key, fingerprint, idempotency, .. } = self.settings;
        let scope = match scope {
            Scope::Expression(scope) => Some(("scope", scope)),
            Scope::Global => None,
        };
        let key = match key {
            Key::Expression(key) => Some(("key", key)),
            Key::Header | Key::Optional => None,
        };
        let fingerprint = fingerprint.as_ref().map(|fingerprint| ("fingerprint", fingerprint));
        let idempotency = idempotency.as_ref().map(|idempotency| ("idempotency", idempotency));
        [scope, key, fingerprint, idempotency].into_iter().flatten().collect()
    }

    /// In the expressions.
    fn used_names(&self) -> HashSet<String> {
        let expressions = self.expressions();
        expressions.iter().flat_map(|(_, expression)| expression::names(expression.to_token_stream())).collect()
    }

    fn encoded(&self, option: &str, expression: &Expr) -> TokenStream {
        let runtime = &self.settings.runtime;
        let function = Ident::new(option, Span::call_site());
        let function = Place::of(expression).begin(quote!(#runtime::attribute::#function));
        let reference = expression::by_reference(expression);
        quote!(#function(#reference))
    }

    fn chain(&self, outers: &[Outer<'_>]) -> TokenStream {
        let runtime = &self.settings.runtime;
        let start = if self.arguments.is_plain_function {
            let idempotency =
                self.idempotency(outers).map_or_else(|| quote!(::core::unreachable!()), |name| quote!(#name));
            quote!(#runtime::__private::Call::function(#idempotency))
        } else if self.settings.idempotency.is_some() {
            let (call, idempotency) = (call_name(), value_name("idempotency"));
            quote!(#call.with(#idempotency))
        } else {
            call_name().to_token_stream()
        };
        let label = Literal::string(&format!("::{}", self.function.name()));
        let ttl = duration(self.settings.ttl);
        let options = self.chain_options();
        let run = self.run(outers);
        let chain = quote! {
            #start
                .handler(::core::concat!(::core::module_path!(), #label), #ttl)
                #options
                #run
                .await
        };
        // In one place, the compiler reports a result that cannot be stored once, and not for each call it goes through.
        if self.arguments.is_plain_function {
            self.at_output().begin(quote!(#runtime::attribute::returned(#chain)))
        } else {
            chain
        }
    }

    fn chain_options(&self) -> TokenStream {
        let runtime = &self.settings.runtime;
        let settings = &self.settings;
        let (scope, key, fingerprint, digest) =
            (value_name("scope"), value_name("key"), value_name("fingerprint"), digest_name());
        let mut options = quote!(.scope(#scope));
        match &settings.key {
            Key::Header => {}
            Key::Optional => options.extend(quote!(.optional_key())),
            Key::Expression(_) => options.extend(quote!(.key(#key))),
        }
        if self.needs_body() {
            options.extend(quote!(.request(#digest)));
        }
        if settings.fingerprint.is_some() {
            options.extend(quote!(.fingerprint(#fingerprint)));
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
            return quote! {
                .#method(async move |#unit: &mut #runtime::#ty| {
                    #runtime::attribute::result(#name(#(#arguments),*).await)
                })
            };
        }
        let method = match self.arguments.unit {
            Unit::Transaction => quote!(transaction),
            Unit::Operation => quote!(operation),
        };
        // A future that is not `Send` is one of the function, a result that is no response one of its type.
        let (at_name, at_output) = (Place::of(name), self.at_output());
        let mut callee = name.clone();
        callee.set_span(Span::call_site());
        let (result, awaited) = (at_output.begin(quote!(#callee)), at_output.end(quote!(.await)));
        let converted = if self.has_storable_result {
            let convert = at_output.begin(quote!(#runtime::__private::IntoResponse::into_response));
            let (returned, conflict) = (value_name("returned"), value_name("conflict"));
            let converted = at_output.begin(quote!(#returned));
            quote! {
                let #returned = #result(#(#arguments),*)#awaited;
                let #conflict = #runtime::lost_conflict!(#returned);
                #runtime::attribute::answer(#convert(#converted), #conflict)
            }
        } else {
            quote!(#result(#(#arguments),*)#awaited; ::core::unreachable!())
        };
        let block = at_name.around(Delimiter::Brace, converted);
        let future = at_name.begin(quote!(async move));
        let pinned = at_name.around(Delimiter::Parenthesis, quote!(#future #block));
        let pin = at_name.begin(quote!(#runtime::__private::Box::pin));
        quote!(.#method(move |#unit| #pin #pinned))
    }

    fn at_output(&self) -> Place {
        match &self.function.signature.output {
            ReturnType::Default => Place::of(&self.function.signature.ident),
            ReturnType::Type(_, ty) => Place::of(ty),
        }
    }

    fn call_arguments(&self, outers: &[Outer<'_>]) -> Vec<TokenStream> {
        let mut unit = Some(unit_name(self.arguments.unit).to_token_stream());
        let mut outers_left = outers.iter();
        let mut arguments = Vec::new();
        // Nothing calls a function that is wrong, so anything will do for what is reported.
        let nothing = quote!(::core::unreachable!());
        for parameter in &self.arguments.parameters {
            if let Parameter::Unit(parameter) = parameter {
                let unit = unit.take_if(|_| parameter.unit == self.arguments.unit);
                arguments.push(unit.unwrap_or_else(|| nothing.clone()));
            } else if let Some(Outer { argument, name }) = outers_left.next() {
                let conditions = &argument.conditions;
                let value = if argument.is_broken { nothing.clone() } else { name.to_token_stream() };
                arguments.push(quote!(#(#conditions)* #value));
            }
        }
        arguments
    }

    fn idempotency(&self, outers: &[Outer<'_>]) -> Option<Ident> {
        let mut parameters =
            self.arguments.parameters.iter().filter(|parameter| !matches!(parameter, Parameter::Unit(_)));
        let position = parameters.position(|parameter| matches!(parameter, Parameter::Idempotency(_)))?;
        outers.get(position).filter(|outer| !outer.argument.is_broken).map(|outer| outer.name.clone())
    }
}

/// Binds the argument by reference with the user's own pattern, if the expression uses a name of it.
fn bind_argument(outer: &Outer<'_>, used: &HashSet<String>) -> Option<TokenStream> {
    let Outer { argument: Argument { conditions, pattern, .. }, name } = outer;
    if !binds_any(pattern, used) {
        return None;
    }
    let pattern = expression::pattern_by_reference(pattern);
    Some(quote! {
        #(#conditions)*
        let #pattern = &#name;
    })
}

fn binds_any(pattern: &Pat, names: &HashSet<String>) -> bool {
    expression::bound(pattern).iter().any(|name| names.contains(&name.unraw().to_string()))
}

/// Of a value that an option's expression has.
fn value_name(option: &str) -> Ident {
    Ident::new(option, Span::mixed_site())
}

fn call_name() -> Ident {
    Ident::new("call", Span::mixed_site())
}

fn digest_name() -> Ident {
    Ident::new("digest", Span::mixed_site())
}

fn unit_name(unit: Unit) -> Ident {
    let name = match unit {
        Unit::Transaction => "tx",
        Unit::Operation => "op",
    };
    Ident::new(name, Span::mixed_site())
}

/// The condition under which at least one of the arguments is there.
fn any_of(outers: &[&Outer<'_>]) -> TokenStream {
    let each: Vec<_> = outers.iter().filter_map(|outer| all_of(&outer.argument.conditions)).collect();
    match each.as_slice() {
        [one] => one.clone(),
        several => quote!(any(#(#several),*)),
    }
}

/// All conditions of one argument, `None` if there is none.
fn all_of(conditions: &[Attribute]) -> Option<TokenStream> {
    let predicates = conditions.iter().filter_map(|condition| match &condition.meta {
        Meta::List(list) => Some(&list.tokens),
        _ => None,
    });
    let predicates: Vec<_> = predicates.collect();
    match predicates.as_slice() {
        [] => None,
        [one] => Some(one.to_token_stream()),
        several => Some(quote!(all(#(#several),*))),
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
