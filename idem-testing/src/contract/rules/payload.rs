//! What makes two requests the same.

use axum::body::{Body, Bytes};
use axum::http::{Request, Uri};
use serde_json::Value;

use crate::client::Attempt;
use crate::contract::checker::{Checked, Checker, Trial, not_tried, take_body, with_body};

pub(in crate::contract) const PAYLOAD: &str = "another payload under a used key is refused";
pub(in crate::contract) const QUERY: &str = "another query under a used key is refused";
pub(in crate::contract) const ROUTE: &str = "another route under a used key is not replayed";
pub(in crate::contract) const MEANING: &str = "JSON in another order is the same request";

pub(in crate::contract) async fn another_payload(checker: &Checker<'_, '_>) -> Checked {
    let trial = checker.trial(PAYLOAD).await;
    let contract = checker.contract;
    let (sent, other) = match &contract.other_request {
        Some(template) => {
            ("another request with the key of the first", contract.subject.request_from(template, &trial.key))
        }
        None => {
            checker.must_have_header()?;
            let Some(other) = with_other_value(checker.request(&trial.key)) else {
                return not_tried("the body is no JSON; use `.other_request(…)`");
            };
            ("the request with another value in its JSON, and the key of the first", other)
        }
    };
    must_mismatch(&trial, sent, other).await
}

pub(in crate::contract) async fn another_query(checker: &Checker<'_, '_>) -> Checked {
    if !checker.contract.counts_query {
        return not_tried("the query is no part of the request; `.ignores_query()` says so");
    }
    let trial = checker.trial(QUERY).await;
    let other = with_other_query(checker.request(&trial.key));
    must_mismatch(&trial, "the request with another query string, and the key of the first", other).await
}

async fn must_mismatch(trial: &Trial<'_, '_>, sent: &str, other: Request<Body>) -> Checked {
    let checker = trial.checker;
    trial.answer("a request with a new key", &checker.victim.app).await?;
    let attempt = trial.send(&checker.victim.app, other).await;
    trial.must_count(sent, 1).await?;
    let mismatch = checker.contract.mismatch;
    // A payload that was made up here may be refused for what it says.
    let made_up = checker.contract.other_request.is_none();
    let refused = attempt.answer().is_some_and(|answer| {
        let is_replay = answer.is_replay(&checker.contract.subject.replay_header);
        answer.status == mismatch
            || (made_up && answer.status.is_client_error() && answer.status != checker.baseline.status && !is_replay)
    });
    match refused {
        true => Ok(()),
        false => {
            let advice =
                "keep a fingerprint of the request beside its key; for another status, use `.mismatch_status(…)`";
            Err(trial.found(sent, attempt, mismatch.to_string()).advise(advice).into())
        }
    }
}

pub(in crate::contract) async fn another_route(checker: &Checker<'_, '_>) -> Checked {
    let Some(template) = &checker.contract.other_route else { return not_tried("use `.other_route(…)`") };
    let trial = checker.trial(ROUTE).await;
    let first = trial.answer("a request with a new key", &checker.victim.app).await?;
    let sent = "a request to another route, with the key of the first";
    let other = checker.contract.subject.request_from(template, &trial.key);
    let attempt = trial.send(&checker.victim.app, other).await;
    let replayed = attempt.answer().is_some_and(|answer| {
        answer.is_replay(&checker.contract.subject.replay_header)
            || (answer.status == first.status && answer.body == first.body && !answer.body.is_empty())
    });
    let failed = matches!(&attempt, Attempt::Answered(answer) if answer.status.is_server_error());
    match replayed || failed {
        false => Ok(()),
        true => {
            let must = format!("{}, or an execution of its own", checker.contract.mismatch);
            let advice = "method and path are a part of the request's fingerprint, or of its key's scope";
            Err(trial.found(sent, attempt, must).advise(advice).into())
        }
    }
}

pub(in crate::contract) async fn the_same_json(checker: &Checker<'_, '_>) -> Checked {
    if !checker.contract.json_by_meaning {
        return not_tried("use `.json_by_meaning()`");
    }
    let trial = checker.trial(MEANING).await;
    let (request, body) = take_body(checker.request(&trial.key));
    let Some(reordered) = in_another_order(&body) else { return not_tried("the body is no JSON object") };
    let first = trial.answer("a request with a new key", &checker.victim.app).await?;
    let sent = "the request with the members of its JSON in another order";
    let attempt = trial.send(&checker.victim.app, with_body(request, reordered)).await;
    trial.must_count(sent, 1).await?;
    match attempt.answer() {
        Some(again) => trial.must_be_repeated(sent, &first, again),
        None => Err(trial.found(sent, attempt, "the first answer").into()),
    }
}

/// The request with one value of its JSON body changed: a number if there is one, because texts may be names of things.
fn with_other_value(request: Request<Body>) -> Option<Request<Body>> {
    let (request, body) = take_body(request);
    let mut json: Value = serde_json::from_slice(&body).ok()?;
    let changed = change(&mut json, &|value| match value {
        Value::Number(number) => {
            *value = Value::from(number.as_i64()? + 1);
            Some(())
        }
        _ => None,
    });
    changed.or_else(|| {
        change(&mut json, &|value| match value {
            Value::String(text) => {
                text.push('x');
                Some(())
            }
            Value::Bool(flag) => {
                *flag = !*flag;
                Some(())
            }
            _ => None,
        })
    })?;
    Some(with_body(request, Bytes::from(json.to_string())))
}

/// Applies `edit` to the first value that it takes.
fn change(json: &mut Value, edit: &impl Fn(&mut Value) -> Option<()>) -> Option<()> {
    match json {
        Value::Array(values) => values.iter_mut().find_map(|value| change(value, edit)),
        Value::Object(members) => members.values_mut().find_map(|value| change(value, edit)),
        value => edit(value),
    }
}

fn in_another_order(body: &[u8]) -> Option<Bytes> {
    let Value::Object(members) = serde_json::from_slice(body).ok()? else { return None };
    let sorted: Vec<String> =
        members.iter().map(|(name, value)| format!("{}: {value}", Value::from(name.clone()))).collect();
    let order = |sorted: &[String]| format!("{{ {} }}", sorted.join(" , "));
    let ascending = order(&sorted);
    let descending = order(&sorted.iter().rev().cloned().collect::<Vec<_>>());
    Some(Bytes::from(if ascending.as_bytes() == body { descending } else { ascending }))
}

fn with_other_query(mut request: Request<Body>) -> Request<Body> {
    let mut parts = request.uri().clone().into_parts();
    let path = parts.path_and_query.as_ref().map_or("/", |path| path.as_str());
    let separator = if path.contains('?') { '&' } else { '?' };
    parts.path_and_query = format!("{path}{separator}idem_contract=other").parse().ok();
    *request.uri_mut() = Uri::from_parts(parts).expect("a longer query is still a URI");
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_changed_before_a_text_and_a_text_before_nothing() {
        let changed = |body: &'static str| {
            let request = with_other_value(Request::post("/").body(Body::from(body)).unwrap())?;
            let (_, body) = take_body(request);
            serde_json::from_slice::<Value>(&body).ok()
        };
        let json = |text| serde_json::from_str::<Value>(text).ok();
        assert_eq!(changed(r#"{"a": "x", "b": [7, 8]}"#), json(r#"{"a": "x", "b": [8, 8]}"#));
        assert_eq!(changed(r#"{"a": "y"}"#), json(r#"{"a": "yx"}"#));
        assert_eq!(changed("[true]"), json("[false]"));
        assert_eq!(changed("{}"), None);
        assert_eq!(changed("book"), None);
    }

    #[test]
    fn another_order_has_other_bytes_and_the_same_meaning() {
        for body in [r#"{"b": 1, "a": 2}"#, r#"{"a":2,"b":1}"#, r#"{ "a": 2 , "b": 1 }"#] {
            let other = in_another_order(body.as_bytes()).unwrap();
            assert_ne!(other, body.as_bytes());
            let parse = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
            assert_eq!(parse(&other), parse(body.as_bytes()));
        }
    }
}
