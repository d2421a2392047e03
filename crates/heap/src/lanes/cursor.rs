//! Reading records: one lane from a position on, and all lanes in the order of timestamps.
//!
//! ```text
//!   lane 0:  ──[12]──[15]──[31]──      merge: the lane whose next record is the oldest goes first
//!   lane 1:  ──[13]──[14]──[40]──      12 13 14 15 31 40
//! ```
//!
//! What must always hold: no record is given whose sum was not checked; nothing is read at or beyond a lane's end, for there its writer
//! may be at work.

use towa_media::{LINE, Region};

use super::{Geometry, record};
use crate::Result;

/// Bytes read at a time where the lane is not mapped.
const WINDOW: u64 = 64 << 10;
/// Bytes behind a record that are guessed at when it comes.
const AHEAD: u64 = 16 * LINE as u64;

/// Longest record that is looked for behind a lane's end: any line may look like the beginning of a long one.
const LOOKED_AT_MAX: u64 = 4 << 10;

/// Where the records of a lane are read from, and up to where.
#[derive(Debug)]
pub(super) struct Cursor<'r> {
    region: &'r dyn Region,
    /// The lane's words where it is mapped and may be read in place.
    mapped: Option<*const u64>,
    /// Where the lane begins in the region.
    off: u64,
    lane_len: u64,
    heap_words: u64,
    pub lane: usize,
    seed: u64,
    /// Of the record that is next; where that begins in the lane, and its length: 0 when it was not looked for yet.
    pub position: u64,
    at: u64,
    len: u64,
    end: u64,
    /// Timestamp of the next record; `u64::MAX` when there is none.
    ts: u64,
    /// Position up to which was guessed what comes.
    guessed: u64,
    /// Bytes read, where the lane is not mapped, and where in the lane these begin.
    window: Vec<u64>,
    window_at: u64,
}

/// What is wrong with a record that has a right sum, or a place where there has to be one and is none.
pub(super) struct Fault {
    pub lane: usize,
    pub position: u64,
    pub what: String,
}

impl<'r> Cursor<'r> {
    /// The records of `lane` between two positions. `in_place`: nobody writes them meanwhile, so they need not be copied.
    pub fn new(
        region: &'r dyn Region,
        geometry: &Geometry,
        lane: usize,
        seed: u64,
        span: (u64, u64),
        in_place: bool,
    ) -> Cursor<'r> {
        let off = geometry.lane_off(lane);
        let mapped = region.bytes().filter(|_| in_place).map(|bytes| {
            assert!(bytes.len() as u64 >= off + geometry.lane_len);
            bytes.as_ptr().cast::<u8>().wrapping_add(off as usize).cast_const().cast::<u64>()
        });
        Cursor {
            region,
            mapped,
            off,
            lane_len: geometry.lane_len,
            heap_words: geometry.heap_words,
            lane,
            seed,
            position: span.0,
            at: span.0 % geometry.lane_len,
            len: 0,
            end: span.1,
            ts: u64::MAX,
            guessed: span.0,
            window: Vec::new(),
            window_at: 0,
        }
    }

    /// Timestamp of the next record, as found by [`find`](Self::find); `u64::MAX` when there is none.
    #[inline]
    pub fn ts(&self) -> u64 {
        self.ts
    }

    /// The lane's words from byte `at` on, `len` bytes that lie before the lane's end.
    #[inline]
    fn words(&mut self, at: u64, len: u64) -> Result<&[u64]> {
        debug_assert!(at + len <= self.lane_len && at.is_multiple_of(8) && len.is_multiple_of(8));
        if let Some(first) = self.mapped {
            // SAFETY: within the lane, which is within the mapping (`new`), which `region` keeps; page-aligned, so aligned; before the
            // cursor's end, where nobody writes meanwhile.
            return Ok(unsafe { std::slice::from_raw_parts(first.add((at / 8) as usize), (len / 8) as usize) });
        }
        let held = self.window_at..self.window_at + self.window.len() as u64 * 8;
        if !(held.contains(&at) && at + len <= held.end) {
            // No further than the lane's end, or its last position: beyond it may be what is being written.
            let upto = (self.end - self.position).max(len).min(self.lane_len - at);
            self.window.resize((len.max(WINDOW).min(upto) / 8) as usize, 0);
            self.window_at = at;
            self.region.read(self.off + at, bytemuck::cast_slice_mut(&mut self.window))?;
        }
        let from = ((at - self.window_at) / 8) as usize;
        Ok(&self.window[from..from + (len / 8) as usize])
    }

    /// Finds the next record, behind the one found before. `false` at the end, and where none checks out. A record that checks out
    /// and cannot be is a fault.
    #[inline]
    pub fn find(&mut self) -> Result<std::result::Result<bool, Fault>> {
        self.step(self.len);
        self.len = 0;
        let before = std::mem::replace(&mut self.ts, u64::MAX);
        loop {
            let room = (self.lane_len - self.at).min(self.end - self.position);
            if room == 0 {
                return Ok(Ok(false));
            }
            let (at, position, seed, heap_words) = (self.at, self.position, self.seed, self.heap_words);
            let Some(look) = record::look(self.words(at, LINE as u64)?).filter(|look| look.len <= room) else {
                return Ok(Ok(false));
            };
            let words = self.words(at, look.summed)?;
            if !record::is_whole(words, seed, position) {
                return Ok(Ok(false));
            }
            let (checked, ts) = (record::check(words, heap_words), record::timestamp(words));
            if look.is_pad {
                self.step(look.len);
                continue;
            }
            if let Err(what) = checked {
                return Ok(Err(self.fault(what)));
            }
            if ts == 0 || ts == u64::MAX || (before != u64::MAX && ts < before) {
                return Ok(Err(self.fault("is older than the one before it")));
            }
            (self.len, self.ts) = (look.len, ts);
            return Ok(Ok(true));
        }
    }

    /// Where the records end: that nothing whole stands behind. A record is appended behind a durable one only, so a crash leaves none there,
    /// but for one: that which begins the next lap, whose own pad was torn. Anything else means that a record in front of it is damaged,
    /// and so are those that were acknowledged behind it.
    pub fn check_end(&mut self) -> Result<std::result::Result<(), Fault>> {
        // A lane that never held a record of this lap or an earlier one reads as zeros, or is not even provided.
        let line = LINE as u64;
        let (from, lap) = (self.position + line, self.position + self.lane_len - self.at);
        if self.end - self.position < 2 * line || (self.position == 0 && self.is_blank()?) {
            return Ok(Ok(()));
        }
        for position in (from..self.end).step_by(LINE).filter(|position| *position != lap) {
            let at = position % self.lane_len;
            let room = (self.lane_len - at).min(self.end - position);
            let seed = self.seed;
            let is_short = |look: &record::Look| look.summed <= room.min(LOOKED_AT_MAX) && !look.is_pad;
            let Some(look) = record::look(self.words(at, line)?).filter(is_short) else { continue };
            if record::is_whole(self.words(at, look.summed)?, seed, position) {
                return Ok(Err(self.fault("is damaged, for behind it stands a whole one")));
            }
        }
        Ok(Ok(()))
    }

    /// Whether the lane's first line is all zeros: nothing was ever stored there.
    fn is_blank(&mut self) -> Result<bool> {
        Ok(self.words(0, LINE as u64)?.iter().all(|word| *word == 0))
    }

    #[inline]
    fn step(&mut self, len: u64) {
        self.position += len;
        self.at += len;
        if self.at == self.lane_len {
            self.at = 0;
        }
    }

    pub fn fault(&self, what: &str) -> Fault {
        Fault { lane: self.lane, position: self.position, what: what.into() }
    }

    /// The words of the next record, which was found.
    #[inline]
    pub fn record(&mut self) -> Result<&[u64]> {
        self.words(self.at, self.len)
    }

    /// Whether all up to the end was found to be records.
    pub fn is_at_end(&self) -> bool {
        self.position == self.end
    }

    /// Calls `each` with the words that records behind the next one name, those of few words, to have fetched what will be needed. It is a
    /// guess: each line is looked at once, whether a record begins there or not.
    #[inline(always)]
    pub fn ahead(&mut self, mut each: impl FnMut(u64)) {
        let Some(first) = self.mapped else { return };
        let upto = (self.position + self.len + AHEAD).min(self.end);
        self.guessed = self.guessed.max(self.position);
        while self.guessed < upto {
            let at = self.at + (self.guessed - self.position);
            let at = if at < self.lane_len { at } else { at - self.lane_len };
            // SAFETY: a line of the lane before its end, as in `words`.
            let line = unsafe { std::slice::from_raw_parts(first.add((at / 8) as usize), record::LINE_WORDS) };
            record::guess_words(line, &mut each);
            self.guessed += LINE as u64;
        }
    }
}

/// Calls `each` with every record up to timestamp `upto`, oldest first; of two of one timestamp that of the lower lane. Stops in a lane at
/// the first newer one. The cursors, of which each was [`find`](Cursor::find)-ed once, stand at the first record that was not given.
#[inline(always)]
pub(super) fn merge<'r>(
    cursors: &mut [Cursor<'r>],
    upto: u64,
    mut each: impl FnMut(&mut Cursor<'r>) -> Result<()>,
) -> Result<std::result::Result<(), Fault>> {
    // Of the lanes that have records: a pool has many, and seldom are all of them used.
    let mut next: Vec<(usize, u64)> = cursors.iter().map(Cursor::ts).enumerate().filter(|next| next.1 < u64::MAX).collect();
    loop {
        // The oldest, and the oldest of the others: up to that one, this lane goes on alone.
        let (mut at, mut oldest, mut other) = (0, u64::MAX, u64::MAX);
        for (i, &(_, ts)) in next.iter().enumerate() {
            if ts < oldest {
                (at, oldest, other) = (i, ts, oldest);
            } else if ts < other {
                other = ts;
            }
        }
        if oldest > upto || oldest == u64::MAX {
            return Ok(Ok(()));
        }
        let cursor = &mut cursors[next[at].0];
        loop {
            each(cursor)?;
            match cursor.find()? {
                Ok(_) => {}
                Err(fault) => return Ok(Err(fault)),
            }
            // Not one of the same timestamp as the other: the lower lane comes first.
            if cursor.ts() >= other || cursor.ts() > upto {
                break;
            }
        }
        next[at].1 = cursor.ts();
    }
}
