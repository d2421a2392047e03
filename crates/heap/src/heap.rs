//! A heap: working copy, image and log of one pool, created, opened, brought up and closed.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use bytemuck::Zeroable;
use parking_lot::Mutex;
use towa_media::{Access, Allocation, Durability, LINE, Mapping, Medium, Region};

use crate::alloc::{self, Allocator, CHUNK};
use crate::log::commit::Commit;
use crate::log::{Identity, Log};
use crate::recovery::{self, Chain, Recovery};
use crate::roots::{self, RootTable};
use crate::superblock::{self, Door, Superblock};
use crate::{Error, Result, names};

/// Commit slots of a new pool.
const COMMIT_SLOTS: u32 = 256;
/// Space is provided ahead of the frontier in steps of this.
const PROVIDE_STEP: u64 = 16 << 20;

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

/// How to open a pool.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Which door.
    pub door: Door,
    /// Load everything now, instead of as touched.
    pub eager: bool,
}

/// An open heap.
#[derive(Debug)]
pub struct Heap {
    allocator: Allocator,
    working: Working,
    len: u64,
    roots: RootTable,
    recovery: Recovery,
    store: Option<Store>,
}

/// The durable half; a volatile heap has none.
struct Store {
    medium: Arc<dyn Medium>,
    image: Arc<dyn Region>,
    log: Log,
    superblock_region: Arc<dyn Region>,
    superblock: Mutex<Superblock>,
    /// Checksum of the newest commit recovered: what the next one names as its predecessor.
    chain_end: u64,
    /// Commits recovered at open that are still live: on sync media, until the image is next synced.
    recovered: Vec<Commit>,
    space: Arc<ImageSpace>,
    _lock: Box<dyn Send + Sync>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store({})", self.medium.location())
    }
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

    /// Opens the pool on `medium`, recovering it if it was not closed. Refuses, without writing, what does not check out.
    pub fn open(medium: Arc<dyn Medium>, options: &OpenOptions) -> Result<Heap> {
        // Taking the lock leaves a file behind: not in a directory that is no pool of ours.
        if let Err(e @ (Error::Missing { .. } | Error::Foreign { .. } | Error::Newer { .. })) = crate::describe(&*medium) {
            return Err(e);
        }
        let lock = medium.lock()?;
        let sb = read_superblock(&*medium, options.door, Access::ReadWrite)?;
        Self::start(medium, lock, sb, options.eager, false)
    }

    /// A heap that keeps nothing.
    pub fn volatile(heap_len: u64) -> Result<Heap> {
        let len = check_heap_len(heap_len)?;
        let working = Working { mapped: None, anonymous: Mapping::anonymous(None, len as usize, true)? };
        Self::assemble(working, len, Recovery::default(), CHUNK, None, "volatile heap".into())
    }

    fn start(medium: Arc<dyn Medium>, lock: Box<dyn Send + Sync>, mut sb: Superblock, eager: bool, fresh: bool) -> Result<Heap> {
        let superblock_region = medium.open(names::SUPERBLOCK, Access::ReadWrite)?;
        let image = medium.open(names::IMAGE, Access::ReadWrite)?;
        let log_region = medium.open(names::LOG, Access::ReadWrite)?;
        if image.len() != sb.heap_len {
            let what = format!("file `image` has {} bytes, not {}", image.len(), sb.heap_len);
            return Err(Error::Damaged { pool: medium.location(), what });
        }
        let began = Instant::now();
        let reader = open_log(&*medium, &log_region, &sb, 0, sb.tail);
        let chain = recovery::find_chain(&*medium, &*log_region, &reader, &sb)?;
        let (_, chain_end, head, frontier) = chain.end(&sb);
        // The address is the likeliest thing to be refused: ask for it before anything is written.
        let lazy = !fresh && !eager && image.file().is_some();
        let working = Working::map(&*image, &sb, if lazy { frontier } else { 0 })?;
        let lines = recovery::replay(&*log_region, &reader, &*image, &chain, &sb)?;
        let was_clean = sb.clean == 1;
        open_generation(&*medium, &*image, &*superblock_region, &chain, &mut sb)?;
        let recovery = Recovery {
            epoch: chain.end(&sb).0,
            epochs_replayed: chain.commits.len() as u64,
            lines_replayed: lines,
            dropped_incomplete: chain.dropped_incomplete,
            clean: was_clean,
            elapsed: began.elapsed(),
        };
        if !fresh && !lazy {
            load(&*image, &working, frontier)?;
        }
        let log = open_log(&*medium, &log_region, &sb, sb.generation, head);
        let pool = medium.location();
        let heap_len = sb.heap_len;
        let superblock = Mutex::new(sb);
        let space = Arc::new(ImageSpace { image: Arc::clone(&image), provided: Mutex::new(frontier) });
        let recovered = if medium.durability() == Durability::Sync { chain.commits } else { Vec::new() };
        let store = Store { medium, image, log, superblock_region, superblock, chain_end, recovered, space, _lock: lock };
        Self::assemble(working, heap_len, recovery, frontier, Some(store), pool)
    }

    fn assemble(working: Working, len: u64, recovery: Recovery, frontier: u64, store: Option<Store>, pool: String) -> Result<Heap> {
        let base = working.base();
        let in_heap = in_heap(base.as_ptr() as u64, len);
        // SAFETY: the heap's first chunk, mapped by `working`, which lives as long as the table (both in Heap).
        let roots = unsafe { RootTable::new(base, in_heap) }.map_err(|what| Error::Damaged { pool: pool.clone(), what })?;
        let space = store.as_ref().map(|s| Arc::clone(&s.space));
        let provide = Box::new(move |end| space.as_ref().map_or(Ok(()), |s| s.provide(end).map_err(|_| alloc::Full)));
        // SAFETY: `working` is that mapping and lives as long as the allocator (both in Heap); beside the allocator only users
        // write there, into blocks, and the root table before `CHUNK`.
        let allocator = unsafe { Allocator::new(base, len, CHUNK, frontier, provide) };
        let allocator = allocator.map_err(|damage| Error::Damaged { pool, what: damage.to_string() })?;
        Ok(Heap { allocator, working, len, roots, recovery, store })
    }

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

    /// The redo log.
    ///
    /// # Panics
    /// On a volatile heap.
    pub fn log(&self) -> &Log {
        &self.store().log
    }

    fn store(&self) -> &Store {
        self.store.as_ref().expect("a volatile heap has no durable half")
    }

    /// Newest durable epoch as recovered, and its commit's checksum.
    pub fn recovered(&self) -> (u64, u64) {
        (self.recovery.epoch, self.store.as_ref().map_or(0, |s| s.chain_end))
    }

    /// The epochs recovered at open whose log is still live, oldest first: to be [applied](Self::apply) and [cut](Self::cut) like
    /// those that follow. Until then their commit slots and log space are taken.
    pub fn recovered_commits(&self) -> &[Commit] {
        self.store.as_ref().map_or(&[], |store| &store.recovered)
    }

    /// Copies the lines of committed epochs, oldest first, into the image (not durable before [`cut`](Self::cut)).
    ///
    /// On sync media many epochs are applied together, so each line is written once, the newest, with its neighbours in one write.
    /// `pause` is called now and then between writes: a caller who would spread the work may sleep there.
    pub fn apply(&self, commits: &[Commit], pause: &mut dyn FnMut()) -> Result<()> {
        const LINES_BETWEEN_PAUSES: usize = 1024;
        let store = self.store();
        match store.medium.durability() {
            Durability::Line => {
                let mut written = 0;
                commits.iter().try_for_each(|commit| {
                    store.log.replay_own(commit, &mut |first, bytes| {
                        written += bytes.len() / LINE;
                        if written > LINES_BETWEEN_PAUSES {
                            written = 0;
                            pause();
                        }
                        Ok(store.image.stream(first * LINE as u64, bytes)?)
                    })
                })
            }
            Durability::Sync => {
                let mut batch = Batch::default();
                for commit in commits {
                    store.log.replay_own(commit, &mut |first, bytes| {
                        batch.add(first, bytes);
                        Ok(())
                    })?;
                    if batch.data.len() > BATCH_LEN {
                        batch.write(&*store.image)?;
                    }
                }
                batch.write(&*store.image)
            }
        }
    }

    /// Makes the image durable, says so in the superblock, and frees the log up to and including `commit`'s epoch. All epochs up to
    /// it were [`apply`](Self::apply)ed by this thread.
    ///
    /// Stopping before the superblock's fence: the log is still live and replays over the image. After it: the image is complete.
    pub fn cut(&self, commit: &Commit) -> Result<()> {
        let store = self.store();
        store.image.fence()?;
        let mut sb = store.superblock.lock();
        let mut next = *sb;
        (next.applied_epoch, next.anchor, next.tail, next.frontier) = (commit.epoch, commit.checksum, commit.end, commit.frontier);
        superblock::update(&*store.superblock_region, &mut next)?;
        *sb = next;
        store.log.cut(commit.end);
        Ok(())
    }

    /// Marks the pool as cleanly closed. The caller has cut the log behind its last epoch.
    pub fn close(&self) -> Result<()> {
        let Some(store) = &self.store else {
            return Ok(());
        };
        let mut sb = store.superblock.lock();
        let mut next = *sb;
        next.clean = 1;
        superblock::update(&*store.superblock_region, &mut next)?;
        *sb = next;
        Ok(())
    }
}

/// Bytes of lines applied together on sync media.
const BATCH_LEN: usize = 32 << 20;

/// Lines to be written into the image, in the order of their epochs.
#[derive(Default)]
struct Batch {
    /// Line index, and where in `data` it lies; a later place is newer.
    lines: Vec<(u64, usize)>,
    data: Vec<u8>,
}

impl Batch {
    fn add(&mut self, first: u64, bytes: &[u8]) {
        for i in 0..bytes.len() / LINE {
            self.lines.push((first + i as u64, self.data.len() + i * LINE));
        }
        self.data.extend_from_slice(bytes);
    }

    /// Writes the newest of each line, neighbours together, and empties the batch.
    fn write(&mut self, image: &dyn Region) -> Result<()> {
        const SPAN: usize = 1 << 20;
        self.lines.sort_unstable();
        let mut span: Vec<u8> = Vec::with_capacity(SPAN);
        let mut span_first = 0;
        for (i, &(line, at)) in self.lines.iter().enumerate() {
            if self.lines.get(i + 1).is_some_and(|next| next.0 == line) {
                continue; // a newer one follows
            }
            let follows = span_first + (span.len() / LINE) as u64 == line && span.len() < SPAN;
            if !follows && !span.is_empty() {
                image.stream(span_first * LINE as u64, &span)?;
                span.clear();
            }
            if span.is_empty() {
                span_first = line;
            }
            span.extend_from_slice(&self.data[at..at + LINE]);
        }
        image.stream(span_first * LINE as u64, &span)?;
        self.lines.clear();
        self.data.clear();
        Ok(())
    }
}

/// The space behind the image, provided ahead of the allocator so that applying an epoch never finds the medium full (which on
/// `ram` and `dax` would be a SIGBUS).
#[derive(Debug)]
struct ImageSpace {
    image: Arc<dyn Region>,
    /// Image bytes that have space behind them.
    provided: Mutex<u64>,
}

impl ImageSpace {
    /// Provides space up to `end`, and some beyond where there is enough.
    fn provide(&self, end: u64) -> towa_media::Result<()> {
        let mut provided = self.provided.lock();
        if end <= *provided {
            return Ok(());
        }
        let wish = end.next_multiple_of(PROVIDE_STEP).min(self.image.len());
        let upto = match self.image.reserve(*provided, wish - *provided) {
            Ok(()) => wish,
            Err(towa_media::Error::Full { .. }) if end < wish => {
                self.image.reserve(*provided, end - *provided)?;
                end
            }
            Err(e) => return Err(e),
        };
        *provided = upto;
        Ok(())
    }
}

fn in_heap(base: u64, len: u64) -> impl Fn(u64) -> bool + Copy {
    move |address| address >= base && address - base < len
}

/// The working copy: `mapped` (a private mapping of the image, where a lazily opened pool's old bytes are) and after it
/// `anonymous` (everything else).
///
/// A private mapping shows the image's bytes until a page is first written. That is sound because the persister writes a line
/// into the image only after the program wrote it in the working copy, which made the page private.
#[derive(Debug)]
struct Working {
    mapped: Option<Mapping>,
    anonymous: Mapping,
}

impl Working {
    fn map(image: &dyn Region, sb: &Superblock, mapped_len: u64) -> Result<Working> {
        let base = sb.base as usize;
        let mapped = if mapped_len > 0 { Some(Mapping::private(image, Some(base), mapped_len as usize)?) } else { None };
        let rest = (sb.heap_len - mapped_len) as usize;
        // A full heap leaves nothing to the anonymous part; one page beyond the end keeps the type simple and harms nobody.
        let anonymous = Mapping::anonymous(Some(base + mapped_len as usize), rest.max(towa_media::PAGE), true)?;
        Ok(Working { mapped, anonymous })
    }

    fn base(&self) -> NonNull<u8> {
        let first = self.mapped.as_ref().unwrap_or(&self.anonymous);
        NonNull::new(first.as_ptr()).expect("a mapping is not at address 0")
    }
}

fn open_log(medium: &dyn Medium, region: &Arc<dyn Region>, sb: &Superblock, generation: u64, head: u64) -> Log {
    let identity = Identity { uuid: sb.uuid, generation };
    Log::new(medium, Arc::clone(region), identity, sb.commit_slots, sb.ring_len, (sb.tail, head))
}

/// Step 5 of recovery: makes the replayed image durable (line media) and records the new generation, in one superblock update.
fn open_generation(
    medium: &dyn Medium,
    image: &dyn Region,
    superblock_region: &dyn Region,
    chain: &Chain,
    sb: &mut Superblock,
) -> Result<()> {
    let mut next = *sb;
    next.generation = chain.generation(sb) + 1;
    next.clean = 0;
    if medium.durability() == Durability::Line && !chain.commits.is_empty() {
        image.fence()?;
        (next.applied_epoch, next.anchor, next.tail, next.frontier) = chain.end(sb);
    }
    superblock::update(superblock_region, &mut next)?;
    *sb = next;
    Ok(())
}

/// Reads the whole image into the working copy, on as many threads as there are cores.
fn load(image: &dyn Region, working: &Working, upto: u64) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get()) as u64;
    let threads = cores.min(upto.div_ceil(8 << 20)).max(1);
    let share = upto.div_ceil(threads).next_multiple_of(2 << 20);
    let base = working.base().as_ptr() as usize;
    let load_share = |i: u64| {
        let (from, to) = ((i * share).min(upto), ((i + 1) * share).min(upto));
        for off in (from..to).step_by(2 << 20) {
            let len = (to - off).min(2 << 20) as usize;
            // SAFETY: shares are disjoint parts of the working copy, which nobody else uses yet.
            let into = unsafe { std::slice::from_raw_parts_mut((base + off as usize) as *mut u8, len) };
            image.read(off, into)?;
        }
        Ok::<(), towa_media::Error>(())
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|i| scope.spawn(move || load_share(i))).collect();
        let mine = load_share(0);
        others.into_iter().try_for_each(|o| o.join().expect("loading does not panic")).and(mine)
    })?;
    Ok(())
}

fn check_heap_len(heap_len: u64) -> Result<u64> {
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

/// Opens and checks the superblock; [`Error::Missing`] where there is none.
pub(crate) fn read_superblock(medium: &dyn Medium, door: Door, access: Access) -> Result<Superblock> {
    let sb = find_superblock(medium, access)?;
    superblock::check(medium, &sb, door)?;
    Ok(sb)
}

/// The newest superblock record, of whatever door; [`Error::Missing`] where there is none.
pub(crate) fn find_superblock(medium: &dyn Medium, access: Access) -> Result<Superblock> {
    if !medium.exists(names::SUPERBLOCK)? {
        let interrupted = medium.exists(names::IMAGE)? || medium.exists(names::LOG)?;
        let hint = if interrupted {
            ": its creation was interrupted before anything was stored; create it again"
        } else {
            "; create one first"
        };
        return Err(Error::Missing { pool: medium.location(), hint });
    }
    let region = medium.open(names::SUPERBLOCK, access)?;
    Ok(superblock::read(medium, &*region)?.0)
}
