//! Arbitrary options on an arbitrary item: `options NUL item`. The attribute must give tokens, never a panic, and what
//! it gives without an error must be code.

#![no_main]

use libfuzzer_sys::fuzz_target;
use proc_macro2::TokenStream;

#[path = "../../idem-macros/src/expand/mod.rs"]
mod expand;

/// The compiler's own parser gives up on deeper nesting before any attribute sees it.
const DEEPEST: usize = 64;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Some((attribute, item)) = text.split_once('\0') else { return };
    if is_too_deep(text) {
        return;
    }
    let (Ok(attribute), Ok(item)) = (attribute.parse::<TokenStream>(), item.parse::<TokenStream>()) else { return };
    let is_function = syn::parse2::<syn::ItemFn>(item.clone()).is_ok();
    let expansion = expand::expand(attribute, item);
    if is_function && !expansion.to_string().contains("compile_error") {
        syn::parse2::<syn::File>(expansion).expect("the expansion of a valid function must parse");
    }
});

fn is_too_deep(text: &str) -> bool {
    let mut depth = 0_usize;
    text.chars().any(|character| {
        match character {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth > DEEPEST
    })
}
