//! What became of several files: a line for each as soon as it is done, or one JSON document at the end.
//!
//! What must hold: what was done is told whatever fails after it; the exit status is that of the first failure.

use std::fmt::Display;

use anyhow::{Error, Result};
use serde::Serialize;
use serde_json::json;

use crate::failure;
use crate::report;

/// The lines so far, and what failed.
pub struct Ledger<T> {
    json: bool,
    lines: Vec<T>,
    first: Option<Error>,
    failures: usize,
}

impl<T: Serialize + Display> Ledger<T> {
    /// An empty one; `json`: it is printed at the end, as JSON.
    pub fn new(json: bool) -> Ledger<T> {
        Ledger { json, lines: Vec::new(), first: None, failures: 0 }
    }

    /// What was done so far.
    pub fn lines(&self) -> &[T] {
        &self.lines
    }

    /// Something is done: it is said at once.
    pub fn write(&mut self, line: T) -> Result<()> {
        if !self.json {
            report::print(&format!("{line}\n"))?;
        }
        self.lines.push(line);
        Ok(())
    }

    /// Something failed; the command will fail, whatever is done after it.
    pub fn fail(&mut self, error: Error) {
        self.failures += 1;
        self.first.get_or_insert(error);
    }

    /// Ends with the first failure. `about` names what all of it was about.
    pub fn close(self, about: (&str, String)) -> Result<()> {
        let Some(first) = self.first else {
            return if self.json { report::json(&self.lines) } else { Ok(()) };
        };
        let error = match self.failures {
            1 => first,
            more => failure::coded(failure::code(&first), format!("{}; {} more failed", failure::message(&first), more - 1)),
        };
        if self.json {
            let mut document = report::problem(about, &error);
            document["done"] = json!(self.lines);
            report::json(&document)?;
        }
        Err(error)
    }
}
