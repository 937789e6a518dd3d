//! A retry must not be able to tell that it was one: the response is stored whole, as bytes.

use axum::body::Body;
use axum::response::Response;
use http::StatusCode;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http_body_util::{BodyExt, Limited};

use crate::error::NotStorable;
use crate::lifecycle::outcome::StoredResponse;

/// Belongs to one connection, one moment or one client's session, not to the operation.
const NOT_STORED: [HeaderName; 11] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::DATE,
    header::CONTENT_LENGTH,
    header::SET_COOKIE,
];

/// Lines that most responses have, stored as one byte each: `COMMON + ` their place. No header's name begins with such a byte.
/// Places are in databases, so a new line goes to the end, is written one release after it can be read, and none is ever
/// taken out.
const COMMON_LINES: [&[u8]; 5] = [
    b"content-type:application/json",
    b"content-type:text/plain; charset=utf-8",
    b"content-type:application/problem+json",
    b"content-type:application/octet-stream",
    b"content-type:text/html; charset=utf-8",
];

const COMMON: u8 = 0x80;

/// Reads a response whole. Gives back an equal one for the first caller.
pub(crate) async fn store(response: Response, limit: usize) -> Result<(Response, StoredResponse), NotStorable> {
    use axum::body::HttpBody as _;
    if response.status().is_informational() {
        return Err(NotStorable::Upgrade);
    }
    let (parts, body) = response.into_parts();
    let length = body.size_hint().exact().ok_or(NotStorable::Streaming)?;
    if length > limit as u64 {
        return Err(NotStorable::TooLarge { limit });
    }
    let body = Limited::new(body, limit).collect().await.map_err(|_| NotStorable::Unreadable)?.to_bytes();
    let stored =
        StoredResponse { status: parts.status.as_u16(), headers: encode_headers(&parts.headers), body: body.clone() };
    Ok((Response::from_parts(parts, Body::from(body)), stored))
}

fn encode_headers(headers: &HeaderMap) -> Vec<u8> {
    let named_by_connection = |name: &HeaderName| {
        let tokens = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
        tokens.flat_map(|value| value.split(',')).any(|token| token.trim().eq_ignore_ascii_case(name.as_str()))
    };
    let mut encoded = Vec::new();
    for (name, value) in headers {
        if name == header::SET_COOKIE {
            tracing::debug!("a `set-cookie` header is not stored: it belongs to one client's session");
        }
        if NOT_STORED.contains(name) || named_by_connection(name) {
            continue;
        }
        push_line(&mut encoded, name, value);
    }
    encoded
}

fn push_line(encoded: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    let start = encoded.len();
    encoded.extend_from_slice(name.as_str().as_bytes());
    encoded.push(b':');
    encoded.extend_from_slice(value.as_bytes());
    if let Some(place) = COMMON_LINES.iter().position(|line| **line == encoded[start..]) {
        encoded.truncate(start);
        encoded.push(COMMON + place as u8);
    }
    encoded.push(b'\n');
}

/// The line of which this is stored; `None` for a byte that a newer version of this crate wrote.
fn line(stored: &[u8]) -> Option<&[u8]> {
    match stored {
        [place @ COMMON..=u8::MAX, rest @ ..] => {
            COMMON_LINES.get(usize::from(place - COMMON)).filter(|_| rest.is_empty()).copied()
        }
        line => Some(line),
    }
}

impl StoredResponse {
    /// The response again, marked as a replay; `None` if the row was not written by this crate.
    pub(crate) fn replay(&self, replay_header: &HeaderName) -> Option<Response> {
        let mut response = Response::new(Body::from(self.body.clone()));
        *response.status_mut() = StatusCode::from_u16(self.status).ok()?;
        let lines = self.headers.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        for stored in lines {
            let line = line(stored)?;
            let colon = line.iter().position(|byte| *byte == b':')?;
            let name = HeaderName::from_bytes(&line[..colon]).ok()?;
            let value = HeaderValue::from_bytes(&line[colon + 1..]).ok()?;
            response.headers_mut().append(name, value);
        }
        response.headers_mut().insert(replay_header, HeaderValue::from_static("true"));
        Some(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(headers: &[(&'static str, &[u8])], body: impl Into<Body>) -> Response {
        let mut response = Response::new(body.into());
        *response.status_mut() = StatusCode::CREATED;
        for (name, value) in headers {
            response.headers_mut().append(*name, HeaderValue::from_bytes(value).expect("a header value"));
        }
        response
    }

    async fn round_trip(first: Response) -> Response {
        let (_, stored) = store(first, 1_000).await.expect("storable");
        stored.replay(&HeaderName::from_static("idempotency-replayed")).expect("readable")
    }

    #[tokio::test]
    async fn status_headers_and_body_replay_exactly() {
        let headers = [
            ("location", b"/orders/1".as_slice()),
            ("link", b"<a>; rel=first"),
            ("link", b"<b>; rel=last"),
            ("x-bytes", b"caf\xe9:1"),
            ("x-empty", b""),
        ];
        let replay = round_trip(response(&headers, vec![0_u8, 159, 146, 150])).await;
        assert_eq!(replay.status(), StatusCode::CREATED);
        let mut expected = response(&headers, Body::empty()).headers().clone();
        expected.insert("idempotency-replayed", HeaderValue::from_static("true"));
        assert_eq!(replay.headers(), &expected);
        assert_eq!(replay.into_body().collect().await.expect("a body").to_bytes().as_ref(), [0, 159, 146, 150]);
    }

    #[tokio::test]
    async fn common_lines_take_a_byte_and_others_none_of_their_bytes() {
        for (place, line) in COMMON_LINES.into_iter().enumerate() {
            let (name, value) = line.split_at(line.iter().position(|byte| *byte == b':').expect("a colon"));
            let name = HeaderName::from_bytes(name).expect("a name");
            let mut first = Response::new(Body::empty());
            first.headers_mut().insert(name, HeaderValue::from_bytes(&value[1..]).expect("a value"));
            let headers = first.headers().clone();
            let (_, stored) = store(first, 0).await.expect("storable");
            assert_eq!(stored.headers, [0x80 + place as u8, b'\n']);
            let mut replay = stored.replay(&HeaderName::from_static("idempotency-replayed")).expect("readable");
            replay.headers_mut().remove("idempotency-replayed");
            assert_eq!(replay.headers(), &headers);
        }
        for headers in [&b"\xff\n"[..], b"\x80rest\n", b"\x80:\n"] {
            let unknown = StoredResponse { status: 200, headers: headers.to_vec(), body: bytes::Bytes::new() };
            assert!(unknown.replay(&HeaderName::from_static("idempotency-replayed")).is_none(), "{headers:?}");
        }
    }

    #[tokio::test]
    async fn what_belongs_to_the_connection_or_the_session_is_left_out() {
        let headers = [
            ("connection", b"close, X-Hop".as_slice()),
            ("x-hop", b"1"),
            ("date", b"now"),
            ("set-cookie", b"session=secret"),
            ("transfer-encoding", b"chunked"),
            ("content-length", b"0"),
        ];
        let replay = round_trip(response(&headers, Body::empty())).await;
        assert_eq!(replay.headers().len(), 1, "{:?}", replay.headers());
    }

    #[tokio::test]
    async fn streams_and_bodies_over_the_limit_are_refused() {
        let stream = Body::from_stream(futures_util::stream::iter([Ok::<_, std::io::Error>("part")]));
        assert_eq!(store(response(&[], stream), 1_000).await.map(|_| ()), Err(NotStorable::Streaming));
        let long = store(response(&[], vec![0; 1_001]), 1_000).await;
        assert_eq!(long.map(|_| ()), Err(NotStorable::TooLarge { limit: 1_000 }));
        assert!(store(response(&[], vec![0; 1_000]), 1_000).await.is_ok());
    }
}
