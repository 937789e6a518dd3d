//! The proxy counts what passes and strikes where it is told to.

use std::time::{Duration, Instant};

use idem_testing::TestDatabase;
use idem_testing::proxy::{Action, Direction, Fault, Place, Proxy, Severity, Word};
use sqlx::postgres::PgPoolOptions;
use sqlx::{ConnectOptions, Connection, Executor, PgPool};

const INSERT: &str = "INSERT INTO orders VALUES ($1)";

/// A table, a proxied pool of one that has `INSERT` prepared, and a direct one.
struct Fixture {
    proxy: Proxy,
    pool: PgPool,
    direct: PgPool,
    _database: TestDatabase,
}

impl Fixture {
    async fn new() -> Fixture {
        let database = TestDatabase::create().await.unwrap();
        let direct = database.pool();
        direct.execute("CREATE TABLE orders (id bigint)").await.unwrap();
        let proxy = Proxy::start(&database.url()).unwrap();
        let options = PgPoolOptions::new().max_connections(1).test_before_acquire(false);
        let pool = proxy.pool_with(options);
        sqlx::query(INSERT).bind(0_i64).execute(&pool).await.unwrap();
        Fixture { proxy, pool, direct, _database: database }
    }

    async fn insert(&self, id: i64) -> Result<(), sqlx::Error> {
        // Not `execute`: releasing to the pool pings, which would be a round trip more.
        let mut connection = self.pool.acquire().await?;
        sqlx::query(INSERT).bind(id).execute(&mut *connection).await.map(drop)
    }

    async fn has(&self, id: i64) -> bool {
        let select = "SELECT EXISTS (SELECT FROM orders WHERE id = $1)";
        sqlx::query_scalar(select).bind(id).fetch_one(&self.direct).await.unwrap()
    }

    async fn insert_under(&self, id: i64, place: Place, action: Action) -> Result<(), sqlx::Error> {
        self.proxy.inject(Fault { place, action });
        let result = self.insert(id).await;
        assert_eq!(self.proxy.met().expect("the place was not reached").statement, INSERT);
        result
    }
}

/// The releases of the pool ping in the background: wait for them, so that counts are exact.
async fn quiet(proxy: &Proxy) {
    loop {
        let before = proxy.counts();
        tokio::time::sleep(Duration::from_millis(30)).await;
        if proxy.counts() == before {
            return;
        }
    }
}

#[tokio::test]
async fn a_cut_before_a_statement_prevents_it_and_a_cut_before_its_answer_does_not() {
    let fixture = Fixture::new().await;
    quiet(&fixture.proxy).await;
    for (id, place, executed) in [
        (1, Place::RoundTrip(1), false), // Bind
        (2, Place::Frontend(2), false),  // Execute
        (3, Place::Frontend(4), false),  // Sync: executed, and rolled back with the session
        (4, Place::Answer(1), true),     // BindComplete
        (5, Place::Backend(2), true),    // CommandComplete
        (6, Place::Backend(4), true),    // ReadyForQuery
    ] {
        assert!(fixture.insert_under(id, place, Action::Cut).await.is_err(), "{place:?}");
        assert_eq!(fixture.has(id).await, executed, "{place:?}");
        fixture.insert(100 + id).await.unwrap();
        quiet(&fixture.proxy).await;
    }
}

#[tokio::test]
async fn a_cut_after_the_last_message_loses_the_acknowledgement_alone() {
    let fixture = Fixture::new().await;
    quiet(&fixture.proxy).await;
    for (id, place, executed) in [(1, Place::Frontend(1), false), (2, Place::Frontend(4), true)] {
        let begin = Instant::now();
        assert!(fixture.insert_under(id, place, Action::CutAfter).await.is_err());
        assert!(begin.elapsed() < Duration::from_secs(2));
        assert_eq!(fixture.has(id).await, executed, "{place:?}");
        fixture.insert(100 + id).await.unwrap();
        quiet(&fixture.proxy).await;
    }
}

#[tokio::test]
async fn a_stalled_message_arrives_late_even_if_its_sender_hung_up() {
    let fixture = Fixture::new().await;
    quiet(&fixture.proxy).await;
    let stall = Action::Stall(Duration::from_millis(200));
    let begin = Instant::now();
    fixture.insert_under(1, Place::RoundTrip(1), stall).await.unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(200));

    quiet(&fixture.proxy).await;
    let hung_up = tokio::time::timeout(Duration::from_millis(50), fixture.insert_under(2, Place::RoundTrip(1), stall));
    assert!(hung_up.await.is_err());
    assert!(fixture.proxy.is_stalling() && !fixture.has(2).await);
    while fixture.proxy.is_stalling() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(fixture.has(2).await);
}

#[tokio::test]
async fn a_killed_backend_takes_the_statement_with_it() {
    let fixture = Fixture::new().await;
    quiet(&fixture.proxy).await;
    assert!(fixture.insert_under(1, Place::RoundTrip(1), Action::KillBackend).await.is_err());
    let met = fixture.proxy.met().unwrap();
    assert_eq!((met.direction, met.message, met.failure), (Direction::Frontend, "Bind", None));
    assert!(!fixture.has(1).await);
    fixture.insert(2).await.unwrap();
    assert!(fixture.has(2).await);
}

#[tokio::test]
async fn all_connections_can_be_cut_and_new_ones_work() {
    let fixture = Fixture::new().await;
    let mut connection = fixture.pool.acquire().await.unwrap();
    fixture.proxy.cut_connections();
    assert!(connection.ping().await.is_err());
    drop(connection);
    fixture.insert(1).await.unwrap();
    assert!(fixture.has(1).await);
}

#[tokio::test]
async fn a_fault_strikes_once_and_not_after_it_was_withdrawn() {
    let fixture = Fixture::new().await;
    let fault = Fault { place: Place::RoundTrip(1), action: Action::Cut };
    fixture.proxy.inject(fault);
    fixture.proxy.disarm();
    fixture.insert(1).await.unwrap();
    assert_eq!(fixture.proxy.met(), None);
    quiet(&fixture.proxy).await;
    fixture.proxy.inject(fault);
    assert!(fixture.insert(2).await.is_err());
    fixture.insert(3).await.unwrap();
}

#[tokio::test]
async fn statements_round_trips_and_commits_are_counted() {
    let fixture = Fixture::new().await;
    let mut connection = fixture.pool.acquire().await.unwrap();
    fixture.proxy.record();
    let before = fixture.proxy.counts();
    sqlx::query(INSERT).bind(1_i64).execute(&mut *connection).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    sqlx::query(INSERT).bind(2_i64).execute(&mut *transaction).await.unwrap();
    sqlx::query(INSERT).bind(3_i64).execute(&mut *transaction).await.unwrap();
    transaction.commit().await.unwrap();
    connection.execute(sqlx::raw_sql("BEGIN; INSERT INTO orders VALUES (4); COMMIT AND CHAIN")).await.unwrap();
    connection.execute(sqlx::raw_sql("INSERT INTO orders VALUES (5); ROLLBACK")).await.unwrap();
    connection.execute(sqlx::raw_sql("SELECT 1")).await.unwrap();
    let counts = fixture.proxy.counts() - before;
    assert_eq!((counts.statements, counts.round_trips, counts.commits), (8, 8, 3));
    assert_eq!(counts.connections, 0);
    assert_eq!(counts.frontend_messages, 3 * 4 + 5);
    let recorded = fixture.proxy.recorded();
    assert_eq!(recorded[0], format!("Bind Execute Close Sync: {INSERT}"));
    assert_eq!(recorded[1], "Query: BEGIN");
    assert_eq!(recorded.len(), 8);
}

#[tokio::test]
async fn latency_is_added_to_round_trips_and_not_to_messages() {
    let fixture = Fixture::new().await;
    let mut connection = fixture.pool.acquire().await.unwrap();
    let rounds = 50;
    let mut times = Vec::new();
    for latency in [Duration::ZERO, Duration::from_millis(2)] {
        fixture.proxy.set_latency(latency);
        let begin = Instant::now();
        for id in 0..rounds {
            sqlx::query(INSERT).bind(i64::from(id)).execute(&mut *connection).await.unwrap();
        }
        times.push(begin.elapsed() / rounds);
    }
    let added = times[1].saturating_sub(times[0]);
    assert!((1_500..5_000).contains(&added.as_micros()), "{added:?}");
}

#[tokio::test]
async fn the_url_leads_through_the_proxy() {
    let fixture = Fixture::new().await;
    let before = fixture.proxy.counts();
    let mut connection = sqlx::PgConnection::connect(fixture.proxy.url()).await.unwrap();
    connection.ping().await.unwrap();
    assert_eq!((fixture.proxy.counts() - before).connections, 1);
}

/// A word with what a client can see of it, from the one statement that it strikes.
async fn speak(fixture: &Fixture, word: Word, executed: bool, id: i64, simple: bool) {
    let context = format!("{word}, executed: {executed}, simple: {simple}");
    let mut connection = fixture.pool.acquire().await.unwrap();
    connection.execute(sqlx::raw_sql("SET application_name = 'first'")).await.unwrap();
    connection.execute(sqlx::raw_sql("BEGIN")).await.unwrap();
    let place = if executed { Place::Answer(1) } else { Place::RoundTrip(1) };
    fixture.proxy.inject(Fault { place, action: Action::Answer(word) });
    let insert = sqlx::AssertSqlSafe(format!("INSERT INTO orders VALUES ({id}); COMMIT AND CHAIN"));
    let spoken = match simple {
        true => connection.execute(sqlx::raw_sql(insert)).await,
        false => sqlx::query(INSERT).bind(id).execute(&mut *connection).await,
    };
    let spoken = spoken.expect_err(&context);
    assert!(fixture.proxy.met().is_some(), "{context}");
    if let Word::Error { code, .. } | Word::ServerLost { code } = word {
        assert_eq!(spoken.as_database_error().and_then(|error| error.code()).as_deref(), Some(code), "{context}");
    }
    let next = sqlx::query_scalar("SELECT current_setting('application_name')").fetch_one(&mut *connection).await;
    match (word, next) {
        (word, next) if word.closes() => assert!(next.is_err(), "{context}: {next:?}"),
        (Word::ServerLost { .. }, next) => {
            let name: String = next.expect(&context);
            assert_ne!(name, "first", "{context}: the session is another one");
        }
        // The client cannot make sense of the bytes, or is in a failed transaction.
        (_, next) => assert!(next.is_err(), "{context}: {next:?}"),
    }
    if word.closes() || matches!(word, Word::Broken(_)) {
        drop(connection.detach());
    } else {
        // Ends what is left of the transaction; outside of one it is a warning.
        connection.execute(sqlx::raw_sql("ROLLBACK")).await.expect(&context);
        let idle = sqlx::query(INSERT).bind(-id).execute(&mut *connection).await;
        idle.expect(&context);
        drop(connection);
        assert!(fixture.has(-id).await, "{context}: the connection is in no transaction");
    }
    assert_eq!(fixture.has(id).await, executed && simple, "{context}: committed where it was executed");
}

#[tokio::test]
async fn every_word_is_said_in_both_protocols_and_leaves_the_session_as_it_says() {
    let fixture = Fixture::new().await;
    let mut id = 0;
    for word in Word::every() {
        for executed in [false, true] {
            for simple in [false, true] {
                quiet(&fixture.proxy).await;
                id += 1;
                speak(&fixture, word, executed, id, simple).await;
            }
        }
    }
    assert_eq!(id, 140);
}

#[tokio::test]
async fn a_word_in_the_middle_of_a_round_trip_takes_back_what_came_before_it() {
    let fixture = Fixture::new().await;
    let word = Word::Error { severity: Severity::Error, code: "53100" };
    // Bind, Execute, Close, Sync, outside of a transaction; then BindComplete, CommandComplete, CloseComplete, ReadyForQuery.
    for n in 1..=4 {
        for (place, executed) in [(Place::Frontend(n), false), (Place::Backend(n), true)] {
            quiet(&fixture.proxy).await;
            let id = n as i64 * 2 + i64::from(executed);
            let error = fixture.insert_under(id, place, Action::Answer(word)).await.expect_err("the word");
            assert_eq!(error.as_database_error().and_then(|error| error.code()).as_deref(), Some("53100"), "{place:?}");
            assert_eq!(fixture.has(id).await, executed, "{place:?}");
            fixture.insert(100 + id).await.unwrap();
            assert!(fixture.has(100 + id).await, "{place:?}");
        }
    }
    assert_eq!(fixture.proxy.counts().connections, 1, "the connection stayed open");
}

#[tokio::test]
async fn a_word_while_a_session_begins_ends_it() {
    let fixture = Fixture::new().await;
    quiet(&fixture.proxy).await;
    let word = Word::Error { severity: Severity::Fatal, code: "57P03" };
    for place in [Place::RoundTrip(1), Place::Answer(1)] {
        fixture.proxy.inject(Fault { place, action: Action::Answer(word) });
        let error = fixture.proxy.connect_options().connect().await.expect_err("the word");
        assert_eq!(error.as_database_error().and_then(|error| error.code()).as_deref(), Some("57P03"));
        fixture.proxy.connect_options().connect().await.expect("the next one begins").close().await.unwrap();
    }
}
