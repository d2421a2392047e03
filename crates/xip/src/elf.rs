//! An executable or library as the kernel sees it: segments, and the little of the dynamic section that matters here.
//!
//! What must hold: every offset that is given lies within the file, whatever the file says; nothing here panics on any input.

use object::LittleEndian as LE;
use object::elf;
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionHeader};

use crate::format::{PAGE, SPLIT_MARK};

type Header = elf::FileHeader64<LE>;

/// Why a file cannot be what it was taken for; for people.
pub type Reason = String;

/// What a file is to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A program with an interpreter (ld.so).
    Program,
    /// A program without one: static, or static-PIE.
    Static,
    /// A shared library.
    Library,
}

/// A program header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its place in the table.
    pub index: usize,
    /// `PT_LOAD` and so on.
    pub kind: u32,
    /// `PF_R`, `PF_W`, `PF_X` and marks.
    pub flags: u32,
    /// First byte in the file.
    pub offset: u64,
    /// First byte in memory, before relocation.
    pub address: u64,
    /// Bytes in the file.
    pub file_len: u64,
    /// Bytes in memory.
    pub mem_len: u64,
    /// Its alignment in memory.
    pub align: u64,
}

impl Segment {
    /// Code that nobody writes to.
    pub fn is_text(&self) -> bool {
        self.kind == elf::PT_LOAD && self.flags & elf::PF_X != 0 && self.flags & elf::PF_W == 0
    }

    /// Data that nobody writes to.
    pub fn is_rodata(&self) -> bool {
        self.kind == elf::PT_LOAD && self.flags & (elf::PF_X | elf::PF_W) == 0
    }

    /// The pages of the file that the kernel maps for it: first byte, and the byte after the last.
    pub fn pages(&self) -> (u64, u64) {
        (page_floor(self.offset), page_ceil(self.offset + self.file_len))
    }
}

/// The start of the page that holds byte `at`.
pub fn page_floor(at: u64) -> u64 {
    at & !(PAGE - 1)
}

/// The first page start at or after byte `at`.
pub fn page_ceil(at: u64) -> u64 {
    page_floor(at.saturating_add(PAGE - 1))
}

/// A stretch of a file: first byte and length.
pub type Stretch = (u64, u64);

/// What was read of a file.
#[derive(Clone, Debug)]
pub struct Elf {
    /// What it is.
    pub kind: Kind,
    /// Its program headers, in order.
    pub segments: Vec<Segment>,
    /// Where the table of program headers begins.
    pub headers_at: u64,
    /// The linker's build-id.
    pub build_id: Option<Vec<u8>>,
    /// Section headers, their names, symbols and theirs, links to debugging information, and where unwinding begins.
    pub relation: Vec<Stretch>,
    /// Whether text has to be written to when it is relocated.
    pub text_relocations: bool,
    /// Whether it names objects that ld.so asks to audit it.
    pub audited: bool,
    /// Whether its dynamic section, where it can be written to, has an entry to spare for the name of an object that audits it.
    pub has_room_for_audit: bool,
}

impl Elf {
    /// Reads `bytes`, a whole file.
    ///
    /// # Errors
    /// It is not a 64-bit ELF executable or library for this machine, or contradicts itself.
    pub fn read(bytes: &[u8]) -> Result<Elf, Reason> {
        if !bytes.starts_with(&elf::ELFMAG) {
            return Err("not an ELF file".into());
        }
        let header = Header::parse(bytes).map_err(|_| "not a 64-bit ELF file, or cut off in its header")?;
        let endian = header.endian().map_err(|_| "its numbers are big-endian: made for another machine")?;
        check_machine(header, endian)?;
        if usize::from(header.e_phentsize.get(endian)) != size_of::<elf::ProgramHeader64<LE>>() {
            return Err("it has no program headers of the usual size".into());
        }
        let table = header.program_headers(endian, bytes).map_err(|_| "cut off: its program headers lie beyond its end")?;
        let segments: Vec<Segment> = table.iter().enumerate().map(|(index, raw)| segment(index, raw, endian)).collect();
        check_segments(&segments, bytes.len() as u64)?;
        let dynamic = dynamic(&segments, bytes, endian)?;
        let headers_at = header.e_phoff(endian);
        if headers_at < size_of::<Header>() as u64 {
            return Err("damaged: its program headers lie in its file header".into());
        }
        Ok(Elf {
            kind: kind(header.e_type(endian), &segments, &dynamic)?,
            headers_at,
            build_id: build_id(table, bytes, endian),
            relation: relation(header, &segments, bytes, endian),
            text_relocations: dynamic.text_relocations,
            audited: dynamic.audited,
            has_room_for_audit: dynamic.has_spare_entry && dynamic_is_written(&segments),
            segments,
        })
    }

    /// The segments that are loaded.
    pub fn loaded(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(|segment| segment.kind == elf::PT_LOAD)
    }

    /// The pages that hold the file header and the program headers, which the kernel reads.
    pub fn header_pages(&self) -> [Stretch; 2] {
        let table_end = page_ceil(self.headers_at + 56 * self.segments.len() as u64);
        let table = page_floor(self.headers_at);
        [(0, PAGE), (table, table_end - table)]
    }

    /// Why ld.so could not be told to let the text of its libraries be mapped from a store.
    pub fn audit_hindrance(&self) -> Option<&'static str> {
        match self.kind {
            Kind::Static => Some("it is static, and has none"),
            _ if self.audited => Some("it names objects of its own that audit it"),
            _ if !self.has_room_for_audit => {
                Some("its linker left no entry of its dynamic section to spare (link it with -Wl,--spare-dynamic-tags=5)")
            }
            _ => None,
        }
    }

    /// Whether it is ABC, the half of a split program that stays.
    pub fn is_split(&self) -> bool {
        self.segments.iter().any(|segment| segment.kind == elf::PT_LOAD && segment.flags & SPLIT_MARK == SPLIT_MARK)
    }
}

fn check_machine(header: &Header, endian: LE) -> Result<(), Reason> {
    let here = if cfg!(target_arch = "aarch64") { elf::EM_AARCH64 } else { elf::EM_X86_64 };
    match header.e_machine(endian) {
        machine if machine == here => Ok(()),
        machine => Err(format!("made for another machine (ELF machine {machine}, here {here})")),
    }
}

fn segment(index: usize, raw: &elf::ProgramHeader64<LE>, endian: LE) -> Segment {
    Segment {
        index,
        kind: raw.p_type(endian),
        flags: raw.p_flags(endian),
        offset: raw.p_offset(endian),
        address: raw.p_vaddr(endian),
        file_len: raw.p_filesz(endian),
        mem_len: raw.p_memsz(endian),
        align: raw.p_align(endian),
    }
}

fn check_segments(segments: &[Segment], len: u64) -> Result<(), Reason> {
    let mut loaded = segments.iter().filter(|segment| segment.kind == elf::PT_LOAD).peekable();
    if loaded.peek().is_none() {
        return Err("no segment of it is ever loaded: an object file or a core, not a program or library".into());
    }
    let mut last_end = 0;
    for segment in loaded {
        let end = segment.offset.checked_add(segment.file_len);
        if end.is_none_or(|end| end > len) {
            return Err("cut off: a segment lies beyond its end".into());
        }
        let memory_end = segment.address.checked_add(segment.mem_len.max(1)).filter(|end| *end < 1 << 56);
        let contradicts = segment.mem_len < segment.file_len
            || segment.offset % PAGE != segment.address % PAGE
            || memory_end.is_none()
            || segment.address < last_end;
        if contradicts {
            return Err("damaged: its segments contradict each other".into());
        }
        last_end = memory_end.unwrap_or(u64::MAX);
    }
    Ok(())
}

#[derive(Default)]
struct Dynamic {
    present: bool,
    text_relocations: bool,
    position_independent_program: bool,
    named: bool,
    debugged: bool,
    audited: bool,
    has_spare_entry: bool,
}

fn dynamic(segments: &[Segment], bytes: &[u8], endian: LE) -> Result<Dynamic, Reason> {
    let mut found = Dynamic::default();
    let Some(segment) = segments.iter().find(|segment| segment.kind == elf::PT_DYNAMIC) else { return Ok(found) };
    found.present = true;
    let cut = || Reason::from("cut off: its dynamic section lies beyond its end");
    let bytes = stretch(bytes, segment.offset, segment.file_len).ok_or_else(cut)?;
    let count = bytes.len() / size_of::<elf::Dyn64<LE>>();
    let (entries, _) = object::slice_from_bytes::<elf::Dyn64<LE>>(bytes, count).map_err(|()| cut())?;
    for (index, entry) in entries.iter().enumerate() {
        let value = entry.d_val(endian);
        match entry.d_tag(endian) {
            elf::DT_NULL => {
                found.has_spare_entry |= entries.get(index + 1).is_some_and(|next| next.d_tag(endian) == elf::DT_NULL);
                break;
            }
            // As the loader's TAG_TO_SPARE.
            elf::DT_RELACOUNT => found.has_spare_entry = true,
            elf::DT_TEXTREL => found.text_relocations = true,
            elf::DT_FLAGS => found.text_relocations |= value & u64::from(elf::DF_TEXTREL) != 0,
            elf::DT_FLAGS_1 => found.position_independent_program |= value & u64::from(elf::DF_1_PIE) != 0,
            elf::DT_SONAME => found.named = true,
            elf::DT_DEBUG => found.debugged = true,
            elf::DT_AUDIT | elf::DT_DEPAUDIT => found.audited = true,
            _ => {}
        }
    }
    Ok(found)
}

/// The loader changes the dynamic section in memory, before ld.so takes away the right to.
fn dynamic_is_written(segments: &[Segment]) -> bool {
    let Some(dynamic) = segments.iter().find(|segment| segment.kind == elf::PT_DYNAMIC) else { return false };
    let holds = |segment: &&Segment| {
        let end = segment.address.saturating_add(segment.file_len);
        (segment.address..end).contains(&dynamic.address) && dynamic.address.saturating_add(dynamic.mem_len) <= end
    };
    let is_data =
        |segment: &&Segment| segment.kind == elf::PT_LOAD && segment.flags & (elf::PF_R | elf::PF_W) == elf::PF_R | elf::PF_W;
    segments.iter().filter(is_data).any(|segment| holds(&segment))
}

fn kind(of_header: u16, segments: &[Segment], dynamic: &Dynamic) -> Result<Kind, Reason> {
    let interpreted = segments.iter().any(|segment| segment.kind == elf::PT_INTERP);
    match (of_header, interpreted) {
        (elf::ET_EXEC, true) => Ok(Kind::Program),
        (elf::ET_EXEC, false) => Ok(Kind::Static),
        // libc.so.6 has an interpreter, too: it can be started, and says its version then. A debugger's entry only programs have.
        (elf::ET_DYN, true)
            if dynamic.position_independent_program || (!dynamic.named && (dynamic.debugged || !dynamic.present)) =>
        {
            Ok(Kind::Program)
        }
        (elf::ET_DYN, false) if dynamic.position_independent_program => Ok(Kind::Static),
        (elf::ET_DYN, _) if dynamic.present => Ok(Kind::Library),
        (elf::ET_DYN, _) => Err("neither a program nor a library: it has no dynamic section".into()),
        _ => Err("an object file or a core, not a program or library".into()),
    }
}

fn build_id(table: &[elf::ProgramHeader64<LE>], bytes: &[u8], endian: LE) -> Option<Vec<u8>> {
    for header in table {
        let Ok(Some(mut notes)) = header.notes(endian, bytes) else { continue };
        while let Ok(Some(note)) = notes.next() {
            if note.name() == elf::ELF_NOTE_GNU
                && note.n_type(endian) == elf::NT_GNU_BUILD_ID
                && (4..=64).contains(&note.desc().len())
            {
                return Some(note.desc().to_vec());
            }
        }
    }
    None
}

/// Sections that tools believe without a look at what they hold: libunwind 1.6 opens the directory where a link names no file, and dies.
const LINKS: [&[u8]; 2] = [b".gnu_debuglink", b".gnu_debugaltlink"];
/// The most bytes in front of the table of `.eh_frame_hdr`: four that say how numbers are written, and two numbers. Unwinders read them in the
/// file, and the table in memory.
const UNWINDING_HEAD: u64 = 4 + 2 * 8;

/// Stretches that those read who look at the text in the store by itself: the table of sections, what names, symbols and links to debugging
/// information need, and the head of the unwinding table. A damaged table is no reason not to split.
fn relation(header: &Header, segments: &[Segment], bytes: &[u8], endian: LE) -> Vec<Stretch> {
    let unwinding = segments.iter().find(|segment| segment.kind == elf::PT_GNU_EH_FRAME);
    let head = unwinding.map(|segment| (segment.offset, segment.file_len.min(UNWINDING_HEAD)));
    let mut found: Vec<Stretch> = of_sections(header, bytes, endian).into_iter().chain(head).collect();
    found.retain(|(at, len)| *len > 0 && stretch(bytes, *at, *len).is_some());
    found.sort_unstable();
    found.dedup();
    found
}

fn of_sections(header: &Header, bytes: &[u8], endian: LE) -> Vec<Stretch> {
    let Ok(sections) = header.section_headers(endian, bytes) else { return Vec::new() };
    let table = (header.e_shoff(endian), size_of_val(sections) as u64);
    let names = usize::from(header.e_shstrndx(endian));
    let strings = sections.get(names).and_then(|section| section.strings(endian, bytes).ok().flatten());
    let mut wanted: Vec<usize> = sections.get(names).map(|_| names).into_iter().collect();
    for (index, section) in sections.iter().enumerate() {
        if section.sh_type(endian) == elf::SHT_SYMTAB {
            wanted.extend([index, section.sh_link(endian) as usize]);
        } else if strings.is_some_and(|strings| section.name(endian, strings).is_ok_and(|name| LINKS.contains(&name))) {
            wanted.push(index);
        }
    }
    let of_section = |index: &usize| sections.get(*index).and_then(|section| section.file_range(endian));
    wanted.iter().filter_map(of_section).chain([table]).collect()
}

/// `len` bytes of `bytes` at `at`, if they are there.
pub fn stretch(bytes: &[u8], at: u64, len: u64) -> Option<&[u8]> {
    let end = at.checked_add(len)?;
    bytes.get(usize::try_from(at).ok()?..usize::try_from(end).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_headers_within_the_file_header_is_refused() {
        let mut bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(Elf::read(&bytes).is_ok());
        for at in 0..64u64 {
            bytes[32..40].copy_from_slice(&at.to_le_bytes());
            assert!(Elf::read(&bytes).is_err(), "at {at}");
        }
    }
}
