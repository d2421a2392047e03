//! The working copy: the memory at the pool's address in which programs read and write.
//!
//! What must always hold: it lies where the superblock says, for pointers in the heap are addresses; nothing of it is ever durable by
//! itself.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use towa_media::{Mapping, Region};

use crate::roots::empty_table;
use crate::superblock::Superblock;
use crate::{OpenOptions, Result};

/// The working copy: `mapped` (a private mapping of the image, where a lazily opened pool's old bytes are) and after it
/// `anonymous` (everything else).
///
/// A private mapping shows the image's bytes until a page is first written. That is sound because the persister writes a line
/// into the image only after the program wrote it in the working copy, which made the page private.
#[derive(Debug)]
pub(crate) struct Working {
    pub mapped: Option<Mapping>,
    /// The image itself, all of it, of a heap in place.
    pub in_place: Option<Mapping>,
    pub anonymous: Mapping,
    /// Memory of it was given back, so huge pages are no longer wished for: the kernel would fill the gaps with them.
    pub has_gaps: AtomicBool,
}

impl Working {
    /// Of a pool that is opened so; with it, whether what lies before `frontier` is yet to be [loaded](load).
    pub fn to_open(options: &OpenOptions, image: &dyn Region, sb: &Superblock, frontier: u64) -> Result<(Working, bool)> {
        let lazy = !options.eager && image.file().is_some();
        let working = if lazy { Self::lazy(image, sb, frontier)? } else { Self::fresh(sb)? };
        if options.prefault {
            working.prefault()?;
        }
        Ok((working, !lazy))
    }

    /// All anonymous, zeroed.
    pub fn fresh(sb: &Superblock) -> Result<Working> {
        Self::map(None, sb, 0)
    }

    /// Of a heap that keeps nothing, anywhere.
    pub fn volatile(len: u64) -> Result<Working> {
        Ok(Self::of(None, None, Mapping::anonymous(None, len as usize, true)?))
    }

    fn of(mapped: Option<Mapping>, in_place: Option<Mapping>, anonymous: Mapping) -> Working {
        Working { mapped, in_place, anonymous, has_gaps: AtomicBool::new(false) }
    }

    /// The first `mapped_len` bytes come from `image` as touched.
    fn lazy(image: &dyn Region, sb: &Superblock, mapped_len: u64) -> Result<Working> {
        let mapped = Mapping::private(image, Some(sb.base as usize), mapped_len as usize)?;
        Self::map(Some(mapped), sb, mapped_len)
    }

    fn map(mapped: Option<Mapping>, sb: &Superblock, mapped_len: u64) -> Result<Working> {
        let base = sb.base as usize;
        let rest = (sb.heap_len - mapped_len) as usize;
        // A full heap leaves nothing to the anonymous part; one page beyond the end keeps the type simple and harms nobody.
        let anonymous = Mapping::anonymous(Some(base + mapped_len as usize), rest.max(towa_media::PAGE), true)?;
        Ok(Self::of(mapped, None, anonymous))
    }

    /// The image itself: what is stored there is in the pool.
    pub fn in_place(image: &dyn Region, sb: &Superblock) -> Result<Working> {
        let mapped = Mapping::shared_at(image, sb.base as usize, sb.heap_len as usize)?;
        // One page, as in `map`.
        Ok(Self::of(None, Some(mapped), Mapping::anonymous(None, towa_media::PAGE, false)?))
    }

    /// Writes what a new heap begins with, where there is no image to load it from.
    pub fn begin_empty(&self) {
        let roots = empty_table();
        // SAFETY: a heap is longer than its root table; the mapping is not shared yet.
        unsafe { std::ptr::copy_nonoverlapping(roots.as_ptr(), self.base().as_ptr(), roots.len()) };
    }

    /// Provides the memory of all that is not mapped from the image.
    pub fn prefault(&self) -> Result<()> {
        Ok(in_shares(self.anonymous.len() as u64, |from, to| self.anonymous.provide(from as usize, (to - from) as usize))?)
    }

    /// Gives the memory of a range back that is no image's.
    ///
    /// # Safety
    /// As for [`Mapping::release`].
    pub unsafe fn release(&self, range: Range<u64>) -> Result<()> {
        if !self.has_gaps.swap(true, Relaxed) {
            self.mapped.iter().chain([&self.anonymous]).for_each(Mapping::avoid_huge_pages);
        }
        let (from, to) = (range.start as usize, range.end as usize);
        let border = self.mapped.as_ref().map_or(0, Mapping::len);
        if let Some(mapped) = self.mapped.as_ref().filter(|_| from < border) {
            // SAFETY: the caller's.
            unsafe { mapped.release(from, to.min(border) - from)? };
        }
        let first = from.max(border);
        if first < to {
            // SAFETY: the caller's.
            unsafe { self.anonymous.release(first - border, to - first)? };
        }
        Ok(())
    }

    pub fn base(&self) -> NonNull<u8> {
        let first = self.in_place.as_ref().or(self.mapped.as_ref()).unwrap_or(&self.anonymous);
        NonNull::new(first.as_ptr()).expect("a mapping is not at address 0")
    }
}

/// Reads the whole image into the working copy.
pub(crate) fn load(image: &dyn Region, working: &Working, upto: u64) -> Result<()> {
    let base = working.base().as_ptr() as usize;
    let load_share = |from: u64, to: u64| {
        for off in (from..to).step_by(2 << 20) {
            let len = (to - off).min(2 << 20) as usize;
            // SAFETY: shares are disjoint parts of the working copy, which nobody else uses yet.
            let into = unsafe { std::slice::from_raw_parts_mut((base + off as usize) as *mut u8, len) };
            image.read(off, into)?;
        }
        Ok(())
    };
    Ok(in_shares(upto, load_share)?)
}

/// Does `work` on parts of `0..upto`, from and to, which are whole huge pages but for the last, on as many threads as there are cores.
fn in_shares(upto: u64, work: impl Fn(u64, u64) -> towa_media::Result<()> + Sync) -> towa_media::Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get()) as u64;
    let threads = cores.min(upto.div_ceil(8 << 20)).max(1);
    let share = upto.div_ceil(threads).next_multiple_of(2 << 20);
    let one = |i: u64| work((i * share).min(upto), ((i + 1) * share).min(upto));
    std::thread::scope(|scope| {
        let one = &one;
        let others: Vec<_> = (1..threads).map(|i| scope.spawn(move || one(i))).collect();
        let mine = one(0);
        others.into_iter().try_for_each(|o| o.join().expect("no panic")).and(mine)
    })
}
