//! System calls in the target's name, safe against the tool's death.
//!
//! A few pages of their own in the target, the *stub*, hold a tiny program that makes the calls of a table one after another. The tool
//! points a stopped thread at it, and it comes back by itself:
//!
//! ```text
//!   stopped ─► rip = stub ─► calls of the table ─► tgkill(self, SIGURG or its kin) ─► mask and registers as they were ─► where it was
//!                                                        │
//!                                     the tool lives: the signal stops the thread; the tool reads the results,
//!                                     puts back registers and mask, and drops the signal
//!                                     the tool is dead: the kernel let the thread run on; the signal is one that
//!                                     the target ignores, and the stub takes the thread to where it was
//! ```
//!
//! What must always hold: at every instruction between pointing a thread at the stub and putting it back, letting it run untraced takes
//! it back to where it was, with all registers and its signal mask. No byte of the target's own code is changed, and of its memory
//! none but what lies beyond the end of its main stack (`install`, once).

mod frame;
mod gate;
mod install;
mod left;
pub(crate) mod x86_64;
pub(crate) use self::x86_64 as arch;

use crate::error::{Error, Result};
use crate::sys::memory;
use crate::sys::ptrace::{self, Registers, Stop, Tid};

pub use gate::TOGETHER;
pub use install::{call_own, can_be_entered, find_syscall};
pub use left::Claim;

/// A system call and its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its number.
    pub number: i64,
    /// Its arguments.
    pub args: [u64; 6],
}

impl Call {
    /// With these arguments, the others 0.
    pub fn new(number: i64, args: &[u64]) -> Call {
        let mut all = [0; 6];
        all[..args.len()].copy_from_slice(args);
        Call { number, args: all }
    }
}

/// One call as the stub reads it, and its result.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Entry {
    number: i64,
    args: [u64; 6],
    result: i64,
}

const PAGE: u64 = towa_media::PAGE as u64;
/// The code is in a page of its own; behind it, for calls of several threads at a time ([`gate`]), a copy of other code for each. Both are
/// executable and not writable.
const CODE: u64 = PAGE;
/// Bytes of a copy, and of a state.
const SLOT: u64 = 512;
/// Threads that there is room for.
const SLOTS: u64 = 512;
const TABLE: u64 = CODE + SLOTS * SLOT;
const TABLE_PAGES: u64 = 4;
const ENTRIES: usize = (TABLE_PAGES * PAGE) as usize / size_of::<Entry>();
const SCRATCH: u64 = TABLE + TABLE_PAGES * PAGE;
/// Bytes for what calls read and write.
pub const SCRATCH_LEN: u64 = 6 * PAGE;
/// The thread's own state, which the stub takes it back to.
const STATE: u64 = SCRATCH + SCRATCH_LEN;
/// In the page of that state, well behind it.
const LABEL: u64 = STATE + PAGE / 2;
/// Bytes of a label.
pub const LABEL_LEN: usize = 16;
/// For calls that are made while no thread may run: the word that says so; then, for each thread with code of its own, its state.
const GATE: u64 = STATE + PAGE;
const STATES: u64 = GATE + PAGE;
/// Bytes of the stub. Most are never touched.
pub const LEN: u64 = STATES + SLOTS * SLOT;
/// Calls that [`Stub::run_alone`] makes at once.
pub const AT_ONCE: usize = ENTRIES;

/// The stub in a process.
#[derive(Clone, Debug)]
pub struct Stub {
    pid: Tid,
    base: u64,
    /// The signal that says "done": one that the target neither catches nor needs.
    signal: i32,
    /// For how many threads there is code at the gate.
    slots: u64,
}

/// A thread's state that the stub's use changes.
#[derive(Clone, Copy, Debug)]
pub struct Saved {
    /// Its registers.
    pub registers: Registers,
    /// The signals it blocks.
    pub mask: u64,
}

impl Saved {
    /// That of a stopped thread.
    pub fn of(tid: Tid) -> Result<Saved> {
        Ok(Saved { registers: ptrace::registers(tid)?, mask: ptrace::signal_mask(tid)? })
    }

    /// Puts it back.
    pub fn put_back(&self, tid: Tid) -> Result<()> {
        ptrace::set_signal_mask(tid, self.mask)?;
        ptrace::set_registers(tid, &self.registers)
    }
}

impl Stub {
    /// Where it lies in the target.
    pub fn range(&self) -> std::ops::Range<u64> {
        self.base..self.base + LEN
    }

    /// Address of [`SCRATCH_LEN`] bytes for what calls read and write.
    pub fn scratch(&self) -> u64 {
        self.base + SCRATCH
    }

    /// Address of [`LABEL_LEN`] bytes that no call touches, for a mark by which the stub is known again.
    pub fn label(&self) -> u64 {
        self.base + LABEL
    }

    /// The signal that it uses. Pending ones of it are not the target's.
    pub fn signal(&self) -> i32 {
        self.signal
    }

    /// Looks again at which signals the target, which stands still, neither catches nor blocks; and whether the stub is still there.
    pub fn choose_signal(&mut self, threads: &[Tid]) -> Result<()> {
        if !left::holds_code(self.pid, self.base) {
            let what = "has no room any more for what the tool needs in it (did it unmap memory that it does not know?)";
            return Err(Error::Target { pid: self.pid, what: what.into() });
        }
        self.signal = install::unused_signal(self.pid, threads)?;
        Ok(())
    }

    /// Has the stopped thread `tid` make these calls; their results, as the kernel returns them (negative: an error's number). The thread
    /// is where it was then, stopped.
    ///
    /// None may sleep for long, wait with a timeout (that would lose what the thread itself waited for), or return twice.
    pub fn run(&self, tid: Tid, calls: &[Call]) -> Result<Vec<i64>> {
        let saved = Saved::of(tid)?;
        let mut results = Vec::with_capacity(calls.len());
        for some in calls.chunks(ENTRIES) {
            let done = self.start(tid, &saved, some).and_then(|()| self.run_to_signal(tid)).and_then(|()| self.results(some.len()));
            // Also after an error: what can be put back is.
            saved.put_back(tid)?;
            results.extend(done?);
        }
        Ok(results)
    }

    /// Has `tid` make `call`, which gives a descriptor, or an error's number; has `take` look at it there; and has `tid` close it. That
    /// is one table: if the tool dies in the middle, the descriptor is closed all the same, and never stays in the target.
    pub fn lend<R>(&self, tid: Tid, call: Call, take: impl FnOnce(i64) -> R) -> Result<R> {
        let saved = Saved::of(tid)?;
        let pause = Call::new(libc::SYS_tgkill, &[self.pid as u64, tid as u64, self.signal as u64]);
        let close = Call { number: libc::SYS_close | arch::OF_RESULT, args: [0; 6] };
        let done = self.start(tid, &saved, &[call, pause, close]).and_then(|()| {
            self.run_to_signal(tid)?;
            let taken = take(self.results(1)?[0]);
            self.run_to_signal(tid)?;
            Ok(taken)
        });
        saved.put_back(tid)?;
        done
    }

    /// Points `tid` at the stub. First its registers, then its mask: stopped in between it makes the calls with the signals blocked that it
    /// blocks itself, and not what it was doing with all blocked.
    fn start(&self, tid: Tid, saved: &Saved, calls: &[Call]) -> Result<()> {
        let table: Vec<Entry> = calls.iter().map(|call| Entry { number: call.number, args: call.args, result: 0 }).collect();
        memory::write(self.pid, self.base + TABLE, bytemuck::cast_slice(&table))?;
        memory::write(self.pid, self.base + STATE, &arch::state(saved))?;
        ptrace::set_registers(tid, &arch::start(saved, self.base, calls.len(), self.pid, tid, self.signal))?;
        ptrace::set_signal_mask(tid, !(1 << (self.signal - 1)))
    }

    fn results(&self, count: usize) -> Result<Vec<i64>> {
        let mut table = vec![<Entry as bytemuck::Zeroable>::zeroed(); count];
        memory::read(self.pid, self.base + TABLE, bytemuck::cast_slice_mut(&mut table))?;
        Ok(table.into_iter().map(|entry| entry.result).collect())
    }

    fn run_to_signal(&self, tid: Tid) -> Result<()> {
        ptrace::cont(tid, 0)?;
        self.await_signal(tid)
    }

    /// Of a thread that runs.
    fn await_signal(&self, tid: Tid) -> Result<()> {
        loop {
            match ptrace::wait(tid)? {
                Stop::Signal(signal) if signal == self.signal => return Ok(()),
                Stop::Ended(_) => return Err(Error::Gone { pid: tid }),
                // A trap that was asked for before (INTERRUPT, or of a group stop that is being entered): it passes.
                Stop::Interrupted | Stop::Event(_) | Stop::Syscall => ptrace::cont(tid, 0)?,
                stop => {
                    return Err(Error::Target {
                        pid: tid,
                        what: format!("stopped with {stop:?} while it made calls for the tool"),
                    });
                }
            }
        }
    }

    /// One call; an error of the kernel's is an error.
    pub fn call(&self, tid: Tid, number: i64, args: &[u64]) -> Result<u64> {
        let result = self.run(tid, &[Call::new(number, args)])?[0];
        self.checked(number, result)
    }

    /// The result of a call, if it is not an error.
    pub fn checked(&self, number: i64, result: i64) -> Result<u64> {
        if (-4095..0).contains(&result) {
            let what = format!("system call {number} in process {}", self.pid);
            return Err(Error::io(what, std::io::Error::from_raw_os_error(-result as i32)));
        }
        Ok(result as u64)
    }
}
