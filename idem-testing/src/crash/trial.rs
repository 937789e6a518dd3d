//! One fault, and what becomes of it.

use std::time::Duration;

use super::report::{Seen, Symptom, Trial, Violation};
use super::strike::Strike;
use crate::baseline::Baseline;
use crate::client::{Answer, Attempt, send};
use crate::lane::{Lane, Victim, retry_until_final};
use crate::proxy::Met;
use crate::subject::Subject;

/// How long the release of a connection may take after an answer, or the end of a transaction after a fault.
const CALM: Duration = Duration::from_secs(5);

/// What has no fault must be replayed too: everything else is measured by it.
pub(super) async fn replayed(subject: &Subject<'_>, lane: &Lane, baseline: &Baseline) -> Vec<Violation> {
    let key = subject.key("baseline");
    subject.before_each(&lane.direct).await;
    let before = subject.effects(&lane.direct).await;
    let victim = lane.victim(subject, baseline.connections).await;
    let mut attempts = Vec::new();
    let first = retry_until_final(subject, &key, &[&victim.app], baseline.finality, &mut attempts).await;
    let mut violations = judge(subject, lane, &victim, &key, first.as_ref(), &attempts, baseline).await;
    let effects = subject.effects(&lane.direct).await - before;
    if effects != baseline.effects {
        violations.push(Violation::new(
            Symptom::Effect,
            format!("after retries without a fault the effect is {effects}; one execution's is {}", baseline.effects),
        ));
    }
    victim.close().await;
    violations
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
    let victim = lane.victim(subject, baseline.connections).await;
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
    let mut answer = first.clone().into_final(baseline.finality);
    let mut attempts = vec![first];
    if answer.is_none() {
        let apps: &[_] = if strike == Strike::CutOff { &[&lane.other] } else { &[&lane.other, &victim.app] };
        answer = retry_until_final(subject, &key, apps, baseline.finality, &mut attempts).await;
    }
    lane.proxy.heal();
    let unstruck = |why| Violation::new(Symptom::Unstruck, format!("the fault could not strike: {why}"));
    let mut violations: Vec<_> = met.failure.iter().map(unstruck).collect();
    violations.extend(left_behind(lane, &victim, &met, strike, stall).await);
    let effects = subject.effects(&lane.direct).await - before;
    // The session was exchanged under the handler, which may have gone on in the new one: nobody can tell, and nothing may run again.
    let given_up = strike.exchanges_session() && answer.as_ref().is_some_and(Answer::is_effects_unknown);
    if !given_up {
        violations.extend(judge(subject, lane, &victim, &key, answer.as_ref(), &attempts, baseline).await);
    }
    let kept = if given_up { effects <= baseline.effects } else { effects == baseline.effects };
    if !kept {
        let text = format!("the effect is {effects}; without a fault it is {}", baseline.effects);
        violations.push(Violation::new(Symptom::Effect, text));
    }
    victim.close().await;
    let seen = attempts.iter().map(|attempt| seen(subject, attempt)).collect();
    let trial = Trial::new(strike, met, seen, violations);
    Some(if given_up { trial.gave_up() } else { trial })
}

/// What is wrong with the final answer, its repetitions, and the calls that were made for it.
async fn judge(
    subject: &Subject<'_>,
    lane: &Lane,
    victim: &Victim,
    key: &str,
    answer: Option<&Answer>,
    attempts: &[Attempt],
    baseline: &Baseline,
) -> Vec<Violation> {
    let Some(answer) = answer else { return vec![without_an_end(subject, attempts)] };
    let mut violations = Vec::new();
    if answer.status != baseline.status {
        let text = format!("the answer is {answer}; without a fault its status is {}", baseline.status);
        violations.push(Violation::new(Symptom::Answer, text));
    }
    violations.extend(replays(subject, lane, victim, key, answer, baseline).await);
    let external = subject.external_calls(key);
    if !baseline.counts_external_keys() && external != baseline.external {
        let text = format!("external calls {external:?}; without a fault {:?}", baseline.external);
        violations.push(Violation::new(Symptom::External, text));
    }
    violations
}

/// A client that retries and gets no final answer: a failure that was stored, or a key that nobody frees.
fn without_an_end(subject: &Subject<'_>, attempts: &[Attempt]) -> Violation {
    let last = attempts.last().map_or_else(String::new, Attempt::to_string);
    let tail: Vec<_> = attempts.iter().rev().take(5).map(Attempt::to_string).collect();
    let failed = attempts.last().and_then(Attempt::answer).is_some_and(|answer| answer.status.is_server_error());
    let patience = subject.patience.as_secs_f64();
    if failed && tail.len() == 5 && tail.iter().all(|attempt| *attempt == last) {
        let text = format!("each retry gets the same failure, {last}, for {patience} s: it was stored as the outcome");
        return Violation::new(Symptom::StoredFailure, text);
    }
    Violation::new(Symptom::Stuck, format!("the key is stuck: no final answer within {patience} s, at last {last}"))
}

/// Transactions and broken connections that the fault left.
async fn left_behind(lane: &Lane, victim: &Victim, met: &Met, strike: Strike, stall: Duration) -> Vec<Violation> {
    let open = lane.settle(stall + CALM).await.map(|states| {
        let begins = met.statement.starts_with("BEGIN") || met.statement.starts_with("START");
        let why = match strike.is_stall() && begins {
            true => {
                ": the client hung up while BEGIN was under way, and the dropped future left its transaction to the \
                 pool's next user; run the handler in a task of its own (`tokio::spawn`) that the request awaits"
            }
            false => "",
        };
        format!("a session is left open ({states}){why}")
    });
    let broken = match victim.idle(CALM).await {
        true => victim.pool_fault().await,
        false => Some("a connection was not given back to the pool".to_owned()),
    };
    open.into_iter().chain(broken).map(|text| Violation::new(Symptom::Open, text)).collect()
}

/// Both processes must repeat the answer. The one that has been through the fault may be busy with it for a while, and
/// say so.
async fn replays(
    subject: &Subject<'_>,
    lane: &Lane,
    victim: &Victim,
    key: &str,
    answer: &Answer,
    baseline: &Baseline,
) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (who, app) in [("the same process", &victim.app), ("another process", &lane.other)] {
        let mut attempts = Vec::new();
        let Some(again) = retry_until_final(subject, key, &[app], baseline.finality, &mut attempts).await else {
            let last = attempts.last().map_or_else(String::new, Attempt::to_string);
            let text = format!("a retry after the answer, to {who}, got no final answer; at last {last}");
            violations.push(Violation::new(Symptom::Stuck, text));
            continue;
        };
        // Each execution of a handler that always fails may say it in its own words, and so may an unstored refusal.
        let repeats = baseline.finality.failure.is_none() && !(subject.forgets_refusals && baseline.is_refusal());
        let difference = match repeats {
            true => answer.difference(&again, &subject.incomparable()),
            false => {
                (again.status != answer.status).then(|| format!("status {} and then {}", answer.status, again.status))
            }
        };
        if let Some(difference) = difference {
            let text = format!("a retry after the answer, to {who}, differs: {difference}");
            violations.push(Violation::new(Symptom::Replay, text));
        } else if baseline.marked && !again.is_replay(&subject.replay_header) {
            let text = format!("a retry after the answer, to {who}, is not marked as a replay");
            violations.push(Violation::new(Symptom::Mark, text));
        }
    }
    violations
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
