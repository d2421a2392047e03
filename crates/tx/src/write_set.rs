//! What a software transaction has written, until it takes effect.
//!
//! ```text
//!   writes:  (address, value) (address, value) ...      in the order of first writing
//!   table:   where in `writes`, by address: open addressing, at most half full; a slot of an older round is empty
//! ```

use crate::view::Addr;

/// Buffered writes: the newest of each word, in the order of first writing.
#[derive(Debug, Default)]
pub(crate) struct WriteSet {
    writes: Vec<(Addr, u64)>,
    /// A bit for some of the address's bits: most reads find at once that their word was not written.
    filter: u64,
    /// Round and number in `writes`. A power of two long.
    table: Vec<(u32, u32)>,
    round: u32,
}

/// Slots of the smallest table.
const SLOTS_MIN: usize = 64;

#[inline(always)]
fn bit(a: Addr) -> u64 {
    1 << ((a >> 3) & 63)
}

impl WriteSet {
    pub fn clear(&mut self) {
        self.writes.clear();
        self.filter = 0;
        self.round = self.round.wrapping_add(1);
        if self.round == 0 {
            // What is left from four thousand million rounds ago must not look new.
            self.table.clear();
            self.round = 1;
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.writes.len()
    }

    /// Address of the `number`-th write.
    #[inline]
    pub fn address(&self, number: usize) -> Addr {
        self.writes[number].0
    }

    #[inline]
    pub fn get(&self, a: Addr) -> Option<u64> {
        if self.filter & bit(a) == 0 {
            return None;
        }
        self.find(a).ok().map(|number| self.writes[number].1)
    }

    /// Where `a` is in `writes`, or else the slot that it may be put into.
    #[inline]
    fn find(&self, a: Addr) -> Result<usize, usize> {
        let mask = self.table.len() - 1;
        let mut at = ((a >> 3).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize & mask;
        loop {
            let (round, number) = self.table[at];
            if round != self.round {
                return Err(at);
            }
            if self.writes[number as usize].0 == a {
                return Ok(number as usize);
            }
            at = (at + 1) & mask;
        }
    }

    #[inline]
    pub fn put(&mut self, a: Addr, value: u64) {
        if (self.writes.len() + 1) * 2 > self.table.len() {
            self.grow();
        }
        match self.find(a) {
            Ok(number) => self.writes[number].1 = value,
            Err(slot) => {
                self.filter |= bit(a);
                self.table[slot] = (self.round, self.writes.len() as u32);
                self.writes.push((a, value));
            }
        }
    }

    #[cold]
    fn grow(&mut self) {
        let slots = (self.table.len() * 2).max(SLOTS_MIN);
        self.table.clear();
        // Of no round: rounds begin with 1.
        self.round = self.round.max(1);
        self.table.resize(slots, (0, 0));
        for number in 0..self.writes.len() {
            let Err(slot) = self.find(self.writes[number].0) else { unreachable!("no address stands twice in `writes`") };
            self.table[slot] = (self.round, number as u32);
        }
    }

    #[inline]
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
        set.put(0x1000, 1);
        assert_eq!((set.get(0x1000), set.get(0x1008), set.iter().len()), (Some(1), None, 1));
    }

    #[test]
    fn a_round_whose_number_comes_again_is_empty() {
        let mut set = WriteSet::default();
        set.clear();
        set.put(0x1000, 1);
        set.round = u32::MAX;
        set.clear();
        assert_eq!((set.round, set.get(0x1000)), (1, None));
        set.put(0x1008, 2);
        assert_eq!((set.get(0x1000), set.get(0x1008)), (None, Some(2)));
    }
}
