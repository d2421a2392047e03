//! Namespaces in which a process can have the numbers and the clocks that it had.
//!
//! ```text
//!   pid    its numbers are free there, and may be chosen by whoever made it        wished, or not permitted outside
//!   mount  with a /proc that shows those numbers                                   with pid
//!   time   CLOCK_MONOTONIC and CLOCK_BOOTTIME go on where they were                this machine's are behind: it was started since
//!   user   whoever is nobody may make the others                                   without CAP_SYS_ADMIN
//! ```
//!
//! What must always hold: they are made when something needs them, and as few as do; the program's clocks never go backwards; and of the
//! capabilities in a user namespace the program gets none ([`super::identity`]).

use std::ffi::CStr;
use std::io;
use std::os::fd::AsRawFd;

use super::identity::Within;
use crate::error::{Error, Result};
use crate::state::State;
use crate::state::process::{Who, clock_ns};
use crate::sys::ptrace::Tid;

const CAP_SYS_ADMIN: u64 = 1 << 21;
const CAP_SYS_TIME: u64 = 1 << 25;
const CAP_CHECKPOINT_RESTORE: u64 = 1 << 40;
const NS_GET_USERNS: libc::Ioctl = 0xb701;
const CLONE_NEWTIME: i32 = 0x80;

/// Those that a restart takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Namespaces {
    /// User.
    pub user: bool,
    /// Pid and mount.
    pub pid: bool,
    /// Time: by how many nanoseconds CLOCK_MONOTONIC and CLOCK_BOOTTIME here are behind.
    pub time: Option<(u64, u64)>,
}

/// What this process may do.
struct Powers {
    /// Choose numbers of processes.
    numbers: bool,
    /// Make namespaces.
    admin: bool,
    /// Set the clocks of one.
    clocks: bool,
}

impl Powers {
    fn ours(who: &Who) -> Powers {
        let has = |capability: u64| who.capabilities[2] & capability != 0;
        Powers {
            numbers: (has(CAP_CHECKPOINT_RESTORE) || has(CAP_SYS_ADMIN)) && owns_numbers(),
            admin: has(CAP_SYS_ADMIN),
            clocks: has(CAP_SYS_ADMIN) && has(CAP_SYS_TIME),
        }
    }
}

/// Whether capabilities of this process count in its pid namespace: it belongs to its user namespace.
fn owns_numbers() -> bool {
    use std::os::fd::{FromRawFd, OwnedFd};
    use std::os::unix::fs::MetadataExt;
    let (Ok(pid), Ok(user)) = (std::fs::File::open("/proc/self/ns/pid"), std::fs::metadata("/proc/self/ns/user")) else {
        return false;
    };
    // SAFETY: numbers only; the descriptor that comes back is new and ours. It does for one that is not below ours: EPERM.
    let owner = unsafe { libc::ioctl(pid.as_raw_fd(), NS_GET_USERNS) };
    if owner < 0 {
        return false;
    }
    // SAFETY: as above.
    let owner = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(owner) });
    owner.metadata().is_ok_and(|owner| (owner.dev(), owner.ino()) == (user.dev(), user.ino()))
}

impl Namespaces {
    /// What a restart by a process like `ours` takes. `wished`: a pid namespace in any case.
    pub fn needed(state: &State, ours: &Who, wished: bool) -> Namespaces {
        let now = (clock_ns(libc::CLOCK_MONOTONIC), clock_ns(libc::CLOCK_BOOTTIME));
        let was = state.process.clocks;
        let behind = (was.0.saturating_sub(now.0), was.1.saturating_sub(now.1));
        Namespaces::by(&Powers::ours(ours), wished, (behind != (0, 0)).then_some(behind))
    }

    fn by(powers: &Powers, wished: bool, time: Option<(u64, u64)>) -> Namespaces {
        let pid = wished || !powers.numbers;
        let user = pid && !powers.admin || time.is_some() && !powers.clocks;
        // What a user namespace permits counts in pid namespaces made by it, and in no others.
        Namespaces { user, pid: pid || user, time }
    }

    /// None at all.
    pub fn none(&self) -> bool {
        *self == Namespaces::default()
    }

    /// As far as who the process is goes.
    pub fn within(&self) -> Within {
        if self.user { Within::UserNamespace } else { Within::Here }
    }

    /// Into new ones: this process, but for pid and time, which are its children's.
    pub fn enter(&self, pid: Tid) -> Result<()> {
        if self.user {
            enter_user(pid)?;
        }
        let flag = |wanted: bool, flag: i32| if wanted { flag } else { 0 };
        let flags = flag(self.pid, libc::CLONE_NEWPID | libc::CLONE_NEWNS) | flag(self.time.is_some(), CLONE_NEWTIME);
        // SAFETY: numbers only.
        if unsafe { libc::unshare(flags) } != 0 {
            return Err(refused("pid, mount or time namespaces cannot be made", pid));
        }
        self.time.map_or(Ok(()), set_clocks)
    }

    /// Of the first process in them: a /proc that shows them.
    pub fn settle(&self, pid: Tid) -> Result<()> {
        if !self.pid {
            return Ok(());
        }
        let mount = |what: &CStr, at: &CStr, kind: &CStr, flags: libc::c_ulong| {
            // SAFETY: names that end in NUL.
            unsafe { libc::mount(what.as_ptr(), at.as_ptr(), kind.as_ptr(), flags, std::ptr::null()) == 0 }
        };
        // What is mounted here is not seen outside; what is outside, mounted or unmounted, is here, too.
        if !mount(c"none", c"/", c"none", libc::MS_REC | libc::MS_SLAVE) {
            return Err(refused("mounts cannot be made this namespace's own", pid));
        }
        if !mount(c"proc", c"/proc", c"proc", libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC) {
            return Err(refused(
                "/proc cannot be mounted in a pid namespace of its own (in a container parts of it are hidden?)",
                pid,
            ));
        }
        Ok(())
    }
}

/// With the error of the call just made.
fn refused(what: &str, pid: Tid) -> Error {
    let e = io::Error::last_os_error();
    let why = match e.raw_os_error() {
        Some(libc::ENOSPC) => "user.max_*_namespaces forbids more",
        Some(libc::EPERM | libc::EACCES) => {
            "the system does not permit it (kernel.unprivileged_userns_clone, AppArmor, a container's filter?)"
        }
        _ => "",
    };
    let because = if why.is_empty() { e.to_string() } else { format!("{e}: {why}") };
    Error::Unsupported {
        what: format!("process {pid} is to have the number it had, and {what}: {because}"),
        remedy: "without namespaces a restart takes CAP_CHECKPOINT_RESTORE (setcap cap_checkpoint_restore+ep on the tool), or root",
    }
}

/// A user namespace in which nobody is known but this user and this group, by the numbers they have.
fn enter_user(pid: Tid) -> Result<()> {
    // SAFETY: they ask for numbers.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    // SAFETY: numbers only.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER) } != 0 {
        return Err(refused("user namespaces are switched off", pid));
    }
    // Groups first: whoever may leave groups could otherwise get past what denies to one of them.
    for (name, line) in
        [("setgroups", "deny".to_owned()), ("uid_map", format!("{user} {user} 1")), ("gid_map", format!("{group} {group} 1"))]
    {
        let path = format!("/proc/self/{name}");
        std::fs::write(&path, line).map_err(|e| Error::io(path, e))?;
    }
    Ok(())
}

/// Sets the clocks of the new time namespace, before anybody is in it, forward by so much.
fn set_clocks(behind: (u64, u64)) -> Result<()> {
    const PATH: &str = "/proc/self/timens_offsets";
    const SECOND: i128 = 1_000_000_000;
    let failed = |e| Error::io(PATH, e);
    // The new one begins with what this one's clocks are set forward by.
    let mut lines = String::new();
    for line in std::fs::read_to_string(PATH).map_err(failed)?.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, seconds, rest] = words[..] else { continue };
        let before = seconds.parse::<i128>().unwrap_or(0) * SECOND + rest.parse::<i128>().unwrap_or(0);
        let offset = before + i128::from(if name == "monotonic" { behind.0 } else { behind.1 });
        lines += &format!("{name} {} {}\n", offset.div_euclid(SECOND), offset.rem_euclid(SECOND));
    }
    std::fs::write(PATH, lines).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_few_are_made_as_are_needed() {
        let by = |numbers, admin, clocks, wished, time: bool| {
            let namespaces = Namespaces::by(&Powers { numbers, admin, clocks }, wished, time.then_some((1, 1)));
            (namespaces.user, namespaces.pid, namespaces.time.is_some())
        };
        // Root, with CAP_CHECKPOINT_RESTORE alone, nobody, root of a container whose pid namespace is another's.
        assert_eq!(by(true, true, true, false, false), (false, false, false));
        assert_eq!(by(true, true, true, true, false), (false, true, false));
        assert_eq!(by(true, true, true, false, true), (false, false, true));
        assert_eq!(by(true, false, false, false, false), (false, false, false));
        assert_eq!(by(true, false, false, true, false), (true, true, false));
        assert_eq!(by(true, false, false, false, true), (true, true, true));
        assert_eq!(by(false, false, false, false, false), (true, true, false));
        assert_eq!(by(false, true, false, false, false), (false, true, false));
        assert_eq!(by(false, true, false, false, true), (true, true, true));
    }
}
