//! What threads sleep in, for who interrupts them more than once.
//!
//! A sleep that was interrupted goes on by `restart_syscall`, which does not say what it was; only whoever interrupted it first has seen that:
//!
//! ```text
//!   stopped in the sleep        let go on, and stopped ...        ... after that
//!   rax = -516 (goes on)   ──▶  rax = restart_syscall        ──▶  rax = -516
//!   rip behind `syscall`        rip at `syscall`                  rip behind `syscall`
//!   orig_rax: the sleep         orig_rax: either, or none         orig_rax = restart_syscall
//! ```
//!
//! What must always hold: every stop of the process is shown to [`Sleeps::seen`]; in a new process, which has nothing to go on with, neither the
//! second nor the third may be left as it is.

use std::collections::HashMap;

use crate::remote::arch;
use crate::sys::ptrace::{Registers, Tid};

/// A sleep, by where it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Made {
    behind: u64,
    stack: u64,
    arguments: [u64; 4],
}

impl Made {
    fn of(registers: &Registers, behind: u64) -> Made {
        Made { behind, stack: registers.rsp, arguments: [registers.rdi, registers.rsi, registers.rdx, registers.r10] }
    }
}

/// The system calls that threads sleep in.
#[derive(Debug, Default)]
pub(super) struct Sleeps(HashMap<Tid, (u64, Made)>);

impl Sleeps {
    /// The number of the call that a thread with these registers, which stands still, sleeps in, or is about to sleep on in.
    pub(super) fn seen(&mut self, tid: Tid, registers: &Registers) -> Option<u64> {
        let known = |made: Made| self.0.get(&tid).filter(|(_, seen)| *seen == made).map(|(number, _)| *number);
        if arch::goes_on(registers) {
            let made = Made::of(registers, registers.rip);
            let number = match registers.orig_rax {
                arch::RESTART_SYSCALL => known(made).unwrap_or(arch::RESTART_SYSCALL),
                number => number,
            };
            self.0.insert(tid, (number, made));
            return Some(number);
        }
        let about_to = if arch::may_go_on(registers) { known(Made::of(registers, arch::behind_call(registers))) } else { None };
        if about_to.is_none() {
            self.0.remove(&tid);
        }
        about_to
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    const NANOSLEEP: u64 = 35;
    const AT: u64 = 0x7000;

    /// In the order of the drawing above; the last one goes on with what nobody here has seen.
    fn stops() -> [Registers; 3] {
        // SAFETY: numbers.
        let mut asleep: Registers = unsafe { std::mem::zeroed() };
        (asleep.rip, asleep.rsp, asleep.rdi, asleep.rcx) = (AT + 2, 0x9000, 0x9100, AT + 2);
        let (mut about_to, mut again) = (asleep, asleep);
        (asleep.orig_rax, asleep.rax) = (NANOSLEEP, -516i64 as u64);
        (about_to.orig_rax, about_to.rax, about_to.rip) = (NANOSLEEP, arch::RESTART_SYSCALL, AT);
        (again.orig_rax, again.rax) = (arch::RESTART_SYSCALL, -516i64 as u64);
        [asleep, about_to, again]
    }

    /// Registers with which the restarted thread goes on.
    fn restarted(mut registers: Registers, number: Option<u64>) -> (u64, u64) {
        if let Some(number) = number {
            arch::make_again(&mut registers, number);
        }
        (registers.rax, registers.rip)
    }

    #[test]
    fn a_sleep_is_made_again_wherever_it_was_stopped() {
        let [asleep, about_to, again] = stops();
        let mut sleeps = Sleeps::default();
        for registers in [asleep, about_to, about_to, again, about_to, again, asleep] {
            let number = sleeps.seen(1, &registers);
            assert_eq!(restarted(registers, number), (NANOSLEEP, AT), "{registers:?}");
        }
    }

    #[test]
    fn what_nobody_saw_ends_early() {
        let [_, about_to, again] = stops();
        let mut sleeps = Sleeps::default();
        for _ in 0..2 {
            assert_eq!(restarted(again, sleeps.seen(1, &again)), (-i64::from(libc::EINTR) as u64, AT + 2));
            assert_eq!(restarted(about_to, sleeps.seen(1, &about_to)), (-i64::from(libc::EINTR) as u64, AT + 2));
        }
    }

    /// A number in a register is no sleep: read(2) may have returned 219 bytes, and another sleep is another one.
    #[test]
    fn what_only_looks_like_one_is_left_alone() {
        let [asleep, about_to, again] = stops();
        for change in [|r: &mut Registers| r.rip += 2, |r: &mut Registers| r.rsp += 8, |r: &mut Registers| r.rdi += 8] {
            let mut sleeps = Sleeps::default();
            sleeps.seen(1, &asleep);
            let mut other = about_to;
            change(&mut other);
            assert_eq!((sleeps.seen(1, &other), sleeps.seen(2, &about_to)), (None, None));
            // Forgotten: it has made another call since.
            assert_eq!(sleeps.seen(1, &again), Some(arch::RESTART_SYSCALL));
        }
    }
}
