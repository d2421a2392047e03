//! Starts a process again from a checkpoint.
//!
//! ```text
//!   this process                          the new one
//!   opens all files, sockets, timers
//!   clone3, with the old number ────────► gives them their numbers; directory, limits, ...; waits
//!   stops and traces it
//!   by system calls in its name ────────► old memory away, new memory in; signals, timers; the other threads, with their numbers
//!   registers; lets go ─────────────────► goes on where it was
//! ```
//!
//! With [`How::Lazy`] most of its memory has no content when it is let go: see `lazy`, and `keeper` for what keeps that safe.
//! [`run`] does it with what is around it: namespaces where numbers or clocks need them, signals, waiting for the end. [`restart`] alone is
//! for who has all of that.
//!
//! The new process is traced with `PTRACE_O_EXITKILL` until it is complete: if this one dies, so does it. What must always hold: it runs no
//! instruction of the program before everything is as it was.

mod child;
mod content;
mod files;
mod identity;
mod keeper;
mod lazy;
mod memory;
mod names;
mod namespaces;
mod relay;
mod run;
mod settings;
mod terminal;
mod threads;

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

pub use lazy::{Filled, Paging};

use crate::error::{Error, Result};
use crate::freeze::Frozen;
use crate::nv;
use crate::nv::pool::Pool;
use crate::remote::Stub;
use crate::state::process::Who;
use crate::state::thread::Thread;
use crate::state::{State, kernel};
use crate::store::Checkpoint;
use crate::sys::machine;
use crate::sys::ptrace::{self, Stop, Tid};

use identity::Within;
use namespaces::Namespaces;
pub use run::run;
use terminal::Terminal;

/// Registers, memory and all of a process that runs again.
#[derive(Debug)]
pub struct Restarted {
    /// Its number, as before.
    pub pid: Tid,
    /// How it got its memory: eagerly also where a lazy restart was asked for and the kernel does not permit one.
    pub memory: How,
    /// From the beginning until it could run.
    pub first_instruction: Duration,
    /// Of a lazy restart: what fills its memory. Dropping it waits for that.
    pub paging: Option<Paging>,
}

/// When a process that is restarted gets the content of its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// All of it before it runs.
    #[default]
    Eager,
    /// Each page when it touches it, and the rest meanwhile. Until all is there, the end of this program is the process's end.
    Lazy,
}

/// What becomes of files that a process was writing and that are not what they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Files {
    /// It is not restarted.
    #[default]
    Refuse,
    /// They are made what they were: from the checkpoint's copy where there is one, else cut back to the length they had.
    Rewind,
    /// It goes on with them as they are; at their end, where that comes before its position.
    Keep,
}

/// How a process is to be restarted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// What becomes of files that it was writing and that have changed since.
    pub files: Files,
    /// When it gets its memory.
    pub memory: How,
    /// A process that was in mode `nv` goes on in it: its memory is not read but mapped. Else it becomes one like any other.
    pub nv: bool,
    /// In a pid namespace of its own, where its numbers are free; [`run`] makes one, also unasked where numbers may not be chosen without.
    pub pid_namespace: bool,
}

/// Starts the process of `checkpoint` again, as a child of this one, which must have a single thread.
pub fn restart(checkpoint: &Checkpoint, options: &Options) -> Result<Restarted> {
    let state = State::decode(checkpoint.manifest())?;
    unused(checkpoint)?;
    check(&state, &Who::of(std::process::id() as Tid)?, &Namespaces::default())?;
    make(checkpoint, &state, options, Within::Here, &mut || Ok(()))
}

/// Makes the process, where all that is needed was checked. `ready` is called when nothing is missing and nothing of it has run.
fn make(
    checkpoint: &Checkpoint,
    state: &State,
    options: &Options,
    within: Within,
    ready: &mut dyn FnMut() -> Result<()>,
) -> Result<Restarted> {
    let began = Instant::now();
    let pool = if options.nv { Pool::of(checkpoint)? } else { None };
    let opened = files::open(state, checkpoint, options.files, pool.as_ref())?;
    let born = child::bear(state, &opened)?;
    let pid = state.process.pid;
    let traced = libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACESYSGOOD;
    ptrace::seize(pid, traced)?;
    born.prepare()?;
    ptrace::interrupt(pid)?;
    match ptrace::wait(pid)? {
        Stop::Interrupted => {}
        stop => return Err(Error::Target { pid, what: format!("stopped with {stop:?} when it was made") }),
    }
    let mut frozen = Frozen::own(vec![pid]);
    let mut paging = None;
    let lazily = (options.memory == How::Lazy).then_some(&mut paging);
    let made = fill(state, checkpoint, &opened, within, &mut frozen, lazily)
        .and_then(|listener| match (listener, pool) {
            // Before the process runs: from then on it asks.
            (Some(listener), Some(pool)) => nv::restart::guard(listener, pool),
            _ => Ok(()),
        })
        .and_then(|()| relay::begin(pid))
        .and_then(|()| ready());
    if let Err(e) = made {
        // SAFETY: our own child, which is incomplete; then numbers, and a status that nobody wants.
        unsafe {
            libc::kill(pid, libc::SIGKILL);
            libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL);
        }
        std::mem::forget(frozen);
        return Err(e);
    }
    terminal::announce(state, pid);
    drop(frozen);
    let first_instruction = began.elapsed();
    let memory = if paging.is_some() { How::Lazy } else { How::Eager };
    Ok(Restarted { pid, memory, first_instruction, paging })
}

/// One that was restarted once only is not restarted again.
fn unused(checkpoint: &Checkpoint) -> Result<()> {
    if checkpoint.consumed() {
        let what = "was used up by a restart that was to be the only one (--once)".to_owned();
        return Err(Error::NotUsable { path: checkpoint.path().to_owned(), what });
    }
    Ok(())
}

fn check(state: &State, ours: &Who, namespaces: &Namespaces) -> Result<()> {
    machine::check()?;
    if state.kernel != kernel() {
        return Err(Error::Unsupported {
            what: format!("the checkpoint was taken on {}, this is {}", state.kernel, kernel()),
            remedy: "a process can be restarted on the kernel it ran on",
        });
    }
    settings::check(&state.process)?;
    identity::check(&state.process, ours, namespaces.within())?;
    numbers_are_free(state, namespaces)
}

/// Those of its threads; that of the process itself is seen when it is made.
fn numbers_are_free(state: &State, namespaces: &Namespaces) -> Result<()> {
    let pid = state.process.pid;
    if namespaces.pid {
        let what = "has number 1, which the first process of a pid namespace must have";
        return if pid == 1 { Err(Error::Target { pid, what: what.into() }) } else { Ok(()) };
    }
    let exists = |thread: &&Thread| std::path::Path::new(&format!("/proc/{}", thread.tid)).exists();
    let mut taken = state.threads[1..].iter().find(exists);
    let began = Instant::now();
    // Those of a process that was killed a moment ago are free soon.
    while taken.is_some() && began.elapsed() < threads::NUMBERS_COME_FREE {
        std::thread::sleep(Duration::from_millis(1));
        taken = state.threads[1..].iter().find(exists);
    }
    taken.map_or(Ok(()), |thread| {
        let what = format!("the number of its thread {} is taken by another; {}", thread.tid, child::IN_ITS_OWN);
        Err(Error::Target { pid, what })
    })
}

/// Gives the descriptor at which a process in mode `nv` asks.
fn fill(
    state: &State,
    checkpoint: &Checkpoint,
    opened: &files::Opened,
    within: Within,
    frozen: &mut Frozen,
    lazily: Option<&mut Option<Paging>>,
) -> Result<Option<OwnedFd>> {
    let pid = frozen.pid();
    let stub = Stub::install_own(pid, memory::place_of_stub(state, pid)?)?;
    threads::forget_own(pid, &stub)?;
    memory::empty(state, &stub)?;
    memory::map(state, checkpoint, opened, &stub)?;
    let paging = content(state, checkpoint, opened, &stub, lazily)?;
    memory::finish(state, checkpoint, &stub)?;
    threads::process(state, opened, &stub)?;
    for thread in &state.threads[1..] {
        threads::make(thread, &stub, frozen)?;
    }
    threads::posix_timers(state, &stub)?;
    for thread in &state.threads {
        threads::thread(thread, &stub)?;
        settings::thread(thread, &stub)?;
    }
    settings::process(state, &stub)?;
    threads::process_last(state, &stub)?;
    let listener = opened.pool.as_ref().map(|_| nv::restart::filter(pid, &stub)).transpose()?;
    // Last: with less than it has now, it could not have done what comes before.
    for thread in &state.threads {
        identity::give(thread, &state.process, within, &stub)?;
    }
    match paging {
        // The stub stays until all is filled.
        Some(paging) => paging.bind()?,
        None => stub.remove_own(pid)?,
    }
    for thread in &state.threads {
        threads::registers(thread)?;
    }
    Ok(listener)
}

/// The content of the memory: all of it, or what cannot wait.
fn content<'p>(
    state: &State,
    checkpoint: &Checkpoint,
    opened: &files::Opened,
    stub: &Stub,
    lazily: Option<&'p mut Option<Paging>>,
) -> Result<Option<&'p mut Paging>> {
    let Some(paging) = lazily else {
        return memory::read(state, checkpoint, opened, stub, checkpoint.pages()).map(|()| None);
    };
    let later = lazy::Later::of(state, checkpoint);
    memory::read(state, checkpoint, opened, stub, &checkpoint.pages().difference(&later.pages))?;
    match Paging::start(state, checkpoint, stub, &later) {
        Ok(started) => Ok(Some(paging.insert(started))),
        Err(e) => {
            log::warn!("a lazy restart is not possible here ({e}): all memory is filled before the program runs");
            memory::read(state, checkpoint, opened, stub, &later.pages).map(|()| None)
        }
    }
}
