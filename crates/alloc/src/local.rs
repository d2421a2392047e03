//! One thread's way to the allocator: a current segment for each class, from which blocks are taken without a lock.
//!
//! What must always hold: a segment in `current` is held (see `allocator`) by this `Local` and no other; dropped, it gives them back.

use std::sync::Arc;

use crate::classes::{CLASSES, SIZES};
use crate::{Allocator, Result, SEGMENT};

/// A thread's current segments. Each thread has its own.
#[derive(Debug)]
pub struct Local {
    allocator: Arc<Allocator>,
    /// 0: none, for segment 0 is the header.
    current: [u64; CLASSES],
}

impl Local {
    pub(crate) fn new(allocator: Arc<Allocator>) -> Local {
        Local { allocator, current: [0; CLASSES] }
    }

    /// A block of at least `size` bytes, aligned to 16; to a line if `size` is a multiple of 64; to a segment above 4096 bytes. Its
    /// content is whatever was there. It is taken in DRAM only: not reachable at the next opening, it is free again. When there is no room
    /// nothing is lost: [`Error::OutOfSpace`](crate::Error::OutOfSpace).
    #[inline]
    pub fn reserve(&mut self, size: usize) -> Result<u64> {
        let Some(class) = Allocator::class_of(size) else {
            return self.allocator.reserve_large(size);
        };
        loop {
            let segment = self.current[class];
            if segment != 0
                && let Some(block) = self.allocator.table().line(segment).take(class)
            {
                return Ok(segment * SEGMENT + block as u64 * u64::from(SIZES[class]));
            }
            self.give_back(class);
            self.current[class] = self.allocator.acquire(class)?;
        }
    }

    /// Frees the block at `off`, of whichever thread. **Only after the store that made it unreachable is durable** (or when it was never
    /// made reachable): a crash would otherwise bring back an owner of bytes that are another's by then.
    ///
    /// # Panics
    /// If no block is taken there.
    #[inline]
    pub fn free(&mut self, off: u64) {
        self.allocator.free(off);
    }

    fn give_back(&mut self, class: usize) {
        let segment = std::mem::take(&mut self.current[class]);
        if segment != 0 {
            self.allocator.release(class, segment);
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        (0..CLASSES).for_each(|class| self.give_back(class));
    }
}
