//! Offline verification: every structure and checksum of a pool, without writing a byte.

use std::sync::Arc;

use towa_media::{Access, Medium, Region};

use crate::alloc::CHUNK;
use crate::lanes::Live;
use crate::log::{Identity, Log};
use crate::open::{evict_unclosed, lock_image};
use crate::overlay::Overlay;
use crate::stamp::{self, Reach};
use crate::superblock::{self, Door, Superblock, read_superblock};
use crate::{Error, Result, alloc, names, origin, recovery, tables, undo};

/// What verification found in a sound pool.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct VerifyReport {
    /// Identity of the pool.
    pub uuid: String,
    /// Times it was opened.
    pub generation: u64,
    /// Newest committed epoch; of tx pools 0.
    pub epoch: u64,
    /// Epoch the image alone holds.
    pub image_epoch: u64,
    /// Whether it was closed cleanly.
    pub clean: bool,
    /// Whether the image is the working copy.
    pub in_place: bool,
    /// Epochs and lines that opening would replay; in place: no epochs, and lines that it would undo.
    pub epochs_to_replay: u64,
    /// See `epochs_to_replay`.
    pub lines_to_replay: u64,
    /// Records and words in them that opening would replay (tx only), and lanes that they are in.
    pub records_to_replay: u64,
    /// See `records_to_replay`.
    pub words_to_replay: u64,
    /// See `records_to_replay`.
    pub lanes_in_use: u64,
    /// Whether the log ends in an epoch that was never acknowledged and would be dropped.
    pub incomplete_epoch: bool,
    /// Capacity in bytes.
    pub heap_len: u64,
    /// Address of the working copy.
    pub base: u64,
    /// Bytes ever used by the allocator.
    pub frontier: u64,
    /// Live blocks and their bytes.
    pub live_blocks: u64,
    /// See `live_blocks`.
    pub live_bytes: u64,
    /// Names of the roots.
    pub roots: Vec<String>,
}

/// What the log of a sound pool holds.
struct Logged {
    /// What it says of itself.
    report: VerifyReport,
    /// What it lays over the image.
    lines: Overlay,
    frontier: u64,
    /// How far the image goes at the least, and at most.
    span: (Reach, Reach),
}

/// Checks the pool on `medium` as recovery would leave it: superblock, stamps, log chain and frames (tx: lanes and
/// records), roots, allocator. `progress` is called
/// with (bytes checked, bytes to check). The first thing wrong is the error.
pub fn verify(medium: &dyn Medium, door: Door, progress: &mut dyn FnMut(u64, u64)) -> Result<VerifyReport> {
    let lock = crate::open::lock(medium, true)?;
    read_superblock(medium, door)?;
    if medium.exists(names::IMAGE)? {
        lock_image(&*lock, Some(door))?;
    }
    let damaged = |what: String| Error::Damaged { pool: medium.location(), what };
    let superblock_region = superblock::open_file(medium, names::SUPERBLOCK, Access::ReadOnly)?;
    // As opening does: else the verdict were about what a failed sync left in the kernel's cache, or about a mixture.
    superblock_region.evict();
    let sb = read_superblock(medium, door)?;
    let (image, log_region) = superblock::open_files(medium, &sb, Access::ReadOnly)?;
    evict_unclosed(&sb, &*image, &*log_region)?;
    origin::check(medium, &sb, origin::births(&*superblock_region, &*image, &*log_region))?;
    let (image_stamp, _) = stamp::read_both(medium, (&*image, &*log_region), &sb)?;
    let Logged { report, lines, frontier, span: (least, most) } = match door {
        Door::Epoch if sb.is_in_place() => check_undo(medium, &*log_region, &sb)?,
        Door::Epoch => check_ring(medium, log_region, &sb)?,
        Door::Tx => check_lanes(medium, &*log_region, &sb)?,
    };
    stamp::check_reach(&image_stamp, &sb, least, most).map_err(damaged)?;
    let names = lines.check(&*image, &sb, frontier).map_err(damaged)?;
    tables::check(&*image, &sb, frontier)?.map_err(damaged)?;
    let mut read = |off: u64, into: &mut [u8]| {
        progress(off.min(frontier), frontier);
        lines.read(&*image, off, into)
    };
    let blocks = alloc::check(&mut read, sb.heap_len, CHUNK, frontier).map_err(damaged)?;
    if let Some(first) = blocks.damage.first() {
        return Err(damaged(format!("{first} (one of {} such places)", blocks.damage_count)));
    }
    Ok(VerifyReport {
        uuid: uuid::Uuid::from_bytes(sb.uuid).to_string(),
        generation: sb.generation,
        in_place: sb.is_in_place(),
        // In place it holds that of the log's head, once the lines of later ones are undone.
        image_epoch: if sb.is_in_place() { report.epoch } else { sb.applied_epoch },
        clean: sb.clean == 1,
        heap_len: sb.heap_len,
        base: sb.base,
        frontier,
        live_blocks: blocks.blocks_live,
        live_bytes: blocks.bytes_live,
        roots: names,
        ..report
    })
}

fn check_ring(medium: &dyn Medium, log_region: Arc<dyn Region>, sb: &Superblock) -> Result<Logged> {
    let identity = Identity { uuid: sb.uuid, generation: 0 };
    let log = Log::new(medium, log_region.clone(), identity, sb.commit_slots, sb.ring_len, (sb.tail, sb.tail));
    let chain = recovery::find_chain(medium, &*log_region, &log, sb, sb.heap_len)?;
    let (epoch, _, _, frontier) = chain.end(sb);
    let report = VerifyReport {
        epoch,
        epochs_to_replay: chain.commits.len() as u64,
        lines_to_replay: chain.commits.iter().map(|c| c.lines).sum(),
        incomplete_epoch: chain.dropped_incomplete,
        ..VerifyReport::default()
    };
    Ok(Logged { report, span: chain.span(sb), lines: chain.lines, frontier })
}

fn check_undo(medium: &dyn Medium, log: &dyn Region, sb: &Superblock) -> Result<Logged> {
    let found = undo::Found::read(log, sb)?.map_err(|what| Error::Damaged { pool: medium.location(), what })?;
    let report = VerifyReport { epoch: found.head.epoch, lines_to_replay: found.len(), ..VerifyReport::default() };
    let none = (0, 0);
    Ok(Logged { report, span: (none, none), lines: found.lines, frontier: found.head.frontier })
}

fn check_lanes(medium: &dyn Medium, log: &dyn Region, sb: &Superblock) -> Result<Logged> {
    let live = Live::find(medium, log, sb, sb.heap_len, true)?;
    let report = VerifyReport {
        lines_to_replay: live.overlay.len(),
        records_to_replay: live.records,
        words_to_replay: live.words,
        lanes_in_use: live.lanes_in_use(),
        ..VerifyReport::default()
    };
    Ok(Logged { report, span: live.span(), lines: live.overlay, frontier: live.frontier })
}
