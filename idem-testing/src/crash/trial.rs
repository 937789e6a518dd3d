//! One fault, and what becomes of it.

use std::time::Duration;

use axum::http::StatusCode;

use super::report::{Seen, Trial};
use super::strike::Strike;
use crate::client::{Answer, Attempt, send};
use crate::lane::{Lane, PATIENCE, TIMEOUT, Victim, retry_until_final};
use crate::subject::Subject;

/// How long the release of a connection may take after an answer, or the end of a transaction after a fault.
const CALM: Duration = Duration::from_secs(5);

/// What one execution without a fault does.
#[derive(Clone, Debug)]
pub(super) struct Baseline {
    pub(super) status: StatusCode,
    /// The status of a handler that always fails.
    pub(super) failure: Option<StatusCode>,
    pub(super) effects: i64,
    pub(super) external: Vec<String>,
    pub(super) violations: Vec<String>,
}

pub(super) async fn baseline(subject: &Subject<'_>, lane: &Lane) -> Baseline {
    let key = subject.key("baseline");
    subject.before_each(&lane.direct).await;
    let before = subject.effects(&lane.direct).await;
    let victim = lane.victim(subject, 1).await;
    let mut violations = Vec::new();
    let first = send(&victim.app, subject.request(&key), TIMEOUT).await;
    let status = first.answer().map_or(StatusCode::GATEWAY_TIMEOUT, |answer| answer.status);
    let external = external_calls(subject, &key);
    let effects = subject.effects(&lane.direct).await - before;
    let failure = first.answer().filter(|answer| answer.asks_for_a_retry()).map(|answer| answer.status);
    match &first {
        Attempt::Answered(answer) => violations.extend(replays(subject, lane, &victim, &key, answer, failure).await),
        _ => violations.push(format!("without a fault there must be an answer; there is {first}")),
    }
    if !status.is_success() && !status.is_redirection() && effects != 0 {
        violations.push(format!("without a fault, {status} had an effect of {effects}"));
    }
    if status.is_success() && effects == 0 && external.is_empty() {
        violations.push(format!("without a fault, {status} had no effect that is counted"));
    }
    let again = subject.effects(&lane.direct).await - before;
    if again != effects {
        violations.push(format!("without a fault, the effect was {effects} and after replays {again}"));
    }
    victim.close().await;
    Baseline { status, failure, effects, external, violations }
}

/// Lets the n-th message fail. `None` if the request does not get that far.
pub(super) async fn run(
    subject: &Subject<'_>,
    lane: &Lane,
    baseline: &Baseline,
    strike: Strike,
    n: u64,
    stall: Duration,
) -> Option<Trial> {
    let key = subject.key(format_args!("trial-{n}"));
    subject.before_each(&lane.direct).await;
    let before = subject.effects(&lane.direct).await;
    let victim = lane.victim(subject, 1).await;
    lane.proxy.inject(strike.fault(n, stall));
    let first = send(&victim.app, subject.request(&key), strike.patience(stall)).await;
    if lane.proxy.met().is_none() {
        // What the handler left to the background belongs to the request.
        victim.idle(CALM).await;
    }
    lane.proxy.disarm();
    let Some(met) = lane.proxy.met() else {
        victim.close().await;
        return None;
    };
    let mut answer = first.clone().into_final(baseline.failure);
    let mut attempts = vec![first];
    if answer.is_none() {
        let apps: &[_] = if strike == Strike::CutOff { &[&lane.other] } else { &[&lane.other, &victim.app] };
        answer = retry_until_final(subject, &key, apps, baseline.failure, &mut attempts).await;
    }
    lane.proxy.heal();
    let mut violations: Vec<_> = met.failure.iter().map(|why| format!("the fault could not strike: {why}")).collect();
    violations.extend(left_behind(lane, &victim, stall).await);
    violations.extend(judge(subject, lane, &victim, &key, answer.as_ref(), baseline).await);
    let effects = subject.effects(&lane.direct).await - before;
    if effects != baseline.effects {
        violations.push(format!("the effect is {effects}; without a fault it is {}", baseline.effects));
    }
    victim.close().await;
    let seen = attempts.iter().map(|attempt| seen(subject, attempt)).collect();
    Some(Trial { strike, met, seen, violations })
}

/// What is wrong with the final answer, its repetitions, and the calls that were made for it.
async fn judge(
    subject: &Subject<'_>,
    lane: &Lane,
    victim: &Victim,
    key: &str,
    answer: Option<&Answer>,
    baseline: &Baseline,
) -> Vec<String> {
    let Some(answer) = answer else {
        return vec![format!("the key is stuck: no final answer within {} s", PATIENCE.as_secs())];
    };
    let mut violations = Vec::new();
    if answer.status != baseline.status {
        violations.push(format!("the answer is {answer}; without a fault its status is {}", baseline.status));
    }
    violations.extend(replays(subject, lane, victim, key, answer, baseline.failure).await);
    let external = external_calls(subject, key);
    if external != baseline.external {
        violations.push(format!("external calls {external:?}; without a fault {:?}", baseline.external));
    }
    violations
}

/// Transactions and broken connections that the fault left.
async fn left_behind(lane: &Lane, victim: &Victim, stall: Duration) -> Vec<String> {
    let open = lane.settle(stall + CALM).await.map(|states| format!("a session is left open: {states}"));
    let broken = match victim.idle(CALM).await {
        true => victim.pool_fault().await,
        false => Some("a connection was not given back to the pool".to_owned()),
    };
    open.into_iter().chain(broken).collect()
}

/// Both processes must repeat the answer. The one that has been through the fault may be busy with it for a while, and
/// say so.
async fn replays(
    subject: &Subject<'_>,
    lane: &Lane,
    victim: &Victim,
    key: &str,
    answer: &Answer,
    failure: Option<StatusCode>,
) -> Vec<String> {
    let ignored: Vec<_> = subject.ignored_headers.iter().chain([&subject.replay_header]).collect();
    let mut violations = Vec::new();
    for (who, app) in [("the same process", &victim.app), ("another process", &lane.other)] {
        let mut attempts = Vec::new();
        let Some(again) = retry_until_final(subject, key, &[app], failure, &mut attempts).await else {
            let last = attempts.last().map_or_else(String::new, Attempt::to_string);
            violations.push(format!("a retry after the answer, to {who}, got no final answer; at last {last}"));
            continue;
        };
        if failure.is_some() {
            // Each execution of a handler that always fails may say it in its own words.
            if again.status != answer.status {
                violations.push(format!("a retry after {}, to {who}, got {again}", answer.status));
            }
        } else if let Some(difference) = answer.difference(&again, &ignored) {
            violations.push(format!("a retry after the answer, to {who}, differs: {difference}"));
        } else if !again.is_replay(&subject.replay_header) {
            violations.push(format!("a retry after the answer, to {who}, is not marked as a replay"));
        }
    }
    violations
}

fn external_calls(subject: &Subject<'_>, key: &str) -> Vec<String> {
    subject.external.as_ref().map_or_else(Vec::new, |calls| calls.derived_from(key))
}

fn seen(subject: &Subject<'_>, attempt: &Attempt) -> Seen {
    match attempt {
        Attempt::Answered(answer) => {
            Seen::Answered { status: answer.status.as_u16(), replayed: answer.is_replay(&subject.replay_header) }
        }
        Attempt::TimedOut => Seen::TimedOut,
        Attempt::Closed => Seen::Closed,
    }
}
