//! Comparing what is taken with what can be reached: every block taken has one owner, and every owner's block is taken.

use std::sync::atomic::Ordering::Relaxed;

use crate::allocator::check;
use crate::table::{Table, WHAT};
use crate::{Arena, Error, Result, SEGMENT};

/// A second table, filled by a walk, to be compared with the allocator's.
#[derive(Debug)]
pub struct Audit<'a> {
    arena: &'a Arena,
    taken: &'a Table,
    reached: Table,
    mark: u64,
}

impl<'a> Audit<'a> {
    pub(crate) fn new(arena: &'a Arena, taken: &'a Table, mark: u64) -> Result<Audit<'a>> {
        Ok(Audit { arena, taken, reached: Table::new(arena.len() / SEGMENT)?, mark })
    }

    /// The block of `size` bytes at `off` can be reached.
    pub fn mark(&self, off: u64, size: usize) -> Result<()> {
        check(self.arena, off, size, self.reached.mark(self.arena.first_segment(), self.mark, off, size))
    }

    /// An error where the two differ.
    pub fn finish(self) -> Result<()> {
        for segment in self.arena.first_segment()..self.mark {
            let (taken, reached) = (self.taken.line(segment), self.reached.line(segment));
            let of = |what: &str| {
                let what = format!("segment {segment}: {what}");
                Err(Error::Damaged { pool: self.arena.location().into(), what })
            };
            for (word, (t, r)) in taken.taken.iter().zip(&reached.taken).enumerate() {
                let (t, r) = (t.load(Relaxed), r.load(Relaxed));
                if t & !r != 0 {
                    return of(&format!("block {} is taken and cannot be reached", word * 64 + (t & !r).trailing_zeros() as usize));
                }
                if r & !t != 0 {
                    return of(&format!(
                        "block {} can be reached and is not taken",
                        word * 64 + (r & !t).trailing_zeros() as usize
                    ));
                }
            }
            let (t, r) = (taken.meta.load(Relaxed), reached.meta.load(Relaxed));
            // A segment without blocks may still belong to a class.
            if reached.count() > 0 && t & WHAT != r & WHAT || reached.count() == 0 && t & WHAT >= 0xFE && t != r {
                return of("blocks of one size are taken, of another can be reached");
            }
            if r & WHAT >= 0xFE && t != r {
                return of("a large object can be reached and is not taken");
            }
        }
        Ok(())
    }
}
