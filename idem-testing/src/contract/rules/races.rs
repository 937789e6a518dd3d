//! What happens at once.

use std::time::Duration;

use axum::http::StatusCode;
use futures_util::future::join_all;

use crate::client::{Answer, Attempt, send};
use crate::contract::checker::{Checked, Checker, Trial, not_tried};
use crate::lane::{TIMEOUT, retry_until_final};
use crate::proxy::{Action, Fault, Place};

pub(in crate::contract) const TWO: &str = "two at once have one effect";
pub(in crate::contract) const TWENTY: &str = "twenty at once have one effect";
pub(in crate::contract) const SLOW: &str = "attempts that come while the first one is slow have no effect";
pub(in crate::contract) const DIFFERENT: &str = "twenty different keys at once do what they do one after another";
pub(in crate::contract) const INDEPENDENT: &str = "a request does not wait for one with another key";

pub(in crate::contract) async fn at_once(checker: &Checker<'_, '_>, count: usize, rule: &'static str) -> Checked {
    let trial = checker.trial(rule).await;
    // Slow enough that all are under way together.
    checker.lane.proxy.set_latency(Duration::from_millis(3));
    let apps = [&checker.victim.app, &checker.twin.app].into_iter().cycle();
    let sends = apps.take(count).map(|app| trial.send(app, checker.request(&trial.key)));
    let attempts = join_all(sends).await;
    checker.lane.proxy.set_latency(Duration::ZERO);
    judge_duplicates(&trial, &format!("{count} requests with one key at once"), &attempts).await
}

/// One effect, one answer; what a duplicate may get besides is a word that asks for a retry.
async fn judge_duplicates(trial: &Trial<'_, '_>, sent: &str, attempts: &[Attempt]) -> Checked {
    let checker = trial.checker;
    let answer = trial.answer("the same request again", &checker.victim.app).await?;
    trial.must_count(sent, 1).await?;
    for attempt in attempts {
        let allowed = attempt.answer().is_some_and(|answer| {
            let later = answer.status == StatusCode::SERVICE_UNAVAILABLE && answer.has_retry_after();
            let failed = checker.baseline.finality.failure.is_none() && answer.status.is_server_error();
            later || !failed
        });
        if !allowed {
            return Err(trial.found(sent, attempt, "the first answer, its replay, or 409").into());
        }
    }
    let subject = &checker.contract.subject;
    let finals = attempts.iter().filter_map(Attempt::answer);
    for other in finals.filter(|answer| !answer.asks_for_a_retry(checker.baseline.finality)) {
        let forgets = subject.forgets_refusals && checker.baseline.is_refusal() && answer.status == other.status;
        if let Some(difference) = answer.difference(other, &subject.incomparable()).filter(|_| !forgets) {
            return Err(trial.found(sent, difference, "identical answers").into());
        }
    }
    trial.must_repeat("the same request again", &checker.lane.other, &answer).await
}

/// How long a round trip of the slow attempt takes, and how often another one comes.
const PACE: Duration = Duration::from_millis(15);

/// A client that hedges, or whose load balancer does.
pub(in crate::contract) async fn while_the_first_is_slow(checker: &Checker<'_, '_>) -> Checked {
    let trial = checker.trial(SLOW).await;
    checker.lane.proxy.set_latency(PACE);
    let mut first = Box::pin(trial.send(&checker.victim.app, checker.request(&trial.key)));
    let mut others = Vec::new();
    let first = loop {
        if let Ok(first) = tokio::time::timeout(PACE, &mut first).await {
            break first;
        }
        let (app, request) = (checker.lane.other.clone(), checker.request(&trial.key));
        others.push(tokio::spawn(async move { send(&app, request, TIMEOUT).await }));
    };
    checker.lane.proxy.set_latency(Duration::ZERO);
    let count = others.len();
    let mut attempts = vec![first];
    attempts.extend(join_all(others).await.into_iter().map(|attempt| attempt.unwrap_or(Attempt::Closed)));
    let sent =
        format!("a request that is slow, and {count} attempts with its key while it runs, none of them given up");
    judge_duplicates(&trial, &sent, &attempts).await
}

const MANY: usize = 20;

pub(in crate::contract) async fn different_keys(checker: &Checker<'_, '_>) -> Checked {
    let subject = &checker.contract.subject;
    let control = checker.trial(DIFFERENT).await;
    for _ in 0..MANY {
        let key = subject.key("control");
        let answer = send(&checker.victim.app, subject.request(&key), TIMEOUT).await;
        if answer.answer().is_none_or(|answer| answer.status != checker.baseline.status) {
            return not_tried(format!("one after another, {MANY} different keys do not get the same answer"));
        }
    }
    if control.must_count("", MANY as i64).await.is_err() {
        return not_tried(format!("one after another, {MANY} different keys do not have the same effect"));
    }
    let trial = checker.trial(DIFFERENT).await;
    let sent = format!("{MANY} requests with different keys at once, to a process with few connections");
    // A pool that locks up is not waited for.
    let connections = checker.baseline.connections.max(crate::contract::checker::CONNECTIONS);
    let busy = checker.lane.victim_that_waits(subject, connections, Duration::from_secs(3)).await;
    checker.lane.proxy.set_latency(Duration::from_millis(2));
    let keys: Vec<String> = (0..MANY).map(|_| subject.key("many")).collect();
    let attempts = join_all(keys.iter().map(|key| trial.send(&busy.app, subject.request(key)))).await;
    checker.lane.proxy.set_latency(Duration::ZERO);
    let judged = judge_different(&trial, &sent, &keys, attempts).await;
    busy.close().await;
    judged
}

async fn judge_different(trial: &Trial<'_, '_>, sent: &str, keys: &[String], attempts: Vec<Attempt>) -> Checked {
    let checker = trial.checker;
    let baseline = &checker.baseline;
    let must = format!("{} for each", baseline.status);
    for (key, attempt) in keys.iter().zip(attempts) {
        let honest = attempt.answer().is_some_and(|answer| {
            !answer.status.is_server_error()
                || answer.has_retry_after()
                || baseline.finality.failure == Some(answer.status)
        });
        if !honest {
            let advice = "under load each holds what another waits for: one connection a request, and no lock that all keys share";
            return Err(trial.found(sent, attempt, must).advise(advice).into());
        }
        let last = match attempt.into_final(baseline.finality) {
            Some(answer) => Some(answer),
            None => {
                let app = [&checker.lane.other];
                let subject = &checker.contract.subject;
                retry_until_final(subject, key, &app, baseline.finality, &mut Vec::new()).await
            }
        };
        if last.as_ref().is_none_or(|answer| answer.status != baseline.status) {
            let came_back = last.as_ref().map_or_else(|| "no final answer".to_owned(), Answer::to_string);
            let advice =
                "what was lost to a concurrent transaction (40001, 40P01, a lock) is no outcome: do not store it";
            return Err(trial.found(sent, came_back, must).advise(advice).into());
        }
    }
    trial.must_count(sent, keys.len() as i64).await
}

/// How long the first request is held back, and after which time the second should have its answer.
const HELD: Duration = Duration::from_millis(1200);
const PROMPT: Duration = Duration::from_millis(400);

/// Holds one request back at each round trip in turn, and sends another key to another process.
pub(in crate::contract) async fn another_key_while_one_stalls(checker: &Checker<'_, '_>) -> Checked {
    let subject = &checker.contract.subject;
    let last = count_round_trips(checker).await;
    // Near its end, a request holds all that it ever holds.
    for n in [last.saturating_sub(1), last] {
        let trial = checker.trial(INDEPENDENT).await;
        let slow = checker.lane.victim(subject, checker.baseline.connections).await;
        checker.lane.proxy.inject(Fault { place: Place::RoundTrip(n.max(1)), action: Action::Stall(HELD) });
        let (app, request) = (slow.app.clone(), checker.request(&trial.key));
        let held = tokio::spawn(async move { send(&app, request, TIMEOUT).await });
        let mut patience = 200;
        while !checker.lane.proxy.is_stalling() && !held.is_finished() && patience > 0 {
            patience -= 1;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let judged = match checker.lane.proxy.is_stalling() {
            true => judge_independence(&trial).await,
            false => Ok(()),
        };
        checker.lane.proxy.disarm();
        let _ = held.await;
        checker.lane.settle(TIMEOUT).await;
        slow.close().await;
        judged?;
    }
    Ok(())
}

async fn judge_independence(trial: &Trial<'_, '_>) -> Checked {
    let checker = trial.checker;
    let key = checker.contract.subject.key("independent");
    let (app, request) = (checker.lane.other.clone(), checker.request(&key));
    let mut other = tokio::spawn(async move { send(&app, request, TIMEOUT).await });
    let sent = "a request with another key, while one is held back before its end";
    let answered = tokio::time::timeout(PROMPT, &mut other).await;
    let judged = match &answered {
        Ok(Ok(attempt)) => {
            let same = attempt.answer().is_some_and(|answer| answer.status == checker.baseline.status);
            (!same).then(|| attempt.to_string())
        }
        Ok(Err(_)) => Some("connection closed".to_owned()),
        // A row that both change is theirs to wait for.
        Err(_) if checker.lane.waits_for_rows().await => None,
        Err(_) => Some("nothing, until the first one went on".to_owned()),
    };
    if answered.is_err() {
        let _ = other.await;
    }
    match judged {
        None => Ok(()),
        Some(came_back) => {
            let advice = "lock the key, not the table and not all keys";
            Err(trial.found(sent, came_back, checker.baseline.status.to_string()).advise(advice).into())
        }
    }
}

/// How many round trips a request makes on a connection that was never used before.
async fn count_round_trips(checker: &Checker<'_, '_>) -> u64 {
    let subject = &checker.contract.subject;
    let control = checker.lane.victim(subject, checker.baseline.connections).await;
    let before = checker.lane.proxy.counts().round_trips;
    send(&control.app, checker.request(&subject.key("count")), TIMEOUT).await;
    let passed = checker.lane.proxy.counts().round_trips - before;
    control.close().await;
    passed
}
