//! What a software transaction has written, until it takes effect.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::view::Addr;

/// Buffered writes: the newest of each word, in the order of first writing.
#[derive(Debug, Default)]
pub(crate) struct WriteSet {
    writes: Vec<(Addr, u64)>,
    /// A bit for some of the address's bits: most reads find at once that their word was not written.
    filter: u64,
    /// Where in `writes`, once they are many.
    index: HashMap<Addr, u32, BuildHasherDefault<AddrHasher>>,
}

/// Up to so many writes are searched in order.
const SEARCHED: usize = 8;

#[derive(Default)]
pub(crate) struct AddrHasher(u64);

impl Hasher for AddrHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("addresses are words")
    }
    fn write_u64(&mut self, a: u64) {
        self.0 = (a >> 3).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(26);
    }
}

fn bit(a: Addr) -> u64 {
    1 << ((a >> 3) & 63)
}

impl WriteSet {
    pub fn clear(&mut self) {
        self.writes.clear();
        self.filter = 0;
        self.index.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    pub fn get(&self, a: Addr) -> Option<u64> {
        if self.filter & bit(a) == 0 {
            return None;
        }
        self.find(a).map(|at| self.writes[at].1)
    }

    fn find(&self, a: Addr) -> Option<usize> {
        if self.writes.len() <= SEARCHED {
            self.writes.iter().position(|w| w.0 == a)
        } else {
            self.index.get(&a).map(|at| *at as usize)
        }
    }

    pub fn put(&mut self, a: Addr, value: u64) {
        if self.filter & bit(a) != 0
            && let Some(at) = self.find(a)
        {
            self.writes[at].1 = value;
            return;
        }
        self.filter |= bit(a);
        self.writes.push((a, value));
        match self.writes.len() {
            n if n == SEARCHED + 1 => self.index.extend(self.writes.iter().enumerate().map(|(at, w)| (w.0, at as u32))),
            n if n > SEARCHED => {
                self.index.insert(a, n as u32 - 1);
            }
            _ => {}
        }
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = (Addr, u64)> + '_ {
        self.writes.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_of_each_word_is_kept_however_many_there_are() {
        let mut set = WriteSet::default();
        for turn in 0..3u64 {
            for n in 0..40u64 {
                assert_eq!(set.get(0x1000 + n * 8), (turn > 0).then(|| (turn - 1) * 100 + n));
                set.put(0x1000 + n * 8, turn * 100 + n);
            }
        }
        assert_eq!(set.iter().len(), 40);
        assert!(set.iter().all(|(a, v)| v == 200 + (a - 0x1000) / 8));
        set.clear();
        assert!(set.is_empty() && set.get(0x1000).is_none());
    }
}
