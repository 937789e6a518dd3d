//! The idempotency key: what makes two requests the same operation.
//!
//! A key that is made anew for each attempt protects nothing, and one that a restarted process cannot make again
//! leaves it guessing. So the key is a value of its own, made once per logical operation before the first attempt,
//! and [`Key::of`] derives it from what the operation *is*, so that the same order confirmed twice is one operation
//! even when a crash lies between the two.

use std::borrow::Cow;
use std::fmt;
use std::num::{NonZeroI32, NonZeroI64, NonZeroU32, NonZeroU64};
use std::rc::Rc;
use std::sync::Arc;

use http::HeaderValue;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

/// The most characters that a key may have.
pub const MAX_KEY_LENGTH: usize = 255;

/// An idempotency key: 1 to 255 visible ASCII characters.
///
/// Two keys are equal when their text is; the operation's name is only carried along for the journal and for errors.
#[derive(Clone)]
pub struct Key {
    text: Arc<str>,
    operation: Option<Arc<str>>,
}

impl Key {
    /// Derives the key of an operation from its name and from the identity of what it acts on.
    ///
    /// The same operation and identity give the same key on every machine and after every restart; different ones
    /// never do: both are encoded without ambiguity (see [`KeyPart`]), hashed with SHA-256, and written as a UUID of
    /// version 8, since some providers accept nothing longer.
    ///
    /// ```
    /// use idem_client::Key;
    ///
    /// let key = Key::of("order-confirm", &("tenant-7", 4711));
    /// assert_eq!(key.as_str(), "0636fdba-f9c2-8664-95e6-498ce605f87c");
    /// assert_ne!(key, Key::of("order-cancel", &("tenant-7", 4711)));
    /// ```
    #[must_use]
    pub fn of<I: KeyPart + ?Sized>(operation: &str, identity: &I) -> Self {
        let mut canonical = Canonical::default();
        canonical.group(|parts| {
            parts.leaf(operation.as_bytes());
            identity.write(parts);
        });
        let hash: [u8; 32] = Sha256::digest(&canonical.bytes).into();
        let mut half = [0; 16];
        half.copy_from_slice(&hash[..16]);
        Self { text: Uuid::new_v8(half).to_string().into(), operation: Some(operation.into()) }
    }

    /// Makes a key that no other operation has: a random UUID of version 4, from the operating system's entropy.
    ///
    /// A restarted process cannot make it again: prefer [`Key::of`], or keep the key beside the work it stands for.
    #[must_use]
    pub fn random() -> Self {
        Self { text: Uuid::new_v4().to_string().into(), operation: None }
    }

    /// Takes over a key that was made elsewhere, as it is.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`] when it is empty, longer than 255 characters, or has anything but visible ASCII.
    pub fn new(text: impl AsRef<str>) -> Result<Self, InvalidKey> {
        let text = text.as_ref();
        if text.is_empty() || text.len() > MAX_KEY_LENGTH || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(InvalidKey(()));
        }
        Ok(Self { text: text.into(), operation: None })
    }

    /// Names the operation that the key stands for, for the journal and for errors. The key's text stays.
    #[must_use]
    pub fn for_operation(mut self, operation: &str) -> Self {
        self.operation = Some(operation.into());
        self
    }

    /// The key as it is sent.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The operation's name, if the key was derived from one or given one.
    #[must_use]
    pub fn operation(&self) -> Option<&str> {
        self.operation.as_deref()
    }

    /// Reads a key from a header line: `abc`, or `"abc"` in the form of a structured field, which is the same key.
    pub(crate) fn from_header(value: &HeaderValue) -> Result<Self, InvalidKey> {
        let text = value.to_str().map_err(|_| InvalidKey(()))?.trim_matches([' ', '\t']);
        match text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
            Some(quoted) => Self::new(unescape(quoted)?),
            None => Self::new(text),
        }
    }

    pub(crate) fn to_header(&self) -> HeaderValue {
        HeaderValue::from_str(&self.text).expect("visible ASCII is a header value")
    }

    /// As a string of a structured field, which the IETF draft asks for.
    pub(crate) fn to_quoted_header(&self) -> HeaderValue {
        let escaped = self.text.replace('\\', "\\\\").replace('"', "\\\"");
        HeaderValue::from_str(&format!("\"{escaped}\"")).expect("visible ASCII is a header value")
    }
}

/// Undoes the two escapes that a string of a structured field may have: `\"` and `\\`.
fn unescape(quoted: &str) -> Result<String, InvalidKey> {
    let mut text = String::with_capacity(quoted.len());
    let mut characters = quoted.chars();
    while let Some(character) = characters.next() {
        text.push(match character {
            '\\' => characters.next().filter(|next| matches!(next, '"' | '\\')).ok_or(InvalidKey(()))?,
            '"' => return Err(InvalidKey(())),
            other => other,
        });
    }
    Ok(text)
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Key {}

impl std::hash::Hash for Key {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Key").field(&self.text).finish()
    }
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl From<&Key> for HeaderValue {
    fn from(key: &Key) -> Self {
        key.to_header()
    }
}

impl From<&Key> for Key {
    fn from(key: &Key) -> Self {
        key.clone()
    }
}

/// The text cannot be an idempotency key. The text itself is not repeated: it may be a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidKey(());

impl fmt::Display for InvalidKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an idempotency key must be 1 to 255 visible ASCII characters")
    }
}

impl std::error::Error for InvalidKey {}

/// What the identity of an operation may be made of: strings, bytes, integers, booleans, UUIDs, dates and times, and
/// tuples of up to eight of them.
///
/// Each part is written as its length and its bytes, and a tuple in brackets, so `("ab", "c")` and `("a", "bc")`
/// differ. An integer is written in decimal and a UUID hyphenated in lower case: an identity has one spelling, and
/// `4711`, `"4711"` and `4711_u64` name the same order. A date is written `2026-12-01`, and an instant in UTC as in
/// RFC 3339 with as many digits of a second as it has (0, 3, 6 or 9): `2026-12-01T09:30:00.250Z`, from whichever crate
/// and zone. Floats have many spellings and options may be absent, so neither is an identity.
///
/// Dates and times of `chrono`, `time` and `jiff` are there with the feature of that name, and
/// [`SystemTime`](std::time::SystemTime) always is. A database may keep fewer digits than the clock gave: derive the key
/// from what is stored.
///
/// Implement it for a type of your own by writing its parts:
///
/// ```
/// use idem_client::{Canonical, Key, KeyPart};
///
/// struct OrderId { region: String, number: i64 }
///
/// impl KeyPart for OrderId {
///     fn write(&self, to: &mut Canonical) {
///         (&self.region, self.number).write(to);
///     }
/// }
///
/// let order = OrderId { region: "eu".into(), number: 4711 };
/// assert_eq!(Key::of("order-confirm", &order), Key::of("order-confirm", &("eu", 4711)));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot identify an operation",
    label = "must be a string, bytes, an integer, a boolean, a UUID, a date or a tuple of up to eight of them",
    note = "implement `idem_client::KeyPart` for a type of your own; an `Option` or a float is no identity"
)]
pub trait KeyPart {
    /// Writes the identity in its one canonical form.
    fn write(&self, to: &mut Canonical);
}

/// The canonical bytes of an identity, as [`KeyPart`] writes them.
#[derive(Debug, Default)]
pub struct Canonical {
    bytes: Vec<u8>,
}

impl Canonical {
    /// Writes one part: its length in decimal, a colon, its bytes, a comma.
    pub fn leaf(&mut self, part: &[u8]) {
        self.bytes.extend_from_slice(part.len().to_string().as_bytes());
        self.bytes.push(b':');
        self.bytes.extend_from_slice(part);
        self.bytes.push(b',');
    }

    /// Writes several parts as one, in brackets.
    pub fn group(&mut self, parts: impl FnOnce(&mut Self)) {
        self.bytes.push(b'(');
        parts(self);
        self.bytes.push(b')');
    }
}

impl<T: KeyPart + ?Sized> KeyPart for &T {
    fn write(&self, to: &mut Canonical) {
        (**self).write(to);
    }
}

impl KeyPart for str {
    fn write(&self, to: &mut Canonical) {
        to.leaf(self.as_bytes());
    }
}

impl KeyPart for String {
    fn write(&self, to: &mut Canonical) {
        to.leaf(self.as_bytes());
    }
}

impl<T: KeyPart + ?Sized> KeyPart for Arc<T> {
    fn write(&self, to: &mut Canonical) {
        (**self).write(to);
    }
}

impl<T: KeyPart + ?Sized> KeyPart for Rc<T> {
    fn write(&self, to: &mut Canonical) {
        (**self).write(to);
    }
}

impl<T: KeyPart + ?Sized> KeyPart for Box<T> {
    fn write(&self, to: &mut Canonical) {
        (**self).write(to);
    }
}

impl<T: KeyPart + ToOwned + ?Sized> KeyPart for Cow<'_, T> {
    fn write(&self, to: &mut Canonical) {
        (**self).write(to);
    }
}

impl KeyPart for [u8] {
    fn write(&self, to: &mut Canonical) {
        to.leaf(self);
    }
}

impl<const N: usize> KeyPart for [u8; N] {
    fn write(&self, to: &mut Canonical) {
        to.leaf(self);
    }
}

impl KeyPart for bytes::Bytes {
    fn write(&self, to: &mut Canonical) {
        to.leaf(self);
    }
}

impl KeyPart for Vec<u8> {
    fn write(&self, to: &mut Canonical) {
        to.leaf(self);
    }
}

macro_rules! displayed_part {
    ($($part:ty),*) => {$(
        impl KeyPart for $part {
            fn write(&self, to: &mut Canonical) {
                to.leaf(self.to_string().as_bytes());
            }
        }
    )*};
}

displayed_part!(i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize, bool, char, Uuid);
displayed_part!(NonZeroI32, NonZeroI64, NonZeroU32, NonZeroU64);

macro_rules! tuple_part {
    ($($part:ident $position:tt),*) => {
        impl<$($part: KeyPart),*> KeyPart for ($($part,)*) {
            fn write(&self, to: &mut Canonical) {
                to.group(|parts| { $(self.$position.write(parts);)* });
            }
        }
    };
}

tuple_part!(A 0);
tuple_part!(A 0, B 1);
tuple_part!(A 0, B 1, C 2);
tuple_part!(A 0, B 1, C 2, D 3);
tuple_part!(A 0, B 1, C 2, D 3, E 4);
tuple_part!(A 0, B 1, C 2, D 3, E 4, F 5);
tuple_part!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
tuple_part!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn different_objects_have_different_keys() {
        let keys = [
            Key::of("a", &("ab", "c")),
            Key::of("a", &("a", "bc")),
            Key::of("a", "abc"),
            Key::of("a", "ab,c"),
            Key::of("a", "(2:ab,1:c,)"),
            Key::of("a", "2:ab,1:c,"),
            Key::of("a", &("ab", "c", "")),
            Key::of("a", &("ab", ("c", ""))),
            Key::of("a", &(("ab", "c"), "")),
            Key::of("ab", &("", "c")),
            Key::of("", &("ab", "c")),
            Key::of("a", ""),
        ];
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
        let many: HashSet<_> = (0..10_000_i64).map(|id| Key::of("order-confirm", &id)).collect();
        assert_eq!(many.len(), 10_000);
    }

    #[test]
    fn an_identity_has_one_spelling() {
        let uuid = Uuid::from_u128(7);
        assert_eq!(Key::of("a", &4711_i64), Key::of("a", "4711"));
        assert_eq!(Key::of("a", &4711_u128), Key::of("a", b"4711"));
        assert_eq!(Key::of("a", &uuid), Key::of("a", "00000000-0000-0000-0000-000000000007"));
    }

    #[test]
    fn what_holds_an_identity_is_not_part_of_it() {
        let plain = Key::of("a", &("tenant", 7));
        assert_eq!(Key::of("a", &(Cow::Borrowed("tenant"), Rc::new(7))), plain);
        assert_eq!(Key::of("a", &(Arc::<str>::from("tenant"), Box::new(7))), plain);
        assert_eq!(Key::of("a", &(Cow::<str>::Owned("tenant".into()), NonZeroU64::new(7).unwrap())), plain);
        let long = Key::of("a", &(1, 2, 3, 4, 5, 6, 7, 8));
        assert_ne!(long, Key::of("a", &((1, 2, 3, 4), (5, 6, 7, 8))));
    }

    #[test]
    fn random_keys_do_not_repeat() {
        let keys: HashSet<_> = (0..10_000).map(|_| Key::random()).collect();
        assert_eq!(keys.len(), 10_000);
    }

    #[test]
    fn malformed_keys_are_refused() {
        for text in ["", " ", "a b", "ä", "a\n", &"k".repeat(256)] {
            assert!(Key::new(text).is_err(), "{text:?}");
        }
        for text in ["k", "a:b/c", &"k".repeat(255)] {
            assert_eq!(Key::new(text).unwrap().as_str(), text);
        }
    }

    #[test]
    fn the_quoted_form_is_the_same_key() {
        let read = |text: &str| Key::from_header(&HeaderValue::from_str(text).unwrap());
        assert_eq!(read("\"abc\"").unwrap(), read("abc").unwrap());
        assert_eq!(read(r#""a\"b\\""#).unwrap().as_str(), r#"a"b\"#);
        for text in ["abc", r#"a\b"#, r#"a"b"#, r#""quoted""#, r#"\""#] {
            let key = Key::new(text).unwrap();
            assert_eq!(Key::from_header(&key.to_quoted_header()).unwrap(), key, "{text}");
        }
        assert_eq!(Key::new(r#"a"\"#).unwrap().to_quoted_header(), r#""a\"\\""#);
        for text in ["\"\"", r#""a\b""#, "\"a\"b\"", ""] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
