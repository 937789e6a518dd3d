//! A key names one request, so the rest of that request is remembered as a fingerprint and checked on every retry.

#[cfg(feature = "axum")]
mod body;
pub(crate) mod json;
mod multipart;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

#[cfg(feature = "axum")]
pub use body::{CheckedLast, ExtractsLast, WithFingerprint};

/// The first half of a SHA-256 over handler, method, original path and query, and body. A client could only deceive itself with two
/// requests that share it, and would have to search 2^64 of them; the other half would be stored and read for nothing.
pub(crate) type Fingerprint = [u8; 16];

/// The digest of a request's body, canonical where its content type says how, and the body itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digest {
    pub(crate) hash: [u8; 32],
    pub(crate) body: Bytes,
    /// Whether the body arrived, and was not too long.
    pub(crate) is_whole: bool,
}

/// Digests parts so that moving a byte from one to the next changes the result.
pub(crate) fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    hasher.finalize().into()
}

/// The digest of a body: JSON without member order and white space, multipart without its boundary, else the bytes.
pub(crate) fn digest_of_body(content_type: Option<&str>, body: &[u8]) -> [u8; 32] {
    let content_type = content_type.unwrap_or_default();
    // The same JSON counts as the same request whether or not a client calls it so.
    if content_type.is_empty()
        && let Some(canonical) = json::canonical(body)
    {
        return sha256(&[b"json", &canonical]);
    }
    let media_type = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if media_type == "application/json" || media_type == "text/json" || media_type.ends_with("+json") {
        if let Some(canonical) = json::canonical(body) {
            return sha256(&[b"json", &canonical]);
        }
    } else if media_type.starts_with("multipart/")
        && let Some(digest) = multipart::digest(content_type, body)
    {
        return sha256(&[b"multipart", &digest]);
    }
    sha256(&[b"bytes", body])
}

pub(crate) fn fingerprint(parts: &[&[u8]]) -> Fingerprint {
    let hash = sha256(parts);
    std::array::from_fn(|place| hash[place])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_counts_by_meaning_and_other_bodies_by_bytes() {
        let json = |body: &str| digest_of_body(Some("application/json; charset=utf-8"), body.as_bytes());
        assert_eq!(json(r#"{"a":1,"b":[1,2]}"#), json("{ \"b\" : [ 1 , 2 ],\n \"a\" : 1 }"));
        assert_ne!(json(r#"{"a":1}"#), json(r#"{"a":1.0}"#));
        let text = |body: &str| digest_of_body(Some("text/plain"), body.as_bytes());
        assert_ne!(text(r#"{"a":1,"b":2}"#), text(r#"{"b":2,"a":1}"#));
        assert_ne!(text("1"), json("1"), "the kind of body counts");
        assert_eq!(json("{not json"), json("{not json"));
        assert_ne!(json("{not json"), json("{ not json"));
    }

    #[test]
    fn parts_cannot_be_shifted_into_each_other() {
        assert_ne!(sha256(&[b"ab", b"c"]), sha256(&[b"a", b"bc"]));
    }
}
