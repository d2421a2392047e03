//! Which bytes of sparse regions have been reserved, to catch programs that write where there may be no space: on a full tmpfs
//! that is not an error but SIGBUS.

use std::collections::BTreeMap;

/// Ranges that do not overlap or touch: first byte to end.
#[derive(Debug, Default)]
pub(super) struct Reserved(BTreeMap<u64, u64>);

impl Reserved {
    /// Adds `off..off + len`.
    pub fn add(&mut self, off: u64, len: u64) {
        let (mut first, mut end) = (off, off + len);
        while let Some((&f, &e)) = self.0.range(..=end).next_back().filter(|(_, e)| **e >= first) {
            self.0.remove(&f);
            (first, end) = (first.min(f), end.max(e));
        }
        self.0.insert(first, end);
    }

    /// Whether all of `off..off + len` was added.
    pub fn holds(&self, off: u64, len: u64) -> bool {
        let before = self.0.range(..=off).next_back();
        len == 0 || before.is_some_and(|(_, end)| *end >= off + len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_as_a_set_of_bytes() {
        let mut seed = 1u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..200 {
            let (mut reserved, mut bytes) = (Reserved::default(), [false; 64]);
            for _ in 0..8 {
                let (off, len) = (random(50), random(14));
                reserved.add(off, len);
                bytes[off as usize..(off + len) as usize].fill(true);
                let (off, len) = (random(50), random(14));
                let all = bytes[off as usize..(off + len) as usize].iter().all(|b| *b);
                assert_eq!(reserved.holds(off, len), all, "{reserved:?} {off}+{len}");
            }
        }
    }
}
