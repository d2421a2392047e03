//! Ranges of pages, by number (address / 4096), and sorted sets of them.

use std::ops::Range;

/// Bytes of a page.
pub const PAGE: u64 = towa_media::PAGE as u64;

/// Pages `start..end`, by number.
pub type Pages = Range<u64>;

/// A set of pages as sorted, disjoint ranges that do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageSet(Vec<Pages>);

impl PageSet {
    /// The set that holds nothing.
    pub const fn new() -> PageSet {
        PageSet(Vec::new())
    }

    /// The set of all pages of `ranges`, in any order and overlapping or not.
    pub fn of(ranges: impl IntoIterator<Item = Pages>) -> PageSet {
        let mut all: Vec<Pages> = ranges.into_iter().filter(|range| !range.is_empty()).collect();
        all.sort_unstable_by_key(|range| range.start);
        let mut set = PageSet::new();
        for range in all {
            set.push(range);
        }
        set
    }

    /// Adds a range that starts at or after the start of the last one.
    pub fn push(&mut self, range: Pages) {
        if range.is_empty() {
            return;
        }
        match self.0.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => self.0.push(range),
        }
    }

    /// Its ranges, ascending.
    pub fn ranges(&self) -> &[Pages] {
        &self.0
    }

    /// Number of pages.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it holds `page`.
    pub fn contains(&self, page: u64) -> bool {
        let at = self.0.partition_point(|range| range.end <= page);
        self.0.get(at).is_some_and(|range| range.start <= page)
    }

    /// What is in either.
    pub fn union(&self, other: &PageSet) -> PageSet {
        PageSet::of(self.0.iter().chain(&other.0).cloned())
    }

    /// What is in both.
    pub fn intersection(&self, other: &PageSet) -> PageSet {
        let (mut mine, mut theirs) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut set = PageSet::new();
        while let (Some(a), Some(b)) = (mine.peek(), theirs.peek()) {
            set.push(a.start.max(b.start)..a.end.min(b.end).max(a.start.max(b.start)));
            if a.end < b.end {
                mine.next()
            } else {
                theirs.next()
            };
        }
        set
    }

    /// What is in this one alone.
    pub fn difference(&self, other: &PageSet) -> PageSet {
        let mut set = PageSet::new();
        let mut theirs = other.0.as_slice();
        for range in &self.0 {
            let mut start = range.start;
            while let Some(first) = theirs.first() {
                if first.end <= start {
                    theirs = &theirs[1..];
                } else if first.start < range.end {
                    set.push(start..first.start.max(start));
                    start = first.end;
                    if first.end >= range.end {
                        break;
                    }
                    theirs = &theirs[1..];
                } else {
                    break;
                }
            }
            set.push(start.min(range.end)..range.end);
        }
        set
    }
}

impl From<Pages> for PageSet {
    fn from(range: Pages) -> PageSet {
        PageSet::of([range])
    }
}

impl FromIterator<Pages> for PageSet {
    fn from_iter<T: IntoIterator<Item = Pages>>(ranges: T) -> PageSet {
        PageSet::of(ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::prelude::*;
    use std::collections::BTreeSet;

    fn drawn(rng: &mut SmallRng) -> (PageSet, BTreeSet<u64>) {
        let ranges: Vec<Pages> = (0..rng.random_range(0..8))
            .map(|_| {
                let start = rng.random_range(0..40);
                start..start + rng.random_range(0..9)
            })
            .collect();
        (PageSet::of(ranges.iter().cloned()), ranges.into_iter().flatten().collect())
    }

    #[test]
    fn sets_are_what_a_model_says() {
        let mut rng = SmallRng::seed_from_u64(1);
        for _ in 0..5000 {
            let ((a, in_a), (b, in_b)) = (drawn(&mut rng), drawn(&mut rng));
            let is = |set: PageSet, model: BTreeSet<u64>| {
                assert_eq!(set.ranges().iter().cloned().flatten().collect::<BTreeSet<u64>>(), model, "{a:?} {b:?}");
                assert!(
                    set.ranges().windows(2).all(|pair| pair[0].end < pair[1].start) && set.ranges().iter().all(|r| !r.is_empty())
                );
                assert_eq!(set.count(), model.len() as u64);
                (0..60).for_each(|page| assert_eq!(set.contains(page), model.contains(&page)));
            };
            is(a.clone(), in_a.clone());
            is(a.union(&b), &in_a | &in_b);
            is(a.intersection(&b), &in_a & &in_b);
            is(a.difference(&b), &in_a - &in_b);
        }
    }
}
