//! The list that every team verifies by hand before it trusts a handler with money.

mod report;
mod rules;

use axum::Router;
use axum::http::{HeaderName, StatusCode};
use sqlx::PgPool;

use crate::lane::Lane;
use crate::subject::{RequestTemplate, Subject, Template, over_pool};
pub use report::{ContractReport, Finding};
use rules::Checker;

/// Checks a handler against the published HTTP contract: what a client sends, and what it may rely on getting.
///
/// `app` builds the application over the pool that it is given, creating tables that are missing; it is called several
/// times, for several processes over one database. `request` is sent with keys of the check's own.
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
        other_scope: None,
        key_is_optional: false,
        mismatch: StatusCode::UNPROCESSABLE_ENTITY,
    }
}

/// See [`contract`].
#[allow(missing_debug_implementations)]
#[must_use]
pub struct Contract<'a> {
    subject: Subject<'a>,
    other_request: Option<Template<'a>>,
    other_scope: Option<Template<'a>>,
    key_is_optional: bool,
    mismatch: StatusCode,
}

impl<'a> Contract<'a> {
    /// Counts the effects of all requests so far, such as the rows of `orders`. Without it, answers alone are checked.
    pub fn effects(mut self, count: impl AsyncFn(PgPool) -> sqlx::Result<i64> + 'a) -> Self {
        self.subject.effects = Some(over_pool(count));
        self
    }

    /// Runs before each part of the check, past the application.
    pub fn before_each(mut self, prepare: impl AsyncFn(PgPool) -> sqlx::Result<()> + 'a) -> Self {
        self.subject.before_each = Some(over_pool(prepare));
        self
    }

    /// A request that must not be taken for a retry of the first. Default: the same one with another query string.
    pub fn other_request(mut self, request: impl RequestTemplate<'a>) -> Self {
        self.other_request = Some(request.into_template());
        self
    }

    /// The same request from somebody else, whose keys are other keys. Without it, the rule is not checked.
    pub fn other_scope(mut self, request: impl RequestTemplate<'a>) -> Self {
        self.other_scope = Some(request.into_template());
        self
    }

    /// The handler runs without a key too (`key = optional`): then each request without one has its effect.
    pub fn key_optional(mut self) -> Self {
        self.key_is_optional = true;
        self
    }

    /// The status for another request under a used key. Default 422.
    pub fn mismatch_status(mut self, status: StatusCode) -> Self {
        self.mismatch = status;
        self
    }

    /// The header that carries the key. Default `Idempotency-Key`. If the request does not carry it, because the key is
    /// in its payload, the rules on the header are not checked.
    pub fn key_header(mut self, name: HeaderName) -> Self {
        self.subject.key_header = name;
        self
    }

    /// The header that marks a replay. Default `Idempotency-Replayed`.
    pub fn replay_header(mut self, name: HeaderName) -> Self {
        self.subject.replay_header = name;
        self
    }

    /// A header that may differ between an answer and its replay: one of a layer outside of the handler, such as a
    /// request's number. `Date`,
    /// `Content-Length` and `Set-Cookie` always may.
    pub fn ignore_header(mut self, name: HeaderName) -> Self {
        self.subject.ignored_headers.push(name);
        self
    }

    /// Checks all rules, in about a second.
    ///
    /// # Panics
    /// If there is no Postgres, or the effects cannot be counted.
    pub async fn run(self) -> ContractReport {
        let lane = Lane::open(&self.subject).await;
        let lane = lane.unwrap_or_else(|error| panic!("the contract check needs Postgres: {error}"));
        let checker = Checker::new(&self, &lane).await;
        let rules = checker.check().await;
        ContractReport::new(self.subject.describe(), rules)
    }
}
