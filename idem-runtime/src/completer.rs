//! A client that never comes back must not leave a charged customer without an order: abandoned operations are sent
//! through the application's own router again.

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::Body;
use futures_util::future::join_all;
use http::{HeaderValue, Request};
use sqlx::Row;
use tokio::time::timeout;
use tower_service::Service;

use crate::background::{AsyncRound, Background, Round};
use crate::error::Error;
use crate::idempotency::Idempotency;
use crate::resend;
use crate::scope::decode;

/// Marks a request that the [completer](Idempotency::completer) sends, as an extension of it.
///
/// Credentials are not stored, so the application's authentication must accept this in their place: it cannot come from the
/// network.
///
/// ```
/// # use axum::{extract::FromRequestParts, http::{StatusCode, request::Parts}};
/// # use idem_runtime::Recovered;
/// # struct User { id: i64 }
/// # impl<S: Sync> FromRequestParts<S> for User {
/// #     type Rejection = StatusCode;
/// async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, StatusCode> {
///     if let Some(recovered) = parts.extensions.get::<Recovered>() {
///         let id = recovered.scope().parse().map_err(|_| StatusCode::UNAUTHORIZED)?; // `scope = user.id`
///         return Ok(User { id });
///     }
///     // … the token in the request …
/// #   Err(StatusCode::UNAUTHORIZED)
/// }
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Recovered {
    scope: String,
    parts: Vec<String>,
    /// The reason for which the claim has refused this request.
    refused: Arc<OnceLock<String>>,
}

impl Recovered {
    fn new(scope: &str) -> Self {
        let parts = decode(scope).unwrap_or_default();
        Self { scope: scope.to_owned(), parts, refused: Arc::default() }
    }

    /// What the attribute's scope was: the text of a string, a number or a `Uuid`. Of a tuple the text as it is stored; see
    /// [`parts`](Self::parts). Of `scope = global`, `(global)`.
    #[must_use]
    pub fn scope(&self) -> &str {
        match self.parts.as_slice() {
            [one] => one,
            _ => &self.scope,
        }
    }

    /// The parts of a tuple as texts, one for any other scope, none for `scope = global`.
    #[must_use]
    pub fn parts(&self) -> &[String] {
        &self.parts
    }

    /// Whether a request that is sent again belongs to `scope`; otherwise it runs nothing, and the operation is for a person.
    pub(crate) fn check(&self, scope: &str) -> Result<(), Error> {
        if scope == self.scope {
            return Ok(());
        }
        let problem = "must be that of the operation that is sent again; accept `Recovered` in your authentication";
        let _ = self.refused.set(format!("the scope of the request {problem}"));
        Err(Error::InvalidScope { problem })
    }
}

/// A task that completes abandoned operations, started by [`Idempotency::completer`]. Dropping the handle leaves it running.
#[derive(Debug)]
pub struct Completer(Background);

impl Completer {
    /// How many operations it has sent again so far.
    #[must_use]
    pub fn resent(&self) -> u64 {
        self.0.total()
    }

    /// Stops after the batch at hand and returns how many operations were sent again in all.
    pub async fn stop(self) -> u64 {
        self.0.stop().await
    }
}

impl Idempotency {
    /// Starts the completer over the application's own router. Any number of nodes may run one: they skip each other's rows.
    ///
    /// A multi-step operation whose lease has run out or was given back is sent again: not before its first lease is over,
    /// since the client's own retry comes first; then with pauses of 1 s, doubling up to 5 min, with jitter. After
    /// [`recovery_attempts`](crate::Builder::recovery_attempts) it is marked as failed, for a person: see
    /// [`failed_operations`](Self::failed_operations). A handler that takes longer than the [`lease`](crate::Builder::lease) goes
    /// on by itself, and the completer with the next operation. The request carries [`Recovered`] as an extension.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    #[must_use = "the handle stops the completer and tells what it has done"]
    pub fn completer(&self, router: Router) -> Completer {
        let interval = self.settings().recovery_interval;
        Completer(Background::spawn("completer", interval, Recovery { idempotency: self.clone(), router }))
    }
}

struct Recovery {
    idempotency: Idempotency,
    router: Router,
}

/// An abandoned operation that this node has reserved.
struct Due {
    scope: String,
    key: String,
    request: Vec<u8>,
    recoveries: i32,
}

const NOT_ENDED: &str = "the last attempt to complete it did not end";

/// How many are sent at once.
const BATCH: i64 = 8;

impl AsyncRound for Recovery {
    async fn round(&mut self) -> Result<Round, Error> {
        let due = self.reserve().await?;
        let count = due.len() as u64;
        join_all(due.iter().map(|due| self.recover(due))).await.into_iter().collect::<Result<Vec<()>, Error>>()?;
        Ok(if count == BATCH as u64 { Round::More(count) } else { Round::Done(count) })
    }
}

impl Recovery {
    /// A reservation is a pause until the next one: a node that dies here costs time and nothing else.
    async fn reserve(&self) -> Result<Vec<Due>, Error> {
        let idempotency = &self.idempotency;
        let connection = idempotency.connection().await?;
        let reserve = || idempotency.query(&idempotency.statements().reserve_abandoned).bind(BATCH);
        let reserved = idempotency.execute_returning(connection, reserve).await;
        let rows = reserved.map_err(|error| idempotency.not_executed(error))?;
        let due = rows.iter().map(|row| {
            Ok(Due {
                scope: row.try_get("scope")?,
                key: row.try_get("key")?,
                request: row.try_get("request")?,
                recoveries: row.try_get("recoveries")?,
            })
        });
        due.collect::<sqlx::Result<_>>().map_err(Error::Database)
    }

    async fn recover(&self, due: &Due) -> Result<(), Error> {
        let most = i32::try_from(self.idempotency.settings().recovery_attempts).unwrap_or(i32::MAX);
        let failure = if due.recoveries > most {
            Some(NOT_ENDED.to_owned())
        } else {
            let recovered = Recovered::new(&due.scope);
            let refused = Arc::clone(&recovered.refused);
            let answer = self.send(due, recovered).await;
            refused.get().cloned().or_else(|| (due.recoveries == most).then_some(answer))
        };
        match failure {
            Some(failure) => self.idempotency.fail_operation(&due.scope, &due.key, &failure).await,
            None => Ok(()),
        }
    }

    /// What the application answered, for the person who reads it if this was the last attempt.
    async fn send(&self, due: &Due, recovered: Recovered) -> String {
        let Some(mut request) = self.request(due) else {
            return "the stored request must be one that this crate wrote".to_owned();
        };
        request.extensions_mut().insert(recovered);
        let mut router = self.router.clone();
        // A panic of the handler must not end the completer.
        let sent = tokio::spawn(async move { router.call(request).await });
        // A handler that never ends must not keep the others waiting. It goes on, and its lease keeps the next one away.
        let Ok(sent) = timeout(self.idempotency.settings().lease, sent).await else {
            return NOT_ENDED.to_owned();
        };
        match sent {
            Ok(Ok(response)) => format!("the last answer was {}", response.status()),
            Ok(Err(never)) => match never {},
            Err(error) => {
                format!("the last attempt ended with a {}", if error.is_panic() { "panic" } else { "shutdown" })
            }
        }
    }

    fn request(&self, due: &Due) -> Option<Request<Body>> {
        let mut request = resend::decode(&due.request)?;
        let quoted = format!("\"{}\"", due.key.replace('\\', "\\\\").replace('"', "\\\""));
        let header = self.idempotency.settings().header.clone();
        request.headers_mut().insert(header, HeaderValue::from_str(&quoted).ok()?);
        Some(request)
    }
}
