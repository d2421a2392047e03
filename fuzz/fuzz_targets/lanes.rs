//! Damaged pools of transactions: a small sound one, with a B+-tree and records in its lanes, is edited as the fuzzer says, verified,
//! replayed by a separate checkpointer, opened, and its tree checked. Never a panic, never a write to what is refused; what opens does
//! so again, and is then the same, whoever applied the records.
//!
//! The input says which medium and how many edits, then edits of eight bytes: what, which, value. What it is too short for follows from
//! it by a generator, for a short run of the fuzzer tries short inputs alone. Most edits of cuts and records give them the sum
//! that fits, so that the checks behind the sums have something to do. The sums are worked out here from docs/format.md alone.
#![no_main]

mod bytes;

use std::sync::{Arc, OnceLock};

use bytes::{content, set, word};
use libfuzzer_sys::fuzz_target;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use towa_heap::lanes::Replayer;
use towa_heap::superblock::Door;
use towa_heap::{Heap, OpenOptions, names, verify};
use towa_media::sim::{EventKind, Model, SimMedium};
use towa_media::{Allocation, Medium};
use towa_tree::{BpTree, Session};
use towa_tx::{Checkpointer, Options, Pool, TmChoice, Tx};
use xxhash_rust::xxh3::xxh3_64_with_seed;

const FILES: [&str; 3] = [names::SUPERBLOCK, names::LOG, names::IMAGE];
const LOG: usize = 1;
const IMAGE: usize = 2;
/// Lanes of the pool, and bytes of each; where they begin in the log, and bytes from cut to cut there.
const LANES: usize = 3;
const LANE: usize = 64 << 10;
const FIRST: usize = 8192;
const SLOT: usize = 4096;
/// Words of a cut, which of them is the generation, and its magic.
const CUT_WORDS: usize = 80;
const GENERATION: usize = 4;
const CUT_MAGIC: u64 = u64::from_le_bytes(*b"TWCUTR01");
/// Bytes of the image that most of its edits hit: roots and run headers.
const HEADERS: usize = 160 << 10;

/// Bytes of an edit, and most edits.
const EDIT: usize = 8;
const EDITS: usize = 5;

type Files = [Option<Vec<u8>>; 3];

fn options() -> Options {
    Options {
        heap_len: 8 * (128 << 10),
        lanes: LANES as u32,
        lane_len: LANE as u64,
        tm: TmChoice::Stm,
        checkpointer: Checkpointer::Manual,
        eager: true,
        base: Some(0x5500_0000_0000),
        ..Options::default()
    }
}

/// A pool with records of every kind in two lanes, one of which has wrapped, and two cuts.
fn sound() -> &'static Files {
    static SOUND: OnceLock<Files> = OnceLock::new();
    SOUND.get_or_init(|| {
        let medium = SimMedium::new(Model::File);
        let pool = Pool::create_on(Arc::new(medium.clone()), &options()).expect("a pool");
        let tree = BpTree::<[u8]>::create(&pool, "tree").expect("a tree");
        let (mut session, mut other) = (tree.session().expect("a lane"), pool.register().expect("a lane"));
        for round in 0..4_u64 {
            (0..50).for_each(|n| _ = session.upsert(&key(round * 40 + n), n).expect("room"));
            (0..9).step_by(2).for_each(|n| _ = session.remove(&key(round * 40 + n)).expect("sound"));
            let block = |tx: &mut Tx<'_>, words: usize| {
                let block = tx.alloc(words * 8)?;
                tx.init(block, &vec![round; words])?;
                tx.free(block)
            };
            [1200; 4].into_iter().for_each(|words| other.transaction(|tx| block(tx, words)).expect("room"));
            if round < 3 {
                pool.checkpoint().expect("a medium without faults");
            }
        }
        drop((session, other));
        drop(tree);
        pool.abandon();
        FILES.map(|name| Some(content(&medium, name)))
    })
}

fn key(n: u64) -> Vec<u8> {
    n.to_be_bytes()[4..].repeat(1 + n as usize % 2)
}

/// Where the cut that counts is, for who believes the sequence numbers.
fn cut_at(log: &[u8]) -> usize {
    if word(log, 24) > word(log, SLOT + 24) { 0 } else { SLOT }
}

fn seal_cut(log: &mut [u8], at: usize) {
    let sum = xxh3_64_with_seed(&log[at..at + 632], CUT_MAGIC).max(1);
    set(log, at + 632, sum);
}

/// A record, or where the next one of its lane would be.
#[derive(Clone, Copy)]
struct Place {
    lane: usize,
    position: u64,
    /// In the log; bytes; those of them that the sum covers.
    at: usize,
    len: usize,
    summed: usize,
}

impl Place {
    /// What begins at `position`, for who believes its length.
    fn of(log: &[u8], lane: usize, position: u64) -> Option<Place> {
        let at = (position % LANE as u64) as usize;
        let first = FIRST + lane * LANE + at;
        let (len, summed) = match word(log, first) & 0xF {
            1 => (64, 64),
            2 => {
                let len = (4 + word(log, first + 16) as u32 as usize).next_multiple_of(8) * 8;
                (len, len)
            }
            3 => ((word(log, first + 16) as usize).saturating_mul(64).max(64), 64),
            _ => return None,
        };
        (len <= LANE - at).then_some(Place { lane, position, at: first, len, summed })
    }

    fn sum(&self, log: &[u8]) -> u64 {
        let cut = cut_at(log);
        let mut identity = log[cut + 8..cut + 24].to_vec();
        identity.extend((self.lane as u64).to_le_bytes());
        let lane = xxh3_64_with_seed(&identity, word(log, cut + 32)).max(1);
        let kind = word(log, self.at) & 0xFFFF;
        let seed = (lane ^ self.position).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ kind;
        let mut sum = xxh3_64_with_seed(&log[self.at + 8..self.at + 64], seed);
        if self.summed > 64 {
            sum = xxh3_64_with_seed(&log[self.at + 64..self.at + self.summed], sum);
        }
        sum & !0xFFFF | kind
    }

    fn seal(&self, log: &mut [u8]) {
        // Its length may be another than before.
        if let Some(now) = Place::of(log, self.lane, self.position) {
            set(log, self.at, now.sum(log));
        }
    }
}

/// The live records of a lane, and the position behind them.
fn records(log: &[u8], lane: usize) -> (Vec<Place>, u64) {
    let tail = word(log, cut_at(log) + 64 + lane * 8) & !63 & (u64::MAX >> 2);
    let (mut found, mut position) = (Vec::new(), tail);
    while let Some(place) = Place::of(log, lane, position) {
        let next = position + place.len as u64;
        if next - tail > LANE as u64 || word(log, place.at) != place.sum(log) {
            break;
        }
        found.push(place);
        position = next;
    }
    (found, position)
}

/// What an edit makes of a word.
fn value(old: u64, e: &[u8]) -> u64 {
    let given = u64::from(e[5]) | u64::from(e[6]) << 8 | u64::from(e[7]) << 16;
    match e[4] % 8 {
        0 => given,
        1 => old ^ 1 << (e[5] % 64),
        2 => u64::MAX >> (e[5] % 64),
        3 => old.wrapping_add(given),
        4 => old.wrapping_sub(given),
        5 => given << (e[7] % 64),
        6 => old & !0xFFFF | given & 0xFFFF,
        _ => old.rotate_left(u32::from(e[5])) ^ given,
    }
}

fn edit(files: &mut Files, e: &[u8]) {
    let which = usize::from(e[1]) << 8 | usize::from(e[2]);
    match (e[0] % 16, &mut files[LOG]) {
        (0..11, Some(log)) if log.len() >= FIRST + LANES * LANE => edit_log(log, e, which),
        (0..14, _) => {
            let file = [0, LOG, IMAGE, IMAGE][usize::from(e[0] / 16 % 4)];
            let Some(bytes) = &mut files[file] else { return };
            let places = if e[0] >= 128 { HEADERS.min(bytes.len()) } else { bytes.len() } / 8;
            if places > 0 {
                let at = (which << 8 | usize::from(e[3])) % places * 8;
                let new = value(word(bytes, at), e);
                set(bytes, at, new);
            }
        }
        (14, _) => {
            let Some(bytes) = &mut files[usize::from(e[1] % 3)] else { return };
            let len = if e[2] % 2 == 0 { bytes.len() * usize::from(e[3]) / 255 } else { bytes.len() + usize::from(e[3]) };
            bytes.resize(len, e[4]);
        }
        _ if e[2] % 2 == 0 => files[usize::from(e[1] % 3)] = None,
        _ => files.swap(usize::from(e[1] % 3), usize::from(e[3] % 3)),
    }
}

fn edit_log(log: &mut [u8], e: &[u8], which: usize) {
    let lane = usize::from(e[1]) % LANES;
    let (live, end) = records(log, lane);
    let record = (!live.is_empty()).then(|| live[usize::from(e[2]) % live.len()]);
    match (e[0] % 16, record) {
        (0..3, _) => {
            // The cut: its words up to the tails of lanes that are there, and now and then another.
            let (cut, at) =
                (cut_at(log), if e[3] % 8 == 0 { usize::from(e[2]) % CUT_WORDS } else { usize::from(e[2]) % (8 + LANES) });
            let cut = if e[3] % 16 == 1 { SLOT - cut } else { cut };
            let old = word(log, cut + at * 8);
            // An earlier generation's records come back with it, which are sound: like a copy of another day, nobody can tell that.
            let new = if at == GENERATION { value(old, e).max(old) } else { value(old, e) };
            set(log, cut + at * 8, new);
            if e[3] < 200 {
                seal_cut(log, cut);
            }
        }
        (3..8, Some(record)) => {
            let at = record.at + usize::from(e[3]) % (record.summed / 8) * 8;
            let new = value(word(log, at), e);
            set(log, at, new);
            if e[0] < 200 {
                record.seal(log);
            }
        }
        (8, Some(record)) => {
            // Once more, where the lane ends or soon behind that: in front of another lap's, or as a forged one.
            let position = end + [0, 0, 0, 64, 128][usize::from(e[3]) % 5];
            let at = FIRST + lane * LANE + (position % LANE as u64) as usize;
            if record.len <= LANE - (at - FIRST - lane * LANE) {
                log.copy_within(record.at..record.at + record.len, at);
                set(log, at + 8, value(word(log, live[live.len() - 1].at + 8), e));
                Place { position, at, ..record }.seal(log);
            }
        }
        (9, Some(record)) => log[record.at..record.at + 64].fill(e[4]),
        _ => {
            let at = (which << 8 | usize::from(e[3])) % log.len();
            log[at] ^= e[4] | 1;
        }
    }
}

fn medium_of(files: &Files, model: Model) -> SimMedium {
    let medium = SimMedium::new(model);
    for (name, bytes) in FILES.iter().zip(files) {
        let Some(bytes) = bytes else { continue };
        let region = medium.create(name, bytes.len() as u64, Allocation::Full).expect("an empty medium");
        region.stream(0, bytes).expect("in range");
        region.fence().expect("no faults");
    }
    medium.sync_names().expect("no faults");
    medium
}

/// Whether anything was changed since there were `events` events; fences harm nobody.
fn wrote(medium: &SimMedium, events: usize) -> bool {
    let changes = |kind| !matches!(kind, EventKind::Fence | EventKind::WriteBack | EventKind::SyncNames | EventKind::Note);
    medium.events() > events && medium.trace().events().skip(events).any(|e| changes(e.kind()))
}

/// The heap that opening gives; `None` if it is refused.
fn opened(medium: &SimMedium, sound: bool) -> Option<Vec<u8>> {
    let before = medium.events();
    match Heap::open(Arc::new(medium.clone()), &OpenOptions { door: Door::Tx, eager: true, prefault: false }) {
        Err(e) => {
            assert!(!wrote(medium, before), "refused ({e}), but wrote");
            // An address that is taken, or memory that is not there, is no damage.
            assert!(!sound || matches!(e, towa_heap::Error::Media(_)), "open refuses ({e}) what verify finds sound");
            None
        }
        Ok(heap) => {
            drop(heap);
            let mut image = content(medium, names::IMAGE);
            // Behind the heap lies the stamp, which each opening draws.
            image.truncate(image.len() - 2 * 4096);
            Some(image)
        }
    }
}

/// A separate checkpointer works on a pool whose owner says that its lanes go as far as they do: up to some record's time. Whether it
/// could.
fn checkpoint(medium: &SimMedium, files: &Files, upto: u8) -> bool {
    let Ok(mut replayer) = Replayer::attach(medium) else { return false };
    let Some(log) = files[LOG].as_ref().filter(|log| log.len() >= FIRST + LANES * LANE) else { return false };
    if replayer.tails().len() != LANES {
        return false;
    }
    // The owner's word is not the pool's: it is always a possible one.
    let tails = replayer.tails().to_vec();
    let heads: Vec<u64> = (0..LANES).map(|lane| records(log, lane).1).collect();
    let is_possible = heads.iter().zip(&tails).all(|(head, tail)| (*tail..=tail + LANE as u64).contains(head));
    let (live, _) = records(log, usize::from(upto) % LANES);
    let upto = live.get(usize::from(upto) / LANES).map_or(u64::MAX, |record| word(log, record.at + 8));
    is_possible && replayer.apply(&heads, upto, &mut || ()).is_ok()
}

/// The trees: each is found sound, or what is wrong is said.
fn look_at_trees(medium: &SimMedium) {
    let pool = match Pool::open_on(Arc::new(medium.clone()), &options()) {
        Ok(pool) => pool,
        Err(e) => return drop(e.to_string()),
    };
    let checked = towa_tree::check_all(&pool).map(|found| found.len());
    if checked.is_ok_and(|trees| trees == 1) {
        if let Ok(tree) = BpTree::<[u8]>::open(&pool, "tree") {
            let mut session = tree.session().expect("a lane");
            (0..200).step_by(11).for_each(|n| drop(session.upsert(&key(n), n)));
            (0..200).step_by(13).for_each(|n| drop(session.remove(&key(n))));
        }
    }
    pool.abandon();
}

fuzz_target!(|input: &[u8]| {
    let Some((how, edits)) = input.split_first() else { return };
    let mut files = sound().clone();
    let mut rng = SmallRng::seed_from_u64(xxh3_64_with_seed(input, 0));
    let bytes: Vec<u8> = edits.iter().copied().chain(std::iter::repeat_with(|| rng.random())).take(EDIT * EDITS).collect();
    bytes.chunks_exact(EDIT).take(usize::from(how >> 4) % (EDITS + 1)).for_each(|e| edit(&mut files, e));
    let model = if how % 2 == 0 { Model::Line } else { Model::File };
    let medium = medium_of(&files, model);
    let before = medium.events();
    let sound = verify(&medium, Door::Tx, &mut |_, _| ()).is_ok();
    assert!(!wrote(&medium, before), "verify wrote");
    let image = opened(&medium, sound);
    if let Some(image) = &image {
        let again = opened(&medium, true).expect("what was opened opens again");
        // Not assert_eq, which would print both.
        assert!(
            again == *image,
            "opened again, it is another from byte {:?} on",
            image.iter().zip(&again).position(|(a, b)| a != b)
        );
        look_at_trees(&medium);
    }
    let medium = medium_of(&files, model);
    if checkpoint(&medium, &files, bytes[0]) && sound {
        if let (Some(now), Some(image)) = (opened(&medium, false), image) {
            assert!(now == image, "a checkpointer and recovery make two things of the same records");
        }
    }
});
