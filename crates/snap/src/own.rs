//! A program that has itself checkpointed.
//!
//! ```text
//!   program   posix_spawn ──► waits ───────────────────────────────► the child has ended: taken
//!   child                     towa snap take --self: stops its parent, copies it, lets it go on, ends
//!   restarted                 waits ──► there is no child to wait for: restarted
//! ```
//!
//! What must always hold: the two ways back are never taken for one another. That a wait found no child may have other reasons (a program
//! that ignores SIGCHLD); so it counts as a restart only if this is another process than the one that asked, by the time at which it
//! began.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::{Error, Result};

/// The way back from [`take`], as of fork(2) and setjmp(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The checkpoint is complete and durable; the program goes on.
    Taken,
    /// This is the program, started again from that checkpoint.
    Restarted,
}

/// Has a checkpoint of this process taken into the directory `dir`, and waits until it is durable. The program `towa` does it: the one that
/// the environment variable TOWA names, else one in PATH. What it refuses it says on standard error.
///
/// Other threads go on meanwhile; no thread may hold a descriptor that cannot be kept.
pub fn take(dir: &Path) -> Result<Outcome> {
    let pid = std::process::id() as i32;
    let before = identity()?;
    let program = std::env::var_os("TOWA").unwrap_or_else(|| OsString::from("towa"));
    let mut command = Command::new(&program);
    command.args(["snap", "take", "--self"]).arg(dir).stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command.spawn().map_err(|e| {
        Error::io(format!("starting {} (the environment variable TOWA names another one)", program.to_string_lossy()), e)
    })?;
    let _permit = Permit::give(child.id());
    match child.wait() {
        Ok(status) if status.success() => Ok(Outcome::Taken),
        Ok(status) => Err(Error::NotTaken { pid, status: status.code() }),
        Err(e) if e.raw_os_error() == Some(libc::ECHILD) => match identity()? == before {
            false => Ok(Outcome::Restarted),
            true => {
                let what = "how `towa snap take --self` ended is not known, as SIGCHLD is ignored or another thread waited for it";
                Err(Error::Target { pid, what: what.into() })
            }
        },
        Err(e) => Err(Error::io("waiting for `towa snap take --self`", e)),
    }
}

/// Which process this is: the boot, its pid namespace, and when it began.
fn identity() -> Result<(String, OsString, String)> {
    let read = |path: &str| std::fs::read_to_string(path).map_err(|e| Error::io(path, e));
    let namespace = std::fs::read_link("/proc/self/ns/pid").map_err(|e| Error::io("/proc/self/ns/pid", e))?;
    let stat = read("/proc/self/stat")?;
    // The twenty-second word; the name, in parentheses, may hold spaces.
    let began = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(19)).unwrap_or_default();
    Ok((read("/proc/sys/kernel/random/boot_id")?, namespace.into(), began.to_owned()))
}

/// Lets a child trace this process where only parents may (Yama), as long as it lives.
struct Permit;

const PR_SET_PTRACER: i32 = 0x5961_6d61;

impl Permit {
    fn give(child: u32) -> Permit {
        // SAFETY: numbers only. A kernel without Yama does not know it, and does not need it.
        unsafe { libc::prctl(PR_SET_PTRACER, u64::from(child), 0, 0, 0) };
        Permit
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        // SAFETY: numbers only.
        unsafe { libc::prctl(PR_SET_PTRACER, 0, 0, 0, 0) };
    }
}
