//! What a pool says of itself: its superblock and its newest commit record, or its lanes, read while somebody else may own it.
//!
//! What must always hold: nothing is locked, created or written. The owner may write meanwhile; what was torn by that is read
//! again, and one of the two superblock slots is always whole.

use towa_media::{Access, Medium};

use crate::lanes::{Geometry, Live};
use crate::log::commit::{self, Commit};
use crate::superblock::{Door, Superblock, find_superblock, open_file, open_files};
use crate::{Error, Result, names, origin, undo};

/// Times to read a superblock that looks damaged before it is called so.
const TRIES: usize = 5;

/// The facts of a pool at one moment.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Description {
    /// Which door; `None` if it is one that this program does not know.
    pub door: Option<Door>,
    /// Version of its format.
    pub version: u32,
    /// Identity.
    pub uuid: String,
    /// Creation time, seconds since 1970.
    pub created_unix_s: u64,
    /// Times it was opened.
    pub generation: u64,
    /// Whether it was closed cleanly: `false` while it is open, and after a crash.
    pub clean: bool,
    /// Whether the files are a copy that was made while a program had the pool open: no program opens that.
    pub copied_while_open: bool,
    /// Address of the working copy.
    pub base: u64,
    /// Capacity of the heap in bytes.
    pub heap_len: u64,
    /// Capacity of the log in bytes: a redo log's, and of a pool in place an undo log's.
    pub log_len: u64,
    /// Lanes of the redo log (tx only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lanes: Option<u32>,
    /// Whether the image is the working copy.
    pub in_place: bool,
    /// Epoch that the image holds; in place, once what is not durable is undone. Tx: 0, as the next two.
    pub image_epoch: u64,
    /// Newest epoch with a commit record (opening checks whether its frames are whole); in place: the one that the undo log's head says.
    pub newest_epoch: u64,
    /// When that epoch was committed, microseconds since 1970; `None` before the first, and where its record was reused.
    pub newest_commit_unix_us: Option<u64>,
    /// Log bytes between the two; in place: bytes of the blocks of epochs that are not durable.
    pub log_live: u64,
    /// Heap bytes ever used, as of the newest of these epochs.
    pub frontier: u64,
}

/// Describes the pool on `medium`. Does not check more than the superblock and that the other files are there, as long as it says:
/// the rest is [`verify`](crate::verify)'s work.
pub fn describe(medium: &dyn Medium) -> Result<Description> {
    let sb = superblock_beside_owner(medium, None)?;
    let door = Door::from_number(sb.door);
    // What a door that is not known here keeps in which files is not known either.
    let head = if door == Some(Door::Epoch) && sb.is_in_place() { head(medium, &sb)? } else { None };
    let newest = if door == Some(Door::Epoch) && !sb.is_in_place() { newest_commit(medium, &sb)? } else { None };
    let live = if door == Some(Door::Tx) { live_lanes(medium, &sb)? } else { None };
    let (lanes_live, lanes_frontier) = live.unwrap_or((0, 0));
    let undo_live = if head.is_some() { undo_live(medium, &sb)? } else { 0 };
    Ok(Description {
        door,
        version: sb.version,
        uuid: uuid::Uuid::from_bytes(sb.uuid).to_string(),
        created_unix_s: sb.created_unix_s,
        generation: sb.generation,
        clean: sb.clean == 1,
        copied_while_open: door.is_some() && is_copy_of_open(medium, &sb)?,
        base: sb.base,
        heap_len: sb.heap_len,
        log_len: sb.ring_len,
        lanes: (door == Some(Door::Tx)).then(|| Geometry::of(&sb).count as u32),
        in_place: sb.is_in_place(),
        image_epoch: head.map_or(sb.applied_epoch, |head| head.epoch),
        newest_epoch: newest.map_or(head.map_or(0, |head| head.epoch), |c| c.epoch).max(sb.applied_epoch),
        newest_commit_unix_us: newest.map(|c| c.unix_us),
        log_live: newest.map_or(lanes_live + undo_live, |c| c.end.saturating_sub(sb.tail)),
        frontier: newest.map_or(head.map_or(lanes_frontier, |head| head.frontier), |c| c.frontier).max(sb.frontier),
    })
}

fn is_copy_of_open(medium: &dyn Medium, sb: &Superblock) -> Result<bool> {
    let (image, log) = open_files(medium, sb, Access::ReadOnly)?;
    let superblock = open_file(medium, names::SUPERBLOCK, Access::ReadOnly)?;
    Ok(origin::is_copy_of_open(sb, origin::births(&*superblock, &*image, &*log)))
}

/// The superblock, of the door that is `wanted`, which an owner may be writing meanwhile.
pub(crate) fn superblock_beside_owner(medium: &dyn Medium, wanted: Option<Door>) -> Result<Superblock> {
    let mut tries = 1;
    loop {
        match find_superblock(medium, wanted) {
            Err(Error::Damaged { .. }) if tries < TRIES => tries += 1,
            other => return other,
        }
    }
}

/// The newest commit record, if there is one that can be read.
fn newest_commit(medium: &dyn Medium, sb: &Superblock) -> Result<Option<Commit>> {
    let (_, log) = open_files(medium, sb, Access::ReadOnly)?;
    Ok(commit::read_all("", &*log, sb.commit_slots, &sb.uuid).ok().and_then(|mut all| all.pop()))
}

/// The newest head of an undo log, if there is one that can be read.
fn head(medium: &dyn Medium, sb: &Superblock) -> Result<Option<undo::Head>> {
    let (_, log) = open_files(medium, sb, Access::ReadOnly)?;
    Ok(undo::newest_head(&*log, sb)?.ok())
}

/// Bytes of an undo log's blocks that are of later epochs than its head.
fn undo_live(medium: &dyn Medium, sb: &Superblock) -> Result<u64> {
    let (_, log) = open_files(medium, sb, Access::ReadOnly)?;
    let Ok(head) = undo::newest_head(&*log, sb)? else { return Ok(0) };
    undo::bytes_after(&*log, sb, head.epoch)
}

/// Live bytes of lanes, and the frontier as of their newest record, if they can be read. The owner may write meanwhile: they are copied
/// before they are looked at.
fn live_lanes(medium: &dyn Medium, sb: &Superblock) -> Result<Option<(u64, u64)>> {
    let (_, log) = open_files(medium, sb, Access::ReadOnly)?;
    Ok(Live::find(medium, &*log, sb, 0, false).ok().map(|live| (live.len(), live.frontier)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CreateOptions, Heap};

    #[test]
    fn an_open_pool_is_described_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let medium = towa_media::open_dir(dir.path(), None, false).unwrap();
        assert!(matches!(describe(&*medium), Err(Error::Missing { .. })));
        let options = CreateOptions {
            door: Door::Epoch,
            heap_len: 8 << 20,
            log: crate::LogShape::Ring { len: None },
            base: None,
            prefault: false,
        };
        let heap = Heap::create(medium.clone(), &options).unwrap();
        let found = describe(&*medium).unwrap();
        assert_eq!((found.heap_len, found.generation, found.clean), (8 << 20, 1, false));
        assert_eq!((found.image_epoch, found.newest_epoch, found.log_live), (0, 0, 0));
        heap.close().unwrap();
        drop(heap);
        assert!(describe(&*medium).unwrap().clean);
    }

    #[test]
    fn opening_what_is_no_pool_leaves_no_trace() {
        let dir = tempfile::tempdir().unwrap();
        let open = || {
            let medium = towa_media::open_dir(dir.path(), None, false).unwrap();
            Heap::open(medium, &crate::OpenOptions { door: Door::Epoch, eager: false, prefault: false }).unwrap_err()
        };
        assert!(matches!(open(), Error::Missing { .. }));
        std::fs::write(dir.path().join("superblock"), [7; 9000]).unwrap();
        assert!(matches!(open(), Error::Foreign { .. }));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "a lock was left behind");
    }
}
