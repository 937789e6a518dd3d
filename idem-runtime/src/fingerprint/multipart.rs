//! A client makes a new boundary for each attempt, so a multipart body counts by its parts.

use memchr::memmem;
use sha2::{Digest as _, Sha256};

/// A digest of the parts in order, or `None` where `body` is not made as `content_type` says (RFC 2046, section 5.1.1).
pub(super) fn digest(content_type: &str, body: &[u8]) -> Option<[u8; 32]> {
    let delimiter = format!("\r\n--{}", boundary(content_type)?);
    let finder = memmem::Finder::new(&delimiter);
    // The first delimiter may open the body, without the line break before it.
    let first = delimiter.as_bytes().strip_prefix(b"\r\n")?;
    let mut rest = match body.strip_prefix(first) {
        Some(rest) => rest,
        None => &body[finder.find(body)? + delimiter.len()..],
    };
    let mut hasher = Sha256::new();
    loop {
        if rest.starts_with(b"--") {
            return Some(hasher.finalize().into());
        }
        // Transport padding, then the line break that ends the delimiter's line.
        let padding = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let part_and_rest = rest[padding..].strip_prefix(b"\r\n")?;
        let length = finder.find(part_and_rest)?;
        hasher.update((length as u64).to_be_bytes());
        hasher.update(&part_and_rest[..length]);
        rest = &part_and_rest[length + delimiter.len()..];
    }
}

fn boundary(content_type: &str) -> Option<String> {
    let parameters = content_type.split_once(';')?.1;
    let value = parameters.split(';').find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("boundary").then(|| value.trim().trim_matches('"'))
    })?;
    (!value.is_empty() && value.len() <= 70).then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::digest;

    fn body(boundary: &str, parts: &[&[u8]]) -> (String, Vec<u8>) {
        let mut body = Vec::new();
        for part in parts {
            body.extend_from_slice(
                format!("--{boundary}\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n").as_bytes(),
            );
            body.extend_from_slice(part);
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
        (format!("multipart/form-data; boundary={boundary}"), body)
    }

    fn digest_of(boundary: &str, parts: &[&[u8]]) -> Option<[u8; 32]> {
        let (content_type, body) = body(boundary, parts);
        digest(&content_type, &body)
    }

    #[test]
    fn the_boundary_does_not_count_and_the_bytes_do() {
        assert_eq!(digest_of("one", &[b"\xff\xfe", b"b"]), digest_of("two-2", &[b"\xff\xfe", b"b"]));
        assert_ne!(digest_of("one", &[b"\xff", b"b"]), digest_of("one", &[b"\xfe", b"b"]), "not through lossy text");
        assert_ne!(digest_of("one", &[b"a", b"b"]), digest_of("one", &[b"b", b"a"]));
        assert_ne!(digest_of("one", &[b"ab"]), digest_of("one", &[b"a", b"b"]));
    }

    #[test]
    fn what_is_malformed_counts_byte_for_byte() {
        let (content_type, body) = body("x", &[b"a"]);
        assert!(digest(&content_type, &body).is_some());
        assert!(digest("multipart/form-data", &body).is_none());
        assert!(digest("multipart/form-data; boundary=y", &body).is_none());
        assert!(digest(&content_type, &body[..body.len() - 6]).is_none());
        assert!(digest(&content_type, b"").is_none());
    }
}
