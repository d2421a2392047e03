//! Split programs, fed with anything: bytes that are to be a program, and damaged halves of a sound one. Never a panic; what is split is
//! given back to the byte, and damaged halves give the original or nothing.
//!
//! The first byte of the input says which. A program: the rest are its bytes, or, of a short input, edits of a small sound program
//! (place: two bytes, value: one), for a fuzzer hardly ever finds what an ELF header has to be. Halves: edits of ABC or XYZ; some
//! give their records the sums that fit, so that the checks behind the sums have something to do.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use towa_xip::elf::Elf;
use towa_xip::split::{Halves, Options, join, split};
use xxhash_rust::xxh3::xxh3_64;

const STORE: &[u8] = b"/a/store";
const PAGE: usize = 4096;

/// A program with headers, text, and data that share no page, and a stretch of sections behind them.
fn sound() -> &'static [u8] {
    static SOUND: OnceLock<Vec<u8>> = OnceLock::new();
    SOUND.get_or_init(|| {
        let mut bytes: Vec<u8> = (0..6 * PAGE + 100).map(|at| (at >> 4) as u8 | 1).collect();
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &[0; 64 + 5 * 56]);
        put(0, b"\x7fELF\x02\x01\x01");
        let machine = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
        for (at, value) in [(16, 2u16), (18, machine), (52, 64), (54, 56), (56, 5)] {
            put(at, &value.to_le_bytes());
        }
        put(32, &64u64.to_le_bytes());
        let headers = [
            (3u32, 4u32, 400usize, 20usize),
            (1, 4, 0, PAGE),
            (1, 5, PAGE, 3 * PAGE + 50),
            (1, 6, 5 * PAGE + 8, 900),
            (4, 4, 440, 36),
        ];
        for (index, (kind, flags, offset, len)) in headers.into_iter().enumerate() {
            let at = 64 + 56 * index;
            put(at, &kind.to_le_bytes());
            put(at + 4, &flags.to_le_bytes());
            let address = offset + 0x40_0000;
            for (field, value) in [offset, address, address, len, len, PAGE].into_iter().enumerate() {
                put(at + 8 + 8 * field, &(value as u64).to_le_bytes());
            }
        }
        // The linker's build-id.
        put(440, &[4, 0, 0, 0, 20, 0, 0, 0, 3, 0, 0, 0, b'G', b'N', b'U', 0]);
        bytes
    })
}

fn edit(bytes: &mut [u8], edits: &[u8], from: usize) {
    for edit in edits.chunks_exact(3) {
        let len = bytes.len() - from;
        bytes[from + usize::from(u16::from_le_bytes([edit[0], edit[1]])) % len] ^= edit[2];
    }
}

fn program(bytes: &[u8]) {
    let _ = Elf::read(bytes);
    for (with_rodata, huge) in [(false, false), (true, true)] {
        let Ok(halves) = split(bytes, STORE, Options { with_rodata, libs: huge, huge }) else { continue };
        if let Some(abc) = &halves.abc {
            assert!(join(abc, &halves.xyz).expect("they belong together") == bytes, "join gives another file");
            assert!(split(abc, STORE, Options::default()).is_err(), "split twice");
        }
    }
}

fn halves() -> &'static Halves {
    static HALVES: OnceLock<Halves> = OnceLock::new();
    let options = Options { with_rodata: true, ..Options::default() };
    HALVES.get_or_init(|| split(sound(), STORE, options).expect("a sound program"))
}

fn damaged(choice: u8, edits: &[u8]) {
    let (mut abc, mut xyz) = (halves().abc.clone().expect("of a program"), halves().xyz.clone());
    match choice & 7 {
        0 => edit(&mut abc, edits, 0),
        1 => edit(&mut xyz, edits, 0),
        2 => abc.truncate(abc.len() * usize::from(edits.first().copied().unwrap_or(0)) / 256),
        3 => xyz.truncate(xyz.len() * usize::from(edits.first().copied().unwrap_or(0)) / 256),
        _ => {
            let record = xyz.len() - PAGE;
            edit(&mut xyz[..record + 512], edits, record);
            let sum = xxh3_64(&xyz[record..record + PAGE - 8]);
            xyz[record + PAGE - 8..].copy_from_slice(&sum.to_le_bytes());
        }
    }
    if let Ok(joined) = join(&abc, &xyz) {
        assert!(joined == sound(), "joined to another file");
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((choice, rest)) = input.split_first() else { return };
    match (choice & 0x80 == 0, rest.len() < 200) {
        (true, true) => {
            let mut bytes = sound().to_vec();
            // Most of them hit the headers.
            let place = if choice & 1 == 0 { 64 + 5 * 56 } else { bytes.len() };
            edit(&mut bytes[..place], rest, 0);
            program(&bytes);
        }
        (true, false) => program(rest),
        (false, _) => damaged(*choice, rest),
    }
});
