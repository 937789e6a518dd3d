//! Two customers may choose the same key, so a key counts only within a scope that the server derives from who asks.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

/// The longest encoded scope, in bytes.
pub const MAX_SCOPE_LENGTH: usize = 255;

/// Who owns an idempotency key: what `scope = …` of [`idempotent`](crate::idempotent) may evaluate to.
///
/// Strings, integers, [`Uuid`]s and tuples of two to four of them. Encoded, a scope is at most [`MAX_SCOPE_LENGTH`]
/// bytes without a NUL, and neither it nor a part of it is empty; any other is an error that names the handler, never a truncation. The parts of a tuple are
/// length-prefixed, so `("ab", "c")` and `("a", "bc")` differ whatever a client puts into them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a scope",
    label = "must be a string, an integer, a `Uuid` or a tuple of two to four of them",
    note = "an `Option` needs a decision: say who owns the key when it is `None`, or use `scope = global`",
    note = "a float has no exact identity: use an integer or a string",
    note = "of a type of your own use what is in it, as in `scope = tenant.id.0`, or write `impl Scope for {Self}`"
)]
pub trait Scope {
    /// Appends the scope's text.
    fn encode(&self, text: &mut String);
}

impl Scope for str {
    fn encode(&self, text: &mut String) {
        // A tuple begins with `(` and a digit, the global scope with `(g`: a string that begins with `(` is marked.
        if self.starts_with('(') {
            text.push('(');
        }
        text.push_str(self);
    }
}

/// The one space of handlers with `scope = global`, for [`Idempotency::status`](crate::Idempotency::status).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GlobalScope;

// An attribute says `scope = global`.
#[diagnostic::do_not_recommend]
impl Scope for GlobalScope {
    fn encode(&self, text: &mut String) {
        text.push_str("(global)");
    }
}

macro_rules! scope_by_reference {
    ($($type:ty),*) => {
        $(impl<T: Scope + ?Sized> Scope for $type {
            fn encode(&self, text: &mut String) {
                (**self).encode(text);
            }
        })*
    };
}

scope_by_reference!(&T, Box<T>, Arc<T>);

impl Scope for String {
    fn encode(&self, text: &mut String) {
        self.as_str().encode(text);
    }
}

impl Scope for Cow<'_, str> {
    fn encode(&self, text: &mut String) {
        str::encode(self, text);
    }
}

macro_rules! scope_from_display {
    ($($type:ty),*) => {
        $(impl Scope for $type {
            fn encode(&self, text: &mut String) {
                use fmt::Write as _;
                // Writing to a `String` cannot fail.
                let _ = write!(text, "{self}");
            }
        })*
    };
}

scope_from_display!(i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize, Uuid);

macro_rules! scope_from_tuple {
    ($($name:ident)+) => {
        impl<$($name: Scope),+> Scope for ($($name,)+) {
            #[allow(non_snake_case)]
            fn encode(&self, text: &mut String) {
                let ($($name,)+) = self;
                text.push('(');
                $(encode_part($name, text);)+
                text.push(')');
            }
        }
    };
}

scope_from_tuple!(A B);
scope_from_tuple!(A B C);
scope_from_tuple!(A B C D);

fn encode_part(part: &dyn Scope, text: &mut String) {
    let mut encoded = String::new();
    part.encode(&mut encoded);
    text.push_str(&encoded.len().to_string());
    text.push(':');
    text.push_str(&encoded);
}

/// A scope as it is stored, or the reason why it cannot be.
#[derive(Debug, Clone)]
pub struct EncodedScope(pub(crate) Result<String, &'static str>);

impl EncodedScope {
    pub(crate) fn of(scope: &(impl Scope + ?Sized)) -> Self {
        let mut text = String::new();
        scope.encode(&mut text);
        if has_empty_part(&text) {
            return Self(Err("must not be empty, nor any part of it: strangers would share a space"));
        }
        if text.len() > MAX_SCOPE_LENGTH {
            return Self(Err("must be at most 255 bytes long; use an identifier"));
        }
        if text.contains('\0') {
            return Self(Err("must not contain a NUL character"));
        }
        Self(Ok(text))
    }

    pub(crate) fn global() -> Self {
        Self::of(&GlobalScope)
    }
}

#[cfg(any(feature = "axum", test))]
/// What a scope's text was made from: one value, or the parts of a tuple. `None` for the global scope.
pub(crate) fn decode(text: &str) -> Option<Vec<String>> {
    match text.strip_prefix('(') {
        None => Some(vec![text.to_owned()]),
        Some(marked) if marked.starts_with('(') => Some(vec![marked.to_owned()]),
        Some(parts) if parts.starts_with(|first: char| first.is_ascii_digit()) => Some(decode_parts(parts)),
        Some(_) => None,
    }
}

#[cfg(any(feature = "axum", test))]
/// A part that is a tuple itself stays encoded.
fn decode_parts(mut text: &str) -> Vec<String> {
    let mut parts = Vec::new();
    while let Some((length, rest)) = text.split_once(':') {
        let Some((part, rest)) = length.parse().ok().and_then(|length| rest.split_at_checked(length)) else { break };
        let marked = part.strip_prefix('(').filter(|marked| marked.starts_with('('));
        parts.push(marked.unwrap_or(part).to_owned());
        text = rest;
    }
    parts
}

fn has_empty_part(text: &str) -> bool {
    match text.strip_prefix('(') {
        None => text.is_empty(),
        Some(parts) if parts.starts_with(|first: char| first.is_ascii_digit()) => {
            let mut rest = parts;
            while let Some((length, after)) = rest.split_once(':') {
                let Some((part, after)) = length.parse().ok().and_then(|length| after.split_at_checked(length)) else {
                    return false;
                };
                if has_empty_part(part) {
                    return true;
                }
                rest = after;
            }
            false
        }
        Some(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(scope: impl Scope) -> String {
        EncodedScope::of(&scope).0.expect("a scope that fits")
    }

    #[test]
    fn no_two_scopes_share_an_encoding() {
        let forged = encoded(("ab", "c"));
        let all = [
            encoded("ab"),
            encoded("(ab"),
            encoded(("ab", "c")),
            encoded(("a", "bc")),
            encoded(("a", "b", "c")),
            encoded(("a:1", "b")),
            encoded(("a", ("b", "c"))),
            encoded(forged.as_str()),
            encoded("(global)"),
            encoded("((global)"),
            EncodedScope::global().0.expect("fits"),
            encoded(-1_i64),
            encoded(Uuid::nil()),
        ];
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len(), "{all:?}");
    }

    #[test]
    fn a_scope_is_given_back_as_it_came() {
        for text in ["7", "(x", "((x", "(global)", "(1:a1:b)", "a:b", " ", "\u{fc}"] {
            assert_eq!(decode(&encoded(text)), Some(vec![text.to_owned()]), "{text}");
        }
        for parts in [["a", "b"], ["(1:a", "b)"], ["(x", "((y"], ["1:", ":1"], ["\u{fc}", "7"]] {
            let expected = parts.map(str::to_owned).to_vec();
            assert_eq!(decode(&encoded((parts[0], parts[1]))), Some(expected), "{parts:?}");
        }
        assert_eq!(decode(&encoded((1, ("a", "b")))), Some(vec!["1".to_owned(), "(1:a1:b)".to_owned()]));
        assert_eq!(decode(&EncodedScope::global().0.expect("fits")), None);
    }

    #[test]
    fn nothing_is_no_owner() {
        let refused = |scope: EncodedScope| scope.0.is_err();
        assert!(refused(EncodedScope::of("")) && refused(EncodedScope::of(&String::new())));
        assert!(refused(EncodedScope::of(&("", "a"))) && refused(EncodedScope::of(&("a", ""))));
        assert!(refused(EncodedScope::of(&("a", ("b", "")))) && refused(EncodedScope::of(&(("", 1), 2, 3))));
        for fine in
            [EncodedScope::of(&("(", "a")), EncodedScope::of(" "), EncodedScope::of("(0:"), EncodedScope::of(&0)]
        {
            assert!(fine.0.is_ok(), "{fine:?}");
        }
    }

    #[test]
    fn too_long_and_nul_are_errors_and_not_truncations() {
        assert!(EncodedScope::of(&"s".repeat(255)).0.is_ok());
        assert!(EncodedScope::of(&"s".repeat(256)).0.is_err());
        assert!(EncodedScope::of("a\0b").0.is_err());
    }
}
