//! A record: a timestamp and the words that were written under it, as it lies in a lane.
//!
//! ```text
//!   compact (one line):  | sum, kind | timestamp | base | 4 deltas | value | value | value | value |
//!   long (any number):   | sum, kind | timestamp | size | frontier | run | value ... | run | value ... | zeros |
//!   pad (one line, counts as many as are left in the lap):  | sum, kind | 0 | lines | 0 | 0 | 0 | 0 | 0 |
//!
//!   first word:  bits 0..4 kind (1 compact, 2 long, 3 pad), 4..8 words of a compact record, 8..16 zero, 16..64 sum
//!   base: number of a word in the heap (offset / 8); word i lies at base + delta i
//!   size: bits 0..32 words of all runs, 32..64 flags (1: the frontier counts)
//!   run:  bits 0..40 number of the first word, 40..63 number of values, 63: any
//! ```
//!
//! What must always hold: the sum covers every byte of the record and is seeded with the pool, the generation, the lane and the
//! position, so that a torn record, or a whole one of another lap, generation, lane or pool, is none; nothing of a record is believed
//! before its sum was checked, but its length, and that only to know what to check.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::checksum::checksum;

/// Words in a line.
pub(super) const LINE_WORDS: usize = towa_media::LINE / 8;
const LINE: u64 = towa_media::LINE as u64;
const COMPACT: u64 = 1;
const LONG: u64 = 2;
const PAD: u64 = 3;
/// Most words of a compact record.
const COMPACT_WORDS: usize = 4;
/// Words of a long record before its first run.
const HEAD: usize = 4;
/// Flag of a long record: its frontier counts.
const HAS_FRONTIER: u64 = 1 << 32;
/// Bits of a run that number its first word.
const RUN_SHIFT: u32 = 40;
/// Most values of a run.
const RUN_MAX: usize = (1 << (63 - RUN_SHIFT)) - 1;
/// Bit of a run that once said where its words had been written, and says nothing now.
const UNUSED: u64 = 1 << 63;

/// Bits of heap offsets that are multiples of 8.
const OFFSETS: u64 = (1 << (RUN_SHIFT + 3)) - 8;

/// What the sums of all records of one lane and generation are seeded with.
pub(super) fn lane_seed(uuid: &[u8; 16], generation: u64, lane: usize) -> u64 {
    let mut bytes = [0; 24];
    bytes[..16].copy_from_slice(uuid);
    bytes[16..].copy_from_slice(&(lane as u64).to_le_bytes());
    checksum(generation, &bytes)
}

/// The first word of the record `first`, `rest` at `position`: sum and kind.
#[inline]
fn head_word(seed: u64, position: u64, kind: u64, first: &[u64; LINE_WORDS], rest: &[u64]) -> u64 {
    let seed = (seed ^ position).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ kind;
    let mut sum = xxh3_64_with_seed(bytemuck::cast_slice(&first[1..]), seed);
    if !rest.is_empty() {
        sum = xxh3_64_with_seed(bytemuck::cast_slice(rest), sum);
    }
    sum & !0xFFFF | kind
}

/// What a record says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// Bytes up to the next record.
    pub len: u64,
    /// Of these: bytes that the sum covers.
    pub summed: u64,
    /// Whether it holds nothing.
    pub is_pad: bool,
}

/// What the record that begins with this line says it is; `None` if no record begins so. Its sum was not checked.
#[inline]
pub(super) fn look(first: &[u64]) -> Option<Look> {
    match first[0] & 0xF {
        COMPACT => Some(Look { len: LINE, summed: LINE, is_pad: false }),
        LONG => {
            let len = (HEAD as u64 + u64::from(first[2] as u32)).next_multiple_of(LINE_WORDS as u64) * 8;
            Some(Look { len, summed: len, is_pad: false })
        }
        PAD => Some(Look { len: first[2].checked_mul(LINE)?.max(LINE), summed: LINE, is_pad: true }),
        _ => None,
    }
}

/// Whether the sum of the record in `words` (as many as [`Look::summed`] says) is that of this place.
#[inline]
pub(super) fn is_whole(words: &[u64], seed: u64, position: u64) -> bool {
    let (first, rest) = words.split_first_chunk::<LINE_WORDS>().expect("a line at least");
    first[0] == head_word(seed, position, first[0] & 0xFFFF, first, rest)
}

/// The line of a pad of `len` bytes at `position`.
pub(super) fn pad(seed: u64, position: u64, len: u64) -> [u64; LINE_WORDS] {
    let mut line = [0; LINE_WORDS];
    line[2] = len / LINE;
    line[0] = head_word(seed, position, PAD, &line, &[]);
    line
}

/// The timestamp of a record.
#[inline]
pub(super) fn timestamp(words: &[u64]) -> u64 {
    words[1]
}

/// The frontier that a whole record carries.
pub(super) fn frontier(words: &[u64]) -> Option<u64> {
    (words[0] & 0xF == LONG && words[2] & HAS_FRONTIER != 0).then_some(words[3])
}

/// Checks that a whole record is one that this version writes, and stays within a heap of `heap_words` words.
#[inline]
pub(super) fn check(words: &[u64], heap_words: u64) -> Result<(), &'static str> {
    const UNKNOWN: &str = "is of a kind that this version does not know";
    const OUTSIDE: &str = "writes outside the heap";
    match words[0] & 0xFFFF {
        kind if kind & 0xFF0F == COMPACT => {
            let count = (kind >> 4) as usize;
            if count > COMPACT_WORDS {
                return Err(UNKNOWN);
            }
            // All four deltas: those that do not count are zero.
            let last = (0..COMPACT_WORDS).map(|i| delta(words[3], i)).max().unwrap_or(0);
            if words[2].checked_add(last).is_none_or(|last| last >= heap_words) { Err(OUTSIDE) } else { Ok(()) }
        }
        LONG => {
            if (words[2] >> 32) & !1 != 0 {
                return Err(UNKNOWN);
            }
            let (mut at, end) = (HEAD, HEAD + words[2] as u32 as usize);
            while at < end {
                let Run { first, count } = run(words[at]);
                at += 1 + count;
                if count == 0 || at > end {
                    return Err("contradicts itself");
                }
                if first + count as u64 > heap_words {
                    return Err(OUTSIDE);
                }
            }
            Ok(())
        }
        PAD => Ok(()),
        _ => Err(UNKNOWN),
    }
}

#[inline]
fn delta(deltas: u64, i: usize) -> u64 {
    (deltas >> (16 * i)) & 0xFFFF
}

/// What a run's first word says.
struct Run {
    first: u64,
    count: usize,
}

#[inline]
fn run(word: u64) -> Run {
    let first = word & ((1 << RUN_SHIFT) - 1);
    Run { first, count: ((word & !UNUSED) >> RUN_SHIFT) as usize }
}

/// Words in a row that a record gives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words<'r> {
    /// Number of the first.
    pub first: u64,
    pub values: &'r [u64],
}

/// The words of a compact record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Few<'r> {
    base: u64,
    deltas: u64,
    pub values: &'r [u64],
}

impl<'r> Few<'r> {
    /// The number of each.
    #[inline(always)]
    pub fn numbers(self) -> impl Iterator<Item = u64> {
        (0..self.values.len()).map(move |i| self.base + delta(self.deltas, i))
    }

    /// Each by itself.
    #[inline(always)]
    pub fn each(self) -> impl Iterator<Item = Words<'r>> {
        let words = self.numbers().zip(self.values);
        words.map(|(first, value)| Words { first, values: std::slice::from_ref(value) })
    }
}

/// The words of a record, if it is a compact one. The record was [`check`]ed.
#[inline(always)]
pub(super) fn few(words: &[u64]) -> Option<Few<'_>> {
    let count = ((words[0] >> 4) & 0xF) as usize;
    (words[0] & 0xF == COMPACT).then(|| Few { base: words[2], deltas: words[3], values: &words[HEAD..HEAD + count] })
}

/// Calls `each` with the words of a record, in the order they were written. The record was [`check`]ed.
#[inline]
pub(super) fn each_run<E>(words: &[u64], mut each: impl FnMut(Words<'_>) -> Result<(), E>) -> Result<(), E> {
    if let Some(few) = few(words) {
        return few.each().try_for_each(each);
    }
    let (mut at, end) = (HEAD, HEAD + words[2] as u32 as usize);
    while at < end {
        let Run { first, count } = run(words[at]);
        each(Words { first, values: &words[at + 1..at + 1 + count] })?;
        at += 1 + count;
    }
    Ok(())
}

/// Calls `each` with the number of a word in each line that this line names, if it is a compact record. It is a guess: nothing was checked.
#[inline(always)]
pub(super) fn guess_words(line: &[u64], mut each: impl FnMut(u64)) {
    if line[0] & 0xF == COMPACT {
        let mut last = u64::MAX;
        for i in 0..COMPACT_WORDS {
            let word = line[2].wrapping_add(delta(line[3], i));
            if word / LINE_WORDS as u64 != last {
                last = word / LINE_WORDS as u64;
                each(word);
            }
        }
    }
}

/// A record being put together; the buffer is used again and again.
#[derive(Clone, Debug, Default)]
pub struct RecordBuilder {
    ts: u64,
    /// 0: none.
    frontier: u64,
    /// The first words, while they may fit a compact record.
    few: [(u64, u64); COMPACT_WORDS],
    /// How many these are, and the least and the greatest number of them.
    count: usize,
    low: u64,
    high: u64,
    /// Words in all.
    added: u64,
    /// A long record from its first word on, in whole lines of which `used` words count; what is before the first run is filled in last.
    long: Vec<u64>,
    /// 0 while `few` holds all.
    used: usize,
    /// Where in `long` the last run begins, and the number of the word that would go on with it; `u64::MAX`: none does.
    last_run: usize,
    run_next: u64,
}

impl RecordBuilder {
    /// An empty one.
    pub fn new() -> RecordBuilder {
        RecordBuilder::default()
    }

    /// Empties it; the timestamp goes, too.
    #[inline]
    pub fn clear(&mut self) {
        (self.ts, self.frontier, self.count, self.used, self.added) = (0, 0, 0, 0, 0);
        (self.low, self.high) = (0, 0);
    }

    /// Gives it its timestamp: above 0, and not below that of the record before it in its lane.
    #[inline]
    pub fn set_ts(&mut self, ts: u64) {
        self.ts = ts;
    }

    /// Its timestamp.
    pub fn ts(&self) -> u64 {
        self.ts
    }

    /// Whether no word and no frontier was added.
    pub fn is_empty(&self) -> bool {
        self.count == 0 && self.used == 0 && self.frontier == 0
    }

    /// Adds a word: heap offset `offset` holds `value` from then on. Of two for one offset the later counts.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 8 below 8 TiB.
    #[inline(always)]
    pub fn word(&mut self, offset: u64, value: u64) {
        assert!(offset & !OFFSETS == 0, "heap offset {offset:#x} is not that of a word");
        let word = offset / 8;
        if self.used > 0 || self.count == COMPACT_WORDS {
            return self.one_of_many(word, value);
        }
        (self.low, self.high) = if self.count == 0 { (word, word) } else { (self.low.min(word), self.high.max(word)) };
        self.few[self.count] = (word, value);
        self.count += 1;
        self.added += 1;
    }

    /// Adds words as [`word`](Self::word) does, with heap offset and value of each.
    ///
    /// # Panics
    /// As [`word`](Self::word).
    #[inline(always)]
    pub fn each(&mut self, words: impl ExactSizeIterator<Item = (u64, u64)>) {
        if self.used > 0 || self.count + words.len() > COMPACT_WORDS {
            return self.many(words);
        }
        if self.count > 0 {
            return words.for_each(|(offset, value)| self.word(offset, value));
        }
        (self.count, self.added) = (words.len(), self.added + words.len() as u64);
        let (mut low, mut high, mut offsets) = (u64::MAX, 0, 0);
        for (few, (offset, value)) in self.few.iter_mut().zip(words) {
            let word = offset / 8;
            (offsets, low, high) = (offsets | offset, low.min(word), high.max(word));
            *few = (word, value);
        }
        assert!(offsets & !OFFSETS == 0, "one of the heap offsets is not that of a word");
        (self.low, self.high) = if self.count == 0 { (0, 0) } else { (low, high) };
    }

    fn many(&mut self, words: impl ExactSizeIterator<Item = (u64, u64)>) {
        self.added += words.len() as u64;
        self.spill();
        self.reserve(2 * words.len());
        for (offset, value) in words {
            assert!(offset & !OFFSETS == 0, "heap offset {offset:#x} is not that of a word");
            self.push_word(offset / 8, value);
        }
        self.long.truncate(self.used.next_multiple_of(LINE_WORDS));
    }

    #[inline(never)]
    fn one_of_many(&mut self, word: u64, value: u64) {
        self.added += 1;
        self.spill();
        self.push_word(word, value);
    }

    /// Adds the words that `values` are, from heap offset `offset` on.
    ///
    /// # Panics
    /// As [`word`](Self::word).
    pub fn words(&mut self, offset: u64, values: &[u64]) {
        if self.used == 0 && self.count + values.len() <= COMPACT_WORDS {
            values.iter().enumerate().for_each(|(i, value)| self.word(offset + i as u64 * 8, *value));
            return;
        }
        assert!(offset & !OFFSETS == 0, "heap offset {offset:#x} is not that of a word");
        self.added += values.len() as u64;
        self.spill();
        let mut first = offset / 8;
        for values in values.chunks(RUN_MAX) {
            (self.last_run, self.run_next) = (self.used, u64::MAX);
            self.reserve(1 + values.len());
            self.long[self.used] = first | (values.len() as u64) << RUN_SHIFT;
            self.long[self.used + 1..][..values.len()].copy_from_slice(values);
            self.used += 1 + values.len();
            first += values.len() as u64;
            self.run_next = first;
        }
    }

    /// Says that chunks up to heap offset `frontier` are in use from then on.
    pub fn frontier(&mut self, frontier: u64) {
        self.frontier = self.frontier.max(frontier);
    }

    /// Words added.
    pub fn count(&self) -> u64 {
        self.added
    }

    /// The frontier that it says, 0 for none.
    pub fn frontier_noted(&self) -> u64 {
        self.frontier
    }

    /// Calls `each` with heap offset and value of every word, in the order they were added.
    pub fn each_word(&self, mut each: impl FnMut(u64, u64)) {
        self.few[..self.count].iter().for_each(|&(index, value)| each(index * 8, value));
        let mut at = HEAD;
        while at < self.used {
            let Run { first, count } = run(self.long[at]);
            (first..).zip(&self.long[at + 1..][..count]).for_each(|(index, value)| each(index * 8, *value));
            at += 1 + count;
        }
    }

    /// Bytes that it takes in a lane, a multiple of 64.
    pub fn len(&self) -> u64 {
        if self.used > 0 {
            self.long.len() as u64 * 8
        } else if self.is_compact() {
            LINE
        } else {
            let mut small = [0; 2 * LINE_WORDS];
            (self.small(&mut small) * 8) as u64
        }
    }

    /// Takes the words out of `few`, and begins a long record with them.
    fn spill(&mut self) {
        if self.used > 0 {
            return;
        }
        self.long.clear();
        self.used = HEAD;
        self.run_next = u64::MAX;
        self.long.resize(LINE_WORDS, 0);
        let few = self.few;
        few[..self.count].iter().for_each(|&(index, value)| self.push_word(index, value));
        self.count = 0;
    }

    #[inline]
    fn push_word(&mut self, index: u64, value: u64) {
        if index == self.run_next && self.used - self.last_run <= RUN_MAX {
            self.reserve(1);
            self.long[self.last_run] += 1 << RUN_SHIFT;
            self.long[self.used] = value;
            (self.used, self.run_next) = (self.used + 1, index + 1);
            return;
        }
        self.reserve(2);
        (self.last_run, self.run_next) = (self.used, index + 1);
        self.long[self.used] = index | 1 << RUN_SHIFT;
        self.long[self.used + 1] = value;
        self.used += 2;
    }

    /// Makes room for `more` words: zeros, to the end of a line.
    #[inline]
    fn reserve(&mut self, more: usize) {
        if self.used + more > self.long.len() {
            self.long.resize((self.used + more).next_multiple_of(LINE_WORDS), 0);
        }
    }

    /// Whether one line holds it.
    #[inline]
    fn is_compact(&self) -> bool {
        self.used == 0 && self.frontier == 0 && self.high - self.low <= 0xFFFF
    }

    /// The compact record at `position`; `None` if it has to be a long one.
    #[inline]
    pub(super) fn compact(&self, seed: u64, position: u64) -> Option<[u64; LINE_WORDS]> {
        if !self.is_compact() {
            return None;
        }
        let (few, base) = (&self.few[..self.count], self.low);
        let mut line = [0; LINE_WORDS];
        (line[1], line[2]) = (self.ts, base);
        for (i, &(index, value)) in few.iter().enumerate() {
            line[3] |= (index - base) << (16 * i);
            line[HEAD + i] = value;
        }
        line[0] = head_word(seed, position, COMPACT | (self.count as u64) << 4, &line, &[]);
        Some(line)
    }

    /// A few words that lie too far apart, as a long record; how many words of `into` it takes.
    fn small(&self, into: &mut [u64; 2 * LINE_WORDS]) -> usize {
        for (i, &(index, value)) in self.few[..self.count].iter().enumerate() {
            into[HEAD + 2 * i] = index | 1 << RUN_SHIFT;
            into[HEAD + 2 * i + 1] = value;
        }
        (HEAD + 2 * self.count).next_multiple_of(LINE_WORDS)
    }

    /// The long record at `position`: gives its first line and the others to `put`.
    pub(super) fn long<R>(&self, seed: u64, position: u64, put: impl FnOnce(&[u64; LINE_WORDS], &[u64]) -> R) -> R {
        let mut small = [0; 2 * LINE_WORDS];
        let (words, used) = if self.used > 0 {
            (&self.long[..], self.used)
        } else {
            let len = self.small(&mut small);
            (&small[..len], HEAD + 2 * self.count)
        };
        let (first, rest) = words.split_first_chunk::<LINE_WORDS>().expect("a line at least");
        let mut first = *first;
        first[1] = self.ts;
        first[2] = (used - HEAD) as u64 | if self.frontier > 0 { HAS_FRONTIER } else { 0 };
        first[3] = self.frontier;
        first[0] = head_word(seed, position, LONG, &first, rest);
        put(&first, rest)
    }
}

/// Most bytes that a record of `words` words in `runs` runs takes.
#[inline]
pub(super) fn len_max(words: u64, runs: u64) -> u64 {
    (HEAD as u64 + words + runs).next_multiple_of(LINE_WORDS as u64) * 8
}
