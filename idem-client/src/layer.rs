//! The middleware: what a client's requests share, and the way into the stack.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use async_trait::async_trait;
use http::Extensions;
use http::header::HeaderName;
use reqwest::{Request, Response, Url};
use reqwest_middleware::{Middleware, Next};

use crate::breaker::Breakers;
use crate::budget::Budgets;
use crate::classify::{Answer, Verdict};
use crate::delivery::{Delivery, refused_for_its_key, settle_key};
use crate::error::{Error, Refusal};
use crate::journal::{Journal, JournalError, Record};
use crate::key::Key;
use crate::limits::Limits;
use crate::observe::Observer;
use crate::under_way::{Id, UnderWay};
use crate::{BreakerState, BudgetState};

/// The attempt's number, sent with every attempt: `1` for the first.
pub const ATTEMPT_HEADER: HeaderName = HeaderName::from_static("idempotency-attempt");

/// How many attempts a response took: among the response's extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempts(pub u32);

/// An application's own way of telling that a 409 means "in flight".
pub(crate) type InFlightTest = Box<dyn Fn(&Answer) -> bool + Send + Sync>;

/// What an answer means.
pub(crate) type Classification = Box<dyn Fn(&Answer) -> Verdict + Send + Sync>;

/// The settings that a layer is built with.
pub(crate) struct Settings {
    pub(crate) limits: Limits,
    pub(crate) key_header: HeaderName,
    pub(crate) deadline_header: Option<HeaderName>,
    pub(crate) random_keys: bool,
    pub(crate) buffer_limit: usize,
    pub(crate) status_url: Option<String>,
    pub(crate) in_flight: Option<InFlightTest>,
    pub(crate) classify: Classification,
    pub(crate) quoted_keys: bool,
    pub(crate) replay_header: Option<HeaderName>,
    pub(crate) observer: Option<Observer>,
    pub(crate) journal: Option<Arc<dyn Journal>>,
    /// The stack ends in a [`NetworkEdge`](crate::NetworkEdge) for certain: what did not pass it was not sent.
    pub(crate) has_edge: bool,
}

/// The retry layer for a `reqwest-middleware` stack; [`crate::Client`] is a stack with it on top.
///
/// Install it once and outermost of what concerns a single attempt: middlewares below it (signatures, tracing) run on
/// every attempt. Clones share budget, breakers and journal.
#[derive(Clone)]
pub struct Layer {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) budgets: Budgets,
    pub(crate) breakers: Breakers,
    /// What is being sent right now, so that it is not taken for something to reconcile.
    pub(crate) under_way: Arc<UnderWay>,
    /// What is settled and could not be struck off the journal: it is tried again, and is not pending.
    settled: Mutex<HashSet<Id>>,
    warned: AtomicBool,
}

/// How many settled operations wait for the journal at most; what is beyond is asked about needlessly.
const MOST_SETTLED: usize = 10_000;

impl Layer {
    pub(crate) fn new(settings: Settings, budgets: Budgets, breakers: Breakers) -> Self {
        let under_way = Arc::new(UnderWay::default());
        let shared = Shared {
            settings,
            budgets,
            breakers,
            under_way,
            settled: Mutex::default(),
            warned: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The operations that were begun and whose outcome is not known: ask the server about each, or send it again
    /// with the same key. Those that this client is sending right now are not among them. Empty without a journal.
    ///
    /// # Errors
    ///
    /// When the journal cannot be read.
    pub async fn pending(&self) -> Result<Vec<Record>, JournalError> {
        let Some(journal) = &self.shared.settings.journal else { return Ok(Vec::new()) };
        self.shared.strike_off_the_settled(&**journal).await;
        let mut records = journal.pending().await?;
        let under_way = &self.shared.under_way;
        let settled = self.shared.settled();
        records.retain(|record| {
            let id = (record.operation.clone(), record.key.clone());
            !under_way.contains(&id) && !settled.contains(&id)
        });
        drop(settled);
        Ok(records)
    }

    /// Strikes a pending operation off whose outcome was found by asking.
    ///
    /// # Errors
    ///
    /// When the journal cannot be written.
    pub async fn strike_off(&self, record: &Record) -> Result<(), JournalError> {
        if let Some(journal) = &self.shared.settings.journal {
            journal.strike_off(&record.operation, &record.key).await?;
        }
        self.shared.under_way.found(&(record.operation.clone(), record.key.clone()));
        Ok(())
    }

    /// The retry budget of the host that the URL points to, now.
    #[must_use]
    pub fn budget(&self, url: &Url) -> BudgetState {
        self.shared.budgets.state(&host_of(url))
    }

    /// The retry budgets of all hosts that were sent to lately, by scheme, host and port.
    #[must_use]
    pub fn budgets(&self) -> Vec<(String, BudgetState)> {
        self.shared.budgets.states()
    }

    /// See [`Shared::has_seen`].
    pub(crate) async fn has_seen(&self, key: &Key) -> bool {
        self.shared.has_seen(key).await
    }

    /// The breaker of the host that the URL points to.
    #[must_use]
    pub fn breaker(&self, url: &Url) -> BreakerState {
        self.shared.breakers.state(&host_of(url))
    }

    /// The breakers of all hosts that were sent to lately, by scheme, host and port.
    #[must_use]
    pub fn breakers(&self) -> Vec<(String, BreakerState)> {
        self.shared.breakers.states()
    }
}

impl fmt::Debug for Layer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Layer")
            .field("limits", &self.shared.settings.limits)
            .field("budgets", &self.budgets())
            .field("breakers", &self.breakers())
            .finish_non_exhaustive()
    }
}

/// Set among the extensions while the layer works. Weak: when the work ends, however it ends, the mark dies with it;
/// a dead mark on a request that comes in says that somebody outside sends it again.
#[derive(Clone)]
struct Inside(Weak<()>);

#[async_trait]
impl Middleware for Layer {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> reqwest_middleware::Result<Response> {
        let mark = Arc::new(());
        match extensions.insert(Inside(Arc::downgrade(&mark))) {
            Some(Inside(outer)) if outer.strong_count() > 0 => {
                return Err(reqwest_middleware::Error::middleware(Error::from(Refusal::InstalledTwice)));
            }
            Some(_) => self.shared.warn_of_outer("a middleware above sends the request again"),
            None => {}
        }
        let mut request = request;
        let given = extensions.get::<Key>().cloned();
        let sent = match settle_key(&self.shared.settings, &mut request, given.as_ref()) {
            Ok(key) => Delivery::new(&self.shared, request, key, extensions).run(extensions, next).await,
            Err(refusal) => Err(refused_for_its_key(&self.shared, &request, given.as_ref(), refusal).await),
        };
        sent.map_err(reqwest_middleware::Error::middleware)
    }
}

impl Shared {
    /// Two layers that retry multiply their attempts. Said once, not for every request.
    pub(crate) fn warn_of_outer(&self, sign: &str) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(sign, "an outer layer retries too; attempts multiply, leave retrying to one layer");
        }
    }

    pub(crate) fn settled(&self) -> MutexGuard<'_, HashSet<Id>> {
        self.settled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an operation with this key may have happened, as far as this process and the journal know.
    pub(crate) async fn has_seen(&self, key: &Key) -> bool {
        if self.under_way.has_seen(key) {
            return true;
        }
        let Some(journal) = &self.settings.journal else { return false };
        let pending = tokio::time::timeout(self.settings.limits.deadline, journal.pending()).await;
        !matches!(pending, Ok(Ok(records)) if records.iter().all(|record| record.key != *key))
    }

    /// Remembers what could not be struck off.
    pub(crate) fn strike_off_later(&self, id: &Id) {
        let mut settled = self.settled();
        if settled.len() < MOST_SETTLED {
            settled.insert(id.clone());
        }
    }

    async fn strike_off_the_settled(&self, journal: &dyn Journal) {
        let settled: Vec<Id> = self.settled().iter().cloned().collect();
        for id in settled {
            if journal.strike_off(&id.0, &id.1).await.is_err() {
                return;
            }
            self.settled().remove(&id);
        }
    }

    pub(crate) fn journal_target(&self, request: &Request) -> String {
        format!("{} {}", request.method(), bare(request.url()))
    }

    pub(crate) fn status_url(&self, request_url: &Url, key: &Key) -> Option<Url> {
        let template = self.settings.status_url.as_ref()?;
        let mut url = request_url.join(&template.replace("{key}", &in_path(key.as_str()))).ok()?;
        hide_credentials(&mut url);
        Some(url)
    }
}

/// The URL as errors and the journal show it: without credentials, query and fragment.
pub(crate) fn bare(url: &Url) -> Url {
    let mut url = url.clone();
    hide_credentials(&mut url);
    url.set_query(None);
    url.set_fragment(None);
    url
}

fn hide_credentials(url: &mut Url) {
    let _ = url.set_username("");
    let _ = url.set_password(None);
}

pub(crate) fn host_of(url: &Url) -> String {
    let port = url.port_or_known_default().unwrap_or_default();
    format!("{}://{}:{port}", url.scheme(), url.host_str().unwrap_or_default())
}

/// Percent-encodes a key so that it is one segment of a path.
fn in_path(key: &str) -> String {
    key.bytes().fold(String::with_capacity(key.len()), |mut path, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            path.push(byte.into());
        } else {
            path.push_str(&format!("%{byte:02X}"));
        }
        path
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_of_a_url_has_no_secrets() {
        let url = Url::parse("https://user:password@shop.example/orders?token=secret#fragment").unwrap();
        assert_eq!(bare(&url).as_str(), "https://shop.example/orders");
        assert_eq!(host_of(&url), "https://shop.example:443");
    }

    #[test]
    fn a_key_is_one_segment_of_a_path() {
        assert_eq!(in_path("a/b?c#d:e%\"-._~9Z"), "a%2Fb%3Fc%23d%3Ae%25%22-._~9Z");
    }
}
