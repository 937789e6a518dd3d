//! What a request leaves that does not come to its end.

use std::fmt;
use std::time::Duration;

use axum::Router;

use crate::client::{Attempt, send};
use crate::contract::checker::{Checked, Checker, Trial, not_tried};
use crate::finding::Finding;
use crate::lane::{TIMEOUT, retry_until_final};
use crate::proxy::{Action, Fault, Place};

pub(in crate::contract) const HANG_UP: &str = "a client that hangs up and retries has one effect";
pub(in crate::contract) const KILLED: &str = "a process killed in the middle leaves the key free and one effect";

#[derive(Clone, Copy)]
enum Interruption {
    HangUp,
    Kill,
}

pub(in crate::contract) async fn hang_up(checker: &Checker<'_, '_>) -> Checked {
    interrupted(checker, HANG_UP, Interruption::HangUp).await
}

pub(in crate::contract) async fn killed(checker: &Checker<'_, '_>) -> Checked {
    interrupted(checker, KILLED, Interruption::Kill).await
}

/// More round trips than this no request makes.
const MOST: u64 = 1_000;

/// After so many stuck keys the next ones say nothing new.
const MOST_STUCK: usize = 2;

/// Interrupts at each round trip in turn. What was found at several is one finding, the worst kind first.
async fn interrupted(checker: &Checker<'_, '_>, rule: &'static str, how: Interruption) -> Checked {
    let mut found: Vec<(Kind, Finding)> = Vec::new();
    let mut n = 1;
    while n <= MOST && found.iter().filter(|(kind, _)| *kind == Kind::Stuck).count() < MOST_STUCK {
        match interrupt(checker, rule, how, n).await {
            Some(finding) => found.extend(finding),
            None if n == 1 => return not_tried("the request met no fault"),
            None => break,
        }
        n += 1;
    }
    let Some(worst) = found.iter().map(|(kind, _)| *kind).min() else { return Ok(()) };
    let mut same = found.into_iter().filter(|(kind, _)| *kind == worst).map(|(_, finding)| finding);
    match same.next() {
        Some(mut finding) => {
            finding.elsewhere = same.count();
            Err(finding.into())
        }
        None => Ok(()),
    }
}

/// The worst first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Effect,
    Stuck,
    Answer,
    Open,
}

/// `None` if the request does not get that far; otherwise what is wrong, if anything.
async fn interrupt(
    checker: &Checker<'_, '_>,
    rule: &'static str,
    how: Interruption,
    n: u64,
) -> Option<Option<(Kind, Finding)>> {
    let trial = checker.trial(rule).await;
    let (subject, lane) = (&checker.contract.subject, checker.lane);
    let victim = lane.victim(subject, checker.baseline.connections).await;
    lane.proxy.inject(Fault { place: Place::RoundTrip(n), action: how.action() });
    let first = send(&victim.app, checker.request(&trial.key), how.patience()).await;
    lane.proxy.disarm();
    let Some(met) = lane.proxy.met() else {
        victim.close().await;
        return None;
    };
    let sent = format!("a request, {how} in round trip {n} (`{}`), and then retries", met.short_statement(60));
    let apps: &[&Router] = match how {
        Interruption::HangUp => &[&victim.app, &lane.other],
        Interruption::Kill => &[&lane.other],
    };
    let judged = judge(&trial, &sent, apps, how, first).await;
    lane.proxy.heal();
    let open = lane.settle(TIMEOUT).await;
    let counted = trial.effects().await;
    victim.close().await;
    if counted != checker.baseline.effects {
        let must = format!("an effect of {}", checker.baseline.effects);
        let advice = "commit the effect, the key and the answer in one transaction";
        let finding = trial.found(&sent, format!("an effect of {counted}"), must).advise(advice);
        return Some(Some((Kind::Effect, finding)));
    }
    if judged.is_some() {
        return Some(judged);
    }
    let open = open.map(|open| {
        let advice = "a future that is dropped while BEGIN is under way leaves its transaction to the pool's next user; run \
                      the handler in a task of its own (`tokio::spawn`) that the request awaits";
        (Kind::Open, trial.found(&sent, format!("sessions left open: {open}"), "none").advise(advice))
    });
    Some(open)
}

async fn judge(
    trial: &Trial<'_, '_>,
    sent: &str,
    apps: &[&Router],
    how: Interruption,
    first: Attempt,
) -> Option<(Kind, Finding)> {
    let checker = trial.checker;
    let (subject, finality) = (&checker.contract.subject, checker.baseline.finality);
    let mut attempts = Vec::new();
    let Some(answer) = retry_until_final(subject, &trial.key, apps, finality, &mut attempts).await else {
        let last = attempts.last().map_or_else(String::new, Attempt::to_string);
        let advice = "a crash must leave nothing, or a claim with a lease that runs out; if the lease is longer, use \
                      `.patience(…)`";
        let came_back = format!("no final answer within {} s; at last {last}", subject.patience.as_secs_f64());
        return Some((Kind::Stuck, trial.found(sent, came_back, "a final answer").advise(advice)));
    };
    if answer.status != checker.baseline.status {
        let must = checker.baseline.status.to_string();
        return Some((Kind::Answer, trial.found(sent, &answer, must)));
    }
    // An answer that came in spite of the interruption is an answer like any other.
    if let (Interruption::HangUp, Some(first)) = (how, first.into_final(finality))
        && let Some(difference) = first.difference(&answer, &subject.incomparable())
        && !(subject.forgets_refusals && checker.baseline.is_refusal())
        && finality.failure.is_none()
    {
        return Some((Kind::Answer, trial.found(sent, difference, "identical answers")));
    }
    match trial.must_repeat(sent, &checker.lane.other, &answer).await {
        Err(crate::contract::checker::Stop::Found(finding)) => Some((Kind::Answer, *finding)),
        _ => None,
    }
}

impl Interruption {
    fn action(self) -> Action {
        match self {
            Self::HangUp => Action::Stall(Duration::from_millis(40)),
            Self::Kill => Action::Partition,
        }
    }

    fn patience(self) -> Duration {
        match self {
            Self::HangUp => Duration::from_millis(20),
            Self::Kill => Duration::from_millis(200),
        }
    }
}

impl fmt::Display for Interruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HangUp => "its client hanging up",
            Self::Kill => "its process cut off from the database for good",
        })
    }
}
