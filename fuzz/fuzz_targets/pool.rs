//! Damaged pools: a small sound one is built once, edited as the fuzzer says, verified and opened. Never a panic, never a write to
//! what is refused, and what opens does so again.
//!
//! The input says which medium and how many edits, then edits of six bytes: file, what, place (three bytes), value. What it is too short
//! for follows from it by a generator, for a short run of the fuzzer tries short inputs alone. Half of the places count from
//! the start of a record: random ones would hardly ever hit a field. Some edits give a changed superblock a valid checksum again, so
//! that the checks behind the checksum have something to do.
#![no_main]

use std::sync::{Arc, OnceLock};

use libfuzzer_sys::fuzz_target;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use towa_crash_test::epoch::{History, Shape, World};
use towa_heap::superblock::{Door, Superblock};
use towa_heap::{Heap, OpenOptions, names, verify};
use towa_media::sim::{EventKind, Model, SimMedium};
use towa_media::{Access, Allocation, Medium};
use xxhash_rust::xxh3::xxh3_64_with_seed;

const FILES: [&str; 3] = [names::SUPERBLOCK, names::LOG, names::IMAGE];
/// Bytes from record to record of a superblock, a commit slot; the image's first chunk has roots and headers in lines.
const RECORDS: [usize; 3] = [4096, 4096, 64];
/// Bytes of the image that are checked: roots and run headers.
const CHECKED: usize = 128 << 10;
/// Bytes of an edit, and most edits.
const EDIT: usize = 6;
const EDITS: usize = 8;

/// The files of a pool with committed epochs in its log and a ring that has wrapped.
fn sound() -> &'static [Vec<u8>; 3] {
    static SOUND: OnceLock<[Vec<u8>; 3]> = OnceLock::new();
    SOUND.get_or_init(|| {
        let mut rng = SmallRng::seed_from_u64(3);
        let mut shape = Shape::plain(&mut rng);
        shape.heap_len = 8 * (128 << 10);
        shape.size_max = 300;
        shape.log_len = towa_heap::log::RING_MIN;
        shape.log_start = shape.log_len - 4096;
        shape.commit_slots = 16;
        // On a file the image is not brought up by itself before half the slots are taken.
        shape.epochs = 7;
        shape.apply_one_in = 0;
        let medium = SimMedium::new(Model::File);
        World::run_shaped(medium.clone(), &mut rng, History::default(), &shape).expect("a sound pool");
        FILES.map(|name| {
            let region = medium.open(name, Access::ReadOnly).expect("a file of the pool");
            let mut bytes = vec![0; region.len() as usize];
            region.read(0, &mut bytes).expect("readable");
            bytes
        })
    })
}

fn edit(files: &mut [Option<Vec<u8>>; 3], e: &[u8]) {
    let which = usize::from(e[0]) % 3;
    let place = usize::from(e[2]) << 16 | usize::from(e[3]) << 8 | usize::from(e[4]);
    if e[1] % 16 == 15 {
        files.swap(which, (which + 1 + usize::from(e[5]) % 2) % 3);
        return;
    }
    let Some(bytes) = &mut files[which] else { return };
    if bytes.is_empty() {
        return;
    }
    let at = match e[0] / 3 % 2 {
        0 if which == 2 => place % CHECKED.min(bytes.len()),
        0 => place % bytes.len(),
        _ => (place >> 8) * RECORDS[which] % bytes.len() + (place & 0xFF) % RECORDS[which],
    };
    let Some(byte) = bytes.get_mut(at) else { return };
    match e[1] % 16 {
        0..4 => *byte ^= 1 << (e[5] % 8),
        4..7 => *byte = e[5],
        7 => bytes[at..].iter_mut().take(usize::from(e[5])).for_each(|b| *b = 0),
        8 => bytes.truncate(at),
        9 => {
            let len = bytes.len() + usize::from(e[5]);
            bytes.resize(len, e[4]);
        }
        10 => files[which] = None,
        _ if which == 0 => reseal(bytes, e),
        11 => {
            // A record in the place of another.
            let (from, len) = (usize::from(e[5]) * RECORDS[which] % bytes.len(), RECORDS[which]);
            if from + len <= bytes.len() && at + len <= bytes.len() {
                bytes.copy_within(from..from + len, at);
            }
        }
        _ => *byte = byte.wrapping_add(e[5]),
    }
}

/// Changes a word of a superblock and gives it a valid checksum.
fn reseal(bytes: &mut [u8], e: &[u8]) {
    let slot = usize::from(e[2] % 2) * 4096;
    let Some(record) = bytes.get_mut(slot..slot + 256) else { return };
    let at = usize::from(e[3]) % 31 * 8;
    match e[1] % 16 {
        11 => record[at] = e[5],
        12 => record[at + usize::from(e[4]) % 8] ^= e[5],
        13 => record[at..at + 8].copy_from_slice(&(u64::MAX >> (e[5] % 64)).to_le_bytes()),
        _ => record[at..at + 8].copy_from_slice(&u64::from(e[5]).wrapping_shl(u32::from(e[4])).to_le_bytes()),
    }
    let mut sb: Superblock = bytemuck::pod_read_unaligned(record);
    sb.seal();
    record.copy_from_slice(bytemuck::bytes_of(&sb));
}

/// Whether anything was changed since there were `events` events; fences harm nobody.
fn wrote(medium: &SimMedium, events: usize) -> bool {
    let changes = |kind| !matches!(kind, EventKind::Fence | EventKind::WriteBack | EventKind::SyncNames | EventKind::Note);
    medium.events() > events && medium.trace().events().skip(events).any(|e| changes(e.kind()))
}

fuzz_target!(|input: &[u8]| {
    let Some((how, edits)) = input.split_first() else { return };
    let mut files = sound().clone().map(Some);
    let mut rng = SmallRng::seed_from_u64(xxh3_64_with_seed(input, 0));
    let bytes: Vec<u8> = edits.iter().copied().chain(std::iter::repeat_with(|| rng.random())).take(EDIT * EDITS).collect();
    bytes.chunks_exact(EDIT).take(usize::from(how >> 4) % (EDITS + 1)).for_each(|e| edit(&mut files, e));
    let medium = SimMedium::new(if how % 2 == 0 { Model::Line } else { Model::File });
    for (name, bytes) in FILES.iter().zip(&files) {
        let Some(bytes) = bytes else { continue };
        let region = medium.create(name, bytes.len() as u64, Allocation::Full).expect("an empty medium");
        region.stream(0, bytes).expect("in range");
        region.fence().expect("no faults");
    }
    medium.sync_names().expect("no faults");
    let before = medium.events();
    let sound = verify(&medium, Door::Epoch, &mut |_, _| ()).is_ok();
    assert!(!wrote(&medium, before), "verify wrote");
    let open = || Heap::open(Arc::new(medium.clone()), &OpenOptions { door: Door::Epoch, eager: true, prefault: false });
    match open() {
        Err(e) => {
            assert!(!wrote(&medium, before), "refused ({e}), but wrote");
            // An address that is taken, or memory that is not there, is no damage.
            assert!(!sound || matches!(e, towa_heap::Error::Media(_)), "open refuses ({e}) what verify finds sound");
        }
        Ok(heap) => {
            let found = (heap.recovery().epoch, heap.roots().names());
            drop(heap);
            let again = open().expect("what was opened opens again");
            assert_eq!((again.recovery().epoch, again.roots().names()), found, "opened again, it is another");
        }
    }
});
