//! Which keys are keys, and which are the same.

use axum::body::Body;
use axum::http::{HeaderValue, Request};

use crate::contract::checker::{Checked, Checker, Trial, not_tried};

pub(in crate::contract) const NO_KEY: &str =
    "a request without a key is refused, or has its effect each time where keys are optional";
pub(in crate::contract) const MALFORMED: &str = "a malformed key is refused";
pub(in crate::contract) const QUOTED: &str = "`key` and `\"key\"` are one key, or one of them is refused";
pub(in crate::contract) const LONGEST: &str = "the longest key is a key";
pub(in crate::contract) const DISTINCT: &str = "keys that differ in one character are different keys";

fn with_header(checker: &Checker<'_, '_>, values: &[&[u8]]) -> Request<Body> {
    let name = &checker.contract.subject.key_header;
    let mut request = checker.request("replaced");
    request.headers_mut().remove(name);
    for value in values {
        let value = HeaderValue::from_bytes(value).expect("visible bytes");
        request.headers_mut().append(name.clone(), value);
    }
    request
}

pub(in crate::contract) async fn no_key(checker: &Checker<'_, '_>) -> Checked {
    checker.must_have_header()?;
    let trial = checker.trial(NO_KEY).await;
    let sent = "the request without a key, twice";
    let first = trial.send(&checker.victim.app, with_header(checker, &[])).await;
    let second = trial.send(&checker.victim.app, with_header(checker, &[])).await;
    if checker.contract.key_is_optional {
        for attempt in [first, second] {
            if attempt.answer().is_none_or(|answer| answer.status != checker.baseline.status) {
                return Err(trial.found(sent, attempt, format!("{} each time", checker.baseline.status)).into());
            }
        }
        return trial.must_count(sent, 2).await;
    }
    must_be_refused(&trial, sent, &first, "if keys are optional, use `.key_optional()`").await
}

async fn must_be_refused(trial: &Trial<'_, '_>, sent: &str, attempt: &crate::client::Attempt, advice: &str) -> Checked {
    let refused = attempt.answer().is_some_and(|answer| answer.status.is_client_error());
    // A handler that refuses everything refuses this too, but must not have got that far.
    let own = trial.checker.baseline.is_refusal()
        && attempt.answer().is_some_and(|answer| answer.status == trial.checker.baseline.status);
    if !refused || (own && trial.checker.baseline.status != axum::http::StatusCode::BAD_REQUEST) {
        return Err(trial.found(sent, attempt, "400").advise(advice).into());
    }
    trial.must_count(sent, 0).await
}

pub(in crate::contract) async fn malformed(checker: &Checker<'_, '_>) -> Checked {
    checker.must_have_header()?;
    let long = [b'a'; 256];
    let malformed: [(&str, &[&[u8]]); 6] = [
        ("an empty key", &[b""]),
        ("the key `\"\"`", &[b"\"\""]),
        ("two key headers", &[b"first", b"second"]),
        ("a key of 256 characters", &[&long]),
        ("a key with a space", &[b"two words"]),
        ("a key beyond ASCII", &["clé".as_bytes()]),
    ];
    let count = if checker.contract.accepts_any_key { 3 } else { malformed.len() };
    let mut found = None;
    let mut elsewhere = 0;
    for (sent, values) in &malformed[..count] {
        let trial = checker.trial(MALFORMED).await;
        let attempt = trial.send(&checker.victim.app, with_header(checker, values)).await;
        let advice = "if such keys are keys, use `.accepts_any_key()`";
        if let Err(stop) = must_be_refused(&trial, sent, &attempt, advice).await {
            elsewhere += usize::from(found.is_some());
            found.get_or_insert(stop);
        }
    }
    match found {
        None => Ok(()),
        Some(crate::contract::checker::Stop::Found(mut finding)) => {
            finding.elsewhere = elsewhere;
            Err(crate::contract::checker::Stop::Found(finding))
        }
        Some(stop) => Err(stop),
    }
}

pub(in crate::contract) async fn quoted(checker: &Checker<'_, '_>) -> Checked {
    checker.must_have_header()?;
    let trial = checker.trial(QUOTED).await;
    let bare = trial.send(&checker.victim.app, with_header(checker, &[trial.key.as_bytes()])).await;
    let quoted = format!("\"{}\"", trial.key);
    let quoted = trial.send(&checker.victim.app, with_header(checker, &[quoted.as_bytes()])).await;
    let sent = "the same key bare and in quotes";
    let is_refused = |attempt: &crate::client::Attempt| {
        attempt
            .answer()
            .is_some_and(|answer| answer.status.is_client_error() && answer.status != checker.baseline.status)
    };
    if is_refused(&bare) || is_refused(&quoted) {
        return trial.must_count(sent, 1).await;
    }
    trial.must_count(sent, 1).await?;
    match (bare.answer(), quoted.answer()) {
        (Some(bare), Some(quoted)) => trial.must_be_repeated(sent, bare, quoted),
        _ => Err(trial.found(sent, quoted, "an answer").into()),
    }
}

pub(in crate::contract) async fn longest(checker: &Checker<'_, '_>) -> Checked {
    checker.must_have_free_keys()?;
    let mut trial = checker.trial(LONGEST).await;
    let length = checker.contract.longest_key;
    trial.key = padded(&trial.key, length);
    let sent = format!("a key of {length} characters, and a retry with it");
    let first = trial.send(&checker.victim.app, checker.request(&trial.key)).await;
    match first.answer() {
        Some(answer) if answer.status == checker.baseline.status => {
            trial.must_repeat(&sent, &checker.lane.other, answer).await?;
            trial.must_count(&sent, 1).await
        }
        _ => {
            let advice = "for another limit, use `.longest_key(…)`";
            Err(trial.found(&sent, first, checker.baseline.status.to_string()).advise(advice).into())
        }
    }
}

fn padded(key: &str, length: usize) -> String {
    let mut key = key.to_owned();
    while key.len() < length {
        key.push((b'a' + (key.len() % 26) as u8) as char);
    }
    key.truncate(length);
    key
}

pub(in crate::contract) async fn distinct(checker: &Checker<'_, '_>) -> Checked {
    checker.must_have_free_keys()?;
    let longest = checker.contract.longest_key;
    let mut pairs = vec![
        ("keys that differ in their last character", String::from("-a"), String::from("-b")),
        ("keys that differ in case", String::from("-Case"), String::from("-cASE")),
        ("a key, and one with `_` in the place of a character", String::from("-axb"), String::from("-a_b")),
        ("a key with `_`, and one with another character in its place", String::from("-c_d"), String::from("-cxd")),
        ("a key, and one with `%` at its end", String::from("-efg"), String::from("-ef%")),
        ("keys of which one begins with the other", String::from("-begin"), String::from("-begins")),
    ];
    for length in [64, 128, 200, longest].into_iter().filter(|length| *length <= longest && *length > 60) {
        let name = "keys that differ in the last of many characters";
        pairs.push((name, format!("{length}a"), format!("{length}b")));
    }
    for (sent, first, second) in pairs {
        let mut trial = checker.trial(DISTINCT).await;
        let long = first.as_bytes().first().is_some_and(u8::is_ascii_digit);
        let prefix = match long {
            true => padded(&trial.key, first[..first.len() - 1].parse::<usize>().unwrap_or(64) - first.len()),
            false => trial.key.clone(),
        };
        for suffix in [first, second] {
            trial.key = format!("{prefix}{suffix}");
            let attempt = trial.send(&checker.victim.app, checker.request(&trial.key)).await;
            if attempt.answer().is_none_or(|answer| answer.status != checker.baseline.status) {
                let must = checker.baseline.status.to_string();
                return Err(trial.found(sent, attempt, must).advise("compare keys byte for byte, whole").into());
            }
        }
        if let Err(crate::contract::checker::Stop::Found(finding)) = trial.must_count(sent, 2).await {
            return Err((*finding).advise("compare keys byte for byte, whole").into());
        }
        if checker.baseline.effects == 0 {
            return not_tried("what has no effect cannot be told apart");
        }
    }
    Ok(())
}
