//! The slabs of one size class, in DRAM: which blocks are in nobody's hands, as a bitmap for each slab.
//!
//! A block is **in** (its bit is set: free, and any thread may take it) or **out** (live, or in a thread's cache). A slab
//! found at opening is *unscanned*: all of its blocks count as out until its headers are read. Meanwhile threads may free
//! blocks of it; such a block is *decided*: DRAM knows better than the scan, which leaves it alone.
//!
//! ```text
//!   opening ──► Unscanned ──scan begins──► Scanning ──scan ends──► Known ◄── carving
//!                   └─ free() marks blocks decided ─┘         │  ▲
//!                                             evacuation begins ▼  │ and is called off
//!                                                            Leaving ──all blocks free──► Vacant
//! ```
//!
//! A slab's `epoch` is the newest epoch in which its run header, or the header of a block that came in, may have been
//! written. Only transactions of that epoch or later take blocks from it. `HELD` is newer than all: the slab belongs to a
//! transaction that may still be rolled back.
//!
//! Slabs all of whose blocks are in wait in `empties` to be turned back into free chunks by `reclaim`.

use super::layout::SLAB_BLOCKS;

/// Epoch of slabs carved by an undoable transaction that has not ended.
pub(super) const HELD: u64 = u64::MAX;
/// Slabs looked at before a fresh one is carved instead, while there is space.
const LOOKED_AT_MAX: usize = 16;
/// Places looked at for a slab, vacant ones among them.
const VACANT_MAX: usize = 4096;

/// Where a slab stands after opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Unscanned,
    Scanning,
    Known,
    /// It is being evacuated: no block of it goes out.
    Leaving,
    /// The slot is unused.
    Vacant,
}

/// One slab.
#[derive(Debug)]
pub(super) struct Slab {
    pub(super) head: u32,
    pub(super) state: State,
    /// Of the evacuation it leaves by.
    ticket: u64,
    listed: bool,
    queued: bool,
    /// Blocks that are in.
    pub(super) ins: u32,
    pub(super) epoch: u64,
    /// A bit for each block that is in; empty while there is none.
    bits: Box<[u64]>,
    /// Until scanned: a bit for each block whose state DRAM knows.
    decided: Box<[u64]>,
}

/// All slabs of a class. Guarded by the class's lock.
#[derive(Debug, Default)]
pub(super) struct Central {
    class: usize,
    pub(super) slabs: Vec<Slab>,
    vacant: Vec<u32>,
    /// Slabs with blocks that are in; some may have none by now.
    partial: Vec<u32>,
    unscanned: Vec<u32>,
    empties: Vec<u32>,
    /// Scans under way.
    pub(super) scanning: u32,
    /// Blocks that are out.
    pub(super) outs: u64,
}

impl Central {
    pub(super) fn new(class: usize) -> Self {
        Self { class, ..Self::default() }
    }

    fn blocks(&self) -> u32 {
        u32::from(SLAB_BLOCKS[self.class])
    }

    fn words(&self) -> usize {
        (self.blocks() as usize).div_ceil(64)
    }

    /// Index the next added slab will have.
    pub(super) fn next_index(&self) -> u32 {
        self.vacant.last().copied().unwrap_or(self.slabs.len() as u32)
    }

    fn put(&mut self, slab: Slab) -> u32 {
        match self.vacant.pop() {
            Some(at) => {
                self.slabs[at as usize] = slab;
                at
            }
            None => {
                self.slabs.push(slab);
                (self.slabs.len() - 1) as u32
            }
        }
    }

    /// Adds a slab found at opening.
    pub(super) fn add_unscanned(&mut self, head: u32) -> u32 {
        self.outs += u64::from(self.blocks());
        let none = || Vec::new().into_boxed_slice();
        let state = State::Unscanned;
        let at = self.put(Slab {
            head,
            state,
            ticket: 0,
            listed: false,
            queued: false,
            ins: 0,
            epoch: 0,
            bits: none(),
            decided: none(),
        });
        self.unscanned.push(at);
        at
    }

    /// Adds a slab just carved, all of whose blocks are in.
    pub(super) fn add_carved(&mut self, head: u32, epoch: u64) -> u32 {
        let blocks = self.blocks() as usize;
        let mut bits = vec![u64::MAX; self.words()].into_boxed_slice();
        if !blocks.is_multiple_of(64) {
            bits[blocks / 64] = (1 << (blocks % 64)) - 1;
        }
        let decided = Vec::new().into_boxed_slice();
        let state = State::Known;
        let at = self.put(Slab { head, state, ticket: 0, listed: true, queued: false, ins: blocks as u32, epoch, bits, decided });
        self.partial.push(at);
        at
    }

    /// Takes up to `want` blocks that a transaction of `epoch` may use and passes slab head and block index to `each`,
    /// ascending within a slab. `thorough` looks at every slab, else the search gives up early in favour of a fresh one.
    pub(super) fn take(&mut self, epoch: u64, want: usize, thorough: bool, mut each: impl FnMut(u32, usize)) -> usize {
        let (mut at, mut looked) = (self.partial.len(), 0);
        while at > 0 && (thorough || looked < LOOKED_AT_MAX) {
            at -= 1;
            looked += 1;
            let index = self.partial[at];
            let slab = &mut self.slabs[index as usize];
            if slab.ins == 0 {
                slab.listed = false;
                // The entries above were passed over for their epoch; they keep their order well enough.
                self.partial.swap_remove(at);
                at = at.min(self.partial.len());
            } else if slab.epoch <= epoch {
                return self.take_from(index, want, &mut each);
            }
        }
        0
    }

    /// Takes up to `want` blocks from slab `index`, whatever its epoch.
    pub(super) fn take_from(&mut self, index: u32, want: usize, each: &mut impl FnMut(u32, usize)) -> usize {
        let slab = &mut self.slabs[index as usize];
        let mut taken = 0;
        for (at, word) in slab.bits.iter_mut().enumerate() {
            while *word != 0 && taken < want {
                each(slab.head, at * 64 + word.trailing_zeros() as usize);
                *word &= *word - 1;
                taken += 1;
            }
        }
        slab.ins -= taken as u32;
        self.outs += taken as u64;
        taken
    }

    /// A block comes in that a transaction of `epoch` freed.
    pub(super) fn give(&mut self, index: u32, block: usize, epoch: u64) {
        let words = self.words();
        let slab = &mut self.slabs[index as usize];
        if slab.bits.is_empty() {
            slab.bits = vec![0; words].into_boxed_slice();
        }
        let (word, bit) = (block / 64, 1 << (block % 64));
        assert!(slab.state != State::Vacant && slab.bits[word] & bit == 0, "block {block} of chunk {} came in twice", slab.head);
        slab.bits[word] |= bit;
        slab.ins += 1;
        slab.epoch = slab.epoch.max(epoch);
        self.outs -= 1;
        self.note_in(index);
    }

    fn note_in(&mut self, index: u32) {
        let slab = &mut self.slabs[index as usize];
        if slab.state == State::Leaving {
            return;
        }
        if !slab.listed && slab.ins > 0 {
            slab.listed = true;
            self.partial.push(index);
        }
        self.note_empty(index);
    }

    fn note_empty(&mut self, index: u32) {
        let blocks = self.blocks();
        let slab = &mut self.slabs[index as usize];
        if slab.ins == blocks && slab.state == State::Known && !slab.queued {
            slab.queued = true;
            self.empties.push(index);
        }
    }

    /// Ends the hold on a slab: from now on it is usable from `epoch` on.
    pub(super) fn release_hold(&mut self, index: u32, epoch: u64) {
        self.slabs[index as usize].epoch = epoch;
    }

    /// Notes that DRAM knows the state of this block from here on. Does nothing once the slab is scanned.
    pub(super) fn decide(&mut self, index: u32, block: usize) {
        let words = self.words();
        let slab = &mut self.slabs[index as usize];
        if matches!(slab.state, State::Known | State::Leaving) {
            return;
        }
        if slab.decided.is_empty() {
            slab.decided = vec![0; words].into_boxed_slice();
        }
        slab.decided[block / 64] |= 1 << (block % 64);
    }

    /// Picks a slab to scan: its index and head. Ended by [`scan_end`](Self::scan_end).
    pub(super) fn scan_begin(&mut self) -> Option<(u32, u32)> {
        let index = loop {
            // Some were scanned out of turn.
            let index = self.unscanned.pop()?;
            if self.slabs[index as usize].state == State::Unscanned {
                break index;
            }
        };
        self.scanning += 1;
        let slab = &mut self.slabs[index as usize];
        slab.state = State::Scanning;
        Some((index, slab.head))
    }

    /// The same for slab `index`, if it is unscanned.
    pub(super) fn scan_begin_at(&mut self, index: u32) -> bool {
        if self.slabs[index as usize].state != State::Unscanned {
            return false;
        }
        self.scanning += 1;
        self.slabs[index as usize].state = State::Scanning;
        true
    }

    /// Takes in the blocks a scan found free (a bit each), but for those decided meanwhile.
    pub(super) fn scan_end(&mut self, index: u32, mut found: Box<[u64]>) {
        self.scanning -= 1;
        let slab = &mut self.slabs[index as usize];
        for (found, decided) in found.iter_mut().zip(&slab.decided) {
            *found &= !decided;
        }
        let more: u32 = found.iter().map(|word| word.count_ones()).sum();
        if slab.bits.is_empty() {
            slab.bits = found;
        } else {
            slab.bits.iter_mut().zip(&found).for_each(|(bits, found)| *bits |= found);
        }
        slab.decided = Vec::new().into_boxed_slice();
        slab.state = State::Known;
        slab.ins += more;
        self.outs -= u64::from(more);
        self.note_in(index);
    }

    /// Begins to evacuate slab `index`, if that is possible now: none of its blocks goes out from here on.
    pub(super) fn leave(&mut self, index: u32, ticket: u64) -> bool {
        let slab = &mut self.slabs[index as usize];
        if slab.state != State::Known || slab.epoch == HELD {
            return false;
        }
        (slab.state, slab.ticket) = (State::Leaving, ticket);
        if std::mem::take(&mut slab.listed) {
            self.partial.retain(|&listed| listed != index);
        }
        if std::mem::take(&mut slab.queued) {
            self.empties.retain(|&queued| queued != index);
        }
        true
    }

    /// Whether slab `index` leaves by this very evacuation.
    fn leaves_by(&self, index: u32, ticket: u64) -> bool {
        let slab = &self.slabs[index as usize];
        slab.state == State::Leaving && slab.ticket == ticket
    }

    /// Ends an evacuation in vain; whether it had not been called off. The slab is as any other again.
    pub(super) fn stay(&mut self, index: u32, ticket: u64) -> bool {
        let leaves = self.leaves_by(index, ticket);
        if leaves {
            self.call_off(index);
        }
        leaves
    }

    /// Ends whatever evacuation slab `index` leaves by; whether it did leave.
    pub(super) fn call_off(&mut self, index: u32) -> bool {
        let slab = &mut self.slabs[index as usize];
        if slab.state != State::Leaving {
            return false;
        }
        slab.state = State::Known;
        self.note_in(index);
        true
    }

    /// Ends an evacuation by a transaction of `epoch`: the slab, none of whose blocks is live, is no more.
    pub(super) fn vacate(&mut self, index: u32, ticket: u64, epoch: u64) -> bool {
        let blocks = self.blocks();
        if !self.leaves_by(index, ticket) || self.slabs[index as usize].epoch > epoch {
            return false;
        }
        let slab = &mut self.slabs[index as usize];
        // What is out lies in caches, where its seal gives it away.
        self.outs -= u64::from(blocks - slab.ins);
        slab.ins = 0;
        slab.state = State::Vacant;
        slab.bits = Vec::new().into_boxed_slice();
        self.vacant.push(index);
        true
    }

    /// Some slab with blocks that are out, picked by a random number: its head.
    pub(super) fn any(&self, random: u64) -> Option<u32> {
        let (count, taken) = (self.slabs.len(), self.slabs.len() - self.vacant.len());
        if taken == 0 {
            return None;
        }
        let start = random as usize % count;
        // Where most places are vacant, more of them are looked at, but not so many that others wait for the lock.
        let looks = (LOOKED_AT_MAX * count.div_ceil(taken)).min(VACANT_MAX);
        let order = self.slabs[start..].iter().chain(&self.slabs[..start]);
        let wanted = |slab: &&Slab| !matches!(slab.state, State::Vacant | State::Leaving) && slab.ins < self.blocks();
        order.take(looks).find(wanted).map(|slab| slab.head)
    }

    /// Blocks that are in.
    pub(super) fn all_in(&self) -> u64 {
        let all = (self.slabs.len() - self.vacant.len()) as u64 * u64::from(self.blocks());
        all - self.outs
    }

    /// Takes out a slab that is wholly in and may be given up by a transaction of `epoch`: its head.
    pub(super) fn remove_empty(&mut self, epoch: u64) -> Option<u32> {
        let blocks = self.blocks();
        let mut at = self.empties.len();
        while at > 0 {
            at -= 1;
            let index = self.empties[at];
            let slab = &mut self.slabs[index as usize];
            if slab.ins < blocks {
                slab.queued = false;
                self.empties.swap_remove(at);
                at = at.min(self.empties.len());
            } else if slab.epoch <= epoch {
                self.empties.swap_remove(at);
                slab.queued = false;
                slab.ins = 0;
                slab.state = State::Vacant;
                slab.bits = Vec::new().into_boxed_slice();
                if slab.listed {
                    self.partial.retain(|&listed| listed != index);
                }
                self.vacant.push(index);
                return Some(self.slabs[index as usize].head);
            }
        }
        None
    }

    /// Whether some slab may be wholly in.
    pub(super) fn may_have_empties(&self) -> bool {
        !self.empties.is_empty()
    }
}
