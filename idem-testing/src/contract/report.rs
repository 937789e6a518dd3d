//! What the check found.

use std::fmt;

use crate::baseline::{ONE_CONNECTION, REFUSES_CLEANLY, REPEATS, SUCCEEDS, USES_POOL};
use crate::finding::Finding;

/// What became of a rule.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    Holds,
    Broken(Finding),
    /// With the reason.
    NotTried(String),
}

/// The outcome of a [contract check](crate::contract). Its `Display` lists the rules: for each that does not hold what was
/// sent and what came back, for each that was not tried why.
#[derive(Clone, Debug)]
#[must_use]
pub struct ContractReport {
    request: String,
    rules: Vec<(&'static str, Outcome)>,
}

impl ContractReport {
    /// What the baseline says of its rules.
    pub(super) fn new(request: String, findings: Vec<Finding>) -> Self {
        let mut rules = Vec::new();
        for rule in [SUCCEEDS, USES_POOL, REPEATS, REFUSES_CLEANLY, ONE_CONNECTION] {
            let finding = findings.iter().find(|finding| finding.rule == rule).cloned();
            let outcome = finding.map_or(Outcome::Holds, Outcome::Broken);
            // What comes after the first that stops was not looked at.
            let stops = matches!(&outcome, Outcome::Broken(_)) && findings.len() == 1 && rule != ONE_CONNECTION;
            rules.push((rule, outcome));
            if stops {
                break;
            }
        }
        Self { request, rules }
    }

    pub(super) fn push(&mut self, rule: &'static str, outcome: Outcome) {
        self.rules.push((rule, outcome));
    }

    /// The rules that do not hold, with the smallest exchange that shows it: one for each cause that could be told apart.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.rules.iter().filter_map(|(_, outcome)| match outcome {
            Outcome::Broken(finding) => Some(finding),
            _ => None,
        })
    }

    /// The rules that were not tried, with the reason.
    pub fn not_tried(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.rules.iter().filter_map(|(rule, outcome)| match outcome {
            Outcome::NotTried(reason) => Some((*rule, reason.as_str())),
            _ => None,
        })
    }

    /// Checks that every rule holds that was tried, and prints the list, with what was not tried.
    ///
    /// # Panics
    /// With the list, if not.
    #[track_caller]
    pub fn assert_ok(&self) {
        assert!(self.findings().next().is_none(), "{self}");
        println!("{self}");
    }
}

impl fmt::Display for ContractReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{} against the contract\n", self.request)?;
        for (rule, outcome) in &self.rules {
            match outcome {
                Outcome::Holds => writeln!(f, "✓ {rule}")?,
                Outcome::Broken(finding) => write!(f, "{finding}")?,
                Outcome::NotTried(reason) => writeln!(f, "– {rule} (not tried: {reason})")?,
            }
        }
        writeln!(f, "not seen: what processes share in memory: all of them run in the test's own")
    }
}
