//! One run of a program: how long it took, and what the kernel counted for it.
//!
//! What must hold: the time is from before the program is started until it has ended; what counts is the program's own (wait4), not that
//! of others that ran meanwhile; a program that fails is an error, never a figure.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::cleanup::Running;

/// What a run took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Used {
    /// From before it was started until it had ended.
    pub wall_ms: f64,
    /// Processor time in user mode.
    pub user_ms: f64,
    /// Processor time in the kernel.
    pub system_ms: f64,
    /// Faults that waited for storage.
    pub major: u64,
    /// Other faults.
    pub minor: u64,
}

impl Used {
    /// Processor time.
    pub fn cpu_ms(&self) -> f64 {
        self.user_ms + self.system_ms
    }
}

/// Runs `command` to its end without input or output; `before` counts with it.
pub fn run(command: &mut Command, before: impl FnOnce() -> Result<()>) -> Result<Used> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let start = Instant::now();
    before()?;
    let child = command.spawn().with_context(|| format!("{name}: cannot be started"))?;
    let (status, used) = Running::adopt(child).finish()?;
    let wall_ms = start.elapsed().as_secs_f64() * 1e3;
    ensure!(status.success(), "{name}: {status}");
    let ms = |time: libc::timeval| time.tv_sec as f64 * 1e3 + time.tv_usec as f64 / 1e3;
    Ok(Used {
        wall_ms,
        user_ms: ms(used.ru_utime),
        system_ms: ms(used.ru_stime),
        major: used.ru_majflt as u64,
        minor: used.ru_minflt as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_timed_and_a_failure_is_told() {
        let used = run(Command::new("sh").args(["-c", "sleep 0.02"]), || Ok(())).unwrap();
        assert!(used.wall_ms >= 20.0 && used.minor > 0, "{used:?}");
        assert!(used.cpu_ms() < used.wall_ms);
        let why = run(&mut Command::new("false"), || Ok(())).unwrap_err().to_string();
        assert!(why.contains("false") && why.contains('1'), "{why}");
    }
}
