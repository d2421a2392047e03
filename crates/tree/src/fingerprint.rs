//! One-byte fingerprints of 48 keys in six words, compared with one byte all at once.
//!
//! ```text
//!   word i:  | slot 8i | 8i+1 | ... | 8i+7 |        least byte first
//! ```
//!
//! A search then looks at one key in 256 slots too many, instead of at every key. What must always hold: the fingerprint of a key is
//! the same for ever (it is stored).

/// Slots of six words.
pub(crate) const SLOTS: usize = 48;

#[cfg(any(test, not(target_arch = "x86_64")))]
const LOW: u64 = 0x0101_0101_0101_0101;
#[cfg(any(test, not(target_arch = "x86_64")))]
const SEVEN: u64 = 0x7F7F_7F7F_7F7F_7F7F;

/// The slots whose fingerprint is `wanted`, as bits.
#[inline]
pub(crate) fn matching(words: [u64; 6], wanted: u8) -> u64 {
    let pairs = words.as_chunks::<2>().0.iter().enumerate();
    pairs.fold(0, |found, (i, pair)| found | sixteen(*pair, wanted) << (16 * i))
}

/// The same of 16 slots.
#[cfg(target_arch = "x86_64")]
#[inline]
fn sixteen([low, high]: [u64; 2], wanted: u8) -> u64 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8};
    // SAFETY: SSE2 is part of x86-64.
    let equal = unsafe { _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_set_epi64x(high as i64, low as i64), _mm_set1_epi8(wanted as i8))) };
    u64::from(equal as u16)
}

/// The same of 16 slots.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn sixteen([low, high]: [u64; 2], wanted: u8) -> u64 {
    eight(low, wanted) | eight(high, wanted) << 8
}

/// The same of eight slots, in any processor's words.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn eight(word: u64, wanted: u8) -> u64 {
    let x = word ^ (LOW * u64::from(wanted));
    // The top bit of each byte that is zero, and of no other: the sum carries into it unless the low seven bits are zero.
    let zero = !((x & SEVEN).wrapping_add(SEVEN) | x | SEVEN);
    // Gathers the bits at 0, 8, 16, ... into the top byte.
    (zero >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
}

/// `word` with the fingerprint of `slot` (within the word: modulo 8) replaced.
#[inline]
pub(crate) fn replaced(word: u64, slot: usize, fingerprint: u8) -> u64 {
    let shift = slot % 8 * 8;
    word & !(0xFF << shift) | u64::from(fingerprint) << shift
}

/// The fingerprint of `slot` in its word (word `slot / 8`).
#[inline]
pub(crate) fn of_slot(word: u64, slot: usize) -> u8 {
    (word >> (slot % 8 * 8)) as u8
}

/// The slots whose bits are set.
#[inline]
pub(crate) fn slots(mut bitmap: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let slot = bitmap.trailing_zeros() as usize;
        let is_one = bitmap != 0;
        bitmap &= bitmap.wrapping_sub(1);
        is_one.then_some(slot)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    #[test]
    fn finds_exactly_the_slots_that_match() {
        let mut rng = SmallRng::seed_from_u64(1);
        for _ in 0..20_000 {
            let mut words = [0; 6];
            let bytes: [u8; SLOTS] = std::array::from_fn(|_| [0, 1, 0x7F, 0x80, 0xFF, rng.random()][rng.random_range(0..6)]);
            bytes.iter().enumerate().for_each(|(i, b)| words[i / 8] = replaced(words[i / 8], i, *b));
            let wanted = bytes[rng.random_range(0..SLOTS)] ^ u8::from(rng.random_ratio(1, 4));
            let expected = bytes.iter().enumerate().filter(|(_, b)| **b == wanted).fold(0, |bits, (i, _)| bits | 1 << i);
            assert_eq!(matching(words, wanted), expected);
            assert_eq!((0..6).fold(0, |bits, i| bits | eight(words[i], wanted) << (8 * i)), expected);
            assert_eq!(slots(expected).fold(0, |bits, i| bits | 1 << i), expected);
            assert!((0..SLOTS).all(|i| of_slot(words[i / 8], i) == bytes[i]));
        }
    }
}
