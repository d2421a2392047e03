//! What of a file goes where: which pages become text in XYZ, which of them ABC loses, and where its record lies.
//!
//! ```text
//!   a text segment in the file      ......|xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx|......
//!   pages                      |         |         |         |         |         |
//!   mapped from XYZ                ├──────────────────────────────────────────────┤    whole pages, as the kernel maps them
//!   a hole in ABC                         ├───────────────────────────┤                pages that hold nothing else
//!   the record                            ├─────────┤                                  the first of them
//! ```
//!
//! What must hold: a page that ABC loses holds nothing but bytes of one segment that is mapped from XYZ; the pages that the kernel
//! reads before the loader runs (headers, the record) are ABC's.

use object::elf;

use crate::elf::{Elf, Kind, Reason, Segment, Stretch, page_ceil, page_floor};
use crate::format::{PAGE, RANGE_HEADER, RANGE_RELATION, RANGE_RODATA, RANGE_TEXT, RANGES_MAX, Range};

/// Size of the pages that DAX mappings can have when everything is aligned.
pub const HUGE_PAGE: u64 = 2 << 20;

/// Where everything goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// What XYZ holds, by offset.
    pub ranges: Vec<Range>,
    /// What ABC loses, by offset: whole pages.
    pub holes: Vec<Stretch>,
    /// First byte of the page with ABC's record; the first page of the first hole. A library has none.
    pub record_at: Option<u64>,
    /// The program header that becomes, or is, the interpreter's.
    pub interpreter: Option<usize>,
    /// Program headers of text segments.
    pub texts: Vec<usize>,
}

impl Layout {
    /// Decides for `elf`; read-only data goes along if `with_rodata`.
    ///
    /// # Errors
    /// It cannot be split, or nothing would be gained.
    pub fn of(elf: &Elf, with_rodata: bool) -> Result<Layout, Reason> {
        check(elf)?;
        let mut ranges: Vec<Range> = elf.header_pages().map(|pages| range(pages, RANGE_HEADER)).to_vec();
        ranges.dedup();
        let (mut holes, mut texts) = (Vec::new(), Vec::new());
        for segment in elf.loaded() {
            let kind = match (segment.is_text(), segment.is_rodata() && with_rodata) {
                (true, _) => RANGE_TEXT,
                (_, true) => RANGE_RODATA,
                _ => continue,
            };
            let (from, to) = segment.pages();
            if segment.file_len == 0 {
                continue;
            }
            let hole = hole(elf, segment);
            if kind == RANGE_TEXT {
                ranges.push(range((from, to - from), kind));
                texts.push(segment.index);
            } else if let Some(pages) = hole {
                // Text is replaced as a whole; of read-only data the headers stay, for the loader is reading them.
                ranges.push(range(pages, kind));
            }
            holes.extend(hole);
        }
        ranges.extend(elf.relation.iter().map(|stretch| range(*stretch, RANGE_RELATION)));
        ranges.sort_unstable_by_key(|range| (range.offset, range.kind));
        if ranges.len() > RANGES_MAX {
            return Err(format!("it has more than {RANGES_MAX} segments and tables to be kept"));
        }
        holes.sort_unstable();
        let mut layout = Layout { ranges, holes, record_at: None, interpreter: None, texts };
        if elf.kind != Kind::Library {
            layout.record_at = Some(layout.place_of_record(elf)?);
            layout.interpreter = Some(interpreter(elf)?);
        }
        Ok(layout)
    }

    /// The first page of text that ABC loses.
    fn place_of_record(&self, elf: &Elf) -> Result<u64, Reason> {
        let in_text = |(at, _): &&Stretch| {
            elf.loaded().any(|segment| segment.is_text() && (segment.offset..segment.offset + segment.file_len).contains(at))
        };
        let first = self.holes.iter().find(in_text).ok_or("no whole page of it is text: nothing would be gained")?;
        Ok(first.0)
    }

    /// Bytes of text and read-only data that are mapped from XYZ.
    pub fn mapped_len(&self) -> u64 {
        self.ranges.iter().filter(|range| [RANGE_TEXT, RANGE_RODATA].contains(&range.kind)).map(|range| range.len).sum()
    }
}

fn range((offset, len): Stretch, kind: u32) -> Range {
    Range { offset, len, kind, reserved: 0 }
}

fn check(elf: &Elf) -> Result<(), Reason> {
    if elf.is_split() {
        return Err("it is split already".into());
    }
    if elf.text_relocations {
        return Err("its text is written to when it is started (DT_TEXTREL); build it with -fPIC".into());
    }
    let executable = || elf.loaded().filter(|segment| segment.flags & elf::PF_X != 0);
    if executable().any(|segment| segment.flags & elf::PF_W != 0) {
        return Err("its text is writable".into());
    }
    if executable().any(|segment| segment.file_len != segment.mem_len) {
        return Err("its text is not in the file (is it the debugging information of another one?)".into());
    }
    if !elf.loaded().any(|segment| (segment.offset..segment.offset + segment.file_len).contains(&elf.headers_at)) {
        return Err("its program headers are not loaded, so that a loader could not find them".into());
    }
    Ok(())
}

/// The pages that hold nothing but bytes of `segment`.
fn hole(elf: &Elf, segment: &Segment) -> Option<Stretch> {
    let mut from = page_ceil(segment.offset);
    let mut to = page_floor(segment.offset + segment.file_len);
    let others = elf.loaded().filter(|other| other.index != segment.index && other.file_len > 0).map(Segment::pages);
    let headers = elf.header_pages().map(|(at, len)| (at, at + len));
    for (other_from, other_to) in others.chain(headers) {
        if other_from < to && other_to > from {
            // Linkers lay segments side by side: what is shared is at one end.
            if other_from <= from { from = other_to } else { to = other_from }
        }
    }
    (from < to).then(|| (from, to - from))
}

/// The program header that names the interpreter; a static program gives up one that neither the kernel nor its own start needs.
fn interpreter(elf: &Elf) -> Result<usize, Reason> {
    let of = |kind: u32| elf.segments.iter().find(|segment| segment.kind == kind).map(|segment| segment.index);
    of(elf::PT_INTERP)
        .or_else(|| [elf::PT_GNU_PROPERTY, elf::PT_NOTE, elf::PT_NULL].into_iter().find_map(of))
        .ok_or_else(|| "static, and without a program header to spare (a note) for the loader's name".into())
}

/// Whether text at these offsets could be mapped with huge pages: addresses and offsets agree.
pub fn can_be_huge(segment: &Segment) -> bool {
    segment.address % HUGE_PAGE == segment.offset % HUGE_PAGE && segment.file_len >= HUGE_PAGE && PAGE < HUGE_PAGE
}
