//! Threads whose descriptors are out of everybody's reach: such a thread has a table of descriptors of its own.
//!
//! ```text
//!   threads of the program    table: 0 1 2 5 6 ...          close(3..1023), fork and O_CLOEXEC act on this one
//!   a thread apart            table: - - - the ones given   only this thread acts on this one
//! ```
//!
//! A lock of `flock(2)`, a socket's connection: each ends when the last descriptor of it is closed. In the program's
//! table any line of code can close it (a program that becomes a daemon closes all descriptors), and a forked child
//! keeps it for as long as it lives. In a table apart it ends when this thread ends: when it is told to, when its
//! process ends in whatever way, and at `execve`. A mapping of a locked file would also keep the lock, but not on
//! overlayfs, where the mapping is of another file; and directories cannot be mapped.
//!
//! What must always hold: the thread runs no signal handler and no code of the program, since that would act on the
//! wrong table. Where the kernel gives a thread no table of its own (before Linux 5.9, and in some sandboxes) its
//! descriptors stand in the program's table, with all that this means; nothing else changes.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::mpsc::sync_channel;
use std::thread::{Builder, JoinHandle};

/// Enough for system calls and messages. (Thread-local variables of the program's libraries come on top of it, or out
/// of it.)
const STACK: usize = 256 << 10;

/// Starts a thread that does `work`, with `descriptors` alone in its table. They are gone from the caller's table
/// when this returns.
///
/// # Errors
/// The thread cannot be started; the descriptors are closed.
pub fn spawn(
    name: &str,
    descriptors: Vec<OwnedFd>,
    work: impl FnOnce(Vec<OwnedFd>) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let numbers: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let (told, heard) = sync_channel(1);
    let body = move || {
        let is_apart = separate(&numbers);
        // SAFETY: the numbers stand in this thread's own table, where nothing else owns them; where it has none, the
        // caller gives them up.
        let mine = numbers.iter().map(|fd| unsafe { OwnedFd::from_raw_fd(*fd) }).collect();
        let _ = told.send(is_apart);
        work(mine);
    };
    let thread = {
        let _signals = Blocked::all();
        Builder::new().name(name.into()).stack_size(STACK).spawn(body)?
    };
    match heard.recv() {
        Ok(true) => drop(descriptors),
        _ => std::mem::forget(descriptors),
    }
    Ok(thread)
}

/// Gives the calling thread a table with `kept` alone; `false` where the kernel does not.
fn separate(kept: &[RawFd]) -> bool {
    let close = |first: RawFd, last: u32, flags: libc::c_uint| {
        // SAFETY: with `CLOSE_RANGE_UNSHARE` the table is copied first; without it, it is this thread's own already.
        unsafe { libc::syscall(libc::SYS_close_range, first as libc::c_uint, last, flags) == 0 }
    };
    let mut kept = kept.to_vec();
    kept.sort_unstable();
    // Descriptors behind the last that is kept are not even copied.
    if !close(kept.last().map_or(3, |last| last + 1), u32::MAX, libc::CLOSE_RANGE_UNSHARE) {
        return false;
    }
    let mut next = 3;
    for fd in kept {
        if fd > next {
            close(next, fd as u32 - 1, 0);
        }
        next = fd + 1;
    }
    // The program's streams must end when the program closes them. A file of ours must not get their numbers: a
    // message of the run-time library would be written into it. SAFETY: the name is NUL-terminated; all numbers are
    // of this thread's table.
    unsafe {
        let nothing = libc::memfd_create(c"nothing".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        libc::fcntl(nothing, libc::F_ADD_SEALS, libc::F_SEAL_WRITE | libc::F_SEAL_GROW);
        for stream in 0..3 {
            libc::dup2(nothing, stream);
        }
        if nothing > 2 {
            libc::close(nothing);
        }
    }
    true
}

/// No signal reaches this thread, nor a thread that it starts, until this is dropped.
struct Blocked(libc::sigset_t);

impl Blocked {
    fn all() -> Blocked {
        // SAFETY: all-zero is a valid set, which the calls fill; a mask is this thread's alone.
        unsafe {
            let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Blocked(before)
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;

    /// Names of what the calling thread's descriptors lead to.
    fn table() -> Vec<String> {
        let entries = std::fs::read_dir("/proc/thread-self/fd").unwrap().map(|entry| entry.unwrap().path());
        entries.filter_map(|path| Some(std::fs::read_link(path).ok()?.display().to_string())).collect()
    }

    #[test]
    fn a_thread_apart_has_what_it_was_given_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (given, other) = (dir.path().join("given"), dir.path().join("other"));
        let other = (File::create(&other).unwrap(), other);
        let file = File::create(&given).unwrap();
        let number = file.as_raw_fd();
        let (send, receive) = sync_channel(1);
        let work = move |mine: Vec<OwnedFd>| {
            assert_eq!(mine[0].as_fd().as_raw_fd(), number);
            // SAFETY: asks, and changes nothing.
            let signals = unsafe {
                let mut now: libc::sigset_t = std::mem::zeroed();
                libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), &raw mut now);
                (1..32).filter(|signal| libc::sigismember(&raw const now, *signal) == 1).count()
            };
            eprintln!("goes nowhere");
            send.send((table(), signals)).unwrap();
        };
        spawn("apart", vec![file.into()], work).unwrap().join().unwrap();
        let (table_apart, signals) = receive.recv().unwrap();
        let is = |what: &str| table_apart.iter().any(|name| name.contains(what));
        assert!(is("given") && !is("other"), "{table_apart:?}");
        // All but SIGKILL and SIGSTOP.
        assert_eq!(signals, 29);
        let mine = table();
        assert!(!mine.iter().any(|name| name.contains("/given")), "{mine:?}");
        assert!(mine.iter().any(|name| *name == other.1.display().to_string()), "{mine:?}");
        assert_eq!(std::fs::read(&given).unwrap(), b"");
    }
}
