//! **media**: where durable bytes live, and the only crate that knows how bytes become durable.
//!
//! A [`Medium`] is a flat directory of named [`Region`]s. Everything above speaks to it through five verbs:
//!
//! ```text
//!   store ──► (CPU cache) ──write_back──► (on its way) ──fence──► durable     cached stores
//!   stream ─────────────────────────────► (on its way) ──fence──► durable     non-temporal stores
//! ```
//!
//! On *line media* (`dax`, `ram`, `sim`) a `write_back` is CLWB and a `fence` SFENCE: they order what the calling thread
//! wrote. On *sync media* (`file`, `sim` in file mode) `store` and `stream` are both `pwrite`, `write_back` does nothing and
//! `fence` is `fdatasync`. Code that is correct against the weaker promise of the two is correct on every medium:
//!
//! - before the `fence` returns, **any part** of what was written may or may not be durable, in any order, subject only to:
//!   cached stores within one 64-byte line reach the medium in program order, and an aligned 8-byte word is never torn
//!   (line media), nothing at all (sync media);
//! - after it, everything the calling thread wrote to that region before (line media: and wrote back) is durable;
//! - a name is durable after [`Medium::sync_names`].
//!
//! What each medium survives is [`Guarantee`]; `towa info` prints it.

pub mod apart;
mod counters;
mod dax;
mod descriptor;
mod detect;
mod directory;
mod error;
pub mod extents;
mod file;
pub mod files;
pub mod fork;
mod group_sync;
pub mod holder;
mod keeper;
mod lock;
mod mapped;
mod mapping;
mod model;
mod owner;
pub mod paths;
mod per_thread;
pub mod persist;
mod ram;
pub mod sanitizer;
pub mod sim;
mod watched;

pub use counters::{CounterValues, Counters};
pub use dax::DaxMedium;
pub use detect::{CpuFeatures, Detected, cpu_features, detect, open_dir};
pub use error::{Error, Result};
pub use file::FileMedium;
pub use lock::Lock;
pub use mapping::{HUGE_PAGE, Mapping, advise_huge, map_ahead};
pub use model::NvmModel;
pub use ram::RamMedium;
pub use sim::SimMedium;
pub use watched::Watched;

use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

/// Bytes in a cache line, the unit of tracking, logging and write-back.
pub const LINE: usize = 64;
/// Bytes in a page, the alignment of everything that is mapped.
pub const PAGE: usize = 4096;

/// The kinds of media Towa runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Durable memory mapped with `MAP_SYNC`: write-back and fence make a line durable.
    Dax,
    /// A file on any file system: `fdatasync` makes it durable.
    File,
    /// tmpfs or a memfd: survives the process, not the machine. Stands in for NVM, with an optional latency model.
    Ram,
    /// The crash simulator.
    Sim,
}

/// How bytes become durable on a medium, which decides the shape of the protocols above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// Per 64-byte line: write-back, then a fence by the same thread. Fences are cheap (about 100 ns).
    Line,
    /// Per file: `fdatasync`. Fences are dear (0.1 to 10 ms), so writes are batched and the image is brought up lazily.
    Sync,
}

/// What survives on a medium once it is durable there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Guarantee {
    /// Survives SIGKILL and any crash of the process; lost when the kernel crashes or power fails.
    ProcessSafe,
    /// Survives kernel crash and power loss too.
    PowerSafe,
}

/// How the bytes of a new region are provided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// Address space only; [`Region::reserve`] provides the space before it is used.
    Sparse,
    /// All space provided now, or the creation fails with [`Error::Full`].
    Full,
}

/// Whether an opened region may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read only; writes fail. For `verify` and `info`, which must never modify.
    ReadOnly,
    /// Read and write.
    ReadWrite,
}

/// A flat directory of regions that share one promise of durability.
///
/// A medium that is wrong would be undefined behaviour in what is built on it, so safe code makes none:
/// ```compile_fail,E0200
/// # use towa_media::*; use std::sync::Arc;
/// # #[derive(Debug)] struct Mine(Arc<dyn Medium>);
/// impl Medium for Mine {
///     fn lock(&self) -> Result<Box<dyn Send + Sync>> { Ok(Box::new(())) }
///     // ...
/// #   fn kind(&self) -> Kind { self.0.kind() }
/// #   fn durability(&self) -> Durability { self.0.durability() }
/// #   fn guarantee(&self) -> Guarantee { self.0.guarantee() }
/// #   fn location(&self) -> String { self.0.location() }
/// #   fn create(&self, n: &str, l: u64, a: Allocation) -> Result<Arc<dyn Region>> { self.0.create(n, l, a) }
/// #   fn open(&self, n: &str, a: Access) -> Result<Arc<dyn Region>> { self.0.open(n, a) }
/// #   fn exists(&self, n: &str) -> Result<bool> { self.0.exists(n) }
/// #   fn remove(&self, n: &str) -> Result<()> { self.0.remove(n) }
/// #   fn rename(&self, a: &str, b: &str) -> Result<()> { self.0.rename(a, b) }
/// #   fn sync_names(&self) -> Result<()> { self.0.sync_names() }
/// #   fn counters(&self) -> &Counters { self.0.counters() }
/// }
/// ```
///
/// # Safety
/// What is built on a medium maps the bytes of its regions and follows what is stored there. So
/// - [`open`](Self::open) gives the region that was made under that name, with what was stored there, and
///   [`create`](Self::create) one of `len` zeroes;
/// - [`lock`](Self::lock) gives one owner at a time what it locks, in this process and in others.
pub unsafe trait Medium: Send + Sync + fmt::Debug {
    /// Which kind this is.
    fn kind(&self) -> Kind;
    /// How bytes become durable here.
    fn durability(&self) -> Durability;
    /// What survives here.
    fn guarantee(&self) -> Guarantee;
    /// Where it is, for messages: a path, or a word such as `sim`.
    fn location(&self) -> String;
    /// The directory, where there is one.
    fn directory(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Creates region `name` of `len` bytes, zero-filled, mode 0600. Fails with [`Error::Exists`] if the name is taken. The
    /// name is durable after [`sync_names`](Self::sync_names), the length and zeroes after a [`fence`](Region::fence) of the region.
    fn create(&self, name: &str, len: u64, allocation: Allocation) -> Result<Arc<dyn Region>>;
    /// Opens region `name`.
    fn open(&self, name: &str, access: Access) -> Result<Arc<dyn Region>>;
    /// Whether region `name` is there.
    fn exists(&self, name: &str) -> Result<bool>;
    /// Removes region `name`; open handles stay valid.
    fn remove(&self, name: &str) -> Result<()>;
    /// Renames `from` to `to` atomically, replacing `to`.
    fn rename(&self, from: &str, to: &str) -> Result<()>;
    /// Makes creations, removals and renames durable, and the names of the directories that lead here.
    fn sync_names(&self) -> Result<()>;
    /// Takes the owner's lock without waiting, or fails with [`Error::Busy`] naming the holder where known. The lock goes with
    /// the returned value and with the process, at `execve` too; closing descriptors does not end it, and a forked child has no share of
    /// it. Leaves no trace where the file system can lock a directory.
    fn lock(&self) -> Result<Box<dyn Lock>>;
    /// [`lock`](Self::lock) for readers, of whom there may be several: creates nothing, writes nothing, works where nothing may be
    /// written.
    fn lock_to_read(&self) -> Result<Box<dyn Lock>> {
        self.lock()
    }
    /// [`lock`](Self::lock), or [`lock_to_read`](Self::lock_to_read) of who only `reads`, of what is there already: region `name`, whose
    /// lock its owner has for its whole stay, decides, and not the directory's, which everybody can take who may read it. Where there is no
    /// such region, the directory's does. `whose`: who has it, if not the owner of this directory.
    fn lock_by(&self, name: &str, reads: bool, whose: &str) -> Result<Box<dyn Lock>> {
        let lock = if reads { self.lock_to_read()? } else { self.lock()? };
        if self.exists(name)? {
            lock.take(name, Duration::ZERO, whose)?;
        }
        Ok(lock)
    }
    /// Takes the lock of region `name` alone, as [`Lock::take`] does: for a process that writes it beside the owner.
    fn lock_file(&self, _name: &str, _patience: Duration, _whose: &str) -> Result<Box<dyn Lock>> {
        Ok(Box::new(()))
    }
    /// Counters of everything done on this medium since it was opened.
    fn counters(&self) -> &Counters;
}

/// A run of durable bytes with a name. All methods take `&self`: callers never write one range from two threads at once.
///
/// # Safety
/// - [`bytes`](Self::bytes), where there are any, are [`len`](Self::len) bytes that stay mapped for as long as the
///   region lives, readable, and writable if it was opened to be written; they begin at a page;
/// - [`file`](Self::file) is a file that has that many bytes, from its beginning on, and keeps them;
/// - what is [read](Self::read) is what was stored there last, and nobody stores there but through this region.
pub unsafe trait Region: Send + Sync + fmt::Debug {
    /// Length in bytes.
    fn len(&self) -> u64;
    /// Whether the region has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Reads `into.len()` bytes at `off`: the newest written, durable or not.
    fn read(&self, off: u64, into: &mut [u8]) -> Result<()>;
    /// Cached store. Durable after [`write_back`](Self::write_back) of its lines and [`fence`](Self::fence).
    fn store(&self, off: u64, bytes: &[u8]) -> Result<()>;
    /// Starts writing back the lines that hold `off..off + len`.
    fn write_back(&self, off: u64, len: u64);
    /// Has the next [`fence`](Self::fence) make `bytes` at `off` durable, which were read there, whichever process wrote them.
    /// Recovery calls it for everything that it read and relies on.
    ///
    /// On line media that is a [`write_back`](Self::write_back). On sync media the bytes are written again: after a failed
    /// sync of an earlier process the kernel still shows that process's data, but its pages count as clean, so a sync alone
    /// would succeed without the data ever reaching the device.
    fn rewrite(&self, off: u64, bytes: &[u8]) -> Result<()> {
        self.write_back(off, bytes.len() as u64);
        Ok(())
    }
    /// Lets go of all that a cache holds of the region and the device need not have, so that reads give what the
    /// device has, and writes begin afresh. What is dirty is synced first; if that fails, so does the next
    /// [`fence`](Self::fence). Recovery calls it before it reads, and again once everything that it relies on is
    /// durable: a page that something else looks at then may stay.
    ///
    /// ext4 needs it: a page whose first write failed keeps its block, which the file system still counts as unwritten. Written
    /// again through that page, the data gets to the device, the sync succeeds, and after a loss of power the block reads as
    /// zeros. It holds pages in folios of any length, and lets go of a whole one or of none of it, so parts of a file
    /// cannot be evicted. Does nothing on line media.
    fn evict(&self) {}
    /// [`rewrite`](Self::rewrite)s what `off..off + len` holds now. On sync media, pages that a failed sync left may have gone
    /// back to older content since they were read before: the caller checks them once more.
    fn rewrite_range(&self, off: u64, len: u64) -> Result<()> {
        const STEP: u64 = 1 << 20;
        if self.bytes().is_some() {
            self.write_back(off, len);
            return Ok(());
        }
        let mut bytes = vec![0; len.min(STEP) as usize];
        let mut done = 0;
        while done < len {
            let part = &mut bytes[..(len - done).min(STEP) as usize];
            self.read(off + done, part)?;
            self.rewrite(off + done, part)?;
            done += part.len() as u64;
        }
        Ok(())
    }
    /// [`store`](Self::store)s some words of the line that begins at `off`, those whose bits `mask` has, the lower first.
    ///
    /// # Panics
    /// If no line begins there.
    #[inline]
    fn store_words(&self, off: u64, words: &[u64; LINE / 8], mask: u8) -> Result<()> {
        assert!(off.is_multiple_of(LINE as u64), "no line begins at {off}");
        let mut bytes = [0; LINE];
        bytes.chunks_exact_mut(8).zip(words).for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_ne_bytes()));
        let mut left = u32::from(mask);
        while left != 0 {
            let first = left.trailing_zeros();
            let end = first + (left >> first).trailing_ones();
            self.store(off + u64::from(first) * 8, &bytes[first as usize * 8..end as usize * 8])?;
            left &= u32::MAX << end;
        }
        Ok(())
    }
    /// [`store`](Self::store)s the line that begins at `off`, the lower words first; and starts [writing it back](Self::write_back).
    ///
    /// # Panics
    /// If no line begins there.
    #[inline]
    fn store_line(&self, off: u64, words: &[u64; LINE / 8]) -> Result<()> {
        self.store_words(off, words, u8::MAX)?;
        self.write_back(off, LINE as u64);
        Ok(())
    }
    /// Streamed (non-temporal) store for data that is not read again soon. Durable after [`fence`](Self::fence) alone. A range
    /// written with `stream` must not have unfenced cached stores. Other threads may see it late and out of order until the
    /// fence, even after taking a lock: fence before handing the range over.
    fn stream(&self, off: u64, bytes: &[u8]) -> Result<()>;
    /// Returns when everything this thread streamed, or stored and wrote back, in this region is durable (sync media: whatever
    /// any thread wrote in it, and [rewrote](Self::rewrite)). All threads that wait for one sync get its one result. After an
    /// error nothing is known: the caller must treat the region as failed and never retry (the kernel marks dirty pages clean
    /// after a failed sync); further fences of it fail. A region that is opened afterwards may show bytes that are not durable
    /// and that no fence makes durable, unless they are written again.
    fn fence(&self) -> Result<()>;
    /// Provides space for `off..off + len`, so that writes there cannot fail with [`Error::Full`]. Keeps content. On a full
    /// tmpfs, writing what was not reserved is not an error but SIGBUS. Counts as a write of the range.
    fn reserve(&self, off: u64, len: u64) -> Result<()>;
    /// Whether the first `len` bytes have space, as far as can be told at once: else they are to be [`reserve`](Self::reserve)d.
    fn is_provided(&self, _len: u64) -> bool {
        true
    }
    /// [`reserve`](Self::reserve)s what of `off..off + len` the region shares with another file, of which one is a clone (reflink). Takes next to
    /// no time where nothing is shared, and else that of copying it. Nothing where the file system cannot do that ahead of a write.
    fn unshare(&self, _off: u64, _len: u64) -> Result<()> {
        Ok(())
    }
    /// Gives the memory of the whole pages in `off..off + len` back, where the region lives in memory: they read as zeros, and are to be
    /// [`reserve`](Self::reserve)d before they are written. Else nothing: space on a disk stays taken.
    fn release(&self, _off: u64, _len: u64) -> Result<()> {
        Ok(())
    }
    /// The bytes themselves, on media that map them shared (`dax`, `ram`). Reading them is a plain load; writing goes through
    /// the verbs above.
    fn bytes(&self) -> Option<NonNull<[u8]>>;
    /// When the file behind the region was made, in nanoseconds, where its file system tells: a copy has another one, and what was moved or
    /// comes back with a snapshot of its file system has the same.
    fn birth(&self) -> Option<u64> {
        None
    }
    /// The file behind the region, for a private mapping of it; `None` on `sim`.
    fn file(&self) -> Option<BorrowedFd<'_>>;
}
