//! Which rules are tried, and what each of them needs.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::Request;
use futures_util::FutureExt;

use super::Contract;
use super::report::{ContractReport, Outcome};
use super::rules::{external, interruption, keys, owners, payload, races, replay};
use crate::baseline::Baseline;
use crate::client::{Answer, Attempt, send};
use crate::finding::Finding;
use crate::lane::{Lane, TIMEOUT, Victim, retry_until_final};

pub(super) struct Checker<'c, 'a> {
    pub(super) contract: &'c Contract<'a>,
    pub(super) lane: &'c Lane,
    pub(super) baseline: Baseline,
    pub(super) victim: Victim,
    /// A process as slow as the first.
    pub(super) twin: Victim,
}

/// Why a rule does not just hold.
pub(super) enum Stop {
    Found(Box<Finding>),
    NotTried(String),
}

pub(super) type Checked<T = ()> = Result<T, Stop>;

pub(super) fn not_tried<T>(reason: impl Into<String>) -> Checked<T> {
    Err(Stop::NotTried(reason.into()))
}

impl From<Finding> for Stop {
    fn from(finding: Finding) -> Self {
        Self::Found(Box::new(finding))
    }
}

/// How many connections the attacked process has where requests come at once.
pub(super) const CONNECTIONS: u32 = 5;

impl<'c, 'a> Checker<'c, 'a> {
    pub(super) async fn new(contract: &'c Contract<'a>, lane: &'c Lane, baseline: Baseline) -> Self {
        let connections = baseline.connections.max(CONNECTIONS);
        let victim = lane.victim(&contract.subject, connections).await;
        let twin = lane.victim(&contract.subject, connections).await;
        Self { contract, lane, baseline, victim, twin }
    }

    pub(super) async fn check(&self, report: &mut ContractReport) {
        let mut list = List { report };
        let retries = list.add(replay::RETRY, replay::in_sequence(self)).await;
        if !retries {
            return list.skip("what a retry gets must be mended first");
        }
        let races = list.add(races::TWO, races::at_once(self, 2, races::TWO)).await
            && list.add(races::TWENTY, races::at_once(self, 20, races::TWENTY)).await;
        if races {
            list.add(races::SLOW, races::while_the_first_is_slow(self)).await;
        } else {
            list.leave(races::SLOW, "what happens at once must be mended first");
        }
        list.add(races::DIFFERENT, races::different_keys(self)).await;
        list.add(races::INDEPENDENT, races::another_key_while_one_stalls(self)).await;
        list.add(payload::PAYLOAD, payload::another_payload(self)).await;
        list.add(payload::QUERY, payload::another_query(self)).await;
        list.add(payload::ROUTE, payload::another_route(self)).await;
        list.add(payload::MEANING, payload::the_same_json(self)).await;
        list.add(keys::NO_KEY, keys::no_key(self)).await;
        list.add(keys::MALFORMED, keys::malformed(self)).await;
        list.add(keys::QUOTED, keys::quoted(self)).await;
        list.add(keys::LONGEST, keys::longest(self)).await;
        list.add(keys::DISTINCT, keys::distinct(self)).await;
        list.add(owners::OTHER, owners::another_owner(self)).await;
        list.add(owners::SEPARATOR, owners::separators(self)).await;
        list.add(external::REPLAYED, external::replayed(self)).await;
        list.add(external::DOWN, external::down_once(self)).await;
        if list.add(interruption::HANG_UP, interruption::hang_up(self)).await {
            list.add(interruption::KILLED, interruption::killed(self)).await;
        } else {
            list.leave(interruption::KILLED, "what a hang-up leaves must be mended first");
        }
        list.add(replay::EXPIRY, replay::after_its_retention(self)).await;
    }

    pub(super) async fn trial(&self, rule: &'static str) -> Trial<'_, 'a> {
        self.contract.subject.before_each(&self.lane.direct).await;
        let before = self.contract.subject.effects(&self.lane.direct).await;
        let key = self.contract.subject.key("rule");
        Trial { checker: self, rule, key, before }
    }

    pub(super) fn request(&self, key: &str) -> Request<Body> {
        self.contract.subject.request(key)
    }

    /// Whether the key travels in the header: otherwise the rules on the header do not apply.
    pub(super) fn must_have_header(&self) -> Checked {
        match self.request("key").headers().contains_key(&self.contract.subject.key_header) {
            true => Ok(()),
            false => not_tried("the request has no key header"),
        }
    }

    /// Whether keys of any form can be sent.
    pub(super) fn must_have_free_keys(&self) -> Checked {
        self.must_have_header()?;
        match &self.contract.subject.keys {
            None => Ok(()),
            Some(_) => not_tried("keys have a form of their own"),
        }
    }
}

/// One exchange under a rule, with a key of its own.
pub(super) struct Trial<'c, 'a> {
    pub(super) checker: &'c Checker<'c, 'a>,
    pub(super) rule: &'static str,
    pub(super) key: String,
    pub(super) before: i64,
}

impl Trial<'_, '_> {
    pub(super) fn found(&self, sent: &str, came_back: impl std::fmt::Display, must: impl Into<String>) -> Finding {
        Finding::new(self.rule, sent, came_back, must)
    }

    pub(super) async fn effects(&self) -> i64 {
        self.checker.contract.subject.effects(&self.checker.lane.direct).await - self.before
    }

    /// That so many executions had their effect.
    pub(super) async fn must_count(&self, sent: &str, executions: i64) -> Checked {
        let (counted, expected) = (self.effects().await, executions * self.checker.baseline.effects);
        match counted == expected {
            true => Ok(()),
            false => {
                Err(self.found(sent, format!("an effect of {counted}"), format!("an effect of {expected}")).into())
            }
        }
    }

    pub(super) async fn send(&self, app: &Router, request: Request<Body>) -> Attempt {
        send(app, request, TIMEOUT).await
    }

    /// The final answer to the request; an attempt that meets another one in flight is repeated.
    pub(super) async fn answer(&self, sent: &str, app: &Router) -> Checked<Answer> {
        let (subject, mut attempts) = (&self.checker.contract.subject, Vec::new());
        let finality = self.checker.baseline.finality;
        match retry_until_final(subject, &self.key, &[app], finality, &mut attempts).await {
            Some(answer) => Ok(answer),
            None => {
                let last = attempts.last().map_or_else(String::new, Attempt::to_string);
                let must = format!("a final answer within {} s", subject.patience.as_secs_f64());
                Err(self.found(sent, format!("no final answer; at last {last}"), must).into())
            }
        }
    }

    /// That the same request gets the first answer again.
    pub(super) async fn must_repeat(&self, sent: &str, app: &Router, first: &Answer) -> Checked {
        let again = self.answer(sent, app).await?;
        self.must_be_repeated(sent, first, &again)
    }

    pub(super) fn must_be_repeated(&self, sent: &str, first: &Answer, again: &Answer) -> Checked {
        let (subject, baseline) = (&self.checker.contract.subject, &self.checker.baseline);
        let forgets = baseline.finality.failure.is_some() || (subject.forgets_refusals && baseline.is_refusal());
        if forgets && first.status == again.status {
            return Ok(());
        }
        if let Some(difference) = first.difference(again, &subject.incomparable()) {
            return Err(self.found(sent, difference, "identical answers").into());
        }
        if baseline.marked && !again.is_replay(&subject.replay_header) {
            let must = format!("marked with `{}: true`", subject.replay_header);
            return Err(self.found(sent, again, must).into());
        }
        Ok(())
    }
}

/// The rules on their way into the report.
struct List<'r> {
    report: &'r mut ContractReport,
}

/// In the order in which they are tried.
const RULES: [&str; 21] = [
    races::TWO,
    races::TWENTY,
    races::SLOW,
    races::DIFFERENT,
    races::INDEPENDENT,
    payload::PAYLOAD,
    payload::QUERY,
    payload::ROUTE,
    payload::MEANING,
    keys::NO_KEY,
    keys::MALFORMED,
    keys::QUOTED,
    keys::LONGEST,
    keys::DISTINCT,
    owners::OTHER,
    owners::SEPARATOR,
    external::REPLAYED,
    external::DOWN,
    interruption::HANG_UP,
    interruption::KILLED,
    replay::EXPIRY,
];

impl List<'_> {
    /// False if the rule is broken.
    async fn add(&mut self, rule: &'static str, checked: impl Future<Output = Checked>) -> bool {
        let outcome = match checked.await {
            Ok(()) => Outcome::Holds,
            Err(Stop::Found(finding)) => Outcome::Broken(*finding),
            Err(Stop::NotTried(reason)) => Outcome::NotTried(reason),
        };
        let holds = !matches!(outcome, Outcome::Broken(_));
        self.report.push(rule, outcome);
        holds
    }

    fn leave(&mut self, rule: &'static str, reason: &str) {
        self.report.push(rule, Outcome::NotTried(reason.to_owned()));
    }

    fn skip(mut self, reason: &str) {
        RULES.into_iter().for_each(|rule| self.leave(rule, reason));
    }
}

/// A request and its body.
pub(super) fn take_body(request: Request<Body>) -> (Request<()>, Bytes) {
    let (parts, body) = request.into_parts();
    let bytes = axum::body::to_bytes(body, usize::MAX).now_or_never();
    let bytes = bytes.and_then(Result::ok).expect("the body of a request that is sent again must be in memory");
    (Request::from_parts(parts, ()), bytes)
}

pub(super) fn with_body(request: Request<()>, body: Bytes) -> Request<Body> {
    let mut request = request.map(|()| Body::from(body));
    request.headers_mut().remove(axum::http::header::CONTENT_LENGTH);
    request
}
