//! For a function that is wrong: something of its name that the rest of the program compiles with, and the user's
//! function inside for the compiler and the editor to look at, so that one mistake gives one error.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::{Attribute, FnArg, ReturnType, Safety, Signature};

use super::arguments;
use super::attributes::Attributes;
use super::function::{self, Function};

/// `drop_body`: the body makes an error that is already reported.
pub(super) fn fallback(function: &Function, attributes: &Attributes, drop_body: bool) -> TokenStream {
    let Function { visibility, signature, body, .. } = function;
    if function.has_receiver() {
        let attributes = attributes.outer.iter().chain(&attributes.inner);
        return quote!(#(#attributes)* #visibility #signature #body);
    }
    let body = if drop_body { quote!({ ::core::unimplemented!() }) } else { body.to_token_stream() };
    let inner = function::written(&attributes.inner, &acceptable(signature), &body);
    let attributes = attributes.outer.iter().filter(|attribute| is_harmless(attribute));
    let name = &signature.ident;
    let is_plain_function = arguments::takes_idempotency(function);
    let head = if name == "main" {
        quote!(#visibility fn #name())
    } else if is_plain_function {
        caller_signature(function)
    } else {
        // Without arguments it is a handler for any state.
        quote!(#visibility async fn #name())
    };
    let has_output = is_plain_function && !matches!(&signature.output, ReturnType::Default);
    let unimplemented = has_output.then(|| quote!(::core::unimplemented!()));
    quote! {
        #(#attributes)*
        #head {
            #[allow(dead_code, unused_variables)]
            #inner
            #unimplemented
        }
    }
}

/// The signature without what the compiler would reject a second time.
fn acceptable(signature: &Signature) -> Signature {
    let mut signature = signature.clone();
    signature.constness = None;
    signature.safety = Safety::Default;
    signature.abi = None;
    signature.variadic = None;
    signature.asyncness = Some(signature.asyncness.unwrap_or_default());
    signature
}

/// Whether the attribute makes no demands on the function it stands on.
fn is_harmless(attribute: &Attribute) -> bool {
    let name = attribute.path().segments.last().map(|segment| segment.ident.to_string());
    !matches!(name.as_deref(), Some("debug_handler" | "must_use"))
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
