//! Opening pools: everything is checked, then recovered, then put together.
//!
//! What must always hold: what does not check out is refused before a byte is written.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use towa_media::{Access, Durability, Kind, Lock, Medium, Region};

use crate::alloc::{self, Allocator, CHUNK};
use crate::create::{check_heap_len, check_in_place};
use crate::describe::superblock_beside_owner;
use crate::heap::{Heap, Redo, Store, in_heap};
use crate::image::ImageSpace;
use crate::lanes::{Geometry, Lanes, Live, Replayer};
use crate::log::commit::Commit;
use crate::log::{Identity, Log};
use crate::overlay::Overlay;
use crate::recovery::{self, Chain, Recovery};
use crate::roots::RootTable;
use crate::stamp::{self, Reach, Stamp};
use crate::superblock::{self, Door, Superblock, read_superblock};
use crate::undo::{self, Undo};
use crate::working::{Working, load};
use crate::{Error, Result, names, origin, tables};

/// How to open a pool.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Which door.
    pub door: Door,
    /// Load everything now, instead of as touched.
    pub eager: bool,
    /// Provide the memory of all that is not in use yet now, instead of as touched.
    pub prefault: bool,
}

/// Where a heap's working copy comes from.
pub(crate) enum How<'o> {
    /// It is that of a pool that was created just now; none yet where the heap is in place. `prefault` as in [`OpenOptions`].
    Created { working: Option<Working>, prefault: bool },
    /// From the pool's image.
    Opened(&'o OpenOptions),
    /// The same, where what was read the first time turned out not to be on the device.
    OpenedAgain(&'o OpenOptions),
}

/// A checkpointer in a process of its own writes the image beside the owner, and has this lock for its whole stay.
/// One that outlives its owner ends within this time, if it is let: it looks for its owner after each round.
const ROUND: Duration = Duration::from_secs(20);

/// Who has the lock of the superblock, where no owner of this directory does.
const OTHERS: &str = "the owner of another directory with the same files";

/// Takes the owner's locks of the pool that is on `medium`, or with `reads` a reader's: that of the directory where it is to be had, and that of
/// the superblock, which the owner has for its whole stay, for that of the image goes to a separate checkpointer. The superblock's decides: it
/// takes a user who may open the pool's files, finds the owner of another directory with the same files by hard links, and one on another
/// machine, where the file system keeps locks of directories to one machine.
pub(crate) fn lock(medium: &dyn Medium, reads: bool) -> Result<Box<dyn Lock>> {
    Ok(medium.lock_by(names::SUPERBLOCK, reads, OTHERS)?)
}

/// Takes the lock of the image, for the process that writes it. The lock of the superblock is held: so what can have this one is a checkpointer
/// whose owner is gone, and a reader.
pub(crate) fn lock_image(lock: &dyn Lock, door: Option<Door>) -> Result<()> {
    let (patience, whose) = match door {
        Some(Door::Tx) => (ROUND, "the checkpointer of its former owner"),
        _ => (Duration::ZERO, ""),
    };
    Ok(lock.take(names::IMAGE, patience, whose)?)
}

/// Takes the lock of the superblock that `lock`'s process is making, before it has its name: whoever finds the pool finds it locked. The lock is
/// the file's, and stays with it when it is renamed.
pub(crate) fn lock_new(lock: &dyn Lock) -> Result<()> {
    Ok(lock.take(names::SUPERBLOCK_NEW, Duration::ZERO, OTHERS)?)
}

/// What `open` gives, or `create` where there is no pool. Between the two another process may create it, and remove
/// it again: then once more. `of` gives what a door's error says of the heap.
pub fn open_or_create<T, E>(
    open: impl Fn() -> std::result::Result<T, E>,
    create: impl Fn() -> std::result::Result<T, E>,
    of: impl Fn(&E) -> Option<&Error>,
) -> std::result::Result<T, E> {
    for _ in 0..RACES {
        match open() {
            Err(e) if matches!(of(&e), Some(Error::Missing { .. } | Error::Media(towa_media::Error::NotFound { .. }))) => {}
            other => return other,
        }
        match create() {
            Err(e) if matches!(of(&e), Some(Error::Exists { .. })) => {}
            other => return other,
        }
    }
    open()
}

/// The superblock. Where there is none, what else is there may be a creation under way, of which anything can be
/// seen: then its process has the lock, and this names it; or it has ended, and what is seen under the lock counts.
fn look_before_lock(medium: &dyn Medium, door: Door) -> Result<Superblock> {
    let look = || superblock_beside_owner(medium, Some(door));
    let was_there = medium.exists(names::SUPERBLOCK)?;
    let found = look();
    let is_there = |name: &&str| medium.exists(name).unwrap_or(false);
    if found.is_ok() || was_there || ![names::SUPERBLOCK, names::SUPERBLOCK_NEW, names::IMAGE, names::LOG].iter().any(is_there) {
        return found;
    }
    let _lock = medium.lock_to_read()?;
    look()
}

/// As often it may happen that another process creates the pool or removes it at the wrong moment.
const RACES: u32 = 100;

impl Heap {
    /// Opens the pool on `medium`, recovering it if it was not closed. Refuses, without writing, what does not check out.
    pub fn open(medium: Arc<dyn Medium>, options: &OpenOptions) -> Result<Heap> {
        // Before the lock, which not every file system grants without a trace.
        let sb = look_before_lock(&*medium, options.door)?;
        superblock::open_files(&*medium, &sb, Access::ReadOnly)?;
        let lock: Arc<dyn Lock> = lock(&*medium, false)?.into();
        // What lies there must be a pool of that door before its files are locked.
        read_superblock(&*medium, options.door)?;
        lock_image(&*lock, Some(options.door))?;
        Self::start(medium, lock, Some(options.door), How::Opened(options))
    }

    /// A heap that keeps nothing. `prefault`: as in [`OpenOptions`].
    pub fn volatile(heap_len: u64, prefault: bool) -> Result<Heap> {
        let len = check_heap_len(heap_len)?;
        let working = Working::volatile(len)?;
        working.begin_empty();
        if prefault {
            working.prefault()?;
        }
        Self::assemble(working, len, Recovery::default(), CHUNK, None, "volatile heap".into())
    }

    /// Recovers the pool and puts the heap together. `lock` has the directory, the image and the superblock.
    pub(crate) fn start(medium: Arc<dyn Medium>, lock: Arc<dyn Lock>, door: Option<Door>, how: How<'_>) -> Result<Heap> {
        let began = Instant::now();
        let superblock_region = superblock::open_file(&*medium, names::SUPERBLOCK, Access::ReadWrite)?;
        superblock_region.evict();
        let mut sb = superblock::find_superblock(&*medium, door)?;
        check_in_place(&*medium, &sb)?;
        let (image, log_region) = superblock::open_files(&*medium, &sb, Access::ReadWrite)?;
        evict_unclosed(&sb, &*image, &*log_region)?;
        let files = Files { superblock: &*superblock_region, image: &image, log: &log_region };
        let found = Found::read(&*medium, &files, &sb)?;
        let frontier = found.frontier(&sb);
        // The address is the likeliest thing to be refused: ask for it before anything is written.
        let may_read_again = if let How::Opened(options) = how { Some(options) } else { None };
        let prefault = match &how {
            How::Created { prefault, .. } => *prefault,
            How::Opened(options) | How::OpenedAgain(options) => options.prefault,
        };
        let (working, to_load) = match how {
            // Those that only look have no memory of the image's own, and a working copy like that of any pool.
            _ if sb.is_in_place() && image.bytes().is_some() => (Working::in_place(&*image, &sb)?, false),
            How::Created { working: Some(working), .. } => (working, true),
            How::Created { working: None, .. } => (Working::fresh(&sb)?, true),
            How::Opened(options) | How::OpenedAgain(options) => Working::to_open(options, &*image, &sb, frontier)?,
        };
        // Nothing is left that could be refused: from here on it is written.
        lock.sign();
        // First: a store into a block that a clone shares takes a new one, which a full disk does not have, and where the file is mapped that is
        // SIGBUS. The content stays, and stopping anywhere leaves what was there.
        for region in [&*superblock_region, &*image, &*log_region] {
            region.unshare(0, region.len())?;
        }
        // A ring's space was taken when it was made; a copy need not have it. (A lane's is taken when a thread takes the lane.)
        for region in [&*superblock_region, &*log_region] {
            if sb.door == Door::Epoch as u32 && !sb.is_in_place() && !region.is_provided(region.len()) {
                region.reserve(0, region.len())?;
            }
        }
        // An earlier process may have left names and a superblock that are not durable, though this process sees them. Going on
        // from them it would overwrite the older superblock: first they must be what a power cut leaves.
        medium.sync_names()?;
        superblock::make_durable(&*superblock_region, &sb)?;
        found.make_stamps_durable(&files, &sb)?;
        let upto = frontier.max(found.end_of_words());
        let mut has_holes = false;
        if sb.is_in_place() {
            // What is stored to must have space: a store into a hole of a full file system is SIGBUS.
            let wanted = [(&log_region, undo::provided_len(&sb)), (&image, if prefault { sb.heap_len } else { 0 })];
            for (region, len) in wanted {
                if !region.is_provided(len) {
                    region.reserve(0, len)?;
                }
            }
            has_holes = !image.is_provided(upto);
            if has_holes {
                found.provide_lines(&*image, &sb)?;
            }
        } else if sb.clean == 0 || medium.kind() == Kind::Dax || !image.is_provided(upto) {
            // What was provided beneath the frontier and never written may be gone with the power; and a copy need not have it.
            image.reserve(0, upto)?;
        }
        let was_clean = sb.clean == 1;
        let replayed = found.replay(&*medium, &files, &mut sb);
        if let (Err(Error::Damaged { pool, what }), Some(options)) = (&replayed, may_read_again) {
            // What was read above came from pages that a failed sync had left, and that something had kept in the
            // cache until now. The superblock is as it was: it is an interrupted opening, and the next one counts.
            log::warn!("{pool}: {what}; that was read whole before, and is not on the device: reading again");
            drop(working);
            return Self::start(medium, lock, door, How::OpenedAgain(options));
        }
        let (redo, chain_end, recovered, mut recovery) = replayed?;
        (recovery.clean, recovery.elapsed) = (was_clean, began.elapsed());
        if to_load {
            load(&*image, &working, frontier)?;
        }
        let pool = medium.location();
        let heap_len = sb.heap_len;
        let superblock = Mutex::new(sb);
        let space = Arc::new(ImageSpace {
            image: Arc::clone(&image),
            provided: Mutex::new(frontier),
            may_have_holes: sb.is_in_place(),
            told: Mutex::default(),
        });
        lock.watch(&[names::SUPERBLOCK, names::IMAGE, names::LOG])?;
        let store = Store { medium, image, redo, superblock_region, superblock, chain_end, recovered, space, lock };
        let heap = Self::assemble(working, heap_len, recovery, frontier, Some(store), pool)?;
        if has_holes {
            heap.provide_chunks_in_use()?;
        }
        Ok(heap)
    }

    /// Makes sure that what is in use of an image with holes has memory. What is free need have none: it was given back, or a copy left it
    /// out.
    fn provide_chunks_in_use(&self) -> Result<()> {
        for row in self.allocator.rows_in_use() {
            self.image().reserve(row.start, row.end - row.start)?;
        }
        self.allocator.forget_backing(true);
        Ok(())
    }

    fn assemble(working: Working, len: u64, recovery: Recovery, frontier: u64, store: Option<Store>, pool: String) -> Result<Heap> {
        let base = working.base();
        let in_heap = in_heap(base.as_ptr() as u64, len);
        // SAFETY: the heap's first chunk, mapped by `working`, which lives as long as the table (both in Heap).
        let roots = unsafe { RootTable::new(base, in_heap) }.map_err(|what| Error::Damaged { pool: pool.clone(), what })?;
        let space = store.as_ref().map(|s| Arc::clone(&s.space));
        let provide = Box::new(move |range| space.as_ref().map_or(Ok(()), |s| s.provide_or_say_why(range)));
        // SAFETY: `working` is that mapping and lives as long as the allocator (both in Heap); beside the allocator only users
        // write there, into blocks, and the root table before `CHUNK`.
        let allocator = unsafe { Allocator::new(base, len, CHUNK, frontier, provide) };
        let allocator = allocator.map_err(|damage| Error::Damaged { pool, what: damage.to_string() })?;
        Ok(Heap { allocator, working, len, roots, recovery, store })
    }
}

/// Of a pool that was not closed: has the kernel let go of all that it holds of image and log, before anything of them
/// is read. After a failed sync it shows what the device does not have, and what is written again through those pages
/// is lost at a loss of power though a sync succeeds ([`Region::evict`]). Parts of a file would not do: pages are held
/// in folios of any length, and one is let go as a whole or not at all. The superblock, which says whether the pool
/// was closed, was read anew before.
///
/// What is read from here on is on the device, or was written again since and is dirty; then recovery's fences make it
/// durable, or fail.
pub(crate) fn evict_unclosed(sb: &Superblock, image: &dyn Region, log: &dyn Region) -> Result<()> {
    let is_of_close = |region| Ok::<_, Error>(stamp::newest(region)?.is_some_and(|found| found.stamp == sb.stamp));
    // Closed, and then an opening that got no further than the stamps: its sync may have failed, too.
    if sb.clean == 0 || !is_of_close(image)? || !is_of_close(log)? {
        image.evict();
        log.evict();
    }
    Ok(())
}

/// The files of a pool that is being opened.
struct Files<'f> {
    superblock: &'f dyn Region,
    image: &'f Arc<dyn Region>,
    log: &'f Arc<dyn Region>,
}

/// What the files of a pool say.
struct Found {
    logged: Logged,
    image_stamp: Stamp,
    log_stamp: Stamp,
    births: [u64; 3],
}

/// What the redo log holds that the image does not.
enum Logged {
    Ring { reader: Log, chain: Chain },
    Lanes(Box<Live>),
    Undo(Box<undo::Found>),
}

impl Found {
    /// Reads and checks everything that opening relies on.
    fn read(medium: &dyn Medium, files: &Files<'_>, sb: &Superblock) -> Result<Found> {
        let damaged = |what| Error::Damaged { pool: medium.location(), what };
        let births = origin::births(files.superblock, &**files.image, &**files.log);
        origin::check(medium, sb, births)?;
        let (image_stamp, log_stamp) = stamp::read_both(medium, (&**files.image, &**files.log), sb)?;
        let mut found = Found { logged: Logged::read(medium, files.log, sb)?, image_stamp, log_stamp, births };
        let (least, most) = found.logged.span(sb);
        stamp::check_reach(&image_stamp, sb, least, most).map_err(damaged)?;
        let frontier = found.frontier(sb);
        found.logged.overlay().check(&**files.image, sb, frontier).map_err(damaged)?;
        tables::check(&**files.image, sb, frontier)?.map_err(damaged)?;
        Ok(found)
    }

    /// Provides memory for the lines that are to be undone, and for the root table and the headers of chunks.
    fn provide_lines(&self, image: &dyn Region, sb: &Superblock) -> Result<()> {
        let chunks: BTreeSet<u64> = match &self.logged {
            Logged::Undo(found) => found.lines.rows().flat_map(|row| row.start / CHUNK..row.end.div_ceil(CHUNK)).collect(),
            _ => BTreeSet::new(),
        };
        image.reserve(0, alloc::headers_in_use_end(sb.heap_len, CHUNK, self.frontier(sb)))?;
        chunks.into_iter().try_for_each(|chunk| Ok(image.reserve(chunk * CHUNK, CHUNK.min(image.len() - chunk * CHUNK))?))
    }

    /// The allocator's frontier once the log is replayed.
    fn frontier(&self, sb: &Superblock) -> u64 {
        match &self.logged {
            Logged::Ring { chain, .. } => chain.end(sb).3,
            Logged::Lanes(live) => live.frontier,
            Logged::Undo(found) => found.head.frontier,
        }
    }

    /// Where in the heap its last word ends: never beyond the frontier, if those who wrote it knew what they did. An undo log has lines beyond
    /// the durable epoch's frontier.
    fn end_of_words(&self) -> u64 {
        match &self.logged {
            Logged::Ring { .. } => 0,
            Logged::Undo(found) => found.lines.last_end(),
            Logged::Lanes(live) => live.words_end,
        }
    }

    /// Makes the stamps durable that a process left that did not close the pool, or was killed while it opened it: the next ones overwrite
    /// the older slots. Where recovery fences the log, that of the log is durable then.
    fn make_stamps_durable(&self, files: &Files<'_>, sb: &Superblock) -> Result<()> {
        let may_be_lost = |stamp: &Stamp| sb.clean == 0 || stamp.stamp != sb.stamp;
        if may_be_lost(&self.image_stamp) {
            stamp::write_again(&**files.image, &self.image_stamp)?;
            files.image.fence()?;
        }
        if may_be_lost(&self.log_stamp) {
            stamp::write_again(&**files.log, &self.log_stamp)?;
            if sb.clean == 1 {
                files.log.fence()?;
            }
        }
        Ok(())
    }

    /// Replays the log, and begins a generation under a new stamp. Gives the log to go on with, the checksum that the next epoch names, the
    /// epochs whose log is still live, and what was done.
    fn replay(self, medium: &dyn Medium, files: &Files<'_>, sb: &mut Superblock) -> Result<(Redo, u64, Vec<Commit>, Recovery)> {
        let mut next = Superblock { clean: 0, stamp: stamp::draw(), births: self.births, ..*sb };
        match self.logged {
            Logged::Ring { reader, chain } => {
                // On line media the superblock will say that the image goes as far as the log; on sync media that it goes as far as before.
                let durable = if medium.durability() == Durability::Line { chain.end(sb).0 } else { sb.applied_epoch };
                let reach = (0, durable.max(self.image_stamp.reach));
                if sb.clean == 0 {
                    // What was held in the cache when opening began: what is written into such a page, the stamp too, is lost.
                    files.image.evict();
                }
                stamp::renew_unfenced(&**files.image, (sb.stamp, next.stamp), Some(reach))?;
                if medium.durability() == Durability::Sync {
                    // Before the replay, for whose lines this fence would have to wait.
                    files.image.fence()?;
                }
                let (epoch, chain_end, head, _) = chain.end(sb);
                let lines_replayed = recovery::replay(&**files.log, &reader, &**files.image, &chain, sb)?;
                stamp::renew(&**files.log, (sb.stamp, next.stamp), None)?;
                next.generation = chain.generation(sb) + 1;
                open_generation(medium, files, &chain, sb, next)?;
                let (epochs_replayed, dropped_incomplete) = (chain.commits.len() as u64, chain.dropped_incomplete);
                let recovery = Recovery { epoch, epochs_replayed, lines_replayed, dropped_incomplete, ..Recovery::default() };
                let log = open_log(medium, files.log, sb, sb.generation, head);
                let recovered = if medium.durability() == Durability::Sync { chain.commits } else { Vec::new() };
                Ok((Redo::Ring(log), chain_end, recovered, recovery))
            }
            Logged::Undo(mut found) => {
                let lines_replayed = found.len();
                found.undo(&**files.image, sb)?;
                stamp::renew(&**files.image, (sb.stamp, next.stamp), Some((0, 0)))?;
                stamp::renew(&**files.log, (sb.stamp, next.stamp), None)?;
                // The kill may have come before this head's copy was written. If the write of the next head is then interrupted, only the old
                // copy is left, of the epoch before.
                found.head.write_copy(&**files.log)?;
                // Only now: with this head the entries are nothing.
                let head = found.next_head(sb);
                head.write(&**files.log)?;
                next.generation += 1;
                superblock::update(files.superblock, &mut next)?;
                *sb = next;
                stamp::settle(&**files.image)?;
                let recovery = Recovery { epoch: found.head.epoch, lines_replayed, ..Recovery::default() };
                Ok((Redo::Undo(Undo::new(Arc::clone(files.log), sb, head)?), 0, Vec::new(), recovery))
            }
            Logged::Lanes(live) => {
                live.make_durable(&**files.log, sb)?;
                if sb.clean == 0 {
                    // As in the epoch door's `recovery::replay`.
                    files.log.evict();
                    files.image.evict();
                }
                let mut replayer = Replayer::with_cut(medium, (Arc::clone(files.image), Arc::clone(files.log)), sb, live.cut);
                let lines_replayed = live.replay(&mut replayer)?;
                let reach = (live.cut.generation + 1, 0);
                stamp::renew(&**files.image, (sb.stamp, next.stamp), Some(reach))?;
                // The cut's fence is that of the stamp, too.
                stamp::renew_unfenced(&**files.log, (sb.stamp, next.stamp), None)?;
                replayer.retire(live.frontier)?;
                next.generation += 1;
                superblock::update(files.superblock, &mut next)?;
                *sb = next;
                let lanes = Lanes::new(medium, Arc::clone(files.log), Geometry::of(sb), replayer.generation());
                let recovery = Recovery { lines_replayed, records_replayed: live.records, ..Recovery::default() };
                Ok((Redo::Lanes(lanes), 0, Vec::new(), recovery))
            }
        }
    }
}

impl Logged {
    /// Reads and checks it; of its lines and words those that concern roots and run headers are kept.
    fn read(medium: &dyn Medium, log_region: &Arc<dyn Region>, sb: &Superblock) -> Result<Logged> {
        let keep = alloc::headers_end(sb.heap_len, CHUNK);
        if sb.door == Door::Tx as u32 {
            return Ok(Logged::Lanes(Box::new(Live::find(medium, &**log_region, sb, keep, true)?)));
        }
        if sb.is_in_place() {
            let damaged = |what| Error::Damaged { pool: medium.location(), what };
            let found = undo::Found::read(&**log_region, sb)?.map_err(damaged)?;
            return Ok(Logged::Undo(Box::new(found)));
        }
        let reader = open_log(medium, log_region, sb, 0, sb.tail);
        let chain = recovery::find_chain(medium, &**log_region, &reader, sb, keep)?;
        Ok(Logged::Ring { reader, chain })
    }

    fn overlay(&mut self) -> &mut Overlay {
        match self {
            Logged::Ring { chain, .. } => &mut chain.lines,
            Logged::Lanes(live) => &mut live.overlay,
            Logged::Undo(found) => &mut found.lines,
        }
    }

    /// How far the image goes: at the least, and at most.
    fn span(&self, sb: &Superblock) -> (Reach, Reach) {
        match self {
            Logged::Ring { chain, .. } => chain.span(sb),
            Logged::Lanes(live) => live.span(),
            Logged::Undo(_) => ((0, 0), (0, 0)),
        }
    }
}

fn open_log(medium: &dyn Medium, region: &Arc<dyn Region>, sb: &Superblock, generation: u64, head: u64) -> Log {
    let identity = Identity { uuid: sb.uuid, generation };
    Log::new(medium, Arc::clone(region), identity, sb.commit_slots, sb.ring_len, (sb.tail, head))
}

/// Step 5 of recovery: makes the replayed image durable (line media) and records the new generation, in one superblock update.
fn open_generation(medium: &dyn Medium, files: &Files<'_>, chain: &Chain, sb: &mut Superblock, mut next: Superblock) -> Result<()> {
    if medium.durability() == Durability::Line || !chain.commits.is_empty() {
        // Line media: the image's new stamp, too. Sync media: a working copy that maps the image must not fall back to older content
        // when a failed write-back lets go of its pages. The log stays live until the persister cuts it.
        files.image.fence()?;
    }
    if medium.durability() == Durability::Line {
        (next.applied_epoch, next.anchor, next.tail, next.frontier) = chain.end(sb);
    }
    superblock::update(files.superblock, &mut next)?;
    *sb = next;
    Ok(())
}
