//! The loader and the audit object, as bytes to be put into a store.
//!
//! ```text
//!   execve(ABC) ─▶ kernel maps ABC and the loader ─▶ loader: text of XYZ over ABC's hole, ld.so ─▶ ld.so ─▶ program
//!                                                                                                  │ DT_AUDIT
//!                                                  audit object: text of XYZ over a library's text ◀┘
//! ```
//!
//! What must hold: neither object has relocations that nobody would apply, nor needs another object. The audit object knows its store
//! by a slot in its read-only data that is filled here; with the slot as it was compiled it does nothing.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::error::{Error, Result};
use crate::format::STORE_PATH_MAX;

/// What the slot begins with until it is filled.
const SLOT_MARKER: &[u8] = b"TOWA-XIP-STORE-PATH:";
/// Bytes of the slot.
const SLOT_LEN: usize = 2304;

static LOADER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/loader"));
static AUDIT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/audit"));

const _: () = assert!(STORE_PATH_MAX < SLOT_LEN);

/// The loader, for [`LOADER_NAME`](crate::format::LOADER_NAME) in a store. It is the same for all stores.
pub fn loader() -> Result<&'static [u8]> {
    built(LOADER)
}

/// The audit object, for [`AUDIT_NAME`](crate::format::AUDIT_NAME) in the store at this absolute path.
pub fn audit(store: &Path) -> Result<Vec<u8>> {
    let path = store.as_os_str().as_bytes();
    if !store.is_absolute() || path.len() > STORE_PATH_MAX || path.contains(&0) {
        let what = format!("{}: a store is named by an absolute path of at most {STORE_PATH_MAX} bytes", store.display());
        return Err(Error::Wrong(what));
    }
    let mut object = built(AUDIT)?.to_vec();
    let slot = slot_of(&object).ok_or_else(|| Error::Unsupported { what: "the audit object was built without a slot".into() })?;
    object[slot..][..SLOT_LEN].fill(0);
    object[slot..][..path.len()].copy_from_slice(path);
    Ok(object)
}

fn built(object: &'static [u8]) -> Result<&'static [u8]> {
    if object.is_empty() {
        return Err(Error::Unsupported { what: "split programs are run on Linux on x86-64 only".into() });
    }
    Ok(object)
}

/// Where the slot is: the marker, and nothing but zeros behind it.
fn slot_of(object: &[u8]) -> Option<usize> {
    let is_slot = |bytes: &[u8]| bytes.starts_with(SLOT_MARKER) && bytes[SLOT_MARKER.len()..].iter().all(|byte| *byte == 0);
    object.windows(SLOT_LEN).position(is_slot)
}

#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
mod tests {
    use object::LittleEndian as Le;
    use object::elf::{self, FileHeader64, ProgramHeader64};
    use object::read::elf::{Dyn, FileHeader, ProgramHeader, Sym};

    use super::*;
    use crate::format;

    type Header = FileHeader64<Le>;

    fn parse(object: &[u8]) -> (&Header, &[ProgramHeader64<Le>]) {
        let header = Header::parse(object).expect("an ELF file");
        (header, header.program_headers(Le, object).expect("program headers"))
    }

    fn dynamic_tags(object: &[u8]) -> Vec<i64> {
        let (_, headers) = parse(object);
        let dynamic = headers.iter().find_map(|header| header.dynamic(Le, object).expect("a dynamic section"));
        dynamic.expect("PT_DYNAMIC").iter().map(|entry| entry.tag(Le)).collect()
    }

    const RELOCATIONS: [i64; 4] = [elf::DT_RELA, elf::DT_REL, elf::DT_RELR, elf::DT_JMPREL];

    #[test]
    fn the_loader_needs_nobody() {
        let object = loader().unwrap();
        let (header, headers) = parse(object);
        assert!(object.len() < 16 * 1024, "{} bytes", object.len());
        assert_eq!(header.e_type(Le), elf::ET_DYN);
        for unwanted in [elf::PT_INTERP, elf::PT_TLS] {
            assert!(headers.iter().all(|header| header.p_type(Le) != unwanted), "{unwanted:?}");
        }
        let tags = dynamic_tags(object);
        assert!(tags.iter().all(|tag| !RELOCATIONS.contains(tag) && *tag != elf::DT_NEEDED), "{tags:?}");
        let stack = headers.iter().find(|header| header.p_type(Le) == elf::PT_GNU_STACK).expect("PT_GNU_STACK");
        assert_eq!(stack.p_flags(Le) & elf::PF_X, 0, "an executable stack");
        assert!(headers.iter().all(|header| header.p_flags(Le) & (elf::PF_W | elf::PF_X) != elf::PF_W | elf::PF_X));
    }

    /// The kernel's AT_BASE is where the first segment is: one page, and then room for ld.so.
    #[test]
    fn the_loader_has_a_hole_for_the_dynamic_loader() {
        let (_, headers) = parse(loader().unwrap());
        let loads: Vec<_> = headers.iter().filter(|header| header.p_type(Le) == elf::PT_LOAD).collect();
        let hole = include_str!("../loader/interp.h").lines().find_map(|line| line.strip_prefix("#define LOADER_HOLE 0x"));
        let hole = u64::from_str_radix(hole.expect("LOADER_HOLE"), 16).unwrap();
        assert_eq!((loads[0].p_vaddr(Le), loads[0].p_offset(Le)), (0, 0));
        assert!(loads[0].p_memsz(Le) <= format::PAGE);
        assert_eq!((loads[1].p_vaddr(Le), loads[1].p_flags(Le)), (hole, elf::PF_R | elf::PF_X));
        assert!(loads[2..].iter().all(|header| header.p_vaddr(Le) > hole));
    }

    #[test]
    fn the_audit_object_needs_nobody_and_exports_two_functions() {
        let object = audit(Path::new("/store")).unwrap();
        let tags = dynamic_tags(&object);
        assert!(tags.iter().all(|tag| !RELOCATIONS.contains(tag) && *tag != elf::DT_NEEDED), "{tags:?}");
        let (header, headers) = parse(&object);
        assert!(headers.iter().all(|header| header.p_type(Le) != elf::PT_TLS));
        let sections = header.sections(Le, object.as_slice()).unwrap();
        let symbols = sections.symbols(Le, object.as_slice(), elf::SHT_DYNSYM).unwrap();
        let mut names = Vec::new();
        for symbol in symbols.iter().skip(1) {
            let name = String::from_utf8(symbol.name(Le, symbols.strings()).unwrap().to_vec()).unwrap();
            assert!(!symbol.is_undefined(Le), "{name} is undefined");
            names.push(name);
        }
        names.sort();
        assert_eq!(names, ["la_objopen", "la_version"]);
    }

    #[test]
    fn the_slot_holds_the_store_and_nothing_else_changes() {
        let slot = slot_of(AUDIT).expect("a slot");
        assert_eq!(AUDIT.windows(SLOT_MARKER.len()).filter(|bytes| *bytes == SLOT_MARKER).count(), 1);
        let loads = |header: &&ProgramHeader64<Le>| header.p_type(Le) == elf::PT_LOAD && header.p_flags(Le) & elf::PF_W == 0;
        let read_only = parse(AUDIT).1.iter().filter(loads).map(|header| header.file_range(Le));
        assert!(read_only.into_iter().any(|(start, len)| (start..start + len).contains(&(slot as u64))), "it can be written");
        let longest = format!("/{}", "x".repeat(STORE_PATH_MAX - 1));
        for path in ["/", "/var/lib/towa xip", &longest] {
            let object = audit(Path::new(path)).unwrap();
            assert_eq!(object.len(), AUDIT.len());
            let (filled, rest) = object[slot..][..SLOT_LEN].split_at(path.len());
            assert_eq!(filled, path.as_bytes());
            assert!(rest.iter().all(|byte| *byte == 0));
            assert_eq!((&object[..slot], &object[slot + SLOT_LEN..]), (&AUDIT[..slot], &AUDIT[slot + SLOT_LEN..]));
        }
        for path in ["", "store", "./store", "/a\0b", &format!("{longest}x")] {
            assert!(matches!(audit(Path::new(path)), Err(Error::Wrong(_))), "{path}");
        }
    }

    /// The value of a `#define` of `loader/format.h`: its words.
    fn define(name: &str) -> &'static str {
        let lines = include_str!("../loader/format.h").lines();
        let mut values = lines.filter_map(|line| line.strip_prefix("#define ")?.strip_prefix(name)?.strip_prefix(' '));
        values.next().unwrap_or_else(|| panic!("format.h defines no {name}")).trim()
    }

    fn number(name: &str) -> u64 {
        let value = define(name);
        value.strip_prefix("0x").map_or_else(|| value.parse(), |hex| u64::from_str_radix(hex, 16)).expect(name)
    }

    fn string(name: &str) -> &'static [u8] {
        define(name).trim_matches('"').as_bytes()
    }

    #[test]
    fn the_header_file_says_what_the_format_says() {
        let numbers = [
            ("XIP_PAGE", format::PAGE),
            ("SPLIT_MARK", format::SPLIT_MARK.into()),
            ("XIP_VERSION", format::VERSION.into()),
            ("PATH_AT", format::PATH_AT),
            ("STORE_PATH_MAX", format::STORE_PATH_MAX as u64),
            ("RANGES_MAX", format::RANGES_MAX as u64),
            ("ABC_LIBS", format::ABC_LIBS.into()),
            ("XYZ_LIBRARY", format::XYZ_LIBRARY.into()),
            ("IDENTITY_LEN", crate::store::IDENTITY_LEN as u64),
            ("RANGE_TEXT", format::RANGE_TEXT.into()),
            ("RANGE_RODATA", format::RANGE_RODATA.into()),
            ("SLOT_LEN", SLOT_LEN as u64),
            ("MAGIC_LEN", format::ABC_MAGIC.len() as u64),
        ];
        for (name, value) in numbers {
            assert_eq!(number(name), value, "{name}");
        }
        let strings = [
            ("ABC_MAGIC", format::ABC_MAGIC.as_slice()),
            ("XYZ_MAGIC", &format::XYZ_MAGIC),
            ("LOADER_NAME", format::LOADER_NAME.as_bytes()),
            ("AUDIT_NAME", format::AUDIT_NAME.as_bytes()),
            ("SLOT_MARKER", SLOT_MARKER),
        ];
        for (name, value) in strings {
            assert_eq!(string(name), value, "{name}");
        }
    }

    #[test]
    fn the_records_lie_as_the_header_file_has_them() {
        use std::mem::offset_of;
        assert_eq!([offset_of!(format::AbcRecord, key), offset_of!(format::AbcRecord, store_len)], [16, 56]);
        let xyz = [
            offset_of!(format::XyzRecord, range_count),
            offset_of!(format::XyzRecord, key),
            offset_of!(format::XyzRecord, flags),
            offset_of!(format::XyzRecord, build_id_len),
            offset_of!(format::XyzRecord, build_id),
            offset_of!(format::XyzRecord, ranges),
            offset_of!(format::XyzRecord, content),
        ];
        assert_eq!(xyz, [12, 16, 56, 60, 64, 128, 1664]);
        assert_eq!((offset_of!(format::Range, len), offset_of!(format::Range, kind)), (8, 16));
    }
}
