//! The relay's task: it takes, settles, looks and sleeps; it never waits for a delivery.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, select_all};
use sqlx::Row;
use sqlx::postgres::PgRow;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::delivery::{Landed, deliver, storable};
use super::doorbell::Doorbell;
use super::routes::{Places, Routes};
use super::search::Search;
use super::transaction::{Transaction, rows};
use crate::error::Error;
use crate::idempotency::Idempotency;
use crate::outbox::message::Message;

/// How long a relay looks for more at short intervals before it sleeps, which costs a commit and makes writers notify.
const LINGER: Duration = Duration::from_millis(30);

/// The pause between two looks while it lingers, and the first one of a sleep: they double up to the relay's interval.
const SHORT_PAUSE: Duration = Duration::from_millis(3);

/// How long a message that was under way when a relay died is tried alone, and how long it waits to be.
const ALONE: Duration = Duration::from_secs(1);

/// How often a relay looks for messages that wait for nothing.
const STRANDED: Duration = Duration::from_secs(60);

/// How many more messages than there are places a relay looks at where groups are crowded.
const CROWD: i32 = 1_000;

/// The pauses after an error: the first, doubling to the last.
const FIRST_TROUBLE: Duration = Duration::from_millis(50);
const LAST_TROUBLE: Duration = Duration::from_secs(1);

pub(super) struct Engine {
    idempotency: Idempotency,
    routes: Routes,
    doorbell: Doorbell,
    stopped: watch::Receiver<bool>,
    delivered: Arc<AtomicU64>,
    identity: Option<Identity>,
    flights: JoinSet<Landed>,
    /// The messages that are under way.
    flying: HashSet<i64>,
    /// What has ended and is not settled.
    landed: Vec<Landed>,
    /// What the database refuses to settle.
    refused: Vec<Landed>,
    pace: Pace,
    search: Search,
    suspects: Suspects,
    /// Messages may have been taken that the relay does not know of.
    adopt: bool,
    /// The last look met messages that wait for others of their group.
    crowded: bool,
}

enum Event {
    Landed(Option<Landed>),
    Rung,
    Poll,
    Time,
}

/// The relay's row.
#[derive(Clone, Copy)]
struct Identity {
    id: i64,
    /// Whether the database stores every text.
    utf8: bool,
    /// By our clock, when others may take over what is under way.
    expires: Instant,
    renew: Instant,
    look_for_stranded: Instant,
}

struct Pace {
    /// There may be something to take.
    look: bool,
    quiet_since: Instant,
    next_poll: Instant,
    pause: Duration,
    /// Writers notify.
    asleep: bool,
}

#[derive(Default)]
struct Suspects {
    seen: bool,
    /// Since when nothing new is begun, so that one can be alone.
    clearing_since: Option<Instant>,
    /// The one that is under way.
    tried: Option<(i64, Instant)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Want {
    Nothing,
    Messages,
    Suspect,
}

impl Engine {
    pub(super) fn new(
        idempotency: Idempotency,
        routes: Routes,
        doorbell: Doorbell,
        stopped: watch::Receiver<bool>,
        delivered: Arc<AtomicU64>,
    ) -> Self {
        let now = Instant::now();
        let pace = Pace { look: true, quiet_since: now, next_poll: now, pause: SHORT_PAUSE, asleep: false };
        Self {
            idempotency,
            routes,
            doorbell,
            stopped,
            delivered,
            identity: None,
            flights: JoinSet::new(),
            flying: HashSet::new(),
            landed: Vec::new(),
            refused: Vec::new(),
            pace,
            search: Search::new(),
            suspects: Suspects::default(),
            adopt: false,
            crowded: false,
        }
    }

    pub(super) async fn run(mut self) {
        let mut trouble = Duration::ZERO;
        while !(self.is_stopping() && self.flights.is_empty() && self.landed.is_empty()) {
            match self.turn().await {
                Ok(()) => trouble = Duration::ZERO,
                Err(error) => {
                    let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                    tracing::warn!(%error, source, "a relay could not go on; it tries again");
                    trouble = (trouble * 2).clamp(FIRST_TROUBLE, LAST_TROUBLE);
                    sleep(trouble.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
                }
            }
        }
        if let Err(error) = self.deregister().await {
            tracing::debug!(%error, "a relay could not sign off");
        }
    }

    fn is_stopping(&self) -> bool {
        *self.stopped.borrow()
    }

    async fn turn(&mut self) -> Result<(), Error> {
        self.keep_lease().await?;
        while let Some(landed) = self.flights.try_join_next() {
            self.land(landed.ok());
        }
        let Some(identity) = self.identity else { return Ok(()) };
        let want = self.want();
        if !self.landed.is_empty() || self.adopt || want != Want::Nothing {
            return self.round(identity, want).await;
        }
        self.wait(identity).await
    }

    fn land(&mut self, landed: Option<Landed>) {
        // Nothing but an aborted delivery does not land.
        let Some(landed) = landed else { return };
        // Not ours any more: it was given up with its lease.
        if !self.flying.remove(&landed.id) {
            return;
        }
        self.routes.end(&landed.topic);
        if self.suspects.tried.is_some_and(|(id, _)| id == landed.id) {
            self.suspects.tried = None;
        }
        match &landed.failure {
            None => drop(self.delivered.fetch_add(1, Ordering::Relaxed)),
            Some(failure) => {
                let (topic, attempt, last) = (&*landed.topic, landed.attempt, landed.attempt >= self.attempts());
                tracing::warn!(topic, attempt, failure, last, "a message could not be delivered");
            }
        }
        self.landed.push(landed);
        self.pace.look = true;
    }

    fn attempts(&self) -> i32 {
        i32::try_from(self.idempotency.settings().delivery_attempts).unwrap_or(i32::MAX)
    }

    /// What may be begun now.
    fn want(&mut self) -> Want {
        if self.is_stopping() {
            return Want::Nothing;
        }
        if let Some((_, since)) = self.suspects.tried {
            return if since.elapsed() >= ALONE && self.pace.look { Want::Messages } else { Want::Nothing };
        }
        if self.suspects.seen {
            let since = *self.suspects.clearing_since.get_or_insert_with(Instant::now);
            let alone = self.flights.is_empty() || since.elapsed() >= ALONE;
            return if alone { Want::Suspect } else { Want::Nothing };
        }
        if self.pace.look { Want::Messages } else { Want::Nothing }
    }

    /// When [`want`](Self::want) may say something else by itself.
    fn hold_ends(&self) -> Option<Instant> {
        let tried = self.suspects.tried.map(|(_, since)| since + ALONE).filter(|_| self.pace.look);
        let clearing = self.suspects.clearing_since.map(|since| since + ALONE);
        tried.or(clearing.filter(|_| self.suspects.tried.is_none()))
    }

    /// Until something happens.
    async fn wait(&mut self, identity: Identity) -> Result<(), Error> {
        let hold_ends = self.hold_ends().unwrap_or(identity.renew).min(identity.renew);
        let stopping = self.is_stopping();
        let Self { flights, doorbell, stopped, pace, .. } = self;
        let mut events: Vec<BoxFuture<'_, Event>> = vec![Box::pin(async move {
            sleep_until(hold_ends).await;
            Event::Time
        })];
        if !flights.is_empty() {
            events.push(Box::pin(async { Event::Landed(flights.join_next().await.and_then(Result::ok)) }));
        }
        if !stopping {
            events.push(Box::pin(async {
                doorbell.rung().await;
                Event::Rung
            }));
            events.push(Box::pin(async {
                stop_asked(stopped).await;
                Event::Time
            }));
            events.push(Box::pin(async {
                sleep_until(pace.next_poll).await;
                Event::Poll
            }));
        }
        let event = select_all(events).await.0;
        match event {
            Event::Landed(landed) => self.land(landed),
            Event::Poll => return self.poll(identity).await,
            // One that is awake looks often enough.
            Event::Rung => self.pace.look |= self.pace.asleep,
            Event::Time => {}
        }
        Ok(())
    }

    /// Whether something is due. Reads only.
    async fn poll(&mut self, identity: Identity) -> Result<(), Error> {
        let (idempotency, statements) = (&self.idempotency, self.idempotency.outbox_statements());
        let mut connection = idempotency.connection_to_repeat_on().await?;
        let (whole, begin) = (self.search.is_whole(), Instant::now());
        let mut others = self.known_others();
        if self.routes.takes_any() && whole {
            let topics = idempotency.query(&statements.topics).bind(self.routes.names());
            let found = rows(idempotency, &mut connection, topics).await?;
            others = found.iter().map(|row| row.try_get(0)).collect::<sqlx::Result<_>>().map_err(Error::Database)?;
        }
        let (topics, _): (Vec<_>, Vec<_>) = self.routes.places(others).into_iter().unzip();
        let floors = self.search.floors(whole, &topics);
        let poll = idempotency.query(&statements.poll).bind(topics).bind(self.routes.takes_any());
        let poll = poll.bind(self.routes.full()).bind(floors);
        let found = rows(idempotency, &mut connection, poll).await?;
        drop(connection);
        self.search.took(whole, begin.elapsed());
        let row = found.first().ok_or(Error::Database(sqlx::Error::RowNotFound))?;
        if row.try_get("due").map_err(Error::Database)? {
            self.pace.look = true;
            if whole {
                self.search.look_at_everything();
            }
        }
        self.suspects.seen |= row.try_get::<bool, _>("suspects").map_err(Error::Database)?;
        let lingers = self.pace.quiet_since.elapsed() < LINGER;
        self.plan_next_poll(lingers);
        if !lingers && !self.pace.look && !self.pace.asleep && self.doorbell.hears() {
            self.sleep(identity).await?;
            // Whoever sent a message before that, and did not notify, may have committed meanwhile.
            (self.pace.next_poll, self.pace.pause) = (Instant::now(), SHORT_PAUSE);
        }
        Ok(())
    }

    /// Topics without a name of which messages have come.
    fn known_others(&self) -> Vec<String> {
        if !self.routes.takes_any() {
            return Vec::new();
        }
        self.search.topics().filter(|topic| !self.routes.has_named(topic)).cloned().collect()
    }

    fn plan_next_poll(&mut self, lingers: bool) {
        let interval = self.idempotency.settings().relay_interval;
        self.pace.pause = if lingers { SHORT_PAUSE } else { self.pace.pause * 2 }.min(interval);
        // Nodes that do not march in step.
        self.pace.next_poll = Instant::now() + self.pace.pause.mul_f64(0.75 + fastrand::f64() / 2.0);
    }

    async fn sleep(&mut self, identity: Identity) -> Result<(), Error> {
        self.pace.asleep = true;
        let mut transaction = Transaction::begin(&self.idempotency).await?;
        let sleep = self.idempotency.query(&self.idempotency.outbox_statements().sleep).bind(identity.id);
        transaction.execute(sleep).await?;
        transaction.commit().await
    }

    /// Settles what has ended and takes what is due.
    async fn round(&mut self, identity: Identity, want: Want) -> Result<(), Error> {
        let round = Round { engine: self, identity, want, whole: self.search.is_whole() }.run().await;
        let rows = match round {
            Ok(rows) => rows,
            Err(error) => {
                self.adopt = true;
                if matches!(error, Error::Database(_)) {
                    let landed = std::mem::take(&mut self.landed);
                    self.settle_one_by_one(identity, landed).await;
                }
                return Err(error);
            }
        };
        self.landed.clear();
        (self.adopt, self.pace.asleep) = (false, false);
        if want == Want::Suspect {
            self.suspects.clearing_since = None;
        }
        self.note_search(&rows)?;
        self.begin_deliveries(identity, want, &rows)
    }

    fn note_search(&mut self, rows: &Rows) -> Result<(), Error> {
        let Some(time) = rows.searched else { return Ok(()) };
        self.search.took(rows.whole, time);
        let mut oldest: HashMap<&str, f64> = HashMap::new();
        for row in &rows.taken {
            if let Some(since) = row.try_get("since").map_err(Error::Database)? {
                let topic = row.try_get("topic").map_err(Error::Database)?;
                oldest.entry(topic).and_modify(|oldest| *oldest = oldest.min(since)).or_insert(since);
            }
        }
        for (topic, oldest) in oldest {
            self.search.found(rows.whole, topic, oldest);
        }
        if rows.whole && self.routes.takes_any() {
            self.search.retain(&rows.others);
        }
        Ok(())
    }

    fn begin_deliveries(&mut self, identity: Identity, want: Want, rows: &Rows) -> Result<(), Error> {
        let (mut begun, mut aside) = (0, false);
        for row in &rows.taken {
            match row.try_get("what").map_err(Error::Database)? {
                "taken" => {
                    let message = Message::read(row, &self.idempotency.outbox_statements().schema);
                    let message = message.map_err(Error::Database)?;
                    if want == Want::Suspect {
                        self.suspects.tried = Some((message.id, Instant::now()));
                    }
                    begun += 1;
                    self.begin_delivery(identity, message);
                }
                "died" => {
                    begun += 1;
                    let topic: String = row.try_get("topic").map_err(Error::Database)?;
                    let attempt: i32 = row.try_get("attempts").map_err(Error::Database)?;
                    tracing::error!(topic, attempt, "a message has used up its attempts and is a dead letter");
                }
                _ => aside = true,
            }
        }
        match want {
            Want::Nothing => {}
            Want::Suspect => {
                self.suspects.seen = begun > 0;
                self.pace.look = true;
            }
            Want::Messages => {
                self.crowded = aside;
                // More may be due where a topic's places were all taken, or where others were in the way.
                self.pace.look = aside || begun >= rows.least_places;
            }
        }
        if begun > 0 || aside {
            let now = Instant::now();
            (self.pace.quiet_since, self.pace.pause, self.pace.next_poll) = (now, SHORT_PAUSE, now + SHORT_PAUSE);
        } else if want == Want::Messages {
            // What is due may be in other hands.
            self.plan_next_poll(false);
        }
        Ok(())
    }

    fn begin_delivery(&mut self, identity: Identity, message: Message) {
        let Some(route) = self.routes.of(message.topic()) else { return };
        if !self.flying.insert(message.id) {
            return;
        }
        let (handler, timeout, topic) = (Arc::clone(&route.handler), route.timeout, Arc::from(message.topic()));
        self.routes.begin(&topic);
        self.flights.spawn(deliver(message, topic, identity.id, handler, timeout));
    }

    /// One that the database refuses must not keep the others from being settled.
    async fn settle_one_by_one(&mut self, identity: Identity, landed: Vec<Landed>) {
        for mut landed in landed {
            let mut settled = self.settle_one(identity, &landed).await;
            if matches!(settled, Err(Error::Database(_))) && landed.failure.is_some() {
                landed.failure = Some("the failure's text could not be stored".to_owned());
                settled = self.settle_one(identity, &landed).await;
            }
            if let Err(error) = settled {
                let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                tracing::error!(topic = &*landed.topic, %error, source, "a delivery cannot be settled; it is tried again");
                self.refused.push(landed);
            }
        }
    }

    async fn settle_one(&self, identity: Identity, landed: &Landed) -> Result<(), Error> {
        let mut transaction = Transaction::begin(&self.idempotency).await?;
        settle(&self.idempotency, &mut transaction, identity, self.attempts(), std::slice::from_ref(landed)).await?;
        transaction.commit().await
    }
}

/// One transaction.
struct Round<'a> {
    engine: &'a Engine,
    identity: Identity,
    want: Want,
    /// Whether it looks at everything.
    whole: bool,
}

struct Rows {
    taken: Vec<PgRow>,
    /// How many messages fill the topic with the fewest places.
    least_places: usize,
    /// How long the search took; `None` where nothing was looked for.
    searched: Option<Duration>,
    whole: bool,
    /// What the search found to have messages, of topics without a name.
    others: Vec<String>,
}

impl Round<'_> {
    async fn run(&self) -> Result<Rows, Error> {
        let (engine, identity) = (self.engine, self.identity);
        let (idempotency, statements) = (&engine.idempotency, engine.idempotency.outbox_statements());
        let mut transaction = Transaction::begin(idempotency).await?;
        if !engine.landed.is_empty() {
            settle(idempotency, &mut transaction, identity, engine.attempts(), &engine.landed).await?;
        }
        let mut rows =
            Rows { taken: Vec::new(), least_places: usize::MAX, searched: None, whole: self.whole, others: Vec::new() };
        if engine.adopt {
            let refused = engine.refused.iter().map(|landed| landed.id);
            let known: Vec<i64> = engine.flying.iter().copied().chain(refused).collect();
            let adopt = idempotency.query(&statements.adopt).bind(identity.id).bind(known);
            rows.taken = transaction.rows(adopt).await?;
        }
        match self.want {
            Want::Nothing => {}
            Want::Suspect => {
                let take = idempotency.query(&statements.take_suspect).bind(engine.routes.topics());
                let take = take.bind(identity.id).bind(engine.attempts()).bind(engine.routes.full());
                rows.taken.extend(transaction.rows(take).await?);
            }
            Want::Messages => {
                let begin = Instant::now();
                rows.others = self.others(&mut transaction).await?;
                let places = engine.routes.places(rows.others.clone());
                rows.least_places = places.iter().map(|(_, places)| *places as usize).min().unwrap_or(usize::MAX);
                if !places.is_empty() {
                    rows.taken.extend(self.take(&mut transaction, places).await?);
                    rows.searched = Some(begin.elapsed());
                }
            }
        }
        self.admit_behind_the_dead(&mut transaction, &rows.taken).await?;
        if engine.pace.asleep {
            transaction.execute(idempotency.query(&statements.wake).bind(identity.id)).await?;
        }
        transaction.commit().await?;
        Ok(rows)
    }

    async fn others(&self, transaction: &mut Transaction<'_>) -> Result<Vec<String>, Error> {
        let engine = self.engine;
        if !engine.routes.takes_any() || !self.whole {
            return Ok(engine.known_others());
        }
        let topics = engine.idempotency.query(&engine.idempotency.outbox_statements().topics);
        let rows = transaction.rows(topics.bind(engine.routes.names())).await?;
        rows.iter().map(|row| row.try_get(0)).collect::<sqlx::Result<_>>().map_err(Error::Database)
    }

    async fn take(&self, transaction: &mut Transaction<'_>, places: Places) -> Result<Vec<PgRow>, Error> {
        let (engine, (topics, places)): (_, (Vec<_>, Vec<_>)) = (self.engine, places.into_iter().unzip());
        let take = engine.idempotency.query(&engine.idempotency.outbox_statements().take);
        let floors = engine.search.floors(self.whole, &topics);
        let take = take.bind(topics).bind(self.identity.id).bind(engine.attempts());
        let take = take.bind(places).bind(if engine.crowded { CROWD } else { 0 });
        transaction.rows(take.bind(floors)).await
    }

    async fn admit_behind_the_dead(&self, transaction: &mut Transaction<'_>, rows: &[PgRow]) -> Result<(), Error> {
        let died = rows.iter().filter(|row| matches!(row.try_get("what"), Ok("died")));
        let groups = died.map(|row| row.try_get("group_key")).collect::<sqlx::Result<_>>().map_err(Error::Database)?;
        admit(&self.engine.idempotency, transaction, groups).await
    }
}

async fn settle(
    idempotency: &Idempotency,
    transaction: &mut Transaction<'_>,
    identity: Identity,
    attempts: i32,
    landed: &[Landed],
) -> Result<(), Error> {
    let ids: Vec<i64> = landed.iter().map(|landed| landed.id).collect();
    let made: Vec<i32> = landed.iter().map(|landed| landed.attempt).collect();
    let relays: Vec<i64> = landed.iter().map(|landed| landed.relay).collect();
    let text = |landed: &Landed| landed.failure.as_deref().map(|text| storable(text, identity.utf8));
    let failures: Vec<Option<String>> = landed.iter().map(text).collect();
    let settle = idempotency.query(&idempotency.outbox_statements().settle);
    let settle = settle.bind(ids).bind(made).bind(failures).bind(relays).bind(attempts);
    let rows = transaction.rows(settle).await?;
    let groups = rows.iter().map(|row| row.try_get(0)).collect::<sqlx::Result<_>>().map_err(Error::Database)?;
    admit(idempotency, transaction, groups).await
}

/// In a statement after the one that settled: it must see what others put aside meanwhile.
async fn admit(
    idempotency: &Idempotency,
    transaction: &mut Transaction<'_>,
    groups: Vec<Option<String>>,
) -> Result<(), Error> {
    let mut groups: Vec<String> = groups.into_iter().flatten().collect();
    groups.sort_unstable();
    groups.dedup();
    if !groups.is_empty() {
        transaction.execute(idempotency.query(&idempotency.outbox_statements().admit).bind(groups)).await?;
    }
    Ok(())
}

/// The lease.
impl Engine {
    async fn keep_lease(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        match self.identity {
            Some(identity) if now >= identity.expires => {
                self.lose();
                Ok(())
            }
            Some(identity) if now >= identity.renew => self.renew(identity).await,
            Some(_) => Ok(()),
            None if self.is_stopping() => {
                self.landed.clear();
                Ok(())
            }
            None => self.register().await,
        }
    }

    async fn register(&mut self) -> Result<(), Error> {
        let (now, lease) = (Instant::now(), self.idempotency.settings().relay_lease);
        let (idempotency, statements) = (&self.idempotency, self.idempotency.outbox_statements());
        let mut transaction = Transaction::begin(idempotency).await?;
        let register = idempotency.query(&statements.register).bind(lease.as_secs_f64()).bind(self.routes.topics());
        let rows = transaction.rows(register).await?;
        let row = rows.first().ok_or(Error::Database(sqlx::Error::RowNotFound))?;
        let encoding: String = row.try_get("encoding").map_err(Error::Database)?;
        let id = row.try_get("id").map_err(Error::Database)?;
        transaction.execute(idempotency.query(&statements.admit_stranded)).await?;
        self.free_what_the_dead_had(&mut transaction).await?;
        transaction.commit().await?;
        self.identity = Some(Identity {
            id,
            utf8: encoding == "UTF8",
            expires: now + lease,
            renew: now + lease / 3,
            look_for_stranded: now + STRANDED,
        });
        (self.pace.asleep, self.pace.look) = (false, true);
        Ok(())
    }

    async fn renew(&mut self, identity: Identity) -> Result<(), Error> {
        let (now, lease) = (Instant::now(), self.idempotency.settings().relay_lease);
        let (idempotency, statements) = (&self.idempotency, self.idempotency.outbox_statements());
        let look_for_stranded = now >= identity.look_for_stranded;
        let mut transaction = Transaction::begin(idempotency).await?;
        let renew = idempotency.query(&statements.renew).bind(identity.id).bind(lease.as_secs_f64());
        let kept = transaction.execute(renew).await? == 1;
        if look_for_stranded {
            transaction.execute(idempotency.query(&statements.admit_stranded)).await?;
        }
        self.free_what_the_dead_had(&mut transaction).await?;
        let deaf = self.pace.asleep && !self.doorbell.hears();
        if deaf {
            transaction.execute(idempotency.query(&statements.wake).bind(identity.id)).await?;
        }
        transaction.commit().await?;
        if !kept {
            self.lose();
            return Ok(());
        }
        self.pace.asleep &= !deaf;
        // A take whose answer was lost may have been committed long after.
        self.adopt = true;
        if let Some(identity) = &mut self.identity {
            (identity.expires, identity.renew) = (now + lease, now + lease / 3);
            if look_for_stranded {
                identity.look_for_stranded = now + STRANDED;
            }
        }
        let refused = std::mem::take(&mut self.refused);
        self.settle_one_by_one(identity, refused).await;
        Ok(())
    }

    async fn free_what_the_dead_had(&self, transaction: &mut Transaction<'_>) -> Result<(), Error> {
        let statements = self.idempotency.outbox_statements();
        transaction.execute(self.idempotency.query(&statements.forget_relays)).await?;
        let freed = transaction.execute(self.idempotency.query(&statements.free)).await?;
        if freed > 0 {
            tracing::warn!(
                freed,
                "a relay died: what it had under way is delivered again, one message after the other"
            );
        }
        Ok(())
    }

    /// Others may deliver what is under way here, so it ends here.
    fn lose(&mut self) {
        let under_way = self.flying.len();
        tracing::warn!(under_way, "a relay could not renew its lease in time and gives up what it has under way");
        self.flights.abort_all();
        self.flights.detach_all();
        self.flying.clear();
        self.refused.clear();
        self.routes.end_all();
        self.suspects = Suspects::default();
        (self.identity, self.adopt) = (None, false);
    }

    async fn deregister(&self) -> Result<(), Error> {
        let Some(identity) = self.identity else { return Ok(()) };
        let mut transaction = Transaction::begin(&self.idempotency).await?;
        let deregister = self.idempotency.query(&self.idempotency.outbox_statements().deregister).bind(identity.id);
        transaction.execute(deregister).await?;
        transaction.commit().await
    }
}

/// A dropped handle is no stop.
async fn stop_asked(stopped: &mut watch::Receiver<bool>) {
    if stopped.wait_for(|stopped| *stopped).await.is_err() {
        std::future::pending::<()>().await;
    }
}
