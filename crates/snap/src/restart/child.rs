//! The new process's own part, before its memory is replaced: numbers of descriptors, locks, directory, limits.
//!
//! What must always hold: between its birth and its end as a copy of this program it makes system calls only, for it has this process's
//! memory and none of its other threads.

use std::ffi::CString;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::files::{Opened, flags_again};
use crate::error::{Error, Result};
use crate::state::State;
use crate::state::descriptors::{Kind, Lock, OpenFile};

/// What to do when a number is taken.
pub const IN_ITS_OWN: &str = "a restart needs its number (end it first, or give --pid-namespace)";

/// A new process, which waits to be told to go on.
pub struct Born {
    pid: i32,
    go_on: io::PipeWriter,
    done: io::PipeReader,
}

/// What it does, in numbers and names made before it is born.
struct Plan<'s> {
    state: &'s State,
    /// For each open file, its number here.
    from: Vec<i32>,
    /// What the system tells of the process itself: index of the open file, name, flags, position.
    own: Vec<(usize, CString, i32, i64)>,
    /// Its current directory, open.
    directory: i32,
}

impl<'s> Plan<'s> {
    fn of(state: &'s State, opened: &Opened) -> Plan<'s> {
        let name = |path: &Path| CString::new(path.as_os_str().as_bytes()).expect("names have no NUL");
        let own = |(index, file): (usize, &OpenFile)| match &file.kind {
            Kind::Own { path, position } => {
                Some((index, name(&Path::new("/proc/self").join(path)), flags_again(file.flags), *position as i64))
            }
            _ => None,
        };
        Plan {
            state,
            from: opened.files.iter().map(AsRawFd::as_raw_fd).collect(),
            own: state.descriptors.files.iter().enumerate().filter_map(own).collect(),
            directory: opened.directory.as_raw_fd(),
        }
    }
}

/// Makes the process, with its old number.
pub fn bear(state: &State, opened: &Opened) -> Result<Born> {
    let pid = state.process.pid;
    let plan = Plan::of(state, opened);
    let pipe = || io::pipe().map_err(|e| Error::io("a pipe", e));
    let ((wait, go_on), (done, report)) = (pipe()?, pipe()?);
    let (wait, report) = (beyond(&plan, wait.into())?, beyond(&plan, report.into())?);
    let numbers = [pid];
    // SAFETY: the struct is numbers, all 0 otherwise.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.exit_signal = libc::SIGCHLD as u64;
    args.set_tid = numbers.as_ptr() as u64;
    args.set_tid_size = 1;
    let began = Instant::now();
    let (born, error) = loop {
        // SAFETY: like fork: the child has a copy of this memory, and makes system calls only.
        let born = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<libc::clone_args>()) };
        // When a process has been waited for, its number may be taken for a moment yet.
        let error = (born < 0).then(io::Error::last_os_error);
        let taken = error.as_ref().is_some_and(|error| error.raw_os_error() == Some(libc::EEXIST));
        if !taken || is_there(pid) || began.elapsed() > super::threads::NUMBERS_COME_FREE {
            break (born, error);
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    match error {
        None if born == 0 => live(&plan, &wait, &report),
        Some(e) => Err(match e.raw_os_error() {
            Some(libc::EEXIST) => {
                let what = match crate::sys::ptrace::has_ended(pid) {
                    true => "has ended, but its parent has not waited for it yet",
                    false => "is a process that runs, or a thread of one",
                };
                Error::Target { pid, what: format!("{what}; {IN_ITS_OWN}") }
            }
            Some(libc::EPERM) => Error::NotPermitted {
                pid,
                what: "making a process with this number",
                remedy: "it takes CAP_CHECKPOINT_RESTORE, root, or a pid namespace of its own (--pid-namespace)",
            },
            _ => Error::io("clone3", e),
        }),
        None => Ok(Born { pid, go_on, done }),
    }
}

/// Whether there is a process or thread of that number.
fn is_there(pid: i32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

fn beyond(plan: &Plan<'_>, fd: OwnedFd) -> Result<i32> {
    use std::os::fd::IntoRawFd;
    let first = plan.state.descriptors.table.last().map_or(3, |last| last.fd + 1).max(64);
    // SAFETY: numbers only.
    let high = unsafe { libc::fcntl(fd.into_raw_fd(), libc::F_DUPFD_CLOEXEC, first) };
    if high < 0 { Err(Error::last("a descriptor beyond those of the process")) } else { Ok(high) }
}

impl Born {
    /// Lets it prepare itself, and waits until it has; it waits for ever then.
    pub fn prepare(mut self) -> Result<()> {
        let failed = |e| Error::io("speaking with the new process", e);
        self.go_on.write_all(&[1]).map_err(failed)?;
        let mut answer = [0u8; 8];
        self.done.read_exact(&mut answer).map_err(failed)?;
        let [step, errno] =
            [i32::from_ne_bytes(answer[..4].try_into().expect("4")), i32::from_ne_bytes(answer[4..].try_into().expect("4"))];
        if step != 0 {
            let what = format!("process {}: {}", self.pid, STEPS[step as usize - 1]);
            return Err(Error::io(what, io::Error::from_raw_os_error(errno)));
        }
        Ok(())
    }
}

const STEPS: [&str; 5] = ["its directory", "its descriptors", "what it had open in /proc/self", "its locks", "its epoll instances"];

/// What the new process does. System calls only.
fn live(plan: &Plan<'_>, wait: &i32, report: &i32) -> ! {
    let mut byte = 0u8;
    // SAFETY: calls with numbers and live bytes.
    unsafe {
        // Whatever ends the restarter before it traces this process ends it, too. (It gets its own signal of this kind at the end.)
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::read(*wait, (&raw mut byte).cast(), 1) != 1 {
            // It was given up before it was traced.
            libc::_exit(125);
        }
        let step = prepare(plan);
        let errno = if step == 0 { 0 } else { *libc::__errno_location() };
        let answer = [step, errno];
        libc::write(*report, answer.as_ptr().cast(), 8);
        loop {
            libc::pause();
        }
    }
}

/// 0, or the number of the step that failed.
unsafe fn prepare(plan: &Plan<'_>) -> i32 {
    let process = &plan.state.process;
    // SAFETY: numbers and live memory only.
    unsafe {
        if libc::fchdir(plan.directory) != 0 {
            return 1;
        }
        libc::umask(process.umask);
        for (index, name, flags, position) in &plan.own {
            let own = libc::open(name.as_ptr(), *flags);
            if own < 0 || libc::lseek(own, *position, libc::SEEK_SET) < 0 || libc::dup3(own, plan.from[*index], libc::O_CLOEXEC) < 0
            {
                return 3;
            }
        }
        for descriptor in &plan.state.descriptors.table {
            let flags = if descriptor.close_on_exec { libc::O_CLOEXEC } else { 0 };
            if libc::dup3(plan.from[descriptor.file], descriptor.fd, flags) < 0 {
                return 2;
            }
        }
        // Numbers that the process does not have; those beyond its last are needed a while yet.
        let mut next = 0;
        for descriptor in &plan.state.descriptors.table {
            if descriptor.fd > next {
                libc::close_range(next as u32, descriptor.fd as u32 - 1, 0);
            }
            next = descriptor.fd + 1;
        }
        for descriptor in &plan.state.descriptors.table {
            match &plan.state.descriptors.files[descriptor.file].kind {
                Kind::Regular { locks, .. } if !locks.iter().filter(|one| one.whole).all(|one| lock(descriptor.fd, one)) => {
                    return 4;
                }
                Kind::Epoll { watches } => {
                    for watch in watches {
                        let mut event = libc::epoll_event { events: watch.events, u64: watch.data };
                        // A duplicate of the instance has it already.
                        if libc::epoll_ctl(descriptor.fd, libc::EPOLL_CTL_ADD, watch.fd, &raw mut event) != 0
                            && *libc::__errno_location() != libc::EEXIST
                        {
                            return 5;
                        }
                    }
                }
                _ => {}
            }
        }
    }
    0
}

/// Of flock(2). Those of fcntl(2) are lost with any descriptor of the file that is closed, so they come last (`threads::process_last`).
unsafe fn lock(fd: i32, lock: &Lock) -> bool {
    // SAFETY: numbers only.
    unsafe { libc::flock(fd, if lock.exclusive { libc::LOCK_EX } else { libc::LOCK_SH } | libc::LOCK_NB) == 0 }
}
