//! Servers are shared, restarted, and never outlive their holders.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use idem_testing::{Postgres, Shutdown, TestDatabase};
use sqlx::{Connection, PgConnection};

/// A process of its own that holds a server, in a temporary directory of its own.
struct Holder {
    child: Child,
    stdin: Option<ChildStdin>,
    /// Kept, for a process that prints to nobody fails.
    _stdout: BufReader<ChildStdout>,
    database: String,
    postmaster: u32,
}

impl Holder {
    fn start(kind: &str, temporary: &Path) -> Holder {
        Self::announced(Self::spawn(kind, temporary))
    }

    fn spawn(kind: &str, temporary: &Path) -> Child {
        Self::command(kind, temporary).spawn().unwrap()
    }

    fn command(kind: &str, temporary: &Path) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "holder_process", "--ignored", "--nocapture"])
            .env("IDEM_TEST_HOLDER", kind)
            .env("TMPDIR", temporary)
            .env_remove("DATABASE_URL")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command
    }

    fn announced(mut child: Child) -> Holder {
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let lines = stdout.by_ref().lines().map_while(Result::ok);
        let line = lines.into_iter().find_map(|line| line.split_once("holding ").map(|(_, rest)| rest.to_owned()));
        let line = line.expect("the holder ended before it had a server");
        let (postmaster, database) = line.split_once(' ').unwrap();
        let stdin = child.stdin.take();
        let postmaster = postmaster.parse().unwrap();
        Holder { child, stdin, _stdout: stdout, database: database.to_owned(), postmaster }
    }

    fn end(mut self) {
        drop(self.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Not a test: what [`Holder`] runs. It ends when its standard input does.
#[test]
#[ignore = "run by the other tests"]
fn holder_process() {
    let Ok(kind) = std::env::var("IDEM_TEST_HOLDER") else { return };
    let postgres = if kind == "shared" { Postgres::shared() } else { Postgres::private() }.unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let database = runtime.block_on(TestDatabase::create_on(&postgres)).unwrap();
    let directory = directory_of(&postgres);
    let postmaster = fs::read_to_string(directory.join("data/postmaster.pid")).unwrap();
    println!("holding {} {}", postmaster.lines().next().unwrap(), database.name());
    std::io::stdin().lines().for_each(drop);
}

fn directory_of(postgres: &Postgres) -> PathBuf {
    postgres.url("postgres").split_once("?host=").unwrap().1.into()
}

/// A directory that is removed when the test ends.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Temporary {
        let path = std::env::temp_dir().join(format!("idem-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o1777)).unwrap();
        Temporary(path)
    }

    fn servers(&self) -> Vec<PathBuf> {
        fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    fn server(&self) -> PathBuf {
        let servers = self.servers();
        assert_eq!(servers.len(), 1, "{servers:?}");
        servers[0].clone()
    }

    fn processes(&self) -> Vec<(u32, String)> {
        let output = Command::new("ps").args(["-eo", "pid,args"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let ours = text.lines().filter(|line| line.contains(self.0.to_str().unwrap()));
        ours.map(|line| line.trim().split_once(' ').unwrap())
            .map(|(process, command)| (process.parse().unwrap(), command.to_owned()))
            .collect()
    }

    fn kill_supervisor(&self) {
        let processes = self.processes();
        let (supervisor, _) = processes.iter().find(|(_, command)| command.contains(" idem-postgres ")).unwrap();
        kill(*supervisor);
    }

    fn assert_no_process_remains(&self) {
        eventually("all processes end", || self.processes().is_empty());
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn kill(process: u32) {
    assert!(Command::new("kill").args(["-9", &process.to_string()]).status().unwrap().success());
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(30), "not within 30 seconds: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn listens(server: &Path) -> bool {
    UnixStream::connect(server.join(".s.PGSQL.5432")).is_ok()
}

#[test]
fn parallel_processes_share_one_server_and_the_next_run_starts_it_again() {
    let temporary = Temporary::new("share");
    for _run in 0..2 {
        let children: Vec<_> = (0..8).map(|_| Holder::spawn("shared", &temporary.0)).collect();
        let holders: Vec<_> = children.into_iter().map(Holder::announced).collect();
        assert!(holders.iter().all(|holder| holder.postmaster == holders[0].postmaster));
        let server = temporary.server();
        for holder in holders {
            assert!(listens(&server));
            holder.end();
        }
        temporary.assert_no_process_remains();
    }
}

#[test]
fn processes_that_come_and_go_always_have_a_server() {
    let temporary = Temporary::new("churn");
    std::thread::scope(|scope| {
        for delay in 0..4 {
            let temporary = &temporary;
            scope.spawn(move || {
                for _ in 0..6 {
                    std::thread::sleep(Duration::from_millis(37 * delay));
                    Holder::start("shared", &temporary.0).end();
                }
            });
        }
    });
    temporary.assert_no_process_remains();
}

#[test]
fn a_killed_holder_leaves_no_server_and_a_private_one_no_files() {
    let temporary = Temporary::new("kill");
    let private = Holder::start("private", &temporary.0);
    let shared = Holder::start("shared", &temporary.0);
    assert_eq!(temporary.servers().len(), 2);
    private.kill();
    eventually("the private server's files go", || temporary.servers().len() == 1);
    shared.kill();
    temporary.assert_no_process_remains();
    assert!(!listens(&temporary.server()));
}

#[test]
fn a_holder_killed_while_its_server_starts_leaves_nothing() {
    let temporary = Temporary::new("early");
    for delay in [0, 100, 200, 300, 500, 700, 1000] {
        let mut child = Holder::spawn("shared", &temporary.0);
        std::thread::sleep(Duration::from_millis(delay));
        assert!(child.try_wait().unwrap().is_none(), "the holder failed after {delay} ms");
        child.kill().unwrap();
        child.wait().unwrap();
    }
    Holder::start("shared", &temporary.0).end();
    temporary.assert_no_process_remains();
}

#[test]
fn files_of_a_server_that_was_killed_with_everything_do_not_matter() {
    let temporary = Temporary::new("stale");
    let holder = Holder::start("shared", &temporary.0);
    let server = temporary.server();
    temporary.kill_supervisor();
    kill(holder.postmaster);
    holder.kill();
    temporary.assert_no_process_remains();
    assert!(server.join("holders").exists() && server.join("data/postmaster.pid").exists());
    Holder::start("shared", &temporary.0).end();
    temporary.assert_no_process_remains();
}

#[test]
fn a_process_number_that_was_given_to_somebody_else_does_not_matter() {
    let temporary = Temporary::new("number");
    Holder::start("shared", &temporary.0).end();
    temporary.assert_no_process_remains();
    let lock = format!("{}\n/nowhere\n0\n5432\n\n\n\nready\n", std::process::id());
    fs::write(temporary.server().join("data/postmaster.pid"), lock).unwrap();
    Holder::start("shared", &temporary.0).end();
    temporary.assert_no_process_remains();
}

#[test]
fn an_orphaned_server_is_replaced_by_one_that_ends() {
    let temporary = Temporary::new("orphan");
    let holder = Holder::start("shared", &temporary.0);
    let orphan = holder.postmaster;
    temporary.kill_supervisor();
    holder.kill();
    assert!(listens(&temporary.server()));
    let next = Holder::start("shared", &temporary.0);
    assert_ne!(next.postmaster, orphan);
    next.end();
    temporary.assert_no_process_remains();
}

#[test]
fn databases_of_a_killed_process_are_dropped_by_the_next() {
    let temporary = Temporary::new("abandon");
    let stays = Holder::start("shared", &temporary.0);
    let abandoned = Holder::start("shared", &temporary.0);
    let (kept, lost) = (stays.database.clone(), abandoned.database.clone());
    abandoned.kill();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let url = format!("postgres://postgres@localhost/postgres?host={}", temporary.server().display());
    let names = || -> Vec<String> {
        runtime.block_on(async {
            let mut connection = PgConnection::connect(&url).await.unwrap();
            let select = "SELECT datname::text FROM pg_database";
            sqlx::query_scalar(select).fetch_all(&mut connection).await.unwrap()
        })
    };
    assert!(names().contains(&lost));
    eventually("the next process drops it", || {
        Holder::start("shared", &temporary.0).end();
        !names().contains(&lost)
    });
    assert!(names().contains(&kept));
    stays.end();
    temporary.assert_no_process_remains();
}

#[tokio::test]
async fn a_server_that_runs_already_is_used_and_none_started() {
    let running = Postgres::private().unwrap();
    let temporary = Temporary::new("external");
    let mut command = Holder::command("shared", &temporary.0);
    command.env("DATABASE_URL", running.url("postgres"));
    let holder = Holder::announced(command.spawn().unwrap());
    let mut connection = PgConnection::connect(&running.url("postgres")).await.unwrap();
    let select = "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)";
    let database = holder.database.clone();
    let exists: bool = sqlx::query_scalar(select).bind(&database).fetch_one(&mut connection).await.unwrap();
    assert!(exists && temporary.servers().is_empty());
    holder.end();
    let exists: bool = sqlx::query_scalar(select).bind(&database).fetch_one(&mut connection).await.unwrap();
    assert!(!exists);
}

#[tokio::test]
async fn a_private_server_restarts_with_what_was_committed() {
    let postgres = Postgres::private().unwrap();
    let url = postgres.url("postgres");
    let mut connection = PgConnection::connect(&url).await.unwrap();
    sqlx::query("CREATE TABLE orders (id bigint)").execute(&mut connection).await.unwrap();
    for (id, shutdown) in [(1_i64, Shutdown::Fast), (2, Shutdown::Immediate)] {
        let insert = "INSERT INTO orders VALUES ($1)";
        let mut connection = PgConnection::connect(&url).await.unwrap();
        sqlx::query(insert).bind(id).execute(&mut connection).await.unwrap();
        let mut transaction = connection.begin().await.unwrap();
        sqlx::query(insert).bind(100 + id).execute(&mut *transaction).await.unwrap();
        postgres.restart(shutdown).unwrap();
        assert!(transaction.commit().await.is_err());
    }
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let ids: Vec<i64> =
        sqlx::query_scalar("SELECT id FROM orders ORDER BY id").fetch_all(&mut connection).await.unwrap();
    assert_eq!(ids, [1, 2]);
}

#[tokio::test]
async fn a_stopped_server_is_gone_until_it_is_started_and_its_files_go_at_the_end() {
    let postgres = Postgres::private().unwrap();
    let directory = directory_of(&postgres);
    postgres.stop(Shutdown::Fast).unwrap();
    assert!(PgConnection::connect(&postgres.url("postgres")).await.is_err());
    postgres.start().unwrap();
    assert!(postgres.start().unwrap_err().to_string().contains("use `restart`"));
    PgConnection::connect(&postgres.url("postgres")).await.unwrap();
    postgres.stop(Shutdown::Immediate).unwrap();
    drop(postgres);
    assert!(!directory.exists());
}

#[tokio::test]
async fn settings_hold_and_durable_means_fsync() {
    for (options, expected) in
        [(Postgres::options(), "off"), (Postgres::options().durable().setting("application_name", "it's"), "on")]
    {
        let postgres = options.start().unwrap();
        let mut connection = PgConnection::connect(&postgres.url("postgres")).await.unwrap();
        let fsync: String = sqlx::query_scalar("SHOW fsync").fetch_one(&mut connection).await.unwrap();
        assert_eq!(fsync, expected);
    }
    let error = Postgres::options().setting("no_such_setting", 1).start().unwrap_err().to_string();
    assert!(error.contains("no_such_setting"), "{error}");
    let directory = error.split('`').nth(1).unwrap();
    assert!(directory.contains("idem-private") && !Path::new(directory).exists(), "{error}");
}

#[test]
fn a_shared_server_cannot_be_stopped() {
    let error = Postgres::shared().unwrap().stop(Shutdown::Fast).unwrap_err().to_string();
    assert!(error.contains("use `Postgres::private()`"), "{error}");
}
