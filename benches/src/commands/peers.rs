//! The others, beside us. Their package is one of its own, so that their dependencies are not ours.

use std::path::Path;
use std::process::Stdio;

use serde_json::{Map, Value};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::Result;
use crate::options::Options;
use crate::progress::Progress;
use crate::report::{Report, Table, number};
use crate::stage::Stage;

/// The systems, in the order in which their databases are passed to the peers' program.
pub const SYSTEMS: [&str; 4] = ["idem", "axum-idempotent", "cratestack", "rustango"];

pub(super) async fn measure(options: &Options) -> Result<Report> {
    let progress = Progress::of("peers");
    progress.stage("starting Postgres");
    let stage = Stage::open(&[]).await?;
    let mut databases = Vec::new();
    for _ in SYSTEMS {
        databases.push(stage.database().await?);
    }
    let urls: Vec<_> = databases.iter().map(idem_testing::TestDatabase::url).collect();
    let size = if options.quick { "quick" } else { "full" };
    let arguments: Vec<_> = std::iter::once(size).chain(urls.iter().map(String::as_str)).collect();
    let last = run_program(&progress, &arguments).await?;
    let details: Map<String, Value> = serde_json::from_str(&last)?;
    Ok(Report {
        command: "peers",
        title: "The same handler, which inserts one order, behind each system, in process and over one Postgres"
            .to_owned(),
        table: table(&details),
        findings: Vec::new(),
        details,
    })
}

/// Runs the program of the peers' package; its last line.
pub(super) async fn run_program(progress: &Progress, arguments: &[&str]) -> Result<String> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/Cargo.toml");
    progress.stage("building the peers: minutes, the first time");
    let cargo = |verb| {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args([verb, "--release", "--quiet", "--locked", "--manifest-path"]).arg(&manifest).kill_on_drop(true);
        command
    };
    if !cargo("build").status().await?.success() {
        return Err("the peers' package must build; see the compiler's messages above".into());
    }
    let mut child = cargo("run").arg("--").args(arguments).stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().ok_or("the peers' output must be piped")?).lines();
    let mut last = String::new();
    while let Some(line) = lines.next_line().await? {
        progress.stage(&line);
        last = line;
    }
    if !child.wait().await?.success() {
        return Err("the peers' program failed".into());
    }
    Ok(last)
}

fn table(details: &Map<String, Value>) -> Table {
    let mut table = Table::new([
        "system",
        "fresh keys/s",
        "replays/s",
        "20 duplicates at once",
        "retry after a crash",
        "retry after a hang-up",
    ]);
    for name in SYSTEMS {
        let Some(system) = details.get(name) else { continue };
        let rate = |what: &str| system[what].as_f64().map_or_else(|| "–".to_owned(), |rate| number(rate.round()));
        let text = |what: &str| system[what].as_str().unwrap_or("–").to_owned();
        let orders = |what: &str| match system[what].as_i64() {
            Some(1) => "1 order".to_owned(),
            count => format!("{} orders", count.unwrap_or_default()),
        };
        table.row([
            name.to_owned(),
            rate("fresh"),
            rate("replay"),
            orders("concurrent_executions"),
            text("after_crash"),
            text("after_disconnect"),
        ]);
    }
    table
}
