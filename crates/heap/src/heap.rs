//! A heap: working copy, image and log of one pool, from opening to closing.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;
use towa_media::{Lock, Mapping, Medium, Region};

use crate::Result;
use crate::alloc::Allocator;
use crate::image::{self, ImageSpace};
use crate::lanes::Lanes;
use crate::log::Log;
use crate::log::commit::Commit;
use crate::recovery::Recovery;
use crate::roots::RootTable;
use crate::stamp;
use crate::superblock::{self, Superblock};
use crate::tables;
use crate::undo::Undo;
use crate::working::Working;

/// An open heap.
#[derive(Debug)]
pub struct Heap {
    pub(crate) allocator: Allocator,
    pub(crate) working: Working,
    pub(crate) len: u64,
    pub(crate) roots: RootTable,
    pub(crate) recovery: Recovery,
    pub(crate) store: Option<Store>,
}

/// The durable half; a volatile heap has none.
pub(crate) struct Store {
    pub(crate) medium: Arc<dyn Medium>,
    pub(crate) image: Arc<dyn Region>,
    pub(crate) redo: Redo,
    pub(crate) superblock_region: Arc<dyn Region>,
    pub(crate) superblock: Mutex<Superblock>,
    /// Checksum of the newest commit recovered: what the next one names as its predecessor.
    pub(crate) chain_end: u64,
    /// Commits recovered at open that are still live: on sync media, until the image is next synced.
    pub(crate) recovered: Vec<Commit>,
    pub(crate) space: Arc<ImageSpace>,
    pub(crate) lock: Arc<dyn Lock>,
}

/// The redo log, of the kind that the pool's door has.
pub(crate) enum Redo {
    Ring(Log),
    /// Not one that is done again: of a heap in place.
    Undo(Undo),
    Lanes(Lanes),
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store({})", self.medium.location())
    }
}

impl Heap {
    /// First byte of the working copy.
    pub fn base(&self) -> NonNull<u8> {
        self.working.base()
    }

    /// Capacity in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Never: a heap has a root table at least.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The allocator of its blocks.
    pub fn allocator(&self) -> &Allocator {
        &self.allocator
    }

    /// Gives back the memory of free chunks, at least `bytes` of it where there is as much, and of all that lies beyond the frontier. Returns how
    /// many bytes of free chunks it was. Chunks count that were free in `durable`, a durable epoch. An image beside a working copy keeps its
    /// memory.
    pub fn release_memory(&self, durable: u64, bytes: u64) -> u64 {
        let release = |range: Range<u64>| {
            // A working copy has no memory there that was not taken on purpose.
            let is_ahead = range.start >= self.allocator.frontier();
            let released = match &self.store {
                Some(store) if self.working.in_place.is_some() => {
                    store.image.release(range.start, range.end - range.start).map_err(Into::into)
                }
                _ if is_ahead => Ok(()),
                // SAFETY: the chunks are free in every state of the heap that may come, and out of the allocator's pool.
                _ => unsafe { self.working.release(range) },
            };
            // It stays where it is, which harms nothing.
            released.inspect_err(|why| log::warn!("{}: {why}", self.location())).is_ok()
        };
        self.allocator.release_memory(durable, bytes, release)
    }

    /// The named roots.
    pub fn roots(&self) -> &RootTable {
        &self.roots
    }

    /// Whether `address` lies in the heap.
    pub fn contains(&self, address: u64) -> bool {
        in_heap(self.working.base().as_ptr() as u64, self.len)(address)
    }

    /// What opening found.
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// The part of the working copy whose pages come from the image as touched; `None` when all of it is anonymous memory.
    pub fn lazy_part(&self) -> Option<&Mapping> {
        self.working.mapped.as_ref()
    }

    /// Whether nothing is kept.
    pub fn is_volatile(&self) -> bool {
        self.store.is_none()
    }

    /// The medium, unless volatile.
    pub fn medium(&self) -> Option<&Arc<dyn Medium>> {
        self.store.as_ref().map(|s| &s.medium)
    }

    /// The owner's lock: of the directory, and of the image. `None` when volatile.
    pub fn lock(&self) -> Option<&dyn Lock> {
        self.store.as_ref().map(|store| &*store.lock)
    }

    /// Fails if the pool's files were found to be gone from their directory, or others in their place, within some 100 ms of that. Cheap.
    pub fn check_files(&self) -> Result<()> {
        Ok(self.lock().map_or(Ok(()), Lock::check)?)
    }

    /// [`check_files`](Self::check_files) with a look now: some microseconds.
    pub fn look_at_files(&self) -> Result<()> {
        Ok(self.lock().map_or(Ok(()), Lock::look)?)
    }

    /// Where the pool is, for messages.
    pub fn location(&self) -> String {
        self.store.as_ref().map_or_else(|| "volatile heap".into(), |s| s.medium.location())
    }

    /// The durable image.
    ///
    /// # Panics
    /// On a volatile heap.
    pub fn image(&self) -> &Arc<dyn Region> {
        &self.store().image
    }

    /// The redo log of a pool of the epoch door.
    ///
    /// # Panics
    /// On a volatile heap, on one in place, and on one of another door.
    pub fn log(&self) -> &Log {
        self.store().log()
    }

    /// The redo log of a pool of the tx door.
    ///
    /// # Panics
    /// On a volatile heap, and on one of another door.
    #[inline]
    pub fn lanes(&self) -> &Lanes {
        match &self.store().redo {
            Redo::Lanes(lanes) => lanes,
            Redo::Ring(_) | Redo::Undo(_) => panic!("{}: the log of the epoch door has no lanes", self.location()),
        }
    }

    /// Bytes of its log that epochs can take.
    ///
    /// # Panics
    /// On a volatile heap, and on one of the tx door.
    pub fn log_capacity(&self) -> u64 {
        self.undo().map_or_else(|| self.log().capacity(), Undo::capacity)
    }

    /// The undo log of a heap in place; `None` where the working copy is a copy.
    #[inline]
    pub fn undo(&self) -> Option<&Undo> {
        match self.store.as_ref()?.redo {
            Redo::Undo(ref undo) => Some(undo),
            _ => None,
        }
    }

    pub(crate) fn superblock(&self) -> Superblock {
        *self.store().superblock.lock()
    }

    fn store(&self) -> &Store {
        self.store.as_ref().expect("a volatile heap has no durable half")
    }

    /// The epoch that those of this process come after, and its commit's checksum: the newest durable one as recovered. In place it may be
    /// some further, for what is undone had epochs, too.
    pub fn recovered(&self) -> (u64, u64) {
        (self.undo().map_or(self.recovery.epoch, Undo::durable), self.store.as_ref().map_or(0, |s| s.chain_end))
    }

    /// The epochs recovered at open whose log is still live, oldest first: to be [cut](Self::cut) before those that follow, or with
    /// them. Until then their commit slots and log space are taken.
    pub fn recovered_commits(&self) -> &[Commit] {
        self.store.as_ref().map_or(&[], |store| &store.recovered)
    }

    /// Copies the lines of committed epochs, oldest first, into the image (not durable before [`cut`](Self::cut)).
    ///
    /// On line media `threads` threads share the work. On sync media, where the device is the limit, one thread applies many epochs
    /// together, so each line is written once, the newest, with its neighbours in one write. `pause` is called now and then on the
    /// calling thread: a caller who would spread the work may sleep there.
    ///
    /// Epochs that recovery replayed are passed over: the image holds them. Written again, the older version of a line would be seen
    /// for a moment wherever a lazily opened working copy still shows the image.
    pub fn apply(&self, commits: &[Commit], threads: usize, pause: &mut dyn FnMut()) -> Result<()> {
        let store = self.store();
        stamp::settle(&*store.image)?;
        let replayed = commits.partition_point(|commit| commit.epoch <= self.recovery.epoch);
        image::apply(&*store.image, store.log(), store.medium.durability(), &commits[replayed..], threads, pause)
    }

    /// Makes the image durable, says so in the superblock, and frees the log up to and including `commit`'s epoch. All epochs up to
    /// it were [`apply`](Self::apply)ed, and this thread called for it.
    ///
    /// Stopping before the superblock's fence: the log is still live and replays over the image, whose stamp may say already how far it
    /// goes. After it: the image is complete.
    pub fn cut(&self, commit: &Commit) -> Result<()> {
        let store = self.store();
        stamp::advance(&*store.image, (0, commit.epoch))?;
        store.image.fence()?;
        let mut sb = store.superblock.lock();
        let mut next = *sb;
        (next.applied_epoch, next.anchor, next.tail, next.frontier) = (commit.epoch, commit.checksum, commit.end, commit.frontier);
        superblock::update(&*store.superblock_region, &mut next)?;
        *sb = next;
        store.log().cut(commit.end);
        Ok(())
    }

    /// Marks the pool as cleanly closed. The caller has cut the log behind its last epoch, or had a
    /// [`Replayer`](crate::lanes::Replayer) apply the last record.
    ///
    /// Stopping before the superblock's fence: the pool was not closed; both files name the stamp that the superblock has. After it: closed.
    pub fn close(&self) -> Result<()> {
        let Some(store) = &self.store else {
            return Ok(());
        };
        let mut sb = store.superblock.lock();
        let mut next = Superblock { clean: 1, stamp: stamp::draw(), births: [0; 3], ..*sb };
        let (frontier, log) = match &store.redo {
            Redo::Ring(log) => (sb.frontier, log.region()),
            Redo::Lanes(lanes) => (lanes.frontier(&sb)?, &*lanes.region),
            Redo::Undo(undo) => {
                next.applied_epoch = undo.durable();
                (undo.frontier(), undo.region())
            }
        };
        next.tables = tables::sum(&*store.image, &sb, frontier)?;
        stamp::renew(&*store.image, (sb.stamp, next.stamp), None)?;
        stamp::renew(log, (sb.stamp, next.stamp), None)?;
        superblock::update(&*store.superblock_region, &mut next)?;
        *sb = next;
        Ok(())
    }
}

impl Store {
    fn log(&self) -> &Log {
        match &self.redo {
            Redo::Ring(log) => log,
            Redo::Lanes(_) | Redo::Undo(_) => panic!("{}: this pool's log is no ring of epochs", self.medium.location()),
        }
    }
}

pub(crate) fn in_heap(base: u64, len: u64) -> impl Fn(u64) -> bool + Copy {
    move |address| address >= base && address - base < len
}
