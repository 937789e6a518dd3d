//! One fault, and what becomes of it.

use std::time::Duration;

use axum::http::StatusCode;

use super::report::{Seen, Trial};
use super::strike::Strike;
use crate::client::{Answer, Attempt, send};
use crate::lane::{Lane, PATIENCE, TIMEOUT, Victim, retry_until_final, unique_key};
use crate::subject::Subject;

/// How long the release of a connection may take after an answer, or the end of a transaction after a fault.
const CALM: Duration = Duration::from_secs(5);

/// How long the client of a process that is cut off from its database waits.
const PARTING: Duration = Duration::from_millis(200);

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
    let key = unique_key("baseline");
    subject.before_each(&lane.direct).await;
    let before = subject.effects(&lane.direct).await;
    let victim = lane.victim(subject, 1).await;
    let mut violations = Vec::new();
    let first = send(&victim.app, subject.request(&key), TIMEOUT).await;
    let status = first.answer().map_or(StatusCode::GATEWAY_TIMEOUT, |answer| answer.status);
    let external = external_calls(subject, &key);
    let effects = subject.effects(&lane.direct).await - before;
    match &first {
        Attempt::Answered(answer) => violations.extend(replays(subject, lane, &victim, &key, answer).await),
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
    let failure = first.answer().filter(|answer| answer.asks_for_a_retry()).map(|answer| answer.status);
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
    let key = unique_key(&format!("{strike:?}-{n}"));
    subject.before_each(&lane.direct).await;
    let before = subject.effects(&lane.direct).await;
    let victim = lane.victim(subject, 1).await;
    lane.proxy.inject(strike.fault(n, stall));
    let timeout = match strike {
        Strike::Stalled | Strike::AnswerStalled => stall / 4,
        Strike::CutOff => PARTING,
        _ => TIMEOUT,
    };
    let mut attempts = vec![send(&victim.app, subject.request(&key), timeout).await];
    // What the handler left to the background belongs to the request.
    while lane.proxy.met().is_none() && !victim.idle(Duration::ZERO).await && victim.idle(CALM).await {}
    lane.proxy.disarm();
    let Some(met) = lane.proxy.met() else {
        victim.close().await;
        return None;
    };
    let mut answer = attempts[0].clone().into_final(baseline.failure);
    if answer.is_none() {
        let apps: &[_] = if strike == Strike::CutOff { &[&lane.other] } else { &[&lane.other, &victim.app] };
        answer = retry_until_final(subject, &key, apps, baseline.failure, &mut attempts).await;
    }
    lane.proxy.heal();
    let mut violations: Vec<String> =
        met.failure.iter().map(|why| format!("the fault could not strike: {why}")).collect();
    violations.extend(left_behind(lane, &victim, stall).await);
    match &answer {
        Some(answer) => {
            if answer.status != baseline.status {
                violations.push(format!("the answer is {answer}; without a fault its status is {}", baseline.status));
            }
            violations.extend(replays(subject, lane, &victim, &key, answer).await);
        }
        None => violations.push(format!("the key is stuck: no final answer within {} s", PATIENCE.as_secs())),
    }
    let effects = subject.effects(&lane.direct).await - before;
    if effects != baseline.effects {
        violations.push(format!("the effect is {effects}; without a fault it is {}", baseline.effects));
    }
    let external = external_calls(subject, &key);
    if external != baseline.external {
        violations.push(format!("external calls {external:?}; without a fault {:?}", baseline.external));
    }
    victim.close().await;
    let seen = attempts.iter().map(|attempt| seen(subject, attempt)).collect();
    Some(Trial { strike, met, seen, violations })
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

/// Both processes must repeat the answer, and the one that has been through the fault must not need a retry for it.
async fn replays(subject: &Subject<'_>, lane: &Lane, victim: &Victim, key: &str, answer: &Answer) -> Vec<String> {
    let ignored: Vec<_> = subject.ignored_headers.iter().chain([&subject.replay_header]).collect();
    let mut violations = Vec::new();
    for (who, app) in [("the same process", &victim.app), ("another process", &lane.other)] {
        let again = send(app, subject.request(key), TIMEOUT).await;
        let Some(again) = again.answer() else {
            violations.push(format!("a retry after the answer, to {who}, got {again}"));
            continue;
        };
        if answer.asks_for_a_retry() {
            // Of a handler that always fails: each execution may say it in its own words.
            if again.status != answer.status {
                violations.push(format!("a retry after {}, to {who}, got {again}", answer.status));
            }
        } else if let Some(difference) = answer.difference(again, &ignored) {
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
