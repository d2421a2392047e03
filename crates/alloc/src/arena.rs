//! Durable bytes used in place: a region, and a view of it for loads.
//!
//! ```text
//!   dax, ram     load ──► mapping ◄── Region::store                         the view is the mapping itself
//!   file, sim    load ──► mirror  ◄── each store ──► Region::store          the view is private memory, kept in step
//! ```
//!
//! What must always hold: the view holds what was stored last, word by word; everything that is to be durable goes through the verbs
//! here, and so through the medium's, which count, delay and simulate; after one of them failed nothing is written any more.
//!
//! **Who may see what.** Other threads read the view at any time, with relaxed atomic loads, and see each aligned word whole (stores are
//! single 8-byte instructions) and in no order: they validate what they read by versions. Words that recovery resets and nobody needs
//! durable (versions, locks) are changed in the view alone, through [`Arena::words`].

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use towa_media::{Access, Allocation, HUGE_PAGE, Lock, Mapping, Medium, Region, advise_huge};

use crate::header::{HEADER, Header, KIND_LEN, MAGIC, MARK_AT, NAME, NAME_NEW, check_lengths};
use crate::{Error, Result, SEGMENT};

/// The file that every pool has (`towa_heap::names::SUPERBLOCK`).
const SUPERBLOCK: &str = "superblock";

/// What else can have an arena's file than the owner of its directory.
const OTHERS: &str = "the owner of another directory with the same file";

/// What a new arena is like.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Bytes in all; rounded up to segments. Space is provided as it is used.
    pub len: u64,
    /// Bytes at the beginning that are the user's own, zeroed; rounded up to segments.
    pub user_len: u64,
    /// What the user keeps in it: up to [`KIND_LEN`] bytes, compared at opening.
    pub kind: &'static str,
}

impl CreateOptions {
    /// Whether there can be such an arena. To be asked before its directory is made.
    ///
    /// # Errors
    /// [`Error::Options`].
    pub fn check(&self) -> Result<()> {
        self.lengths().map(drop)
    }

    /// Both lengths, in whole segments.
    fn lengths(&self) -> Result<(u64, u64)> {
        let round = |bytes: u64| bytes.checked_next_multiple_of(SEGMENT).unwrap_or(u64::MAX);
        let (len, user_len) = (round(self.len), round(self.user_len));
        check_lengths(len, user_len)?;
        Ok((len, user_len))
    }
}

/// Durable bytes used in place.
#[derive(Debug)]
pub struct Arena {
    /// Where its bytes are durable; without it they are this process' own (see [`volatile`](Self::volatile)).
    durable: Option<Durable>,
    view: NonNull<AtomicU64>,
    words: usize,
    /// The view's memory, where it is not the region's.
    mirror: Option<Mapping>,
    header: Header,
    pool: String,
    failed: AtomicBool,
}

#[derive(Debug)]
struct Durable {
    region: Arc<dyn Region>,
    medium: Arc<dyn Medium>,
    lock: Held,
}

/// The owner's lock.
struct Held(Arc<dyn Lock>);

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Held")
    }
}

// SAFETY: the view is memory that belongs to no thread and lives as long as the arena (the region's mapping or the mirror, both of
// which the arena owns); it is accessed by atomics only.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// A new arena, which gets its name only when [`publish`](Self::publish) is called: until then, stopping leaves no arena. What an
    /// interrupted creation left is removed.
    pub fn create(medium: Arc<dyn Medium>, options: &CreateOptions) -> Result<Arena> {
        let (len, user_len) = options.lengths()?;
        let mut kind = [0; KIND_LEN];
        let Some(named) = kind.get_mut(..options.kind.len()) else {
            return Err(Error::Options { what: format!("kind {:?} is longer than {KIND_LEN} bytes", options.kind) });
        };
        named.copy_from_slice(options.kind.as_bytes());
        // Held until this returns, whatever fails in between: what is removed then is what this process made.
        let lock: Arc<dyn Lock> = medium.lock()?.into();
        let pool = medium.location();
        if medium.exists(NAME)? {
            return Err(Error::Exists { pool });
        }
        refuse_pool(&*medium)?;
        remove_leftover(&*medium)?;
        let created_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let header = Header { uuid: *uuid::Uuid::new_v4().as_bytes(), len, user_len, kind, created_unix_s };
        let region = medium.create(NAME_NEW, len, Allocation::Sparse)?;
        let fill = || {
            region.reserve(0, header.first() * SEGMENT)?;
            lock.take(NAME_NEW, Duration::ZERO, OTHERS)?;
            lock.sign();
            let arena = Self::start(Durable { region, medium: medium.clone(), lock: Held(lock.clone()) }, header)?;
            arena.store_word(MARK_AT, header.mark_word(header.first()))?;
            arena.store(0, &header.to_words())?;
            arena.write_back(0, MARK_AT + 8);
            Ok(arena)
        };
        let removed = |_: &Error| drop(medium.remove(NAME_NEW));
        fill().inspect_err(removed)
    }

    /// Makes everything stored so far durable and gives a new arena its name. Before the rename is durable there is no arena, or a
    /// whole one.
    pub fn publish(&self) -> Result<()> {
        let Some(durable) = &self.durable else { return Ok(()) };
        self.fence()?;
        durable.medium.rename(NAME_NEW, NAME)?;
        durable.medium.sync_names()?;
        self.watch()
    }

    /// From now on the arena's name must lead to its file.
    fn watch(&self) -> Result<()> {
        Ok(self.durable.as_ref().map_or(Ok(()), |durable| durable.lock.0.watch(&[NAME]))?)
    }

    /// Opens the arena on `medium`, which must hold `kind`.
    pub fn open(medium: Arc<dyn Medium>, kind: &str) -> Result<Arena> {
        let pool = medium.location();
        let foreign = |e| match e {
            towa_media::Error::NotRegular { .. } => {
                Error::Foreign { pool: medium.location(), why: format!("`{NAME}` is not a regular file") }
            }
            other => other.into(),
        };
        let lock = medium.lock_by(NAME, false, OTHERS).map_err(foreign)?;
        if !medium.exists(NAME)? {
            refuse_pool(&*medium)?;
            return Err(Error::Missing { pool });
        }
        let region = medium.open(NAME, Access::ReadWrite).map_err(foreign)?;
        let header = Header::read(&*medium, &*region)?;
        if header.kind() != kind {
            return Err(Error::WrongKind { pool, found: header.kind(), wanted: kind.into() });
        }
        lock.sign();
        // A store into a block that a clone shares takes a new one; on a full disk it would be SIGBUS.
        region.unshare(0, region.len())?;
        let arena = Self::start(Durable { region, medium: medium.clone(), lock: Held(lock.into()) }, header)?;
        // A process that was killed may have left it named, and its name not yet durable.
        medium.sync_names()?;
        arena.watch()?;
        Ok(arena)
    }

    /// Memory of this process alone, with the same interface: for what is rebuilt at every opening.
    pub fn volatile(len: u64) -> Result<Arena> {
        let len = len.next_multiple_of(SEGMENT);
        check_lengths(len, 0)?;
        let header = Header { uuid: [0; 16], len, user_len: 0, kind: [0; KIND_LEN], created_unix_s: 0 };
        let mirror = Mapping::anonymous(None, len as usize, true)?;
        Ok(Self::over(None, mirror.as_ptr(), Some(mirror), header, "memory".into()))
    }

    fn start(durable: Durable, header: Header) -> Result<Arena> {
        let pool = durable.medium.location();
        let len = header.len as usize;
        if let Some(bytes) = durable.region.bytes() {
            if bytes.len() < len {
                return Err(Error::Damaged { pool, what: format!("{} bytes are mapped, not {len}", bytes.len()) });
            }
            advise_huge(bytes);
            return Ok(Self::over(Some(durable), bytes.as_ptr().cast(), None, header, pool));
        }
        let mirror = Mapping::anonymous(None, len, len >= HUGE_PAGE)?;
        let first = mirror.as_ptr();
        let arena = Self::over(Some(durable), first, Some(mirror), header, pool);
        arena.load_mirror()?;
        // From here on the mirror is what is read, and recovery writes again what it relies on.
        arena.durable.iter().for_each(|durable| durable.region.evict());
        Ok(arena)
    }

    fn over(durable: Option<Durable>, first: *mut u8, mirror: Option<Mapping>, header: Header, pool: String) -> Arena {
        let view = NonNull::new(first.cast()).expect("a mapping is never at zero");
        assert!(view.is_aligned());
        let words = header.len as usize / 8;
        Arena { durable, view, words, mirror, header, pool, failed: AtomicBool::new(false) }
    }

    /// Fills the mirror with what the region holds below the mark.
    fn load_mirror(&self) -> Result<()> {
        let Some(Durable { region, .. }) = &self.durable else { return Ok(()) };
        let mut chunk = vec![0; 1 << 20];
        let mut end = HEADER;
        let mut off = 0;
        while off < end {
            let bytes = &mut chunk[..(end - off).min(1 << 20) as usize];
            region.read(off, bytes)?;
            for (i, word) in bytes.chunks_exact(8).enumerate() {
                let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
                // Zeroes stay untouched, so that sparse parts cost no memory.
                if word != 0 {
                    self.words(off + i as u64 * 8, 1).expect("inside")[0].store(word, Relaxed);
                }
            }
            off += bytes.len() as u64;
            if off == HEADER {
                end = self.mark().unwrap_or(0) * SEGMENT;
            }
        }
        Ok(())
    }

    /// Bytes in all.
    pub fn len(&self) -> u64 {
        self.header.len
    }

    /// Whether it holds no bytes: never.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Where it is, for messages.
    pub fn location(&self) -> &str {
        &self.pool
    }

    /// The arena's identity.
    pub fn uuid(&self) -> [u8; 16] {
        self.header.uuid
    }

    /// The medium; `None` for a volatile one.
    pub fn medium(&self) -> Option<&Arc<dyn Medium>> {
        self.durable.as_ref().map(|durable| &durable.medium)
    }

    /// Offset of the user's own bytes, which are as many as were asked for at creation.
    pub fn user_area(&self) -> std::ops::Range<u64> {
        HEADER..HEADER + self.header.user_len
    }

    /// First segment of blocks.
    pub(crate) fn first_segment(&self) -> u64 {
        self.header.first()
    }

    /// The high-water mark in segments.
    pub(crate) fn mark(&self) -> Result<u64> {
        if self.durable.is_none() {
            return Ok(self.header.first());
        }
        let damaged = || Error::Damaged { pool: self.pool.clone(), what: "the high-water mark's checksum is wrong".into() };
        self.header.mark_of(self.load(MARK_AT)).ok_or_else(damaged)
    }

    /// Raises the high-water mark; see [`header`](crate::header) for why that is safe.
    pub(crate) fn raise_mark(&self, from: u64, to: u64) -> Result<()> {
        let Some(durable) = &self.durable else { return Ok(()) };
        durable.region.reserve(from * SEGMENT, (to - from) * SEGMENT)?;
        self.store_word(MARK_AT, self.header.mark_word(to))?;
        self.write_back(MARK_AT, 8);
        self.fence()
    }

    /// Words `off..off + 8 * n` of the view, if they lie inside and `off` is a multiple of 8. Storing through it is for words that need
    /// not be durable and that recovery resets; all others are stored by [`store`](Self::store).
    #[inline]
    pub fn words(&self, off: u64, n: usize) -> Option<&[AtomicU64]> {
        let first = (off / 8) as usize;
        if !off.is_multiple_of(8) || first > self.words || self.words - first < n {
            return None;
        }
        // SAFETY: inside the view (just checked), which lives as long as the arena and is only accessed atomically, or by the region's
        // stores of single words, which the hardware does not tear; aligned, as the view is.
        Some(unsafe { std::slice::from_raw_parts(self.view.as_ptr().add(first), n) })
    }

    /// The word at `off`, if it lies inside and is aligned.
    #[inline]
    pub fn get(&self, off: u64) -> Option<u64> {
        self.words(off, 1).map(|words| words[0].load(Relaxed))
    }

    /// The word at `off`.
    ///
    /// # Panics
    /// If it lies outside.
    #[inline]
    pub fn load(&self, off: u64) -> u64 {
        self.get(off).unwrap_or_else(|| panic!("{}: no word at {off}", self.pool))
    }

    /// Address of the byte at `off`, for hints.
    #[inline]
    pub fn prefetch(&self, off: u64) {
        towa_media::persist::prefetch(self.view.as_ptr().cast::<u8>().wrapping_add(off as usize));
    }

    /// Stores `words` from `off` on. Durable after [`write_back`](Self::write_back) of the range and [`fence`](Self::fence).
    #[inline]
    pub fn store(&self, off: u64, words: &[u64]) -> Result<()> {
        if self.failed.load(Relaxed) {
            return Err(self.fail());
        }
        let Some(view) = self.words(off, words.len()) else {
            let (region_len, len) = (self.header.len, words.len() as u64 * 8);
            return Err(towa_media::Error::Range { location: self.pool.clone(), off, len, region_len }.into());
        };
        if let Some(durable) = &self.durable {
            // SAFETY: any bytes of initialised words may be looked at. Both formats and this machine are little-endian.
            let bytes = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), words.len() * 8) };
            durable.region.store(off, bytes).inspect_err(|_| self.failed.store(true, Relaxed))?;
        }
        if self.mirror.is_some() {
            for (to, word) in view.iter().zip(words) {
                to.store(*word, Release);
            }
        }
        Ok(())
    }

    /// [`store`](Self::store) of one word, which a crash never tears.
    #[inline]
    pub fn store_word(&self, off: u64, word: u64) -> Result<()> {
        self.store(off, &[word])
    }

    /// Starts writing back the lines that hold `off..off + len`.
    #[inline]
    pub fn write_back(&self, off: u64, len: u64) {
        if let Some(durable) = &self.durable {
            durable.region.write_back(off, len);
        }
    }

    /// Has the next [`fence`](Self::fence) make durable what the view shows of `off..off + 8 * words`: recovery calls it for all that
    /// it read and relies on ([`Region::rewrite`](towa_media::Region::rewrite) says why).
    pub fn rewrite(&self, off: u64, words: usize) -> Result<()> {
        if self.mirror.is_none() {
            self.write_back(off, words as u64 * 8);
            return Ok(());
        }
        let Some(view) = self.words(off, words) else {
            let (region_len, len) = (self.header.len, words as u64 * 8);
            return Err(towa_media::Error::Range { location: self.pool.clone(), off, len, region_len }.into());
        };
        let Some(durable) = &self.durable else { return Ok(()) };
        let bytes: Vec<u8> = view.iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect();
        Ok(durable.region.rewrite(off, &bytes).inspect_err(|_| self.failed.store(true, Relaxed))?)
    }

    /// Returns when everything this thread stored and wrote back is durable.
    #[inline]
    pub fn fence(&self) -> Result<()> {
        if self.failed.load(Relaxed) {
            return Err(self.fail());
        }
        if let Some(durable) = &self.durable {
            let fenced = durable.lock.0.check().and_then(|()| durable.region.fence());
            fenced.inspect_err(|_| self.failed.store(true, Relaxed))?;
        }
        Ok(())
    }

    /// Whether a write or sync failed: what is durable is unknown then, and whoever waits for a change to end waits in vain.
    #[inline]
    pub fn is_failed(&self) -> bool {
        self.failed.load(Relaxed)
    }

    /// The error for that.
    #[cold]
    pub fn fail(&self) -> Error {
        Error::Failed { pool: self.pool.clone() }
    }
}

#[cfg(target_endian = "big")]
compile_error!("arenas are little-endian; a big-endian machine needs their words swapped in Arena::store and load_mirror");

/// An arena is no part of a pool's directory, which is copied, checked and removed as a whole.
fn refuse_pool(medium: &dyn Medium) -> Result<()> {
    if !medium.exists(SUPERBLOCK)? {
        return Ok(());
    }
    let why = format!("a pool lies there (file `{SUPERBLOCK}`); choose another directory, or a tree in that pool");
    Err(Error::Foreign { pool: medium.location(), why })
}

/// Removes what an interrupted creation left; anything else of that name is somebody's own.
fn remove_leftover(medium: &dyn Medium) -> Result<()> {
    if !medium.exists(NAME_NEW)? {
        return Ok(());
    }
    let foreign = || Error::Foreign {
        pool: medium.location(),
        why: format!("`{NAME_NEW}` is there, and is not what an interrupted creation leaves; move it away first"),
    };
    let region = match medium.open(NAME_NEW, Access::ReadOnly) {
        Err(towa_media::Error::NotRegular { .. }) => return Err(foreign()),
        other => other?,
    };
    let mut bytes = vec![0; region.len().min(HEADER) as usize];
    region.read(0, &mut bytes)?;
    let magic = bytes.get(..8).unwrap_or(&[]);
    let ours = magic == MAGIC || magic.iter().all(|b| *b == 0) && bytes[magic.len()..].iter().all(|b| *b == 0) || is_torn(&bytes);
    if !ours {
        return Err(foreign());
    }
    medium.remove(NAME_NEW)?;
    Ok(medium.sync_names()?)
}

/// A header of which parts did not reach the medium: zero where nothing of ours goes.
fn is_torn(bytes: &[u8]) -> bool {
    let ours = |at: usize| at < 128 || (MARK_AT as usize..MARK_AT as usize + 8).contains(&at);
    bytes.len() == HEADER as usize
        && bytes[..8].iter().zip(MAGIC).all(|(b, m)| *b == m || *b == 0)
        && bytes.iter().enumerate().all(|(at, b)| ours(at) || *b == 0)
}
