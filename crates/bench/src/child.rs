//! A child process that tells what it does line by line on its standard output.
//!
//! What must hold: whoever waits for a line gets it, or an error, within a limit; the child is killed when its value goes.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::cleanup::Running;

/// Longest a child may take to say something.
const PATIENCE: Duration = Duration::from_secs(300);

/// A child and its output.
#[derive(Debug)]
pub struct TellingChild {
    /// The process.
    pub process: Running,
    lines: std::sync::mpsc::Receiver<String>,
}

impl TellingChild {
    /// Starts `command` without input.
    pub fn start(command: &mut Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = Running::spawn(command)?;
        let stdout = process.child().stdout.take().context("the child has no output")?;
        let (send, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { process, lines })
    }

    /// What it says next.
    pub fn line(&self) -> Result<String> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Ok(line),
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                bail!("the child ended early; see its message above")
            }
            Err(_) => bail!("the child said nothing for {PATIENCE:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_lines_and_then_that_it_is_gone() {
        let child = TellingChild::start(Command::new("sh").args(["-c", "echo one; echo two"])).unwrap();
        assert_eq!((child.line().unwrap(), child.line().unwrap()), ("one".into(), "two".into()));
        assert!(child.line().unwrap_err().to_string().contains("ended early"));
    }
}
