//! How the stub comes into a target.
//!
//! Into a process of our own making (stopped at its `execve`, or being restarted), one instruction that makes a system call is borrowed
//! step by step; if the tool dies, so does that process (`PTRACE_O_EXITKILL`).
//!
//! Into any other by a way that leads back by itself, as everything here: rip at a `syscall; ret` that is there anyway, rsp at a signal frame
//! beyond the end of the main thread's stack whose return address is the code that every libc has for leaving a signal handler.
//!
//! ```text
//!   syscall ; ret ─► mov $15, %rax ; syscall (rt_sigreturn) ─► where the thread was
//! ```
//!
//! A program without such code (a static one of another language), or one with a shadow stack, is refused by name.

use std::ops::Range;

use super::{Call, LEN, PAGE, Saved, Stub, TABLE, arch, frame, gate, left};
use crate::error::{Error, Refusal, Result};
use crate::sys::memory;
use crate::sys::proc;
use crate::sys::ptrace::{self, Stop, Tid};

/// `syscall; ret`
const SYSCALL_RET: &[u8] = &[0x0f, 0x05, 0xc3];
const SYSCALL: &[u8] = &[0x0f, 0x05];
/// `mov $15, %rax; syscall`
const SIGRETURN: &[u8] = &[0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05];
/// What lies below rsp and still belongs to the function that runs.
const RED_ZONE: u64 = 128;

/// Room for a signal frame, with the largest state of vector registers there is (AMX: 11 KB).
const FRAME_LEN: u64 = 5 * PAGE;

/// Signals that do nothing by default, most harmless first: a program that does not catch one does not notice it.
const QUIET: [i32; 4] = [libc::SIGURG, libc::SIGWINCH, libc::SIGCHLD, libc::SIGCONT];

/// One of them that the process does not catch, and none of `threads`, which stand still, blocks (and so may wait for it).
pub fn unused_signal(pid: Tid, threads: &[Tid]) -> Result<i32> {
    let path = format!("/proc/{pid}/status");
    let status = proc::text(&path).map_err(|e| Error::io(format!("reading {path}"), e))?;
    let caught =
        status.lines().find_map(|line| line.strip_prefix("SigCgt:")).and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let mut used = caught.unwrap_or(u64::MAX);
    for tid in threads {
        used |= ptrace::signal_mask(*tid)?;
    }
    // A thread that blocks every signal waits for none of them in particular: then it is enough that none is caught.
    let free = |used: u64| QUIET.into_iter().find(|signal| used & 1 << (signal - 1) == 0);
    free(used).or_else(|| free(caught.unwrap_or(u64::MAX))).ok_or_else(|| {
        let what = "it catches SIGURG, SIGWINCH, SIGCHLD and SIGCONT, and one of them is needed to work in it";
        Error::Refused { pid, what: vec![Refusal { place: "signals".into(), what: what.into() }] }
    })
}

/// Executable ranges of a process, and the lowest and highest address of its main stack.
struct Layout {
    executable: Vec<Range<u64>>,
    stack: Option<Range<u64>>,
}

fn layout(pid: Tid) -> Result<Layout> {
    let path = format!("/proc/{pid}/maps");
    let maps = proc::text(&path).map_err(|e| Error::io(format!("reading {path}"), e))?;
    let mut layout = Layout { executable: Vec::new(), stack: None };
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(range), Some(mode)) = (words.next(), words.next()) else { continue };
        let Some((start, end)) = range.split_once('-') else { continue };
        let (Ok(start), Ok(end)) = (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16)) else { continue };
        if mode.contains('x') && !line.ends_with("[vsyscall]") {
            layout.executable.push(start..end);
        }
        if line.ends_with("[stack]") {
            layout.stack = Some(start..end);
        }
    }
    Ok(layout)
}

/// Whether a process, whose leader stands still, stands where [`Stub::install`] and [`Stub::remove`] can enter it. While a signal handler runs
/// on a stack of its own it does not; where the main stack ends cannot be seen then.
pub fn can_be_entered(leader: Tid) -> Result<bool> {
    let top = ptrace::registers(leader)?.rsp;
    Ok(layout(leader)?.stack.is_some_and(|stack| stack.contains(&top)))
}

/// Where one of the executable ranges holds `code`.
fn find(pid: Tid, layout: &Layout, code: &[u8]) -> Option<u64> {
    const PIECE: usize = 1 << 20;
    let mut bytes = vec![0; PIECE];
    layout.executable.iter().find_map(|range| {
        let mut at = range.start;
        while at < range.end {
            let len = PIECE.min((range.end - at) as usize);
            if memory::read(pid, at, &mut bytes[..len]).is_ok()
                && let Some(found) = bytes[..len].windows(code.len()).position(|window| window == code)
            {
                return Some(at + found as u64);
            }
            // Pieces overlap, so that nothing is missed between two.
            at += if len == PIECE { (len - code.len()) as u64 } else { len as u64 };
        }
        None
    })
}

/// Where a process has an instruction that makes a system call.
pub fn find_syscall(pid: Tid) -> Result<u64> {
    find(pid, &layout(pid)?, SYSCALL)
        .ok_or_else(|| Error::Target { pid, what: "has no instruction that makes a system call".into() })
}

/// One call by a process that dies with the tool and has no stub, whose thread `tid` stands still: what the kernel returns.
pub fn call_own(tid: Tid, call: &Call) -> Result<i64> {
    borrow(tid, &|_| true, call)
}

/// One call by an instruction in executable ranges `of_these`, borrowed for it. If the tool dies meanwhile, the process must, too.
fn borrow(tid: Tid, of_these: &dyn Fn(&Range<u64>) -> bool, call: &Call) -> Result<i64> {
    let saved = Saved::of(tid)?;
    let mut layout = layout(tid)?;
    layout.executable.retain(of_these);
    let syscall = find(tid, &layout, SYSCALL)
        .ok_or_else(|| Error::Target { pid: tid, what: "has no instruction that makes a system call".into() })?;
    ptrace::set_signal_mask(tid, u64::MAX)?;
    ptrace::set_registers(tid, &arch::one_call(&saved, syscall, call.number, &call.args))?;
    let result = through_syscall(tid)?;
    settle(tid)?;
    saved.put_back(tid)?;
    Ok(result)
}

impl Stub {
    /// Into a process that dies with the tool, whose thread `tid` stands still. `at`: where; 0: anywhere.
    pub fn install_own(tid: Tid, at: u64) -> Result<Stub> {
        let saved = Saved::of(tid)?;
        let syscall = find_syscall(tid)?;
        let call = |number: i64, args: [u64; 6]| -> Result<i64> {
            ptrace::set_registers(tid, &arch::one_call(&saved, syscall, number, &args))?;
            through_syscall(tid)
        };
        ptrace::set_signal_mask(tid, u64::MAX)?;
        let stub = Stub::fill(tid, at, &call);
        settle(tid)?;
        saved.put_back(tid)?;
        stub
    }

    /// Out of a process that dies with the tool.
    pub fn remove_own(&self, tid: Tid) -> Result<()> {
        let is_theirs = |range: &Range<u64>| !self.range().contains(&range.start);
        let removed = borrow(tid, &is_theirs, &Call::new(libc::SYS_munmap, &[self.base, LEN]))?;
        self.checked(libc::SYS_munmap, removed).map(drop)
    }

    /// Into any process whose `threads`, all of them, stand still; the leader first.
    pub fn install(threads: &[Tid]) -> Result<Stub> {
        let leader = threads[0];
        by_the_way_back(threads, &|_| true, |call| Stub::fill(leader, 0, call))
    }

    /// The same, but one that a dead tool has left is used again, and others of that kind are cleared away. Only where no other tool lives
    /// ([`Claim`](super::Claim)).
    pub fn install_or_adopt(threads: &[Tid]) -> Result<Stub> {
        let leader = threads[0];
        let whole = left::free(leader, threads)?.into_iter().find(|left| left.whole);
        let stub = match whole {
            Some(left) => Stub { pid: leader, base: left.at.start, signal: unused_signal(leader, threads)?, slots: 0 },
            None => Self::install(threads)?,
        };
        stub.clear_left(threads)?;
        Ok(stub)
    }

    /// Unmaps what dead tools have left in a process whose `threads` stand still, under the same condition.
    pub fn clear_left(&self, threads: &[Tid]) -> Result<()> {
        for left in left::free(self.pid, threads)?.into_iter().filter(|left| left.at.start != self.base) {
            self.call(threads[0], libc::SYS_munmap, &[left.at.start, left.at.end - left.at.start])?;
        }
        Ok(())
    }

    /// Out of any process, whose `threads` stand still; the leader first.
    pub fn remove(&self, threads: &[Tid]) -> Result<()> {
        let is_theirs = |range: &Range<u64>| !self.range().contains(&range.start);
        by_the_way_back(threads, &is_theirs, |call| {
            let removed = call(libc::SYS_munmap, [self.base, LEN, 0, 0, 0, 0])?;
            self.checked(libc::SYS_munmap, removed).map(drop)
        })
    }

    /// Maps the stub and writes its code. Whoever finds what a tool has left that died between any two of these steps knows it ([`left`]).
    fn fill(pid: Tid, at: u64, call: &dyn Fn(i64, [u64; 6]) -> Result<i64>) -> Result<Stub> {
        let signal = unused_signal(pid, &[])?;
        let (read, write, execute) = (libc::PROT_READ as u64, libc::PROT_WRITE as u64, libc::PROT_EXEC as u64);
        let fixed = if at == 0 { 0 } else { libc::MAP_FIXED_NOREPLACE };
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed) as u64;
        let base = call(libc::SYS_mmap, [at, LEN, write | execute, flags, u64::MAX, 0])?;
        if base == -i64::from(libc::EACCES) {
            let what = "it has forbidden itself new code (PR_SET_MDWE, MemoryDenyWriteExecute of systemd)";
            return Err(Error::Refused { pid, what: vec![Refusal { place: "process".into(), what: what.into() }] });
        }
        let mut stub = Stub { pid, base: 0, signal, slots: 0 };
        stub.base = stub.checked(libc::SYS_mmap, base)?;
        memory::write(pid, stub.base, arch::code())?;
        stub.write_slots(gate::TOGETHER as u64)?;
        for (from, len, prot) in [(stub.base, TABLE, read | execute), (stub.base + TABLE, LEN - TABLE, read | write)] {
            let protected = call(libc::SYS_mprotect, [from, len, prot, 0, 0, 0])?;
            stub.checked(libc::SYS_mprotect, protected)?;
        }
        Ok(stub)
    }
}

/// Has one of `threads`, which all stand still, make calls by code that is there anyway (in executable ranges `of_these`), and leads back.
fn by_the_way_back<R>(
    threads: &[Tid],
    of_these: &dyn Fn(&Range<u64>) -> bool,
    work: impl FnOnce(&dyn Fn(i64, [u64; 6]) -> Result<i64>) -> Result<R>,
) -> Result<R> {
    let leader = threads[0];
    let refused = |what: &str| Error::Refused { pid: leader, what: vec![Refusal { place: "code".into(), what: what.into() }] };
    let mut layout = layout(leader)?;
    layout.executable.retain(of_these);
    if has_shadow_stack(leader)? {
        return Err(refused("it runs with a shadow stack; start it with `towa snap run`"));
    }
    let way = find(leader, &layout, SYSCALL_RET).zip(find(leader, &layout, SIGRETURN));
    let (syscall, sigreturn) = way.ok_or_else(|| {
        refused("nothing in it can leave a signal handler, so there is no safe way in; start it with `towa snap run`")
    })?;
    // Beyond the end of the leader's stack, whichever thread it is for: other stacks may be small, and lie among other things. Another one
    // may still be on its way back from there for a tool that was killed: below that, too.
    let own_top = ptrace::registers(leader)?.rsp;
    let stack = layout
        .stack
        .filter(|stack| stack.contains(&own_top))
        .ok_or_else(|| refused("its main thread does not stand on the main stack; start it with `towa snap run`"))?;
    let tops = threads.iter().map(|tid| Ok(ptrace::registers(*tid)?.rsp)).collect::<Result<Vec<u64>>>()?;
    let top = tops.into_iter().filter(|top| stack.contains(top)).fold(own_top, u64::min);
    let below = (top - RED_ZONE).saturating_sub(FRAME_LEN) & !63;
    if below < stack.start {
        return Err(refused("its main stack is nearly full; try again later"));
    }
    let (tid, saved) = one_that_can_return(threads)?;
    let xstate = ptrace::regset(tid, ptrace::NT_X86_XSTATE)?;
    let mut frame = frame::build(below, &saved, &xstate);
    frame[..8].copy_from_slice(&sigreturn.to_le_bytes());
    memory::write(leader, below, &frame)?;
    let call = |number: i64, args: [u64; 6]| -> Result<i64> {
        let mut registers = arch::one_call(&saved, syscall, number, &args);
        registers.rsp = below;
        ptrace::set_registers(tid, &registers)?;
        // After the registers: if the tool dies in between, the thread is on its way back, to its own mask.
        ptrace::set_signal_mask(tid, u64::MAX)?;
        through_syscall(tid)
    };
    let done = work(&call);
    settle(tid)?;
    saved.put_back(tid)?;
    done
}

/// A thread for which leaving a signal handler is as if nothing had been: none that sleeps or is about to sleep on, if there is another. (If the tool dies within the
/// two calls that are made this way, its sleep ends early, with EINTR.)
fn one_that_can_return(threads: &[Tid]) -> Result<(Tid, Saved)> {
    let first = Saved::of(threads[0])?;
    for tid in threads {
        let saved = Saved::of(*tid)?;
        if !arch::goes_on(&saved.registers) && !arch::may_go_on(&saved.registers) {
            return Ok((*tid, saved));
        }
    }
    Ok((threads[0], first))
}

/// Lets a thread that stands before a `syscall` make it, and gives its result.
fn through_syscall(tid: Tid) -> Result<i64> {
    for _ in 0..2 {
        ptrace::cont_to_syscall(tid)?;
        loop {
            match ptrace::wait(tid)? {
                Stop::Syscall => break,
                Stop::Interrupted | Stop::Event(_) => ptrace::cont_to_syscall(tid)?,
                Stop::Ended(_) => return Err(Error::Gone { pid: tid }),
                stop => {
                    return Err(Error::Target { pid: tid, what: format!("stopped with {stop:?} instead of making a system call") });
                }
            }
        }
    }
    Ok(ptrace::registers(tid)?.rax as i64)
}

/// From the end of a system call to a stop from which the kernel starts interrupted calls again, without an instruction in between.
fn settle(tid: Tid) -> Result<()> {
    ptrace::interrupt(tid)?;
    ptrace::cont(tid, 0)?;
    match ptrace::wait(tid)? {
        Stop::Interrupted => Ok(()),
        Stop::Ended(_) => Err(Error::Gone { pid: tid }),
        stop => Err(Error::Target { pid: tid, what: format!("stopped with {stop:?} after a system call for the tool") }),
    }
}

fn has_shadow_stack(pid: Tid) -> Result<bool> {
    let path = format!("/proc/{pid}/status");
    let status = proc::text(&path).map_err(|e| Error::io(format!("reading {path}"), e))?;
    Ok(status.lines().any(|line| line.starts_with("x86_Thread_features:") && line.contains("shstk")))
}
