//! Programs as no linker lays them out, damaged ones, and damaged halves: never a panic; what is split is given back to the byte, and
//! what cannot be given back is refused.

mod sweep_support;

use std::fs;
use std::ops::Range;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use sweep_support::program;
use towa_xip::elf::Elf;
use towa_xip::split::{Halves, Options, join, split};

const STORE: &[u8] = b"/a/store";
const PAGE: u64 = 4096;
const R: u32 = 4;
const W: u32 = 2;
const X: u32 = 1;
const PT_LOAD: u32 = 1;
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
const PT_GNU_PROPERTY: u32 = 0x6474_e553;

/// The same cases each time; `PROPTEST_CASES` asks for more.
fn runner(cases: u32) -> TestRunner {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(cases);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

/// A segment that is loaded: its flags and length, where it begins after the one before, and how much longer it is in memory.
#[derive(Clone, Debug)]
struct Loaded {
    flags: u32,
    len: u64,
    begins: Begins,
    more_memory: u64,
}

#[derive(Clone, Copy, Debug)]
enum Begins {
    /// In the same page: linkers do that to save space in the file.
    SamePage,
    /// In the next page, after so many others.
    Pages(u64),
    /// Before the other's end: the same bytes of the file twice.
    Before(u64),
}

#[derive(Clone, Debug)]
struct Plan {
    loaded: Vec<Loaded>,
    /// Program headers behind everything, in a segment of their own, as patchelf puts them there.
    headers_last: bool,
    extra: Vec<u32>,
    is_dynamic: bool,
    tail: u64,
    seed: u8,
}

fn plans() -> impl Strategy<Value = Plan> {
    let begins = prop_oneof![
        2 => Just(Begins::SamePage),
        4 => (0..3u64).prop_map(Begins::Pages),
        1 => (1..9000u64).prop_map(Begins::Before),
    ];
    // More text than chance would give; and none that is writable, as a rule.
    let flags = prop_oneof![5 => Just(R | X), 1 => Just(X), 4 => Just(R), 4 => Just(R | W), 1 => Just(0u32), 1 => Just(R | W | X)];
    let len = prop_oneof![1 => 0..2u64, 3 => 1..4096u64, 6 => 4096..40_000u64, 1 => Just(8192u64)];
    let more = prop_oneof![8 => Just(0u64), 1 => 1..9000u64];
    let loaded = (flags, len, begins, more).prop_map(|(flags, len, begins, more)| Loaded {
        more_memory: if flags & W == 0 && more % 5 != 0 { 0 } else { more },
        flags,
        len,
        begins,
    });
    let extra = prop::sample::subsequence(vec![PT_INTERP, PT_NOTE, PT_GNU_PROPERTY, 0], 0..=4);
    (prop::collection::vec(loaded, 1..8), any::<bool>(), extra, any::<bool>(), 0..9000u64, any::<u8>()).prop_map(
        |(loaded, headers_last, extra, is_dynamic, tail, seed)| Plan { loaded, headers_last, extra, is_dynamic, tail, seed },
    )
}

/// Program headers as they are written: kind, flags, offset, address, bytes in the file, bytes in memory.
type Written = (u32, u32, u64, u64, u64, u64);

/// The file, which a kernel would take as a program.
fn build(plan: &Plan) -> Vec<u8> {
    let count = plan.loaded.len() + plan.extra.len() + usize::from(plan.headers_last);
    let table_len = 56 * count as u64;
    let mut headers: Vec<Written> = Vec::new();
    let (mut end, mut memory_end) = (if plan.headers_last { 64 } else { 64 + table_len }, 0x40_0000u64);
    for (index, loaded) in plan.loaded.iter().enumerate() {
        let offset = match loaded.begins {
            _ if index == 0 => 0,
            Begins::SamePage => end,
            Begins::Pages(pages) => end.next_multiple_of(PAGE) + pages * PAGE,
            Begins::Before(back) => end.saturating_sub(back),
        };
        // The first one holds file header and program headers.
        let len = if index == 0 { loaded.len.max(end) } else { loaded.len };
        let address = memory_end.next_multiple_of(PAGE) + offset % PAGE;
        headers.push((PT_LOAD, loaded.flags, offset, address, len, len + loaded.more_memory));
        memory_end = address + len + loaded.more_memory;
        end = end.max(offset + len);
    }
    let table = if plan.headers_last { end.next_multiple_of(8) } else { 64 };
    if plan.headers_last {
        let address = memory_end.next_multiple_of(PAGE) + table % PAGE;
        headers.push((PT_LOAD, R, table, address, table_len, table_len));
        end = table + table_len;
    }
    for kind in &plan.extra {
        // Somewhere in the first segment, whatever that is.
        headers.insert(headers.len() / 2, (*kind, R, 70, 0x40_0000 + 70, 20, 20));
    }
    let mut bytes: Vec<u8> = (0..end + plan.tail).map(|at| (at.wrapping_mul(31) >> 3) as u8 ^ plan.seed | 1).collect();
    let mut put = |at: u64, value: &[u8]| bytes[at as usize..at as usize + value.len()].copy_from_slice(value);
    let machine: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    let kind: u16 = if plan.is_dynamic { 3 } else { 2 };
    put(0, b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    put(16, &kind.to_le_bytes());
    put(18, &machine.to_le_bytes());
    put(20, &[0; 44]);
    put(32, &table.to_le_bytes());
    put(52, &64u16.to_le_bytes());
    put(54, &56u16.to_le_bytes());
    put(56, &(count as u16).to_le_bytes());
    for (index, (kind, flags, offset, address, file_len, mem_len)) in headers.iter().enumerate() {
        let at = table + 56 * index as u64;
        put(at, &kind.to_le_bytes());
        put(at + 4, &flags.to_le_bytes());
        for (field, value) in [*offset, *address, *address, *file_len, *mem_len, PAGE].iter().enumerate() {
            put(at + 8 + 8 * field as u64, &value.to_le_bytes());
        }
    }
    bytes
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// What must hold of both halves, whatever the original.
fn check(original: &[u8], halves: &Halves, with_rodata: bool) -> Result<(), TestCaseError> {
    let elf = Elf::read(original).expect("it was split");
    let Some(abc) = &halves.abc else { return Ok(()) };
    prop_assert!(join(abc, &halves.xyz).expect("they belong together") == original, "join gives another file");
    let holes: Vec<Range<u64>> = halves.layout.holes.iter().map(|(at, len)| *at..at + len).collect();
    let table = elf.headers_at..elf.headers_at + 56 * elf.segments.len() as u64;
    for hole in &holes {
        prop_assert!(hole.start % PAGE == 0 && hole.end % PAGE == 0 && hole.start < hole.end);
        prop_assert!(!overlap(hole, &(0..64)) && !overlap(hole, &table), "headers in the hole {hole:?}");
        let within: Vec<_> = elf
            .loaded()
            .filter(|segment| {
                segment.file_len > 0 && {
                    let (from, to) = segment.pages();
                    overlap(hole, &(from..to))
                }
            })
            .collect();
        prop_assert!(within.len() == 1, "{hole:?} is of {} segments", within.len());
        let only = within[0];
        prop_assert!(only.offset <= hole.start && hole.end <= only.offset + only.file_len, "{hole:?} is beyond {only:?}");
        prop_assert!(only.is_text() || with_rodata && only.is_rodata(), "{hole:?} is not of text: {only:?}");
    }
    for (at, _) in original.iter().zip(abc).enumerate().filter(|(_, (a, b))| a != b) {
        let at = at as u64;
        let is_moved = holes.iter().any(|hole| hole.contains(&at)) || table.contains(&at);
        prop_assert!(is_moved, "byte {at:#x} of ABC is another, and nobody moved it");
    }
    Ok(())
}

/// Splits it in all ways; whether it can be.
fn try_all(original: &[u8]) -> Result<bool, TestCaseError> {
    let mut is_split = false;
    for (with_rodata, huge) in [(false, false), (true, false), (true, true)] {
        match split(original, STORE, Options { with_rodata, libs: huge, huge }) {
            Ok(halves) => {
                check(original, &halves, with_rodata)?;
                is_split = true;
            }
            Err(why) => prop_assert!(!why.is_empty()),
        }
    }
    Ok(is_split)
}

#[test]
fn programs_that_no_linker_makes() {
    let (mut split, mut refused) = (0, std::collections::BTreeMap::<String, usize>::new());
    let counted = std::cell::RefCell::new((&mut split, &mut refused));
    let done = runner(3000).run(&plans(), |plan| {
        let bytes = build(&plan);
        let could = try_all(&bytes)?;
        let why = if could { None } else { towa_xip::split::split(&bytes, STORE, Options::default()).err() };
        let mut counted = counted.borrow_mut();
        match why {
            None => *counted.0 += 1,
            Some(why) => *counted.1.entry(why).or_default() += 1,
        }
        Ok(())
    });
    println!("split {split}; refused {refused:?}");
    if let Err(why) = done {
        panic!("{why}");
    }
    assert!(split > 500, "too few of them were split for this to prove anything");
}

/// Small real programs of each kind.
fn real() -> Vec<Vec<u8>> {
    let names = ["true", "gzip", "sed", "busybox", "ldconfig", "dash"];
    let all: Vec<Vec<u8>> =
        names.iter().filter_map(|name| fs::read(program(name)?).ok()).filter(|bytes| bytes.len() < 3 << 20).collect();
    assert!(!all.is_empty(), "none of {names:?} is here");
    all
}

#[test]
fn truncated_programs() {
    for bytes in real() {
        let len = bytes.len();
        let near_start = (0..4200).step_by(7);
        let elsewhere = (0..40).map(|part| len * part / 40 + part * 13);
        let near_end = len.saturating_sub(200)..len;
        for cut in near_start.chain(elsewhere).chain(near_end).filter(|cut| *cut < len) {
            try_all(&bytes[..cut]).unwrap_or_else(|why| panic!("cut off at {cut}: {why}"));
        }
    }
}

/// Where in a file, as a fraction of 65536, or as a byte of its headers; and what is written there.
fn edits() -> impl Strategy<Value = Vec<(bool, u16, u8, u8)>> {
    prop::collection::vec((prop::bool::weighted(0.8), any::<u16>(), any::<u8>(), 0..8u8), 1..6)
}

fn edit(bytes: &mut [u8], edits: &[(bool, u16, u8, u8)], first: Range<usize>) {
    for (in_headers, place, value, width) in edits {
        let at =
            if *in_headers { first.start + usize::from(*place) % first.len() } else { usize::from(*place) * bytes.len() / 65536 };
        match width {
            0..=4 => bytes[at] ^= value,
            5 => bytes[at] = 0xff,
            // A whole number, large or small.
            _ => {
                let end = (at + 8).min(bytes.len());
                let number = if value & 1 == 0 { u64::from(*value) << 56 } else { u64::from(*value) * 4093 };
                let len = end - at;
                bytes[at..end].copy_from_slice(&number.to_le_bytes()[..len]);
            }
        }
    }
}

#[test]
fn programs_with_other_headers() {
    let real = real();
    let still = std::cell::Cell::new(0);
    let strategy = (0..real.len(), edits(), any::<bool>());
    let done = runner(400).run(&strategy, |(which, edits, of_dynamic)| {
        let mut bytes = real[which].clone();
        let elf = Elf::read(&bytes).unwrap();
        let dynamic = elf.segments.iter().find(|segment| segment.kind == 2).filter(|_| of_dynamic);
        let place = dynamic.map_or(0..64 + 56 * elf.segments.len(), |at| at.offset as usize..(at.offset + at.file_len) as usize);
        edit(&mut bytes, &edits, place);
        still.set(still.get() + u32::from(try_all(&bytes)?));
        Ok(())
    });
    println!("{} could be split all the same", still.get());
    if let Err(why) = done {
        panic!("{why}");
    }
    assert!(still.get() > 20);
}

#[test]
fn damaged_halves_are_refused() {
    let (real, options) = (real(), Options { with_rodata: true, ..Options::default() });
    let split: Vec<_> = real.iter().filter_map(|bytes| Some((bytes, split(bytes, STORE, options).ok()?))).collect();
    let strategy = (0..split.len(), any::<bool>(), edits(), prop::option::weighted(0.2, any::<u16>()));
    let (same, refused) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let done = runner(600).run(&strategy, |(which, of_abc, edits, cut)| {
        let (original, halves) = &split[which];
        let (mut abc, mut xyz) = (halves.abc.clone().unwrap(), halves.xyz.clone());
        let (bytes, first) = if of_abc {
            let record = halves.layout.record_at.unwrap() as usize;
            (&mut abc, if edits.len() % 2 == 0 { 0..1024 } else { record..record + 400 })
        } else {
            let record = xyz.len() - PAGE as usize;
            (&mut xyz, record..record + 400)
        };
        edit(bytes, &edits, first);
        if let Some(cut) = cut {
            bytes.truncate(bytes.len() * usize::from(cut) / 65536);
        }
        match join(&abc, &xyz) {
            Ok(joined) => {
                prop_assert!(joined == **original, "joined to another file");
                same.set(same.get() + 1);
            }
            Err(why) => {
                prop_assert!(!why.is_empty());
                refused.set(refused.get() + 1);
            }
        }
        Ok(())
    });
    println!("refused {}; the damage did not matter {}", refused.get(), same.get());
    if let Err(why) = done {
        panic!("{why}");
    }
    assert!(refused.get() > 100);
}
