//! How a request comes in from axum and its answer goes back.

use axum::response::Response;
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method};

use crate::call::{Call, Request};
use crate::completer::Recovered;
use crate::error::Error;
use crate::idempotency::Idempotency;
use crate::key::{IdempotencyKey, InvalidKey};
use crate::lifecycle::handler::{Answer, Execution, Handler, HandlerFuture};
use crate::lifecycle::unit::Unit;
use crate::lifecycle::unkeyed::Unkeyed;
use crate::operation::Operation;
use crate::postgres::transaction::Tx;
use crate::telemetry::{Outcome, Outcomes, Telemetry};

impl Call {
    pub(crate) fn request(
        idempotency: Idempotency,
        method: Method,
        path_and_query: String,
        headers: &HeaderMap,
        recovered: Option<Recovered>,
    ) -> Self {
        let settings = idempotency.settings();
        let mut values = headers.get_all(&settings.header).iter();
        let key = parse_key(values.next(), values.next());
        let resent = settings.resent_headers.iter().filter_map(|name| Some((name.clone(), headers.get(name)?.clone())));
        Self { method, path_and_query, headers: resent.collect(), key, recovered, idempotency }
    }
}

fn parse_key(first: Option<&HeaderValue>, second: Option<&HeaderValue>) -> Result<Option<IdempotencyKey>, InvalidKey> {
    match (first, second) {
        (_, Some(_)) => Err(InvalidKey("must come in one header line")),
        (Some(value), None) => IdempotencyKey::from_header(value).map(Some),
        (None, None) => Ok(None),
    }
}

impl Request {
    /// Runs the handler in one transaction with the claim, or answers for it.
    ///
    /// Boxes, here and in [`operation`](Self::operation): what runs a handler is compiled once, and not for each handler.
    pub fn transaction<F>(self, handler: F) -> BoxFuture<'static, Response>
    where
        F: for<'a> FnOnce(&'a mut Tx) -> HandlerFuture<'a> + Send + 'static,
    {
        Box::pin(self.run_transaction(Box::new(handler)))
    }

    /// Runs the handler over its steps, or answers for it.
    pub fn operation<F>(self, handler: F) -> BoxFuture<'static, Response>
    where
        F: for<'a> FnOnce(&'a mut Operation) -> HandlerFuture<'a> + Send + 'static,
    {
        Box::pin(self.run_operation(Box::new(handler)))
    }

    async fn run_transaction(self, handler: Handler<Tx>) -> Response {
        self.answer(async |request: Self, telemetry| {
            if request.is_unkeyed() {
                let Self { call, handler: name, isolation, lease, .. } = request;
                let unkeyed = Unkeyed { idempotency: call.idempotency, handler: name, isolation, lease };
                return unkeyed.answer(telemetry, handler).await;
            }
            request.execute(telemetry, handler).await
        })
        .await
    }

    async fn run_operation(mut self, handler: Handler<Operation>) -> Response {
        if self.is_unkeyed() {
            // Steps need a key to be recorded under; nobody else will ever send this one.
            self.call.key = Ok(Some(IdempotencyKey::random()));
        }
        self.answer(async |request: Self, telemetry| request.execute(telemetry, handler).await).await
    }

    async fn execute<U: Unit>(self, telemetry: Telemetry, handler: Handler<U>) -> Result<Answer, Error> {
        let (replay_failures, method, is_whole) = (self.replay_failures, self.call.method.clone(), self.is_whole);
        match self.claim(U::OF_STEPS, U::OF_STEPS) {
            Ok(claim) => Execution { claim, method, is_whole, replay_failures }.answer(telemetry, handler).await,
            Err(error) => telemetry.finish(Err(error)),
        }
    }

    async fn answer(self, run: impl AsyncFnOnce(Self, Telemetry) -> Result<Answer, Error>) -> Response {
        let idempotency = self.call.idempotency.clone();
        let telemetry = self.telemetry();
        match run(self, telemetry).await {
            Ok(answer) => answer.response,
            Err(error) => idempotency.respond(&error),
        }
    }
}

impl Idempotency {
    /// The answer in place of the handler's.
    pub(crate) fn respond(&self, error: &Error) -> Response {
        let settings = self.settings();
        error.respond(&settings.problem_base_url, settings.mismatch_status())
    }
}

impl Outcomes for Answer {
    fn outcome(&self) -> Outcome {
        self.outcome
    }
}
