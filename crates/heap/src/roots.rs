//! The root table: named pointers in the heap's first chunk.
//!
//! ```text
//!   offset 0 of the heap:  | 1024 slots of 128 bytes |      two lines a slot, so that no two roots share a line
//!   slot: | name length u8 | name, 40 bytes | pad | type tag u64 | size u64 | pointer u64 (0: free) | ... |
//! ```
//!
//! Slots are ordinary heap bytes: changing one is marked and becomes durable with its epoch. The directory of names is kept in
//! DRAM and read from the slots at open.

use std::collections::HashMap;
use std::ptr::NonNull;

use bytemuck::{Pod, Zeroable};
use parking_lot::Mutex;

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
    reserved: [u64; 7],
}

const _: () = assert!(size_of::<Slot>() == SLOT);

/// The directory of a heap's roots.
#[derive(Debug)]
pub struct RootTable {
    base: NonNull<u8>,
    directory: Mutex<Directory>,
}

// SAFETY: slots are read at `new` and written under the directory's lock by transactions that hold their lines.
unsafe impl Send for RootTable {}
// SAFETY: as above.
unsafe impl Sync for RootTable {}

#[derive(Debug, Default)]
struct Directory {
    roots: HashMap<String, (usize, Root)>,
    /// Per slot: the epoch that last wrote it. An older transaction must not write its lines.
    written: Vec<u64>,
}

impl RootTable {
    /// The table at `base`. A slot that cannot be is an error that says so.
    ///
    /// # Safety
    /// `base..base + TABLE_LEN` is the start of a heap, mapped for as long as the table lives; `in_heap` tells addresses of it.
    pub(crate) unsafe fn new(base: NonNull<u8>, in_heap: impl Fn(u64) -> bool) -> Result<RootTable, String> {
        let mut directory = Directory { roots: HashMap::new(), written: vec![0; SLOTS] };
        for i in 0..SLOTS {
            // SAFETY: within the table, which the caller vouches for; any bytes are a Slot.
            let slot = unsafe { base.as_ptr().add(i * SLOT).cast::<Slot>().read_unaligned() };
            if let Some((name, root)) = decode(&slot, i, &in_heap)? {
                directory.roots.insert(name, (i, root));
            }
        }
        Ok(RootTable { base, directory: Mutex::new(directory) })
    }

    /// Checks the table in `bytes` (its first [`TABLE_LEN`]); gives the names.
    pub(crate) fn check(bytes: &[u8], in_heap: impl Fn(u64) -> bool) -> Result<Vec<String>, String> {
        let mut names = Vec::new();
        for (i, slot) in bytes.chunks_exact(SLOT).take(SLOTS).enumerate() {
            names.extend(decode(&bytemuck::pod_read_unaligned(slot), i, &in_heap)?.map(|(name, _)| name));
        }
        Ok(names)
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
    pub fn set(&self, epoch: u64, name: &str, root: Option<Root>, mark: impl Fn(usize, usize)) -> Result<(), String> {
        if name.is_empty() || name.len() > ROOT_NAME_MAX {
            return Err(format!("root name {name:?} has {} bytes; names have 1 to {ROOT_NAME_MAX}", name.len()));
        }
        let mut directory = self.directory.lock();
        let known = directory.roots.get(name).map(|r| r.0);
        let Some(i) = known.or_else(|| directory.free_slot(epoch)) else {
            return Err(format!("no room for root {name:?}: {SLOTS} roots at most"));
        };
        if known.is_none() && root.is_none() {
            return Ok(());
        }
        let mut slot = Slot::zeroed();
        if let Some(r) = root {
            slot.name_len = name.len() as u8;
            slot.name[..name.len()].copy_from_slice(name.as_bytes());
            (slot.type_tag, slot.size, slot.ptr) = (r.type_tag, r.size, r.ptr.as_ptr() as u64);
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

    /// Reads the directory again from the slots, after a transaction that changed it was rolled back.
    pub fn reload(&self, in_heap: impl Fn(u64) -> bool) {
        // SAFETY: the table of this heap, as in `new`.
        if let Ok(fresh) = unsafe { RootTable::new(self.base, in_heap) } {
            self.directory.lock().roots = fresh.directory.into_inner().roots;
        }
    }
}

impl Directory {
    fn free_slot(&self, epoch: u64) -> Option<usize> {
        let used: Vec<usize> = self.roots.values().map(|r| r.0).collect();
        (0..SLOTS).find(|i| self.written[*i] <= epoch && !used.contains(i))
    }
}

fn decode(slot: &Slot, i: usize, in_heap: &impl Fn(u64) -> bool) -> Result<Option<(String, Root)>, String> {
    let Some(ptr) = NonNull::new(slot.ptr as *mut u8) else {
        return Ok(None);
    };
    let len = usize::from(slot.name_len);
    let name = slot.name.get(..len).and_then(|n| std::str::from_utf8(n).ok()).filter(|n| !n.is_empty());
    match name {
        Some(name) if in_heap(slot.ptr) => Ok(Some((name.into(), Root { ptr, type_tag: slot.type_tag, size: slot.size }))),
        _ => Err(format!("root slot {i} is damaged")),
    }
}
