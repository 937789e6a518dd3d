//! What one request does without a fault. It is judged first and alone: on a wrong path every other rule would fail too.

use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;

use crate::client::{Answer, Attempt, Finality, send};
use crate::finding::Finding;
use crate::lane::{Lane, TIMEOUT};
use crate::subject::Subject;

pub(crate) const SUCCEEDS: &str = "a request with a new key succeeds and has an effect";
pub(crate) const REPEATS: &str = "each request with a new key does the same";
pub(crate) const USES_POOL: &str = "the application uses the pool that it is given";
pub(crate) const ONE_CONNECTION: &str = "one connection a request suffices";
pub(crate) const REFUSES_CLEANLY: &str = "a refusal has no effect";

/// How long a handler may wait for a connection that never comes.
const STARVATION: Duration = Duration::from_millis(1500);

/// As many connections as a handler is believed to need.
const MOST_CONNECTIONS: u32 = 5;

/// What one execution without a fault does.
#[derive(Clone, Debug)]
pub(crate) struct Baseline {
    pub(crate) status: StatusCode,
    pub(crate) finality: Finality,
    pub(crate) effects: i64,
    /// The keys of the calls to other systems, with `<key>` for the request's.
    pub(crate) external: Vec<String>,
    /// How many such keys one execution uses.
    pub(crate) external_keys: usize,
    /// Replays carry the replay header.
    pub(crate) marked: bool,
    /// How many connections the handler must have.
    pub(crate) connections: u32,
}

impl Baseline {
    /// The calls' keys do not contain the request's, so that only their number can be judged.
    pub(crate) fn counts_external_keys(&self) -> bool {
        self.external.len() != self.external_keys
    }

    pub(crate) fn is_refusal(&self) -> bool {
        !self.status.is_success() && !self.status.is_redirection()
    }
}

/// The baseline, if it is one that the other rules can be judged by, and what is wrong with it.
pub(crate) struct Judged {
    pub(crate) baseline: Option<Baseline>,
    pub(crate) findings: Vec<Finding>,
}

impl Judged {
    fn stop(finding: Finding) -> Self {
        Self { baseline: None, findings: vec![finding] }
    }
}

/// What a request did.
struct Execution {
    answer: Answer,
    effects: i64,
    external: Vec<String>,
    external_keys: usize,
}

pub(crate) async fn judge(subject: &Subject<'_>, lane: &Lane) -> Judged {
    let connections = subject.connections.unwrap_or(MOST_CONNECTIONS).max(MOST_CONNECTIONS);
    let victim = lane.victim(subject, connections).await;
    let before = lane.proxy.counts().frontend_messages;
    let key = subject.key("first");
    let first = match execute(subject, lane, &victim.app, &key).await {
        Ok(first) => first,
        Err(attempt) => {
            let found = Finding::new(SUCCEEDS, "a request with a new key", attempt, "an answer");
            return Judged::stop(found.advise("send the request to the application alone, and see its log"));
        }
    };
    if let Some(finding) = judge_first(subject, &first) {
        return Judged::stop(finding);
    }
    if lane.proxy.counts().frontend_messages == before {
        let found = Finding::new(USES_POOL, "a request with a new key", "not one message to the database", "a message");
        return Judged::stop(found.advise("build the application over the pool that the closure is given"));
    }
    if let Some(finding) = judge_second(subject, lane, &victim.app, &first).await {
        return Judged::stop(finding);
    }
    let again = send(&victim.app, subject.request(&key), TIMEOUT).await;
    let marked = again.answer().is_some_and(|again| again.is_replay(&subject.replay_header));
    victim.close().await;
    let mut findings = Vec::new();
    if !first.answer.status.is_success() && first.external_keys > 0 {
        let came_back = format!("{}, after a call to the provider", first.answer.status);
        let found = Finding::new(REFUSES_CLEANLY, "a request that is refused", came_back, "no call");
        findings.push(found.advise("refuse before anything is called that cannot be rolled back"));
    }
    let (needed, finding) = needed_connections(subject, lane, &first).await;
    findings.extend(finding);
    let baseline = Baseline {
        status: first.answer.status,
        finality: Finality::of(first.answer.status),
        effects: first.effects,
        external: first.external,
        external_keys: first.external_keys,
        marked,
        connections: needed,
    };
    Judged { baseline: Some(baseline), findings }
}

async fn execute(subject: &Subject<'_>, lane: &Lane, app: &Router, key: &str) -> Result<Execution, Attempt> {
    subject.before_each(&lane.direct).await;
    let before = subject.effects(&lane.direct).await;
    let keys = || subject.external.as_ref().map_or(0, crate::ExternalCalls::keys);
    let keys_before = keys();
    let attempt = send(app, subject.request(key), TIMEOUT).await;
    let Attempt::Answered(answer) = attempt else { return Err(attempt) };
    let effects = subject.effects(&lane.direct).await - before;
    Ok(Execution { answer, effects, external: subject.external_calls(key), external_keys: keys() - keys_before })
}

fn judge_first(subject: &Subject<'_>, first: &Execution) -> Option<Finding> {
    let sent = "a request with a new key";
    let Execution { answer, effects, .. } = first;
    let succeeded = answer.status.is_success() || answer.status.is_redirection();
    if !succeeded && !subject.refuses {
        let found = Finding::new(SUCCEEDS, sent, answer, "2xx or 3xx");
        return Some(found.advise(
            "correct the request; if keys must have a form, use `.keys(…)` or `.quoted_keys()`; if this answer is what is \
             under test, use `.refuses()`",
        ));
    }
    if !succeeded && *effects != 0 {
        let came_back = format!("{}, and an effect of {effects}", answer.status);
        let found = Finding::new(REFUSES_CLEANLY, "a request that is refused", came_back, "no effect");
        return Some(found.advise("roll the writes back, in the transaction that stores the refusal or before it"));
    }
    if succeeded && *effects == 0 && first.external_keys == 0 && subject.effects.is_some() {
        let came_back = format!("{}, and no effect that is counted", answer.status);
        let found = Finding::new(SUCCEEDS, sent, came_back, "an effect");
        return Some(found.advise("commit before the answer; or count what this request changes"));
    }
    None
}

async fn judge_second(subject: &Subject<'_>, lane: &Lane, app: &Router, first: &Execution) -> Option<Finding> {
    let sent = "a second request, with another key";
    let advice = "use `.before_each(…)` to bring the database back into the state that the request needs, or a closure \
                  that makes another body for each key";
    match execute(subject, lane, app, &subject.key("second")).await {
        Ok(second) if second.answer.status != first.answer.status => {
            let must = format!("{} like the first", first.answer.status);
            Some(Finding::new(REPEATS, sent, second.answer, must).advise(format!("needs `before_each`: {advice}")))
        }
        Ok(second) if second.effects != first.effects => {
            let came_back = format!("an effect of {}", second.effects);
            let must = format!("an effect of {} like the first", first.effects);
            Some(Finding::new(REPEATS, sent, came_back, must).advise(format!("needs `before_each`: {advice}")))
        }
        Ok(_) => None,
        Err(attempt) => Some(Finding::new(REPEATS, sent, attempt, "an answer like the first").advise(advice)),
    }
}

/// How many connections of the pool a request holds at once.
async fn needed_connections(subject: &Subject<'_>, lane: &Lane, first: &Execution) -> (u32, Option<Finding>) {
    if let Some(connections) = subject.connections {
        return (connections, None);
    }
    let mut starved = None;
    for connections in 1..MOST_CONNECTIONS {
        let victim = lane.victim_that_waits(subject, connections, STARVATION).await;
        subject.before_each(&lane.direct).await;
        let attempt = send(&victim.app, subject.request(&subject.key("connections")), 3 * STARVATION).await;
        victim.close().await;
        let enough = attempt.answer().is_some_and(|answer| answer.status == first.answer.status);
        if enough {
            let finding = starved.map(|came_back| two_connections(connections, came_back));
            return (connections, finding);
        }
        starved.get_or_insert_with(|| attempt.to_string());
    }
    let came_back = starved.unwrap_or_default();
    (MOST_CONNECTIONS, Some(two_connections(MOST_CONNECTIONS, came_back)))
}

fn two_connections(needed: u32, came_back: String) -> Finding {
    let sent = "a request to a process with one connection in its pool";
    let came_back = format!("{came_back}; with {needed} connections it is answered");
    Finding::new(ONE_CONNECTION, sent, came_back, "the same answer").advise(
        "the handler takes another connection while it holds one: what runs there is outside of the first one's transaction, \
         and under load every request waits for another's connection. Pass the transaction on; if it is meant, use \
         `.connections(n)`",
    )
}
