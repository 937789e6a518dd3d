//! What a measurement found, for people and for programs.

use std::fmt::{self, Write};

use serde_json::{Map, Value, json};

use crate::measure::Ratio;

/// What one command found.
#[derive(Debug, Clone)]
pub struct Report {
    /// The command's name.
    pub command: &'static str,
    /// What was measured, and how.
    pub title: String,
    /// The numbers behind the findings.
    pub table: Table,
    /// The numbers that have goals.
    pub findings: Vec<Finding>,
    /// What the JSON object holds beside the findings.
    pub details: Map<String, Value>,
}

/// A number that has a goal.
#[derive(Debug, Clone)]
pub struct Finding {
    /// Its name in the JSON object.
    pub name: &'static str,
    /// What it says, for people.
    pub meaning: String,
    /// The number.
    pub value: f64,
    /// The middle half of the rounds.
    pub range: Option<(f64, f64)>,
    /// What it should be.
    pub goal: Goal,
}

/// What a number should be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
    /// This.
    Exactly(f64),
}

/// Rows of equal length under a head.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// The columns' names; the first column is text, the others are numbers.
    pub head: Vec<String>,
    /// The rows.
    pub rows: Vec<Vec<String>>,
}

impl Goal {
    /// Whether a number is what it should be.
    #[must_use]
    pub fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(goal) => value >= goal,
            Self::AtMost(goal) => value <= goal,
            Self::Exactly(goal) => value == goal,
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(goal) => write!(formatter, "≥ {}", number(*goal)),
            Self::AtMost(goal) => write!(formatter, "≤ {}", number(*goal)),
            Self::Exactly(goal) => write!(formatter, "{}", number(*goal)),
        }
    }
}

impl Finding {
    /// A ratio of medians.
    #[must_use]
    pub fn ratio(name: &'static str, meaning: &str, ratio: Ratio, goal: Goal) -> Self {
        let range = Some((ratio.lower, ratio.upper));
        Self { name, meaning: meaning.to_owned(), value: ratio.median, range, goal }
    }

    /// Something counted.
    #[must_use]
    pub fn count(name: &'static str, meaning: &str, value: f64, goal: Goal) -> Self {
        Self { name, meaning: meaning.to_owned(), value, range: None, goal }
    }

    /// Whether the number is what it should be.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.goal.is_met(self.value)
    }

    fn row(&self) -> Vec<String> {
        let range = self.range.map_or_else(String::new, |(low, high)| format!("{}–{}", number(low), number(high)));
        let verdict = if self.is_met() { "met" } else { "missed" };
        let cells = [self.name.to_owned(), number(self.value), range, self.goal.to_string(), verdict.to_owned()];
        cells.to_vec()
    }
}

/// Whole numbers as they are; others with as many digits as mean something.
#[must_use]
pub fn number(value: f64) -> String {
    let text = if value.fract() == 0.0 || value.abs() >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") };
    let digits = text.trim_start_matches('-');
    let (whole, fraction) = digits.split_once('.').map_or((digits, None), |(whole, rest)| (whole, Some(rest)));
    let mut grouped = String::from(if text.starts_with('-') { "-" } else { "" });
    for (place, digit) in whole.chars().enumerate() {
        if place > 0 && (whole.len() - place) % 3 == 0 && whole.chars().all(|digit| digit.is_ascii_digit()) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if let Some(fraction) = fraction {
        let _ = write!(grouped, ".{fraction}");
    }
    grouped
}

impl Table {
    /// A table without rows.
    #[must_use]
    pub fn new<const N: usize>(head: [&str; N]) -> Self {
        Self { head: head.map(str::to_owned).to_vec(), rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, row: [String; N]) {
        self.rows.push(row.to_vec());
    }

    /// As a table of Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rule: Vec<_> =
            (0..self.head.len()).map(|column| if column == 0 { "---" } else { "---:" }.to_owned()).collect();
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        line(&self.head) + &line(&rule) + &rows
    }
}

impl fmt::Display for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = || std::iter::once(&self.head).chain(&self.rows);
        let width = |column: usize| lines().map(|line| line[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<_> = (0..self.head.len()).map(width).collect();
        for line in lines() {
            for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
                match column {
                    0 => write!(formatter, "  {cell:<width$}")?,
                    _ => write!(formatter, "  {cell:>width$}")?,
                }
            }
            writeln!(formatter)?;
        }
        Ok(())
    }
}

impl Report {
    /// The object that the last line holds with `--json`.
    #[must_use]
    pub fn json(&self) -> Map<String, Value> {
        let findings = self.findings.iter().map(|finding| (finding.name.to_owned(), rounded(finding.value)));
        findings.chain(self.details.clone()).collect()
    }
}

/// Counts stay whole; ratios are not known to more than three digits.
fn rounded(value: f64) -> Value {
    if value.fract() == 0.0 { json!(value as i64) } else { json!((value * 1_000.0).round() / 1_000.0) }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{}: {}\n\n{}", self.command, self.title, self.table)?;
        if self.findings.is_empty() {
            return Ok(());
        }
        let mut findings = Table::new(["measure", "value", "middle half", "goal", ""]);
        findings.rows = self.findings.iter().map(Finding::row).collect();
        write!(formatter, "{findings}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_no_longer_than_they_are_known() {
        let texts = [0.8349, 1.0, 0.0, 12_345.6, 999.9, -1_234.0, 10_000_000.0, f64::NAN].map(number);
        assert_eq!(texts, ["0.83", "1", "0", "12,346", "1,000", "-1,234", "10,000,000", "NaN"]);
    }

    #[test]
    fn goals_bind_from_their_own_side() {
        assert!(Goal::AtLeast(0.8).is_met(0.8) && !Goal::AtLeast(0.8).is_met(0.79));
        assert!(Goal::AtMost(400.0).is_met(400.0) && !Goal::AtMost(400.0).is_met(401.0));
        assert!(Goal::Exactly(1.0).is_met(1.0) && !Goal::Exactly(0.0).is_met(1.0));
        assert!(!Goal::AtLeast(0.8).is_met(f64::NAN) && !Goal::AtMost(0.8).is_met(f64::NAN));
    }

    #[test]
    fn the_object_has_the_findings_names() {
        let findings = vec![
            Finding::count("commits", "", 1.0, Goal::Exactly(1.0)),
            Finding::count("vs_plain", "", 0.812_345, Goal::AtLeast(0.8)),
        ];
        let (table, details) = (Table::new(["a", "b"]), Map::new());
        let report = Report { command: "cost", title: String::new(), table, findings, details };
        assert_eq!(Value::Object(report.json()).to_string(), r#"{"commits":1,"vs_plain":0.812}"#);
    }
}
