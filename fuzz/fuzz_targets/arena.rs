//! Damaged FPTrees: a small sound arena is edited as the fuzzer says, opened, checked and worked on. Never a panic, a hang, or a tree that
//! opens and is then not sound; and what opens does so again, as it was left.
//!
//! The input says which keys, which medium and how many edits, then edits of eight bytes: what, where, value. What it is too short for
//! follows from it by a generator, for a short run of the fuzzer tries short inputs alone. Edits of header, mark and the tree's record
//! give these the sums that fit, so that the checks behind the sums have something to do. The sums are those of docs/format.md.
#![no_main]

mod bytes;

use std::borrow::Borrow;
use std::sync::{Arc, OnceLock};

use bytes::{content, set, word};
use libfuzzer_sys::fuzz_target;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use towa_crash_test::tree::{Drawn, State, everything};
use towa_media::sim::{Model, SimMedium};
use towa_media::{Allocation, Medium};
use towa_tree::{Error, FpTree, OrderedMap, fptree};
use xxhash_rust::xxh3::xxh3_64_with_seed;

const NAME: &str = "arena";
/// Where the mark, the tree's record and the micro-logs are, and where blocks begin.
const MARK: usize = 512;
const RECORD: usize = 4096;
const LOGS: usize = RECORD + 64;
const BLOCKS: usize = 3 * 4096;
/// Words of a leaf; bytes that leaves and keys of these trees take, at most.
const LEAF: usize = 112;
const USED: usize = 64 << 10;
/// Bytes of an edit, and most edits.
const EDIT: usize = 8;
const EDITS: usize = 6;

/// The file of a tree of some leaves, of which one is spare.
fn sound<K: Drawn + ?Sized>() -> Vec<u8> {
    let medium = SimMedium::new(Model::Line);
    let tree = FpTree::<K>::create(Arc::new(medium.clone()), &fptree::Options { len: 96 << 10, entries: 6 }).expect("a tree");
    let mut session = tree.session();
    (0..60).for_each(|n| assert!(session.insert(K::of(n * 7 % 60).borrow(), n).expect("room")));
    (20..30).for_each(|n| assert!(session.remove(K::of(n).borrow()).expect("sound").is_some()));
    drop(session);
    drop(tree);
    content(&medium, NAME)
}

/// Gives header, mark and record the sums that fit them.
fn seal(bytes: &mut [u8], header: bool, mark: bool) {
    if header {
        let sum = xxh3_64_with_seed(&bytes[..120], word(bytes, 0)).max(1);
        set(bytes, 120, sum);
    }
    if mark {
        let number = word(bytes, MARK) & ((1 << 40) - 1);
        let sum = xxh3_64_with_seed(&number.to_le_bytes(), word(bytes, 16) ^ word(bytes, 24)).max(1);
        set(bytes, MARK, number | sum << 40);
    }
    let of = [&bytes[16..32], &bytes[RECORD..RECORD + 24]].concat();
    set(bytes, RECORD + 24, xxh3_64_with_seed(&of, u64::from_le_bytes(*b"TOWAFPT1")));
}

/// What an edit makes of a word: often the offset of something.
fn value(bytes: &[u8], old: u64, e: &[u8]) -> u64 {
    let given = u64::from(e[5]) | u64::from(e[6]) << 8;
    let leaf = |n: u64| BLOCKS as u64 + n % 70 * 896;
    match e[4] % 10 {
        0 => given,
        1 => old ^ 1 << (e[5] % 64),
        2 => u64::MAX >> (e[5] % 64),
        3 => old.wrapping_add(given),
        4 => old.wrapping_sub(given),
        5 => given << (e[7] % 64),
        6 => leaf(given) & !63,
        7 => BLOCKS as u64 + given % USED as u64 / 64 * 64,
        8 => word(bytes, BLOCKS + usize::from(e[5]) * 64 % USED + usize::from(e[6]) % 8 * 8),
        _ => 0,
    }
}

fn edit(bytes: &mut Vec<u8>, e: &[u8]) {
    let place = usize::from(e[1]) << 8 | usize::from(e[2]);
    if bytes.len() < BLOCKS + USED {
        return;
    }
    let at = match e[0] % 16 {
        0 => place % 16 * 8,
        1 => MARK,
        2 => RECORD + place % 3 * 8,
        3 | 4 => LOGS + place % 4 * 64 + place / 4 % 2 * 8,
        // First words of lines: versions, bitmaps, next pointers.
        5..9 => BLOCKS + place % (USED / 64) * 64 + usize::from(e[3]) % 2 * 8,
        9..14 => BLOCKS + (place * LEAF + usize::from(e[3])) % (USED / 8) * 8,
        14 => {
            let from = BLOCKS + place % (USED / 64) * 64;
            let to = BLOCKS + (usize::from(e[3]) << 8 | usize::from(e[4])) % (USED / 64) * 64;
            let len = (1 + usize::from(e[5]) % 14) * 64;
            if from.max(to) + len <= bytes.len() {
                bytes.copy_within(from..from + len, to);
            }
            return;
        }
        _ => {
            let len = if e[2] % 2 == 0 { bytes.len() * usize::from(e[3]) / 255 } else { bytes.len() + usize::from(e[3]) };
            return bytes.resize(len, e[4]);
        }
    };
    let new = value(bytes, word(bytes, at), e);
    if std::env::var_os("SHOW").is_some() {
        eprintln!("{e:?}: {at:#x}: {:#x} -> {new:#x}", word(bytes, at));
    }
    set(bytes, at, new);
    if e[0] < 224 {
        seal(bytes, at < 120, at == MARK);
    }
}

/// Opens the tree and works on it, twice.
fn work<K: Drawn + ?Sized>(medium: &SimMedium) {
    let open = || FpTree::<K>::open(Arc::new(medium.clone()));
    let tree = match open() {
        Ok(tree) => tree,
        Err(e) => return drop(e.to_string()),
    };
    tree.check().expect("what opens is sound");
    let mut session = tree.session();
    for n in 0..70 {
        let key = K::of(n * 11 % 70);
        let result = if n % 3 == 0 { session.remove(key.borrow()) } else { session.upsert(key.borrow(), n) };
        assert!(matches!(result, Ok(_) | Err(Error::OutOfSpace { .. })), "{result:?}");
    }
    drop(session);
    tree.check().expect("it stays sound");
    let left: State<K> = everything(&tree).expect("what a scan gives, a search finds");
    drop(tree);
    let tree = open().expect("what was opened opens again");
    assert_eq!(everything(&tree).expect("sound"), left, "opened again, it is another");
}

fuzz_target!(|input: &[u8]| {
    static SOUND: OnceLock<[Vec<u8>; 2]> = OnceLock::new();
    let Some((how, edits)) = input.split_first() else { return };
    let mut bytes = SOUND.get_or_init(|| [sound::<u64>(), sound::<[u8]>()])[usize::from(how % 2)].clone();
    let mut rng = SmallRng::seed_from_u64(xxh3_64_with_seed(input, 0));
    let given: Vec<u8> = edits.iter().copied().chain(std::iter::repeat_with(|| rng.random())).take(EDIT * EDITS).collect();
    given.chunks_exact(EDIT).take(usize::from(how >> 4) % (EDITS + 1)).for_each(|e| edit(&mut bytes, e));
    let medium = SimMedium::new(if how / 2 % 2 == 0 { Model::Line } else { Model::File });
    let region = medium.create(NAME, bytes.len() as u64, Allocation::Full).expect("an empty medium");
    region.stream(0, &bytes).expect("in range");
    region.fence().expect("no faults");
    drop(region);
    medium.sync_names().expect("no faults");
    if how % 2 == 0 { work::<u64>(&medium) } else { work::<[u8]>(&medium) }
});
