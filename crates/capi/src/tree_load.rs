//! `towa_tree_bulk_load`: filling an empty tree.
//!
//! What must always hold: nobody else works on the tree meanwhile. Whoever does holds its lock, for the time of his call or as a session.

use crate::container::{bytes, guard_count};
use crate::dtx_run::refuse_in_body;
use crate::error::{self, Failure};
use crate::given::Given;
use crate::tree::{Kept, Tree};
use std::ffi::c_void;
use std::sync::atomic::Ordering;

/// The entries, as C gave them.
struct Entries<'c> {
    keys: &'c [*const c_void],
    /// None: 8 bytes each.
    lens: Option<&'c [usize]>,
    values: &'c [u64],
}

/// # Safety
/// `at` is NULL, or has `count` elements that stay as they are during the call.
unsafe fn array<'c, T>(at: *const T, count: usize, what: &str) -> Result<&'c [T], Failure> {
    match (at.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Failure::invalid(format!("towa_tree_bulk_load: no {what} (NULL) of {count} entries"))),
        (false, _) if count > isize::MAX as usize / size_of::<T>() => {
            Err(Failure::invalid(format!("towa_tree_bulk_load: {count} entries are more than memory holds")))
        }
        // SAFETY: by this function's contract.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(at, count) }),
    }
}

impl<'c> Entries<'c> {
    /// All keys and values; nothing is loaded before each of them was looked at.
    ///
    /// # Safety
    /// The arrays are NULL or have `count` elements, and each key has the length said.
    unsafe fn of(
        keys: *const *const c_void,
        lens: *const usize,
        values: *const u64,
        count: usize,
        numbers: bool,
    ) -> Result<Entries<'c>, Failure> {
        // SAFETY: by this function's contract.
        let (keys, values) = unsafe { (array(keys, count, "keys")?, array(values, count, "values")?) };
        let lens = match lens.is_null() && numbers {
            true => None,
            // SAFETY: by this function's contract.
            false => Some(unsafe { array(lens, count, "lengths of keys") }?),
        };
        let entries = Entries { keys, lens, values };
        for (i, &key) in keys.iter().enumerate() {
            // SAFETY: by this function's contract.
            let key = unsafe { bytes(key, entries.len(i), "key") }
                .map_err(|e| Failure::new(e.code, format!("entry {i} to load: {}", e.message)))?;
            if numbers && key.len() != 8 {
                let why = format!("entry {i} to load: the tree's keys are uint64_t; this one has {} bytes, not 8", key.len());
                return Err(Failure::invalid(why));
            }
        }
        Ok(entries)
    }

    fn len(&self, i: usize) -> usize {
        self.lens.map_or(8, |lens| lens[i])
    }

    fn texts(&self) -> impl Iterator<Item = (&'c [u8], u64)> {
        let key = |i: usize| match self.len(i) {
            0 => &[],
            // SAFETY: looked at in `of`: not NULL, and of that length by its contract.
            len => unsafe { std::slice::from_raw_parts(self.keys[i].cast(), len) },
        };
        self.values.iter().enumerate().map(move |(i, value)| (key(i), *value))
    }

    fn numbers(&self) -> impl Iterator<Item = (u64, u64)> {
        self.texts().map(|(key, value)| (u64::from_ne_bytes(key.try_into().expect("looked at")), value))
    }
}

/// Fills an empty tree with entries of rising keys: how many there were, or a negative code.
///
/// # Safety
/// `tree` is NULL or a tree's handle; the arrays are NULL or have `count` elements, and each key has the length said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_tree_bulk_load(
    tree: *mut Given<Tree>,
    keys: *const *const c_void,
    key_lens: *const usize,
    values: *const u64,
    count: usize,
) -> i64 {
    guard_count("towa_tree_bulk_load", || {
        refuse_in_body("towa_tree_bulk_load")?;
        // SAFETY: handed on.
        let tree = unsafe { Given::look(tree) }?;
        let busy =
            |who: &str| Failure::new(error::EBUSY, format!("{}: {who}; a tree is loaded while nobody else uses it", tree.name));
        let mut kept = tree.kept.try_write().ok_or_else(|| busy("another thread uses it"))?;
        // Who opens one holds the lock meanwhile.
        if tree.sessions.load(Ordering::Acquire) != 0 {
            return Err(busy("sessions are open"));
        }
        let numbers = matches!(*kept, Kept::BpU64(_) | Kept::FpU64(_));
        // SAFETY: handed on.
        let entries = unsafe { Entries::of(keys, key_lens, values, count, numbers) }?;
        let loaded = match &mut *kept {
            Kept::BpU64(tree) => tree.bulk_load(entries.numbers()),
            Kept::BpBytes(tree) => tree.bulk_load(entries.texts()),
            Kept::FpU64(tree) => tree.bulk_load(entries.numbers()),
            Kept::FpBytes(tree) => tree.bulk_load(entries.texts()),
        };
        loaded.map_err(|e| match e {
            towa_tree::Error::Mismatch { .. } => Failure::usage(e.to_string()),
            other => other.into(),
        })
    })
}
