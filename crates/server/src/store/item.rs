//! One cached item: a block of the pool's heap.
//!
//! ```text
//!   0      8     16     24        28      32        36     40       44       45     46        47  48
//!   | next | cas | hash | expires | flags | val len | room | access | keylen | bits | fetched | uses | key | value | \r\n |
//! ```
//!
//! What must always hold:
//! - everything is read and written under the lock of the item's stripe, and written only inside a transaction, after `mark` -
//! - except `access`, `fetched` and `uses`, which a read updates without a transaction. They steer eviction and nothing else; after a
//!   crash they have whatever value reached the image, which is harmless;
//! - a block's lines belong to it alone (the heap's blocks are whole 64-byte lines), so items never share a line.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

use towa_epoch::Tx;

/// The item was invalidated (`md I`); readers see `X`.
pub const STALE: u8 = 1;
/// Somebody won the right to recache it (`W`); others see `Z`.
pub const TOKEN_SENT: u8 = 2;
/// The key came as base64 and is told as base64.
pub const KEY_BINARY: u8 = 4;

#[repr(C)]
struct Head {
    next: u64,
    cas: u64,
    hash: u64,
    expires: u32,
    flags: u32,
    value_len: u32,
    room: u32,
    access: AtomicU32,
    key_len: u8,
    bits: u8,
    fetched: AtomicU8,
    uses: AtomicU8,
}

/// Uses of a key, since it was stored first, that are counted: more say no more.
pub const USES_MAX: u8 = 4;

/// Bytes before the key.
pub const HEAD_LEN: usize = std::mem::size_of::<Head>();
const _: () = assert!(HEAD_LEN == 48);

/// Offset of the word that is 0 in a lost item (see [`Tx::discard`]): the CAS id, which is never 0 otherwise.
pub const LOST_WORD: usize = std::mem::offset_of!(Head, cas);
const _: () = assert!(HEAD_LEN <= Tx::KEPT);

/// What a new item is made of.
#[derive(Clone, Copy, Debug)]
pub struct Content<'a> {
    /// Key.
    pub key: &'a [u8],
    /// Hash of the key.
    pub hash: u64,
    /// Value in two parts (the second empty but for append and prepend), the last of them with its line end.
    pub value: (&'a [u8], &'a [u8]),
    /// Client flags.
    pub flags: u32,
    /// Expiry time in seconds since 1970; 0 is never.
    pub expires: u32,
    /// [`STALE`], [`TOKEN_SENT`], [`KEY_BINARY`].
    pub bits: u8,
    /// CAS id.
    pub cas: u64,
    /// Now, in seconds since 1970.
    pub now: u32,
}

impl Content<'_> {
    /// Bytes the item takes.
    pub fn size(&self) -> usize {
        HEAD_LEN + self.key.len() + self.value.0.len() + self.value.1.len()
    }
}

/// What may be said of a place where an item may be, read without a lock.
#[derive(Clone, Copy, Debug)]
pub struct Guess {
    /// CAS id.
    pub cas: u64,
    /// Hash of the key.
    pub hash: u64,
    /// Expiry time.
    pub expires: u32,
    /// Last access.
    pub access: u32,
    /// Usable bytes of the block.
    pub room: u32,
    /// [`Item::uses`].
    pub uses: u8,
}

impl Guess {
    /// Reads where an item's head would be. If there is none, or it is being written, the result is any numbers.
    ///
    /// # Safety
    /// A block of the heap of at least [`HEAD_LEN`] bytes starts at `address`, or did.
    pub unsafe fn at(address: usize) -> Guess {
        // SAFETY: mapped and aligned by the caller's promise; each field is read as one atomic word, which may be stale.
        unsafe {
            let word = |at: usize| AtomicU64::from_ptr((address + at) as *mut u64).load(Relaxed);
            let half = |at: usize| AtomicU32::from_ptr((address + at) as *mut u32).load(Relaxed);
            Guess {
                cas: word(std::mem::offset_of!(Head, cas)),
                hash: word(std::mem::offset_of!(Head, hash)),
                expires: half(std::mem::offset_of!(Head, expires)),
                access: half(std::mem::offset_of!(Head, access)),
                room: half(std::mem::offset_of!(Head, room)),
                uses: AtomicU8::from_ptr((address + std::mem::offset_of!(Head, uses)) as *mut u8).load(Relaxed),
            }
        }
    }
}

/// A live item. A copy is as good as the lock it was found under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item(NonNull<Head>);

impl Item {
    /// The item at `address`. `None` if that is 0, or the item would not lie in its block, or that in the heap, as where a pool is damaged.
    ///
    /// # Safety
    /// The heap is mapped, `address` is what a link of the table holds, and the caller holds the lock of its stripe while it uses the result.
    #[inline]
    pub unsafe fn at(address: u64, heap: &Range<u64>) -> Option<Item> {
        let fits = |len: usize| address >= heap.start && address.checked_add(len as u64).is_some_and(|end| end <= heap.end);
        // SAFETY: the caller's promises; the head is in the heap by the time that its lengths are looked at.
        let item = unsafe { Item::any_at(address) }?;
        (fits(HEAD_LEN) && item.is_sized() && fits(item.room())).then_some(item)
    }

    /// What stands at `address`, whatever that is. `None` where no item can begin.
    ///
    /// # Safety
    /// As of [`at`](Self::at), and the head lies in the heap when it is looked at, and the rest when its key or value are.
    pub unsafe fn any_at(address: u64) -> Option<Item> {
        NonNull::new(address as *mut Head).filter(|head| head.is_aligned()).map(Item)
    }

    /// Its address, as links hold it.
    pub fn address(self) -> u64 {
        self.0.as_ptr() as u64
    }

    /// The block it lives in.
    pub fn block(self) -> NonNull<u8> {
        self.0.cast()
    }

    /// Where its `next` link is.
    pub fn next_slot(self) -> *mut u64 {
        // SAFETY: the item is live (see `at`), so the place is inside its block; no reference is made.
        unsafe { &raw mut (*self.0.as_ptr()).next }
    }

    fn head(&self) -> &Head {
        // SAFETY: the item is live and its stripe is locked by the caller (see `at`), so nobody writes these fields but through
        // the atomics; the persister only reads.
        unsafe { self.0.as_ref() }
    }

    /// The next item's address in the chain, or 0.
    pub fn next(&self) -> u64 {
        self.head().next
    }

    /// CAS id.
    pub fn cas(&self) -> u64 {
        self.head().cas
    }

    /// Whether it was evicted, and came back without key and value when a crash undid that.
    pub fn is_lost(&self) -> bool {
        self.cas() == 0
    }

    /// Hash of the key.
    pub fn hash(&self) -> u64 {
        self.head().hash
    }

    /// Expiry time; 0 is never.
    pub fn expires(&self) -> u32 {
        self.head().expires
    }

    /// Client flags.
    pub fn flags(&self) -> u32 {
        self.head().flags
    }

    /// Length of the value without its line end.
    pub fn value_len(&self) -> usize {
        self.head().value_len as usize
    }

    /// Usable bytes of the block.
    pub fn room(&self) -> usize {
        self.head().room as usize
    }

    /// Bytes in use.
    pub fn size(&self) -> usize {
        HEAD_LEN + usize::from(self.head().key_len) + self.value_len() + 2
    }

    /// Whether its block has room for it, as that of every item has that is not damaged.
    pub fn is_sized(&self) -> bool {
        self.size() <= self.room()
    }

    /// [`STALE`] and so on.
    pub fn bits(&self) -> u8 {
        self.head().bits
    }

    /// Key; any bytes if the item is lost.
    pub fn key(&self) -> &[u8] {
        let len = usize::from(self.head().key_len);
        // SAFETY: the key follows the head inside the block, and is never written while the item is linked.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast::<u8>().add(HEAD_LEN), len) }
    }

    /// Value with its line end.
    pub fn data(&self) -> &[u8] {
        let (start, len) = (HEAD_LEN + usize::from(self.head().key_len), self.value_len() + 2);
        // SAFETY: key, value and line end lie inside the block; the value is written under the stripe lock only.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast::<u8>().add(start), len) }
    }

    /// Whether it was read since it was stored.
    pub fn fetched(&self) -> bool {
        self.head().fetched.load(Relaxed) != 0
    }

    /// When it was last accessed, in seconds since 1970.
    pub fn accessed(&self) -> u32 {
        self.head().access.load(Relaxed)
    }

    /// Notes an access. Not durable, hence without a transaction; the line is written at most once a second, and for the first few reads.
    pub fn touch_access(&self, now: u32, fetched: bool) {
        let head = self.head();
        if head.access.load(Relaxed) != now {
            head.access.store(now, Relaxed);
        }
        if fetched {
            if head.fetched.load(Relaxed) == 0 {
                head.fetched.store(1, Relaxed);
            }
            self.count_use(self.uses());
        }
    }

    /// Uses of its key since it was stored first: reads, and values that took the place of others. Counted up to [`USES_MAX`].
    pub fn uses(&self) -> u8 {
        self.head().uses.load(Relaxed).min(USES_MAX)
    }

    /// Counts a use of its key after `before` others. As an access, it is not durable.
    pub fn count_use(&self, before: u8) {
        if before < USES_MAX {
            self.head().uses.store(before + 1, Relaxed);
        }
    }

    /// Writes a new item into `block`, which is fresh from the transaction's allocator and has `room` usable bytes.
    ///
    /// # Safety
    /// `block` is owned by the caller, already marked, and at least `content.size()` long.
    pub unsafe fn create(block: NonNull<u8>, room: usize, content: &Content<'_>) -> Item {
        let head = Head {
            next: 0,
            cas: content.cas,
            hash: content.hash,
            expires: content.expires,
            flags: content.flags,
            value_len: 0,
            room: u32::try_from(room).unwrap_or(u32::MAX),
            access: AtomicU32::new(content.now),
            key_len: content.key.len() as u8,
            bits: content.bits,
            fetched: AtomicU8::new(0),
            uses: AtomicU8::new(0),
        };
        let item = Item(block.cast());
        // SAFETY: the caller owns the block, and head, key and value fit.
        unsafe {
            item.0.write(head);
            let key = block.as_ptr().add(HEAD_LEN);
            std::ptr::copy_nonoverlapping(content.key.as_ptr(), key, content.key.len());
            item.put_value(content.value);
        }
        item
    }

    /// # Safety
    /// The value fits the block, its lines are marked, and the caller may write them.
    unsafe fn put_value(self, (first, second): (&[u8], &[u8])) {
        let head = self.0.as_ptr();
        // SAFETY: the caller vouches for it.
        unsafe {
            (*head).value_len = (first.len() + second.len() - 2) as u32;
            let value = head.cast::<u8>().add(HEAD_LEN + usize::from((*head).key_len));
            std::ptr::copy_nonoverlapping(first.as_ptr(), value, first.len());
            std::ptr::copy_nonoverlapping(second.as_ptr(), value.add(first.len()), second.len());
        }
    }

    /// Whether new content of `size` bytes may take this block over: it fits, and does not waste the better half of it.
    pub fn can_hold(&self, size: usize) -> bool {
        size <= self.room() && (self.room() <= 256 || size * 2 >= self.room())
    }

    /// Replaces everything but key and links.
    ///
    /// # Safety
    /// The caller holds the stripe lock inside `tx`, and [`can_hold`](Self::can_hold) said yes. `content`'s value does not lie
    /// in this item.
    pub unsafe fn overwrite(self, tx: &Tx<'_>, content: &Content<'_>) {
        let head = self.0.as_ptr();
        // SAFETY: the lock of its stripe, whose items nobody else writes, is held; the lines are marked first; and
        // `can_hold` said that the value fits.
        unsafe {
            tx.mark(head.cast(), content.size());
            (*head).cas = content.cas;
            (*head).expires = content.expires;
            (*head).flags = content.flags;
            (*head).bits = content.bits;
            (*head).access.store(content.now, Relaxed);
            (*head).fetched.store(0, Relaxed);
            self.count_use(self.uses());
            self.put_value(content.value);
        }
    }

    /// Replaces the number in a counter, blanks up to the old length, and gives it a new CAS id.
    ///
    /// # Safety
    /// The caller holds the stripe lock inside `tx`, and `digits` is not longer than the value.
    pub unsafe fn put_number(self, tx: &Tx<'_>, digits: &[u8], cas: u64) {
        debug_assert!(digits.len() <= self.value_len());
        let (len, start) = (self.value_len(), HEAD_LEN + self.key().len());
        let head = self.0.as_ptr();
        // SAFETY: the lock is held, the lines are marked first, and the value is `len` long.
        unsafe {
            tx.mark(head.cast(), self.size());
            (*head).cas = cas;
            let value = head.cast::<u8>().add(start);
            std::ptr::copy_nonoverlapping(digits.as_ptr(), value, digits.len());
            std::ptr::write_bytes(value.add(digits.len()), b' ', len - digits.len());
        }
    }

    /// Changes expiry time, bits and CAS id.
    ///
    /// # Safety
    /// The caller holds the stripe lock inside `tx`.
    pub unsafe fn put_state(self, tx: &Tx<'_>, expires: u32, bits: u8, cas: u64) {
        let head = self.0.as_ptr();
        // SAFETY: the lock is held; the lines are marked first.
        unsafe {
            tx.mark(head.cast(), HEAD_LEN);
            (*head).expires = expires;
            (*head).bits = bits;
            (*head).cas = cas;
        }
    }
}
