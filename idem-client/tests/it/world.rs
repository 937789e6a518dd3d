//! The state of the world as a product: whatever happens to the attempts of an operation, in whatever order, the error or
//! the answer, the journal and `pending()` say the same, and it is true.
//!
//! Each case is a sequence of up to four events, one for each attempt, over as many sends with the same key as it takes.
//! The server counts effects by key. What must be said follows from a small model, so that neither too little is said
//! nor too much: "it has not happened" exactly when no attempt can have reached the operation.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use http::Extensions;
use idem_client::{Client, FileJournal, Key, Reason, ResponseExt as _};
use reqwest::{Request, Response, Url};
use reqwest_middleware::{Middleware, Next};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Notify, Semaphore};

use crate::support::{Act, Answer, Directory, Server, answer};

/// What happens to one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    /// Carried out, or replayed, and answered.
    Good,
    /// Carried out; the answer is lost.
    Lost,
    /// Lost on the way there.
    LostBefore,
    /// Nobody listens.
    Refused,
    /// The connection is never made.
    SynSwallowed,
    /// The connection is made, its TLS handshake never ends.
    HandshakeHangs,
    /// A refusal from in front of the operation.
    InFront(u16),
    /// "This key was used with another request", as different servers say it.
    Mismatch(u16),
    Overloaded,
    Unavailable,
    InFlight,
    /// The server's handler left its transaction.
    EffectsUnknown,
    MiddlewareFailsBefore,
    MiddlewareFailsAfter,
    /// A middleware below fails over a lost answer, with an error of its own.
    MiddlewareFailsOverLoss,
    /// The caller goes away while the answer is awaited: carried out, and not.
    CancelledAfter,
    CancelledBefore,
    /// The process dies while the answer is awaited.
    Killed,
}

use Event::*;

pub(crate) const EVENTS: [Event; 23] = [
    Good,
    Lost,
    LostBefore,
    Refused,
    SynSwallowed,
    HandshakeHangs,
    InFront(400),
    InFront(401),
    InFront(410),
    InFront(422),
    Mismatch(400),
    Mismatch(409),
    Mismatch(422),
    Overloaded,
    Unavailable,
    InFlight,
    EffectsUnknown,
    MiddlewareFailsBefore,
    MiddlewareFailsAfter,
    MiddlewareFailsOverLoss,
    CancelledAfter,
    CancelledBefore,
    Killed,
];

impl Event {
    fn ends_without_an_outcome(self) -> bool {
        matches!(self, CancelledAfter | CancelledBefore | Killed)
    }

    fn problem(status: u16, name: &str) -> Answer {
        let body =
            format!(r#"{{"type":"https://shop.example/problems#{name}","title":"a problem","status":{status}}}"#);
        answer(status).header("content-type", "application/problem+json").body(body)
    }

    /// What the server does, and whether it has done it before.
    fn act(self, done: bool) -> Act {
        let created = || if done { answer(201).header("idempotency-replayed", "true") } else { answer(201) };
        match self {
            Good | MiddlewareFailsAfter => Act::Answer(created()),
            Lost | MiddlewareFailsOverLoss => Act::DropAfter,
            LostBefore => Act::DropBefore,
            InFront(status) => Act::Refuse(answer(status)),
            Mismatch(400) => {
                let body = r#"{"error":{"type":"idempotency_error","message":"keys can only be used with the same parameters"}}"#;
                Act::Refuse(answer(400).header("content-type", "application/json").body(body))
            }
            Mismatch(status) => Act::Refuse(Self::problem(status, "key-reused")),
            Overloaded => Act::Refuse(answer(429)),
            Unavailable => Act::Refuse(answer(503)),
            InFlight => Act::Refuse(Self::problem(409, "in-flight")),
            EffectsUnknown => Act::Answer(Self::problem(500, "effects-unknown").header("idempotency-replayed", "true")),
            CancelledAfter | Killed => Act::Never,
            CancelledBefore => Act::Hang,
            Refused | SynSwallowed | HandshakeHangs | MiddlewareFailsBefore => {
                unreachable!("{self:?} never gets to the server")
            }
        }
    }
}

/// Where the requests can go: to the server, or to places where nothing is ever sent.
pub(crate) struct World {
    server: Server,
    nobody: u16,
    swallowing: Swallowing,
    silent: u16,
    arrivals: Arc<Mutex<HashMap<String, Arc<Notify>>>>,
}

/// A listener whose queue is full: the kernel drops further connection attempts.
struct Swallowing {
    port: u16,
    _listener: tokio::net::TcpListener,
    _queued: Vec<TcpStream>,
}

impl Swallowing {
    async fn start() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let mut queued = Vec::new();
        while let Ok(stream) = tokio::time::timeout(Duration::from_millis(300), TcpStream::connect(address)).await {
            queued.push(stream.unwrap());
        }
        Self { port: address.port(), _listener: listener, _queued: queued }
    }
}

impl World {
    pub(crate) async fn start() -> Self {
        let arrivals: Arc<Mutex<HashMap<String, Arc<Notify>>>> = Arc::default();
        let (arriving, done) = (Arc::clone(&arrivals), Mutex::new(HashSet::new()));
        let server = Server::start(move |_, request| {
            let key = request.key().unwrap().to_owned();
            let event = from_header(request.header("x-event").unwrap());
            let mut done = done.lock().unwrap();
            let act = event.act(done.contains(&key));
            if event.ends_without_an_outcome()
                && let Some(arrival) = arriving.lock().unwrap().get(&key)
            {
                arrival.notify_one();
            }
            if !matches!(act, Act::Refuse(_) | Act::DropBefore | Act::Hang) {
                done.insert(key);
            }
            act
        })
        .await;
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let silent_port = silent.local_addr().unwrap().port();
        tokio::spawn(async move {
            let mut held = Vec::new();
            while let Ok((stream, _)) = silent.accept().await {
                held.push(stream);
            }
        });
        Self { server, nobody, swallowing: Swallowing::start().await, silent: silent_port, arrivals }
    }

    fn has_effect(&self, key: &Key) -> bool {
        self.server.effects().iter().any(|done| done == key.as_str())
    }
}

fn from_header(text: &str) -> Event {
    EVENTS.into_iter().find(|event| format!("{event:?}") == text).unwrap()
}

/// A middleware below the retry layer: sends each attempt where its event has it, and fails where it must.
struct Weather {
    events: Mutex<VecDeque<Event>>,
    met: Mutex<Vec<Event>>,
    nobody: u16,
    swallowing: u16,
    silent: u16,
    handshake_hangs: Arc<AtomicBool>,
}

/// A connector whose handshake never ends when it must not: this crate's tests have no TLS of their own, and what hangs
/// is the same part of the connection's making.
#[derive(Clone)]
struct Handshaking<S> {
    connector: S,
    hangs: Arc<AtomicBool>,
}

impl<S, Target> tower::Service<Target> for Handshaking<S>
where
    S: tower::Service<Target>,
    S::Future: Send + 'static,
    S::Response: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.connector.poll_ready(context)
    }

    fn call(&mut self, target: Target) -> Self::Future {
        let (connecting, hangs) = (self.connector.call(target), self.hangs.load(Ordering::SeqCst));
        Box::pin(async move {
            let connection = connecting.await?;
            if hangs {
                std::future::pending::<()>().await;
            }
            Ok(connection)
        })
    }
}

#[derive(Clone)]
struct Below(Arc<Weather>);

#[async_trait]
impl Middleware for Below {
    async fn handle(
        &self,
        mut request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> reqwest_middleware::Result<Response> {
        let event = self.0.events.lock().unwrap().pop_front().unwrap_or(Overloaded);
        self.0.met.lock().unwrap().push(event);
        let failed = || reqwest_middleware::Error::middleware(std::io::Error::other("the token service is down"));
        let mut to = |port| {
            *request.url_mut() = Url::parse(&format!("http://127.0.0.1:{port}/orders")).unwrap();
        };
        self.0.handshake_hangs.store(event == HandshakeHangs, Ordering::SeqCst);
        match event {
            MiddlewareFailsBefore => return Err(failed()),
            Refused => to(self.0.nobody),
            SynSwallowed => to(self.0.swallowing),
            HandshakeHangs => to(self.0.silent),
            _ => {}
        }
        request.headers_mut().insert("x-event", format!("{event:?}").parse().unwrap());
        let outcome = next.run(request, extensions).await;
        if matches!(event, MiddlewareFailsAfter | MiddlewareFailsOverLoss) { Err(failed()) } else { outcome }
    }
}

/// Where the client keeps its journal.
#[derive(Clone)]
pub(crate) enum Keeping {
    Nothing,
    File,
    #[cfg(feature = "postgres")]
    #[allow(dead_code, reason = "the tests with a database use it")]
    Postgres(idem_client::PostgresJournal),
}

/// What a client that is told everything that can be known would say.
#[derive(Default)]
struct Model {
    /// It may have happened, or has.
    may_have_happened: bool,
    /// What was known has died with the process.
    forgot: bool,
}

impl Model {
    fn meet(&mut self, event: Event) {
        match event {
            Refused | SynSwallowed | HandshakeHangs | MiddlewareFailsBefore | Overloaded | InFront(_) => {}
            _ => self.may_have_happened = true,
        }
    }
}

struct Case<'a> {
    world: &'a World,
    keeping: Keeping,
    key: Key,
    journal: PathBuf,
    weather: Arc<Weather>,
    client: Client,
    model: Model,
    name: String,
    _directory: Directory,
}

impl<'a> Case<'a> {
    fn start(world: &'a World, keeping: Keeping, events: &[Event]) -> Self {
        let directory = Directory::new();
        let weather = Arc::new(Weather {
            events: Mutex::new(events.iter().copied().collect()),
            met: Mutex::default(),
            nobody: world.nobody,
            swallowing: world.swallowing.port,
            silent: world.silent,
            handshake_hangs: Arc::default(),
        });
        let journal = directory.path("orders.journal");
        let client = client(&keeping, &journal, &weather);
        let (key, model, name) = (Key::random().for_operation("order"), Model::default(), format!("{events:?}"));
        world.arrivals.lock().unwrap().insert(key.to_string(), Arc::default());
        Self { world, keeping, key, journal, weather, client, model, name, _directory: directory }
    }

    /// Sends the operation again and again until its events are used up.
    async fn run(mut self) {
        loop {
            let left = self.weather.events.lock().unwrap().len();
            if left == 0 {
                break;
            }
            self.weather.met.lock().unwrap().clear();
            let request = self.client.post(self.world.server.url("/orders")).key(&self.key).body("one gift");
            // One attempt for each event, and none that a limit of one would forbid to wait.
            let sending = request.attempts(u32::try_from(left).unwrap().max(2)).send();
            let arrived = Arc::clone(&self.world.arrivals.lock().unwrap()[self.key.as_str()]);
            let outcome = tokio::select! {
                outcome = sending => Some(outcome),
                () = arrived.notified() => None,
            };
            let met = self.weather.met.lock().unwrap().clone();
            met.iter().for_each(|event| self.model.meet(*event));
            match outcome {
                Some(Ok(response)) => self.check_answer(*met.last().unwrap(), &response).await,
                Some(Err(error)) => self.check_error(*met.last().unwrap(), &error).await,
                None => self.check_listed(true).await,
            }
            if met.last() == Some(&Killed) {
                self.restart().await;
            }
        }
        let effects = self.world.server.effects();
        let rows = effects.iter().filter(|done| *done == self.key.as_str()).count();
        assert!(rows <= 1, "{}: {rows} rows", self.name);
    }

    async fn check_answer(&self, last: Event, response: &Response) {
        let may = self.model.may_have_happened;
        let settled = match last {
            Good => true,
            InFront(_) => !may,
            _ => false,
        };
        assert_eq!((response.settled(), response.may_have_happened()), (settled, may), "{}, {last:?}", self.name);
        self.never_denies_a_row(response.may_have_happened());
        self.check_listed(!settled).await;
        if last == Good {
            assert_eq!(response.status(), 201);
        }
    }

    async fn check_error(&self, last: Event, error: &idem_client::Error) {
        assert_eq!(error.may_have_happened(), self.model.may_have_happened, "{}, {last:?}: {error}", self.name);
        self.never_denies_a_row(error.may_have_happened());
        self.check_listed(error.may_have_happened()).await;
        let gave_up = error.gave_up().unwrap();
        assert_eq!(gave_up.may_have_happened(), error.may_have_happened());
        let text = error.to_string();
        assert_eq!(text.contains("it has not happened"), !error.may_have_happened(), "{text}");
        if last == EffectsUnknown {
            assert_eq!(gave_up.reason(), Reason::EffectsUnknown);
            assert!(text.contains("a person must look"), "{text}");
        }
        if matches!(last, MiddlewareFailsBefore | MiddlewareFailsAfter | MiddlewareFailsOverLoss) {
            assert_eq!(gave_up.reason(), Reason::Middleware);
        }
    }

    fn never_denies_a_row(&self, may_have_happened: bool) {
        // A client without a journal that was killed has nothing to know it from.
        if !self.model.forgot {
            assert!(may_have_happened || !self.world.has_effect(&self.key), "{}: it has happened", self.name);
        }
    }

    async fn check_listed(&self, listed: bool) {
        let listed = listed && !matches!(self.keeping, Keeping::Nothing);
        let pending = self.client.pending().await.unwrap();
        let there = pending.iter().filter(|record| record.key == self.key).count();
        assert_eq!(there, usize::from(listed), "{}: {pending:?}", self.name);
    }

    /// Another process: nothing is left but what is on the journal.
    async fn restart(&mut self) {
        if matches!(self.keeping, Keeping::Nothing) {
            self.model = Model { may_have_happened: false, forgot: true };
        }
        if matches!(self.keeping, Keeping::File) {
            let file = std::fs::File::open(&self.journal).unwrap();
            self.client = Client::builder().build().unwrap();
            while file.try_lock().is_err() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        self.client = client(&self.keeping, &self.journal, &self.weather);
        self.check_listed(true).await;
    }
}

fn client(keeping: &Keeping, journal: &std::path::Path, weather: &Arc<Weather>) -> Client {
    let hangs = Arc::clone(&weather.handshake_hangs);
    let handshaking = tower::layer::layer_fn(move |connector| Handshaking { connector, hangs: Arc::clone(&hangs) });
    let builder = Client::builder()
        .http_builder(reqwest::Client::builder().connector_layer(handshaking))
        .back_off(Duration::from_millis(1), Duration::from_millis(1))
        .connect_timeout(Duration::from_millis(400))
        .retry_budget(10.0, 10_000)
        .breaker(10_000, Duration::from_secs(1))
        .middleware(Below(Arc::clone(weather)));
    let builder = match keeping {
        Keeping::Nothing => builder,
        Keeping::File => builder.journal(FileJournal::open(journal).unwrap()),
        #[cfg(feature = "postgres")]
        Keeping::Postgres(journal) => builder.journal(journal.clone()),
    };
    builder.build().unwrap()
}

/// Runs the cases, many at a time: they mostly wait.
pub(crate) async fn run_all(keeping: Keeping, sequences: impl Iterator<Item = Vec<Event>>) -> usize {
    let world = Arc::new(World::start().await);
    let (places, mut cases) = (Arc::new(Semaphore::new(48)), tokio::task::JoinSet::new());
    let mut count = 0;
    for events in sequences {
        let place = Arc::clone(&places).acquire_owned().await.unwrap();
        let (world, keeping) = (Arc::clone(&world), keeping.clone());
        cases.spawn(async move {
            let _place = place;
            Case::start(&world, keeping, &events).run().await;
        });
        count += 1;
        while let Some(ended) = cases.try_join_next() {
            ended.unwrap();
        }
    }
    while let Some(ended) = cases.join_next().await {
        ended.unwrap();
    }
    count
}

/// The sequences of a length, by number: the digits of the number name the events.
pub(crate) fn sequence(mut number: usize, length: u32) -> Vec<Event> {
    let next = |_| {
        let event = EVENTS[number % EVENTS.len()];
        number /= EVENTS.len();
        event
    };
    (0..length).map(next).collect()
}

pub(crate) fn all_of(length: u32) -> impl Iterator<Item = Vec<Event>> {
    (0..EVENTS.len().pow(length)).map(move |number| sequence(number, length))
}

/// So many of a length, the same ones in each run, spread over all of them.
pub(crate) fn some_of(length: u32, many: usize) -> impl Iterator<Item = Vec<Event>> {
    let mut random = fastrand::Rng::with_seed(u64::from(length));
    (0..many).map(move |_| sequence(random.usize(0..EVENTS.len().pow(length)), length))
}
