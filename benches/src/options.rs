//! The command line.

use crate::Result;
use crate::commands::Command;

/// How to use the program.
pub const USAGE: &str = "usage: bench <command> [--json] [--quick] [--rows <n>]

commands: overhead, cost, latency, steps, replay, storm, growth, sweep, relay, peers, all

  --json      the last line of the output is one JSON object
  --quick     a smoke test of a few seconds: its timings say nothing
  --rows <n>  how many stored rows `growth` compares with 10 thousand (default 10000000)";

/// What to measure, and at which size.
#[derive(Debug, Clone)]
pub struct Options {
    /// What to measure.
    pub command: Command,
    /// Whether the output ends with a JSON object.
    pub json: bool,
    /// Whether to run the smoke test's size.
    pub quick: bool,
    /// How many rows `growth` stores; `None` for the default.
    pub rows: Option<u64>,
}

impl Options {
    /// Reads the arguments after the program's name.
    ///
    /// # Errors
    /// If they name no command, or an option that does not exist.
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self> {
        let mut arguments = arguments.into_iter();
        let (mut command, mut json, mut quick, mut rows) = (None, false, false, None);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--json" => json = true,
                "--quick" => quick = true,
                "--rows" => {
                    let value = arguments.next().and_then(|value| value.parse().ok()).filter(|rows| *rows > 0);
                    rows = Some(value.ok_or("`--rows` must be followed by a positive number")?);
                }
                name if command.is_none() => command = Some(Command::named(name)?),
                other => return Err(format!("`{other}` is one argument too many\n\n{USAGE}").into()),
            }
        }
        Ok(Self { command: command.ok_or(USAGE)?, json, quick, rows })
    }

    /// The size of a measurement: `full`, or `quick` in a smoke test.
    pub fn size<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options> {
        Options::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_may_stand_anywhere() {
        let options = parse("--json growth --rows 500 --quick").expect("options");
        assert_eq!((options.command, options.json, options.quick), (Command::Growth, true, true));
        assert_eq!((options.rows, options.size(9, 1)), (Some(500), 1));
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        for line in ["", "growth --rows", "growth --rows 0", "growth sweep", "speed", "growth --fast"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
