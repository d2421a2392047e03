//! The root table: named pointers in the heap's first chunk.
//!
//! ```text
//!   offset 0 of the heap:  | 1024 slots of 128 bytes |      two lines a slot, so that no two roots share a line
//!   slot: | name length u8 | name, 40 bytes | pad | type tag u64 | size u64 | pointer u64 | ... | checksum u64 |
//! ```
//!
//! Slots are ordinary heap bytes: changing one is marked and becomes durable with its epoch. The directory of names is kept in
//! DRAM and read from the slots at open.
//!
//! What must always hold: every slot has a right checksum, as that of this slot and no other. A free slot has one, too, and zeros
//! before it. So zeros in the place of the table, which a copy or a repair may leave, are damage and not a heap without roots.

use std::collections::HashMap;
use std::ptr::NonNull;

use bytemuck::{Pod, Zeroable};
use parking_lot::Mutex;

use crate::checksum::checksum;

/// Longest root name in bytes.
pub const ROOT_NAME_MAX: usize = 40;
const SLOTS: usize = 1024;
const SLOT: usize = 128;
/// Bytes of the table.
pub(crate) const TABLE_LEN: u64 = (SLOTS * SLOT) as u64;

/// A named pointer that survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// The object.
    pub ptr: NonNull<u8>,
    /// What the program said it is (a hash of a type's name, a version); checked by the program.
    pub type_tag: u64,
    /// Its size in bytes as given.
    pub size: u64,
}

// SAFETY: a root is an address with a name; what it points to is governed by the pool's rules, not by this value.
unsafe impl Send for Root {}
// SAFETY: as above.
unsafe impl Sync for Root {}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Slot {
    name_len: u8,
    name: [u8; ROOT_NAME_MAX],
    pad: [u8; 7],
    type_tag: u64,
    size: u64,
    ptr: u64,
    reserved: [u64; 6],
    /// Of all bytes before, seeded with the slot's number.
    checksum: u64,
}

const _: () = assert!(size_of::<Slot>() == SLOT);

impl Slot {
    /// Slot `i` when it is free.
    fn free(i: usize) -> Slot {
        let mut slot = Slot::zeroed();
        slot.checksum = slot.sum(i);
        slot
    }

    fn sum(&self, i: usize) -> u64 {
        checksum(i as u64, &self.body())
    }

    /// All bytes before the checksum.
    fn body(&self) -> [u8; SLOT - 8] {
        bytemuck::bytes_of(self)[..SLOT - 8].try_into().expect("a slot is as long")
    }
}

/// The bytes of a table without roots: what a new heap begins with.
pub(crate) fn empty_table() -> Vec<u8> {
    (0..SLOTS).flat_map(|i| bytemuck::cast::<Slot, [u8; SLOT]>(Slot::free(i))).collect()
}

/// Whether `bytes`, the beginning of a file `image`, are what a creation that was interrupted may have left of an empty table: slots
/// without a name, some of which may lack their checksum.
pub(crate) fn holds_no_root(bytes: &[u8]) -> bool {
    bytes.chunks(SLOT).all(|slot| slot.iter().take(SLOT - 8).all(|byte| *byte == 0))
}

/// The directory of a heap's roots.
#[derive(Debug)]
pub struct RootTable {
    base: NonNull<u8>,
    directory: Mutex<Directory>,
}

// SAFETY: slots are read at `new`, and read and written under the directory's lock, by transactions that hold their lines.
unsafe impl Send for RootTable {}
// SAFETY: as above.
unsafe impl Sync for RootTable {}

/// By name: the slot, and what it says.
type Roots = HashMap<String, (usize, Root)>;

#[derive(Debug, Default)]
struct Directory {
    roots: Roots,
    /// Per slot: the epoch that last wrote it. An older transaction must not write its lines.
    written: Vec<u64>,
}

impl RootTable {
    /// The table at `base`. A slot that cannot be is an error that says so.
    ///
    /// # Safety
    /// `base..base + TABLE_LEN` is the start of a heap, mapped for as long as the table lives; `in_heap` tells addresses of it.
    pub(crate) unsafe fn new(base: NonNull<u8>, in_heap: impl Fn(u64) -> bool) -> Result<RootTable, String> {
        // SAFETY: the table, which the caller vouches for; nobody else knows it yet.
        let roots = unsafe { read_slots(base, in_heap) }?;
        Ok(RootTable { base, directory: Mutex::new(Directory { roots, written: vec![0; SLOTS] }) })
    }

    /// Checks the table in `bytes` (its first [`TABLE_LEN`]); gives the names, in the order of their slots.
    pub(crate) fn check(bytes: &[u8], in_heap: impl Fn(u64) -> bool) -> Result<Vec<String>, String> {
        let slots = bytes.chunks_exact(SLOT).take(SLOTS).map(bytemuck::pod_read_unaligned);
        let mut found: Vec<_> = decode_all(slots, in_heap)?.into_iter().map(|(name, (slot, _))| (slot, name)).collect();
        found.sort();
        Ok(found.into_iter().map(|(_, name)| name).collect())
    }

    /// The root of this name.
    pub fn get(&self, name: &str) -> Option<Root> {
        self.directory.lock().roots.get(name).map(|r| r.1)
    }

    /// All names.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.directory.lock().roots.keys().cloned().collect();
        names.sort();
        names
    }

    /// Sets or removes root `name` in a transaction of `epoch`; `mark` is called before each write with address and length.
    ///
    /// # Safety
    /// The caller is in a transaction of `epoch`. Whoever reads the root later believes it: an object of its type and size lies there,
    /// in this heap, for as long as the root names it.
    pub unsafe fn set(&self, epoch: u64, name: &str, root: Option<Root>, mark: impl Fn(usize, usize)) -> Result<(), String> {
        if name.is_empty() || name.len() > ROOT_NAME_MAX {
            return Err(format!("root name {name:?} has {} bytes; names have 1 to {ROOT_NAME_MAX}", name.len()));
        }
        let mut directory = self.directory.lock();
        let known = directory.roots.get(name).map(|r| r.0);
        if known.is_none() && root.is_none() {
            return Ok(());
        }
        let Some(i) = known.or_else(|| directory.free_slot(epoch)) else {
            return Err(format!("no room for root {name:?}: {SLOTS} roots at most"));
        };
        let mut slot = Slot::free(i);
        if let Some(r) = root {
            slot.name_len = name.len() as u8;
            slot.name[..name.len()].copy_from_slice(name.as_bytes());
            (slot.type_tag, slot.size, slot.ptr) = (r.type_tag, r.size, r.ptr.as_ptr() as u64);
            slot.checksum = slot.sum(i);
        }
        let at = self.base.as_ptr().wrapping_add(i * SLOT);
        mark(at as usize, SLOT);
        // SAFETY: within the table; marked; no other transaction writes this slot (the directory's lock, and the epoch rule of `written`).
        unsafe { at.cast::<Slot>().write_unaligned(slot) };
        directory.written[i] = epoch;
        match root {
            Some(r) => directory.roots.insert(name.into(), (i, r)),
            None => directory.roots.remove(name),
        };
        Ok(())
    }

    /// Reads the directory again from the slots, after a transaction that changed it was rolled back. A slot that cannot be is an error
    /// that says so: somebody overwrote it.
    pub fn reload(&self, in_heap: impl Fn(u64) -> bool) -> Result<(), String> {
        // Locked before the first slot is read: a root that another thread sets meanwhile would be forgotten.
        let mut directory = self.directory.lock();
        // SAFETY: the table of this heap, as in `new`; slots are written under this lock alone.
        directory.roots = unsafe { read_slots(self.base, in_heap) }?;
        Ok(())
    }
}

impl Directory {
    fn free_slot(&self, epoch: u64) -> Option<usize> {
        let used: Vec<usize> = self.roots.values().map(|r| r.0).collect();
        (0..SLOTS).find(|i| self.written[*i] <= epoch && !used.contains(i))
    }
}

/// The roots in the table at `base`.
///
/// # Safety
/// `base..base + TABLE_LEN` is mapped, and nobody writes it meanwhile.
unsafe fn read_slots(base: NonNull<u8>, in_heap: impl Fn(u64) -> bool) -> Result<Roots, String> {
    // SAFETY: within the table, which the caller vouches for; any bytes are a Slot.
    decode_all((0..SLOTS).map(|i| unsafe { base.as_ptr().add(i * SLOT).cast::<Slot>().read_unaligned() }), in_heap)
}

fn decode_all(slots: impl Iterator<Item = Slot>, in_heap: impl Fn(u64) -> bool) -> Result<Roots, String> {
    let mut roots = Roots::new();
    for (i, slot) in slots.enumerate() {
        let Some((name, root)) = decode(&slot, i, &in_heap)? else { continue };
        if let Some((other, _)) = roots.insert(name, (i, root)) {
            return Err(format!("root slot {i} is damaged: it has the name of slot {other}"));
        }
    }
    Ok(roots)
}

fn decode(slot: &Slot, i: usize, in_heap: &impl Fn(u64) -> bool) -> Result<Option<(String, Root)>, String> {
    if slot.body() == [0; SLOT - 8] {
        return match slot.checksum {
            0 => Err(format!("root slot {i} is zeros, which no pool leaves there")),
            sum if sum == slot.sum(i) => Ok(None),
            _ => Err(format!("root slot {i} is damaged")),
        };
    }
    let len = usize::from(slot.name_len);
    let name = slot.name.get(..len).and_then(|n| std::str::from_utf8(n).ok()).filter(|n| !n.is_empty());
    match (name, NonNull::new(slot.ptr as *mut u8)) {
        (Some(name), Some(ptr)) if slot.checksum == slot.sum(i) && in_heap(slot.ptr) => {
            Ok(Some((name.into(), Root { ptr, type_tag: slot.type_tag, size: slot.size })))
        }
        _ => Err(format!("root slot {i} is damaged")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Aligned as a heap is.
    fn table() -> (RootTable, Vec<u64>) {
        let mut memory: Vec<u64> = empty_table().chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
        let base = NonNull::new(memory.as_mut_ptr().cast()).unwrap();
        // SAFETY: the memory goes with the table.
        (unsafe { RootTable::new(base, |_| true) }.unwrap(), memory)
    }

    fn set(table: &RootTable, name: &str, at: usize) {
        let root = Root { ptr: NonNull::new(at as *mut u8).unwrap(), type_tag: 1, size: 2 };
        // SAFETY: nobody follows these.
        unsafe { table.set(1, name, Some(root), |_, _| ()) }.unwrap();
    }

    /// A transaction that is rolled back reads the slots again. One of another thread set its root in the middle of that, and the
    /// directory forgot it.
    #[test]
    fn a_root_set_during_a_reload_is_not_forgotten() {
        let (table, _memory) = table();
        set(&table, "gone", 64);
        set(&table, "first", 64);
        // Its slot, which is read before that of "first", is the one that "second" will take.
        // SAFETY: nobody follows these.
        unsafe { table.set(1, "gone", None, |_, _| ()) }.unwrap();
        std::thread::scope(|scope| {
            let mut other = None;
            let other = std::cell::RefCell::new(&mut other);
            let reading = |_| {
                let table = &table;
                other.borrow_mut().get_or_insert_with(|| scope.spawn(move || set(table, "second", 128)));
                std::thread::sleep(std::time::Duration::from_millis(50));
                true
            };
            table.reload(reading).unwrap();
        });
        assert_eq!(table.names(), ["first", "second"]);
    }

    #[test]
    fn a_full_table_takes_no_more_names_and_all_else() {
        let (table, _memory) = table();
        (0..SLOTS).for_each(|i| set(&table, &format!("root {i}"), 64));
        let root = Root { ptr: NonNull::new(64 as *mut u8).unwrap(), type_tag: 1, size: 2 };
        // SAFETY: nobody follows these.
        let change = |name, root| unsafe { table.set(1, name, root, |_, _| ()) };
        assert!(change("one more", Some(root)).unwrap_err().contains("1024 roots at most"));
        change("one more", None).expect("there is none to remove");
        change("root 7", Some(root)).expect("it has its slot");
        change("root 7", None).unwrap();
        change("one more", Some(root)).expect("a slot is free");
        assert_eq!(table.names().len(), SLOTS);
    }

    /// A copy, a repair or a rescue may leave zeros where the table was: not a heap without roots.
    #[test]
    fn zeros_are_no_free_slot() {
        let table = empty_table();
        assert_eq!(RootTable::check(&table, |_| true).unwrap(), [""; 0]);
        for (from, len) in [(0, table.len()), (0, 4096), (SLOT * 5, SLOT), (SLOT - 8, 8)] {
            let mut damaged = table.clone();
            damaged[from..from + len].fill(0);
            let slot = from / SLOT;
            assert_eq!(
                RootTable::check(&damaged, |_| true).unwrap_err(),
                format!("root slot {slot} is zeros, which no pool leaves there")
            );
        }
        let mut moved = table.clone();
        moved.copy_within(0..SLOT, SLOT);
        assert_eq!(RootTable::check(&moved, |_| true).unwrap_err(), "root slot 1 is damaged");
    }

    #[test]
    fn a_slot_that_somebody_overwrote_is_told() {
        let (table, mut memory) = table();
        set(&table, "first", 64);
        memory[2] ^= 1;
        assert_eq!(table.reload(|_| true).unwrap_err(), "root slot 0 is damaged");
        assert!(table.get("first").is_some(), "what was known is kept");
        memory[2] ^= 1;
        table.reload(|_| true).unwrap();
    }
}
