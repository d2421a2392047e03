//! Slots: what the engine keeps per registered thread.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;

use crate::clock::Announcement;
use crate::lists::{AddressList, SavedLines};

/// Most threads registered at once.
pub(crate) const SLOTS: usize = 1024;

/// One thread's share of the engine.
#[derive(Debug)]
pub(crate) struct Slot {
    pub announcement: Announcement,
    /// The last epoch in which this thread marked anything.
    pub dirty_epoch: AtomicU64,
    lists: [UnsafeCell<AddressList>; 2],
    pub saved: [SavedLines; 2],
    /// Which operating-system thread ran its newest transaction (an address that tells them apart).
    pub os_thread: AtomicUsize,
    taken: AtomicBool,
}

// SAFETY: `lists` obeys the hand-over of `clock.rs`: see `list`.
unsafe impl Sync for Slot {}

impl Slot {
    fn new() -> Self {
        Self {
            announcement: Announcement::new(),
            dirty_epoch: AtomicU64::new(0),
            lists: Default::default(),
            saved: [SavedLines::new(), SavedLines::new()],
            os_thread: AtomicUsize::new(0),
            taken: AtomicBool::new(false),
        }
    }

    /// The address list of `epoch`.
    ///
    /// # Safety
    /// The caller is either the slot's thread inside a transaction of `epoch`, or the persister after every transaction of `epoch`
    /// has ended and before `epoch + 2` begins. The reference does not outlive that.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn list(&self, epoch: u64) -> &mut AddressList {
        // SAFETY: the caller is the only one, by its promise.
        unsafe { &mut *self.lists[(epoch % 2) as usize].get() }
    }

    /// The saved lines of `epoch`.
    pub fn saved_for(&self, epoch: u64) -> &SavedLines {
        &self.saved[(epoch % 2) as usize]
    }
}

/// All slots. A freed slot keeps its lists until the persister has taken them; the next thread may go on with it at once.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: Vec<CachePadded<Slot>>,
    free: Mutex<Vec<usize>>,
    /// Slots that were ever taken: the persister looks at these.
    ever: AtomicUsize,
}

impl Slots {
    pub fn new() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| CachePadded::new(Slot::new())).collect(),
            free: Mutex::new((0..SLOTS).rev().collect()),
            ever: AtomicUsize::new(0),
        }
    }

    /// Takes a free slot.
    pub fn take(&self) -> Option<usize> {
        let index = self.free.lock().pop()?;
        self.ever.fetch_max(index + 1, AcqRel);
        self.slots[index].taken.store(true, Release);
        Some(index)
    }

    /// Gives a slot back.
    pub fn give_back(&self, index: usize) {
        self.slots[index].taken.store(false, Release);
        self.free.lock().push(index);
    }

    pub fn get(&self, index: usize) -> &Slot {
        &self.slots[index]
    }

    /// The slots that may hold anything.
    pub fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.slots[..self.ever.load(Acquire)].iter().map(|s| &**s)
    }

    /// Threads registered now.
    pub fn taken(&self) -> usize {
        self.iter().filter(|s| s.taken.load(Relaxed)).count()
    }

    /// How many threads marked something in `epoch` or later.
    pub fn count_dirty(&self, epoch: u64) -> usize {
        self.iter().filter(|s| s.dirty_epoch.load(Acquire) >= epoch).count()
    }

    /// Whether anything was marked in `epoch`.
    pub fn any_dirty(&self, epoch: u64) -> bool {
        self.iter().any(|s| s.dirty_epoch.load(Acquire) >= epoch)
    }
}
