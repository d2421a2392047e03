//! Files of the Java door: any bytes, and edits of small sound pools. Never a panic, and every report can be said.
//!
//! The first byte of the input says which pool, and whether its sums are made to fit; then edits of eight bytes: what, where, value.
//! Places and values are mostly those of something in the pool: a word that is not zero, a block's beginning.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use towa_java_pool::{Pool, SLOT, WORDS};

const POOLS: [&[u8]; 2] =
    [include_bytes!("../../tests/java-pool/graph.towa"), include_bytes!("../../tests/java-pool/crashed.towa")];

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
}

fn set(bytes: &mut [u8], at: usize, word: u64) {
    if let Some(place) = bytes.get_mut(at..at + 8) {
        place.copy_from_slice(&word.to_le_bytes());
    }
}

/// Where words are that are not zero.
fn places(which: usize) -> &'static [usize] {
    static PLACES: [OnceLock<Vec<usize>>; 2] = [OnceLock::new(), OnceLock::new()];
    PLACES[which].get_or_init(|| (0..POOLS[which].len()).step_by(8).filter(|at| word(POOLS[which], *at) != 0).collect())
}

fn edit(bytes: &mut [u8], places: &[usize], e: &[u8]) {
    let number = |from: usize| usize::from(u16::from_le_bytes([e[from], e[from + 1]]));
    let at = match e[0] % 4 {
        0 => WORDS as usize + number(2) % 6 * 8,
        _ => places[number(2) % places.len()],
    };
    let (old, other) = (word(bytes, at), places[number(4) % places.len()]);
    let new = match e[1] % 8 {
        0 => word(bytes, other),
        1 => other as u64 & !15,
        2 => other as u64 & !4095,
        3 => old ^ 1 << (e[6] % 64),
        4 => u64::MAX >> (e[6] % 64),
        5 => old.wrapping_add(number(4) as u64),
        6 => old & 0xFFFF_FFFF | (number(4) as u64) << 32,
        _ => number(4) as u64,
    };
    set(bytes, at, new);
}

/// Gives superblock and records the sums that fit.
fn seal(bytes: &mut [u8]) {
    for slot in [0, SLOT as usize] {
        let sum = crc32c::crc32c(&bytes[slot..slot + 248]);
        set(bytes, slot + 248, u64::from(sum));
    }
    for head in [24, 32] {
        let mut at = word(bytes, WORDS as usize + head) as usize;
        for _ in 0..50 {
            if at >= bytes.len() {
                break;
            }
            let header = word(bytes, at + 8);
            let from = at + if header as u32 == 2 { 32 } else { 24 };
            let Some(summed) = bytes.get(from..at + (header >> 32) as usize) else { break };
            let sum = crc32c::crc32c(summed);
            bytes[at + 16..at + 20].copy_from_slice(&sum.to_le_bytes());
            at = word(bytes, at) as usize;
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((how, edits)) = input.split_first() else { return };
    let mut bytes = if how % 8 == 7 { edits.to_vec() } else { POOLS[usize::from(how % 2)].to_vec() };
    if how % 8 != 7 {
        edits.chunks_exact(8).take(12).for_each(|e| edit(&mut bytes, places(usize::from(how % 2)), e));
        if how & 16 != 0 {
            seal(&mut bytes);
        }
        if how & 32 != 0 {
            bytes.truncate(bytes.len() * usize::from(how >> 6) / 4 + edits.len() * 61);
        }
    }
    let pool = Pool::of_bytes("bytes", bytes);
    if let Err(error) = pool.describe() {
        assert!(!error.to_string().is_empty());
    }
    if let Ok(report) = pool.verify(&mut |done, all| assert!(done <= all)) {
        assert!(report.problems.len() as u64 <= report.problems_found && report.block_bytes <= report.description.used);
    }
});
