//! What the matrix found, as a table that a person reads.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::strike::Strike;
use super::trial::Baseline;
use crate::proxy::{Met, shorten};
use crate::subject::Subject;

/// What an attempt saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Answered { status: u16, replayed: bool },
    TimedOut,
    Closed,
}

/// One fault at one message.
#[derive(Clone, Debug)]
pub struct Trial {
    pub(super) strike: Strike,
    pub(super) met: Met,
    pub(super) seen: Vec<Seen>,
    pub(super) violations: Vec<String>,
}

impl Trial {
    /// What happened to the message.
    pub fn strike(&self) -> Strike {
        self.strike
    }

    /// The message.
    pub fn met(&self) -> &Met {
        &self.met
    }

    /// The promises that were broken, in words.
    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    /// What the attempts saw, such as `503 → 409 → 201*`.
    pub fn attempts(&self) -> String {
        let mut attempts = self.seen.clone();
        attempts.dedup();
        let attempts: Vec<_> = attempts.iter().map(Seen::to_string).collect();
        attempts.join(" → ")
    }
}

/// The outcome of a [crash matrix](crate::crash_matrix). Its `Display` is a table: statements × strikes, and what each
/// retry saw.
#[derive(Clone, Debug)]
#[must_use]
pub struct CrashReport {
    request: String,
    strikes: Vec<Strike>,
    stall: Duration,
    baseline: Baseline,
    trials: Vec<Trial>,
    general: Vec<String>,
}

impl CrashReport {
    pub(super) fn new(
        request: String,
        strikes: &[Strike],
        stall: Duration,
        baseline: Baseline,
        trials: BTreeMap<(Strike, u64), Trial>,
        subject: &Subject<'_>,
    ) -> Self {
        let mut general = baseline.violations.clone();
        for strike in strikes {
            if !trials.keys().any(|(other, _)| other == strike) {
                general
                    .push(format!("no message was there for `{strike}`: the app must use the pool that it is given"));
            }
        }
        for call in subject.external.iter().flat_map(|external| external.counts().into_keys()) {
            if !call.starts_with(&subject.key_prefix) {
                general
                    .push(format!("the external call with the key `{call}`: its key is not derived from a request's"));
            }
        }
        let trials = trials.into_values().collect();
        Self { request, strikes: strikes.to_vec(), stall, baseline, trials, general }
    }

    /// All trials.
    pub fn trials(&self) -> &[Trial] {
        &self.trials
    }

    /// Everything that is wrong, in words; empty if each promise held. What is the same at several messages of a
    /// statement is said once.
    pub fn violations(&self) -> Vec<String> {
        let mut places: Vec<(String, Vec<&str>)> = Vec::new();
        for trial in &self.trials {
            let statement = trial.met.short_statement(80);
            for violation in &trial.violations {
                let finding = format!("of `{statement}`: {violation}; attempts saw {}", trial.attempts());
                let finding = format!("{} {{}} {finding}", trial.strike);
                match places.iter_mut().find(|(other, _)| *other == finding) {
                    Some((_, messages)) => messages.push(trial.met.message),
                    None => places.push((finding, vec![trial.met.message])),
                }
            }
        }
        let in_trials = places.into_iter().map(|(finding, messages)| finding.replacen("{}", &messages.join(", "), 1));
        self.general.iter().cloned().chain(in_trials).collect()
    }

    /// Checks that in every trial the effect happened exactly once, all final answers were identical, no key was stuck,
    /// and the pool was clean.
    ///
    /// # Panics
    /// With the table, if not.
    #[track_caller]
    pub fn assert_exactly_once(&self) {
        assert!(self.violations().is_empty(), "{self}");
    }

    /// The statements in the order in which they came.
    fn statements(&self) -> Vec<&str> {
        let mut first: BTreeMap<&str, u64> = BTreeMap::new();
        for trial in &self.trials {
            let round_trip = first.entry(&trial.met.statement).or_insert(trial.met.round_trip);
            *round_trip = trial.met.round_trip.min(*round_trip);
        }
        let mut statements: Vec<_> = first.into_iter().collect();
        statements.sort_by_key(|(_, round_trip)| *round_trip);
        statements.into_iter().map(|(statement, _)| statement).collect()
    }

    fn columns(&self) -> Vec<&'static str> {
        let mut columns = Vec::new();
        for strike in &self.strikes {
            if !columns.contains(&strike.column()) {
                columns.push(strike.column());
            }
        }
        columns
    }

    /// The lines of a cell: each course of attempts with the number of messages at which it was seen.
    fn cell(&self, statement: &str, column: &str) -> Vec<String> {
        let mut courses: Vec<(String, u32)> = Vec::new();
        for trial in
            self.trials.iter().filter(|trial| trial.strike.column() == column && trial.met.statement == statement)
        {
            let mark = if trial.violations.is_empty() { "" } else { "✗ " };
            let course = format!("{mark}{}", trial.attempts());
            match courses.iter_mut().find(|(other, _)| *other == course) {
                Some((_, count)) => *count += 1,
                None => courses.push((course, 1)),
            }
        }
        let lines = courses.into_iter().map(|(course, count)| match count {
            1 => course,
            _ => format!("{course}  ×{count}"),
        });
        lines.collect()
    }
}

/// How much of a statement the table shows, in characters.
const STATEMENT: usize = 44;

impl fmt::Display for CrashReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let statements = self.statements();
        let Baseline { status, effects, .. } = &self.baseline;
        writeln!(
            f,
            "\n{}: {} faults at {} statements; one execution answers {status} and counts {effects}\n",
            self.request,
            self.trials.len(),
            statements.len()
        )?;
        let columns = self.columns();
        let cells: Vec<Vec<_>> =
            statements.iter().map(|row| columns.iter().map(|column| self.cell(row, column)).collect()).collect();
        let width = |column: usize| {
            let lines = cells.iter().flat_map(|row| &row[column]).map(|line| line.chars().count());
            lines.max().unwrap_or(0).max(columns[column].len())
        };
        let widths: Vec<_> = (0..columns.len()).map(width).collect();
        write!(f, " #  {:STATEMENT$}", "statement")?;
        for (column, width) in columns.iter().zip(&widths) {
            write!(f, "  {column:width$}")?;
        }
        let rule = 4 + STATEMENT + widths.iter().map(|width| width + 2).sum::<usize>();
        writeln!(f, "\n{}", "─".repeat(rule))?;
        for (number, (statement, row)) in statements.iter().zip(&cells).enumerate() {
            let height = row.iter().map(Vec::len).max().unwrap_or(1);
            for line in 0..height {
                let number = if line == 0 { (number + 1).to_string() } else { String::new() };
                let statement = if line == 0 { shorten(statement, STATEMENT) } else { String::new() };
                write!(f, "{number:>2}  {statement:STATEMENT$}")?;
                for (cell, width) in row.iter().zip(&widths) {
                    write!(f, "  {:width$}", cell.get(line).map_or("", String::as_str))?;
                }
                writeln!(f)?;
            }
        }
        writeln!(
            f,
            "\n→ next attempt   * replay   – no answer in time   \
             × messages of the statement with this course   ✗ promise broken"
        )?;
        if self.strikes.iter().any(|strike| strike.is_stall()) {
            writeln!(
                f,
                "a stall lasts {} ms, and the client gives an attempt a quarter of it",
                self.stall.as_millis()
            )?;
        }
        let violations = self.violations();
        if violations.is_empty() {
            return writeln!(f, "exactly once everywhere: one effect, one answer, no stuck key, no open transaction");
        }
        writeln!(f, "\n{} promises broken:", violations.len())?;
        violations.iter().try_for_each(|violation| writeln!(f, "✗ {violation}"))
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Seen::Answered { status, replayed: false } => write!(f, "{status}"),
            Seen::Answered { status, replayed: true } => write!(f, "{status}*"),
            Seen::TimedOut => f.write_str("–"),
            Seen::Closed => f.write_str("closed"),
        }
    }
}
