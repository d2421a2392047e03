//! Lanes by hand: records are appended, applied and recovered without the door above, and compared with a model that knows what each
//! record wrote.

mod backup;
mod crash;
mod deletions;
mod failed_sync;
mod killed_replayer;
mod opening;
mod records;
mod replaying;
mod two_processes;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use towa_media::Medium;
use towa_media::sim::{Model, SimMedium};

use super::{RecordBuilder, Replayer};
use crate::superblock::Door;
use crate::{CreateOptions, Error, Heap, LogShape, OpenOptions, Result};

/// Lanes of the pools here, and their length: the shortest.
const LANES: u32 = 3;
const LANE_LEN: u64 = super::LANE_LEN_MIN;
/// Heap offset from which on tests write: neither roots nor headers are there.
const DATA: u64 = 4 << 20;

fn options() -> CreateOptions {
    // Pools of tests that run side by side live in one process.
    static NEXT: AtomicUsize = AtomicUsize::new(0x3a00_0000_0000);
    let base = Some(NEXT.fetch_add(64 << 20, Relaxed));
    CreateOptions {
        door: Door::Tx,
        heap_len: 8 << 20,
        log: LogShape::Lanes { count: LANES, lane_len: LANE_LEN },
        base,
        prefault: false,
    }
}

fn create(medium: impl Medium + Clone + 'static) -> Heap {
    Heap::create(Arc::new(medium), &options()).unwrap()
}

fn open(medium: &SimMedium) -> Result<Heap> {
    Heap::open(Arc::new(medium.clone()), &OpenOptions { door: Door::Tx, eager: true, prefault: false })
}

fn both_models() -> [SimMedium; 2] {
    [Model::Line, Model::File].map(SimMedium::new)
}

/// The same numbers for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % below
    }
}

/// What a record writes: heap offsets and words.
#[derive(Clone, Debug, Default)]
struct Written {
    ts: u64,
    lane: usize,
    words: Vec<(u64, u64)>,
}

impl Written {
    fn builder(&self) -> RecordBuilder {
        let mut builder = RecordBuilder::new();
        builder.set_ts(self.ts);
        self.words.iter().for_each(|(offset, value)| builder.word(*offset, *value));
        builder
    }
}

/// The words from [`DATA`] on that records wrote, without the zeros after the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Words(Vec<u64>);

impl Words {
    /// As of these records, whose order does not matter.
    fn of<'w>(records: impl IntoIterator<Item = &'w Written>) -> Words {
        let mut records: Vec<_> = records.into_iter().collect();
        records.sort_by_key(|record| (record.ts, record.lane));
        let mut words = vec![0; Self::span(records.iter().copied())];
        for (offset, value) in records.iter().flat_map(|record| &record.words) {
            words[((offset - DATA) / 8) as usize] = *value;
        }
        Words(words).trimmed()
    }

    /// What the image holds in the places that any of these records writes.
    fn read(heap: &Heap, records: &[Written]) -> Words {
        let mut words = vec![0; Self::span(records)];
        heap.image().read(DATA, bytemuck::cast_slice_mut(&mut words)).unwrap();
        Words(words).trimmed()
    }

    fn span<'w>(records: impl IntoIterator<Item = &'w Written>) -> usize {
        let ends = records.into_iter().flat_map(|record| &record.words).map(|(offset, _)| (offset - DATA) / 8 + 1);
        ends.max().unwrap_or(0) as usize
    }

    fn trimmed(mut self) -> Words {
        self.0.truncate(self.0.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1));
        self
    }
}
