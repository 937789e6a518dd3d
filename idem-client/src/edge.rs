//! The last middleware of a stack: it notes what goes out to the network and what comes of it.
//!
//! Between the retry layer and the network stand middlewares that sign, refresh tokens, or send again by themselves. When
//! one of them fails, only what passed here tells whether anything was sent.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use http::Extensions;
use reqwest::{Request, Response, Url};
use reqwest_middleware::{Error, Middleware, Next};

use crate::classify::Fate;
use crate::redirect;

/// The last middleware of a stack of your own, below everything that may fail or change the URL:
/// `ClientBuilder::new(http).with(layer).with(signing).with(NetworkEdge)`. [`Client`](crate::Client) has it already.
///
/// It tells what really went out: to which URL (a middleware may change it, and a redirect must not pass for that), whether
/// one of several requests that a middleware sent was lost, and that a request was never connected although a middleware
/// failed over it. What did not come as far as the edge counts as "may have happened" in a stack of your own, since the
/// layer cannot know that an edge is there; with [`Client`](crate::Client) it counts as not sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct NetworkEdge;

/// What passed the edge during one attempt.
#[derive(Clone, Debug, Default)]
pub(crate) struct Passage(Arc<Mutex<Passed>>);

#[derive(Debug, Default)]
struct Passed {
    /// Requests that are out.
    open: u32,
    /// What is known of those that came back; `None` if none went out.
    worst: Option<Fate>,
    /// One of them was lost, whatever came later.
    lost: bool,
    url: Option<Url>,
}

impl Passage {
    fn passed(&self) -> MutexGuard<'_, Passed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of what went out; `None` if nothing passed the edge, or there is none.
    pub(crate) fn fate(&self) -> Option<Fate> {
        let passed = self.passed();
        if passed.open > 0 { Some(Fate::Unknown) } else { passed.worst }
    }

    /// Whether a request was lost, although another one was answered.
    pub(crate) fn has_lost_one(&self) -> bool {
        let passed = self.passed();
        passed.lost || passed.open > 0
    }

    /// The URL to which the request really went.
    pub(crate) fn url(&self) -> Option<Url> {
        self.passed().url.clone()
    }
}

/// A request that is out. Dropped without an end, it was lost.
struct Crossing(Option<Passage>);

impl Crossing {
    fn begin(passage: Passage, url: &Url) -> Self {
        {
            let mut passed = passage.passed();
            passed.open += 1;
            passed.url = Some(url.clone());
        }
        Self(Some(passage))
    }

    fn end(&mut self, fate: Fate, lost: bool) {
        let Some(passage) = self.0.take() else { return };
        let mut passed = passage.passed();
        passed.open -= 1;
        passed.worst = passed.worst.max(Some(fate));
        passed.lost |= lost;
    }
}

impl Drop for Crossing {
    fn drop(&mut self) {
        self.end(Fate::Unknown, true);
    }
}

/// What a failure to get an answer says about the request. Behind a redirect nothing is certain: the first host had it.
pub(crate) fn fate_of(error: &reqwest::Error, redirected: bool) -> Fate {
    if !redirected && (error.is_builder() || error.is_connect()) { Fate::NotSent } else { Fate::Unknown }
}

#[async_trait]
impl Middleware for NetworkEdge {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> reqwest_middleware::Result<Response> {
        let Some(passage) = extensions.get::<Passage>().cloned() else {
            return next.run(request, extensions).await;
        };
        let mut crossing = Crossing::begin(passage, request.url());
        let outcome = next.run(request, extensions).await;
        match &outcome {
            // What the answer says is judged above; a middleware that hides it leaves it unknown.
            Ok(_) => crossing.end(Fate::Unknown, false),
            Err(Error::Reqwest(error)) => {
                let fate = fate_of(error, redirect::was_followed());
                crossing.end(fate, fate == Fate::Unknown);
            }
            Err(Error::Middleware(_)) => crossing.end(Fate::Unknown, true),
        }
        outcome
    }
}
