//! The list that every team verifies by hand before it trusts a handler with money.

mod checker;
mod report;
mod rules;

use std::time::Duration;

use axum::Router;
use axum::http::{HeaderName, StatusCode};
use sqlx::PgPool;

use crate::baseline::{self, Judged};
use crate::external::ExternalCalls;
use crate::lane::Lane;
use crate::subject::{RequestTemplate, Subject, Template, over_pool, settings};
use checker::Checker;
pub use report::ContractReport;

/// Checks a handler against the published HTTP contract: what a client sends, and what it may rely on getting.
///
/// `app` builds the application over the pool that it is given, creating tables that are missing; it is called several
/// times, for several processes over one database. `request` is sent with keys of the check's own.
///
/// What the IETF draft leaves to the server is a setting here. What was not tried stands in the report.
///
/// ```no_run
/// # use axum::{Router, body::Body, http::Request};
/// # use sqlx::PgPool;
/// # async fn app(pool: PgPool) -> Router { Router::new() }
/// # async fn example() {
/// let request = |tenant| {
///     Request::post("/orders").header("authorization", tenant).body(Body::from(r#"{"product": 1}"#)).unwrap()
/// };
/// idem_testing::contract(app, request("Bearer a"))
///     .other_scope(request("Bearer b"))
///     .effects(async |pool| sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(&pool).await)
///     .run()
///     .await
///     .assert_ok();
/// # }
/// ```
pub fn contract<'a>(app: impl AsyncFn(PgPool) -> Router + 'a, request: impl RequestTemplate<'a>) -> Contract<'a> {
    Contract {
        subject: Subject::new(app, request),
        other_request: None,
        other_route: None,
        other_scope: None,
        owners: None,
        key_is_optional: false,
        accepts_any_key: false,
        counts_query: true,
        json_by_meaning: false,
        longest_key: 255,
        expires_after: None,
        mismatch: StatusCode::UNPROCESSABLE_ENTITY,
    }
}

/// See [`contract`].
#[allow(missing_debug_implementations)]
#[must_use]
pub struct Contract<'a> {
    subject: Subject<'a>,
    other_request: Option<Template<'a>>,
    other_route: Option<Template<'a>>,
    other_scope: Option<Template<'a>>,
    owners: Option<Template<'a>>,
    key_is_optional: bool,
    accepts_any_key: bool,
    counts_query: bool,
    json_by_meaning: bool,
    longest_key: usize,
    expires_after: Option<Duration>,
    mismatch: StatusCode,
}

impl<'a> Contract<'a> {
    settings!();

    /// A request that must not be taken for a retry of the first. Default: the same one with another value in its JSON
    /// body.
    pub fn other_request(mut self, request: impl RequestTemplate<'a>) -> Self {
        self.other_request = Some(request.into_template());
        self
    }

    /// A request to another route, such as the refund of what the first one charges. Without it, the rule is not checked.
    pub fn other_route(mut self, request: impl RequestTemplate<'a>) -> Self {
        self.other_route = Some(request.into_template());
        self
    }

    /// The same request from somebody else, whose keys are other keys. Without it, the rule is not checked.
    pub fn other_scope(mut self, request: impl RequestTemplate<'a>) -> Self {
        self.other_scope = Some(request.into_template());
        self
    }

    /// The same request from the owner of any given name: two owners whose names contain the separator of scope and key
    /// must not meet. Without it, the rule is not checked.
    pub fn owners(mut self, request: impl Fn(&str) -> axum::http::Request<axum::body::Body> + 'a) -> Self {
        self.owners = Some(request.into_template());
        self
    }

    /// The handler runs without a key too (`key = optional`): then each request without one has its effect.
    pub fn key_optional(mut self) -> Self {
        self.key_is_optional = true;
        self
    }

    /// Keys with spaces, beyond ASCII or of more than 255 characters are keys too. Default: they are malformed.
    pub fn accepts_any_key(mut self) -> Self {
        self.accepts_any_key = true;
        self
    }

    /// The longest key that must be accepted, in characters. Default 255.
    pub fn longest_key(mut self, characters: usize) -> Self {
        self.longest_key = characters;
        self
    }

    /// The query string is no part of what makes two requests the same. Default: it is.
    pub fn ignores_query(mut self) -> Self {
        self.counts_query = false;
        self
    }

    /// JSON bodies that differ in white space and in the order of members are the same request. Without it, the rule is
    /// not checked: the draft leaves it to the server.
    pub fn json_by_meaning(mut self) -> Self {
        self.json_by_meaning = true;
        self
    }

    /// How long an outcome is replayed; after it, the key is new. Without it, the rule is not checked; with it, the check
    /// takes that time longer.
    pub fn expires_after(mut self, retention: Duration) -> Self {
        self.expires_after = Some(retention);
        self
    }

    /// The status for another request under a used key. Default 422.
    pub fn mismatch_status(mut self, status: StatusCode) -> Self {
        self.mismatch = status;
        self
    }

    /// Checks all rules, in a few seconds. What one request does is judged first, and alone if it is wrong; a rule that
    /// could only fail for the same reason as one before it is not tried.
    ///
    /// # Panics
    /// If there is no Postgres, or the effects cannot be counted.
    pub async fn run(self) -> ContractReport {
        let lane = Lane::open(&self.subject).await;
        let lane = lane.unwrap_or_else(|error| panic!("the contract check needs Postgres: {error}"));
        let Judged { baseline, findings } = baseline::judge(&self.subject, &lane).await;
        let mut report = ContractReport::new(self.subject.describe(), findings);
        if let Some(baseline) = baseline {
            Checker::new(&self, &lane, baseline).await.check(&mut report).await;
        }
        report
    }
}
