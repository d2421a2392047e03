//! What threads sleep in, for who interrupts them more than once.

use std::collections::HashMap;

use crate::remote::arch;
use crate::sys::ptrace::{Registers, Tid};

/// What threads sleep in. A sleep that was interrupted goes on by a call that does not say what it was; whoever interrupted it first has seen
/// that.
#[derive(Debug, Default)]
pub(super) struct Sleeps(HashMap<Tid, (u64, [u64; 5])>);

impl Sleeps {
    /// The number of the call that a thread with these registers, which stands still, sleeps in.
    pub(super) fn seen(&mut self, tid: Tid, registers: &Registers) -> Option<u64> {
        if !arch::goes_on(registers) {
            self.0.remove(&tid);
            return None;
        }
        let frame = [registers.rsp, registers.rdi, registers.rsi, registers.rdx, registers.r10];
        if registers.orig_rax != arch::RESTART_SYSCALL {
            self.0.insert(tid, (registers.orig_rax, frame));
        }
        Some(self.0.get(&tid).filter(|(_, seen)| *seen == frame).map_or(registers.orig_rax, |(number, _)| *number))
    }
}
