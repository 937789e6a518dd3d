//! The client: a `reqwest::Client` with the retry layer on top, and the builder of both.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use http::header::HeaderName;
use reqwest::{IntoUrl, Response};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware};

use crate::body::{self, ReplayableBody};
use crate::breaker::Breakers;
use crate::budget::Budgets;
use crate::classify::{self, Answer, Verdict};
use crate::edge::NetworkEdge;
use crate::error::Error;
use crate::journal::Journal;
use crate::key::Key;
use crate::layer::{Layer, Settings};
use crate::limits::{Limits, Overrides, SettingError, within};
use crate::observe::AttemptReport;
use crate::redirect;

/// An HTTP client whose requests are safe to retry, and retried.
///
/// Cheap to clone; clones share connections, retry budget, breakers and journal. Everything that the layer can say
/// ([`Layer::pending`], [`Layer::budget`], [`Layer::breaker`]) is there through `Deref`.
#[derive(Clone)]
pub struct Client {
    http: ClientWithMiddleware,
    layer: Layer,
}

impl Client {
    /// The settings, with their defaults.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Begins a request.
    pub fn request(&self, method: Method, url: impl IntoUrl) -> RequestBuilder {
        RequestBuilder {
            inner: self.http.request(method, url),
            layer: self.layer.clone(),
            key: None,
            overrides: Overrides::new(),
            collect: false,
        }
    }

    /// Begins a GET. It needs no key.
    pub fn get(&self, url: impl IntoUrl) -> RequestBuilder {
        self.request(Method::GET, url)
    }

    /// Begins a POST. Give it a key, or it is sent once.
    pub fn post(&self, url: impl IntoUrl) -> RequestBuilder {
        self.request(Method::POST, url)
    }

    /// Begins a PATCH. Give it a key, or it is sent once.
    pub fn patch(&self, url: impl IntoUrl) -> RequestBuilder {
        self.request(Method::PATCH, url)
    }

    /// Begins a PUT. HTTP calls it idempotent; with a key the server's answer is the same each time as well.
    pub fn put(&self, url: impl IntoUrl) -> RequestBuilder {
        self.request(Method::PUT, url)
    }

    /// Begins a DELETE. HTTP calls it idempotent; with a key the second one is not answered 404.
    pub fn delete(&self, url: impl IntoUrl) -> RequestBuilder {
        self.request(Method::DELETE, url)
    }
}

impl std::ops::Deref for Client {
    type Target = Layer;

    fn deref(&self) -> &Layer {
        &self.layer
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Client").field("layer", &self.layer).finish_non_exhaustive()
    }
}

/// A request to be sent: what `reqwest`'s builder has, and the key and limits of this one.
#[must_use = "a request does nothing until it is sent"]
#[derive(Debug)]
pub struct RequestBuilder {
    inner: reqwest_middleware::RequestBuilder,
    layer: Layer,
    key: Option<Key>,
    overrides: Overrides,
    /// The body is a form with streams, to be read into memory before the first attempt.
    collect: bool,
}

impl RequestBuilder {
    /// The operation's idempotency key, sent with every attempt.
    pub fn key(mut self, key: impl Into<Key>) -> Self {
        let key = key.into();
        self.key = Some(key.clone());
        self.with(|request| request.with_extension(key))
    }

    /// Names the operation in the journal and in errors; see [`Overrides::operation`].
    pub fn operation(self, name: impl Into<String>) -> Self {
        self.overriding(|overrides| overrides.operation(name))
    }

    /// How often this request is sent at most; see [`Limits::attempts`].
    pub fn attempts(self, attempts: u32) -> Self {
        self.overriding(|overrides| overrides.attempts(attempts))
    }

    /// The back-off of this request; see [`Limits::base`] and [`Limits::cap`].
    pub fn back_off(self, base: Duration, cap: Duration) -> Self {
        self.overriding(|overrides| overrides.back_off(base, cap))
    }

    /// How long an attempt of this request may take; see [`Limits::attempt_timeout`]. Where it is shorter than the client's
    /// [`Limits::connect_timeout`], a connection that never comes about counts as "may have happened".
    pub fn attempt_timeout(self, timeout: Duration) -> Self {
        self.overriding(|overrides| overrides.attempt_timeout(timeout))
    }

    /// How long this request may take over all its attempts; see [`Limits::deadline`].
    pub fn deadline(self, deadline: Duration) -> Self {
        self.overriding(|overrides| overrides.deadline(deadline))
    }

    /// Adds a header. One that is no header name or value is an error of [`Self::send`].
    pub fn header<N, V>(self, name: N, value: V) -> Self
    where
        HeaderName: TryFrom<N>,
        <HeaderName as TryFrom<N>>::Error: Into<http::Error>,
        http::HeaderValue: TryFrom<V>,
        <http::HeaderValue as TryFrom<V>>::Error: Into<http::Error>,
    {
        self.with(|request| request.header(name, value))
    }

    /// Adds `Authorization: Bearer …`.
    pub fn bearer_auth(self, token: impl fmt::Display) -> Self {
        self.with(|request| request.bearer_auth(token))
    }

    /// Adds `Authorization: Basic …`.
    pub fn basic_auth(self, username: impl fmt::Display, password: Option<impl fmt::Display>) -> Self {
        self.with(|request| request.basic_auth(username, password))
    }

    /// Adds to the URL's query. A value that cannot be one is an error of [`Self::send`].
    #[cfg(feature = "query")]
    pub fn query(self, query: &(impl serde::Serialize + ?Sized)) -> Self {
        self.with(|request| request.query(query))
    }

    /// The body as `application/x-www-form-urlencoded`. A value that cannot be one is an error of [`Self::send`].
    #[cfg(feature = "form")]
    pub fn form(self, form: &(impl serde::Serialize + ?Sized)) -> Self {
        self.with(|request| request.form(form))
    }

    /// The body as `multipart/form-data`. It is read into memory once, files and streams among it, so that every attempt
    /// sends the same bytes with the same boundary; for what is too large for that there is [`Self::replayable`].
    #[cfg(feature = "multipart")]
    pub fn multipart(mut self, form: reqwest::multipart::Form) -> Self {
        self.collect = true;
        self.with(|request| request.multipart(form))
    }

    /// A body that is made anew for each attempt, such as [`ReplayableBody::file`]. Set `Content-Type` yourself.
    pub fn replayable(self, body: ReplayableBody) -> Self {
        self.with(|request| request.with_extension(body))
    }

    /// The body. Bytes and text can be sent again; a stream is refused unless the request is sent once.
    pub fn body(self, body: impl Into<reqwest::Body>) -> Self {
        self.with(|request| request.body(body))
    }

    /// The body as JSON. A value that cannot be JSON is an error of [`Self::send`].
    pub fn json(self, value: &(impl serde::Serialize + ?Sized)) -> Self {
        self.with(|request| request.json(value))
    }

    /// Anything else that the builder of `reqwest-middleware` can do.
    pub fn with(
        mut self,
        change: impl FnOnce(reqwest_middleware::RequestBuilder) -> reqwest_middleware::RequestBuilder,
    ) -> Self {
        self.inner = change(self.inner);
        self
    }

    fn overriding(mut self, change: impl FnOnce(Overrides) -> Overrides) -> Self {
        self.overrides = change(self.overrides);
        self
    }

    /// Sends the request until it is answered or one of the limits is met.
    ///
    /// An answer is `Ok` whatever its status: a 422 or a 500 is the server's word and not retried. Its body has been
    /// read already, unless it is longer than the client buffers.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] and [`Error::Unbuilt`] when nothing was sent, [`Error::GaveUp`] when attempts were made and none
    /// was answered finally. Of each ask [`Error::may_have_happened`].
    pub async fn send(self) -> Result<Response, Error> {
        let Self { inner, layer, key, overrides, collect } = self;
        let mut inner = inner.with_extension(overrides);
        let mut extensions = std::mem::take(inner.extensions());
        let (client, request) = inner.build_split();
        let mut request = match request {
            Ok(request) => request,
            Err(error) => return Err(unbuilt(&layer, key.as_ref(), error).await),
        };
        if collect && let Err(error) = read_into_memory(&mut request).await {
            return Err(unbuilt(&layer, key.as_ref(), error).await);
        }
        Ok(client.execute_with_extensions(request, &mut extensions).await?)
    }
}

/// The request was not built, so it was not sent; what an earlier one with its key did is another matter.
async fn unbuilt(layer: &Layer, key: Option<&Key>, error: reqwest::Error) -> Error {
    let may_have_happened = match key {
        Some(key) => layer.has_seen(key).await,
        None => false,
    };
    // The URL may hold secrets in its query.
    Error::Unbuilt { error: error.without_url(), may_have_happened }
}

async fn read_into_memory(request: &mut reqwest::Request) -> reqwest::Result<()> {
    let Some(mut body) = request.body_mut().take() else { return Ok(()) };
    let mut read = bytes::BytesMut::new();
    while let Some(frame) = body::next_frame(&mut body).await {
        if let Ok(data) = frame?.into_data() {
            read.extend_from_slice(&data);
        }
    }
    *request.body_mut() = Some(read.freeze().into());
    Ok(())
}

/// The settings of a [`Client`] or a [`Layer`].
///
/// | setting | default |
/// | --- | --- |
/// | [`attempts`](Self::attempts) | 4 |
/// | [`back_off`](Self::back_off) | base 100 ms, cap 5 s, full jitter |
/// | [`connect_timeout`](Self::connect_timeout) | 1 s |
/// | [`attempt_timeout`](Self::attempt_timeout) | 3 s |
/// | [`deadline`](Self::deadline) | 15 s |
/// | [`retry_budget`](Self::retry_budget) | for each host 10 % of requests, or 10 retries in ten seconds, or 3 for each request under way |
/// | [`breaker`](Self::breaker) | opens after 10 failures in a row, probes after about 5 s |
/// | [`journal`](Self::journal) | none |
/// | [`classify`](Self::classify) | [`classify::standard`] |
/// | [`key_header`](Self::key_header) | `idempotency-key` |
/// | [`quoted_keys`](Self::quoted_keys) | off |
/// | [`replay_header`](Self::replay_header) | `idempotency-replayed`, `idempotent-replayed` |
/// | [`deadline_header`](Self::deadline_header) | `x-request-timeout-ms` |
/// | [`random_keys`](Self::random_keys) | off |
/// | [`buffer_limit`](Self::buffer_limit) | 1 MiB |
/// | [`status_url`](Self::status_url) | none |
/// | [`on_attempt`](Self::on_attempt) | none |
pub struct Builder {
    settings: Settings,
    budget: (f64, u32),
    breaker: (u32, Duration),
    http: Option<reqwest::Client>,
    http_builder: Option<reqwest::ClientBuilder>,
    middlewares: Vec<Arc<dyn Middleware>>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            settings: Settings {
                limits: Limits::default(),
                key_header: HeaderName::from_static("idempotency-key"),
                deadline_header: Some(HeaderName::from_static("x-request-timeout-ms")),
                random_keys: false,
                buffer_limit: 1024 * 1024,
                status_url: None,
                in_flight: None,
                classify: Box::new(classify::standard),
                quoted_keys: false,
                replay_header: None,
                observer: None,
                journal: None,
                has_edge: false,
            },
            budget: (0.1, 10),
            breaker: (10, Duration::from_secs(5)),
            http: None,
            http_builder: None,
            middlewares: Vec::new(),
        }
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Builder").field("limits", &self.settings.limits).finish_non_exhaustive()
    }
}

impl Builder {
    /// How often a request is sent at most, the first attempt included. Default 4; 1 to 100.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.settings.limits.attempts = attempts;
        self
    }

    /// The bounds of the waits: each wait is uniform between zero and `base · 2^(failed attempts − 1)`, at most `cap`.
    /// Default 100 ms and 5 s. `Retry-After` overrules them.
    #[must_use]
    pub fn back_off(mut self, base: Duration, cap: Duration) -> Self {
        (self.settings.limits.base, self.settings.limits.cap) = (base, cap);
        self
    }

    /// How long connecting may take, TLS handshake included; see [`Limits::connect_timeout`]. Default 1 s. With
    /// [`http`](Self::http) and [`build_layer`](Self::build_layer) the HTTP client is yours and so is its limit.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.limits.connect_timeout = timeout;
        self
    }

    /// How long one attempt may take, from connecting to the end of the answer's body. Default 3 s.
    #[must_use]
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.settings.limits.attempt_timeout = timeout;
        self
    }

    /// How long a request may take over all its attempts and waits. Default 15 s. Nothing waits past it: a wait that
    /// would end later is not begun.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.limits.deadline = deadline;
        self
    }

    /// How many retries this client may add to its requests to a host: `share` of the requests of the last ten seconds
    /// (default 0.1; 0 to 10), or `floor` retries in ten seconds (default 10; 0 to 10,000), whichever is more. Past it a
    /// request that failed fails at once.
    ///
    /// As long as the host answers at least a tenth of its attempts, the floor is at least three retries for each request
    /// under way, so that a batch that starts at once can retry; a `floor` of 0 switches that off too.
    #[must_use]
    pub fn retry_budget(mut self, share: f64, floor: u32) -> Self {
        self.budget = (share, floor);
        self
    }

    /// After how many failed attempts in a row a host's breaker opens (default 10; 1 to 10,000) and about how long it
    /// stays open before one request may probe (default 5 s, at most 10 min; half to one and a half times that).
    /// Failed are attempts without an answer and those answered with a 5xx that is worth a retry; they count if they were
    /// begun after the host's last answer.
    #[must_use]
    pub fn breaker(mut self, failures_in_a_row: u32, open_for: Duration) -> Self {
        self.breaker = (failures_in_a_row, open_for);
        self
    }

    /// Where begun operations are recorded before they are first sent. Default none.
    #[must_use]
    pub fn journal(mut self, journal: impl Journal) -> Self {
        self.settings.journal = Some(Arc::new(journal));
        self
    }

    /// The header that carries the key. Default `idempotency-key`.
    #[must_use]
    pub fn key_header(mut self, name: HeaderName) -> Self {
        self.settings.key_header = name;
        self
    }

    /// The header that tells the server how many milliseconds the client will still wait for the operation, all
    /// attempts included. Default `x-request-timeout-ms`; `None` sends none. A request that carries the header
    /// already has the nearer of the two deadlines.
    #[must_use]
    pub fn deadline_header(mut self, name: Option<HeaderName>) -> Self {
        self.settings.deadline_header = name;
        self
    }

    /// Whether a POST or PATCH without a key gets a random one, made once before its first attempt. Off by default:
    /// a server that ignores keys would do such a request twice.
    #[must_use]
    pub fn random_keys(mut self, random_keys: bool) -> Self {
        self.settings.random_keys = random_keys;
        self
    }

    /// How many bytes of an answer's body are read within the attempt, so that a connection that breaks there is
    /// retried. Default 1 MiB, at most 1 GiB. A longer body comes from the connection, and what breaks there is the
    /// caller's.
    #[must_use]
    pub fn buffer_limit(mut self, bytes: usize) -> Self {
        self.settings.buffer_limit = bytes;
        self
    }

    /// Where the server says what became of a key, for the error of giving up: a URL, or a path on the request's
    /// host, with `{key}` in it. Default none.
    #[must_use]
    pub fn status_url(mut self, template: impl Into<String>) -> Self {
        self.settings.status_url = Some(template.into());
        self
    }

    /// Recognises a server's own way of saying "this key is being worked on" in a 409, besides those that
    /// [`in_flight`](crate::classify::in_flight) knows.
    #[must_use]
    pub fn in_flight_when(mut self, means: impl Fn(&Answer) -> bool + Send + Sync + 'static) -> Self {
        self.settings.in_flight = Some(Box::new(means));
        self
    }

    /// What an answer means for the next attempt: a function over its status, headers, and the first bytes of its body.
    /// Default [`classify::standard`]; there are [`classify::stripe`] and [`classify::aws`].
    ///
    /// ```
    /// use idem_client::classify::{self, Fate, Verdict};
    ///
    /// let client = idem_client::Client::builder().classify(|attempt| match attempt.status.as_u16() {
    ///     529 => Verdict::Retry(Fate::Unknown),
    ///     _ => classify::standard(attempt),
    /// });
    /// ```
    ///
    /// What an answer says about its key (`key-reused`, `effects-unknown`) holds also where the function lets it stand.
    #[must_use]
    pub fn classify(mut self, classify: impl Fn(&Answer) -> Verdict + Send + Sync + 'static) -> Self {
        self.settings.classify = Box::new(classify);
        self
    }

    /// Retries what Stripe's SDKs retry: [`classify::stripe`].
    #[must_use]
    pub fn stripe(self) -> Self {
        self.classify(classify::stripe)
    }

    /// Retries what AWS's SDKs retry: [`classify::aws`].
    #[must_use]
    pub fn aws(self) -> Self {
        self.classify(classify::aws)
    }

    /// Whether the key is sent as `"…"`, a string of a structured field, as the IETF draft has it. Off by default:
    /// servers that came before the draft take the quotes for part of the key.
    #[must_use]
    pub fn quoted_keys(mut self, quoted_keys: bool) -> Self {
        self.settings.quoted_keys = quoted_keys;
        self
    }

    /// The header that says `true` on a replay at this server, besides `Idempotency-Replayed` and `Idempotent-Replayed`.
    #[must_use]
    pub fn replay_header(mut self, name: HeaderName) -> Self {
        self.settings.replay_header = Some(name);
        self
    }

    /// A function that is told of each attempt and of what follows it. It is called on the request's way, so it must not
    /// block.
    #[must_use]
    pub fn on_attempt(mut self, observe: impl Fn(&AttemptReport<'_>) + Send + Sync + 'static) -> Self {
        self.settings.observer = Some(Box::new(observe));
        self
    }

    /// The builder of the HTTP client to send with, for TLS, proxies and pools of your own. This layer sets its redirect
    /// policy, its connect time-out and its retries; leave its other time-outs unset.
    #[must_use]
    pub fn http_builder(mut self, builder: reqwest::ClientBuilder) -> Self {
        self.http_builder = Some(builder);
        self
    }

    /// The HTTP client to send with, where there is one already; prefer [`http_builder`](Self::http_builder). It must not
    /// follow redirects in its own way, so give it [`redirect_policy`](crate::redirect_policy), and a `connect_timeout`,
    /// or a connection that never comes about counts as "may have happened". Leave its other time-outs and retries unset.
    #[must_use]
    pub fn http(mut self, client: reqwest::Client) -> Self {
        self.http = Some(client);
        self
    }

    /// A middleware below the retry layer: it runs on every attempt.
    #[must_use]
    pub fn middleware(mut self, middleware: impl Middleware) -> Self {
        self.middlewares.push(Arc::new(middleware));
        self
    }

    /// Builds the client.
    ///
    /// # Errors
    ///
    /// [`SettingError`] when a setting is out of its range, when the HTTP client follows redirects by itself, or when the
    /// TLS backend cannot be set up.
    pub fn build(mut self) -> Result<Client, SettingError> {
        let middlewares = std::mem::take(&mut self.middlewares);
        let given = (self.http.take(), self.http_builder.take());
        self.settings.has_edge = true;
        let connect_timeout = self.settings.limits.time_to_connect();
        let layer = self.build_layer()?;
        let http = match given {
            (Some(_), Some(_)) => {
                return Err(SettingError::new("`http` and `http_builder` must not both be set; use one".to_owned()));
            }
            (Some(http), None) if redirect::follows_by_itself(&http) => {
                return Err(SettingError::new(
                    "the HTTP client must not follow redirects by itself, which turns a POST into a GET; use \
                     `redirect(idem_client::redirect_policy())` on its builder, or `http_builder`"
                        .to_owned(),
                ));
            }
            (Some(http), None) => http,
            // One layer retries, and it is this one: reqwest's own small retries are switched off.
            (None, builder) => builder
                .unwrap_or_default()
                .redirect(crate::redirect_policy())
                .retry(reqwest::retry::never())
                .connect_timeout(connect_timeout)
                .build()
                .map_err(|error| SettingError::new(format!("the HTTP client cannot be set up: {error}")))?,
        };
        let stack = ClientBuilder::new(http).with(layer.clone());
        let stack = middlewares.into_iter().fold(stack, ClientBuilder::with_arc);
        Ok(Client { http: stack.with(NetworkEdge).build(), layer })
    }

    /// Builds the layer alone, for a middleware stack of your own: `ClientBuilder::new(http).with(layer)`. The key is
    /// then the header's, and [`Overrides`] go among the request's extensions. [`Self::http`], [`Self::http_builder`] and
    /// [`Self::middleware`] have no effect. Give the HTTP client [`redirect_policy`](crate::redirect_policy) and a connect
    /// time-out, and end the stack with [`NetworkEdge`]; a client that follows redirects by itself is found at run time.
    ///
    /// # Errors
    ///
    /// [`SettingError`] when a setting is out of its range.
    pub fn build_layer(self) -> Result<Layer, SettingError> {
        self.settings.limits.check()?;
        within("buffer_limit", self.settings.buffer_limit, 0, 1024 * 1024 * 1024)?;
        if let Some(template) = &self.settings.status_url
            && !template.contains("{key}")
        {
            return Err(SettingError::new(format!("`status_url` must have `{{key}}` in it; it is `{template}`")));
        }
        let budgets = Budgets::new(self.budget.0, self.budget.1)?;
        let breakers = Breakers::new(self.breaker.0, self.breaker.1)?;
        Ok(Layer::new(self.settings, budgets, breakers))
    }
}
