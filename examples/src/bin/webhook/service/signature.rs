//! An event counts only if the provider signed it: `Webhook-Signature: t=<seconds since 1970>,v1=<hexadecimal>`, an
//! HMAC-SHA256 under the shared secret over the time, a full stop and the body's bytes.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Bytes;
use axum::extract::{FromRef, FromRequest, Request};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use hmac::{Hmac, KeyInit, Mac};
use serde::de::DeserializeOwned;
use sha2::Sha256;

pub(crate) const HEADER: &str = "webhook-signature";

/// How old a signature may be, in seconds: one that was overheard is worthless soon.
const TOLERANCE: u64 = 300;

/// What the provider and we share.
#[derive(Clone)]
pub(crate) struct Secret(pub(crate) Arc<[u8]>);

/// A JSON body that the provider signed. Whatever is not signed is refused before anything is claimed or stored.
pub(super) struct Signed<T>(pub(super) T);

impl<S, T> FromRequest<S> for Signed<T>
where
    S: Send + Sync,
    T: DeserializeOwned,
    Secret: FromRef<S>,
{
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let header = request.headers().get(HEADER).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
        // The bytes as they came: parsing and writing them again could change them.
        let body = Bytes::from_request(request, state).await.map_err(IntoResponse::into_response)?;
        if !is_signed(&Secret::from_ref(state), &header, now(), &body) {
            tracing::warn!("refused an event without a valid signature");
            return Err((StatusCode::UNAUTHORIZED, "the signature is missing, wrong or too old").into_response());
        }
        let event = serde_json::from_slice(&body);
        event.map(Self).map_err(|error| (StatusCode::BAD_REQUEST, error.to_string()).into_response())
    }
}

/// The provider's half, for the tour and the tests.
pub(crate) fn sign(secret: &Secret, time: u64, body: &[u8]) -> String {
    format!("t={time},v1={}", hex::encode(mac(secret, &time.to_string(), body).finalize().into_bytes()))
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

fn mac(secret: &Secret, time: &str, body: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(&secret.0).expect("HMAC takes a key of any length");
    mac.update(time.as_bytes());
    mac.update(b".");
    mac.update(body);
    mac
}

/// Whether one of the header's signatures is right and recent. There are two while the secret is being changed.
fn is_signed(secret: &Secret, header: &str, now: u64, body: &[u8]) -> bool {
    let fields = || header.split(',').filter_map(|field| field.trim().split_once('='));
    let Some((_, time)) = fields().find(|(name, _)| *name == "t") else { return false };
    let recent = time.parse().is_ok_and(|time: u64| now.abs_diff(time) <= TOLERANCE);
    let signatures = fields().filter(|(name, _)| *name == "v1").filter_map(|(_, text)| hex::decode(text).ok());
    // Compares in constant time: how long a refusal takes must not say how much of a guess is right.
    recent && signatures.into_iter().any(|signature| mac(secret, time, body).verify_slice(&signature).is_ok())
}

#[cfg(test)]
mod tests {
    use super::{Secret, is_signed, sign};

    fn secret(text: &str) -> Secret {
        Secret(text.as_bytes().into())
    }

    #[test]
    fn the_signature_is_the_one_that_other_tools_make() {
        // printf '1700000000.{}' | openssl dgst -sha256 -hmac secret
        let expected = "t=1700000000,v1=b8569b78799ff9e3cbff0fc2d63a33a2b57f3282abd07c37ae5e8e7d79a5f163";
        assert_eq!(sign(&secret("secret"), 1_700_000_000, b"{}"), expected);
    }

    #[test]
    fn only_the_right_secret_time_and_body_pass() {
        let signed = |header: &str, now, body: &[u8]| is_signed(&secret("s"), header, now, body);
        let header = sign(&secret("s"), 1_000, b"body");
        assert!(signed(&header, 1_000, b"body"));
        assert!(signed(&header, 1_300, b"body"));
        assert!(!signed(&header, 1_301, b"body"), "too old");
        assert!(!signed(&header, 699, b"body"), "from the future");
        assert!(!signed(&header, 1_000, b"other"));
        assert!(!signed(&header.replace("t=1000", "t=1001"), 1_000, b"body"), "the time is signed too");
        assert!(!signed(&sign(&secret("other"), 1_000, b"body"), 1_000, b"body"));
        for header in ["", "t=1000", "v1=00", "t=1000,v1=", "t=1000,v1=zz", "t=,v1=", "t=x,v1=00"] {
            assert!(!signed(header, 1_000, b"body"), "{header}");
        }
    }

    #[test]
    fn while_the_secret_changes_either_signature_will_do() {
        let both = format!("{},{}", sign(&secret("new"), 1_000, b"body"), &sign(&secret("old"), 1_000, b"body")[7..]);
        assert!(is_signed(&secret("new"), &both, 1_000, b"body"));
        assert!(is_signed(&secret("old"), &both, 1_000, b"body"));
        assert!(!is_signed(&secret("third"), &both, 1_000, b"body"));
    }
}
