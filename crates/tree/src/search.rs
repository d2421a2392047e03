//! Where a key's place is among the sorted ones of a node.

use std::hint;

/// How many of the first `count` items `passes` is true of, asked by number: they come first. Whatever it answers, the result is no greater than
/// `count`.
#[inline(always)]
pub(crate) fn passing(count: usize, passes: impl Fn(usize) -> bool) -> usize {
    // Without branches that nobody could foretell: how many rounds there are depends on the count alone.
    let (mut from, mut len) = (0, count);
    while len > 1 {
        let half = len / 2;
        from += hint::select_unpredictable(passes(from + half - 1), half, 0);
        len -= half;
    }
    from + usize::from(len == 1 && passes(from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_how_many_pass() {
        for count in 0..=100 {
            for wanted in 0..=count {
                let passes = |at: usize| {
                    assert!(at < count);
                    at < wanted
                };
                assert_eq!(passing(count, passes), wanted, "of {count}");
            }
            for answers in 0..1000u64 {
                let any = |at: usize| (answers.wrapping_mul(0x9E37_79B9_7F4A_7C15)) >> (at % 64) & 1 == 1;
                assert!(passing(count, any) <= count);
            }
        }
    }
}
