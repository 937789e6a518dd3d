//! What a relay must withstand: poison, slowness, texts that cannot be stored, its own death, late commits, other relays.

use std::collections::{BTreeSet, HashMap};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use idem_runtime::{Builder, Error, Idempotency, Message, Relay, Sent, Tx, idempotent};
use idem_testing::TestDatabase;
use idem_tests::Gate;
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{AssertSqlSafe, PgPool};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// What a transaction sends.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Letter {
    topic: String,
    name: String,
    group: Option<String>,
    payload: String,
}

fn letter(topic: &str, name: &str, payload: &str) -> Letter {
    Letter { topic: topic.to_owned(), name: name.to_owned(), group: None, payload: payload.to_owned() }
}

fn grouped(group: &str, name: &str) -> Letter {
    Letter { group: Some(group.to_owned()), ..letter("mail", name, name) }
}

/// Sends letters, waits at the gate if there is one, and commits.
#[derive(Clone, Serialize)]
struct Batch {
    key: String,
    letters: Vec<Letter>,
    #[serde(skip)]
    gate: Option<Arc<Gate>>,
    #[serde(skip)]
    fail: bool,
    /// What the handler runs before it sends, and after.
    #[serde(skip)]
    around: Option<[&'static str; 2]>,
}

#[derive(Debug)]
enum Failure {
    Asked,
    Idempotency(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Idempotency(error)
    }
}

#[idempotent(scope = "batches", key = batch.key, ttl = "24h")]
async fn send(idempotency: &Idempotency, tx: &mut Tx, batch: Batch) -> Result<Vec<String>, Failure> {
    send_all(tx, batch).await
}

#[idempotent(scope = "batches", key = batch.key, ttl = "24h", isolation = "repeatable read")]
async fn send_repeatable(idempotency: &Idempotency, tx: &mut Tx, batch: Batch) -> Result<Vec<String>, Failure> {
    send_all(tx, batch).await
}

async fn send_all(tx: &mut Tx, batch: Batch) -> Result<Vec<String>, Failure> {
    let mut sent = Vec::new();
    if let Some([before, _]) = batch.around {
        sqlx::raw_sql(before).execute(&mut *tx).await.expect(before);
    }
    for letter in &batch.letters {
        let outbox = tx.outbox();
        let outbox = if let Some(group) = &letter.group { outbox.group(group) } else { outbox };
        sent.push(format!("{:?}", outbox.send(&letter.topic, &letter.name, &letter.payload).await?));
        if let Some(gate) = &batch.gate {
            gate.pass().await;
        }
    }
    if let Some([_, after]) = batch.around {
        sqlx::raw_sql(after).execute(&mut *tx).await.expect(after);
    }
    if batch.fail { Err(Failure::Asked) } else { Ok(sent) }
}

struct World {
    database: TestDatabase,
    pool: PgPool,
    idempotency: Idempotency,
}

fn settings(pool: &PgPool) -> Builder {
    Idempotency::builder(pool.clone())
        .relay_interval(Duration::from_millis(20))
        .relay_lease(Duration::from_secs(6))
        .delivery_attempts(2)
}

impl World {
    async fn start() -> Self {
        Self::with(|builder| builder).await
    }

    async fn with(change: impl FnOnce(Builder) -> Builder) -> Self {
        let database = TestDatabase::create().await.expect("a database");
        Self::over(database, change).await
    }

    async fn over(database: TestDatabase, change: impl FnOnce(Builder) -> Builder) -> Self {
        let pool = database.pool_with(PgPoolOptions::new().max_connections(20));
        let idempotency = change(settings(&pool)).build().expect("settings");
        idempotency.migrate().await.expect("the migrations");
        Self { database, pool, idempotency }
    }

    fn batch(letters: impl IntoIterator<Item = Letter>) -> Batch {
        let key = format!("b{}", fastrand::u64(..));
        Batch { key, letters: letters.into_iter().collect(), gate: None, fail: false, around: None }
    }

    async fn send(&self, letters: impl IntoIterator<Item = Letter>) -> Vec<String> {
        send(&self.idempotency, Self::batch(letters)).await.expect("sent")
    }

    async fn number(&self, sql: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&self.pool).await.expect(sql)
    }

    async fn run(&self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&self.pool).await.expect(sql);
    }

    async fn pending(&self) -> i64 {
        self.number("SELECT count(*) FROM idem.outbox WHERE delivered_at IS NULL AND failure IS NULL").await
    }

    async fn until(&self, what: &str, mut holds: impl AsyncFnMut(&Self) -> bool) {
        let begin = Instant::now();
        while !holds(self).await {
            assert!(begin.elapsed() < Duration::from_secs(40), "{what} takes too long");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn until_settled(&self) {
        self.until("settling", async |world| world.pending().await == 0).await;
    }

    /// Names of dead letters with their failures.
    async fn dead(&self) -> HashMap<String, String> {
        let dead = self.idempotency.dead_letters(100).await.expect("a list");
        dead.into_iter().map(|dead| (dead.message.dedupe_key().to_owned(), dead.failure)).collect()
    }
}

/// What was delivered, in order of its beginning.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

impl Seen {
    fn note(&self, message: &Message) {
        self.0.lock().unwrap().push(message.dedupe_key().to_owned());
    }

    fn names(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    fn relay(&self, world: &World) -> Relay {
        world.idempotency.relay().on_any(self.handler()).start().expect("a relay")
    }

    fn handler(&self) -> impl Fn(Message) -> std::future::Ready<Result<(), String>> + Send + Sync + 'static {
        let seen = self.clone();
        move |message| {
            seen.note(&message);
            std::future::ready(Ok(()))
        }
    }
}

// A process that dies.

async fn relay_process(database: &TestDatabase) -> Child {
    let mut process = Command::new(env!("CARGO_BIN_EXE_idem-test-relay"))
        .env("DATABASE_URL", database.url())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("a relay process");
    let mut lines = BufReader::new(process.stdout.take().expect("its output")).lines();
    lines.next_line().await.expect("its output");
    process
}

async fn with_deliveries() -> World {
    let world = World::start().await;
    let table = "CREATE TABLE deliveries (id bigserial PRIMARY KEY, process bigint, topic text, name text, attempt integer, \
                 began_at timestamptz DEFAULT clock_timestamp(), ended_at timestamptz)";
    world.run(table).await;
    world
}

/// As a supervisor does: whenever the process ends, it is started again.
async fn supervise_until_settled(world: &World) -> usize {
    let mut process = relay_process(&world.database).await;
    let (mut starts, begin) = (1, Instant::now());
    while world.pending().await > 0 {
        assert!(begin.elapsed() < Duration::from_secs(60), "{} messages are stuck", world.pending().await);
        if process.try_wait().expect("its state").is_some() {
            process = relay_process(&world.database).await;
            starts += 1;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    process.kill().await.expect("killed");
    starts
}

#[tokio::test]
async fn a_delivery_that_kills_its_process_dies_after_its_limit_and_its_neighbours_live_45() {
    for (how, group) in [("abort", None), ("exit", None), ("abort 1500", None), ("abort", Some("g"))] {
        let world = with_deliveries().await;
        let group = group.map(str::to_owned);
        let mut letters = vec![Letter { group: group.clone(), ..letter("mail", "poison", how) }];
        letters.push(Letter { group, ..letter("mail", "after", "ok") });
        letters.extend((0..8).map(|number| letter("mail", &format!("quick{number}"), "sleep 20")));
        letters.extend((0..2).map(|number| letter("mail", &format!("slow{number}"), "sleep 700")));
        letters.extend((0..4).map(|number| letter("push", &format!("other{number}"), "sleep 20")));
        world.send(letters).await;
        let starts = supervise_until_settled(&world).await;
        assert_eq!(starts, 4, "{how}: three deaths");
        let dead = world.idempotency.dead_letters(10).await.expect("a list");
        let dead: Vec<_> = dead.iter().map(|dead| (dead.message.dedupe_key(), dead.message.attempt())).collect();
        assert_eq!(dead, [("poison", 3)], "{how}");
        assert_eq!(world.number("SELECT count(*) FROM deliveries WHERE name = 'poison'").await, 3, "{how}");
        let delivered = "SELECT count(DISTINCT name) FROM deliveries WHERE ended_at IS NOT NULL";
        assert_eq!(world.number(delivered).await, 15, "{how}: every neighbour");
        let most = "SELECT max(attempt) FROM deliveries WHERE name <> 'poison'";
        assert!(world.number(&format!("SELECT ({most})::bigint")).await <= 2, "{how}: a neighbour is hit at most once");
        // What was under way when the process died for the first time is tried alone: nothing begins in its first second.
        let beside = "SELECT count(*) FROM deliveries AS d JOIN deliveries AS n \
                        ON n.process = d.process AND n.id <> d.id AND n.began_at BETWEEN d.began_at \
                           AND least(coalesce(d.ended_at, 'infinity'), d.began_at + interval '0.9 s') \
                      WHERE d.name = 'poison' AND d.attempt > 1";
        assert_eq!(world.number(beside).await, 0, "{how}");
    }
}

/// A single process: what it leaves is taken over by the next, and by one that ran all the time.
#[tokio::test]
async fn what_a_killed_process_had_under_way_is_delivered_by_others() {
    for survivors in [0, 1] {
        let world = with_deliveries().await;
        let mut others = Vec::new();
        let first = relay_process(&world.database).await;
        let mut first = first;
        world.send((0..4).map(|number| letter("mail", &format!("m{number}"), "sleep 2000"))).await;
        world.until("a beginning", async |world| world.number("SELECT count(*) FROM deliveries").await == 4).await;
        for _ in 0..survivors {
            others.push(relay_process(&world.database).await);
        }
        first.kill().await.expect("killed");
        if survivors == 0 {
            others.push(relay_process(&world.database).await);
        }
        world.until_settled().await;
        assert_eq!(world.number("SELECT count(*) FROM deliveries").await, 8, "each was begun twice");
        assert_eq!(world.number("SELECT count(DISTINCT name) FROM deliveries WHERE attempt = 2").await, 4);
    }
}

/// What may have killed a process is tried alone, and must hold back the rest no longer than it takes to kill another one.
#[tokio::test]
async fn suspects_that_hang_hold_back_nobody_for_long_and_keep_to_their_limit() {
    let world = World::start().await;
    world.send((0..3).map(|number| letter("slow", &format!("s{number}"), "x"))).await;
    world.run("UPDATE idem.outbox SET suspect = true, attempts = 1").await;
    let (seen, flying) = (Seen::default(), Arc::new(Mutex::new((0, 0))));
    let slow = {
        let (seen, flying) = (seen.clone(), Arc::clone(&flying));
        move |message: Message| {
            seen.note(&message);
            let flying = Arc::clone(&flying);
            async move {
                {
                    let mut flying = flying.lock().unwrap();
                    flying.0 += 1;
                    flying.1 = flying.1.max(flying.0);
                }
                tokio::time::sleep(Duration::from_secs(4)).await;
                flying.lock().unwrap().0 -= 1;
                Ok::<_, String>(())
            }
        }
    };
    let quick = Seen::default();
    let relay = world.idempotency.relay().on("slow", slow).limit(1).on("quick", quick.handler());
    let relay = relay.start().expect("a relay");
    world.until("a suspect", async |_| seen.names().len() == 1).await;
    let begin = Instant::now();
    world.send((0..40).map(|number| letter("quick", &format!("q{number}"), "x"))).await;
    world.send([letter("slow", "s3", "x")]).await;
    world.until("the quick ones", async |_| quick.names().len() == 40).await;
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    world.until_settled().await;
    relay.stop().await;
    assert_eq!((seen.names().len(), flying.lock().unwrap().1), (4, 1));
}

// Failures whose texts cannot be stored.

async fn database_with_encoding(encoding: &str) -> TestDatabase {
    let any = TestDatabase::create().await.expect("a database");
    let template = format!("{}_{}", any.name(), encoding.to_lowercase());
    let create =
        format!("CREATE DATABASE {template} TEMPLATE template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'");
    sqlx::raw_sql(AssertSqlSafe(create)).execute(&any.pool()).await.expect("a database of that encoding");
    let copy = TestDatabase::copy_on(any.postgres(), &template).await.expect("a copy");
    let drop = format!("DROP DATABASE {template}");
    sqlx::raw_sql(AssertSqlSafe(drop)).execute(&any.pool()).await.expect("dropped");
    copy
}

#[tokio::test]
async fn whatever_a_failure_says_its_message_settles_and_so_do_others_46() {
    for encoding in ["UTF8", "LATIN1", "SQL_ASCII", "EUC_JP"] {
        let world = World::over(database_with_encoding(encoding).await, |builder| builder).await;
        let texts: Vec<String> = ["not now", "no\0t", "5 \u{20ac} \u{1f4a5}", "\u{e9}", "a\\'\"$1;--", ""]
            .into_iter()
            .map(str::to_owned)
            .chain(["\u{20ac}".repeat(1_000_000)])
            .collect();
        let mut letters = vec![letter("mail", "good", "good")];
        letters.extend((0..texts.len()).map(|number| letter("mail", &number.to_string(), "bad")));
        world.send(letters).await;
        let said = texts.clone();
        let relay = world.idempotency.relay().on("mail", move |message: Message| {
            let failure = message.dedupe_key().parse().ok().map(|number: usize| said[number].clone());
            async move { failure.map_or(Ok(()), Err) }
        });
        let relay = relay.start().expect("a relay");
        world.until_settled().await;
        assert_eq!(relay.stop().await, 1, "{encoding}");
        let dead = world.dead().await;
        assert_eq!(dead.len(), texts.len(), "{encoding}: {:?}", dead.keys());
        assert_eq!((dead["0"].as_str(), dead["4"].as_str(), dead["5"].as_str()), ("not now", "a\\'\"$1;--", ""));
        if encoding == "UTF8" {
            assert_eq!((dead["1"].as_str(), dead["2"].as_str()), ("no\u{fffd}t", texts[2].as_str()));
        }
    }
}

/// A trigger of the application's, for example: the database refuses to settle one message.
#[tokio::test]
async fn a_message_that_cannot_be_settled_keeps_no_other_from_it() {
    let world = World::start().await;
    world
        .run(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                IF NEW.dedupe_key = 'refused' AND (NEW.delivered_at IS NOT NULL OR NEW.failure LIKE '%words%') THEN \
                    RAISE EXCEPTION 'not this one'; \
                END IF; RETURN NEW; END $$; \
             CREATE TRIGGER refuse BEFORE UPDATE ON idem.outbox FOR EACH ROW EXECUTE FUNCTION refuse()",
        )
        .await;
    world.send((0..20).map(|number| letter("mail", &format!("m{number}"), "x"))).await;
    world.send([letter("mail", "refused", "x")]).await;
    let seen = Seen::default();
    let relay = seen.relay(&world);
    world.until("the others", async |world| world.pending().await == 1).await;
    world.send([letter("mail", "later", "x")]).await;
    world.until("later ones", async |world| world.pending().await == 1 && seen.names().len() == 22).await;
    world.run("DROP TRIGGER refuse ON idem.outbox").await;
    world.until_settled().await;
    relay.stop().await;
    assert_eq!(seen.names().len(), 22, "it was delivered once, and settled when that was possible");
}

// Deliveries that hang.

#[tokio::test]
async fn a_hanging_delivery_holds_back_nothing_else_56() {
    for catch_all in [false, true] {
        let world = World::start().await;
        let seen = Seen::default();
        let handler = {
            let seen = seen.clone();
            move |message: Message| {
                seen.note(&message);
                let hangs = message.dedupe_key().starts_with("hang");
                async move {
                    if hangs {
                        std::future::pending::<()>().await;
                    }
                    Ok::<_, String>(())
                }
            }
        };
        let relay = world.idempotency.relay().limit(4);
        let relay = if catch_all { relay.on_any(handler) } else { relay.on_each(["slow", "quick", "full"], handler) };
        let relay = relay.start().expect("a relay");
        // A topic with a place left, one whose places are all taken, and one without trouble.
        world.send((0..3).map(|number| letter("slow", &format!("hang-s{number}"), "x"))).await;
        world.send((0..6).map(|number| letter("full", &format!("hang-f{number}"), "x"))).await;
        world.until("hanging", async |_| seen.names().len() == 7).await;
        let begin = Instant::now();
        for number in 0..50 {
            world.send([letter("slow", &format!("s{number}"), "x"), letter("quick", &format!("q{number}"), "x")]).await;
        }
        world.until("the others", async |world| world.pending().await == 9).await;
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
        let under_way = "SELECT count(*) FROM idem.outbox WHERE taken_by IS NOT NULL";
        assert_eq!(world.number(under_way).await, 7, "no more of a topic than its limit");
        drop(relay);
    }
}

/// A delivery that outlasts the lease is not begun again: the lease is the process's, not the message's.
#[tokio::test]
async fn a_long_delivery_is_not_begun_twice_while_its_relay_lives() {
    let world = World::with(|builder| builder.relay_lease(Duration::from_secs(1))).await;
    let seen = Seen::default();
    let handler = {
        let seen = seen.clone();
        move |message: Message| {
            seen.note(&message);
            async move {
                tokio::time::sleep(Duration::from_millis(3_500)).await;
                Ok::<_, String>(())
            }
        }
    };
    let relays: Vec<_> =
        (0..2).map(|_| world.idempotency.relay().on("mail", handler.clone()).start().expect("a relay")).collect();
    world.send([letter("mail", "long", "x")]).await;
    world.until_settled().await;
    for relay in relays {
        relay.stop().await;
    }
    assert_eq!(seen.names(), ["long"]);
}

/// The database forgets a relay, for example because it did not answer for too long: it gives up, and goes on under another name.
#[tokio::test]
async fn a_relay_that_loses_its_lease_ends_its_deliveries_and_begins_anew() {
    let world = World::start().await;
    let seen = Seen::default();
    let ended = Arc::new(Mutex::new(0));
    let handler = {
        let (seen, ended) = (seen.clone(), Arc::clone(&ended));
        move |message: Message| {
            seen.note(&message);
            let (first, ended) = (message.attempt() == 1, Arc::clone(&ended));
            async move {
                if first {
                    tokio::time::sleep(Duration::from_secs(20)).await;
                }
                *ended.lock().unwrap() += 1;
                Ok::<_, String>(())
            }
        }
    };
    let relay = world.idempotency.relay().on("mail", handler).start().expect("a relay");
    world.send([letter("mail", "m", "x")]).await;
    world.until("a beginning", async |_| seen.names().len() == 1).await;
    world.run("DELETE FROM idem.relays").await;
    world.until_settled().await;
    assert_eq!((seen.names().len(), *ended.lock().unwrap()), (2, 1), "the first one was ended");
    assert_eq!(relay.stop().await, 1);
    assert_eq!(world.number("SELECT count(*) FROM idem.relays").await, 0, "it signed off");
}

// Topics.

#[tokio::test]
async fn relays_take_their_own_topics_and_what_nobody_takes_is_seen_62() {
    let world = World::start().await;
    let (mails, pushes) = (Seen::default(), Seen::default());
    let relays = [
        world.idempotency.relay().on("mail", mails.handler()).start().expect("a relay"),
        world.idempotency.relay().on("push", pushes.handler()).start().expect("a relay"),
    ];
    let topics = ["mail", "push", "fax"];
    for number in 0..20 {
        world.send(topics.map(|topic| letter(topic, &format!("{topic}{number}"), "x"))).await;
    }
    world.until("the others", async |world| world.pending().await == 20).await;
    assert_eq!((mails.names().len(), pushes.names().len()), (20, 20));
    assert!(mails.names().iter().all(|name| name.starts_with("mail")));
    assert!(pushes.names().iter().all(|name| name.starts_with("push")));
    let status = world.idempotency.outbox_status().await.expect("a status");
    let unclaimed: Vec<_> = status.iter().filter(|topic| topic.is_unclaimed()).collect();
    assert_eq!(unclaimed.len(), 1, "{status:?}");
    assert_eq!((unclaimed[0].topic.as_str(), unclaimed[0].waiting, unclaimed[0].relays), ("fax", 20, 0));
    // One that takes the rest, and only that.
    let rest = Seen::default();
    let others = Seen::default();
    let relay = world.idempotency.relay().on("mail", others.handler()).on_any(rest.handler()).start().expect("a relay");
    world.until_settled().await;
    assert_eq!((rest.names().len(), others.names().len()), (20, 0));
    assert_eq!(world.idempotency.outbox_status().await.expect("a status"), []);
    for relay in relays.into_iter().chain([relay]) {
        relay.stop().await;
    }
}

#[tokio::test]
async fn a_relay_with_a_mistake_does_not_start() {
    let world = World::start().await;
    let relay = || world.idempotency.relay();
    let seen = Seen::default();
    for (relay, words) in [
        (relay(), "must have a topic"),
        (relay().on("a", seen.handler()).on("a", seen.handler()), "`a` has two"),
        (relay().on_any(seen.handler()).on_any(seen.handler()), "any has two"),
        (relay().on("a", seen.handler()).limit(0), "`limit` of 1 to 10,000"),
        (relay().limit(10_001).on("a", seen.handler()), "`limit` of 1 to 10,000"),
        (relay().on("a", seen.handler()).timeout(Duration::ZERO), "`timeout` over zero"),
    ] {
        let error = relay.start().expect_err(words).to_string();
        assert!(error.contains("relay") && error.contains(words), "{error}");
    }
}

// Order.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_is_delivered_in_the_order_of_its_commits_55() {
    for (repeatable, rolled_back) in [(false, false), (true, false), (false, true)] {
        let world = World::start().await;
        let seen = Seen::default();
        let relay = seen.relay(&world);
        let gate = Arc::new(Gate::new());
        let late = Batch { gate: Some(Arc::clone(&gate)), fail: rolled_back, ..World::batch([grouped("g", "first")]) };
        let idempotency = world.idempotency.clone();
        let late = tokio::spawn(async move { send(&idempotency, late).await });
        gate.arrival().await;
        // It has the lower id and is not committed. The next writer of the group waits; other groups' writers do not.
        let next = World::batch([grouped("g", "second")]);
        let idempotency = world.idempotency.clone();
        let next = tokio::spawn(async move {
            if repeatable { send_repeatable(&idempotency, next).await } else { send(&idempotency, next).await }
        });
        let waiting = "SELECT count(*) FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database \
                       WHERE d.datname = current_database() AND l.locktype = 'advisory' AND NOT l.granted";
        world.until("a waiting writer", async |world| world.number(waiting).await == 1).await;
        world.send([grouped("h", "other"), letter("mail", "without", "x")]).await;
        world.until("others", async |_| seen.names().len() == 2).await;
        gate.open(1);
        assert_eq!(late.await.expect("no panic").is_ok(), !rolled_back);
        next.await.expect("no panic").expect("sent");
        world.until_settled().await;
        relay.stop().await;
        let of_group: Vec<_> = seen.names().into_iter().skip(2).collect();
        assert_eq!(of_group, if rolled_back { vec!["second"] } else { vec!["first", "second"] });
    }
}

/// Many writers and relays at once: the order of commits is what a counter under the group's own lock says.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_group_stays_in_order_under_many_writers_relays_and_failures() {
    let world = World::with(|builder| builder.delivery_attempts(10)).await;
    let seen = Seen::default();
    let flying = Arc::new(Mutex::new(BTreeSet::new()));
    let handler = {
        let (seen, flying) = (seen.clone(), flying);
        move |message: Message| {
            let group = message.group().expect("a group").to_owned();
            assert!(flying.lock().unwrap().insert(group.clone()), "one of a group at a time");
            let (seen, flying) = (seen.clone(), Arc::clone(&flying));
            async move {
                tokio::time::sleep(Duration::from_millis(fastrand::u64(..3))).await;
                let fails = message.attempt() == 1 && fastrand::u8(..50) == 0;
                if !fails {
                    seen.0.lock().unwrap().push(format!("{group} {}", message.dedupe_key()));
                }
                flying.lock().unwrap().remove(&group);
                if fails { Err("not now") } else { Ok(()) }
            }
        }
    };
    let relays: Vec<_> =
        (0..3).map(|_| world.idempotency.relay().on("mail", handler.clone()).start().expect("a relay")).collect();
    let writers = (0..8).map(|writer| {
        let idempotency = world.idempotency.clone();
        tokio::spawn(async move {
            for number in 0..25 {
                let letters = [grouped(&format!("g{}", fastrand::u8(..3)), &format!("{writer}-{number}"))];
                send(&idempotency, World::batch(letters)).await.expect("sent");
            }
        })
    });
    join_all(writers).await.into_iter().for_each(|writer| writer.expect("no panic"));
    world.until_settled().await;
    for relay in relays {
        relay.stop().await;
    }
    // `id` is the order of the commits: each writer of a group held its lock from before it got the id until it had committed.
    let committed: Vec<(String, String)> = sqlx::query_as("SELECT group_key, dedupe_key FROM idem.outbox ORDER BY id")
        .fetch_all(&world.pool)
        .await
        .expect("rows");
    for group in ["g0", "g1", "g2"] {
        let expected: Vec<_> =
            committed.iter().filter(|(of, _)| of == group).map(|(of, name)| format!("{of} {name}")).collect();
        let delivered: Vec<_> = seen.names().into_iter().filter(|name| name.starts_with(group)).collect();
        assert_eq!(delivered, expected);
    }
    assert_eq!(seen.names().len(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_of_two_groups_in_opposite_order_end_with_a_retry() {
    let world = World::start().await;
    let gate = Arc::new(Gate::new());
    let writers = [["g", "h"], ["h", "g"]].map(|groups| {
        let idempotency = world.idempotency.clone();
        let letters = groups.map(|group| grouped(group, &format!("{}-{group}", groups[0])));
        let batch = Batch { gate: Some(Arc::clone(&gate)), ..World::batch(letters) };
        tokio::spawn(async move { (send(&idempotency, batch.clone()).await, batch) })
    });
    for _ in 0..2 {
        gate.arrival().await;
    }
    gate.open(8);
    let mut refused = 0;
    for writer in writers {
        let (outcome, batch) = writer.await.expect("no panic");
        if let Err(failure) = outcome {
            assert!(matches!(failure, Failure::Idempotency(Error::Conflict { .. })), "{failure:?}");
            refused += 1;
            send(&world.idempotency, Batch { gate: None, ..batch }).await.expect("a retry");
        }
    }
    assert_eq!(refused, 1);
    assert_eq!(world.pending().await, 4);
}

/// A group that is far behind must cost the others nothing.
#[tokio::test]
async fn a_group_with_a_long_backlog_holds_back_no_other_and_is_drained_in_order() {
    let world = World::start().await;
    world
        .run(
            "INSERT INTO idem.outbox (topic, dedupe_key, group_key, payload) \
             SELECT 'mail', n::text, 'g', convert_to('\"hang\"', 'UTF8') FROM generate_series(1, 3000) AS n",
        )
        .await;
    let seen = Seen::default();
    let release = Arc::new(tokio::sync::Semaphore::new(0));
    let handler = {
        let (seen, release) = (seen.clone(), Arc::clone(&release));
        move |message: Message| {
            let (seen, release) = (seen.clone(), Arc::clone(&release));
            async move {
                if message.group().is_some() {
                    release.acquire().await.expect("open").forget();
                }
                seen.note(&message);
                Ok::<_, String>(())
            }
        }
    };
    let relay = world.idempotency.relay().on("mail", handler).start().expect("a relay");
    world
        .until("a head", async |world| {
            world.number("SELECT count(*) FROM idem.outbox WHERE taken_by IS NOT NULL").await == 1
        })
        .await;
    for number in 0..20 {
        world.send([letter("mail", &format!("other{number}"), "x")]).await;
    }
    world.until("others", async |_| seen.names().len() == 20).await;
    release.add_permits(200);
    world.until("some of the group", async |_| seen.names().len() == 220).await;
    let expected: Vec<_> = (1..=200).map(|number| number.to_string()).collect();
    assert_eq!(seen.names()[20..], expected);
    // A person deletes the one that the others wait for.
    release.close();
    relay.stop().await;
    world.run("DELETE FROM idem.outbox WHERE id <= 1000").await;
    let rest = Seen::default();
    let relay = rest.relay(&world);
    world.until("the rest", async |_| rest.names().len() >= 50).await;
    assert_eq!(rest.names()[..50], (1_001..=1_050).map(|number| number.to_string()).collect::<Vec<_>>());
    relay.stop().await;
}

/// A report that runs for hours keeps what is delivered from being vacuumed away. Looking for messages must not become dearer and
/// dearer meanwhile, and old ones must still be found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_stays_open_makes_the_relay_no_slower() {
    for catch_all in [false, true] {
        let world = World::start().await;
        let mut report = world.pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ").await.expect("a report");
        sqlx::query("SELECT count(*) FROM idem.outbox").execute(&mut *report).await.expect("its snapshot");
        let fill = |from: u32, to: u32| {
            format!(
                "INSERT INTO idem.outbox (topic, dedupe_key, payload) \
                 SELECT 'mail', n::text, '1' FROM generate_series({from}, {to}) AS n"
            )
        };
        world.run(&fill(1, 100_000)).await;
        world.run("UPDATE idem.outbox SET delivered_at = clock_timestamp(), payload = NULL").await;
        world.run(&fill(100_001, 103_000)).await;
        let seen = Seen::default();
        let relay = world.idempotency.relay().limit(100);
        let relay = if catch_all { relay.on_any(seen.handler()) } else { relay.on("mail", seen.handler()) };
        let relay = relay.start().expect("a relay");
        world.until("deliveries", async |_| seen.names().len() == 3_000).await;
        // Sessions report what they have read a second later at the latest.
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        let read = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'outbox_ready'";
        let read = world.number(read).await;
        println!("{read} entries read to take 3,000 messages behind 100,000 dead ones, 100 at a time");
        assert!(read < 4_000_000, "{read} entries read");
        // One that was written long ago and is committed now, and one of a topic that nobody has seen.
        world
            .run(
                "INSERT INTO idem.outbox (topic, dedupe_key, payload, deliver_at) \
                 VALUES ('mail', 'late', '1', clock_timestamp() - interval '1 hour')",
            )
            .await;
        if catch_all {
            world.send([letter("new", "new", "x")]).await;
        }
        world.until_settled().await;
        relay.stop().await;
        report.rollback().await.expect("its end");
    }
}

// Deduplication.

#[tokio::test]
async fn a_key_is_remembered_for_the_retention_and_a_dead_letter_does_not_keep_it_52_53() {
    let world = World::with(|builder| builder.delivery_attempts(1)).await;
    let new = || [letter("mail", "k", "x")];
    assert_eq!(world.send(new()).await, ["New"]);
    assert_eq!(world.send(new()).await, ["Duplicate"], "waiting");
    assert_eq!(
        world.send([letter("push", "k", "x"), letter("mail", "l", "x")]).await,
        ["New", "New"],
        "another message"
    );
    let seen = Seen::default();
    let relay = seen.relay(&world);
    world.until_settled().await;
    assert_eq!(world.send(new()).await, ["Duplicate"], "delivered");
    // Past its retention, and not swept.
    world.run("UPDATE idem.outbox SET delivered_at = delivered_at - interval '8 days' WHERE dedupe_key = 'k'").await;
    assert_eq!(world.send(new()).await, ["New"], "forgotten");
    world.until_settled().await;
    relay.stop().await;
    assert_eq!(seen.names().iter().filter(|name| *name == "k").count(), 3, "two of one topic, one of the other");
    // Dead.
    let failing = world.idempotency.relay().on("mail", |_| async { Err::<(), _>("never") }).start().expect("a relay");
    world.send([letter("mail", "d", "first")]).await;
    world.until_settled().await;
    failing.stop().await;
    assert_eq!(world.dead().await.len(), 1);
    assert_eq!(world.send([letter("mail", "d", "second"), letter("mail", "d", "third")]).await, ["Dead", "Duplicate"]);
    let payloads = Arc::new(Mutex::new(Vec::new()));
    let relay = world.idempotency.relay().on("mail", {
        let payloads = Arc::clone(&payloads);
        move |message: Message| {
            payloads.lock().unwrap().push((message.payload::<String>().expect("a text"), message.attempt()));
            async { Ok::<_, String>(()) }
        }
    });
    let relay = relay.start().expect("a relay");
    world.until_settled().await;
    relay.stop().await;
    assert_eq!(*payloads.lock().unwrap(), [("second".to_owned(), 1)], "the new one, with all its attempts");
    assert_eq!(
        (world.dead().await.len(), world.send([letter("mail", "d", "x")]).await),
        (0, vec!["Duplicate".to_owned()])
    );
    world.run("UPDATE idem.outbox SET delivered_at = delivered_at - interval '8 days'").await;
    assert_eq!(world.send([letter("mail", "d", "x")]).await, ["New"], "its deaths are forgotten with it");
    assert_eq!(Sent::New, Sent::New);
}

/// Whoever sends a duplicate in a long transaction must not keep the first one from being settled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_transaction_with_a_duplicate_delays_no_delivery() {
    let world = World::start().await;
    world.send([letter("mail", "k", "x")]).await;
    let gate = Arc::new(Gate::new());
    let open = Batch { gate: Some(Arc::clone(&gate)), ..World::batch([letter("mail", "k", "x")]) };
    let idempotency = world.idempotency.clone();
    let open = tokio::spawn(async move { send(&idempotency, open).await });
    gate.arrival().await;
    let relay = Seen::default().relay(&world);
    world.until_settled().await;
    gate.open(1);
    assert_eq!(open.await.expect("no panic").expect("sent"), ["Duplicate"]);
    relay.stop().await;
}

// Waking.

fn patient(builder: Builder) -> Builder {
    builder.relay_interval(Duration::from_secs(600)).relay_lease(Duration::from_secs(60))
}

async fn until_asleep(world: &World, relays: i64) {
    let asleep = "SELECT count(*) FROM idem.relays WHERE sleeping";
    world.until("falling asleep", async |world| world.number(asleep).await == relays).await;
    // Its looks become rarer and rarer: soon the next one is minutes away.
    tokio::time::sleep(Duration::from_secs(2)).await;
}

#[tokio::test]
async fn a_commit_wakes_a_sleeping_relay() {
    let world = World::with(patient).await;
    let seen = Seen::default();
    let relay = seen.relay(&world);
    for round in 1..=3 {
        until_asleep(&world, 1).await;
        let begin = Instant::now();
        world.send([letter("mail", &format!("m{round}"), "x")]).await;
        world.until("a delivery", async |_| seen.names().len() == round).await;
        assert!(begin.elapsed() < Duration::from_millis(500), "{:?}", begin.elapsed());
    }
    // So does a person who has a dead letter delivered.
    world
        .run("UPDATE idem.outbox SET delivered_at = NULL, payload = '1', failure = 'dead' WHERE dedupe_key = 'm1'")
        .await;
    until_asleep(&world, 1).await;
    let dead = world.idempotency.dead_letters(1).await.expect("a list");
    assert!(world.idempotency.redeliver(&dead[0]).await.expect("given back"));
    world.until("a delivery", async |_| seen.names().len() == 4).await;
    relay.stop().await;
}

#[tokio::test]
async fn a_relay_whose_listening_connection_is_lost_listens_again() {
    let world = World::with(patient).await;
    let seen = Seen::default();
    let relay = seen.relay(&world);
    until_asleep(&world, 1).await;
    let listeners = "pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'";
    assert_eq!(world.number(&format!("SELECT count(*) FROM {listeners}")).await, 1);
    world.run(&format!("SELECT pg_terminate_backend(pid) FROM {listeners}")).await;
    world
        .until("a new listener", async |world| world.number(&format!("SELECT count(*) FROM {listeners}")).await == 1)
        .await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    until_asleep(&world, 1).await;
    world.send([letter("mail", "m", "x")]).await;
    world.until("a delivery", async |_| seen.names().len() == 1).await;
    relay.stop().await;
}

#[tokio::test]
async fn without_listening_a_relay_looks_at_its_interval_and_nobody_notifies() {
    let world = World::start().await;
    let seen = Seen::default();
    let relay = world.idempotency.relay().on_any(seen.handler()).without_listening().start().expect("a relay");
    let mut heard = listener(&world).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    for number in 0..5 {
        world.send([letter("mail", &format!("m{number}"), "x")]).await;
    }
    world.until_settled().await;
    relay.stop().await;
    assert_eq!((seen.names().len(), notifications(&mut heard).await), (5, 0));
}

async fn listener(world: &World) -> PgListener {
    let channel: String =
        sqlx::query_scalar("SELECT 'idem_outbox_' || substr(encode(sha256(int8send(4) || 'idem'), 'hex'), 1, 16)")
            .fetch_one(&world.pool)
            .await
            .expect("the channel's name");
    let mut listener = PgListener::connect_with(&world.pool).await.expect("a listener");
    listener.listen(&channel).await.expect("listening");
    listener
}

async fn notifications(listener: &mut PgListener) -> usize {
    let mut count = 0;
    while let Ok(notification) = tokio::time::timeout(Duration::from_millis(300), listener.recv()).await {
        // A relay that begins to listen sends itself a text.
        count += usize::from(notification.expect("a notification").payload().is_empty());
    }
    count
}

/// A transaction that notifies commits under a lock of the whole server.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn at_most_one_notification_a_transaction_and_none_while_the_relay_is_awake() {
    let world = World::with(patient).await;
    let seen = Seen::default();
    let relay = seen.relay(&world);
    until_asleep(&world, 1).await;
    let mut heard = listener(&world).await;
    world.send((0..10).map(|number| letter("mail", &format!("m{number}"), "x"))).await;
    world.until_settled().await;
    assert_eq!(notifications(&mut heard).await, 1, "ten messages, one transaction");
    until_asleep(&world, 1).await;
    world.run("UPDATE idem.relays SET topics = '{push}'").await;
    world.send([letter("mail", "for-nobody", "x")]).await;
    assert_eq!(notifications(&mut heard).await, 0, "no relay that takes it sleeps");
    world.run("UPDATE idem.relays SET topics = NULL").await;
    let writers = (0..8).map(|writer| {
        let idempotency = world.idempotency.clone();
        tokio::spawn(async move {
            for number in 0..50 {
                let letters = [letter("mail", &format!("{writer}-{number}"), "x")];
                send(&idempotency, World::batch(letters)).await.expect("sent");
            }
        })
    });
    join_all(writers).await.into_iter().for_each(|writer| writer.expect("no panic"));
    world.until_settled().await;
    relay.stop().await;
    let count = notifications(&mut heard).await;
    assert!(count < 200, "{count} notifications for 400 transactions in a row");
    assert_eq!(seen.names().len(), 411);
}

/// Several messages are settled, and their successors taken, in one commit.
#[tokio::test]
async fn messages_are_taken_and_settled_in_batches() {
    let world = World::start().await;
    world.send((0..400).map(|number| letter("mail", &format!("m{number}"), "x"))).await;
    let seen = Seen::default();
    let relay = world.idempotency.relay().on("mail", seen.handler()).limit(50).start().expect("a relay");
    world.until("deliveries", async |_| seen.names().len() == 400).await;
    world.until_settled().await;
    relay.stop().await;
    // The transaction that wrote each row last is the one that settled it.
    let used = world.number("SELECT count(DISTINCT xmin::text) FROM idem.outbox").await;
    assert!(used <= 40, "{used} transactions for 400 messages");
}

// The session's search path.

/// Functions and operators of an application's own, of the same names, found before Postgres's.
#[tokio::test]
async fn no_statement_of_the_outbox_can_be_led_astray_by_the_search_path() {
    let database = TestDatabase::create().await.expect("a database");
    let direct = database.pool();
    Idempotency::new(direct.clone()).migrate().await.expect("the migrations");
    let hostile = "
        CREATE SCHEMA hostile;
        CREATE FUNCTION hostile.trap() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'led astray'; END $$;
        DO $$
        DECLARE f record; o record;
        BEGIN
            FOR f IN SELECT p.proname, pg_get_function_identity_arguments(p.oid) AS args, pg_get_function_result(p.oid) AS result
                     FROM pg_proc AS p WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND NOT p.proretset
                       AND p.proname IN ('clock_timestamp', 'statement_timestamp', 'make_interval', 'random', 'power',
                                         'pg_notify', 'pg_advisory_xact_lock', 'current_setting', 'set_config',
                                         'to_timestamp')
            LOOP
                EXECUTE format('CREATE FUNCTION hostile.%I(%s) RETURNS %s LANGUAGE plpgsql AS
                                ''BEGIN RAISE EXCEPTION ''''led astray''''; END''', f.proname, f.args, f.result);
            END LOOP;
            FOR o IN SELECT n, l, r, b FROM (VALUES
                ('=', 'text', 'text', 'boolean'), ('=', 'bigint', 'bigint', 'boolean'), ('=', 'integer', 'integer', 'boolean'),
                ('=', 'timestamptz', 'timestamptz', 'boolean'), ('=', 'boolean', 'boolean', 'boolean'),
                ('=', 'tid', 'tid', 'boolean'), ('<>', 'text', 'text', 'boolean'), ('<', 'bigint', 'bigint', 'boolean'),
                ('<=', 'timestamptz', 'timestamptz', 'boolean'), ('>', 'timestamptz', 'timestamptz', 'boolean'),
                ('>', 'text', 'text', 'boolean'), ('>=', 'timestamptz', 'timestamptz', 'boolean'),
                ('<>', 'bigint', 'bigint', 'boolean'), ('+', 'integer', 'integer', 'integer'),
                ('-', 'timestamptz', 'interval', 'timestamptz'), ('+', 'numeric', 'double precision', 'double precision')
            ) AS v (n, l, r, b)
            LOOP
                EXECUTE format('CREATE OPERATOR hostile.%s (FUNCTION = hostile.trap_%s_%s, LEFTARG = %s, RIGHTARG = %s)',
                    o.n, replace(o.l, ' ', '_'), replace(o.r, ' ', '_') || '_' || ascii(o.n) || length(o.n), o.l, o.r);
            END LOOP;
        END $$;";
    // An operator needs a function of its signature first.
    let hostile = hostile.replace(
        "EXECUTE format('CREATE OPERATOR",
        "EXECUTE format('CREATE FUNCTION hostile.trap_%s_%s(%s, %s) RETURNS %s LANGUAGE plpgsql AS
                    ''BEGIN RAISE EXCEPTION ''''led astray''''; END''',
                    replace(o.l, ' ', '_'), replace(o.r, ' ', '_') || '_' || ascii(o.n) || length(o.n), o.l, o.r, o.b);
                EXECUTE format('CREATE OPERATOR",
    );
    sqlx::raw_sql(AssertSqlSafe(hostile)).execute(&direct).await.expect("a hostile schema");
    let options = PgPoolOptions::new().max_connections(20).after_connect(|connection, _| {
        Box::pin(async move {
            sqlx::raw_sql("SET search_path = hostile, pg_catalog, public").execute(connection).await.map(drop)
        })
    });
    let pool = database.pool_with(options);
    assert!(sqlx::query("SELECT 1 WHERE 'a'::text = 'a'::text").execute(&pool).await.is_err(), "the control");
    let idempotency = settings(&pool).delivery_attempts(1).build().expect("settings");
    let plain = settings(&direct).delivery_attempts(1).build().expect("settings");
    // The claim around it is not the question here.
    let seen = Seen::default();
    let around = Some(["SET LOCAL search_path = hostile, pg_catalog, public", "SET LOCAL search_path = public"]);
    let letters = [letter("mail", "m", "x"), letter("mail", "m", "x"), grouped("g", "n"), letter("dead", "d", "x")];
    let sent = send(&plain, Batch { around, ..World::batch(letters) }).await.expect("sent");
    assert_eq!(sent, ["New", "Duplicate", "New", "New"]);
    let relay = idempotency.relay().on_any(seen.handler()).on("dead", |_| async { Err::<(), _>("never") });
    let relay = relay.start().expect("a relay");
    let pending = "SELECT count(*) FROM idem.outbox WHERE delivered_at IS NULL AND failure IS NULL";
    for _ in 0..2_000 {
        if sqlx::query_scalar::<_, i64>(pending).fetch_one(&direct).await.expect("a count") == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    relay.stop().await;
    assert_eq!(seen.names().len(), 2);
    let dead = idempotency.dead_letters(10).await.expect("a list");
    assert_eq!(idempotency.outbox_status().await.expect("a status").len(), 1);
    assert!(idempotency.redeliver(&dead[0]).await.expect("given back"));
    assert!(!idempotency.discard_dead_letter(&dead[0]).await.expect("not dead"));
}

/// Row-level security: the handler works as a role that knows nothing of our tables.
#[tokio::test]
async fn a_handler_sends_under_any_role_and_keeps_it_47() {
    let world = World::with(|builder| builder.delivery_attempts(1)).await;
    let role = format!("{}_tenant", world.database.name());
    world.run(&format!("CREATE ROLE {role}; CREATE TABLE notes (text text)")).await;
    world.run("ALTER TABLE notes ENABLE ROW LEVEL SECURITY; CREATE POLICY own ON notes USING (true)").await;
    world.run(&format!("GRANT ALL ON notes TO {role}")).await;
    for (number, become_tenant) in
        ["SET LOCAL ROLE {role}", "SET ROLE {role}", "SET LOCAL SESSION AUTHORIZATION {role}"].into_iter().enumerate()
    {
        let before: &'static str = become_tenant.replace("{role}", &role).leak();
        let after = "INSERT INTO notes SELECT current_user";
        let sent = async |letters: Vec<Letter>| {
            let batch = Batch { around: Some([before, after]), ..World::batch(letters) };
            send(&world.idempotency, batch).await.expect(before)
        };
        let name = format!("m{number}");
        let letters = vec![letter("mail", &name, "x"), letter("mail", &name, "x"), grouped("g", &format!("{name}-g"))];
        assert_eq!(sent(letters).await, ["New", "Duplicate", "New"]);
        let failing = world.idempotency.relay().on("mail", |_| async { Err::<(), _>("never") });
        let failing = failing.start().expect("a relay");
        world.until_settled().await;
        failing.stop().await;
        assert_eq!(sent(vec![letter("mail", &name, "x"), grouped("g", &format!("{name}-h"))]).await, ["Dead", "New"]);
        let relay = Seen::default().relay(&world);
        world.until_settled().await;
        assert_eq!(relay.stop().await, 2);
    }
    let as_tenant = format!("SELECT count(*) FROM notes WHERE text = '{role}'");
    assert_eq!(world.number(&as_tenant).await, 6, "what came after was the tenant's again");
    world.run(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}
