//! The one checksum of all pool formats: XXH3-64, seeded so that equal bytes in different places do not validate each other.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// XXH3-64 of `bytes` under `seed`. Never 0, so that zeroed memory does not validate.
pub fn checksum(seed: u64, bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, seed).max(1)
}
