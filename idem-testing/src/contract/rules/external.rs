//! Calls to other systems, which cannot be rolled back.

use crate::client::{Answer, Attempt};
use crate::contract::checker::{Checked, Checker, not_tried};
use crate::external::ExternalCalls;
use crate::lane::retry_until_final;

pub(in crate::contract) const REPLAYED: &str = "a replay makes no external call";
pub(in crate::contract) const DOWN: &str = "a provider that fails once is no outcome";

fn calls<'c>(checker: &'c Checker<'_, '_>) -> Checked<&'c ExternalCalls> {
    match &checker.contract.subject.external {
        Some(calls) if checker.baseline.external_keys > 0 => Ok(calls),
        Some(_) => not_tried("the request makes no external call"),
        None => not_tried("use `.external_calls(…)`"),
    }
}

pub(in crate::contract) async fn replayed(checker: &Checker<'_, '_>) -> Checked {
    let calls = calls(checker)?;
    let trial = checker.trial(REPLAYED).await;
    trial.answer("a request with a new key", &checker.victim.app).await?;
    let before = calls.total();
    for app in [&checker.victim.app, &checker.lane.other] {
        trial.answer("the same request again", app).await?;
    }
    let made = calls.total() - before;
    match made {
        0 => Ok(()),
        _ => {
            let advice = "claim the key, and look it up, before anything is called";
            Err(trial.found("the same request again, twice", format!("{made} calls"), "none").advise(advice).into())
        }
    }
}

pub(in crate::contract) async fn down_once(checker: &Checker<'_, '_>) -> Checked {
    let calls = calls(checker)?;
    let trial = checker.trial(DOWN).await;
    let keys_before = calls.keys();
    calls.fail_once();
    let first = trial.send(&checker.victim.app, checker.request(&trial.key)).await;
    if !calls.has_failed() {
        return not_tried("use `ExternalCalls::call` in the fake provider");
    }
    let sent = "a request whose call to the provider fails, and then retries";
    let (baseline, mut attempts) = (&checker.baseline, vec![first.clone()]);
    let mut answer = first.into_final(baseline.finality);
    if answer.is_none() {
        let apps = [&checker.victim.app, &checker.lane.other];
        answer =
            retry_until_final(&checker.contract.subject, &trial.key, &apps, baseline.finality, &mut attempts).await;
    }
    let advice =
        "a provider that is down is no outcome: roll back, store nothing, and answer 5xx, so that a retry runs";
    if answer.as_ref().is_none_or(|answer| answer.status != baseline.status) {
        let last = attempts.last().map_or_else(String::new, Attempt::to_string);
        let came_back = answer.as_ref().map_or(last, Answer::to_string);
        let must = format!("{} in the end", baseline.status);
        return Err(trial.found(sent, came_back, must).advise(advice).into());
    }
    trial.must_count(sent, 1).await?;
    let used = calls.keys() - keys_before;
    match used == baseline.external_keys {
        true => Ok(()),
        false => {
            let must = format!("{} keys", baseline.external_keys);
            Err(trial.found(sent, format!("calls with {used} keys"), must).advise(advice).into())
        }
    }
}
