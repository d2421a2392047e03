//! Files of a small pool as bytes, to be damaged.

use towa_media::sim::SimMedium;
use towa_media::{Access, Medium};

/// All of file `name`.
pub fn content(medium: &SimMedium, name: &str) -> Vec<u8> {
    let region = medium.open(name, Access::ReadOnly).expect("a file of the pool");
    let mut bytes = vec![0; region.len() as usize];
    region.read(0, &mut bytes).expect("readable");
    bytes
}

/// The word at `at`.
pub fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Makes it that.
pub fn set(bytes: &mut [u8], at: usize, word: u64) {
    bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
}
