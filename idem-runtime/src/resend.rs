//! A multi-step operation keeps its request, so that the completer can send it again. Credentials are not kept: only the
//! headers named by [`Builder::resent_headers`](crate::Builder::resent_headers) are.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method};
use serde::{Deserialize, Serialize};

/// The head of a kept request: one line of JSON, and the body after it.
#[derive(Serialize, Deserialize)]
struct Head {
    method: String,
    uri: String,
    /// Values in hexadecimal digits would be unreadable; those that are no text are left out.
    headers: Vec<(String, String)>,
}

pub(crate) fn encode(method: &Method, uri: &str, headers: &[(HeaderName, HeaderValue)], body: &[u8]) -> Bytes {
    let text = |(name, value): &(HeaderName, HeaderValue)| Some((name.to_string(), value.to_str().ok()?.to_owned()));
    let head =
        Head { method: method.to_string(), uri: uri.to_owned(), headers: headers.iter().filter_map(text).collect() };
    let mut encoded = serde_json::to_vec(&head).unwrap_or_default();
    encoded.push(b'\n');
    encoded.extend_from_slice(body);
    encoded.into()
}

/// The request again; `None` for what this crate has not written, and for what was no request.
#[cfg(feature = "axum")]
pub(crate) fn decode(encoded: &[u8]) -> Option<http::Request<axum::body::Body>> {
    let end = encoded.iter().position(|byte| *byte == b'\n')?;
    let head: Head = serde_json::from_slice(&encoded[..end]).ok()?;
    let mut request = http::Request::builder().method(head.method.as_str()).uri(head.uri);
    for (name, value) in head.headers {
        request = request.header(name, value);
    }
    request.body(Bytes::copy_from_slice(&encoded[end + 1..]).into()).ok()
}
