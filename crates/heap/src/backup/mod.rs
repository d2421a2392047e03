//! Backup: a copy of a pool as it is at one moment, made while a program goes on working in it.
//!
//! ```text
//!   source    image  ──────────── copied, piece by piece (or cloned at once) ────────────►  image    copy
//!             log    ── followed: each epoch or record is read when it is committed ──► lines ──► image
//!                                                                      an empty log, a superblock that says "closed"
//! ```
//!
//! The image changes while it is copied, so its copy alone is of no moment. But every byte that is written into an
//! image is in the redo log before: it is part of a committed epoch, or of a durable record. The backup reads the
//! superblock (or the cut) first, and follows the log from there on for as long as it copies. When the image is
//! copied, it reads the log once more. Now it has everything that was written into the image since the superblock was
//! read, for all of that was in the log by then. Laid over the copy, in the order of the log, this gives the state at
//! the end of what was read: where an older version of a line was copied, or one half of it, the log has the newer
//! one.
//!
//! A pool in place has an undo log, which is followed in another way (`undo.rs`).
//!
//! The owner knows nothing of this and waits for nothing. What must always hold:
//! 1. each epoch and each record is read whole, with its checksum, or the attempt is given up and begun again: the
//!    owner may overwrite its log before it was read;
//! 2. the pool was not reopened during an attempt: its stamp is the same before and after;
//! 3. the superblock of the copy is written last, when all else is durable. Until then the files are no pool.

mod lanes;
mod line_set;
mod ring;
mod undo;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use towa_media::{Access, Allocation, Medium, Region, files};

use crate::alloc::{self, CHUNK};
use crate::open::lock_image;
use crate::overlay::Overlay;
use crate::stamp::{self, Reach, Stamp};
use crate::superblock::{self, Door, Superblock};
use crate::{Error, Result, VerifyReport, create, describe, names, origin, tables, verify};

/// Attempts, and time, before the log is called too fast.
const TRIES: usize = 3;
/// See `TRIES`.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of the image that are copied at a time.
const PIECE: u64 = 1 << 20;
/// Bytes of the log that are kept in memory before those that can be written are.
const KEPT: usize = 16 << 20;
/// Bytes of the log that are kept in memory at most: the copy cannot be written as fast as the log.
const KEPT_MAX: usize = 2 << 30;

/// What a backup did.
#[derive(Clone, Debug, serde::Serialize)]
pub struct BackupReport {
    /// Whether a program had the pool open.
    pub was_open: bool,
    /// Whether the file system shares the image's bytes with the pool's (a reflink) until either changes.
    pub cloned: bool,
    /// Attempts that it took: more than one where the log was overwritten, or the pool opened or closed, during one.
    pub attempts: usize,
    /// What the copy is, which was verified.
    pub copy: VerifyReport,
}

/// Follows a redo log that its owner writes.
trait Follow: Send {
    /// Reads what was added. `false`: something was overwritten before it was read.
    fn poll(&mut self) -> Result<bool>;
    /// Reads everything that was written into the image before this call, and what that depends on; `copy` is complete but for that, and may
    /// be written. `false` as above.
    fn finish(&mut self, copy: &dyn Region) -> Result<bool>;
    /// Bytes that were read and not [taken](Self::take).
    fn kept(&self) -> usize;
    /// What was read and may be written: nothing that is read later comes before it.
    fn take(&mut self) -> Result<Box<dyn Laid>>;
    /// How long the log may be left alone: much less than its owner takes to write all over it.
    fn pause(&self) -> Duration;
    /// The allocator's frontier as of what was read.
    fn frontier(&self) -> u64;
    /// The log of the copy, which is empty, in `log`, and its superblock's fields in `sb`. Gives how far the image
    /// goes.
    fn write_log(&self, log: &dyn Region, sb: &mut Superblock) -> Result<Reach>;
}

/// A part of a log that was read, in its order.
trait Laid {
    /// Writes what lies before offset `upto` of the heap over `copy`, and keeps the rest in `later`, which holds
    /// older parts of the log.
    fn lay(self: Box<Self>, copy: &dyn Region, upto: u64, later: &mut Overlay) -> Result<()>;
}

/// What the copying and the following share. What the copying asks for with every piece it finds without the lock, which the following
/// holds for most of the time where there is much to read.
struct Shared<'f> {
    follow: Mutex<Box<dyn Follow + 'f>>,
    /// Whether something was not read in time.
    late: AtomicBool,
    stop: AtomicBool,
    /// The allocator's frontier, and the bytes that are kept, as of the last look.
    frontier: AtomicU64,
    kept: AtomicUsize,
}

impl<'f> Shared<'f> {
    fn of(follow: Box<dyn Follow + 'f>) -> Shared<'f> {
        let frontier = AtomicU64::new(follow.frontier());
        Shared {
            follow: Mutex::new(follow),
            late: AtomicBool::default(),
            stop: AtomicBool::default(),
            frontier,
            kept: AtomicUsize::new(0),
        }
    }

    /// Looks at the log. How long it may be left alone now; `None` if something was not read in time.
    fn poll(&self) -> Result<Option<Duration>> {
        let mut follow = self.follow.lock();
        let in_time = follow.poll()? && follow.kept() < KEPT_MAX;
        self.frontier.store(follow.frontier(), Relaxed);
        self.kept.store(follow.kept(), Relaxed);
        self.late.store(!in_time, Relaxed);
        Ok(in_time.then(|| follow.pause()))
    }
}

/// Copies the pool on `from`, open or not, to `to`, an empty medium. `progress` is called with (bytes done, bytes to
/// do), once for the copying and once for the check of the copy. The files on `to` are a pool when this returns;
/// after an error they are not, and are to be removed.
pub fn backup(from: &dyn Medium, to: &dyn Medium, progress: &mut dyn FnMut(u64, u64)) -> Result<BackupReport> {
    let began = Instant::now();
    for attempts in 1.. {
        // With this lock a closed pool stays closed, so the files do not change.
        let lock = match crate::open::lock(from, true) {
            Ok(lock) => {
                // A checkpointer whose program died may be in the middle of a round.
                lock_image(&*lock, Door::from_number(describe::superblock_beside_owner(from, None)?.door))?;
                Some(lock)
            }
            Err(Error::Media(towa_media::Error::Busy { .. })) => None,
            Err(e) => return Err(e),
        };
        if let Some(cloned) = attempt(from, to, lock.is_some(), progress)? {
            let door = Door::from_number(describe::superblock_beside_owner(to, None)?.door).unwrap_or(Door::Epoch);
            let copy = verify(to, door, progress)?;
            return Ok(BackupReport { was_open: lock.is_none(), cloned, attempts, copy });
        }
        for name in [names::IMAGE, names::LOG] {
            if to.exists(name)? {
                to.remove(name)?;
            }
        }
        if attempts >= TRIES && began.elapsed() > PATIENCE {
            break;
        }
    }
    let what = "the program writes its redo log faster than the backup reads it; try again at a quieter moment, or copy the pool when it \
                is closed";
    Err(Error::Backup { pool: from.location(), what: what.into() })
}

/// One attempt; `None`: it did not get everything. Gives whether the image was cloned.
fn attempt(from: &dyn Medium, to: &dyn Medium, is_still: bool, progress: &mut dyn FnMut(u64, u64)) -> Result<Option<bool>> {
    let sb = describe::superblock_beside_owner(from, None)?;
    let Some(door) = Door::from_number(sb.door) else {
        let what = format!("a pool of a door that this program does not know ({}); use a newer Towa", sb.door);
        return Err(Error::Backup { pool: from.location(), what });
    };
    let (image, log) = superblock::open_files(from, &sb, Access::ReadOnly)?;
    let superblock_region = superblock::open_file(from, names::SUPERBLOCK, Access::ReadOnly)?;
    origin::check(from, &sb, origin::births(&*superblock_region, &*image, &*log))?;
    if is_still {
        verify(from, door, &mut |_, _| ())?;
    }
    let follow: Box<dyn Follow + '_> = match door {
        Door::Epoch if sb.is_in_place() => Box::new(undo::UndoFollower::of(from.location(), &*image, &*log, &sb)?),
        Door::Epoch => Box::new(ring::Ring::of(from, &log, &sb, is_still)),
        Door::Tx => match lanes::LanesFollower::of(from, &*log, &sb)? {
            Some(lanes) => Box::new(lanes),
            None => return Ok(None),
        },
    };
    let copy = to.create(names::IMAGE, image.len(), Allocation::Sparse)?;
    let shared = Shared::of(follow);
    let mut later = Overlay::new(sb.heap_len);
    let cloned = std::thread::scope(|scope| {
        let following = scope.spawn(|| keep_following(&shared));
        let copied = copy_image(&*image, &*copy, &sb, &shared, &mut later, progress);
        shared.stop.store(true, Relaxed);
        following.join().expect("following does not panic")?;
        copied
    })?;
    let (mut follow, is_late) = (shared.follow.into_inner(), shared.late.into_inner());
    let in_time = !is_late && follow.finish(&*copy)?;
    // The log was that of one opening: a new one has another stamp, and so has a closed pool.
    let is_same = describe::superblock_beside_owner(from, None)?.stamp == sb.stamp;
    if !in_time || !is_same {
        log::debug!("{}: attempt given up; all was read: {in_time}, the pool stayed open: {is_same}", from.location());
        return Ok(None);
    }
    follow.take()?.lay(&*copy, sb.heap_len, &mut later)?;
    finish_copy(to, &*copy, sb, &*follow)?;
    Ok(Some(cloned))
}

/// Looks at the log now and then, until told to stop.
fn keep_following(shared: &Shared<'_>) -> Result<()> {
    while !shared.stop.load(Relaxed)
        && let Some(pause) = shared.poll()?
    {
        std::thread::sleep(pause);
    }
    Ok(())
}

/// Copies the image up to the frontier, which may rise on the way. Gives whether the file system cloned it.
fn copy_image(
    image: &dyn Region,
    copy: &dyn Region,
    sb: &Superblock,
    shared: &Shared<'_>,
    later: &mut Overlay,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<bool> {
    // Each byte of a clone that the owner writes next takes new space, which it had provided: so only where there is plenty.
    if let (Some(from), Some(to)) = (image.file(), copy.file())
        && files::has_room_for_a_clone(from)
        && files::clone_whole(from, to).is_ok()
    {
        return Ok(true);
    }
    let headers = alloc::headers_end(sb.heap_len, CHUNK);
    let mut bytes = vec![0; PIECE as usize];
    let mut off = 0;
    loop {
        let end = shared.frontier.load(Relaxed).max(headers).min(sb.heap_len);
        if off >= end || shared.late.load(Relaxed) {
            return Ok(false);
        }
        progress(off, end);
        let piece = &mut bytes[..(end - off).min(PIECE) as usize];
        image.read(off, piece)?;
        let blocks = (off..).step_by(64 << 10).zip(piece.chunks(64 << 10));
        for (at, block) in blocks.filter(|(_, block)| block.iter().any(|byte| *byte != 0)) {
            copy.stream(at, block)?;
        }
        off += piece.len() as u64;
        if shared.kept.load(Relaxed) > KEPT {
            let read = {
                let mut follow = shared.follow.lock();
                shared.kept.store(0, Relaxed);
                follow.take()?
            };
            read.lay(copy, off, later)?;
        }
    }
}

/// Makes the copied image part of a pool that was closed cleanly. Stopping anywhere before the superblock has its
/// name leaves no pool.
fn finish_copy(to: &dyn Medium, image: &dyn Region, source: Superblock, follow: &dyn Follow) -> Result<()> {
    let mut sb = Superblock { clean: 1, stamp: stamp::draw(), births: [0; 3], ..source };
    if sb.is_in_place() {
        // The copy may go to any medium.
        create::give_ring(&mut sb);
    }
    let frontier = follow.frontier();
    image.reserve(0, frontier.max(alloc::headers_end(sb.heap_len, CHUNK)).min(sb.heap_len))?;
    image.reserve(sb.heap_len, stamp::LEN)?;
    let log_len = superblock::log_len(&sb);
    let is_tx = sb.door == Door::Tx as u32;
    let log = to.create(names::LOG, log_len + stamp::LEN, if is_tx { Allocation::Sparse } else { Allocation::Full })?;
    log.reserve(log_len, stamp::LEN)?;
    let reach = follow.write_log(&*log, &mut sb)?;
    // Twice: a cloned image has stamps of its own in both slots.
    let mut stamps = [Stamp::of_new_file(&sb, names::IMAGE).reaching(reach), Stamp::of_new_file(&sb, names::LOG)];
    for _ in 0..2 {
        stamps[0].write(image)?;
        stamps[1].write(&*log)?;
    }
    sb.tables = tables::sum(image, &sb, frontier)?;
    image.fence()?;
    log.fence()?;
    to.sync_names()?;
    let region: Arc<dyn Region> = to.create(names::SUPERBLOCK_NEW, superblock::LEN, Allocation::Full)?;
    superblock::update(&*region, &mut sb)?;
    to.sync_names()?;
    to.rename(names::SUPERBLOCK_NEW, names::SUPERBLOCK)?;
    Ok(to.sync_names()?)
}

/// Waits a little for what a thread of the owner is about to write.
fn wait() {
    let until = Instant::now() + Duration::from_micros(500);
    while Instant::now() < until {
        std::thread::yield_now();
    }
}
