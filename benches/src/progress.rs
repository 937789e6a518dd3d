//! A measurement that says nothing for a minute looks like one that hangs.

use std::io::{IsTerminal, Write};

/// Says on standard error where a measurement stands: one line that changes, on a terminal; a line a stage elsewhere.
#[derive(Debug)]
pub struct Progress {
    command: &'static str,
    terminal: bool,
}

impl Progress {
    /// The progress of one command.
    #[must_use]
    pub fn of(command: &'static str) -> Self {
        Self { command, terminal: std::io::stderr().is_terminal() }
    }

    /// A stage begins.
    pub fn stage(&self, what: &str) {
        if self.terminal { self.overwrite(what) } else { eprintln!("{}: {what}", self.command) }
    }

    /// A round of many begins.
    pub fn round(&self, round: usize, rounds: usize) {
        if self.terminal {
            self.overwrite(&format!("round {} of {rounds}", round + 1));
        } else if round == 0 {
            eprintln!("{}: {rounds} rounds", self.command);
        }
    }

    fn overwrite(&self, what: &str) {
        eprint!("\r\x1b[K{}: {what}", self.command);
        let _ = std::io::stderr().flush();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.terminal {
            eprint!("\r\x1b[K");
        }
    }
}
