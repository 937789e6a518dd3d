//! Two spellings of one key are two payments, so a key is parsed once, strictly, and compared as text.

use std::fmt;

use http::HeaderValue;

/// The longest idempotency key, in characters (one byte each: keys are visible ASCII).
pub const MAX_KEY_LENGTH: usize = 255;

/// An idempotency key: 1 to 255 visible ASCII characters.
///
/// It names one logical operation within a [`Scope`](crate::Scope). `Debug` shows its length and not its text: keys
/// stay out of logs.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(String);

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
        Ok(Self(text))
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
        Self(uuid::Uuid::new_v4().to_string())
    }

    /// The hexadecimal digits of a digest.
    pub(crate) fn from_digest(digits: &str) -> Self {
        Self(digits.to_owned())
    }

    /// The key's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The key for one downstream call of this operation: `<key>:<name>`, the same on every retry.
    ///
    /// A result longer than [`MAX_KEY_LENGTH`] is shortened to its SHA-256 in hexadecimal, so that providers with the
    /// usual limit of 255 accept it and different operations keep different keys.
    ///
    /// ```
    /// # use idem_runtime::IdempotencyKey;
    /// let key = IdempotencyKey::new("order-7")?;
    /// assert_eq!(key.derive("charge").as_str(), "order-7:charge");
    /// # Ok::<(), idem_runtime::InvalidKey>(())
    /// ```
    #[must_use]
    pub fn derive(&self, name: &str) -> Self {
        let derived = format!("{}:{name}", self.0);
        let fits = derived.len() <= MAX_KEY_LENGTH && derived.bytes().all(|byte| byte.is_ascii_graphic());
        if fits { Self(derived) } else { Self(crate::hex::encode(&crate::fingerprint::sha256(&[derived.as_bytes()]))) }
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
        write!(formatter, "IdempotencyKey({} characters)", self.0.len())
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl AsRef<str> for IdempotencyKey {
    fn as_ref(&self) -> &str {
        &self.0
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
    /// The key's text; it is checked like a key from a header.
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
        IdempotencyKey::from_header(&HeaderValue::from_bytes(bytes).expect("a header value")).map(|key| key.0)
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
    fn derived_keys_differ_by_operation_and_name_and_fit() {
        let long = |last: &str| IdempotencyKey::new("k".repeat(254) + last).expect("a key");
        assert_eq!(long("a").derive("charge").as_str().len(), 64);
        assert_ne!(long("a").derive("charge"), long("b").derive("charge"));
        assert_ne!(long("a").derive("charge"), long("a").derive("refund"));
        assert_eq!(long("a").derive("charge"), long("a").derive("charge"));
    }

    #[test]
    fn debug_hides_the_text() {
        let key = IdempotencyKey::new("secret").expect("a key");
        assert_eq!(format!("{key:?}"), "IdempotencyKey(6 characters)");
    }
}
