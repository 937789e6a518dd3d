//! What can be measured.

mod cost;
mod counted;
mod growth;
mod latency;
mod overhead;
pub mod peers;
pub mod relay;
mod replay;
mod steps;
mod storm;
mod sweep;

use crate::options::{Options, USAGE};
use crate::report::Report;
use crate::{Result, summary};

/// A measurement, or all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Fresh keys against a plain transaction and against the usual flow.
    Overhead,
    /// Commits, round trips and bytes of the write-ahead log.
    Cost,
    /// A millisecond for each round trip.
    Latency,
    /// An operation of several commits against its parts by hand.
    Steps,
    /// Replays against a handler that selects one row.
    Replay,
    /// A thousand duplicates at once.
    Storm,
    /// Ten million stored rows.
    Growth,
    /// Expired rows are swept as fast as new ones come.
    Sweep,
    /// Messages of the outbox.
    Relay,
    /// The others.
    Peers,
    /// Every one of the above, a summary and a plot.
    All,
}

impl Command {
    /// Every measurement, in the order in which [`All`](Self::All) runs them.
    pub const EACH: [Self; 10] = [
        Self::Overhead,
        Self::Cost,
        Self::Latency,
        Self::Steps,
        Self::Replay,
        Self::Storm,
        Self::Growth,
        Self::Sweep,
        Self::Relay,
        Self::Peers,
    ];

    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Overhead => "overhead",
            Self::Cost => "cost",
            Self::Latency => "latency",
            Self::Steps => "steps",
            Self::Replay => "replay",
            Self::Storm => "storm",
            Self::Growth => "growth",
            Self::Sweep => "sweep",
            Self::Relay => "relay",
            Self::Peers => "peers",
            Self::All => "all",
        }
    }

    /// The command of a name.
    ///
    /// # Errors
    /// If there is none.
    pub fn named(name: &str) -> Result<Self> {
        let found = Self::EACH.into_iter().chain([Self::All]).find(|command| command.name() == name);
        found.ok_or_else(|| format!("`{name}` is not a command\n\n{USAGE}").into())
    }

    async fn measure(self, options: &Options) -> Result<Report> {
        match self {
            Self::Overhead => overhead::measure(options).await,
            Self::Cost => cost::measure(options).await,
            Self::Latency => latency::measure(options).await,
            Self::Steps => steps::measure(options).await,
            Self::Replay => replay::measure(options).await,
            Self::Storm => storm::measure(options).await,
            Self::Growth => growth::measure(options).await,
            Self::Sweep => sweep::measure(options).await,
            Self::Relay => relay::measure(options).await,
            Self::Peers => peers::measure(options).await,
            Self::All => Err("`all` is not one measurement".into()),
        }
    }
}

/// Measures what the options name, and prints it.
///
/// # Errors
/// If Postgres does not start, a request is not answered as it must be, or the output is closed.
pub async fn run(options: &Options) -> Result<()> {
    let json = if options.command == Command::All {
        let mut reports = Vec::new();
        for command in Command::EACH {
            reports.push(measure(command, options).await?);
        }
        summary::write(&reports, options).await?;
        reports.iter().map(|report| (report.command.to_owned(), report.json().into())).collect()
    } else {
        measure(options.command, options).await?.json()
    };
    if options.json {
        println!("{}", serde_json::Value::Object(json));
    }
    Ok(())
}

async fn measure(command: Command, options: &Options) -> Result<Report> {
    let report = command.measure(options).await.map_err(|error| format!("{}: {error}", command.name()))?;
    println!("{report}");
    Ok(report)
}
