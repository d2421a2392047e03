//! Frames: the redo log's unit of writing, some thousand lines under one checksum.
//!
//! ```text
//!   | header (64 bytes) | line 0 | line 1 | ... (64 bytes each) | runs (8 bytes each), padded to 64 |
//!
//!   run:  bits 0..40  index of its first line in the heap (offset / 64)
//!         bits 40..64 number of lines, taken from the frame's lines in order
//! ```
//!
//! A frame never wraps round the end of the ring: where it would, a pad frame without lines fills the rest.

use bytemuck::{Pod, Zeroable};
use towa_media::LINE;

use super::commit::Commit;
use crate::Result;
use crate::checksum::checksum;

/// Bytes of a frame's header.
pub const HEADER: usize = 64;
/// Most lines in a frame: 128 KiB of data, so that a frame is built, checksummed and copied within the L2 cache.
pub const LINES_MAX: usize = 2048;
/// Longest frame: every line a run of its own.
pub const FRAME_MAX: usize = HEADER + LINES_MAX * (LINE + 8);

const MAGIC: u32 = u32::from_le_bytes(*b"TFRM");
const RUN_BITS: u32 = 40;
/// Most lines in one run.
pub const RUN_LINES_MAX: u64 = (1 << (64 - RUN_BITS)) - 1;

/// A run of lines packed in a word, as frames and address lists keep it.
pub fn pack_run(first_line: u64, lines: u64) -> u64 {
    debug_assert!(first_line < 1 << RUN_BITS && (1..=RUN_LINES_MAX).contains(&lines));
    first_line | lines << RUN_BITS
}

/// First line and number of lines of a packed run.
pub fn unpack_run(run: u64) -> (u64, u64) {
    (run & ((1 << RUN_BITS) - 1), run >> RUN_BITS)
}

/// A frame's header, as stored (little endian).
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Header {
    magic: u32,
    /// Zero; room for kinds to come, which this version must not take for lines.
    flags: u32,
    generation: u64,
    epoch: u64,
    /// Number of the frame within its epoch, from 0.
    seq: u32,
    runs: u32,
    lines: u32,
    reserved: u32,
    /// Bytes of the frame, header included; a multiple of 64.
    pub(crate) len: u64,
    /// Of everything after the header, seeded with that of the fields before. (A pad frame: of those alone.)
    pub(crate) checksum: u64,
    zero: u64,
}

const _: () = assert!(size_of::<Header>() == HEADER);
const CHECKSUM_AT: usize = 48;

impl Header {
    /// Whether the header can be that of frame `seq` of the epoch of `commit`, with `room` bytes to the end of the ring. An epoch that
    /// was being written when the process died may have left frames of the same number in the same place, of another generation.
    pub(crate) fn check(&self, commit: &Commit, seq: u32, room: u64) -> std::result::Result<(), String> {
        let payload = u64::from(self.lines) * LINE as u64 + u64::from(self.runs) * 8;
        let pad = self.lines == 0 && self.runs == 0;
        let len_ok = if pad { self.len == room } else { self.len == (HEADER as u64 + payload).next_multiple_of(LINE as u64) };
        if self.magic != MAGIC
            || (self.generation, self.epoch) != (commit.generation, commit.epoch)
            || self.seq != seq
            || self.zero != 0
        {
            return Err(format!("frame {seq} is not there"));
        }
        if !len_ok
            || self.len > room
            || self.len > 2 * FRAME_MAX as u64
            || self.lines as usize > LINES_MAX
            || self.runs > self.lines
        {
            return Err(format!("frame {seq} has impossible lengths"));
        }
        Ok(())
    }
}

/// Checksum of a whole frame.
pub(crate) fn sum(frame: &[u8]) -> u64 {
    let head = checksum(1, &frame[..CHECKSUM_AT]);
    // A pad frame's filling is neither written nor covered.
    let lines = u32::from_le_bytes(frame[32..36].try_into().expect("four bytes"));
    checksum(head, if lines == 0 { &[] } else { &frame[HEADER..] })
}

/// Checks what a frame with a right checksum says: that this version knows all of it, and that the runs take exactly its lines.
pub(crate) fn check_payload(header: &Header, frame: &[u8]) -> std::result::Result<(), String> {
    if header.flags != 0 || header.reserved != 0 {
        return Err(format!("frame {} is of a kind that this program does not know; use a newer Towa", header.seq));
    }
    let total: u64 = run_words(header, frame).map(|r| unpack_run(r).1).sum();
    if total == u64::from(header.lines) { Ok(()) } else { Err(format!("frame {}: runs and lines differ", header.seq)) }
}

fn run_words<'f>(header: &Header, frame: &'f [u8]) -> impl Iterator<Item = u64> + use<'f> {
    let at = HEADER + header.lines as usize * LINE;
    frame[at..at + header.runs as usize * 8].chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().expect("eight bytes")))
}

/// Calls `each(first line, bytes)` for the runs of a checked frame.
pub(crate) fn runs(header: &Header, frame: &[u8], each: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
    let mut at = HEADER;
    for run in run_words(header, frame) {
        let (first, lines) = unpack_run(run);
        let len = lines as usize * LINE;
        each(first, &frame[at..at + len])?;
        at += len;
    }
    Ok(())
}

/// Collects lines into a frame.
#[derive(Debug)]
pub struct FrameBuilder {
    /// Header and lines, runs appended by `finish`. 64-byte aligned, so that it can be streamed.
    buffer: Vec<AlignedLine>,
    runs: Vec<u64>,
    lines: usize,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
struct AlignedLine([u8; LINE]);

impl Default for FrameBuilder {
    fn default() -> Self {
        Self { buffer: vec![AlignedLine::zeroed(); FRAME_MAX.div_ceil(LINE)], runs: Vec::with_capacity(LINES_MAX), lines: 0 }
    }
}

impl FrameBuilder {
    /// An empty frame.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lines that still fit.
    pub fn room(&self) -> usize {
        LINES_MAX - self.lines
    }

    /// Whether there are no lines.
    pub fn is_empty(&self) -> bool {
        self.lines == 0
    }

    /// Space for a run of `lines` (at most [`room`](Self::room)) lines starting at heap line `first`; the caller fills it.
    pub fn run(&mut self, first: u64, lines: usize) -> &mut [u8] {
        assert!(lines <= self.room(), "the frame has room for {} lines, not for {lines}", self.room());
        self.runs.push(pack_run(first, lines as u64));
        let at = 1 + self.lines;
        self.lines += lines;
        bytemuck::cast_slice_mut(&mut self.buffer[at..at + lines])
    }

    /// Seals the frame and gives its bytes and checksum. [`clear`](Self::clear) it before the next.
    pub(crate) fn finish(&mut self, generation: u64, epoch: u64, seq: u32) -> (&[u8], u64) {
        let at = HEADER + self.lines * LINE;
        let len = (at + self.runs.len() * 8).next_multiple_of(LINE);
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.buffer);
        bytes[at..len].fill(0);
        bytes[at..at + self.runs.len() * 8].copy_from_slice(bytemuck::cast_slice(&self.runs));
        let header = header(generation, epoch, seq, self.runs.len() as u32, self.lines as u32, len as u64);
        bytes[..HEADER].copy_from_slice(bytemuck::bytes_of(&header));
        let sum = sum(&bytes[..len]);
        bytes[CHECKSUM_AT..CHECKSUM_AT + 8].copy_from_slice(&sum.to_le_bytes());
        (&bytes[..len], sum)
    }

    /// Makes it empty again.
    pub fn clear(&mut self) {
        self.runs.clear();
        self.lines = 0;
    }

    /// Bytes `finish` will give.
    pub(crate) fn len(&self) -> u64 {
        (HEADER + self.lines * LINE + self.runs.len() * 8).next_multiple_of(LINE) as u64
    }
}

/// A pad frame of `len` bytes: its header only; the rest stays as it is.
pub(crate) fn pad(generation: u64, epoch: u64, seq: u32, len: u64) -> ([u8; HEADER], u64) {
    let mut bytes = [0; HEADER];
    bytes.copy_from_slice(bytemuck::bytes_of(&header(generation, epoch, seq, 0, 0, len)));
    let sum = sum(&bytes);
    bytes[CHECKSUM_AT..CHECKSUM_AT + 8].copy_from_slice(&sum.to_le_bytes());
    (bytes, sum)
}

fn header(generation: u64, epoch: u64, seq: u32, runs: u32, lines: u32, len: u64) -> Header {
    Header { magic: MAGIC, flags: 0, generation, epoch, seq, runs, lines, reserved: 0, len, checksum: 0, zero: 0 }
}
