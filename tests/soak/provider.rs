//! Another system that takes money, honours idempotency keys and is not to be relied upon.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Path as Segments, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use tokio::net::UnixListener;

use crate::messages::Received;

#[derive(Debug, Clone)]
pub(crate) struct Provider {
    socket: PathBuf,
    books: Arc<Mutex<Books>>,
}

#[derive(Debug)]
struct Books {
    random: fastrand::Rng,
    calls: u64,
    /// What was answered to each key.
    answers: HashMap<String, Charge>,
    /// How often each operation was charged.
    charges: HashMap<u64, u64>,
    received: Received,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct ChargeRequest {
    pub(crate) operation: u64,
    pub(crate) decline: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Charge {
    pub(crate) reference: String,
    pub(crate) declined: bool,
}

impl Provider {
    pub(crate) fn start(directory: &Path, seed: u64) -> io::Result<Self> {
        let random = fastrand::Rng::with_seed(seed ^ 0x70);
        let books =
            Books { random, calls: 0, answers: HashMap::new(), charges: HashMap::new(), received: Received::default() };
        let provider = Self { socket: socket(directory), books: Arc::new(Mutex::new(books)) };
        let router = Router::new()
            .route("/charges", post(charge))
            .route("/messages/{operation}/{topic}", post(receive))
            .with_state(provider.clone());
        let listener = UnixListener::bind(&provider.socket)?;
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(provider)
    }

    pub(crate) fn charges(&self) -> HashMap<u64, u64> {
        self.books.lock().expect("no panic").charges.clone()
    }

    /// What has come of messages.
    pub(crate) fn received(&self) -> Received {
        self.books.lock().expect("no panic").received.clone()
    }

    /// Falsifies what has come.
    pub(crate) fn forge(&self, forge: impl FnOnce(&mut Received)) {
        forge(&mut self.books.lock().expect("no panic").received);
    }

    /// How often it was called, and how many keys it has answered.
    pub(crate) fn calls(&self) -> (u64, usize) {
        let books = self.books.lock().expect("no panic");
        (books.calls, books.answers.len())
    }
}

pub(crate) fn socket(directory: &Path) -> PathBuf {
    directory.join("provider.sock")
}

async fn charge(
    State(provider): State<Provider>,
    headers: HeaderMap,
    Json(request): Json<ChargeRequest>,
) -> Result<Json<Charge>, StatusCode> {
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok()).ok_or(StatusCode::BAD_REQUEST)?;
    let (pause, before, after) = {
        let random = &mut provider.books.lock().expect("no panic").random;
        (random.u64(..20), random.u8(..100) < 3, random.u8(..100) < 3)
    };
    tokio::time::sleep(Duration::from_millis(pause)).await;
    if before {
        return Err(StatusCode::SERVICE_UNAVAILABLE);
    }
    let answer = provider.books.lock().expect("no panic").charge(key, request);
    if after { Err(StatusCode::INTERNAL_SERVER_ERROR) } else { Ok(Json(answer)) }
}

/// A receiver of messages that fails before and after it has taken one, is slow, and hangs now and then.
async fn receive(
    State(provider): State<Provider>,
    Segments((operation, topic)): Segments<(u64, String)>,
    headers: HeaderMap,
) -> StatusCode {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (pause, before, after, hangs) = {
        let random = &mut provider.books.lock().expect("no panic").random;
        let pause = if topic == "slow" { random.u64(..300) } else { random.u64(..10) };
        (pause, random.u8(..100) < 2, random.u8(..100) < 2, random.u16(..2_000) == 0)
    };
    if before {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    let group = Some(header("group")).filter(|group| !group.is_empty());
    provider.books.lock().expect("no panic").received.receive(operation, header("idempotency-key"), group);
    tokio::time::sleep(if hangs { Duration::from_secs(20) } else { Duration::from_millis(pause) }).await;
    if after { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::OK }
}

impl Books {
    fn charge(&mut self, key: &str, request: ChargeRequest) -> Charge {
        self.calls += 1;
        if let Some(answer) = self.answers.get(key) {
            return answer.clone();
        }
        let answer = Charge { reference: format!("ch_{}", self.answers.len()), declined: request.decline };
        self.answers.insert(key.to_owned(), answer.clone());
        if !request.decline {
            *self.charges.entry(request.operation).or_default() += 1;
        }
        answer
    }
}
