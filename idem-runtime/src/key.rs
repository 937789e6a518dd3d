//! Two spellings of one key are two payments, so a key is parsed once, strictly, and compared as text.

use std::fmt;

use http::HeaderValue;

use crate::fingerprint::sha256;

/// The longest idempotency key, in characters (one byte each: keys are visible ASCII).
pub const MAX_KEY_LENGTH: usize = 255;

/// An idempotency key: 1 to 255 visible ASCII characters.
///
/// It names one logical operation within a [`Scope`](crate::Scope). `Debug` shows its length and not its text: keys
/// stay out of logs.
#[derive(Clone)]
pub struct IdempotencyKey {
    text: String,
    /// The digest of the schema and the scope in which it counts; empty for a key by itself.
    space: Vec<u8>,
}

impl PartialEq for IdempotencyKey {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for IdempotencyKey {}

impl std::hash::Hash for IdempotencyKey {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl IdempotencyKey {
    /// Takes a key as it stands.
    ///
    /// # Errors
    /// [`InvalidKey`] unless `text` is 1 to [`MAX_KEY_LENGTH`] visible ASCII characters (`!` to `~`).
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidKey> {
        let text = text.into();
        if text.is_empty() {
            return Err(InvalidKey("must not be empty"));
        }
        if text.len() > MAX_KEY_LENGTH {
            return Err(InvalidKey("must be at most 255 characters long"));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(InvalidKey("must be visible ASCII characters without spaces"));
        }
        Ok(Self::by_itself(text))
    }

    fn by_itself(text: String) -> Self {
        Self { text, space: Vec::new() }
    }

    /// The key as it counts in a scope of a schema.
    pub(crate) fn within(self, namespace: &str, scope: &str) -> Self {
        let space = sha256(&[namespace.as_bytes(), scope.as_bytes()]).to_vec();
        Self { space, ..self }
    }

    /// A key from a payload. What is no key as it stands (spaces, other characters, more than 255 of them) is named by its digest, so
    /// that a message with such an identifier is no poison.
    pub(crate) fn natural(text: String) -> Result<Self, InvalidKey> {
        if text.is_empty() {
            return Err(InvalidKey("must not be empty"));
        }
        let digest = || Self::from_digest(&format!("sha256-{}", crate::hex::encode(&sha256(&[text.as_bytes()]))));
        Ok(Self::new(text.clone()).unwrap_or_else(|_| digest()))
    }

    /// Reads a header value: the bare key, or the same key as an RFC 9651 string in double quotes.
    ///
    /// ```
    /// # use idem_runtime::IdempotencyKey;
    /// # use http::HeaderValue;
    /// let bare = IdempotencyKey::from_header(&HeaderValue::from_static("order:7"));
    /// let quoted = IdempotencyKey::from_header(&HeaderValue::from_static("\"order:7\""));
    /// assert_eq!(bare, quoted);
    /// ```
    ///
    /// # Errors
    /// [`InvalidKey`] for a value that is neither form or whose key is not 1 to [`MAX_KEY_LENGTH`] visible ASCII characters.
    pub fn from_header(value: &HeaderValue) -> Result<Self, InvalidKey> {
        let text = value.to_str().map_err(|_| InvalidKey("must be visible ASCII characters without spaces"))?;
        match text.strip_prefix('"') {
            Some(rest) => Self::new(unquote(rest)?),
            None => Self::new(text),
        }
    }

    /// A key that no other call returns (a version 4 UUID).
    #[must_use]
    pub fn random() -> Self {
        Self::by_itself(uuid::Uuid::new_v4().to_string())
    }

    /// The hexadecimal digits of a digest.
    pub(crate) fn from_digest(digits: &str) -> Self {
        Self::by_itself(digits.to_owned())
    }

    /// The key's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The key for one downstream call of this operation, the same on every retry: `<name>-<32 hexadecimal digits>`, at most 64
    /// characters.
    ///
    /// The digits are a digest over the schema, the scope, this key and `name`, so that no two tenants, operations or calls share a key
    /// at a provider, whatever characters their keys have. Of the name, letters, digits, `-` and `_` are shown, at most 31 of them; the
    /// digest is over all of it.
    ///
    /// ```
    /// # use idem_runtime::IdempotencyKey;
    /// let key = IdempotencyKey::new("order-7")?;
    /// let charge = key.derive("charge");
    /// assert!(charge.as_str().starts_with("charge-") && charge.as_str().len() <= 64);
    /// assert_ne!(charge, key.derive("refund"));
    /// # Ok::<(), idem_runtime::InvalidKey>(())
    /// ```
    #[must_use]
    pub fn derive(&self, name: &str) -> Self {
        let digest = sha256(&[&self.space, self.text.as_bytes(), name.as_bytes()]);
        let shown = name.chars().filter(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_'));
        let shown: String = shown.take(31).collect();
        let digits = crate::hex::encode(&digest[..16]);
        let text = if shown.is_empty() { digits } else { format!("{shown}-{digits}") };
        Self { text, space: self.space.clone() }
    }
}

/// The inside of an RFC 9651 string, given what follows its opening quote.
fn unquote(rest: &str) -> Result<String, InvalidKey> {
    let mut text = String::with_capacity(rest.len());
    let mut characters = rest.chars();
    loop {
        match characters.next() {
            None => return Err(InvalidKey("must end with the quote that it began with")),
            Some('"') => break,
            Some('\\') => match characters.next() {
                Some(escaped @ ('"' | '\\')) => text.push(escaped),
                _ => return Err(InvalidKey("must escape nothing but `\"` and `\\` inside quotes")),
            },
            Some(other) => text.push(other),
        }
    }
    if characters.next().is_some() {
        return Err(InvalidKey("must have nothing after its closing quote"));
    }
    Ok(text)
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "IdempotencyKey({} characters)", self.text.len())
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl AsRef<str> for IdempotencyKey {
    fn as_ref(&self) -> &str {
        &self.text
    }
}

impl TryFrom<&str> for IdempotencyKey {
    type Error = InvalidKey;

    fn try_from(text: &str) -> Result<Self, InvalidKey> {
        Self::new(text)
    }
}

/// Why a text is no idempotency key. It never quotes the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidKey(pub(crate) &'static str);

impl fmt::Display for InvalidKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "the idempotency key {}", self.0)
    }
}

impl std::error::Error for InvalidKey {}

/// What `key = …` of [`idempotent`](crate::idempotent) may evaluate to: a string, an integer, a `Uuid` or an
/// [`IdempotencyKey`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an idempotency key",
    label = "must be a string, an integer, a `Uuid` or an `IdempotencyKey`",
    note = "an `Option` needs a decision first: use `key = optional` for the header, or an expression that always has a key"
)]
pub trait Key {
    /// The key's text, not empty. One that would be no key in a header is named by its digest.
    fn key(&self) -> String;
}

impl<T: Key + ?Sized> Key for &T {
    fn key(&self) -> String {
        (**self).key()
    }
}

macro_rules! key_from_display {
    ($($type:ty),*) => {
        $(impl Key for $type {
            fn key(&self) -> String {
                self.to_string()
            }
        })*
    };
}

key_from_display!(
    str,
    String,
    uuid::Uuid,
    IdempotencyKey,
    i8,
    i16,
    i32,
    i64,
    i128,
    isize,
    u8,
    u16,
    u32,
    u64,
    u128,
    usize
);

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8]) -> Result<String, InvalidKey> {
        IdempotencyKey::from_header(&HeaderValue::from_bytes(bytes).expect("a header value")).map(|key| key.text)
    }

    #[test]
    fn bare_and_quoted_are_one_key() {
        for text in ["k", "order:1/2", "a;b=c", "~!@#$%^&*()", "with'quote", "a,b"] {
            assert_eq!(parse(text.as_bytes()).as_deref(), Ok(text));
            assert_eq!(parse(format!("\"{text}\"").as_bytes()).as_deref(), Ok(text));
        }
        assert_eq!(parse(br#""a\"b\\c""#).as_deref(), Ok(r#"a"b\c"#));
        assert_eq!(parse(br#"a"b\c"#).as_deref(), Ok(r#"a"b\c"#));
    }

    #[test]
    fn everything_else_is_refused() {
        let long = "k".repeat(256);
        let quoted_long = format!("\"{long}\"");
        for bytes in [
            b"".as_slice(),
            b"\"\"",
            b"\"",
            b"\"open",
            b"\"a\"b",
            b"\"a\";q=1",
            b"\"a\\n\"",
            b"\"a\\",
            b"a b",
            b"\"a b\"",
            b"a\tb",
            "schl\u{fc}ssel".as_bytes(),
            b"\xff",
            long.as_bytes(),
            quoted_long.as_bytes(),
        ] {
            assert!(parse(bytes).is_err(), "{:?}", String::from_utf8_lossy(bytes));
        }
        assert_eq!(parse("k".repeat(255).as_bytes()).map(|key| key.len()), Ok(255));
    }

    #[test]
    fn no_two_of_schema_scope_key_and_name_share_a_derived_key() {
        let mut derived = std::collections::HashSet::new();
        let parts = ["a", "a:b", "ab", "b", ":", "a:", "(1:a1:b)"];
        for namespace in ["idem", "other"] {
            for scope in parts {
                for key in parts {
                    let key = IdempotencyKey::new(key).expect("a key").within(namespace, scope);
                    for name in ["charge", "charge:refund", "refund", "", "\u{fc}", "Charge", "charge "] {
                        let key = key.derive(name);
                        assert!(IdempotencyKey::new(key.as_str()).is_ok() && key.as_str().len() <= 64, "{key}");
                        assert!(derived.insert(key.as_str().to_owned()), "{namespace} {scope} {name}: {key}");
                    }
                }
            }
        }
        let long = IdempotencyKey::new("k".repeat(255)).expect("a key").derive(&"n".repeat(1_000));
        assert_eq!(long.as_str().len(), 64);
        let key = IdempotencyKey::new("k").expect("a key").within("idem", "s");
        assert_eq!(key.derive("charge"), key.derive("charge"), "the same on every retry");
        assert_ne!(key.derive("a").derive("b"), key.derive("b").derive("a"));
    }

    #[test]
    fn a_natural_key_is_a_key_and_two_of_them_are_two() {
        let natural = |text: &str| IdempotencyKey::natural(text.to_owned()).expect("a key");
        assert_eq!(natural("evt_1").as_str(), "evt_1");
        let odd = ["order 7", "order  7", "\u{fc}", "\0", "\n"].map(natural);
        let long = [natural(&"k".repeat(256)), natural(&"k".repeat(257))];
        let distinct: std::collections::HashSet<_> = odd.iter().chain(&long).collect();
        assert_eq!(distinct.len(), 7);
        assert!(distinct.iter().all(|key| IdempotencyKey::new(key.as_str()).is_ok()));
        assert!(IdempotencyKey::natural(String::new()).is_err());
    }

    #[test]
    fn debug_hides_the_text() {
        let key = IdempotencyKey::new("secret").expect("a key");
        assert_eq!(format!("{key:?}"), "IdempotencyKey(6 characters)");
    }
}
