//! A transaction as its body sees it: reads, writes, allocation.
//!
//! ```text
//!                 hardware                              under versions (guarded)          software
//!   read          load                                  load; versions still the same?    load, note it; look again when the sequence moved
//!   write         store, note it for the log            note it                           buffer it
//!   touch         note; stamped just before the end     note; locked, then stamped        note; locked during write-back, then stamped
//!   alloc         (sends the body to the software path) journal of the allocator          journal of the allocator
//!   free, roots   (the same)                            (the same)                        the same; free lists and roots, when it takes effect
//! ```
//!
//! What must always hold: a hardware transaction that does not commit leaves no trace, whatever its body did to this thread's
//! state; the others touch shared memory only when they take effect, but for blocks that a software one allocated itself.

use towa_heap::Root;

use crate::allocation::no_live_block;
use crate::error::{Abort, Error};
use crate::held::RootHold;
use crate::thread::Core;
use crate::version;
use crate::view::{Addr, WORD};
use crate::{guarded, rtm};

/// Codes of explicit hardware aborts.
pub(crate) mod code {
    /// A version is locked, or the sequence lock taken.
    pub const BUSY: u8 = 1;
    /// What the body was begun for has changed.
    pub const STALE: u8 = 2;
    /// The body does what only the software path can.
    pub const SOFTWARE: u8 = 3;
    /// More writes than the hardware path notes.
    pub const FULL: u8 = 4;
}

/// How a body runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// In a hardware transaction.
    Hardware,
    /// In software, under the locks of its versions alone.
    Versions,
    /// In software.
    Software,
}

/// Why a run under versions does not take effect, whatever its body answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GaveUp {
    /// Another transaction was in the way.
    Conflict,
    /// The body does what only the software path can.
    Software,
}

/// A root that is set when the transaction takes effect.
#[derive(Debug)]
pub(crate) struct RootChange {
    pub name: String,
    pub root: Option<Root>,
    /// There must be none of that name.
    pub is_new: bool,
    /// By who holds it.
    pub by_holder: bool,
}

/// Writes that the hardware path notes at most. Its write set ends at some 200 scattered lines anyway.
pub(crate) const NOTED_MAX: usize = 1024;
/// Versions that a transaction touches at most in hardware, and under versions.
pub(crate) const TOUCHED_MAX: usize = 64;

/// A transaction that runs. The body gets it, and passes errors on with `?`.
#[derive(Debug)]
pub struct Tx<'t> {
    pub(crate) core: &'t mut Core,
    pub(crate) path: Path,
}

impl Tx<'_> {
    /// The word at `a`.
    ///
    /// # Panics
    /// If that is no word of the heap.
    #[inline]
    pub fn read(&mut self, a: Addr) -> Result<u64, Abort> {
        self.unguarded()?;
        let value = self.read_guarded(a)?;
        if self.path == Path::Software {
            self.core.depend_on_writer(a);
        }
        Ok(value)
    }

    /// Writes the word at `a`.
    ///
    /// # Errors
    /// A word of the root table or of the allocator's own.
    #[inline]
    pub fn write(&mut self, a: Addr, value: u64) -> Result<(), Abort> {
        self.unguarded()?;
        if self.path == Path::Hardware {
            // Its line becomes part of what is read, before the time is: so a transaction that wrote here earlier is older.
            self.core.blocks.load(a);
        }
        self.write_guarded(a, value)
    }

    /// The version word at `a`, not locked. This transaction then takes effect after the one that stamped it, and is durable after it.
    #[inline(always)]
    pub fn read_version(&mut self, a: Addr) -> Result<u64, Abort> {
        if self.path == Path::Versions {
            return self.core.read_version_guarded(a);
        }
        let version = self.read_guarded(a)?;
        if version::is_locked(version) {
            return if self.path == Path::Hardware { rtm::abort::<{ code::BUSY }>() } else { Err(Abort::Conflict) };
        }
        self.core.depend_on(version);
        Ok(version)
    }

    /// Stamps the version word at `a` with this transaction's timestamp when it takes effect. The word is not logged: it begins as a zero
    /// in a new block, and is nobody's to [write](Self::write).
    #[inline(always)]
    pub fn touch(&mut self, a: Addr) -> Result<(), Abort> {
        if self.path == Path::Versions && !self.core.may_touch(a) {
            return self.software();
        }
        let core = &mut *self.core;
        if core.touched.contains(&a) {
            return Ok(());
        }
        if core.touched.len() == TOUCHED_MAX {
            self.full()?;
        }
        self.core.blocks.word(a);
        self.core.touched.push(a);
        Ok(())
    }

    /// [`read`](Self::read) of a word whose every change stamps a version word that this transaction has
    /// [read](Self::read_version): it waits for no other thread's record but those that this version stands for.
    #[inline]
    pub fn read_guarded(&mut self, a: Addr) -> Result<u64, Abort> {
        match self.path {
            Path::Hardware => Ok(self.core.blocks.load(a)),
            Path::Versions => self.core.read_guarded(a),
            Path::Software => self.core.read_software(a),
        }
    }

    /// [`write`](Self::write) of a word guarded by a version word that this transaction has read and [touches](Self::touch).
    #[inline(always)]
    pub fn write_guarded(&mut self, a: Addr, value: u64) -> Result<(), Abort> {
        if a < self.core.data {
            return self.refuse(a);
        }
        match self.path {
            Path::Hardware => {
                if self.core.noted.len() == self.core.noted.capacity() {
                    self.full()?;
                }
                self.core.view.store(a, value);
                self.core.noted.push((a, value));
            }
            Path::Versions => {
                if self.core.noted.len() == guarded::NOTED_MAX {
                    self.full()?;
                }
                self.core.view.word(a);
                self.core.noted.push((a, value));
            }
            Path::Software => {
                self.core.view.word(a);
                self.core.writes.put(a, value);
            }
        }
        Ok(())
    }

    /// [`write_guarded`](Self::write_guarded) of several words: address and value of each.
    #[inline(always)]
    pub fn write_all_guarded<const N: usize>(&mut self, words: [(Addr, u64); N]) -> Result<(), Abort> {
        if self.path == Path::Versions {
            let core = &mut *self.core;
            // All of them are looked at first, so that what is right takes few instructions.
            if core.noted.len() + N <= guarded::NOTED_MAX && words.iter().all(|&(a, _)| core.blocks.holds(a)) {
                core.noted.extend_from_slice(&words);
                return Ok(());
            }
        }
        words.into_iter().try_for_each(|(a, value)| self.write_guarded(a, value))
    }

    #[cold]
    fn refuse(&mut self, a: Addr) -> Result<(), Abort> {
        self.software()?;
        Err(Error::Usage(format!("address {a:#x} belongs to the pool's own tables; write into blocks that you allocated")).into())
    }

    /// A block of `size` bytes, aligned to 16: its address. Nobody else sees it before this transaction takes effect. If that does not
    /// happen, it is free again. All of it is logged: fill it with [`init`](Self::init) or with writes; until then it holds anything.
    pub fn alloc(&mut self, size: usize) -> Result<Addr, Abort> {
        self.alloc_partly(size, size)
    }

    /// [`alloc`](Self::alloc) of a block of which only the first `logged` bytes are logged, and can be [`init`](Self::init)ialised. What lies
    /// behind them holds anything, and after a crash something else: a word there counts only once a transaction has written it, which
    /// must not be left out where it seems to hold the right value already. It spares the log what is of no use yet.
    pub fn alloc_partly(&mut self, size: usize, logged: usize) -> Result<Addr, Abort> {
        self.not_in_hardware();
        match self.core.alloc(size, logged) {
            // How much space there is is not in the read set. If what was read is out of date, the body might ask
            // for something else now.
            Err(Error::OutOfSpace { .. }) if self.path == Path::Software && self.core.decide(|_| ()).is_none() => {
                Err(Abort::Conflict)
            }
            block => Ok(block?),
        }
    }

    /// Stores `words` at `a`, in the logged part of a block that this transaction allocated.
    ///
    /// # Errors
    /// The words do not lie in such a one.
    pub fn init(&mut self, a: Addr, words: &[u64]) -> Result<(), Abort> {
        self.not_in_hardware();
        let len = words.len() as u64 * WORD;
        if !self.core.fresh.iter().any(|&(start, of)| a >= start && a - start <= of && len <= of - (a - start)) {
            let why = format!("{len} bytes at {a:#x} are not in what is logged of a block that this transaction allocated");
            return Err(Error::Usage(why).into());
        }
        self.core.view.store_all(a, words);
        Ok(())
    }

    /// Frees a block when the transaction is durable.
    ///
    /// # Errors
    /// There is no live block at `a`, or this transaction freed it already.
    pub fn free(&mut self, a: Addr) -> Result<(), Abort> {
        self.software()?;
        // The header says whether the block is live: a word that no version guards, written by the transaction that allocated or freed the block.
        self.core.plain = true;
        self.core.depend_on_writer(a);
        if !self.core.is_live(a) {
            // Block headers are not in the read set. If what was read is out of date, another transaction may have
            // freed this block: a conflict, not misuse.
            match self.core.decide(|core| core.is_live(a)) {
                None => return Err(Abort::Conflict),
                Some(true) => {}
                Some(false) => return Err(no_live_block(a).into()),
            }
        }
        Ok(self.core.free(a)?)
    }

    /// The root of this name, as part of what the transaction reads: if another one changes it, the two conflict. (What
    /// [`Pool::root`](crate::Pool::root) gives is not, and may be out of date when the body uses it.)
    pub fn root(&mut self, name: &str) -> Result<Option<Root>, Abort> {
        self.software()?;
        self.core.unguarded = true;
        self.core.read_root(name)
    }

    /// Sets or removes the root of this name when the transaction takes effect.
    ///
    /// # Errors
    /// It points outside the heap; the name is empty or longer than 40 bytes; it is [held](crate::Pool::hold_root),
    /// by a tree that is open, say.
    pub fn set_root(&mut self, name: &str, root: Option<Root>) -> Result<(), Abort> {
        self.software()?;
        self.core.engine.held.lock().refuse(name)?;
        self.put_root(name, root, false, false)
    }

    /// Makes a root of this name when the transaction takes effect.
    ///
    /// # Errors
    /// As [`set_root`](Self::set_root); and the transaction ends with [`Error::RootExists`] if there is one by then.
    pub fn create_root(&mut self, name: &str, root: Root) -> Result<(), Abort> {
        self.software()?;
        self.core.engine.held.lock().refuse(name)?;
        self.put_root(name, Some(root), true, false)
    }

    /// [`create_root`](Self::create_root), by who holds it.
    pub fn create_held_root(&mut self, hold: &RootHold, root: Root) -> Result<(), Abort> {
        self.by_holder(hold)?;
        self.put_root(hold.name(), Some(root), true, true)
    }

    /// Removes a root, by who holds it.
    pub fn remove_held_root(&mut self, hold: &RootHold) -> Result<(), Abort> {
        self.by_holder(hold)?;
        self.put_root(hold.name(), None, false, true)
    }

    fn by_holder(&mut self, hold: &RootHold) -> Result<(), Abort> {
        self.software()?;
        if !hold.is_in(&self.core.engine) {
            let why = format!("root {:?} is held in another pool than that of the transaction", hold.name());
            return Err(Error::Usage(why).into());
        }
        Ok(())
    }

    fn put_root(&mut self, name: &str, root: Option<Root>, is_new: bool, by_holder: bool) -> Result<(), Abort> {
        let core = &mut *self.core;
        if let Some(root) = root
            && !core.view.holds(root.ptr.as_ptr().addr() as u64 & !7)
        {
            return Err(Error::Usage(format!("root {name:?} would point outside the pool, to {:p}", root.ptr)).into());
        }
        if name.is_empty() || name.len() > towa_heap::ROOT_NAME_MAX {
            let why = format!("root name {name:?} has {} bytes; names have 1 to {}", name.len(), towa_heap::ROOT_NAME_MAX);
            return Err(Error::Usage(why).into());
        }
        core.unguarded = true;
        core.roots.push(RootChange { name: name.into(), root, is_new, by_holder });
        Ok(())
    }

    /// Gives up: what the body was begun for has changed. The transaction ends with [`Error::Stale`].
    pub fn stale<T>(&mut self) -> Result<T, Abort> {
        if self.path == Path::Hardware { rtm::abort::<{ code::STALE }>() } else { Err(Abort::Stale) }
    }

    /// Gives up by the program's own wish. The transaction ends with [`Error::Aborted`].
    pub fn abort<T>(&mut self, why: &'static str) -> Result<T, Abort> {
        self.not_in_hardware();
        Err(Abort::User(why))
    }

    /// Goes on only where it was begun by software.
    #[inline]
    fn not_in_hardware(&self) {
        if self.path == Path::Hardware {
            rtm::abort::<{ code::SOFTWARE }>()
        }
    }

    /// Goes on only in software.
    #[inline]
    fn software(&mut self) -> Result<(), Abort> {
        match self.path {
            Path::Hardware => rtm::abort::<{ code::SOFTWARE }>(),
            Path::Versions => Err(self.core.give_up(GaveUp::Software)),
            Path::Software => Ok(()),
        }
    }

    /// It has no room for one more. Only the software path has.
    #[inline]
    fn full(&mut self) -> Result<(), Abort> {
        if self.path == Path::Hardware { rtm::abort::<{ code::FULL }>() } else { self.software() }
    }

    /// Reads or writes a word that no version guards.
    #[inline]
    fn unguarded(&mut self) -> Result<(), Abort> {
        match self.path {
            Path::Versions => return self.software(),
            Path::Hardware => self.core.unguarded = true,
            Path::Software => self.core.plain = true,
        }
        Ok(())
    }
}
