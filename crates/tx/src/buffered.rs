//! Buffered commits: transactions hand their words to DRAM buffers; now and then one thread takes all that took effect up to some
//! time and writes it as one record.
//!
//! ```text
//!   thread ─► its buffer: (t1, words) (t3, words)  ┐   up to the frontier, by time,
//!   thread ─► its buffer: (t2, words)              ┘─► newest of each word ─► records in the group's lane ─► durable
//! ```
//!
//! What must always hold: a record holds all that took effect up to its timestamp and after the record before it, so a crash leaves a
//! prefix of the order in which transactions took effect.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::*};

use parking_lot::Mutex;
use towa_heap::lanes::RecordBuilder;

use crate::engine::Engine;
use crate::error::Result;

/// Words in one record of the group, about; a transaction is never split.
const GROUP_WORDS: usize = 64 << 10;
/// Words that a thread's buffer holds, about: 16 MiB.
const WORDS_MAX: usize = 1 << 20;

/// One transaction's share.
#[derive(Clone, Debug)]
struct Entry {
    timestamp: u64,
    frontier: u64,
    words: Vec<(u64, u64)>,
}

/// What a thread's transactions have written and nobody has logged.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    entries: Mutex<Vec<Entry>>,
    /// In all of them.
    words: AtomicUsize,
}

impl Buffer {
    /// Adds a transaction that took effect.
    pub fn push(&self, record: &RecordBuilder) {
        let mut words = Vec::new();
        record.each_word(|offset, value| words.push((offset, value)));
        self.words.fetch_add(words.len(), Relaxed);
        self.entries.lock().push(Entry { timestamp: record.ts(), frontier: record.frontier_noted(), words });
    }

    /// Whether it holds so much that its thread should wait until some of it is logged.
    pub fn is_full(&self) -> bool {
        self.words.load(Relaxed) > WORDS_MAX
    }

    fn take(&self, upto: u64) -> Vec<Entry> {
        let mut entries = self.entries.lock();
        let count = entries.partition_point(|e| e.timestamp <= upto);
        let taken: Vec<Entry> = entries.drain(..count).collect();
        self.words.fetch_sub(taken.iter().map(|e| e.words.len()).sum(), Relaxed);
        taken
    }
}

/// Who writes the group's records.
#[derive(Debug, Default)]
pub(crate) struct Group {
    record: RecordBuilder,
}

impl Group {
    /// Makes durable what took effect up to now; gives the timestamp up to which that is.
    pub fn flush(&mut self, engine: &Engine, make_room: &mut dyn FnMut(u64) -> Result<()>) -> Result<u64> {
        let upto = engine.control.frontier(usize::MAX);
        let mut entries: Vec<Entry> = engine.buffers.iter().flat_map(|b| b.take(upto)).collect();
        entries.sort_by_key(|e| e.timestamp);
        // However far apart its words lie, a record of so many fits into half a lane, as one transaction's does.
        let most = GROUP_WORDS.min(engine.heap.lanes().record_len_max() as usize / 16 - 8);
        let mut rest = &entries[..];
        while !rest.is_empty() {
            let mut words = 0;
            let count = rest.iter().take_while(|e| {
                let first = words == 0;
                words += e.words.len();
                first || words <= most
            });
            let (now, later) = rest.split_at(count.count().max(1));
            self.write(engine, now, make_room)?;
            rest = later;
        }
        Ok(upto)
    }

    fn write(&mut self, engine: &Engine, entries: &[Entry], make_room: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        let mut newest = BTreeMap::new();
        entries.iter().for_each(|e| newest.extend(e.words.iter().copied()));
        self.record.clear();
        newest.into_iter().for_each(|(offset, value)| self.record.word(offset, value));
        let frontier = entries.iter().map(|e| e.frontier).max().unwrap_or(0);
        if frontier > 0 {
            self.record.frontier(frontier);
        }
        self.record.set_ts(entries.last().expect("an entry at least").timestamp);
        make_room(self.record.len())?;
        let (lane, lanes) = (engine.lanes - 1, engine.heap.lanes());
        let control = &engine.control.lanes[lane];
        let end = lanes.append(lane, control.head.load(Acquire), &self.record)?;
        lanes.fence()?;
        control.head.store(end, Release);
        Ok(())
    }
}
