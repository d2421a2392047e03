//! The program under test, as a process: started, killed, asked.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

/// The program.
pub fn towa() -> Command {
    Command::new(env!("CARGO_BIN_EXE_towa"))
}

/// Runs it to its end.
pub fn run(args: &[&str]) -> Output {
    towa().args(args).stdin(Stdio::null()).output().expect("towa runs")
}

/// Runs it; it must succeed.
pub fn must_pass(args: &[&str]) -> String {
    let out = run(args);
    let (said, complained) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "towa {}: {}\n{said}{complained}", args.join(" "), out.status);
    said.into_owned()
}

/// Offline check of a pool that nobody uses.
pub fn verify(pool: &Path, medium: &str) {
    must_pass(&["verify", &pool.display().to_string(), "--medium", medium, "--json"]);
}

/// A running process; killed when dropped.
pub struct Running {
    child: Child,
    pub stdout: Option<BufReader<ChildStdout>>,
    complaints: PathBuf,
}

impl Running {
    /// Starts it. What it says on standard error is added to the file `complaints`.
    pub fn start(args: &[&str], complaints: &Path) -> Running {
        let file: File = OpenOptions::new().create(true).append(true).open(complaints).expect("a file for standard error");
        let mut child =
            towa().args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file).spawn().expect("towa can be started");
        let stdout = child.stdout.take().map(BufReader::new);
        Running { child, stdout, complaints: complaints.to_owned() }
    }

    /// The first line it says; it must say one.
    pub fn first_line(&mut self) -> String {
        let mut line = String::new();
        let read = self.stdout.as_mut().expect("taken by nobody").read_line(&mut line);
        if read.is_ok() && line.ends_with('\n') {
            return line;
        }
        let status = self.child.wait();
        panic!("it ended ({status:?}) before it was ready; it said: {}", self.complaints());
    }

    /// What it and those before it said on standard error: the end of it.
    pub fn complaints(&self) -> String {
        let text = std::fs::read_to_string(&self.complaints).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }

    /// SIGKILL. It must have been running until then.
    pub fn kill(mut self) {
        let before = self.child.try_wait().expect("a child of ours");
        assert!(before.is_none(), "it ended by itself, {before:?}, before it was killed; it said: {}", self.complaints());
        self.child.kill().expect("a child of ours");
        self.child.wait().expect("a child of ours");
    }

    /// SIGKILL after `delay`, whatever it does until then. Ending by itself in that time is an error, unless it succeeds.
    pub fn kill_after(mut self, delay: Duration) {
        std::thread::sleep(delay);
        let _ = self.child.kill();
        let status = self.child.wait().expect("a child of ours");
        assert!(status.signal() == Some(libc::SIGKILL) || status.success(), "{status}; it said: {}", self.complaints());
    }

    /// A signal that does not end it.
    #[allow(dead_code, reason = "one of the two kill tests stops programs so")]
    pub fn signal(&self, signal: i32) {
        // SAFETY: the child has not been waited for, so its number is its own.
        let sent = unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
        assert_eq!(sent, 0, "it ended before the signal; it said: {}", self.complaints());
    }

    /// It must end by itself, and well.
    #[allow(dead_code, reason = "one of the two kill tests ends programs so")]
    pub fn end(mut self) {
        let status = self.child.wait().expect("a child of ours");
        assert!(status.success(), "{status}; it said: {}", self.complaints());
    }

    /// SIGTERM; it must end well.
    pub fn terminate(mut self) {
        // SAFETY: the child has not been waited for, so its number is its own.
        let sent = unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGTERM) };
        assert_eq!(sent, 0, "it ended before SIGTERM; it said: {}", self.complaints());
        let status = self.child.wait().expect("a child of ours");
        assert!(status.success(), "after SIGTERM: {status}; it said: {}", self.complaints());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
