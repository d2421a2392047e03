//! Creating pools: what a new one is like, and the order in which its files come into being.
//!
//! ```text
//!   superblock.new ──durable──► image, log ──durable──► rename to superblock ──durable──► a pool
//!   (says: ours)
//! ```
//!
//! What must always hold: the superblock gets its name last, after everything it refers to is durable, so stopping before leaves no
//! pool; nothing is removed that an interrupted creation did not leave; what cannot be is refused before a file exists.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytemuck::Zeroable;
use towa_media::{Access, Allocation, Lock, Mapping, Medium, files, sanitizer};

use crate::alloc::CHUNK;
use crate::heap::Heap;
use crate::lanes::{CUTS_LEN, LANE_LEN_MIN, LANES_MAX};
use crate::log::RING_MIN;
use crate::open::{How, lock_image, lock_new};
use crate::stamp::{self, Stamp};
use crate::superblock::{self, Door, HEAP_MAX, RING_MAX, Superblock};
use crate::working::Working;
use crate::{Error, Result, names, roots, tables, undo};

/// The least that a new heap can have. Roots and the table of chunks take two chunks, which leaves six: blocks of as many sizes as that, or
/// one of a size whose slab takes five.
const HEAP_MIN: u64 = 8 * CHUNK;
/// Commit slots of a new pool.
const COMMIT_SLOTS: u32 = 256;
/// Where the addresses of programs end on x86-64 with four levels of page tables.
const ADDRESS_END: u64 = 1 << 47;

/// What lies in a directory of its own without being a pool: the file of an arena (`towa_alloc::NAME`).
const ARENA: &str = "arena";

/// What the redo log of a new pool is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogShape {
    /// One ring of epochs: the epoch door.
    Ring {
        /// Bytes; `None`: a quarter of the heap, between 16 and 512 MiB.
        len: Option<u64>,
    },
    /// An undo log: the heap is in place, the image is the working copy. The epoch door, on memory ([`towa_media::Kind::Ram`]) alone.
    Undo {
        /// Bytes, of which there are 8 MiB at least; `None`: an eighth of the heap, between 16 and 128 MiB.
        len: Option<u64>,
    },
    /// Lanes of records, one for each thread that writes: the tx door. Their space is provided when they are first used.
    Lanes {
        /// How many, up to [`LANES_MAX`].
        count: u32,
        /// Bytes of each, [`LANE_LEN_MIN`] at least; a multiple of 4096.
        lane_len: u64,
    },
}

/// What a new pool is like.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Which door.
    pub door: Door,
    /// Capacity in bytes; rounded up to chunks.
    pub heap_len: u64,
    /// What its log is like.
    pub log: LogShape,
    /// Address of the working copy; `None` picks one.
    pub base: Option<usize>,
    /// Provide all memory of the working copy now, instead of as touched.
    pub prefault: bool,
}

impl CreateOptions {
    /// Whether there can be such a pool. To be asked before its directory is made.
    ///
    /// # Errors
    /// [`Error::Options`].
    pub fn check(&self) -> Result<()> {
        new_superblock(self).map(drop)
    }
}

impl Heap {
    /// Creates a pool on `medium`. A pool that is there already is an error, and so are files of its names that no interrupted creation
    /// left; what one left is removed. Creation that fails leaves nothing.
    pub fn create(medium: Arc<dyn Medium>, options: &CreateOptions) -> Result<Heap> {
        Self::create_like(medium, new_superblock(options)?, options.prefault)
    }

    /// [`create`](Self::create) with so many commit slots (4 at least), and a log that begins at position `tail` (a multiple of 64, within the
    /// ring): near the ring's end it soon wraps, and so do few slots. For crash tests.
    #[doc(hidden)]
    pub fn create_with_log(medium: Arc<dyn Medium>, options: &CreateOptions, commit_slots: u32, tail: u64) -> Result<Heap> {
        Self::create_like(medium, Superblock { commit_slots, tail, ..new_superblock(options)? }, options.prefault)
    }

    fn create_like(medium: Arc<dyn Medium>, sb: Superblock, prefault: bool) -> Result<Heap> {
        check_in_place(&*medium, &sb)?;
        // Held until this returns, whatever fails in between: from the moment the superblock has its name, another
        // process that gets the lock may open the pool and commit to it, and what it was told is durable must not be
        // removed below.
        let lock: Arc<dyn Lock> = medium.lock()?.into();
        if medium.exists(names::SUPERBLOCK)? {
            return Err(Error::Exists { pool: medium.location() });
        }
        let left = leftovers(&*medium)?;
        // The likeliest thing to be refused: ask for it before there are files. (A heap in place takes it as soon as it has its image.)
        let working = if sb.is_in_place() { None } else { Some(Working::fresh(&sb)?) };
        if let (Some(working), true) = (&working, prefault) {
            working.prefault()?;
        }
        if !left.is_empty() {
            remove(&*medium, &left)?;
        }
        let mut made = Vec::new();
        let make = || {
            let sb = write_new_pool(&*medium, &*lock, sb, &mut made)?;
            let door = Door::from_number(sb.door);
            lock_image(&*lock, door)?;
            Self::start(Arc::clone(&medium), Arc::clone(&lock), door, How::Created { working, prefault })
        };
        let result = make();
        if result.is_err() {
            let _ = remove(&*medium, &made);
        }
        result
    }
}

/// Refuses a heap in place where a loss of power would leave half of it, or where the image is not to be had as memory.
pub(crate) fn check_in_place(medium: &dyn Medium, sb: &Superblock) -> Result<()> {
    if !sb.is_in_place() || medium.kind() == towa_media::Kind::Ram {
        return Ok(());
    }
    let what = format!(
        "{}: a pool whose image is its working copy, for which there is no medium but memory: on this one a loss of power would tear it; copy \
         it with `towa backup`, and open the copy here; nothing was changed",
        medium.location()
    );
    Err(Error::Options { what })
}

pub(crate) fn check_heap_len(heap_len: u64) -> Result<u64> {
    // Looked at before it is rounded up, which overflows near the greatest of numbers.
    if !(HEAP_MIN..=HEAP_MAX).contains(&heap_len) {
        let what = format!("heap length {heap_len} is not between {HEAP_MIN} bytes and 1 TiB");
        return Err(Error::Options { what });
    }
    Ok(heap_len.next_multiple_of(CHUNK))
}

/// Bytes of redo log that a new pool gets where none are asked for: a quarter of the heap, between 16 and 512 MiB.
pub fn default_log_len(heap_len: u64) -> u64 {
    (heap_len / 4).clamp(16 << 20, 512 << 20)
}

/// Bytes of undo log that a new pool in place gets where none are asked for: an eighth of the heap, between 16 and 128 MiB.
pub fn default_undo_len(heap_len: u64) -> u64 {
    (heap_len / 8).clamp(16 << 20, 128 << 20)
}

/// Bytes of the log's parts, and how many these are.
fn check_log(options: &CreateOptions, heap_len: u64) -> Result<(u64, u32)> {
    let refused = |what| Err(Error::Options { what });
    match (options.door, options.log) {
        (Door::Epoch, LogShape::Ring { len }) => {
            let len = len.unwrap_or_else(|| default_log_len(heap_len));
            if !(RING_MIN..=RING_MAX).contains(&len) {
                return refused(format!("log length {len} is not between {RING_MIN} bytes and 1 TiB"));
            }
            Ok((len.next_multiple_of(4096), COMMIT_SLOTS))
        }
        (Door::Epoch, LogShape::Undo { len }) => {
            let len = len.unwrap_or_else(|| default_undo_len(heap_len));
            if !(RING_MIN..=RING_MAX).contains(&len) {
                return refused(format!("log length {len} is not between {RING_MIN} bytes and 1 TiB"));
            }
            // Whether a new pool is in place depends on where it is: a length that does elsewhere is not refused here.
            Ok((undo::whole_groups(len.max(undo::BLOCKS_LEN_MIN)), 0))
        }
        (Door::Tx, LogShape::Lanes { count, lane_len }) => {
            if !(1..=LANES_MAX).contains(&count) {
                return refused(format!("{count} lanes: not between 1 and {LANES_MAX}"));
            }
            let most = RING_MAX / u64::from(count);
            if !lane_len.is_multiple_of(4096) || !(LANE_LEN_MIN..=most).contains(&lane_len) {
                return refused(format!(
                    "lane length {lane_len} is not a multiple of 4096 between {LANE_LEN_MIN} and {most} bytes"
                ));
            }
            Ok((lane_len * u64::from(count), count))
        }
        (door, shape) => refused(format!("a pool of the {} door does not have a log of shape {shape:?}", door.name())),
    }
}

/// Makes `sb` that of a pool with a ring.
pub(crate) fn give_ring(sb: &mut Superblock) {
    // The programs that use it may need as long a log as it had.
    let len = default_log_len(sb.heap_len).max(sb.ring_len);
    sb.version = superblock::version_of(false);
    (sb.in_place, sb.ring_len, sb.commit_slots) = (0, len.next_multiple_of(4096), COMMIT_SLOTS);
}

fn new_superblock(options: &CreateOptions) -> Result<Superblock> {
    let heap_len = check_heap_len(options.heap_len)?;
    let (ring_len, commit_slots) = check_log(options, heap_len)?;
    let uuid = uuid::Uuid::new_v4();
    let base = options.base.map_or_else(|| pick_base(uuid.as_u128(), heap_len), |b| b as u64);
    if base == 0 || !base.is_multiple_of(2 << 20) || base.checked_add(heap_len).is_none_or(|end| end > ADDRESS_END) {
        let what =
            format!("base address {base:#x}: not a multiple of 2 MiB above 0, or the heap would not end below {ADDRESS_END:#x}");
        return Err(Error::Options { what });
    }
    let in_place = matches!(options.log, LogShape::Undo { .. });
    Ok(Superblock {
        magic: superblock::MAGIC,
        version: superblock::version_of(in_place),
        door: options.door as u32,
        uuid: *uuid.as_bytes(),
        base,
        heap_len,
        ring_len,
        commit_slots,
        chunk_len: CHUNK as u32,
        clean: 1,
        in_place: u32::from(in_place),
        stamp: stamp::draw(),
        anchor: crate::recovery::first_anchor(uuid.as_bytes()),
        frontier: CHUNK,
        created_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
        ..Superblock::zeroed()
    })
}

/// An address between 16 and 48 TiB, where neither the loader nor mmap's own choices lie. The places are as far from each other as the heap
/// and something behind it need (1 GiB at least), so that several pools can be open in one process: of pools that hold less than 1 GiB,
/// one in 32,768 pairs would meet. The place is free in this process: another pool, or a sanitizer's shadow (AddressSanitizer's ends
/// 2 GiB above 16 TiB), may have the first choice. Under ThreadSanitizer between 64 and 512 GiB, where it lets programs have their memory.
fn pick_base(uuid: u128, heap_len: u64) -> u64 {
    let step = (heap_len + CHUNK).next_power_of_two().max(1 << 30);
    let (first, end) = match sanitizer::fixed_end() {
        None => (16 << 40, 48 << 40),
        Some(end) => (64 << 30, end as u64),
    };
    let slots = (end.saturating_sub(first) / step).max(1);
    let slot = |i: u128| first + (uuid.wrapping_add(i) % u128::from(slots)) as u64 * step;
    let is_free = |base: &u64| Mapping::anonymous(Some(*base as usize), heap_len as usize, false).is_ok();
    // If all that are tried are taken, mapping the first says so.
    (0..64).map(slot).find(is_free).unwrap_or_else(|| slot(0))
}

/// Writes the pool's files. Stopping after each step is safe:
/// 1. `superblock.new`, whole and durable, its name too: no pool, and the mark that what follows is ours to remove;
/// 2. `image` and `log`, durable, their names too: the same;
/// 3. the name `superblock`: a pool. Before this rename is durable there is no pool, or there is.
///
/// `made` gets the names that files have by then.
fn write_new_pool(medium: &dyn Medium, lock: &dyn Lock, mut sb: Superblock, made: &mut Vec<&'static str>) -> Result<Superblock> {
    let roots = roots::empty_table();
    sb.tables = tables::sum_of_roots(&roots);
    let mut create = |name, len, allocation| {
        let region = medium.create(name, len, allocation);
        // Also if the medium got no further than the name.
        if !matches!(region, Err(towa_media::Error::Exists { .. })) {
            made.push(name);
        }
        region
    };
    let region = create(names::SUPERBLOCK_NEW, superblock::LEN, Allocation::Full)?;
    lock_new(lock)?;
    superblock::update(&*region, &mut sb)?;
    medium.sync_names()?;
    let image = create(names::IMAGE, sb.heap_len + stamp::LEN, Allocation::Sparse)?;
    image.reserve(0, roots::TABLE_LEN)?;
    image.reserve(sb.heap_len, stamp::LEN)?;
    image.store(0, &roots)?;
    image.write_back(0, roots::TABLE_LEN);
    Stamp::of_new_file(&sb, names::IMAGE).write(&*image)?;
    image.fence()?;
    let tx = sb.door == Door::Tx as u32;
    let allocation = if tx || sb.is_in_place() { Allocation::Sparse } else { Allocation::Full };
    let log_len = superblock::log_len(&sb);
    let log = create(names::LOG, log_len + stamp::LEN, allocation)?;
    if tx {
        // A lane's space is provided when it is first used.
        log.reserve(0, CUTS_LEN)?;
        log.reserve(log_len, stamp::LEN)?;
    }
    if sb.is_in_place() {
        log.reserve(0, undo::provided_len(&sb))?;
        log.reserve(log_len, stamp::LEN)?;
    }
    Stamp::of_new_file(&sb, names::LOG).write(&*log)?;
    log.fence()?;
    medium.sync_names()?;
    let renamed = medium.rename(names::SUPERBLOCK_NEW, names::SUPERBLOCK);
    // Some network file systems rename, and then report an error.
    if renamed.is_ok() || !medium.exists(names::SUPERBLOCK_NEW)? {
        made.push(names::SUPERBLOCK);
    }
    renamed?;
    medium.sync_names()?;
    Ok(sb)
}

/// Removes those of the files that [`write_new_pool`] makes which have these names, in the opposite order: the mark goes last, when the names before it are durably gone, so
/// that stopping anywhere leaves nothing, or what can be removed again.
fn remove(medium: &dyn Medium, made: &[&str]) -> Result<()> {
    let is_there = |name: &str| Ok::<_, Error>(made.contains(&name) && medium.exists(name)?);
    if is_there(names::SUPERBLOCK)? {
        medium.rename(names::SUPERBLOCK, names::SUPERBLOCK_NEW)?;
        medium.sync_names()?;
    }
    for name in [names::IMAGE, names::LOG] {
        if is_there(name)? {
            medium.remove(name)?;
        }
    }
    medium.sync_names()?;
    if is_there(names::SUPERBLOCK_NEW)? {
        medium.remove(names::SUPERBLOCK_NEW)?;
        medium.sync_names()?;
    }
    Ok(())
}

/// The files that an interrupted creation left, where there is no superblock. Files of a pool's names that it cannot have left are an
/// error: a pool that lost its superblock, or somebody's own.
pub(crate) fn leftovers(medium: &dyn Medium) -> Result<Vec<&'static str>> {
    if medium.exists(ARENA)? {
        let why = format!(
            "an FPTree lies there (file `{ARENA}`), which is opened as that and needs neither recovery nor a checkpointer; choose another \
             directory for a pool"
        );
        return Err(Error::Foreign { pool: medium.location(), why });
    }
    let mut there = Vec::new();
    for name in [names::IMAGE, names::LOG] {
        if medium.exists(name)? {
            there.push(name);
        }
    }
    if medium.exists(names::SUPERBLOCK_NEW)? {
        let ours = match marked(medium)? {
            Mark::Whole { written } => {
                let no_root = |_, bytes: &[u8]| roots::holds_no_root(bytes);
                let no_record = |at: u64, bytes: &[u8]| at < written || bytes.iter().all(|b| *b == 0);
                is_all(medium, names::IMAGE, roots::TABLE_LEN, &no_root)? && is_all(medium, names::LOG, u64::MAX, &no_record)?
            }
            // Nothing else is made before it is durable.
            Mark::Torn => there.is_empty(),
            Mark::Foreign => false,
        };
        if ours {
            there.push(names::SUPERBLOCK_NEW);
            return Ok(there);
        }
        let why =
            format!("`{}` is there, and is not what an interrupted creation leaves; move it away first", names::SUPERBLOCK_NEW);
        return Err(Error::Foreign { pool: medium.location(), why });
    }
    match there[..] {
        [] => Ok(there),
        [only] => {
            let why = format!("`{only}` is there, without a superblock; choose another directory, or move it away");
            Err(Error::Foreign { pool: medium.location(), why })
        }
        _ => {
            let what = "file `superblock` is missing beside `image` and `log`: put back the pool's own, no other fits; \
                        if these are no pool's files, choose another directory";
            Err(Error::Damaged { pool: medium.location(), what: what.into() })
        }
    }
}

enum Mark {
    /// Of a creation that may have written so many bytes at the beginning of the log.
    Whole {
        written: u64,
    },
    Torn,
    Foreign,
}

/// What `superblock.new` is.
fn marked(medium: &dyn Medium) -> Result<Mark> {
    let region = match medium.open(names::SUPERBLOCK_NEW, Access::ReadOnly) {
        Ok(region) if region.len() <= superblock::LEN => region,
        Ok(_) | Err(towa_media::Error::NotRegular { .. }) => return Ok(Mark::Foreign),
        Err(e) => return Err(e.into()),
    };
    let mut bytes = vec![0; region.len() as usize];
    region.read(0, &mut bytes)?;
    bytes.resize(superblock::LEN as usize, 0);
    // Creation writes the second slot, and the first as well if it gets as far as opening the pool and fails there.
    let (mut whole, mut ours, mut written) = (false, true, 0);
    for slot in bytes.chunks_exact(superblock::SLOT as usize) {
        let (record, rest) = slot.split_at(size_of::<Superblock>());
        let record: Superblock = bytemuck::pod_read_unaligned(record);
        if record.is_whole() {
            // The tx door writes a first cut before it is known that creation succeeded, a pool in place the first head of its undo log. They say
            // nothing about the heap.
            let (is_tx, is_in_place) = (record.door == Door::Tx as u32, record.is_in_place());
            whole = true;
            written = match (is_tx, is_in_place) {
                (true, _) => CUTS_LEN,
                (_, true) => undo::HEADS_LEN,
                _ => 0,
            };
        }
        ours &= matches!(record.magic, superblock::MAGIC | [0, 0, 0, 0, 0, 0, 0, 0]) && rest.iter().all(|b| *b == 0);
    }
    Ok(match (ours, whole) {
        (true, true) => Mark::Whole { written },
        (true, false) => Mark::Torn,
        (false, _) => Mark::Foreign,
    })
}

/// Whether all of region `name` but its stamp, up to offset `upto`, is as `wanted` says of pieces of 4096 bytes and where they begin, or
/// it is not there. Holes need not be as wanted.
fn is_all(medium: &dyn Medium, name: &str, upto: u64, wanted: &dyn Fn(u64, &[u8]) -> bool) -> Result<bool> {
    const PIECE: usize = 4096;
    let region = match medium.open(name, Access::ReadOnly) {
        Ok(region) => region,
        Err(towa_media::Error::NotFound { .. }) => return Ok(true),
        Err(towa_media::Error::NotRegular { .. }) => return Ok(false),
        Err(e) => return Err(e.into()),
    };
    let mut buffer = vec![0; 1 << 20];
    let end = upto.min(region.len().saturating_sub(stamp::LEN));
    let mut off = 0;
    // A file can be far longer than what it holds.
    while let Some(data) = region.file().map_or(Some(off), |file| files::next_data(file, off)).filter(|data| *data < end) {
        off = data / PIECE as u64 * PIECE as u64;
        let bytes = &mut buffer[..(end - off).min(1 << 20) as usize];
        region.read(off, bytes)?;
        if !bytes.chunks(PIECE).enumerate().all(|(i, piece)| wanted(off + (i * PIECE) as u64, piece)) {
            return Ok(false);
        }
        off += bytes.len() as u64;
    }
    Ok(true)
}
