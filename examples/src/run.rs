//! What every example's `main` does.

use std::io::IsTerminal;
use std::process::ExitCode;

use idem_testing::{Postgres, TestDatabase};
use sqlx::PgPool;
use tokio::net::TcpListener;
use tracing_subscriber::EnvFilter;

use crate::server::{CHILD, COMPANION};
use crate::signals::{end_of_input, interrupted};
use crate::{Error, Stage};

/// A service and the tour that shows it.
pub trait Example: Send + 'static {
    /// The binary's name.
    const NAME: &'static str;

    /// What it is, in one line.
    const TITLE: &'static str;

    /// Creates the tables and the demo data.
    fn prepare(pool: &PgPool) -> impl Future<Output = Result<(), Error>> + Send;

    /// Serves until `stop` ends, and then until every operation in flight has its answer.
    fn serve(
        pool: PgPool,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Shows what the service promises, over real HTTP and real processes.
    fn tour(stage: &mut Stage, database: &TestDatabase) -> impl Future<Output = Result<(), Error>> + Send;

    /// What to type at a service that keeps serving.
    fn try_it(address: &str) -> String;

    /// Serves as another system that the service talks to, in a process of its own: see
    /// [`Server::companion`](crate::Server::companion).
    fn accompany(
        name: &str,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> impl Future<Output = Result<(), Error>> + Send {
        drop((listener, stop));
        let unknown = format!("`{name}` is no process of this example");
        async { Err(unknown.into()) }
    }
}

enum Mode {
    Tour,
    Serve { address: String },
    Child,
    Companion { name: String },
}

/// Runs an example: the tour, or with `--serve` the service alone. The exit code is 0 only if every promise held.
///
/// Nothing is left running afterwards, whatever ends it: Postgres and the server processes notice when this process is
/// gone, even without a chance to say good-bye.
pub fn run<E: Example>() -> ExitCode {
    let mode = match mode(std::env::args().skip(1)) {
        Ok(mode) => mode,
        Err(unknown) => {
            let name = E::NAME;
            eprintln!(
                "`{unknown}` is no argument; use `cargo run --bin {name}` or `cargo run --bin {name} -- --serve`"
            );
            return ExitCode::from(2);
        }
    };
    log(if matches!(mode, Mode::Serve { .. }) { "info,sqlx=warn" } else { "error" });
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("the runtime did not start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = match mode {
        Mode::Tour => runtime.block_on(tour::<E>()),
        Mode::Serve { address } => runtime.block_on(serve::<E>(&address)),
        Mode::Child => {
            let outcome = runtime.block_on(serve_as_child::<E>());
            // A read of the standard input cannot be cancelled, and a server that failed must not wait for it.
            runtime.shutdown_background();
            outcome
        }
        Mode::Companion { name } => {
            let outcome = runtime.block_on(accompany::<E>(&name));
            runtime.shutdown_background();
            outcome
        }
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("{} failed: {error}", E::NAME);
        ExitCode::FAILURE
    })
}

fn mode(mut arguments: impl Iterator<Item = String>) -> Result<Mode, String> {
    let mode = match arguments.next().as_deref() {
        None => Mode::Tour,
        Some("--serve") => Mode::Serve { address: arguments.next().unwrap_or_else(|| "127.0.0.1:0".to_owned()) },
        Some(CHILD) => Mode::Child,
        Some(COMPANION) => Mode::Companion { name: arguments.next().ok_or_else(|| COMPANION.to_owned())? },
        Some(unknown) => return Err(unknown.to_owned()),
    };
    arguments.next().map_or(Ok(mode), Err)
}

fn log(default: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let coloured = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(coloured).init();
}

async fn tour<E: Example>() -> Result<ExitCode, Error> {
    let show = async {
        let database = database::<E>().await?;
        let mut stage = Stage::open(&format!("idem · {}", E::NAME), E::TITLE);
        let toured = E::tour(&mut stage, &database).await;
        drop(database);
        if let Err(error) = &toured {
            println!("\n  the tour ended early: {error}");
        }
        let all_held = stage.close() && toured.is_ok();
        Ok(if all_held { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    };
    tokio::select! {
        outcome = show => outcome,
        code = interrupted() => Ok(ExitCode::from(code)),
    }
}

async fn serve<E: Example>(address: &str) -> Result<ExitCode, Error> {
    let listener = TcpListener::bind(address).await?;
    // One listener from the beginning to the end: between two of them a signal would be lost.
    let mut stop = Box::pin(interrupted());
    let database = tokio::select! {
        database = database::<E>() => database?,
        code = &mut stop => return Ok(ExitCode::from(code)),
    };
    let address = listener.local_addr()?.to_string();
    println!("\nidem · {}: {}\n", E::NAME, E::TITLE);
    println!("{}\n", E::try_it(&address));
    println!("# look at the tables\npsql '{}'\n", database.url());
    println!("serving on http://{address} until Ctrl-C");
    E::serve(database.pool(), listener, async { _ = stop.await }).await?;
    Ok(ExitCode::SUCCESS)
}

/// The tour reads the address from the first line.
async fn serve_as_child<E: Example>() -> Result<ExitCode, Error> {
    let pool = PgPool::connect(&std::env::var("DATABASE_URL")?).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    E::serve(pool, listener, end_of_input()).await?;
    Ok(ExitCode::SUCCESS)
}

async fn accompany<E: Example>(name: &str) -> Result<ExitCode, Error> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    E::accompany(name, listener, end_of_input()).await?;
    Ok(ExitCode::SUCCESS)
}

/// A database with the tables and the demo data, which is gone when dropped: on a server of our own, or on the one that
/// `DATABASE_URL` names.
async fn database<E: Example>() -> Result<TestDatabase, Error> {
    let external = std::env::var_os("DATABASE_URL").is_some_and(|url| !url.is_empty());
    let start = if external { Postgres::shared } else { Postgres::private };
    let postgres = tokio::task::spawn_blocking(start).await??;
    let database = TestDatabase::create_on(&postgres).await?;
    let pool = database.pool();
    E::prepare(&pool).await?;
    pool.close().await;
    Ok(database)
}
