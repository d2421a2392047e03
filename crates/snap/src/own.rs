//! A program that has itself checkpointed.
//!
//! ```text
//!   program   posix_spawn ──► waits ───────────────────────────────► the child has ended: taken
//!   child                     towa snap take --self: stops its parent, copies it, lets it go on, ends
//!   restarted                 waits ──► there is no child to wait for: restarted
//! ```
//!
//! What must always hold: a program that has more rights than who started it (set-user-id, set-group-id, file capabilities) does not
//! let the environment choose what is executed with them. And the two ways back are never taken for one another. That a wait found no child may have other reasons (a program
//! that ignores SIGCHLD); so it counts as a restart only if this is another process than the one that asked, by the time at which it
//! began.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
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

/// The program that a privileged process starts: `TOWA_INSTALLED` when this was compiled, else where `make install` puts it.
pub const INSTALLED: &str = match option_env!("TOWA_INSTALLED") {
    Some(path) => path,
    None => "/usr/local/bin/towa",
};

/// Has a checkpoint of this process taken into the directory `dir`, and waits until it is durable. The program `towa` does it: the one that
/// the environment variable TOWA names, else one in PATH. What it refuses it says on standard error.
///
/// A process that has more rights than who started it (AT_SECURE: set-user-id, set-group-id, file capabilities) asks no environment: it starts
/// [`INSTALLED`], with an empty one, if that belongs to root all the way up and only root can change it; else the call is refused.
///
/// Other threads go on meanwhile; no thread may hold a descriptor that cannot be kept.
pub fn take(dir: &Path) -> Result<Outcome> {
    let pid = std::process::id() as i32;
    let before = identity()?;
    let mut command = command(is_privileged())?;
    let program = command.get_program().to_owned();
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

/// Whether the kernel says that this program has rights that who started it does not have. It says so of the program's start, and for as
/// long as the program runs: what it has given up or taken since makes no difference.
fn is_privileged() -> bool {
    // SAFETY: a number.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The program that does it.
fn command(privileged: bool) -> Result<Command> {
    if !privileged {
        return Ok(Command::new(std::env::var_os("TOWA").unwrap_or_else(|| OsString::from("towa"))));
    }
    let program = only_roots(Path::new(INSTALLED)).map_err(|why| Error::Unsupported {
        what: format!("this program has more rights than who started it, and starts only {INSTALLED}: {why}"),
        remedy: "install towa there as root, or have the program checkpointed by `towa snap take` from outside",
    })?;
    let mut command = Command::new(program);
    command.env_clear();
    Ok(command)
}

/// The absolute path of a program that root alone can change or exchange: no part of it belongs to another user, or can be written by
/// one. Else why not.
fn only_roots(path: &Path) -> std::result::Result<PathBuf, String> {
    let real = path.canonicalize().map_err(|e| e.to_string())?;
    for part in real.ancestors() {
        let status = std::fs::symlink_metadata(part).map_err(|e| format!("{}: {e}", part.display()))?;
        if status.uid() != 0 || status.mode() & 0o022 != 0 {
            return Err(format!("{} can be changed by others than root", part.display()));
        }
    }
    Ok(real)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that any user could put in the place of `towa` is started by a privileged process as little as one of the environment.
    #[test]
    fn a_privileged_program_starts_what_root_alone_can_change() {
        let dir = tempfile::tempdir().unwrap();
        let mine = dir.path().join("towa");
        std::fs::write(&mine, "").unwrap();
        let refused = only_roots(&mine).unwrap_err();
        assert!(refused.contains("others than root"), "{refused}");
        assert!(only_roots(Path::new("/nonexistent/towa")).is_err());
        let shell = only_roots(Path::new("/bin/sh")).expect("the shell is root's, and so is what leads there");
        assert!(shell.is_absolute());
        match command(true) {
            Ok(command) => assert!(Path::new(command.get_program()).is_absolute() && command.get_envs().next().is_none()),
            Err(e) => assert!(e.to_string().contains(INSTALLED), "{e}"),
        }
    }
}
