//! What the check found.

use std::fmt;

/// A rule that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was sent.
    pub sent: String,
    /// What came back, or what happened.
    pub came_back: String,
    /// What the rule demands instead.
    pub must: String,
}

/// What became of a rule.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    Checked(Vec<Finding>),
    /// With the reason.
    NotChecked(&'static str),
}

/// The outcome of a [contract check](crate::contract). Its `Display` lists the rules, and for each that does not hold
/// what was sent and what came back.
#[derive(Clone, Debug)]
#[must_use]
pub struct ContractReport {
    request: String,
    rules: Vec<(&'static str, Outcome)>,
}

impl ContractReport {
    pub(super) fn new(request: String, rules: Vec<(&'static str, Outcome)>) -> Self {
        Self { request, rules }
    }

    /// The rules that do not hold, with what was found.
    pub fn findings(&self) -> impl Iterator<Item = (&'static str, &Finding)> {
        self.rules.iter().flat_map(|(rule, outcome)| match outcome {
            Outcome::Checked(findings) => findings.iter().map(|finding| (*rule, finding)).collect::<Vec<_>>(),
            Outcome::NotChecked(_) => Vec::new(),
        })
    }

    /// Checks that every rule holds.
    ///
    /// # Panics
    /// With the list, if not.
    #[track_caller]
    pub fn assert_ok(&self) {
        assert_eq!(self.findings().count(), 0, "{self}");
    }
}

impl fmt::Display for ContractReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{} against the contract\n", self.request)?;
        for (rule, outcome) in &self.rules {
            match outcome {
                Outcome::Checked(findings) if findings.is_empty() => writeln!(f, "✓ {rule}")?,
                Outcome::Checked(findings) => {
                    writeln!(f, "✗ {rule}")?;
                    for Finding { sent, came_back, must } in findings {
                        writeln!(f, "    sent       {sent}\n    came back  {came_back}\n    must be    {must}\n")?;
                    }
                }
                Outcome::NotChecked(reason) => writeln!(f, "– {rule} (not checked: {reason})")?,
            }
        }
        Ok(())
    }
}
