//! A restart with all that is around it: namespaces where they are needed, signals, waiting for the end.
//!
//! ```text
//!   here                     tool ─► program                                   tool: signals ─► program, status ◄─ program
//!   in namespaces            tool ─► middle: enters them ─► first ─► program   signals: tool ─► program, by a pidfd
//!                                     (ends)                │                  status:  program ─► first ─► tool
//!                                                           waits for all that end in the pid namespace, until nobody is left
//! ```
//!
//! The first process stays as long as anybody is in the pid namespace: if it ended the kernel would end them all. The tool ends with the
//! program; what the program leaves running in the background runs on, as it would without namespaces. If the tool is ended by SIGKILL the
//! program goes on, in either case; if the first process is, the program ends with it.
//!
//! What must always hold: until the program runs, whatever ends the tool or the first process ends all that was made; and the tool's status
//! is the program's.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use super::namespaces::Namespaces;
use super::{Options, Paging, Terminal, relay};
use crate::error::{Error, Result};
use crate::state::State;
use crate::state::process::Who;
use crate::store::Checkpoint;
use crate::sys::fd::Process;
use crate::sys::ptrace::Tid;

/// Restarts the process of `checkpoint`, passes signals on to it, and waits for its end. Signals of this process are watched from then on.
/// `ready` is called when nothing is missing and nothing of the program has run: an error of its gives everything up.
pub fn run(checkpoint: Checkpoint, options: &Options, ready: Ready<'_>) -> Result<ExitStatus> {
    let state = State::decode(checkpoint.manifest())?;
    super::unused(&checkpoint)?;
    let ours = Who::of(std::process::id() as Tid)?;
    let needed = Namespaces::needed(&state, &ours, options.pid_namespace);
    super::check(&state, &ours, &needed)?;
    // A tool that was given capabilities by its file could not look at its own children otherwise. (Who has less than it cannot trace it.)
    // SAFETY: numbers only.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) };
    relay::watch()?;
    let _terminal = Terminal::for_program(&state);
    if !needed.none() {
        return inside(&needed, checkpoint, &state, options, ready);
    }
    let restarted = super::make(&checkpoint, &state, options, needed.within(), ready)?;
    drop(checkpoint);
    finish(restarted.paging);
    wait(restarted.pid)
}

/// Serves a lazy restart until all memory is there. Where that fails the program has been killed, which its status will say.
fn finish(paging: Option<Paging>) {
    match paging.map(Paging::wait) {
        Some(Ok(filled)) => log::info!("all memory is there after {:?}: {:?}", filled.took, filled.report),
        Some(Err(e)) => log::error!("{e}"),
        None => {}
    }
}

/// What is done when a process is complete and has not run.
pub type Ready<'r> = &'r mut dyn FnMut() -> Result<()>;

/// Waits for the end of a child.
fn wait(pid: Tid) -> Result<ExitStatus> {
    loop {
        if let Some((ended, status)) = wait_for(pid)?
            && ended == pid
        {
            return Ok(ExitStatus::from_raw(status));
        }
    }
}

/// One child that has ended, and its status; -1: any. `None`: there is none.
fn wait_for(pid: Tid) -> Result<Option<(Tid, i32)>> {
    let mut status = 0;
    loop {
        // SAFETY: a live number.
        let ended = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        if ended > 0 {
            return Ok(Some((ended, status)));
        }
        let e = io::Error::last_os_error();
        match e.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::ECHILD) if pid == -1 => return Ok(None),
            _ => return Err(Error::io(format!("waiting for process {pid}"), e)),
        }
    }
}

/// What the processes in between tell the tool.
#[derive(Debug, PartialEq, Eq)]
enum Message {
    /// The first process has this number.
    First(Tid),
    /// The program is complete and will run when this was heard; with a pidfd.
    Runs,
    /// The tool has heard it: from now on it passes signals on.
    Heard,
    /// It has ended, with this status.
    Ended(i32),
    /// It could not be restarted, because.
    Failed(String),
}

impl Message {
    fn encode(&self) -> Vec<u8> {
        let (letter, rest) = match self {
            Message::First(pid) => (b'1', pid.to_ne_bytes().to_vec()),
            Message::Runs => (b'r', Vec::new()),
            Message::Heard => (b'h', Vec::new()),
            Message::Ended(status) => (b'e', status.to_ne_bytes().to_vec()),
            Message::Failed(why) => (b'f', why.as_bytes()[..why.len().min(MOST - 1)].to_vec()),
        };
        [vec![letter], rest].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Message> {
        let (letter, rest) = bytes.split_first()?;
        let number = || rest.try_into().ok().map(i32::from_ne_bytes);
        match letter {
            b'1' => number().map(Message::First),
            b'r' => Some(Message::Runs),
            b'h' => Some(Message::Heard),
            b'e' => number().map(Message::Ended),
            b'f' => Some(Message::Failed(String::from_utf8_lossy(rest).into_owned())),
            _ => None,
        }
    }
}

/// Longest message.
const MOST: usize = 16 << 10;

/// One end of a connection that keeps messages apart and says when the other end is gone.
struct Line(OwnedFd);

impl Line {
    fn pair() -> Result<(Line, Line)> {
        let mut ends = [0; 2];
        // SAFETY: room for two numbers; the descriptors that come back are new and ours.
        unsafe {
            if libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, ends.as_mut_ptr()) != 0 {
                return Err(Error::last("a pair of sockets"));
            }
            Ok((Line(OwnedFd::from_raw_fd(ends[0])), Line(OwnedFd::from_raw_fd(ends[1]))))
        }
    }

    fn send(&self, message: &Message, with: Option<&OwnedFd>) -> Result<()> {
        let bytes = message.encode();
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut control = [0u64; 4];
        // SAFETY: the header describes live buffers, and its control part has room for one descriptor.
        let sent = unsafe {
            let mut header: libc::msghdr = std::mem::zeroed();
            (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
            if let Some(with) = with {
                header.msg_control = control.as_mut_ptr().cast();
                header.msg_controllen = libc::CMSG_SPACE(4) as usize;
                let first = libc::CMSG_FIRSTHDR(&raw const header);
                (*first).cmsg_level = libc::SOL_SOCKET;
                (*first).cmsg_type = libc::SCM_RIGHTS;
                (*first).cmsg_len = libc::CMSG_LEN(4) as usize;
                libc::CMSG_DATA(first).cast::<i32>().write_unaligned(with.as_raw_fd());
            }
            libc::sendmsg(self.0.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL)
        };
        if sent < 0 { Err(Error::last("speaking with the tool")) } else { Ok(()) }
    }

    /// `None`: the other end is gone.
    fn receive(&self) -> Result<Option<(Message, Option<OwnedFd>)>> {
        let mut bytes = vec![0u8; MOST];
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let mut control = [0u64; 4];
        // SAFETY: the header describes live buffers; a descriptor that comes is new and ours.
        let (got, with) = unsafe {
            let mut header: libc::msghdr = std::mem::zeroed();
            (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
            (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
            let got = loop {
                let got = libc::recvmsg(self.0.as_raw_fd(), &raw mut header, libc::MSG_CMSG_CLOEXEC);
                if got >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                    break got;
                }
            };
            if got < 0 {
                return Err(Error::last("speaking with the new process"));
            }
            let first = libc::CMSG_FIRSTHDR(&raw const header);
            let with = !first.is_null() && (*first).cmsg_type == libc::SCM_RIGHTS;
            (got as usize, with.then(|| OwnedFd::from_raw_fd(libc::CMSG_DATA(first).cast::<i32>().read_unaligned())))
        };
        match got {
            0 => Ok(None),
            got => match Message::decode(&bytes[..got]) {
                Some(message) => Ok(Some((message, with))),
                None => Err(Error::io("speaking with the new process", io::Error::other("what it says is not understood"))),
            },
        }
    }
}

/// Ends a process that must not go back into what it is a copy of, even by a panic.
struct EndsHere;

impl Drop for EndsHere {
    fn drop(&mut self) {
        // SAFETY: a number.
        unsafe { libc::_exit(125) };
    }
}

/// The tool's side of a restart in namespaces.
fn inside(needed: &Namespaces, checkpoint: Checkpoint, state: &State, options: &Options, ready: Ready<'_>) -> Result<ExitStatus> {
    let (tools, theirs) = Line::pair()?;
    // SAFETY: the child ends without coming back to the caller.
    let middle = unsafe { libc::fork() };
    match middle {
        0 => {
            let ends = EndsHere;
            drop(tools);
            be_middle(needed, checkpoint, state, options, ready, &theirs);
            drop(ends);
            unreachable!("it has ended");
        }
        _ if middle < 0 => return Err(Error::last("a process in between")),
        _ => {}
    }
    drop((theirs, checkpoint));
    listen(&tools, middle)
}

fn listen(tools: &Line, middle: Tid) -> Result<ExitStatus> {
    let mut first = None;
    loop {
        match tools.receive()? {
            Some((Message::First(pid), _)) => {
                first = Some(pid);
                relay::made_by(pid);
                // It has nothing left to do.
                wait_for(middle)?;
            }
            Some((Message::Runs, pidfd)) => {
                pidfd.map_or(Ok(()), relay::begin_by)?;
                tools.send(&Message::Heard, None)?;
            }
            Some((Message::Heard, _)) => {}
            Some((Message::Ended(status), _)) => return Ok(ExitStatus::from_raw(status)),
            Some((Message::Failed(what), _)) => {
                wait_for(first.unwrap_or(middle))?;
                return Err(Error::Elsewhere { what });
            }
            None => {
                let how = wait_for(first.unwrap_or(middle))?.map(|(_, status)| ExitStatus::from_raw(status));
                let how = how.map_or_else(String::new, |how| format!(" ({how})"));
                return Err(Error::Elsewhere { what: format!("the process that waits for the program was ended{how}") });
            }
        }
    }
}

/// The process in between: into the namespaces, and a first process there, as a child of the tool.
fn be_middle(needed: &Namespaces, checkpoint: Checkpoint, state: &State, options: &Options, ready: Ready<'_>, line: &Line) {
    relay::ignore();
    let first = needed.enter(state.process.pid).and_then(|()| {
        let flags = (libc::CLONE_PARENT | libc::SIGCHLD) as u64;
        // SAFETY: like fork, of a process with one thread; the child ends without coming back.
        match unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) } {
            first if first >= 0 => Ok(first as Tid),
            _ => Err(Error::last("a first process in new namespaces")),
        }
    });
    let _ = match first {
        Ok(0) => be_first(needed, checkpoint, state, options, ready, line),
        Ok(first) => line.send(&Message::First(first), None),
        Err(e) => line.send(&Message::Failed(e.to_string()), None),
    };
}

/// The first process in the namespaces: restarts the program and waits for all there are.
fn be_first(
    needed: &Namespaces,
    checkpoint: Checkpoint,
    state: &State,
    options: &Options,
    ready: Ready<'_>,
    line: &Line,
) -> Result<()> {
    // The program is not complete yet: without the tool there shall be none.
    // SAFETY: numbers only.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let mut announced = || {
        ready()?;
        // The tool passes signals on before the program can be seen to run.
        line.send(&Message::Runs, Some(&Process::open(state.process.pid)?.into_descriptor()))?;
        line.receive().map(drop)
    };
    let within = needed.within();
    let restarted =
        needed.settle(state.process.pid).and_then(|()| super::make(&checkpoint, state, options, within, &mut announced));
    let (pid, paging) = match restarted {
        Ok(restarted) => (restarted.pid, restarted.paging),
        Err(e) => return line.send(&Message::Failed(e.to_string()), None),
    };
    drop(checkpoint);
    // Without a tool that listens it goes on all the same.
    // SAFETY: numbers only.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, 0) };
    finish(paging);
    while let Some((ended, status)) = wait_for(-1)? {
        if ended == pid {
            let _ = line.send(&Message::Ended(status), None);
            let_go_of_streams();
        }
    }
    Ok(())
}

/// Who reads what the program wrote shall see its end, though others run on in the background.
fn let_go_of_streams() {
    if let Ok(null) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") {
        for stream in 0..3 {
            // SAFETY: numbers only.
            unsafe { libc::dup2(null.as_raw_fd(), stream) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_as_they_were_sent() {
        let (one, other) = Line::pair().unwrap();
        let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        one.send(&Message::First(4711), None).unwrap();
        one.send(&Message::Runs, Some(&file)).unwrap();
        one.send(&Message::Ended(-9), None).unwrap();
        one.send(&Message::Failed("x".repeat(2 * MOST)), None).unwrap();
        drop(one);
        let next = || other.receive().unwrap();
        assert!(matches!(next(), Some((Message::First(4711), None))));
        assert!(matches!(next(), Some((Message::Runs, Some(_)))));
        assert!(matches!(next(), Some((Message::Ended(-9), None))));
        assert!(matches!(next(), Some((Message::Failed(why), None)) if why.len() == MOST - 1));
        assert!(next().is_none());
    }
}
