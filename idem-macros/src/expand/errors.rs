//! Collects every mistake of one function, so that the user sees all of them after one compile and not one a compile.

use std::cell::{Cell, RefCell};
use std::fmt::Display;

use proc_macro2::TokenStream;
use quote::ToTokens;

/// The mistakes found so far. Must be consumed by [`Errors::into_tokens`]: dropping it unread would turn a mistake
/// into silently wrong code.
pub(super) struct Errors {
    found: RefCell<Option<Vec<syn::Error>>>,
    /// What is generated would not compile, or would make the compiler report the mistake a second time.
    blocking: Cell<bool>,
}

impl Errors {
    pub(super) fn new() -> Self {
        Self { found: RefCell::new(Some(Vec::new())), blocking: Cell::new(false) }
    }

    /// Reports `message` on all of `tokens`. The function is not fit to be a handler.
    pub(super) fn on(&self, tokens: impl ToTokens, message: impl Display) {
        self.blocking.set(true);
        self.beside(tokens, message);
    }

    /// Reports `message` on all of `tokens`, beside a handler that is generated as if nothing were wrong.
    pub(super) fn beside(&self, tokens: impl ToTokens, message: impl Display) {
        self.push(syn::Error::new_spanned(tokens, message));
    }

    /// Reports `error`, beside a handler that is generated as if nothing were wrong.
    pub(super) fn push(&self, error: syn::Error) {
        if let Some(found) = self.found.borrow_mut().as_mut() {
            found.push(error);
        }
    }

    pub(super) fn are_blocking(&self) -> bool {
        self.blocking.get()
    }

    /// The `compile_error!` calls, none if there was no mistake.
    pub(super) fn into_tokens(self) -> TokenStream {
        let found = self.found.borrow_mut().take().unwrap_or_default();
        found.iter().map(syn::Error::to_compile_error).collect()
    }
}

impl Drop for Errors {
    fn drop(&mut self) {
        let forgotten = self.found.borrow().is_some();
        assert!(!forgotten || std::thread::panicking(), "the collected errors were never emitted");
    }
}
