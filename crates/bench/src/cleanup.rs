//! Leaves nothing behind: directories and child processes of a run go when it ends, however it ends.
//!
//! ```text
//!   normal end, error, panic   the guards' drops
//!   SIGINT, SIGTERM, SIGHUP    a watching thread empties the register, then the process ends with 128 + signal
//!   SIGKILL                    children die with their parent (PR_SET_PDEATHSIG); directories stay, named towa-bench-*
//! ```

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Mutex, Once};

use anyhow::{Context, Result, ensure};

/// What must go if the process is told to end.
static REGISTER: Mutex<Register> = Mutex::new(Register { directories: Vec::new(), children: Vec::new() });

struct Register {
    directories: Vec<PathBuf>,
    children: Vec<u32>,
}

fn register() -> std::sync::MutexGuard<'static, Register> {
    REGISTER.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Starts watching for signals; further calls do nothing.
pub fn watch_signals() -> Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    static ONCE: Once = Once::new();
    if ONCE.is_completed() {
        return Ok(());
    }
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]).context("watching for signals")?;
    ONCE.call_once(|| {
        std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                let register = register();
                register.children.iter().for_each(|pid| kill(*pid));
                register.directories.iter().for_each(|dir| drop(std::fs::remove_dir_all(dir)));
                std::process::exit(128 + signal);
            }
        });
    });
    Ok(())
}

fn kill(pid: u32) {
    // SAFETY: kill(2) takes two integers and touches no memory of ours; the pid is a child we have not yet reaped (it leaves
    // the register before it is waited for), so it cannot have become another process.
    unsafe { libc::kill(pid as libc::pid_t, libc::SIGKILL) };
}

/// A directory that is removed with everything in it when this value goes.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes a fresh directory within `parent`.
    pub fn within(parent: &Path) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("towa-bench-")
            .tempdir_in(parent)
            .with_context(|| format!("{}: cannot make a directory for the run; name another with --pool", parent.display()))?
            .keep();
        register().directories.push(dir.clone());
        Ok(Self(dir))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A fresh, empty directory `name` within it.
    pub fn fresh(&self, name: &str) -> Result<PathBuf> {
        let dir = self.0.join(name);
        if dir.exists() {
            std::fs::remove_dir_all(&dir).with_context(|| format!("{}: clearing", dir.display()))?;
        }
        std::fs::create_dir(&dir).with_context(|| format!("{}: creating", dir.display()))?;
        Ok(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
        register().directories.retain(|dir| *dir != self.0);
    }
}

/// A child process that is killed when this value goes.
#[derive(Debug)]
pub struct Running {
    child: Child,
    reaped: bool,
}

impl Running {
    /// Starts `command`; it also dies if this process is killed. Call it from a thread that outlives the child: the kernel
    /// ties the child's life to the thread that started it.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        Self::spawn_by(command, |command| command.spawn().with_context(|| format!("{program}: cannot be started")))
    }

    /// The same, where `spawn` starts it.
    pub fn spawn_by(command: &mut Command, spawn: impl FnOnce(&mut Command) -> Result<Child>) -> Result<Self> {
        // SAFETY: between fork and exec the closure makes one system call, prctl, which is async-signal-safe and takes only
        // integers here.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        let child = spawn(command)?;
        Ok(Self::adopt(child))
    }

    /// Takes over a child that was started without a closure before its exec, which the library does by a cheaper call (vfork). It outlives
    /// this process if that is killed, so it should be one that ends by itself.
    pub fn adopt(child: Child) -> Self {
        register().children.push(child.id());
        Self { child, reaped: false }
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The process, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Its exit status if it has ended by itself.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(mut self) -> Result<()> {
        self.end();
        Ok(())
    }

    /// Waits until it has ended by itself; what it and its own children used.
    pub fn finish(mut self) -> Result<(ExitStatus, libc::rusage)> {
        let pid = self.pid();
        // SAFETY: the kernel stores one siginfo_t. WNOWAIT leaves the child as it is: its number stays its own while it is registered.
        let ended = unsafe {
            let mut about: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(libc::P_PID, pid, &raw mut about, libc::WEXITED | libc::WNOWAIT)
        };
        ensure!(ended == 0, "waiting for a child: {}", std::io::Error::last_os_error());
        register().children.retain(|other| *other != pid);
        self.reaped = true;
        let mut status = 0;
        // SAFETY: the kernel stores an integer and a struct of numbers, for which zeros are a value.
        let (gone, used) = unsafe {
            let mut used: libc::rusage = std::mem::zeroed();
            (libc::wait4(pid as libc::pid_t, &raw mut status, 0, &raw mut used), used)
        };
        ensure!(gone == pid as libc::pid_t, "waiting for a child: {}", std::io::Error::last_os_error());
        Ok((ExitStatus::from_raw(status), used))
    }

    fn end(&mut self) {
        if self.reaped {
            return;
        }
        register().children.retain(|pid| *pid != self.child.id());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_child_is_gone() {
        let child = Running::spawn(Command::new("sleep").arg("60")).unwrap();
        let proc = PathBuf::from(format!("/proc/{}", child.pid()));
        assert!(proc.exists());
        drop(child);
        assert!(!proc.exists());
    }

    #[test]
    fn a_child_that_ended_tells_what_it_used() {
        let child = Command::new("sh").args(["-c", "exit 3"]).spawn().unwrap();
        let (status, used) = Running::adopt(child).finish().unwrap();
        assert_eq!(status.code(), Some(3));
        assert!(used.ru_minflt > 0);
    }

    #[test]
    fn a_dropped_scratch_is_gone() {
        let scratch = Scratch::within(&std::env::temp_dir()).unwrap();
        let dir = scratch.fresh("a").unwrap();
        std::fs::write(dir.join("f"), "x").unwrap();
        assert!(!scratch.fresh("a").unwrap().join("f").exists(), "fresh means empty");
        let path = scratch.path().to_owned();
        drop(scratch);
        assert!(!path.exists());
    }

    #[test]
    fn a_missing_program_is_named() {
        let why = Running::spawn(&mut Command::new("/proc/nonexistent/prog")).unwrap_err().to_string();
        assert!(why.contains("/proc/nonexistent/prog"), "{why}");
    }
}
