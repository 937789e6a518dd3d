//! Whose key it is.

use crate::contract::checker::{Checked, Checker, not_tried};

pub(in crate::contract) const OTHER: &str = "the same key of somebody else is another key";
pub(in crate::contract) const SEPARATOR: &str = "no owner and key together are those of somebody else";

pub(in crate::contract) async fn another_owner(checker: &Checker<'_, '_>) -> Checked {
    let subject = &checker.contract.subject;
    let trial = checker.trial(OTHER).await;
    let (first, second) = match (&checker.contract.other_scope, &checker.contract.owners) {
        (Some(template), _) => (subject.request(&trial.key), subject.request_from(template, &trial.key)),
        (None, Some(owners)) => {
            (with_key(checker, owners, "first", &trial.key), with_key(checker, owners, "second", &trial.key))
        }
        _ => return not_tried("use `.other_scope(…)` or `.owners(…)`"),
    };
    trial.send(&checker.victim.app, first).await;
    let sent = "the request from another owner, with the key of the first";
    let attempt = trial.send(&checker.victim.app, second).await;
    match attempt.answer() {
        Some(answer) if answer.status == checker.baseline.status && !answer.is_replay(&subject.replay_header) => {
            trial.must_count(sent, 2).await
        }
        _ => {
            let advice = "keep the owner beside the key, in a column of its own";
            Err(trial.found(sent, attempt, "an execution of its own").advise(advice).into())
        }
    }
}

fn with_key(
    checker: &Checker<'_, '_>,
    owners: &crate::subject::Template<'_>,
    owner: &str,
    key: &str,
) -> axum::http::Request<axum::body::Body> {
    let subject = &checker.contract.subject;
    let mut request = subject.request_from(owners, owner);
    let value = axum::http::HeaderValue::from_str(key).expect("the keys of the kit are visible ASCII");
    request.headers_mut().insert(subject.key_header.clone(), value);
    request
}

/// What a key is made of where owner and key share a column.
const SEPARATORS: [&str; 8] = [":", "/", "-", "_", "|", ".", "#", ""];

pub(in crate::contract) async fn separators(checker: &Checker<'_, '_>) -> Checked {
    let Some(owners) = &checker.contract.owners else { return not_tried("use `.owners(…)`") };
    checker.must_have_free_keys()?;
    for separator in SEPARATORS {
        let trial = checker.trial(SEPARATOR).await;
        let key = &trial.key;
        let pairs = [("a".to_owned(), format!("b{separator}{key}")), (format!("a{separator}b"), key.clone())];
        let mut answered = 0;
        let mut last = None;
        for (owner, key) in &pairs {
            let attempt = trial.send(&checker.victim.app, with_key(checker, owners, owner, key)).await;
            answered += usize::from(attempt.answer().is_some_and(|answer| answer.status.as_u16() != 401));
            last = Some(attempt);
        }
        // An owner of that name cannot be.
        if answered < pairs.len() {
            continue;
        }
        let sent = format!("owner `a` with key `b{separator}…`, and owner `a{separator}b` with key `…`");
        if trial.must_count(&sent, 2).await.is_err() {
            let came_back = last.map_or_else(String::new, |attempt| attempt.to_string());
            let advice = "keep the owner beside the key, in a column of its own";
            return Err(trial.found(&sent, came_back, "an execution for each").advise(advice).into());
        }
    }
    Ok(())
}
