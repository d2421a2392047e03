//! Creating pools: what a new one is like, and the order in which its files come into being.
//!
//! What must always hold: the superblock gets its name last, after everything it refers to is durable, so stopping before leaves no
//! pool; what cannot be is refused before a file exists.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytemuck::Zeroable;
use towa_media::{Allocation, Mapping, Medium};

use crate::alloc::CHUNK;
use crate::heap::Heap;
use crate::log::Log;
use crate::superblock::{self, Door, Superblock};
use crate::{Error, Result, names, roots};

/// Commit slots of a new pool.
const COMMIT_SLOTS: u32 = 256;

/// What a new pool is like.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Which door.
    pub door: Door,
    /// Capacity in bytes; rounded up to chunks.
    pub heap_len: u64,
    /// Bytes of the log's ring; `None`: a quarter of the heap, between 16 and 512 MiB.
    pub log_len: Option<u64>,
    /// Address of the working copy; `None` picks one.
    pub base: Option<usize>,
}

impl Heap {
    /// Creates a pool on `medium`. A pool that is there already is an error; what an interrupted creation left is removed.
    ///
    /// The superblock gets its name last, after everything it refers to is durable: stopping before leaves no pool.
    pub fn create(medium: Arc<dyn Medium>, options: &CreateOptions) -> Result<Heap> {
        Self::create_with_log(medium, options, COMMIT_SLOTS, 0)
    }

    /// [`create`](Self::create) with so many commit slots (2 at least), and a log that begins at position `tail` (a multiple of 64): near
    /// the ring's end it soon wraps, and so do few slots. For crash tests.
    #[doc(hidden)]
    pub fn create_with_log(medium: Arc<dyn Medium>, options: &CreateOptions, commit_slots: u32, tail: u64) -> Result<Heap> {
        let pool = medium.location();
        let lock = medium.lock()?;
        if medium.exists(names::SUPERBLOCK)? {
            return Err(Error::Exists { pool });
        }
        let mut sb = Superblock { commit_slots, tail, ..new_superblock(options)? };
        let result = write_new_pool(&*medium, &mut sb);
        if let Err(e) = result {
            for name in [names::IMAGE, names::LOG, names::SUPERBLOCK_NEW, names::SUPERBLOCK] {
                let _ = medium.remove(name);
            }
            return Err(e);
        }
        Self::start(medium, lock, sb, false, true)
    }
}

pub(crate) fn check_heap_len(heap_len: u64) -> Result<u64> {
    let len = heap_len.next_multiple_of(CHUNK);
    if !(2 * CHUNK..=1 << 40).contains(&len) {
        let what = format!("heap length {heap_len} is not between {} bytes and 1 TiB", 2 * CHUNK);
        return Err(Error::Options { what });
    }
    Ok(len)
}

/// Bytes of redo log that a new pool gets where none are asked for: a quarter of the heap, between 16 and 512 MiB.
pub fn default_log_len(heap_len: u64) -> u64 {
    (heap_len / 4).clamp(16 << 20, 512 << 20)
}

fn new_superblock(options: &CreateOptions) -> Result<Superblock> {
    let heap_len = check_heap_len(options.heap_len)?;
    let ring_len = options.log_len.unwrap_or_else(|| default_log_len(heap_len)).next_multiple_of(4096);
    if ring_len < crate::log::RING_MIN {
        let what = format!("log length {ring_len} is too small; at least {}", crate::log::RING_MIN);
        return Err(Error::Options { what });
    }
    let uuid = uuid::Uuid::new_v4();
    let base = options.base.map_or_else(|| pick_base(uuid.as_u128(), heap_len), |b| b as u64);
    if base == 0 || !base.is_multiple_of(2 << 20) {
        let what = format!("base address {base:#x} is not a multiple of 2 MiB above 0");
        return Err(Error::Options { what });
    }
    Ok(Superblock {
        magic: superblock::MAGIC,
        version: superblock::VERSION,
        door: options.door as u32,
        uuid: *uuid.as_bytes(),
        base,
        heap_len,
        ring_len,
        commit_slots: COMMIT_SLOTS,
        chunk_len: CHUNK as u32,
        clean: 1,
        anchor: crate::checksum::checksum(0, uuid.as_bytes()),
        frontier: CHUNK,
        created_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
        ..Superblock::zeroed()
    })
}

/// An address between 16 and 48 TiB, where neither the loader nor mmap's own choices lie, different for most pools so that
/// several can be open in one process, and free in this one: another pool, or a sanitizer's shadow (AddressSanitizer's ends 2 GiB
/// above 16 TiB), may have the first choice.
fn pick_base(uuid: u128, heap_len: u64) -> u64 {
    let slot = |i: u128| (16 << 40) + (uuid.wrapping_add(i) % 512) as u64 * (64 << 30);
    let is_free = |base: &u64| Mapping::anonymous(Some(*base as usize), heap_len as usize, false).is_ok();
    // If all that are tried are taken, mapping the first says so.
    (0..64).map(slot).find(is_free).unwrap_or_else(|| slot(0))
}

fn write_new_pool(medium: &dyn Medium, sb: &mut Superblock) -> Result<()> {
    for name in [names::IMAGE, names::LOG, names::SUPERBLOCK_NEW] {
        if medium.exists(name)? {
            medium.remove(name)?;
        }
    }
    let image = medium.create(names::IMAGE, sb.heap_len, Allocation::Sparse)?;
    image.reserve(0, roots::TABLE_LEN)?;
    image.fence()?;
    let log = medium.create(names::LOG, Log::file_len(sb.ring_len, sb.commit_slots), Allocation::Full)?;
    log.fence()?;
    let region = medium.create(names::SUPERBLOCK_NEW, superblock::LEN, Allocation::Full)?;
    superblock::update(&*region, sb)?;
    medium.sync_names()?;
    medium.rename(names::SUPERBLOCK_NEW, names::SUPERBLOCK)?;
    medium.sync_names()?;
    Ok(())
}
