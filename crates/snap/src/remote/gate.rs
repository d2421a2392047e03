//! System calls in the target's name while *no* thread of it may run, whatever becomes of the tool.
//!
//! [`Stub::run`] is safe if the tool dies: the thread makes the rest of its calls and goes on. But so do the other threads, at the same time.
//! For calls that put one memory in the place of another that is not enough: what is written between the copy and the exchange would be lost.
//! So all threads are pointed at code of ours, and one word, the *gate*, says for all of them what happens if they are let go:
//!
//! ```text
//!            gate 0: not yet            gate 1: now                                gate 2: done
//!   first    back to where it was       its calls, gate := 2, signal "done", back  back
//!   others   back                       wait for the gate to be 2, then back       back
//! ```
//!
//! The tool writes the 1 when all is prepared: one store. With the tool alive only the first thread is let go, until its signal; the others
//! stay stopped, and get their own registers back. If the tool dies, the kernel lets all of them go, and they do what the table above says.
//!
//! For calls that only ask ([`Stub::run_each`]) the gate does not matter: each thread makes its own behind it, all at the same time. If the
//! tool dies they all make the rest and go on.
//!
//! What must always hold: from the store of the 1 until the last call is made, no thread executes an instruction of the program.

#[cfg(target_arch = "x86_64")]
use std::arch::global_asm;

use super::{CODE, Call, Entry, GATE, SLOT, SLOTS, STATES, Saved, Stub, TABLE, arch};
use crate::error::{Error, Refusal, Result};
use crate::sys::memory;
use crate::sys::ptrace::{self, Registers, Tid};

/// Distance of a thread's state from its own copy of the code.
#[cfg(target_arch = "x86_64")]
const STATE: u64 = STATES - CODE;

/// Threads that [`Stub::run_each`] takes at once.
pub const TOGETHER: usize = 16;

const PREPARED: u32 = 0;
const NOW: u32 = 1;

#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .rodata.towa_snap_gate, \"a\"",
    ".globl towa_snap_gate_begin",
    ".hidden towa_snap_gate_begin",
    ".globl towa_snap_gate_end",
    ".hidden towa_snap_gate_end",
    ".balign 16",
    "towa_snap_gate_begin:",
    // r15 the gate, rbx the table, rbp how many calls: 0 for all threads but the first.
    "cmp dword ptr [r15], 1",
    "jne 34f",
    "test rbp, rbp",
    "jz 33f",
    ".globl towa_snap_gate_behind",
    ".hidden towa_snap_gate_behind",
    "towa_snap_gate_behind:",
    "30: mov rax, [rbx]",
    "mov rdi, [rbx + 8]",
    "mov rsi, [rbx + 16]",
    "mov rdx, [rbx + 24]",
    "mov r10, [rbx + 32]",
    "mov r8, [rbx + 40]",
    "mov r9, [rbx + 48]",
    "syscall",
    "mov [rbx + 56], rax",
    "add rbx, 64",
    "dec rbp",
    "jnz 30b",
    // Done: futex(gate, FUTEX_WAKE_PRIVATE, all), tgkill(r12, r13, r14). With a tool, the thread goes no further.
    "mov dword ptr [r15], 2",
    "mov rdi, r15",
    "mov esi, 129",
    "mov edx, 0x7fffffff",
    "mov eax, 202",
    "syscall",
    "mov rdi, r12",
    "mov rsi, r13",
    "mov rdx, r14",
    "mov eax, 234",
    "syscall",
    "jmp 34f",
    // futex(gate, FUTEX_WAIT_PRIVATE, 1), without a time: what the thread itself waited for stays what it was.
    "33: mov rdi, r15",
    "mov esi, 128",
    "mov edx, 1",
    "xor r10d, r10d",
    "mov eax, 202",
    "syscall",
    "cmp dword ptr [r15], 1",
    "je 33b",
    // The way back, as in the stub: stack, mask, flags, registers.
    "34: mov rsp, [rip + towa_snap_gate_begin + {state} + 8]",
    "mov edi, 2",
    "lea rsi, [rip + towa_snap_gate_begin + {state}]",
    "xor edx, edx",
    "mov r10d, 8",
    "mov eax, 14",
    "syscall",
    "lea rsp, [rsp - 128]",
    "push qword ptr [rip + towa_snap_gate_begin + {state} + 16]",
    "popfq",
    "lea rsp, [rsp + 128]",
    "mov r15, [rip + towa_snap_gate_begin + {state} + 32]",
    "mov r14, [rip + towa_snap_gate_begin + {state} + 40]",
    "mov r13, [rip + towa_snap_gate_begin + {state} + 48]",
    "mov r12, [rip + towa_snap_gate_begin + {state} + 56]",
    "mov rbp, [rip + towa_snap_gate_begin + {state} + 64]",
    "mov rbx, [rip + towa_snap_gate_begin + {state} + 72]",
    "mov r11, [rip + towa_snap_gate_begin + {state} + 80]",
    "mov r10, [rip + towa_snap_gate_begin + {state} + 88]",
    "mov r9, [rip + towa_snap_gate_begin + {state} + 96]",
    "mov r8, [rip + towa_snap_gate_begin + {state} + 104]",
    "mov rax, [rip + towa_snap_gate_begin + {state} + 112]",
    "mov rcx, [rip + towa_snap_gate_begin + {state} + 120]",
    "mov rdx, [rip + towa_snap_gate_begin + {state} + 128]",
    "mov rsi, [rip + towa_snap_gate_begin + {state} + 136]",
    "mov rdi, [rip + towa_snap_gate_begin + {state} + 144]",
    "jmp qword ptr [rip + towa_snap_gate_begin + {state} + 24]",
    "towa_snap_gate_end:",
    ".popsection",
    state = const STATE,
);

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    static towa_snap_gate_begin: u8;
    static towa_snap_gate_behind: u8;
    static towa_snap_gate_end: u8;
}

/// As of the stub: another processor has none.
#[cfg(not(target_arch = "x86_64"))]
fn code() -> &'static [u8] {
    &[]
}

/// Where in a copy of the code the calls begin.
#[cfg(target_arch = "x86_64")]
fn behind() -> u64 {
    // SAFETY: symbols in the same bytes, defined above.
    unsafe { (&raw const towa_snap_gate_behind).offset_from_unsigned(&raw const towa_snap_gate_begin) as u64 }
}

#[cfg(not(target_arch = "x86_64"))]
fn behind() -> u64 {
    0
}

/// The code, which finds the state of its thread at a fixed distance: one copy for each.
#[cfg(target_arch = "x86_64")]
fn code() -> &'static [u8] {
    // SAFETY: the two symbols enclose read-only bytes, defined above.
    let code = unsafe {
        let (begin, end) = (&raw const towa_snap_gate_begin, &raw const towa_snap_gate_end);
        std::slice::from_raw_parts(begin, end.offset_from_unsigned(begin))
    };
    assert!(code.len() <= SLOT as usize, "a copy fits its slot");
    code
}

impl Stub {
    /// Has the first of `threads`, which are all of the process and stand still, make these calls, while no other runs, even if the tool
    /// dies. As many calls as [`AT_ONCE`](super::AT_ONCE) at most; their results, as the kernel returns them.
    ///
    /// # Panics
    /// If there are none, or more.
    pub fn run_alone(&mut self, threads: &[Tid], calls: &[Call]) -> Result<Vec<i64>> {
        assert!((1..=super::AT_ONCE).contains(&calls.len()), "a table's worth of calls");
        self.make_slots(threads[0], threads.len() as u64)?;
        let saved = threads.iter().map(|tid| Saved::of(*tid)).collect::<Result<Vec<Saved>>>()?;
        let done = self.run_prepared(threads, &saved, calls);
        // Also after an error: what can be put back is. The gate says 0 or 2 then, unless the thread itself is gone.
        for (tid, saved) in threads.iter().zip(&saved) {
            saved.put_back(*tid)?;
        }
        done
    }

    /// Has each of these threads, which stand still, make its calls, all at the same time; the results of each, as the kernel returns them. For
    /// calls as [`Stub::run`] takes them: [`TOGETHER`] threads at most, and [`AT_ONCE`](super::AT_ONCE) calls in all.
    ///
    /// # Panics
    /// If there are more.
    pub fn run_each(&mut self, jobs: &[(Tid, Vec<Call>)]) -> Result<Vec<Vec<i64>>> {
        let all: usize = jobs.iter().map(|(_, calls)| calls.len()).sum();
        assert!(jobs.len() <= TOGETHER && all <= super::AT_ONCE && jobs.iter().all(|(_, calls)| !calls.is_empty()));
        let Some((first, _)) = jobs.first() else { return Ok(Vec::new()) };
        self.make_slots(*first, jobs.len() as u64)?;
        let saved = jobs.iter().map(|(tid, _)| Saved::of(*tid)).collect::<Result<Vec<Saved>>>()?;
        let done = self.run_side_by_side(jobs, &saved);
        for ((tid, _), saved) in jobs.iter().zip(&saved) {
            saved.put_back(*tid)?;
        }
        let mut results = done?.into_iter();
        Ok(jobs.iter().map(|(_, calls)| results.by_ref().take(calls.len()).collect()).collect())
    }

    fn run_side_by_side(&self, jobs: &[(Tid, Vec<Call>)], saved: &[Saved]) -> Result<Vec<i64>> {
        let mut table: Vec<Entry> = jobs
            .iter()
            .flat_map(|(_, calls)| calls)
            .map(|call| Entry { number: call.number, args: call.args, result: 0 })
            .collect();
        memory::write(self.pid, self.base + TABLE, bytemuck::cast_slice(&table))?;
        self.write_states(saved)?;
        let (mut entry, mut running, mut done) = (0, Vec::new(), Ok(()));
        for (slot, ((tid, calls), saved)) in jobs.iter().zip(saved).enumerate() {
            let mut registers = self.at_gate(slot, *tid, saved, calls.len());
            registers.rip += behind();
            registers.rbx += entry * size_of::<Entry>() as u64;
            entry += calls.len() as u64;
            done = self.set_off(*tid, &registers);
            if done.is_err() {
                break;
            }
            running.push(*tid);
        }
        // Also after an error: whoever runs must stand still again before anything is put back.
        for tid in running {
            done = done.and(self.await_signal(tid));
        }
        done?;
        memory::read(self.pid, self.base + TABLE, bytemuck::cast_slice_mut(&mut table))?;
        Ok(table.into_iter().map(|entry| entry.result).collect())
    }

    fn set_off(&self, tid: Tid, registers: &Registers) -> Result<()> {
        ptrace::set_registers(tid, registers)?;
        ptrace::set_signal_mask(tid, !(1 << (self.signal - 1)))?;
        ptrace::cont(tid, 0)
    }

    /// Where the slots find what to go back to.
    fn write_states(&self, saved: &[Saved]) -> Result<()> {
        let mut states = Vec::new();
        for saved in saved {
            states.extend(arch::state(saved));
            states.resize(states.len().next_multiple_of(SLOT as usize), 0);
        }
        memory::write(self.pid, self.base + STATES, &states)
    }

    fn run_prepared(&self, threads: &[Tid], saved: &[Saved], calls: &[Call]) -> Result<Vec<i64>> {
        let mut table: Vec<Entry> = calls.iter().map(|call| Entry { number: call.number, args: call.args, result: 0 }).collect();
        memory::write(self.pid, self.base + GATE, &PREPARED.to_le_bytes())?;
        memory::write(self.pid, self.base + TABLE, bytemuck::cast_slice(&table))?;
        self.write_states(saved)?;
        // The tool dies here: whoever has its new registers finds a gate of 0, and goes straight back.
        for (n, (tid, saved)) in threads.iter().zip(saved).enumerate() {
            // Then the mask: with that first it would be left in the program with all signals blocked.
            ptrace::set_registers(*tid, &self.at_gate(n, *tid, saved, if n == 0 { calls.len() } else { 0 }))?;
            ptrace::set_signal_mask(*tid, !(1 << (self.signal - 1)))?;
        }
        memory::write(self.pid, self.base + GATE, &NOW.to_le_bytes())?;
        self.run_to_signal(threads[0])?;
        memory::read(self.pid, self.base + TABLE, bytemuck::cast_slice_mut(&mut table))?;
        Ok(table.into_iter().map(|entry| entry.result).collect())
    }

    fn at_gate(&self, slot: usize, tid: Tid, saved: &Saved, count: usize) -> Registers {
        let mut registers = arch::start(saved, self.base, count, self.pid, tid, self.signal);
        registers.rip = self.base + CODE + slot as u64 * SLOT;
        registers.r15 = self.base + GATE;
        registers
    }

    /// Copies of the code for so many threads, made by one that stands still.
    fn make_slots(&mut self, by: Tid, wanted: u64) -> Result<()> {
        if wanted <= self.slots {
            return Ok(());
        }
        if wanted > SLOTS {
            let what = format!("{wanted} threads; mode nv takes {SLOTS} at most (mode dram takes any number)");
            return Err(Error::Refused { pid: self.pid, what: vec![Refusal { place: "threads".into(), what }] });
        }
        let at = self.base + CODE;
        let protect = |how: i32| [at, SLOTS * SLOT, how as u64];
        // Nobody runs there: the tool may die between any two of these.
        self.call(by, libc::SYS_mprotect, &protect(libc::PROT_READ | libc::PROT_WRITE))?;
        self.write_slots(wanted)?;
        self.call(by, libc::SYS_mprotect, &protect(libc::PROT_READ | libc::PROT_EXEC))?;
        Ok(())
    }

    /// Where they may be written just now.
    pub(super) fn write_slots(&mut self, count: u64) -> Result<()> {
        let mut copies = Vec::new();
        for _ in 0..count {
            copies.extend_from_slice(code());
            copies.resize(copies.len().next_multiple_of(SLOT as usize), 0xcc);
        }
        memory::write(self.pid, self.base + CODE, &copies)?;
        self.slots = count;
        Ok(())
    }
}
