//! A pooler in transaction mode gives each transaction another session: nothing may lean on the session.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use futures_util::future::join_all;
use idem_runtime::Idempotency;
use idem_testing::TestDatabase;
use idem_tests::{App, Then, entry};
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

struct PgBouncer {
    process: Child,
    directory: PathBuf,
    options: PgConnectOptions,
}

impl PgBouncer {
    /// Two server connections for all clients. `None` on a machine without PgBouncer.
    fn start(database: &TestDatabase) -> Option<Self> {
        let program = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/opt/homebrew/bin/pgbouncer"]
            .into_iter()
            .find(|path| PathBuf::from(path).exists());
        let Some(program) = program else {
            assert!(std::env::var_os("CI").is_none(), "no PgBouncer; install it (`apt-get install pgbouncer`)");
            eprintln!("skipped: no PgBouncer on this machine; install it (`apt-get install pgbouncer`)");
            return None;
        };
        let port =
            std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address").port();
        let directory = std::env::temp_dir().join(format!("idem-pgbouncer-{}", database.name()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let configuration = directory.join("pgbouncer.ini");
        let server = database.connect_options();
        let host =
            server.get_socket().map_or_else(|| server.get_host().to_owned(), |socket| socket.display().to_string());
        let text = format!(
            "[databases]\napp = host={host} port={} user={} dbname={}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
             pool_mode = transaction\ndefault_pool_size = 2\nignore_startup_parameters = extra_float_digits\n",
            server.get_port(),
            server.get_username(),
            database.name(),
        );
        std::fs::write(&configuration, text).expect("a configuration");
        let mut command = Command::new(program);
        // It refuses to be root, and must reach the socket of a server that drops to `postgres` for the same reason.
        if std::fs::metadata("/proc/self").is_ok_and(|metadata| std::os::unix::fs::MetadataExt::uid(&metadata) == 0) {
            command.args(["-u", "postgres"]);
        }
        let process =
            command.arg(&configuration).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("PgBouncer");
        let options =
            PgConnectOptions::new_without_pgpass().host("127.0.0.1").port(port).username("app").database("app");
        Some(Self { process, directory, options })
    }

    async fn pool(&self, size: u32) -> PgPool {
        for _ in 0..200 {
            if let Ok(pool) = PgPoolOptions::new().max_connections(size).connect_with(self.options.clone()).await {
                return pool;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("PgBouncer does not answer");
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn everything_works_behind_pgbouncer_in_transaction_mode_11() {
    let database = TestDatabase::create().await.expect("a database");
    let Some(pgbouncer) = PgBouncer::start(&database) else { return };
    let direct = App::another(&database);
    idem_tests::create_tables(&direct.pool).await;
    let pool = pgbouncer.pool(10).await;
    direct.idempotency.migrate().await.expect("the migrations");
    let builder = Idempotency::builder(pool.clone()).prepared_statements(false);
    let app = App::over(pool, builder.build().expect("settings"));
    // Twenty operations through two sessions, each three times, with every kind of ending.
    let posts = (0..60).map(|number| {
        let app = app.clone();
        tokio::spawn(async move {
            let number = number / 3;
            let then = match number % 4 {
                0 => Then::Created,
                1 => Then::Status(402),
                2 => Then::Duplicate,
                _ => Then::Savepoint,
            };
            let body = entry("pooled", then);
            let mut reply = app.post("/entries", &format!("k{number}"), &body).await;
            while reply.problem_is("in-flight") {
                tokio::time::sleep(Duration::from_millis(10)).await;
                reply = app.post("/entries", &format!("k{number}"), &body).await;
            }
            (number, reply)
        })
    });
    for reply in join_all(posts).await {
        let (number, reply) = reply.expect("no panic");
        assert_eq!(reply.status, [201, 402, 409, 201][number % 4], "{reply:?}");
    }
    assert_eq!((direct.entries().await, direct.stored().await), (10, 20));
    assert_eq!(app.post("/entries", "failed", &entry("failed", Then::Status(500))).await.status, 500);
    assert_eq!(app.post("/entries", "escaped", &entry("escaped", Then::Escape(201))).await.status, 500);
    assert_eq!(app.post("/entries", "next", &entry("next", Then::Created)).await.status, 201);
    // No lock and no open transaction is stranded in the pooler's sessions.
    let stranded = "SELECT (SELECT count(*) FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database \
                            WHERE locktype = 'advisory' AND datname = current_database()) \
                         + (SELECT count(*) FROM pg_stat_activity \
                            WHERE datname = current_database() AND state LIKE 'idle in transaction%')";
    let mut left: i64 = 1;
    for _ in 0..100 {
        left = sqlx::query_scalar(stranded).fetch_one(&direct.pool).await.expect("a count");
        if left == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(left, 0);
    assert_eq!(app.idempotency.sweep().await.expect("a sweep"), 0);
}

/// LISTEN is forgotten by a pooler in transaction mode, without an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_behind_pgbouncer_looks_at_its_interval_or_listens_beside_it_11() {
    let database = TestDatabase::create().await.expect("a database");
    let Some(pgbouncer) = PgBouncer::start(&database) else { return };
    let direct = App::another(&database);
    direct.idempotency.migrate().await.expect("the migrations");
    let pool = pgbouncer.pool(10).await;
    for (interval, beside) in [(Duration::from_millis(50), false), (Duration::from_secs(600), true)] {
        let builder = Idempotency::builder(pool.clone()).prepared_statements(false).relay_interval(interval);
        let idempotency = builder.build().expect("settings");
        let (delivered, mut deliveries) = tokio::sync::mpsc::unbounded_channel();
        let relay = idempotency.relay().on("mail", move |message| {
            let _ = delivered.send(message.dedupe_key().to_owned());
            async { Ok::<_, String>(()) }
        });
        let relay = if beside { relay.listen_with(database.connect_options()) } else { relay };
        let relay = relay.start().expect("a relay");
        let asleep = "SELECT count(*) FROM idem.relays WHERE sleeping";
        // The probe of a line that is dead takes five seconds.
        tokio::time::sleep(Duration::from_secs(if beside { 3 } else { 7 })).await;
        let asleep: i64 = sqlx::query_scalar(asleep).fetch_one(&direct.pool).await.expect("a count");
        assert_eq!(asleep == 1, beside, "writers notify nobody who does not hear");
        for number in 0..3 {
            let name = format!("{beside}-{number}");
            relayed(&idempotency, name.clone()).await.expect("sent");
            let arrived = tokio::time::timeout(Duration::from_secs(5), deliveries.recv()).await.expect("in time");
            assert_eq!(arrived, Some(name));
            tokio::time::sleep(Duration::from_millis(700)).await;
        }
        assert_eq!(relay.stop().await, 3);
    }
}

#[idem_runtime::idempotent(scope = "pooled", key = name, ttl = "24h")]
async fn relayed(
    idempotency: &Idempotency,
    tx: &mut idem_runtime::Tx,
    name: String,
) -> Result<(), idem_runtime::Error> {
    tx.outbox().group("pooled").send("mail", &name, &name).await.map(drop)
}
