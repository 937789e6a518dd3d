//! A promise that does not hold, with the smallest exchange that shows it.

use std::fmt;

/// A rule that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The rule.
    pub rule: &'static str,
    /// What was sent, and what happened to it.
    pub sent: String,
    /// What came back, or what was left.
    pub came_back: String,
    /// What the rule demands instead.
    pub must: String,
    /// What to do about it, and the setting for an application that means it so; empty if there is nothing to add.
    pub advice: String,
    /// In how many more places the same was found.
    pub elsewhere: usize,
}

impl Finding {
    pub(crate) fn new(
        rule: &'static str,
        sent: impl Into<String>,
        came_back: impl fmt::Display,
        must: impl Into<String>,
    ) -> Self {
        let (sent, came_back, must) = (sent.into(), came_back.to_string(), must.into());
        Self { rule, sent, came_back, must, advice: String::new(), elsewhere: 0 }
    }

    pub(crate) fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = advice.into();
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, sent, came_back, must, advice, elsewhere } = self;
        writeln!(f, "✗ {rule}")?;
        writeln!(f, "    sent       {sent}\n    came back  {came_back}\n    must be    {must}")?;
        if *elsewhere > 0 {
            writeln!(f, "    and at     {elsewhere} more places")?;
        }
        if !advice.is_empty() {
            writeln!(f, "    advice     {advice}")?;
        }
        Ok(())
    }
}
