//! The superblock: what a pool is, and where its live log begins.
//!
//! ```text
//!   file `superblock`:  | slot 0 (4096 bytes) | slot 1 (4096 bytes) |      a record is 256 bytes at the start of a slot
//! ```
//!
//! Update: write the slot that does not hold the newest record, fence. Stopping before the fence leaves the other slot untouched
//! and valid; a torn slot fails its checksum. So one valid slot is always there, and the one with the greater `seq` wins.
//! Should the newest slot be damaged later, the older one leads to an older log position: recovery then either replays more
//! than necessary (harmless) or finds that log overwritten and refuses (never a silent step back).

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use towa_media::{Access, Medium, Region};

use crate::alloc::CHUNK;
use crate::checksum::checksum;
use crate::lanes::{self, LANE_LEN_MIN, LANES_MAX};
use crate::log::{Log, RING_MIN};
use crate::{Error, Result, create, names, stamp, undo};

/// First bytes of every superblock slot.
pub const MAGIC: [u8; 8] = *b"TOWAPOOL";
/// The newest version of the pool format that is read here: what pools in place have. Programs that know version 1 alone refuse it as newer.
pub const VERSION: u32 = 2;
/// The version of all other pools.
pub const VERSION_WITH_COPY: u32 = 1;
/// Bytes between slots.
pub const SLOT: u64 = 4096;
/// Length of the file.
pub const LEN: u64 = 2 * SLOT;
/// Longest heap.
pub(crate) const HEAP_MAX: u64 = 1 << 40;
/// Longest ring.
pub(crate) const RING_MAX: u64 = 1 << 40;
/// Counters and log positions are below: none comes near, and sums of two do not overflow. Each opening takes some of them further, so
/// one just below would open once and never again. Hence no power of two: a damaged counter is likelier to be all ones than any other.
pub(crate) const COUNTERS_END: u64 = (1 << 62) - (1 << 32);

/// Which door a pool belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[repr(u32)]
pub enum Door {
    /// Epoch checkpointing.
    Epoch = 1,
    /// Durable transactions.
    Tx = 2,
}

impl Door {
    /// The door with this number.
    pub fn from_number(n: u32) -> Option<Door> {
        match n {
            1 => Some(Door::Epoch),
            2 => Some(Door::Tx),
            _ => None,
        }
    }

    /// Its name, as in the documentation.
    pub fn name(self) -> &'static str {
        match self {
            Door::Epoch => "epoch",
            Door::Tx => "tx",
        }
    }
}

/// One superblock record, as stored (little endian).
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Superblock {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`] in place, else [`VERSION_WITH_COPY`].
    pub version: u32,
    /// [`Door`] as a number.
    pub door: u32,
    /// Identity of the pool, in every commit record too.
    pub uuid: [u8; 16],
    /// Grows by one with each update; the greater wins.
    pub seq: u64,
    /// Grows by one with each open.
    pub generation: u64,
    /// Address the working copy is mapped at.
    pub base: u64,
    /// Bytes of the heap and of file `image`.
    pub heap_len: u64,
    /// Bytes of the ring in file `log`, after the commit slots; tx: of all lanes, after the cut slots; in place: of blocks, after the heads.
    pub ring_len: u64,
    /// Commit slots at the start of file `log`; tx: lanes; in place: 0.
    pub commit_slots: u32,
    /// Bytes of an allocator chunk.
    pub chunk_len: u32,
    /// 1 after a clean close, 0 while open.
    pub clean: u32,
    /// 1: the image is the working copy, and the log is an undo log (`undo`); else 0.
    pub in_place: u32,
    /// The image holds every epoch up to this one, durably; in place: up to this one when it was last closed. This and the next three are of the epoch door: where the log of the tx door
    /// goes on is in its cut, and these stay as they were at creation.
    pub applied_epoch: u64,
    /// Checksum of that epoch's commit record: what the next one must name as its predecessor.
    pub anchor: u64,
    /// Position in the log where the epoch after it begins.
    pub tail: u64,
    /// Allocator frontier at that epoch's end.
    pub frontier: u64,
    /// Creation time, seconds since 1970.
    pub created_unix_s: u64,
    /// The stamp of this opening or, after a clean close, of that: `image` and `log` have it too (`stamp.rs`).
    pub stamp: u64,
    /// While the pool is open: when its files `superblock`, `image` and `log` were made, as [`towa_media::Region::birth`] tells; 0 where it
    /// does not.
    pub births: [u64; 3],
    /// After a clean close: checksum of the image's root table and run headers.
    pub tables: u64,
    /// Zero.
    pub reserved1: [u64; 10],
    /// Checksum of all bytes before.
    pub checksum: u64,
}

const _: () = assert!(size_of::<Superblock>() == 256);

impl Superblock {
    /// Whether the image is the working copy.
    pub(crate) fn is_in_place(&self) -> bool {
        self.in_place == 1
    }

    fn sum(&self) -> u64 {
        checksum(u64::from_le_bytes(MAGIC), &bytemuck::bytes_of(self)[..248])
    }

    /// Gives it the checksum that fits its fields.
    pub fn seal(&mut self) {
        self.checksum = self.sum();
    }

    /// Whether it is a record, and undamaged.
    pub(crate) fn is_whole(&self) -> bool {
        self.magic == MAGIC && self.checksum == self.sum()
    }

    fn slot(&self) -> u64 {
        (self.seq % 2) * SLOT
    }
}

/// Writes `sb` with the next `seq` over the older slot and makes it durable.
pub fn update(region: &dyn Region, sb: &mut Superblock) -> Result<()> {
    let mut next = *sb;
    next.seq += 1;
    next.seal();
    region.store(next.slot(), bytemuck::bytes_of(&next))?;
    region.write_back(next.slot(), size_of::<Superblock>() as u64);
    region.fence()?;
    *sb = next;
    Ok(())
}

/// Makes the record that was read durable: a process that was killed, or whose sync failed, may have left it where only readers
/// see it. The next [`update`] writes over the other slot, which holds the record that a power cut would bring back until then.
pub(crate) fn make_durable(region: &dyn Region, sb: &Superblock) -> Result<()> {
    region.rewrite(sb.slot(), bytemuck::bytes_of(sb))?;
    Ok(region.fence()?)
}

/// The newest valid record.
pub fn read(medium: &dyn Medium, region: &dyn Region) -> Result<Superblock> {
    let pool = medium.location();
    if region.len() < LEN {
        let what = format!("superblock is truncated to {} of {LEN} bytes", region.len());
        return Err(Error::Damaged { pool, what });
    }
    let mut slots = [Superblock::zeroed(); 2];
    for (i, slot) in slots.iter_mut().enumerate() {
        region.read(i as u64 * SLOT, bytemuck::bytes_of_mut(slot))?;
    }
    if let Some(newest) = slots.iter().filter(|s| s.is_whole()).max_by_key(|s| s.seq) {
        if newest.version > VERSION {
            return Err(Error::Newer { pool, found: newest.version, known: VERSION });
        }
        return Ok(*newest);
    }
    if let Some(s) = slots.iter().find(|s| s.magic == MAGIC) {
        // A newer format may checksum differently: its version is worth more than our verdict on its checksum.
        if s.version > VERSION {
            return Err(Error::Newer { pool, found: s.version, known: VERSION });
        }
        return Err(Error::Damaged { pool, what: "no superblock slot has a valid checksum".into() });
    }
    Err(Error::Foreign { pool, why: "its superblock does not begin with TOWAPOOL".into() })
}

/// The version of a pool that is `in_place`, or is not.
pub(crate) fn version_of(in_place: bool) -> u32 {
    if in_place { VERSION } else { VERSION_WITH_COPY }
}

/// Checks the fields against each other, so that nothing later can be led astray by them.
fn check_fields(medium: &dyn Medium, sb: &Superblock) -> Result<()> {
    let sane = sb.version == version_of(sb.is_in_place())
        && u64::from(sb.chunk_len) == CHUNK
        && sb.heap_len.is_multiple_of(CHUNK)
        && (2 * CHUNK..=HEAP_MAX).contains(&sb.heap_len)
        && sb.base.is_multiple_of(towa_media::PAGE as u64)
        && sb.base != 0
        && sb.base.checked_add(sb.heap_len).is_some()
        && sb.in_place <= 1
        && log_is_sane(sb)
        && sb.frontier.is_multiple_of(CHUNK)
        && (CHUNK..=sb.heap_len).contains(&sb.frontier)
        && sb.tail.is_multiple_of(towa_media::LINE as u64)
        && [sb.tail, sb.applied_epoch, sb.generation, sb.seq].iter().all(|n| *n < COUNTERS_END);
    let what = "superblock fields contradict each other".into();
    if sane { Ok(()) } else { Err(Error::Damaged { pool: medium.location(), what }) }
}

/// Whether the log can be as long, and have as many parts, as the superblock says.
fn log_is_sane(sb: &Superblock) -> bool {
    if sb.door == Door::Tx as u32 {
        let lanes = u64::from(sb.commit_slots);
        (1..=u64::from(LANES_MAX)).contains(&lanes)
            && sb.ring_len.is_multiple_of(lanes * 4096)
            && (LANE_LEN_MIN..=RING_MAX / lanes).contains(&(sb.ring_len / lanes))
            && (sb.applied_epoch, sb.tail, sb.frontier, sb.in_place) == (0, 0, CHUNK, 0)
    } else if sb.is_in_place() {
        undo::is_log_len(sb.ring_len) && sb.ring_len <= RING_MAX && (sb.commit_slots, sb.tail) == (0, 0)
    } else {
        sb.ring_len.is_multiple_of(4096) && (RING_MIN..=RING_MAX).contains(&sb.ring_len) && (4..=1 << 20).contains(&sb.commit_slots)
    }
}

/// Bytes of file `log`, without its stamp.
pub(crate) fn log_len(sb: &Superblock) -> u64 {
    match Door::from_number(sb.door) {
        Some(Door::Tx) => lanes::Geometry::file_len(sb.ring_len),
        Some(Door::Epoch) if sb.is_in_place() => undo::file_len(sb),
        _ => Log::file_len(sb.ring_len, sb.commit_slots),
    }
}

/// Refuses a pool of another door.
fn check_door(medium: &dyn Medium, number: u32, wanted: Door) -> Result<()> {
    if number == wanted as u32 {
        return Ok(());
    }
    let found = Door::from_number(number).map_or_else(|| format!("unknown number {number}"), |d| d.name().into());
    Err(Error::WrongDoor { pool: medium.location(), found, wanted: wanted.name().into() })
}

/// Opens and checks the superblock; [`Error::Missing`] where there is none.
pub(crate) fn read_superblock(medium: &dyn Medium, door: Door) -> Result<Superblock> {
    find_superblock(medium, Some(door))
}

/// The newest superblock record, of the door that is `wanted` or of whatever door (fields of one that is not known here are not looked at); [`Error::Missing`]
/// where there is none.
pub(crate) fn find_superblock(medium: &dyn Medium, wanted: Option<Door>) -> Result<Superblock> {
    if !medium.exists(names::SUPERBLOCK)? {
        let hint = if create::leftovers(medium)?.is_empty() {
            "; create one first"
        } else {
            ": its creation was interrupted before anything was stored; create it again"
        };
        return Err(Error::Missing { pool: medium.location(), hint });
    }
    let region = open_file(medium, names::SUPERBLOCK, Access::ReadOnly)?;
    let sb = read(medium, &*region)?;
    // First: what the fields may be depends on the door.
    wanted.map_or(Ok(()), |wanted| check_door(medium, sb.door, wanted))?;
    if Door::from_number(sb.door).is_some() {
        check_fields(medium, &sb)?;
    }
    Ok(sb)
}

/// Opens a file of the pool. That there is none, or something else of its name, is damage: the superblock is there.
pub(crate) fn open_file(medium: &dyn Medium, name: &str, access: Access) -> Result<Arc<dyn Region>> {
    let damaged = |what: String| Error::Damaged { pool: medium.location(), what };
    medium.open(name, access).map_err(|e| match e {
        towa_media::Error::NotFound { .. } => damaged(format!("file `{name}` is missing")),
        towa_media::Error::NotRegular { .. } => damaged(format!("`{name}` is not a regular file")),
        other => other.into(),
    })
}

/// Opens `image` and `log`, which must be as long as the superblock says.
pub(crate) fn open_files(medium: &dyn Medium, sb: &Superblock, access: Access) -> Result<(Arc<dyn Region>, Arc<dyn Region>)> {
    let open = |name, wanted: u64| {
        let region = open_file(medium, name, access)?;
        let what = format!("file `{name}` has {} bytes, not {wanted}", region.len());
        if region.len() == wanted { Ok(region) } else { Err(Error::Damaged { pool: medium.location(), what }) }
    };
    Ok((open(names::IMAGE, sb.heap_len + stamp::LEN)?, open(names::LOG, log_len(sb) + stamp::LEN)?))
}
