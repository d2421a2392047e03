//! Copies made pools of their own: what a section had begun is undone, and what is damaged is refused.

mod builder;

use std::fs::File;
use std::io::Write;

use builder::{HEAP, Made, WORDS, graphs};
use towa_java_pool::{Pool, settle};

const UNDO: u64 = WORDS + 40;

fn file(made: &Made) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&made.bytes).unwrap();
    file
}

/// A pool with a section that was not over, and the place of its log.
fn interrupted() -> (Made, u64) {
    let mut made = graphs::crashed();
    let log = made.block(4096);
    made.set(UNDO, log);
    made.set(log, 1);
    made.set(log + 8, 77);
    made.put(log + 16, b"TOWAUNDO");
    (made, log)
}

fn word(file: &File, at: u64) -> u64 {
    let mut bytes = [0; 8];
    std::os::unix::fs::FileExt::read_exact_at(file, &mut bytes, at).unwrap();
    u64::from_le_bytes(bytes)
}

#[test]
fn what_a_section_had_begun_is_undone() {
    let (mut made, log) = interrupted();
    let place = made.block(64);
    made.undo_old(log + 32, place, 1111, 8);
    made.undo_old(log + 64, place + 12, 22, 4);
    // An entry of another section ends the log.
    made.set(log + 96, place + 16);
    // The section's stores, and others' beside them.
    made.set(place, 5);
    made.set(place + 8, 6 << 32 | 7);
    made.set(place + 16, 8);
    let copy = file(&made);
    assert!(settle("pool", copy.as_file()).unwrap().rolled_back);
    assert_eq!([0, 8, 16].map(|at| word(copy.as_file(), place + at)), [1111, 22 << 32 | 7, 8]);
    let report = Pool::open(copy.path()).unwrap().verify(&mut |_, _| ()).unwrap();
    assert_eq!((report.problems_found, report.description.clean, report.description.atomically_interrupted), (0, true, false));
    // Once more changes nothing but the number of the superblock.
    assert!(!settle("pool", copy.as_file()).unwrap().rolled_back);
    assert_eq!(Pool::open(copy.path()).unwrap().verify(&mut |_, _| ()).unwrap().problems_found, 0);
}

#[test]
fn a_damaged_log_is_refused() {
    let (mut made, log) = interrupted();
    made.undo_entry(log + 32, 8);
    let said = settle("pool", file(&made).as_file()).unwrap_err().to_string();
    assert!(said.contains("pool: damaged") && said.contains("cannot be"), "{said}");
    made.set(log + 16, 0);
    settle("pool", file(&made).as_file()).unwrap_err();
    made.set(UNDO, HEAP - 8);
    settle("pool", file(&made).as_file()).unwrap_err();
}
