//! `Vector<[u8]>`: a [`Vector`] of items whose size only the running program knows, for callers without a type for them (C).
//!
//! What lies in the pool is what [`Vector`] puts there: a `Vector<u64>` and a `Vector<[u8]>` of 8-byte items are the same vector.

use super::{Shared, Vector};
use crate::Result;
use crate::segments::SEGMENT;
use std::marker::PhantomData;
use towa_epoch::typed::scope;
use towa_epoch::{Pool, Thread};

impl Vector<[u8]> {
    /// The vector of `item_size`-byte items named `name`, created if the pool has none: for callers that have no type for them.
    ///
    /// # Errors
    /// [`Error::WrongKind`](crate::Error::WrongKind) if the name is taken by something else, or by a vector of values of another size;
    /// [`towa_epoch::Error::Usage`] if `item_size` is 0 or beyond 64 KiB; [`Error::Epoch`](crate::Error::Epoch).
    pub fn open_sized(pool: &Pool, name: &str, item_size: usize) -> Result<Self> {
        if item_size == 0 || item_size > SEGMENT {
            let why = format!("a vector holds items of 1 to {SEGMENT} bytes, not of {item_size}: store larger ones in a map");
            return Err(towa_epoch::Error::Usage(why).into());
        }
        Ok(Self { shared: Shared::open(pool, name, item_size)?, of: PhantomData })
    }

    /// Bytes of an item.
    pub fn item_size(&self) -> usize {
        self.shared.shape.size
    }

    /// Runs `f` on the item at `i` while nobody changes it; `None` beyond the end. `f` must be short, and can use no other container.
    ///
    /// # Errors
    /// Inside a transaction of the same thread.
    pub fn get_with<R>(&self, i: u64, f: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let _scope = scope::read()?;
        self.shared.get(self.shared.shape, i, f)
    }

    /// Stores `item` at `i`; `false` beyond the end.
    ///
    /// # Errors
    /// [`Error::Epoch`](crate::Error::Epoch); nothing has changed then.
    ///
    /// # Panics
    /// If the item is of another size.
    pub fn set_bytes(&self, thread: &mut Thread, i: u64, item: &[u8]) -> Result<bool> {
        assert_eq!(item.len(), self.item_size(), "an item of a vector's size");
        Ok(self.shared.update(self.shared.shape, thread, i, |_| item)?.is_some())
    }

    /// Appends `item`; gives its index.
    ///
    /// # Errors
    /// [`Error::Full`](crate::Error::Full), [`Error::Epoch`](crate::Error::Epoch) (out of space, ...); nothing has changed then.
    ///
    /// # Panics
    /// If the item is of another size.
    pub fn push_bytes(&self, thread: &mut Thread, item: &[u8]) -> Result<u64> {
        assert_eq!(item.len(), self.item_size(), "an item of a vector's size");
        self.shared.push(self.shared.shape, thread, item)
    }

    /// Removes the last item after running `f` on it; `None` if there is none. `f` must be short, and can use no other container.
    ///
    /// # Errors
    /// [`Error::Epoch`](crate::Error::Epoch); nothing has changed then.
    pub fn pop_with<R>(&self, thread: &mut Thread, f: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        self.shared.pop(self.shared.shape, thread, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use towa_epoch::Options;

    #[test]
    fn typed_and_untyped_are_one_vector() {
        let pool = Pool::volatile(&Options { heap_len: 64 << 20, ..Options::default() }).expect("a pool");
        let mut thread = pool.register().expect("registers");
        let typed = Vector::<[u64; 3]>::open(&pool, "v").expect("opens");
        let bytes = Vector::<[u8]>::open_sized(&pool, "v", 24).expect("opens");
        for i in 0..10_000u64 {
            if i % 2 == 0 {
                typed.push(&mut thread, &[i, i, i]).expect("pushes");
            } else {
                let item: Vec<u8> = [i, i, i].iter().flat_map(|n| n.to_ne_bytes()).collect();
                assert_eq!(bytes.push_bytes(&mut thread, &item).expect("pushes"), i);
            }
        }
        assert_eq!(typed.get(4001).expect("reads"), Some([4001; 3]));
        assert_eq!(bytes.get_with(4002, |b| b[8..16].to_vec()).expect("reads"), Some(4002u64.to_ne_bytes().to_vec()));
        assert!(bytes.set_bytes(&mut thread, 4002, &[1; 24]).expect("sets"));
        assert!(!bytes.set_bytes(&mut thread, 10_000, &[1; 24]).expect("is beyond the end"));
        assert_eq!(typed.get(4002).expect("reads"), Some([u64::from_ne_bytes([1; 8]); 3]));
        assert_eq!(bytes.pop_with(&mut thread, <[u8]>::to_vec).expect("pops").map(|b| b.len()), Some(24));
        assert_eq!((bytes.len(), typed.check().expect("is whole")), (9_999, 9_999));
        bytes.clear(&mut thread).expect("clears");
        assert_eq!(typed.pop(&mut thread).expect("is empty"), None);
    }

    #[test]
    fn sizes_that_make_no_sense_are_refused() {
        let pool = Pool::volatile(&Options { heap_len: 64 << 20, ..Options::default() }).expect("a pool");
        for size in [0, SEGMENT + 1, usize::MAX] {
            assert!(matches!(Vector::<[u8]>::open_sized(&pool, "v", size), Err(Error::Epoch(_))), "{size}");
        }
        let _held = Vector::<[u8]>::open_sized(&pool, "v", SEGMENT).expect("the largest");
        assert!(matches!(Vector::<[u8]>::open_sized(&pool, "v", 8), Err(Error::WrongKind { .. })));
        assert!(matches!(Vector::<u64>::open(&pool, "v"), Err(Error::WrongKind { .. })));
    }
}
