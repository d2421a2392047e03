//! The image's space, and the writing of applied lines into it.
//!
//! What must always hold: no byte of the image is written that has no space behind it, for on media that map it a store into a
//! hole of a full file system is SIGBUS and not an error; of two writes of a line the one of the later epoch comes last.

use std::sync::Arc;

use parking_lot::Mutex;
use towa_media::{LINE, Region};

use crate::Result;

/// Space is provided ahead of the frontier in steps of this.
const PROVIDE_STEP: u64 = 16 << 20;
/// Bytes of lines applied together on sync media.
pub(crate) const BATCH_LEN: usize = 32 << 20;

/// Lines to be written into the image, in the order of their epochs.
#[derive(Default)]
pub(crate) struct Batch {
    /// Line index, and where in `data` it lies; a later place is newer.
    lines: Vec<(u64, usize)>,
    pub data: Vec<u8>,
}

impl Batch {
    pub fn add(&mut self, first: u64, bytes: &[u8]) {
        for i in 0..bytes.len() / LINE {
            self.lines.push((first + i as u64, self.data.len() + i * LINE));
        }
        self.data.extend_from_slice(bytes);
    }

    /// Writes the newest of each line, neighbours together, and empties the batch.
    pub fn write(&mut self, image: &dyn Region) -> Result<()> {
        const SPAN: usize = 1 << 20;
        self.lines.sort_unstable();
        let mut span: Vec<u8> = Vec::with_capacity(SPAN);
        let mut span_first = 0;
        for (i, &(line, at)) in self.lines.iter().enumerate() {
            if self.lines.get(i + 1).is_some_and(|next| next.0 == line) {
                continue; // a newer one follows
            }
            let follows = span_first + (span.len() / LINE) as u64 == line && span.len() < SPAN;
            if !follows && !span.is_empty() {
                image.stream(span_first * LINE as u64, &span)?;
                span.clear();
            }
            if span.is_empty() {
                span_first = line;
            }
            span.extend_from_slice(&self.data[at..at + LINE]);
        }
        image.stream(span_first * LINE as u64, &span)?;
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
}

impl ImageSpace {
    /// Provides space up to `end`, and some beyond where there is enough.
    pub fn provide(&self, end: u64) -> towa_media::Result<()> {
        let mut provided = self.provided.lock();
        if end <= *provided {
            return Ok(());
        }
        let wish = end.next_multiple_of(PROVIDE_STEP).min(self.image.len());
        let upto = match self.image.reserve(*provided, wish - *provided) {
            Ok(()) => wish,
            Err(towa_media::Error::Full { .. }) if end < wish => {
                self.image.reserve(*provided, end - *provided)?;
                end
            }
            Err(e) => return Err(e),
        };
        *provided = upto;
        Ok(())
    }
}
