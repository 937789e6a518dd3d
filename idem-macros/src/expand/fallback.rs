//! For a function that is wrong: something of its name that the rest of the program compiles with, and inside of it what
//! would have been generated, for the compiler and the editor to look at: one mistake gives one error, and hides no other.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::{Attribute, FnArg, ReturnType, Type};

use super::arguments;
use super::function::{self, Function};
use super::generate::Plan;
use super::signature;
use super::types;

pub(super) fn fallback(plan: &Plan<'_>) -> TokenStream {
    let (function, attributes) = (plan.function, plan.attributes);
    let Function { visibility, signature, body, .. } = function;
    if function.has_receiver() {
        let attributes = attributes.outer.iter().chain(&attributes.inner);
        return quote!(#(#attributes)* #visibility #signature #body);
    }
    let attributes = attributes.outer.iter().filter(|attribute| is_harmless(attribute));
    let name = &signature.ident;
    let is_plain_function = plan.arguments.is_plain_function;
    let head = if name == "main" {
        quote!(#visibility fn #name())
    } else if is_plain_function {
        caller_signature(function)
    } else {
        // Without arguments it is a handler for any state.
        let generics = &signature.generics;
        let where_clause = &generics.where_clause;
        quote!(#visibility async fn #name #generics() #where_clause)
    };
    let has_output = is_plain_function && !matches!(&signature.output, ReturnType::Default);
    let unimplemented = has_output.then(|| quote!(::core::unimplemented!()));
    let inside = inside(plan);
    quote! {
        #(#attributes)*
        #head {
            #[allow(dead_code, unreachable_code, unused_variables)]
            #inside
            #unimplemented
        }
    }
}

fn inside(plan: &Plan<'_>) -> TokenStream {
    let function = plan.function;
    if signature::self_type(function).is_some() {
        return quote!(
            const _: () = ();
        );
    }
    let is_generic = !function.signature.generics.params.is_empty()
        || plan.arguments.rest().any(|argument| matches!(types::peel(&argument.ty), Type::ImplTrait(_)));
    let has_no_result = plan.arguments.is_plain_function && matches!(&function.signature.output, ReturnType::Default);
    if !is_generic && !has_no_result {
        let handler = plan.handler();
        let as_written = plan.units_as_written();
        return quote!(#handler #as_written);
    }
    let mut signature = function.signature.clone();
    function::make_acceptable(&mut signature);
    function::written(&plan.attributes.inner, &signature, &function.body.to_token_stream())
}

/// Whether the attribute makes no demands on the function it stands on.
fn is_harmless(attribute: &Attribute) -> bool {
    let name = attribute.path().segments.last().map(|segment| segment.ident.to_string());
    name.as_deref() != Some("must_use")
}

/// What the callers of a plain function see: its signature without `tx` and `op`.
fn caller_signature(function: &Function) -> TokenStream {
    let Function { visibility, signature, .. } = function;
    let (name, generics, output) = (&signature.ident, &signature.generics, &signature.output);
    let where_clause = &generics.where_clause;
    let inputs = signature.inputs.iter().filter_map(|input| match input {
        FnArg::Typed(argument) if !arguments::is_unit(&argument.ty) => {
            let conditions = argument.attrs.iter().filter(|attribute| attribute.path().is_ident("cfg"));
            let ty = &argument.ty;
            Some(quote!(#(#conditions)* _: #ty))
        }
        _ => None,
    });
    quote!(#visibility async fn #name #generics(#(#inputs),*) #output #where_clause)
}
