//! What must hold for any bytes, one function a fuzz target of `fuzz/`. It exists under `cfg(fuzzing)`, and in this
//! crate's own tests, which replay the corpus through it.

mod tree;

use bytes::Bytes;
use futures_util::FutureExt;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode};
use serde::de::IgnoredAny;

use crate::fingerprint::{digest_of_body, json, sha256};
use crate::key::{IdempotencyKey, MAX_KEY_LENGTH};
use crate::lifecycle::outcome::StoredResponse;
use crate::operation::recovery_points;
use crate::resend;
use crate::response;

use tree::Tree;

/// The key parser: what it accepts is a key, in both spellings the same one.
pub fn key(data: &[u8]) {
    let Ok(value) = HeaderValue::from_bytes(data) else { return };
    let is_key = |text: &[u8]| (1..=MAX_KEY_LENGTH).contains(&text.len()) && text.iter().all(u8::is_ascii_graphic);
    let parsed = IdempotencyKey::from_header(&value);
    if !data.starts_with(b"\"") {
        assert_eq!(parsed.is_ok(), is_key(data), "a bare key is accepted as it stands");
    }
    let Ok(key) = parsed else { return };
    assert!(is_key(key.as_str().as_bytes()));
    assert_eq!(IdempotencyKey::new(key.as_str()), Ok(key.clone()));
    let quoted = format!("\"{}\"", key.as_str().replace('\\', "\\\\").replace('"', "\\\""));
    let quoted = HeaderValue::from_str(&quoted).expect("visible ASCII");
    assert_eq!(IdempotencyKey::from_header(&quoted), Ok(key.clone()), "both spellings are one key");
    for name in ["charge", "ein Schritt", "", ":"] {
        let derived = key.derive(name);
        assert!(is_key(derived.as_str().as_bytes()), "what is derived is a key");
        assert_ne!(derived, key.derive("another"));
    }
}

/// The JSON canonicaliser: accepts what serde_json accepts, is indifferent to order and white space, and to nothing else.
pub fn canonical_json(data: &[u8]) {
    let canonical = json::canonical(data);
    let text = std::str::from_utf8(data).ok().filter(|text| serde_json::from_str::<IgnoredAny>(text).is_ok());
    let tree = text.and_then(Tree::read);
    let Some(tree) = tree.filter(|tree| tree.depth() <= json::MAX_DEPTH) else {
        return assert!(canonical.is_none(), "it is no JSON, or too deep");
    };
    let canonical = canonical.expect("serde_json accepts it");
    let mut mixed = String::new();
    tree.print_mixed(&mut mixed, data.len() as u64);
    assert_eq!(json::canonical(mixed.as_bytes()).as_ref(), Some(&canonical), "order and white space do not count");
    let readable = tree::readable(&canonical);
    assert_eq!(json::canonical(&readable).as_ref(), Some(&canonical), "canonical text is canonical");
    for changed in tree.changes() {
        assert_ne!(json::canonical(changed.as_bytes()).as_ref(), Some(&canonical), "everything else counts: {changed}");
    }
}

/// The multipart digest: whatever the boundary, the same parts are equal and others are not. `data` is the parts with 0xff
/// between them.
pub fn multipart(data: &[u8]) {
    let parts: Vec<&[u8]> = data.split(|byte| *byte == 0xff).collect();
    let digest = |boundary: &str, preamble: &[u8], parts: &[&[u8]]| {
        let delimiter = format!("\r\n--{boundary}");
        let free = |bytes: &&[u8]| !bytes.windows(delimiter.len()).any(|window| window == delimiter.as_bytes());
        if !parts.iter().all(free) {
            return None;
        }
        let mut body = preamble.to_vec();
        for part in parts {
            body.extend_from_slice(delimiter.as_bytes());
            body.extend_from_slice(b"\r\n");
            body.extend_from_slice(part);
        }
        body.extend_from_slice(delimiter.as_bytes());
        body.extend_from_slice(b"--\r\n");
        let content_type = format!("multipart/form-data; boundary=\"{boundary}\"");
        let digest = digest_of_body(Some(&content_type), &body);
        assert_ne!(digest, sha256(&[b"bytes", &body]), "it is made as its content type says");
        Some(digest)
    };
    let Some(one) = digest("one", b"", &parts) else { return };
    for (boundary, preamble) in [("another-Boundary_2", b"".as_slice()), ("a", b"ignored"), ("one", b"x\r\n")] {
        if let Some(other) = digest(boundary, preamble, &parts) {
            assert_eq!(one, other, "the boundary does not count");
        }
    }
    let mut more = parts.clone();
    more.push(b"");
    assert_ne!(Some(one), digest("one", b"", &more), "an empty part counts");
    let joined = parts.concat();
    if parts.len() > 1 {
        assert_ne!(Some(one), digest("one", b"", &[&joined]), "where a part ends counts");
    }
    // A body and a content type that nobody made.
    let (content_type, body) = data.split_at(data.len() / 2);
    let _ = digest_of_body(Some(&format!("multipart/mixed; {}", String::from_utf8_lossy(content_type))), body);
}

/// The stored response and the kept request: what goes in comes out, and what was never put in is no panic.
pub fn stored_response(data: &[u8]) {
    let replay_header = HeaderName::from_static("idempotency-replayed");
    let unknown = StoredResponse { status: 200, headers: data.to_vec(), body: Bytes::new() };
    let _ = unknown.replay(&replay_header);
    let _ = resend::decode(data);

    let mut lines = data.split(|byte| *byte == b'\n');
    let status = lines.next().and_then(|line| StatusCode::from_bytes(line).ok()).unwrap_or(StatusCode::CREATED);
    let mut headers = HeaderMap::new();
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let value = line.get(colon + 1..).unwrap_or_default();
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(&line[..colon]), HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    response_round_trip(status, &headers, data, &replay_header);
    request_round_trip(&headers, data);
}

fn response_round_trip(status: StatusCode, headers: &HeaderMap, body: &[u8], replay_header: &HeaderName) {
    let mut first = axum::response::Response::new(axum::body::Body::from(body.to_vec()));
    *first.status_mut() = status;
    *first.headers_mut() = headers.clone();
    let (first, stored) = response::store(first, body.len()).now_or_never().expect("it is there").expect("it is short");
    assert_eq!((first.status(), first.headers()), (status, headers), "the first caller gets everything");
    let replay = stored.replay(replay_header).expect("this crate wrote it");
    assert_eq!(replay.status(), status);
    for (name, value) in replay.headers() {
        let kept = name == replay_header || headers.get_all(name).iter().any(|first| first == value);
        assert!(kept, "`{name}` was not in the first answer");
    }
    for name in headers.keys().filter(|name| *name != replay_header && replay.headers().contains_key(*name)) {
        let values = |headers: &HeaderMap| headers.get_all(name).iter().cloned().collect::<Vec<_>>();
        assert_eq!(values(replay.headers()), values(headers), "`{name}` comes with all its values, in order");
    }
    let again = response::store(replay, body.len()).now_or_never().expect("it is there").expect("it is short").1;
    let again = again.replay(replay_header).expect("this crate wrote it");
    assert_eq!(again.into_body().collect_bytes(), body, "the body is bytes");
}

fn request_round_trip(headers: &HeaderMap, body: &[u8]) {
    let headers: Vec<_> = headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    let encoded = resend::encode(&Method::POST, "/orders?dry_run=1", &headers, body);
    let request = resend::decode(&encoded).expect("this crate wrote it");
    assert_eq!((request.method(), request.uri().to_string().as_str()), (&Method::POST, "/orders?dry_run=1"));
    let text = |value: &HeaderValue| value.to_str().is_ok();
    let kept: Vec<_> = request.headers().iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    assert_eq!(kept, headers.into_iter().filter(|(_, value)| text(value)).collect::<Vec<_>>());
    assert_eq!(request.into_body().collect_bytes(), body);
}

trait CollectBytes {
    fn collect_bytes(self) -> Bytes;
}

impl CollectBytes for axum::body::Body {
    fn collect_bytes(self) -> Bytes {
        use http_body_util::BodyExt;
        self.collect().now_or_never().expect("it is there").expect("it is whole").to_bytes()
    }
}

/// The recovery-point lines: what was recorded reads back, and what was never recorded is no panic.
pub fn recovery_point_lines(data: &[u8]) {
    if let Ok(points) = recovery_points::read(data) {
        for point in points {
            let _ = point.result::<serde_json::Value>();
        }
    }
    let mut lines = Vec::new();
    let mut expected: Vec<(String, Option<Vec<String>>)> = Vec::new();
    for (number, chunk) in data.split(|byte| *byte == 0).enumerate() {
        let text = String::from_utf8_lossy(chunk);
        // Names are distinct within an operation.
        let name = format!("{text}{number}");
        let results = text.lines().map(str::to_owned).collect::<Vec<_>>();
        if number % 3 != 0 {
            lines.extend(recovery_points::started(&name).expect("a string is JSON"));
        }
        if number % 3 != 1 {
            lines.extend(recovery_points::finished(&name, &results).expect("strings are JSON"));
        }
        expected.push((name, (number % 3 != 1).then_some(results)));
    }
    let read = recovery_points::read(&lines).expect("this crate wrote it");
    let read: Vec<_> = read.iter().map(|point| (point.name.clone(), point.result().expect("its type"))).collect();
    assert_eq!(read, expected);
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    #[test]
    fn the_corpus_holds() {
        type Target = fn(&[u8]);
        let targets: [(&str, Target); 5] = [
            ("key", super::key),
            ("canonical_json", super::canonical_json),
            ("multipart", super::multipart),
            ("stored_response", super::stored_response),
            ("recovery_points", super::recovery_point_lines),
        ];
        for (target, check) in targets {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
            let files: Vec<_> =
                fs::read_dir(&folder).expect("a corpus").map(|entry| entry.expect("a file").path()).collect();
            assert!(files.len() > 5, "`{target}` has a corpus");
            for file in files {
                println!("{}", file.display());
                check(&fs::read(file).expect("readable"));
            }
        }
    }
}
