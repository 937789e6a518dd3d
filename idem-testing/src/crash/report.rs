//! What the matrix found, as a table that a person reads.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::strike::Strike;
use crate::baseline::{Baseline, USES_POOL};
use crate::finding::Finding;
use crate::proxy::{Met, shorten};

/// What an attempt saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Answered { status: u16, replayed: bool },
    TimedOut,
    Closed,
}

pub(super) const EXTERNAL: &str = "each external call carries one key";

/// What kind of promise a trial broke, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Symptom {
    Effect,
    External,
    Answer,
    StoredFailure,
    Stuck,
    Replay,
    Mark,
    Open,
    Unstruck,
}

impl Symptom {
    fn rule(self) -> &'static str {
        match self {
            Symptom::Effect => "the effect happens once",
            Symptom::External => EXTERNAL,
            Symptom::Answer => "the final answer is that of an execution without a fault",
            Symptom::StoredFailure => "a failure is not stored",
            Symptom::Stuck => "no key is stuck",
            Symptom::Replay => "every retry gets the same answer",
            Symptom::Mark => "every replay is marked",
            Symptom::Open => "no transaction is left open, and every connection of the pool works",
            Symptom::Unstruck => "the fault strikes",
        }
    }

    fn must(self) -> &'static str {
        match self {
            Symptom::Effect => "one effect, whatever happened on the way",
            Symptom::External => "the same keys in every attempt",
            Symptom::Answer => "the answer of the execution, or its replay",
            Symptom::StoredFailure => "an execution, once the fault is over",
            Symptom::Stuck => "a final answer",
            Symptom::Replay => "identical answers",
            Symptom::Mark => "the mark that the first replay had",
            Symptom::Open => "nothing of the request left",
            Symptom::Unstruck => "a role that may terminate its own backends",
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Symptom::Effect => "commit the effect, the key and the answer in one transaction",
            Symptom::External => "derive the provider's key from the request's, never from the attempt",
            Symptom::Answer | Symptom::StoredFailure => {
                "when a commit's outcome is not known, look it up or ask for a retry; never store or answer a guess"
            }
            Symptom::Stuck => {
                "a crash must leave nothing, or a claim with a lease that runs out; if the lease is longer, use `.patience(…)`"
            }
            Symptom::Replay => "store the answer with the effect, and send what is stored",
            Symptom::Mark | Symptom::Open | Symptom::Unstruck => "",
        }
    }
}

/// A promise that a trial broke.
#[derive(Clone, Debug)]
pub(super) struct Violation {
    symptom: Symptom,
    text: String,
}

impl Violation {
    pub(super) fn new(symptom: Symptom, text: String) -> Self {
        Self { symptom, text }
    }

    /// What was broken without a fault.
    pub(super) fn finding(self) -> Finding {
        let Self { symptom, text } = self;
        Finding::new(symptom.rule(), "a request and its retries, without a fault", text, symptom.must())
            .advise(symptom.advice())
    }

    pub(super) fn is_effect(&self) -> bool {
        self.symptom == Symptom::Effect
    }
}

/// One fault at one message.
#[derive(Clone, Debug)]
pub struct Trial {
    strike: Strike,
    met: Met,
    seen: Vec<Seen>,
    worst: Option<Symptom>,
    violations: Vec<String>,
    given_up: bool,
}

impl Trial {
    /// Its session was exchanged under the handler, and the server told the client that its effects are not known.
    pub(super) fn gave_up(mut self) -> Self {
        self.given_up = true;
        self
    }

    pub(super) fn has_given_up(&self) -> bool {
        self.given_up
    }

    /// The worst violation comes first.
    pub(super) fn new(strike: Strike, met: Met, seen: Vec<Seen>, mut violations: Vec<Violation>) -> Self {
        violations.sort_by_key(|violation| violation.symptom);
        let worst = violations.first().map(|violation| violation.symptom);
        let violations = violations.into_iter().map(|violation| violation.text).collect();
        Self { strike, met, seen, worst, violations, given_up: false }
    }

    /// What happened to the message.
    pub fn strike(&self) -> Strike {
        self.strike
    }

    /// The message.
    pub fn met(&self) -> &Met {
        &self.met
    }

    /// The promises that were broken, in words, the worst first.
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

    /// Whether its client waited for its patience's whole length.
    pub(super) fn is_stuck(&self) -> bool {
        matches!(self.worst, Some(Symptom::Stuck | Symptom::StoredFailure))
    }
}

/// The outcome of a [crash matrix](crate::crash_matrix). Its `Display` is a table: statements × strikes, and what each
/// retry saw; then the findings, one for each promise that is broken.
#[derive(Clone, Debug)]
#[must_use]
pub struct CrashReport {
    request: String,
    strikes: Vec<Strike>,
    stall: Duration,
    baseline: Option<Baseline>,
    trials: Vec<Trial>,
    findings: Vec<Finding>,
    not_seen: Vec<String>,
}

impl CrashReport {
    /// What is wrong without a fault. Nothing else was tried.
    pub(super) fn stopped(request: String, findings: Vec<Finding>) -> Self {
        let (strikes, trials, not_seen) =
            (Vec::new(), Vec::new(), vec!["faults: what has none fails already".to_owned()]);
        Self { request, strikes, stall: Duration::ZERO, baseline: None, trials, findings, not_seen }
    }

    pub(super) fn new(
        request: String,
        strikes: &[Strike],
        stall: Duration,
        baseline: Baseline,
        trials: Vec<Trial>,
        mut findings: Vec<Finding>,
        not_seen: Vec<String>,
    ) -> Self {
        let mut unmet: Vec<&str> = Vec::new();
        for strike in strikes {
            if !trials.iter().any(|trial| trial.strike == *strike) && !unmet.contains(&strike.column()) {
                unmet.push(strike.column());
            }
        }
        if !unmet.is_empty() && !trials.iter().any(Trial::is_stuck) {
            let came_back = format!("no message for {}", unmet.join(", "));
            findings.push(Finding::new(USES_POOL, "a request with a fault", came_back, "a message to strike"));
        }
        findings.extend(grouped(&trials));
        Self { request, strikes: strikes.to_vec(), stall, baseline: Some(baseline), trials, findings, not_seen }
    }

    /// All trials.
    pub fn trials(&self) -> &[Trial] {
        &self.trials
    }

    /// Everything that is wrong; empty if each promise held. Where several promises broke in one trial, the worst counts;
    /// what broke in several trials is one finding, shown with its first place.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// What this matrix could not see, in words.
    pub fn not_seen(&self) -> &[String] {
        &self.not_seen
    }

    /// Checks that in every trial the effect happened exactly once, all final answers were identical, no key was stuck,
    /// and the pool was clean.
    ///
    /// # Panics
    /// With the table, if not.
    #[track_caller]
    pub fn assert_exactly_once(&self) {
        assert!(self.findings.is_empty(), "{self}");
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

/// One finding for each promise that is broken, with the first place in the order of the request's messages.
fn grouped(trials: &[Trial]) -> Vec<Finding> {
    let mut places: BTreeMap<Symptom, Vec<&Trial>> = BTreeMap::new();
    for trial in trials {
        if let Some(symptom) = trial.worst {
            places.entry(symptom).or_default().push(trial);
        }
    }
    let finding = |(symptom, trials): (Symptom, Vec<&Trial>)| {
        let first = trials.iter().min_by_key(|trial| (trial.strike.rank(), trial.met.round_trip))?;
        let Trial { strike, met, violations, .. } = first;
        let sent =
            format!("{strike}: {} of `{}`; attempts saw {}", met.message, met.short_statement(80), first.attempts());
        let mut found =
            Finding::new(symptom.rule(), sent, violations.first()?, symptom.must()).advise(symptom.advice());
        found.elsewhere = trials.len() - 1;
        Some(found)
    };
    places.into_iter().filter_map(finding).collect()
}

impl CrashReport {
    fn write_table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (statements, columns) = (self.statements(), self.columns());
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
            let stall = self.stall.as_millis();
            writeln!(f, "a stall lasts {stall} ms, and the client gives an attempt a quarter of it")?;
        }
        Ok(())
    }
}

impl fmt::Display for CrashReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Baseline { status, effects, .. }) = &self.baseline {
            let (trials, statements) = (self.trials.len(), self.statements().len());
            writeln!(
                f,
                "\n{}: {trials} faults at {statements} statements; one execution answers {status} and counts {effects}\n",
                self.request
            )?;
            self.write_table(f)?;
        } else {
            writeln!(f, "\n{}\n", self.request)?;
        }
        if self.findings.is_empty() {
            writeln!(f, "exactly once everywhere: one effect, one answer, no stuck key, no open transaction")?;
        } else {
            writeln!(f, "\npromises broken: {}\n", self.findings.len())?;
            self.findings.iter().try_for_each(|finding| writeln!(f, "{finding}"))?;
        }
        self.not_seen.iter().try_for_each(|what| writeln!(f, "not seen: {what}"))
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
