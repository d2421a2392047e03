//! Reading an undo log: by the next process, by those that only look, and by a backup beside the owner.
//!
//! What must always hold: whatever the file holds, reading it ends; an entry is used only if its check fits, and what
//! one page that is not as it was written may hide is refused.

use std::ops::Range;

use towa_media::{LINE, Region, Watched, files};

use super::{
    BLOCK, Block, GROUP, HEAD_COPY, HEADS_LEN, Head, KEPT, Span, UNIT, UNITS, blocks, entry_sum, keeper_of, kept_check, seal, seed,
    taken_word,
};
use crate::Result;
use crate::alloc::{self, CHUNK};
use crate::overlay::Overlay;
use crate::stamp;
use crate::superblock::{COUNTERS_END, Superblock};

/// Groups of blocks read at a time.
const STEP: u64 = 128;

/// The head, or its copy where that is newer or alone; why there is none that can be.
pub(crate) fn newest_head(region: &dyn Region, sb: &Superblock) -> Result<std::result::Result<Head, String>> {
    if sb.generation == 0 {
        // Creation got no further.
        return Ok(Ok(Head::new(sb, 0, CHUNK)));
    }
    let mut heads = [bytemuck::Zeroable::zeroed(); 2];
    // The copy, which is written later, first: beside an owner that writes them it is never the newer one.
    for (off, head) in [0, HEAD_COPY].into_iter().zip(&mut heads).rev() {
        region.read(off, bytemuck::bytes_of_mut::<Head>(head))?;
    }
    let seed = seed(sb);
    let [head, copy] = heads.map(|head: Head| head.is_whole(seed).then_some(head));
    let newest = match (head, copy) {
        (Some(head), Some(copy)) if head.epoch < copy.epoch => {
            return Ok(Err(format!(
                "the head of the undo log is of epoch {}, and its copy, written later, of {}",
                head.epoch, copy.epoch
            )));
        }
        (Some(head), _) | (None, Some(head)) => head,
        (None, None) => return Ok(Err("neither the head of the undo log nor its copy has a valid checksum".into())),
    };
    let can_be =
        (CHUNK..=sb.heap_len).contains(&newest.frontier) && newest.frontier.is_multiple_of(CHUNK) && newest.epoch < COUNTERS_END;
    if !can_be {
        return Ok(Err(format!("the head of epoch {} in the undo log has an impossible frontier", newest.epoch)));
    }
    if sb.clean == 1 && newest.epoch != sb.applied_epoch {
        return Ok(Err(format!(
            "the undo log is of epoch {}, and the pool was closed at epoch {}",
            newest.epoch, sb.applied_epoch
        )));
    }
    Ok(Ok(newest))
}

/// The epoch from which on all entries are kept; `None`: the owner, whose stamp the superblock has, does not say so, or does just now.
pub(crate) fn kept_from(region: &dyn Region, sb: &Superblock) -> Result<Option<u64>> {
    let mut kept = [0u64; 2];
    region.read(KEPT, bytemuck::bytes_of_mut(&mut kept))?;
    let [epoch, check] = kept;
    Ok((check == kept_check(seed(sb), sb.stamp, epoch)).then_some(epoch))
}

/// What an undo log holds.
#[derive(Debug)]
pub(crate) struct Found {
    /// The durable epoch's.
    pub head: Head,
    /// The lines that epochs after it changed, as they were before, or zeros.
    pub lines: Overlay,
}

impl Found {
    /// Reads and checks it.
    pub fn read(region: &dyn Region, sb: &Superblock) -> Result<std::result::Result<Found, String>> {
        let head = match newest_head(region, sb)? {
            Ok(head) => head,
            Err(why) => return Ok(Err(why)),
        };
        let none = || Overlay::new(sb.heap_len);
        let mut found = Found { head, lines: none() };
        // Closed, and not opened since: there is nothing to undo. Where a superblock that was closed is beside a newer log, there must not be.
        if sb.clean == 1 && stamp::newest(region)?.is_some_and(|newest| newest.stamp == sb.stamp) {
            return Ok(Ok(found));
        }
        let (mut epochs, mut wrong) = ([none(), none()], None);
        visit(region, sb, &mut |first, group| {
            for (block, number) in group.iter().zip(first..) {
                if wrong.is_none() {
                    let word = group[(keeper_of(number) - first) as usize].word;
                    wrong = head.add_later(&mut epochs, block, (number, word), sb).err();
                }
            }
        })?;
        let [older, newer] = epochs;
        // The newest epoch's first: an older one's come over them.
        if !(found.lines.append(newer) && found.lines.append(older)) && wrong.is_none() {
            wrong = Some("two entries of the undo log say of one line that it was blank".into());
        }
        if sb.clean == 1 && found.lines.len() > 0 && wrong.is_none() {
            wrong = Some(format!("the superblock says that the pool was closed at epoch {}, and the undo log goes on", head.epoch));
        }
        Ok(wrong.map_or(Ok(found), Err))
    }

    /// Lines that are to be undone.
    pub fn len(&self) -> u64 {
        self.lines.len()
    }

    /// Undoes them in the image, and forgets them. Stopping anywhere: the log is as it was, and all is undone again.
    pub fn undo(&mut self, image: &dyn Region, sb: &Superblock) -> Result<()> {
        self.lines.write_below(image, sb.heap_len)
    }

    /// The head to go on with, once all is undone: of an epoch beyond those of all blocks, which are nothing with it. A closed pool, in which
    /// no block counts, keeps its own.
    pub fn next_head(&self, sb: &Superblock) -> Head {
        let step = if sb.clean == 1 { 0 } else { 2 };
        Head::new(sb, self.head.epoch + step, self.head.frontier)
    }
}

impl Head {
    /// Adds the entries of block `number`, which has this word, to those of its epoch, if that is one of the two after this.
    fn add_later(
        &self,
        epochs: &mut [Overlay; 2],
        block: &Block,
        (number, word): (u64, u64),
        sb: &Superblock,
    ) -> std::result::Result<(), String> {
        let seed = seed(sb);
        let says = whole_header(block, number, seed);
        let Some(nth) = (0..2).find(|nth| word == taken_word(seed, self.epoch + 1 + nth, number)) else {
            return match says {
                Some((epoch, used)) if epoch > self.epoch && used > 0 => Err(format!(
                    "block {number} of the undo log has entries of epoch {epoch}, after epoch {}, and its word in block {} does not say so",
                    self.epoch,
                    keeper_of(number)
                )),
                _ => Ok(()),
            };
        };
        let epoch = self.epoch + 1 + nth;
        let Some((_, used)) = says.filter(|(of, _)| *of == epoch) else {
            return Err(format!("block {number} of the undo log, which epoch {epoch} took, has no valid header"));
        };
        for entry in entries(block, used, (seed, epoch), sb) {
            let Some(Entry { span, lines, .. }) = entry else {
                return Err(format!("an entry of epoch {epoch} in block {number} of the undo log has a wrong checksum"));
            };
            let (blank, least) = (span.first + span.count, alloc::headers_end(sb.heap_len, CHUNK) / LINE as u64);
            epochs[nth as usize].add(span.first, lines);
            if span.blank > 0 && (blank < least || !epochs[nth as usize].add_blank(blank, span.blank)) {
                return Err(format!("block {number} of the undo log says of lines that cannot be that they were blank"));
            }
        }
        Ok(())
    }
}

/// An entry of a block.
struct Entry<'b> {
    /// The unit behind it.
    end: usize,
    span: Span,
    /// The bytes of the lines that it has.
    lines: &'b [u8],
}

/// The entries in the first `used` units of a block; `None` for one that is not as that epoch wrote it, or not of lines of the heap. Behind an
/// entry whose end cannot be there are none.
fn entries<'b>(
    block: &'b Block,
    used: usize,
    (seed, epoch): (u64, u64),
    sb: &Superblock,
) -> impl Iterator<Item = Option<Entry<'b>>> {
    let (words, heap_lines) = (&block.body[..used * UNIT / 8], sb.heap_len / LINE as u64);
    let mut at = 0;
    std::iter::from_fn(move || {
        let [span, check, rest @ ..] = &words[at..] else { return None };
        let (packed, span) = (*span, Span::unpack(*span));
        let Some(lines) = rest.get(..span.count as usize * LINE / 8) else {
            at = words.len();
            return Some(None);
        };
        at += UNIT / 8 + lines.len();
        let lines = bytemuck::cast_slice(lines);
        let is_whole = *check == entry_sum(seed, epoch, packed, lines) && span.end() <= heap_lines;
        Some(is_whole.then_some(Entry { end: at * 8 / UNIT, span, lines }))
    })
}

/// Epoch and used units of block `number`, if what it says of itself is whole.
fn whole_header(block: &Block, number: u64, seed: u64) -> Option<(u64, usize)> {
    whole_used((block.epoch, block.used), number, seed).map(|used| (block.epoch, used))
}

fn whole_used((epoch, sealed): (u64, u64), number: u64, seed: u64) -> Option<usize> {
    let used = sealed & 0xFF;
    (used <= UNITS as u64 && sealed == seal(taken_word(seed, epoch, number), used)).then_some(used as usize)
}

/// The first block at or after `number` that may have been written, as far as the file system tells holes from bytes.
fn next_written(region: &dyn Region, number: u64) -> Option<u64> {
    let off = HEADS_LEN + number * BLOCK as u64;
    let found = region.file().map_or(Some(off), |file| files::next_data(file, off))?;
    Some((found - HEADS_LEN) / BLOCK as u64 / GROUP * GROUP)
}

/// Calls `each` with all groups that may have been written, and the number of their first blocks.
fn visit(region: &dyn Region, sb: &Superblock, each: &mut dyn FnMut(u64, &[Block; GROUP as usize])) -> Result<()> {
    let total = blocks(sb).1;
    let mut bytes = vec![0u8; STEP as usize * GROUP as usize * BLOCK];
    let mut at = 0;
    while let Some(first) = next_written(region, at).filter(|first| *first < total) {
        let count = (total - first).min(STEP * GROUP);
        let part = &mut bytes[..count as usize * BLOCK];
        region.read(HEADS_LEN + first * BLOCK as u64, part)?;
        for (group, number) in part.chunks_exact(GROUP as usize * BLOCK).zip((first..).step_by(GROUP as usize)) {
            each(number, &bytemuck::pod_read_unaligned(group));
        }
        at = first + count;
    }
    Ok(())
}

/// An undo log whose owner may write to it at any time.
#[derive(Debug)]
pub(crate) struct Owned<'r> {
    region: &'r dyn Region,
    /// Its bytes. A log has tens of thousands of blocks, and a call for each header would take longer than an epoch.
    bytes: Option<Watched>,
}

impl<'r> Owned<'r> {
    /// The log in `region`.
    pub fn of(region: &'r dyn Region) -> Result<Owned<'r>> {
        Ok(Owned { region, bytes: Watched::of(region)? })
    }

    /// The same, read by calls: for a file of anybody's, which may become shorter or lie on a bad disk. A call says so; a load of a
    /// mapped byte ends this process with SIGBUS.
    pub fn by_calls(region: &'r dyn Region) -> Owned<'r> {
        Owned { region, bytes: None }
    }

    fn read(&self, off: u64, into: &mut [u8]) -> Result<()> {
        match &self.bytes {
            Some(bytes) => bytes.read(off, into),
            None => self.region.read(off, into)?,
        }
        Ok(())
    }

    fn block(&self, number: u64) -> Result<Block> {
        let (mut block, off) = (bytemuck::Zeroable::zeroed(), HEADS_LEN + number * BLOCK as u64);
        // How much is used first: what it speaks of was there before.
        let (header, rest) = bytemuck::bytes_of_mut::<Block>(&mut block).split_at_mut(LINE);
        self.read(off, header)?;
        self.read(off + LINE as u64, rest)?;
        Ok(block)
    }

    /// Calls `each` with number, epoch and used units of all blocks that epochs from `from` on took. One that a thread is taking just now has no
    /// entries, and is left out.
    fn headers(&self, sb: &Superblock, from: u64, each: &mut dyn FnMut(u64, (u64, usize)) -> Result<()>) -> Result<()> {
        let ((nominal, total), seed) = (blocks(sb), seed(sb));
        let mut number = 0;
        while number < total {
            if number >= nominal && number.is_multiple_of(GROUP) {
                // Reading a hole would fill it.
                match next_written(self.region, number) {
                    Some(next) => number = number.max(next),
                    None => break,
                }
                if number >= total {
                    break;
                }
            }
            let mut header = [0u64; 2];
            self.read(HEADS_LEN + number * BLOCK as u64, bytemuck::bytes_of_mut(&mut header))?;
            // Most are of epochs that were: their checks would take longer than all else.
            if header[0] >= from
                && let Some(used) = whole_used((header[0], header[1]), number, seed)
            {
                each(number, (header[0], used))?;
            }
            number += 1;
        }
        Ok(())
    }
}

/// Which entries of an undo log a backup has seen, while the owner writes beside it.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Of each block, the epoch and how many units.
    blocks: Vec<(u64, usize)>,
}

impl Seen {
    /// Calls `each` with epoch and lines of the entries that were added since the last call, of epochs from `from` on.
    pub fn look(&mut self, log: &Owned<'_>, sb: &Superblock, from: u64, each: &mut dyn FnMut(u64, Range<u64>)) -> Result<()> {
        let seed = seed(sb);
        log.headers(sb, from, &mut |number, (epoch, used)| {
            if self.blocks.len() <= number as usize {
                self.blocks.resize(number as usize + 1, (0, 0));
            }
            let (known_epoch, known) = self.blocks[number as usize];
            let known = if known_epoch == epoch { known } else { 0 };
            if used <= known {
                return Ok(());
            }
            let block = log.block(number)?;
            // It was taken by another epoch since its header was read: the next look sees that.
            if block.epoch == epoch {
                let new = whole_entries(&block, number, seed, sb).filter(|entry| entry.end > known);
                new.for_each(|entry| each(epoch, entry.span.first..entry.span.end()));
                self.blocks[number as usize] = (epoch, used);
            }
            Ok(())
        })
    }
}

/// What an entry says: the lines of an epoch from `first` on as they were before, and how many blank ones are behind them.
pub(crate) struct Before<'b> {
    pub epoch: u64,
    pub first: u64,
    pub lines: &'b [u8],
    pub blank: u64,
}

/// Calls `each` with all entries that there are now of epochs from `from` on, while the owner writes beside it.
pub(crate) fn entries_from(log: &Owned<'_>, sb: &Superblock, from: u64, each: &mut dyn FnMut(Before<'_>)) -> Result<()> {
    let seed = seed(sb);
    log.headers(sb, from, &mut |number, _| {
        let block = log.block(number)?;
        for Entry { span, lines, .. } in whole_entries(&block, number, seed, sb) {
            each(Before { epoch: block.epoch, first: span.first, lines, blank: span.blank });
        }
        Ok(())
    })
}

/// Bytes of the blocks of epochs after `epoch`, while the owner writes beside it.
pub(crate) fn bytes_after(region: &dyn Region, sb: &Superblock, epoch: u64) -> Result<u64> {
    let mut blocks = 0;
    Owned::by_calls(region).headers(sb, epoch + 1, &mut |_, (_, used)| {
        blocks += u64::from(used > 0);
        Ok(())
    })?;
    Ok(blocks * BLOCK as u64)
}

/// Those entries of a block whose checks fit.
fn whole_entries<'b>(block: &'b Block, number: u64, seed: u64, sb: &Superblock) -> impl Iterator<Item = Entry<'b>> {
    let used = whole_header(block, number, seed).map_or(0, |(_, used)| used);
    entries(block, used, (seed, block.epoch), sb).flatten()
}
