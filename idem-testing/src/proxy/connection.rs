//! Forwarding the messages of one connection, and striking.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::counts::Counts;
use super::fault::{Action, Direction, Fault, Met, Place};
use super::message::{Framing, Message};
use super::session::Session;
use super::statement::without_literals;
use super::word::{Word, frame};

/// How long a server may take to complete what it was asked for before a cut.
const COMPLETION: Duration = Duration::from_secs(10);

/// No statement: the server fails the transaction that it is in, if any.
const FAIL: &str = "the server was lost";

/// What another server knows of the session: no transaction, no settings, no locks.
const BEGIN_ANEW: &str = "ROLLBACK; RESET ALL; SELECT pg_advisory_unlock_all()";

type Reader = Box<dyn AsyncRead + Send + Unpin>;
type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// What the handle and the connections of a proxy share.
#[derive(Debug)]
pub(super) struct Shared {
    upstream: PgConnectOptions,
    state: Mutex<State>,
    /// Counts the orders to cut all connections.
    cuts: watch::Sender<u64>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    counts: Counts,
    answers: u64,
    armed: Option<Fault>,
    /// The counts when the fault was injected.
    since: (Counts, u64),
    met: Option<Met>,
    stalled: u32,
    partitioned: bool,
    latency: Duration,
    recorded: Option<Vec<String>>,
}

/// What to do with a message.
struct Verdict {
    action: Option<Action>,
    latency: Duration,
}

impl Shared {
    pub(super) fn new(upstream: PgConnectOptions) -> Self {
        Self { upstream, state: Mutex::default(), cuts: watch::Sender::new(0) }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn cut_connections(&self) {
        self.cuts.send_modify(|count| *count += 1);
    }
}

impl State {
    pub(super) fn arm(&mut self, fault: Fault) {
        self.armed = Some(fault);
        self.met = None;
        self.since = (self.counts, self.answers);
    }

    pub(super) fn disarm(&mut self) {
        self.armed = None;
    }

    pub(super) fn met(&self) -> Option<Met> {
        self.met.clone()
    }

    pub(super) fn heal(&mut self) {
        self.partitioned = false;
    }

    pub(super) fn is_stalling(&self) -> bool {
        self.stalled > 0
    }

    pub(super) fn set_latency(&mut self, latency: Duration) {
        self.latency = latency;
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn record(&mut self) {
        self.recorded = Some(Vec::new());
    }

    pub(super) fn recorded(&self) -> Vec<String> {
        self.recorded.clone().unwrap_or_default()
    }

    fn frontend(&mut self, session: &mut Session, message: &Message) -> Verdict {
        let begins = session.frontend(message, &mut self.counts);
        if let Some(recorded) = &mut self.recorded {
            if begins || recorded.is_empty() {
                recorded.push(String::new());
            }
            if let Some(line) = recorded.last_mut() {
                let messages = line.split(": ").next().unwrap_or_default();
                *line = format!("{messages} {}: {}", message.frontend_name(), without_literals(&session.statement))
                    .trim_start()
                    .to_owned();
            }
        }
        let passed = self.counts - self.since.0;
        let struck = match self.armed.map(|fault| fault.place) {
            Some(Place::Frontend(n)) => passed.frontend_messages == n,
            Some(Place::RoundTrip(n)) => begins && passed.round_trips == n,
            _ => false,
        };
        let action = struck.then(|| self.strike(session, Direction::Frontend, message.frontend_name())).flatten();
        Verdict { action, latency: if begins { self.latency } else { Duration::ZERO } }
    }

    fn backend(&mut self, session: &mut Session, message: &Message) -> Verdict {
        let begins = session.backend(message, &mut self.counts);
        self.answers += u64::from(begins);
        let struck = match self.armed.map(|fault| fault.place) {
            Some(Place::Backend(n)) => self.counts.backend_messages - self.since.0.backend_messages == n,
            Some(Place::Answer(n)) => begins && self.answers - self.since.1 == n,
            _ => false,
        };
        let action = struck.then(|| self.strike(session, Direction::Backend, message.backend_name())).flatten();
        Verdict { action, latency: Duration::ZERO }
    }

    fn strike(&mut self, session: &Session, direction: Direction, message: &'static str) -> Option<Action> {
        let round_trip = self.counts.round_trips - self.since.0.round_trips;
        let statement = without_literals(&session.statement);
        self.met = Some(Met { direction, message, statement, round_trip, failure: None });
        Some(self.armed.take()?.action)
    }

    fn failed(&mut self, error: &sqlx::Error) {
        if let Some(met) = &mut self.met {
            met.failure = Some(error.to_string());
        }
    }
}

/// Serves one client until either side hangs up or a fault cuts the connection.
pub(super) async fn serve(mut client: UnixStream, shared: Arc<Shared>) {
    if shared.state().partitioned {
        return;
    }
    shared.state().counts.connections += 1;
    let mut cuts = shared.cuts.subscribe();
    let mut framing = Framing::of_client();
    let Ok(startup) = greet(&mut client, &mut framing).await else { return };
    let Ok((server_reader, server_writer)) = connect(&shared.upstream).await else { return };
    let (client_reader, client_writer) = client.into_split();
    let connection = Arc::new(Connected {
        shared,
        session: Mutex::default(),
        client: client_writer.into(),
        server: server_writer.into(),
        muted: AtomicBool::new(false),
        refusal: Mutex::default(),
    });
    let mut directions = JoinSet::new();
    directions.spawn({
        let connection = Arc::clone(&connection);
        async move { connection.forward_frontend(startup, framing, client_reader).await }
    });
    directions.spawn(async move { connection.forward_backend(server_reader).await });
    directions.spawn(async move { cuts.changed().await.map_err(io::Error::other) });
    // The others are aborted, and all sockets closed, when the set is dropped.
    let _ = directions.join_next().await;
}

/// Declines encryption, which would hide the messages, until the client begins its session.
async fn greet(client: &mut UnixStream, framing: &mut Framing) -> io::Result<Message> {
    loop {
        match framing.next() {
            Some(message) if message.asks_for_encryption() => client.write_all(b"N").await?,
            Some(message) => return Ok(message),
            None if client.read_buf(framing.buffer()).await? == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            None => {}
        }
    }
}

async fn connect(upstream: &PgConnectOptions) -> io::Result<(Reader, Writer)> {
    let (host, port) = (upstream.get_host(), upstream.get_port());
    let directory = upstream.get_socket().map(|path| path.display().to_string());
    match directory.or_else(|| host.starts_with('/').then(|| host.to_owned())) {
        Some(directory) => {
            let stream = UnixStream::connect(format!("{directory}/.s.PGSQL.{port}")).await?;
            let (reader, writer) = stream.into_split();
            Ok((Box::new(reader), Box::new(writer)))
        }
        None => {
            let stream = TcpStream::connect((host, port)).await?;
            stream.set_nodelay(true)?;
            let (reader, writer) = stream.into_split();
            Ok((Box::new(reader), Box::new(writer)))
        }
    }
}

/// One client's connection to the server.
struct Connected {
    shared: Arc<Shared>,
    session: Mutex<Session>,
    client: tokio::sync::Mutex<OwnedWriteHalf>,
    server: tokio::sync::Mutex<Writer>,
    /// Answers are dropped, and the connection is cut once the server has completed.
    muted: AtomicBool,
    refusal: Mutex<Option<Refusal>>,
}

/// A round trip that is kept from the server, which fails in its place.
#[derive(Clone, Copy)]
struct Refusal {
    word: Word,
    /// Whether the client has the word already.
    said: bool,
}

impl Connected {
    fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refusal(&self) -> MutexGuard<'_, Option<Refusal>> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn to_client(&self, bytes: &[u8]) -> io::Result<()> {
        self.client.lock().await.write_all(bytes).await
    }

    async fn to_server(&self, bytes: &[u8]) -> io::Result<()> {
        self.server.lock().await.write_all(bytes).await
    }

    async fn forward_frontend(
        &self,
        startup: Message,
        mut framing: Framing,
        mut client: OwnedReadHalf,
    ) -> io::Result<()> {
        let mut outgoing = BytesMut::new();
        let mut startup = Some(startup);
        let mut discards = false;
        loop {
            while let Some(message) = startup.take().or_else(|| framing.next()) {
                let verdict = self.shared.state().frontend(&mut self.session(), &message);
                if discards && message.kind != b'S' {
                    continue;
                }
                discards = false;
                if !verdict.latency.is_zero() {
                    delay(verdict.latency).await;
                }
                if verdict.action.is_some() {
                    self.to_server(&outgoing.split()).await?;
                }
                match verdict.action {
                    Some(Action::Cut) => return Ok(()),
                    Some(Action::Partition) => return self.partition(),
                    Some(Action::CutAfter) => return self.complete_unheard(&message).await,
                    Some(Action::Answer(word)) if !self.session().established || message.kind == b'X' => {
                        return self.to_client(&word.bytes()).await;
                    }
                    Some(Action::Answer(word)) => {
                        self.refuse(word, &message).await?;
                        discards = !matches!(message.kind, b'Q' | b'S');
                        continue;
                    }
                    Some(Action::Stall(time)) => self.stall(time).await,
                    Some(Action::KillBackend) => self.kill_backend_or_say_why().await,
                    None => {}
                }
                outgoing.extend_from_slice(&message.bytes);
            }
            self.to_server(&outgoing.split()).await?;
            if client.read_buf(framing.buffer()).await? == 0 {
                return Ok(());
            }
        }
    }

    /// Delivers a last message and gives the other direction time to see the server complete.
    async fn complete_unheard(&self, message: &Message) -> io::Result<()> {
        self.muted.store(true, Ordering::Release);
        self.to_server(&message.bytes).await?;
        if matches!(message.kind, b'Q' | b'S') {
            tokio::time::sleep(COMPLETION).await;
        }
        Ok(())
    }

    /// Lets the server fail instead of doing what the round trip asks for: its error comes after its answers to what it
    /// was sent before, in the right place for the word.
    async fn refuse(&self, word: Word, message: &Message) -> io::Result<()> {
        *self.refusal() = Some(Refusal { word, said: false });
        // Nothing of this name is prepared, because it is no statement.
        let parse = format!("idem_proxy_refusal\0{FAIL}\0\0\0");
        let mut failure = frame(b'P', parse.as_bytes());
        if matches!(message.kind, b'Q' | b'S') {
            failure.extend_from_slice(&frame(b'S', b""));
        }
        self.to_server(&failure).await
    }

    async fn forward_backend(&self, mut server: Reader) -> io::Result<()> {
        let mut framing = Framing::of_server();
        let mut outgoing = BytesMut::new();
        while server.read_buf(framing.buffer()).await? > 0 {
            while let Some(mut message) = framing.next() {
                if self.muted.load(Ordering::Acquire) {
                    return complete(server, framing, message).await;
                }
                let verdict = self.shared.state().backend(&mut self.session(), &message);
                let refusal = *self.refusal();
                if verdict.action.is_some() || refusal.is_some() {
                    self.to_client(&outgoing.split()).await?;
                }
                if let Some(refusal) = refusal.filter(|_| matches!(message.kind, b'E' | b'Z')) {
                    match self.say_refusal(refusal, message, &mut server, &mut framing).await? {
                        Said::Nothing => continue,
                        Said::Everything => return Ok(()),
                        Said::Until(end) => message = end,
                    }
                }
                match verdict.action {
                    Some(Action::Partition) => return self.partition(),
                    Some(Action::Cut) => return complete(server, framing, message).await,
                    Some(Action::CutAfter) => return self.to_client(&message.bytes).await,
                    Some(Action::Answer(word)) => match self.deny(word, message, &mut server, &mut framing).await? {
                        Some(end) => message = end,
                        None => return Ok(()),
                    },
                    Some(Action::Stall(time)) => self.stall(time).await,
                    Some(Action::KillBackend) => self.kill_backend_or_say_why().await,
                    None => {}
                }
                outgoing.extend_from_slice(&message.bytes);
            }
            self.to_client(&outgoing.split()).await?;
        }
        Ok(())
    }

    /// Says the word of a refused round trip in the place of the server's error.
    async fn say_refusal(
        &self,
        refusal: Refusal,
        message: Message,
        server: &mut Reader,
        framing: &mut Framing,
    ) -> io::Result<Said> {
        let Refusal { word, said } = refusal;
        if !said {
            self.to_client(&word.bytes()).await?;
            if word.closes() {
                return Ok(Said::Everything);
            }
        }
        if message.kind == b'E' {
            *self.refusal() = Some(Refusal { word, said: true });
            return Ok(Said::Nothing);
        }
        *self.refusal() = None;
        if word.loses_session() {
            return Ok(Said::Until(self.ask(BEGIN_ANEW, server, framing).await?));
        }
        Ok(Said::Until(message))
    }

    /// Drops the server's answer, says the word instead of it, and brings the session into the state of which the word
    /// speaks. The message that ends the answer, if the connection stays open.
    async fn deny(
        &self,
        word: Word,
        message: Message,
        server: &mut Reader,
        framing: &mut Framing,
    ) -> io::Result<Option<Message>> {
        let established = self.session().established;
        let completed = !established || self.swallow(message, server, framing).await?;
        self.to_client(&word.bytes()).await?;
        if word.closes() || !established || !completed {
            return Ok(None);
        }
        let state = if word.loses_session() { BEGIN_ANEW } else { FAIL };
        self.ask(state, server, framing).await.map(Some)
    }

    /// Reads to the end of an answer. False if the server does not end it.
    async fn swallow(&self, mut message: Message, server: &mut Reader, framing: &mut Framing) -> io::Result<bool> {
        let swallowed = async {
            while message.kind != b'Z' {
                if message.kind == b'G' {
                    self.to_server(&frame(b'f', b"the server was lost\0")).await?;
                }
                message = next(server, framing).await?;
                self.shared.state().backend(&mut self.session(), &message);
            }
            Ok(true)
        };
        tokio::time::timeout(COMPLETION, swallowed).await.unwrap_or(Ok(false))
    }

    /// Sends a query of the proxy's own; the message that ends its answer.
    async fn ask(&self, query: &str, server: &mut Reader, framing: &mut Framing) -> io::Result<Message> {
        self.to_server(&frame(b'Q', format!("{query}\0").as_bytes())).await?;
        loop {
            let message = next(server, framing).await?;
            if message.kind == b'Z' {
                self.session().backend(&message, &mut Counts::default());
                return Ok(message);
            }
        }
    }

    fn partition(&self) -> io::Result<()> {
        self.shared.state().partitioned = true;
        self.shared.cut_connections();
        Ok(())
    }

    async fn stall(&self, time: Duration) {
        let _stalling = Stalling::begin(&self.shared);
        tokio::time::sleep(time).await;
    }

    async fn kill_backend_or_say_why(&self) {
        if let Err(error) = self.kill_backend().await {
            self.shared.state().failed(&error);
        }
    }

    /// Ends the server's process and waits until it is gone.
    async fn kill_backend(&self) -> Result<(), sqlx::Error> {
        let Some(backend) = self.session().backend else { return Ok(()) };
        let mut side = self.shared.upstream.connect().await?;
        sqlx::query("SELECT pg_terminate_backend($1)").bind(backend).execute(&mut side).await?;
        let select = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)";
        while sqlx::query_scalar(select).bind(backend).fetch_one(&mut side).await? {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        side.close().await
    }
}

/// What the client heard of a refusal.
enum Said {
    /// The word, or nothing yet; the rest comes with the next message.
    Nothing,
    /// The last that this connection says.
    Everything,
    /// All but the message that ends the answer.
    Until(Message),
}

async fn next(server: &mut Reader, framing: &mut Framing) -> io::Result<Message> {
    loop {
        if let Some(message) = framing.next() {
            return Ok(message);
        }
        if server.read_buf(framing.buffer()).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Drops what the server says until it has completed what it was asked for.
async fn complete(mut server: Reader, mut framing: Framing, mut message: Message) -> io::Result<()> {
    let completed = async {
        while message.kind != b'Z' {
            message = match framing.next() {
                Some(next) => next,
                None if server.read_buf(framing.buffer()).await? > 0 => continue,
                None => return Ok(()),
            };
        }
        Ok(())
    };
    tokio::time::timeout(COMPLETION, completed).await.unwrap_or(Ok(()))
}

/// Counts a message that is held back, also when its connection is cut meanwhile.
struct Stalling<'a>(&'a Shared);

impl<'a> Stalling<'a> {
    fn begin(shared: &'a Shared) -> Self {
        shared.state().stalled += 1;
        Self(shared)
    }
}

impl Drop for Stalling<'_> {
    fn drop(&mut self) {
        self.0.state().stalled -= 1;
    }
}

/// The runtime's timer is exact to a millisecond or two, which is too coarse to add one.
async fn delay(time: Duration) {
    let _ = tokio::task::spawn_blocking(move || std::thread::sleep(time)).await;
}
