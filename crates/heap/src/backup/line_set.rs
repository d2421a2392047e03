//! A set of lines of a heap, in a bit for each: 2 MiB for a gigabyte, of which only what was touched takes memory.

use std::ops::Range;

const BITS: u64 = u64::BITS as u64;

/// Lines by their index.
#[derive(Debug)]
pub(super) struct LineSet {
    words: Vec<u64>,
}

impl LineSet {
    /// None of `lines` lines.
    pub fn of(lines: u64) -> LineSet {
        LineSet { words: vec![0; lines.div_ceil(BITS) as usize] }
    }

    /// Adds a row; what lies beyond the last line is left out.
    pub fn add(&mut self, row: Range<u64>) {
        let end = row.end.min(self.words.len() as u64 * BITS);
        let mut at = row.start;
        while at < end {
            let (word, bit) = (at / BITS, at % BITS);
            let count = (end - at).min(BITS - bit);
            self.words[word as usize] |= (u64::MAX >> (BITS - count)) << bit;
            at += count;
        }
    }

    /// All rows of neighbouring lines, in their order; the set is empty then.
    pub fn take(&mut self) -> impl Iterator<Item = Range<u64>> + use<> {
        let fresh = vec![0; self.words.len()];
        let words = std::mem::replace(&mut self.words, fresh);
        let mut at = 0;
        std::iter::from_fn(move || {
            let first = next(&words, at, true)?;
            at = next(&words, first, false).unwrap_or(words.len() as u64 * BITS);
            Some(first..at)
        })
    }
}

/// The first line from `from` on that is in the set, or is not.
fn next(words: &[u64], from: u64, is_in: bool) -> Option<u64> {
    let flip = if is_in { 0 } else { u64::MAX };
    let mut mask = u64::MAX << (from % BITS);
    for (number, word) in words.iter().enumerate().skip((from / BITS) as usize) {
        let found = (word ^ flip) & mask;
        if found != 0 {
            return Some(number as u64 * BITS + u64::from(found.trailing_zeros()));
        }
        mask = u64::MAX;
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn it_has_the_lines_that_were_added_in_rows() {
        let mut set = LineSet::of(1000);
        let (mut lines, mut random) = (BTreeSet::new(), 1u64);
        for round in 0..200 {
            for _ in 0..round % 20 {
                random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
                let (first, count) = (random >> 33, random >> 20 & 0xFF);
                let row = first % 1000..(first % 1000 + count).min(1000);
                set.add(row.clone());
                lines.extend(row);
            }
            let rows: Vec<Range<u64>> = set.take().collect();
            assert!(rows.iter().all(|row| !row.is_empty()) && rows.windows(2).all(|two| two[0].end < two[1].start));
            assert_eq!(rows.into_iter().flatten().collect::<BTreeSet<u64>>(), std::mem::take(&mut lines));
        }
        set.add(990..5000);
        assert_eq!(set.take().flatten().count(), 1024 - 990, "to the end of the last word");
        assert_eq!(set.take().next(), None);
    }
}
