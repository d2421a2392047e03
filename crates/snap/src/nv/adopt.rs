//! Adoption: private memory of a process that stands still comes to lie in the pool.
//!
//! ```text
//!   pieces of 1 MB with content ─► space for them reserved ─► content written to the pool ─► the pool mapped in their place
//!                                  └────────── by the tool ──────────────────────────────┘   └─ in the process, all threads at the gate
//! ```
//!
//! Only what may be written and has content is adopted, piece by piece: what a large reservation never uses takes no space, and stays what it
//! is until it is used. Not adopted, and copied into each checkpoint as in mode `dram`: the main stack (a shared mapping does not grow
//! downwards), what may not be written, what is locked or guarded, and what the process has mapped since it was looked at.
//!
//! Much at once would be a long pause: so before a checkpoint much is adopted in portions, each in a pause of its own.
//!
//! Stopping after any step is safe. Until the exchange the pool has what nobody sees. The exchange is made with all threads at the gate
//! ([`crate::remote`]): whether the tool lives or not, none runs between the copy and the last mmap; each mmap puts the same content in the
//! place of what was there, or fails and changes nothing.

use super::Nv;
use super::handing;
use super::pool::Places;
use crate::error::{Error, Result};
use crate::freeze::Frozen;
use crate::memory::maps::{Kept, Mapping, VmFlags};
use crate::memory::reader::Reader;
use crate::pages::{PAGE, PageSet, Pages};
use crate::remote::{AT_ONCE, Call, Stub};
use crate::sys::fd::Process;
use crate::sys::pagemap::{FILE, GUARD, PRESENT, Pagemap, Query, Region, SWAPPED, ZERO};

use std::os::fd::AsRawFd;

/// Pages of a piece: what of one has content is adopted with all of it.
const PIECE: u64 = 256;
/// Pages with content that a portion has at most.
pub const PORTION: u64 = 4096;
/// So little is left to the pause of the checkpoint.
pub const LITTLE: u64 = 256;
/// Mappings that a process may have before larger pieces are taken.
const MANY: usize = 16_384;
/// Bytes that are read and written at once.
const CHUNK: u64 = 256;

/// What madvise gives again, by the kernel's flag.
const WISHES: [(&str, i32); 5] = [
    ("hg", libc::MADV_HUGEPAGE),
    ("nh", libc::MADV_NOHUGEPAGE),
    ("dc", libc::MADV_DONTFORK),
    ("dd", libc::MADV_DONTDUMP),
    ("mg", libc::MADV_MERGEABLE),
];

/// A piece that is to be adopted.
struct Piece {
    pages: Pages,
    prot: i32,
    wishes: Vec<i32>,
    /// What of it has content.
    content: PageSet,
}

/// What an adoption did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Pages with content that were adopted.
    pub pages: u64,
    /// Pages with content that could be, next time.
    pub left: u64,
}

/// The process, as adoption needs it.
pub struct Patient<'a> {
    /// Its handle.
    pub process: &'a Process,
    /// It stands still.
    pub frozen: &'a Frozen,
    /// Reads its memory.
    pub reader: &'a Reader,
    /// Flags of the mapping that has this page, if it was looked at.
    pub flags_of: &'a dyn Fn(u64) -> Option<&'a VmFlags>,
}

/// Adopts of these `mappings`, all that the process has, pieces with so many pages of content at most.
pub fn adopt(nv: &Nv, patient: &Patient<'_>, stub: &mut Stub, mappings: &[Mapping], most: u64) -> Result<Adopted> {
    let pid = patient.process.pid();
    let pagemap = Pagemap::open(pid).map_err(|e| Error::io(format!("/proc/{pid}/pagemap"), e))?;
    let mut pieces = Vec::new();
    for mapping in mappings {
        let outside = PageSet::of([mapping.pages.clone()]).difference(&PageSet::of([pages_of(stub)]));
        for pages in outside.ranges() {
            // Of this part: the kernel may have joined it with the stub.
            let Some(flags) = (patient.flags_of)(pages.start).filter(|flags| can_be(mapping, flags)) else { continue };
            let piece = if mappings.len() < MANY { PIECE } else { PIECE * 64 };
            pieces_of(&pagemap, mapping, pages, flags, piece, &mut pieces)
                .map_err(|e| Error::io(format!("page table of process {pid}"), e))?;
        }
    }
    let all: u64 = pieces.iter().map(|piece| piece.content.count()).sum();
    let mut pages = 0;
    pieces.retain(|piece| {
        let fits = pages < most;
        pages += if fits { piece.content.count() } else { 0 };
        fits
    });
    if !pieces.is_empty() {
        exchange(nv, patient, stub, mappings, &pieces)?;
    }
    Ok(Adopted { pages, left: all - pages })
}

fn pages_of(stub: &Stub) -> Pages {
    let range = stub.range();
    range.start / PAGE..range.end / PAGE
}

/// Whether a mapping's memory may come to lie in the pool.
fn can_be(mapping: &Mapping, flags: &VmFlags) -> bool {
    let private = matches!(mapping.kept(), Some(Kept::Anonymous | Kept::OwnCopies));
    let never = ["gd", "lo", "ht", "io", "pf", "ss", "um", "wf", "sl"].iter().any(|flag| flags.has(flag));
    private && mapping.prot & libc::PROT_WRITE != 0 && mapping.name != "[stack]" && !never
}

/// Adds the pieces of `pages` of a mapping that have content and no guards.
fn pieces_of(
    pagemap: &Pagemap,
    mapping: &Mapping,
    pages: &Pages,
    flags: &VmFlags,
    piece: u64,
    pieces: &mut Vec<Piece>,
) -> std::io::Result<()> {
    let guard = if pagemap.can_tell(GUARD) { GUARD } else { 0 };
    let of_file = mapping.kept() == Some(Kept::OwnCopies);
    let tell = PRESENT | SWAPPED | ZERO | FILE | guard;
    let mut found: Vec<Region> = Vec::new();
    pagemap.scan(pages, Query { any: PRESENT | SWAPPED | guard, tell, ..Query::default() }, &mut found)?;
    let is = |region: &Region, category: u64| region.categories & category != 0;
    let guards: PageSet = found.iter().filter(|region| is(region, guard)).map(Region::pages).collect();
    let own = found.iter().filter(|region| !(is(region, ZERO | guard) || of_file && is(region, FILE)));
    let own: PageSet = own.map(Region::pages).collect();
    let wishes: Vec<i32> = WISHES.iter().filter(|(flag, _)| flags.has(flag)).map(|(_, advice)| *advice).collect();
    let mut done = pages.start;
    for range in own.ranges() {
        let (first, end) = ((range.start / piece * piece).max(done), range.end.next_multiple_of(piece).min(pages.end));
        let mut at = first.max(pages.start);
        while at < end {
            let next = ((at / piece + 1) * piece).min(pages.end);
            let this = PageSet::from(at..next);
            if this.intersection(&guards).is_empty() {
                // Of a file, what is not a copy has content as well.
                let content = if of_file { this } else { this.intersection(&own) };
                pieces.push(Piece { pages: at..next, prot: mapping.prot, wishes: wishes.clone(), content });
            }
            at = next;
        }
        done = done.max(end);
    }
    Ok(())
}

/// Copies the pieces to the pool, and maps that in their place.
fn exchange(nv: &Nv, patient: &Patient<'_>, stub: &mut Stub, mappings: &[Mapping], pieces: &[Piece]) -> Result<()> {
    let mut places = Places::beside(&nv.pool.shown(mappings));
    let mut joined: Vec<(Pages, u64, i32, &[i32])> = Vec::new();
    for piece in pieces {
        let place = places.take(&piece.pages);
        match joined.last_mut() {
            Some((pages, first, prot, wishes))
                if pages.end == piece.pages.start
                    && *first + (pages.end - pages.start) == place
                    && (*prot, *wishes) == (piece.prot, &piece.wishes[..]) =>
            {
                pages.end = piece.pages.end;
            }
            _ => joined.push((piece.pages.clone(), place, piece.prot, &piece.wishes)),
        }
    }
    // 1. Space: it is there, or nothing is changed.
    for (pages, place, _, _) in &joined {
        nv.pool.reserve(&(*place..place + (pages.end - pages.start)))?;
    }
    // 2. Content. What cannot be read (a file's mapping beyond the file's end) is left as it is.
    let mut unread = PageSet::new();
    for (pages, place, _, _) in &joined {
        let inside = pieces.iter().filter(|piece| pages.start <= piece.pages.start && piece.pages.end <= pages.end);
        for range in inside.flat_map(|piece| piece.content.ranges()) {
            copy(nv, patient, range, place + (range.start - pages.start), &mut unread)?;
        }
    }
    joined.retain(|(pages, ..)| unread.intersection(&PageSet::of([pages.clone()])).is_empty());
    // 3. The exchange.
    let mut calls = Vec::new();
    let number = handing::give(patient.process, stub, nv.pool.file().as_raw_fd())?;
    for (pages, place, prot, wishes) in &joined {
        let (start, len) = (pages.start * PAGE, (pages.end - pages.start) * PAGE);
        let flags = (libc::MAP_SHARED | libc::MAP_FIXED) as u64;
        calls.push(Call::new(libc::SYS_mmap, &[start, len, *prot as u64, flags, number as u64, place * PAGE]));
        calls.extend(wishes.iter().map(|advice| Call::new(libc::SYS_madvise, &[start, len, *advice as u64])));
    }
    let done = calls.chunks(AT_ONCE).try_for_each(|some| {
        for (call, result) in some.iter().zip(stub.run_alone(patient.frozen.threads(), some)?) {
            // Private still, and copied from there: too many mappings, or no execution from that file system.
            if call.number == libc::SYS_mmap && result < 0 {
                log::warn!("memory at {:x} was not adopted: {}", call.args[0], std::io::Error::from_raw_os_error(-result as i32));
            }
        }
        Ok(())
    });
    handing::take_back(patient.process, stub, number).and(done)
}

fn copy(nv: &Nv, patient: &Patient<'_>, pages: &Pages, place: u64, unread: &mut PageSet) -> Result<()> {
    let mut buffer = vec![0; (CHUNK.min(pages.end - pages.start) * PAGE) as usize];
    let mut at = pages.start;
    while at < pages.end {
        let end = pages.end.min(at + CHUNK);
        let bytes = &mut buffer[..((end - at) * PAGE) as usize];
        let missed = patient.reader.read(std::slice::from_ref(&(at..end)), bytes)?;
        missed.ranges().iter().for_each(|range| unread.push(range.clone()));
        nv.pool.write(place + (at - pages.start), bytes)?;
        at = end;
    }
    Ok(())
}
