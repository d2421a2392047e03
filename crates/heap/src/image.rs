//! The image's space, and the writing of applied lines into it.
//!
//! What must always hold: no byte of the image is written that has no space behind it, for on media that map it a store into a
//! hole of a full file system is SIGBUS and not an error; of two writes of a line the one of the later epoch comes last.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use towa_media::{Durability, LINE, Region};

use crate::Result;
use crate::alloc::Full;
use crate::log::Log;
use crate::log::commit::Commit;
use crate::log::frame::LINES_MAX;

/// Space is provided ahead of the frontier in steps of this.
const PROVIDE_STEP: u64 = 16 << 20;
/// The log is told once in this time that there is no more space.
const TOLD_AGAIN: Duration = Duration::from_secs(60);
/// Bytes of lines applied together on sync media: an eighth of the log, within these.
const BATCH_MIN: u64 = 4 << 20;
const BATCH_MAX: u64 = 32 << 20;
/// Lines after which the caller may pause.
const LINES_BETWEEN_PAUSES: usize = 1024;
/// Neighbouring lines that are applied by the same thread.
const SHARE_LINES: u64 = 4096;

/// Copies the lines of `commits`, oldest first, from the log into the image, as [`Heap::apply`](crate::Heap::apply) says.
pub(crate) fn apply(
    image: &dyn Region,
    log: &Log,
    durability: Durability,
    commits: &[Commit],
    threads: usize,
    pause: &mut dyn FnMut(),
) -> Result<()> {
    match durability {
        Durability::Line if threads > 1 => {
            let threads = threads as u64;
            std::thread::scope(|scope| {
                let fenced = |share| {
                    apply_share(image, log, commits, (share, threads), &mut || ())?;
                    // A fence is for what its own thread wrote.
                    Ok(image.fence()?)
                };
                let others: Vec<_> = (1..threads).map(|share| scope.spawn(move || fenced(share))).collect();
                let mine = apply_share(image, log, commits, (0, threads), pause);
                others.into_iter().try_for_each(|o| o.join().expect("applying does not panic")).and(mine)
            })
        }
        Durability::Line => apply_share(image, log, commits, (0, 1), pause),
        Durability::Sync => {
            let mut batch = Batch::new(image, applied_together(log.capacity()) as usize);
            for commit in commits {
                log.replay_own(commit, &mut |first, bytes| batch.add(first, bytes, pause))?;
            }
            batch.write()
        }
    }
}

/// Bytes of lines of a log of `capacity` bytes that are applied together on sync media. They take a third more of memory.
pub fn applied_together(capacity: u64) -> u64 {
    (capacity / 8).clamp(BATCH_MIN, BATCH_MAX)
}

/// Streams the lines of one of `of` shares of the heap. A line is always of the same share, whatever epoch or frame it comes from, so
/// its newest value is written last without the threads waiting for each other.
fn apply_share(image: &dyn Region, log: &Log, commits: &[Commit], (share, of): (u64, u64), pause: &mut dyn FnMut()) -> Result<()> {
    let mut written = 0;
    for commit in commits {
        log.replay_own(commit, &mut |mut first, mut bytes| {
            while !bytes.is_empty() {
                let lines = SHARE_LINES - first % SHARE_LINES;
                let (now, rest) = bytes.split_at(if of == 1 { bytes.len() } else { bytes.len().min(lines as usize * LINE) });
                if (first / SHARE_LINES) % of == share {
                    written += now.len() / LINE;
                    if written > LINES_BETWEEN_PAUSES {
                        written = 0;
                        pause();
                    }
                    image.stream(first * LINE as u64, now)?;
                }
                (first, bytes) = (first + (now.len() / LINE) as u64, rest);
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Lines to be written into the image, in the order of their epochs.
pub(crate) struct Batch<'i> {
    image: &'i dyn Region,
    /// Bytes after which it is written.
    limit: usize,
    /// Line index, and where in `data` it lies; a later place is newer.
    lines: Vec<(u64, usize)>,
    data: Vec<u8>,
}

impl<'i> Batch<'i> {
    pub fn new(image: &'i dyn Region, limit: usize) -> Self {
        // All of it at once: a buffer that grows leaves copies of itself behind, of half its size.
        let (lines, bytes) = (limit / LINE + LINES_MAX, limit + LINES_MAX * LINE);
        Batch { image, limit, lines: Vec::with_capacity(lines), data: Vec::with_capacity(bytes) }
    }

    /// Adds a run of lines, and writes the batch if that makes it full: an epoch may be as long as the log.
    pub fn add(&mut self, first: u64, bytes: &[u8], pause: &mut dyn FnMut()) -> Result<()> {
        for i in 0..bytes.len() / LINE {
            self.lines.push((first + i as u64, self.data.len() + i * LINE));
        }
        self.data.extend_from_slice(bytes);
        if self.data.len() >= self.limit {
            self.write()?;
            pause();
        }
        Ok(())
    }

    /// Writes the newest of each line, neighbours together, and empties the batch.
    pub fn write(&mut self) -> Result<()> {
        const SPAN: usize = 1 << 20;
        self.lines.sort_unstable();
        let mut span: Vec<u8> = Vec::with_capacity(SPAN.min(self.data.len()));
        let mut span_first = 0;
        for (i, &(line, at)) in self.lines.iter().enumerate() {
            if self.lines.get(i + 1).is_some_and(|next| next.0 == line) {
                continue; // a newer one follows
            }
            let follows = span_first + (span.len() / LINE) as u64 == line && span.len() < SPAN;
            if !follows && !span.is_empty() {
                self.image.stream(span_first * LINE as u64, &span)?;
                span.clear();
            }
            if span.is_empty() {
                span_first = line;
            }
            span.extend_from_slice(&self.data[at..at + LINE]);
        }
        self.image.stream(span_first * LINE as u64, &span)?;
        self.lines.clear();
        self.data.clear();
        Ok(())
    }
}

/// The space behind the image, provided ahead of the allocator so that applying an epoch never finds the medium full (which on
/// `ram` and `dax` would be a SIGBUS).
#[derive(Debug)]
pub(crate) struct ImageSpace {
    pub image: Arc<dyn Region>,
    /// Image bytes that have space behind them.
    pub provided: Mutex<u64>,
    /// The allocator gives back memory of it, and asks for it again.
    pub may_have_holes: bool,
    /// When the log was last told that there is no more.
    pub told: Mutex<Option<Instant>>,
}

impl ImageSpace {
    /// As [`provide`](Self::provide). A failure goes to the log, once a minute: the program hears that the heap is full, not why.
    pub fn provide_or_say_why(&self, range: Range<u64>) -> std::result::Result<(), Full> {
        self.provide(range).map_err(|why| {
            let mut told = self.told.lock();
            if told.is_none_or(|at| at.elapsed() > TOLD_AGAIN) {
                log::warn!("space for the heap runs out: {why}");
                *told = Some(Instant::now());
            }
            Full
        })
    }

    /// Provides space for these offsets, and some beyond where there is enough. What had space before may have been given back.
    pub fn provide(&self, range: Range<u64>) -> towa_media::Result<()> {
        let end = range.end;
        let mut provided = self.provided.lock();
        if end <= *provided {
            drop(provided);
            return if self.may_have_holes { self.image.reserve(range.start, end - range.start) } else { Ok(()) };
        }
        let wish = end.next_multiple_of(PROVIDE_STEP).min(self.image.len());
        // What was provided once, beyond the heap's frontier of that time, may have been given back.
        let from = if self.may_have_holes { range.start.min(*provided) } else { *provided };
        let upto = match self.image.reserve(from, wish - from) {
            Ok(()) => wish,
            Err(towa_media::Error::Full { .. }) if end < wish => {
                self.image.reserve(from, end - from)?;
                end
            }
            Err(e) => return Err(e),
        };
        *provided = upto;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towa_media::{Allocation, Medium, RamMedium};

    #[test]
    fn a_batch_holds_no_more_than_its_limit_however_long_the_epoch() {
        let medium = RamMedium::anonymous();
        let image = medium.create("image", 1 << 20, Allocation::Full).unwrap();
        let mut batch = Batch::new(&*image, 8 * LINE);
        let mut pauses = 0;
        for i in 0..1000u64 {
            batch.add(i % 100, &[i as u8; 2 * LINE], &mut || pauses += 1).unwrap();
            assert!(batch.data.len() <= 8 * LINE && batch.lines.len() <= 8);
        }
        batch.write().unwrap();
        assert!(pauses > 200);
        for line in 0..100u64 {
            let mut bytes = [0; LINE];
            image.read(line * LINE as u64, &mut bytes).unwrap();
            // The last to write line n was run 900 + n, whose second line lost to run 901 + n.
            assert_eq!(bytes, [(900 + line) as u8; LINE], "line {line}");
        }
    }
}
