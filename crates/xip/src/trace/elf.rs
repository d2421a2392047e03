//! What a file that is mapped or executed is: an ELF file, how large its segments are, and whether it is half of a split program.
//!
//! What must hold: only regular files are opened, and only their headers read (and in a split program the first bytes of its text pages,
//! up to its record): looking must not bring the pages into memory whose faults are counted.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use bytemuck::Zeroable;
use object::elf::{self, FileHeader32, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, ReadCache};

use crate::format::{ABC_MAGIC, AbcRecord, PAGE, SPLIT_MARK};

/// An ELF file that can be loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Elf {
    /// Bytes of its executable segments, in memory.
    pub text_bytes: u64,
    /// Bytes of its other loaded segments, in memory.
    pub data_bytes: u64,
    /// Of the ABC half of a split program: the name of its other half, without slash and extension.
    pub other_half: Option<String>,
}

/// `path` as the process `pid` sees it, or as we do; none if it is no ELF file that can be loaded, or cannot be read.
pub fn inspect(pid: i32, path: &Path) -> Option<Elf> {
    if !path.is_absolute() {
        return None;
    }
    let theirs = Path::new("/proc").join(pid.to_string()).join("root").join(path.strip_prefix("/").ok()?);
    let file = open(&theirs).or_else(|| open(path))?;
    inspect_file(&file)
}

fn open(path: &Path) -> Option<File> {
    if !path.metadata().ok()?.is_file() {
        return None;
    }
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path).ok()
}

/// The same of an open file.
pub fn inspect_file(file: &File) -> Option<Elf> {
    let mut ident = [0; 5];
    file.read_exact_at(&mut ident, 0).ok()?;
    match ident {
        [0x7f, b'E', b'L', b'F', elf::ELFCLASS64] => segments::<FileHeader64<Endianness>>(file),
        [0x7f, b'E', b'L', b'F', elf::ELFCLASS32] => segments::<FileHeader32<Endianness>>(file),
        _ => None,
    }
}

fn segments<H: FileHeader<Endian = Endianness>>(file: &File) -> Option<Elf> {
    let cache = ReadCache::new(file);
    let header = H::parse(&cache).ok()?;
    let endian = header.endian().ok()?;
    let (mut found, mut marked) = (Elf::default(), None);
    for segment in header.program_headers(endian, &cache).ok()? {
        if segment.p_type(endian) != elf::PT_LOAD {
            continue;
        }
        let (flags, bytes) = (segment.p_flags(endian), segment.p_memsz(endian).into());
        if flags & elf::PF_X == 0 {
            found.data_bytes += bytes;
            continue;
        }
        found.text_bytes += bytes;
        if flags & elf::PF_MASKOS == SPLIT_MARK && marked.is_none() {
            marked = Some((segment.p_offset(endian).into(), segment.p_filesz(endian).into()));
        }
    }
    found.other_half = marked.and_then(|(offset, len)| other_half(file, offset, len));
    (found.text_bytes + found.data_bytes > 0).then_some(found)
}

/// The name that the record of a split program gives to its other half; the record begins some page of its first text segment.
fn other_half(file: &File, offset: u64, len: u64) -> Option<String> {
    let mut record = AbcRecord::zeroed();
    let pages = (offset.next_multiple_of(PAGE)..offset.checked_add(len)?).step_by(PAGE as usize);
    for at in pages {
        let mut magic = [0; 8];
        file.read_exact_at(&mut magic, at).ok()?;
        if magic == ABC_MAGIC {
            file.read_exact_at(bytemuck::bytes_of_mut(&mut record), at).ok()?;
            return Some(hex(&record.key[..16]));
        }
    }
    None
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The name of a half in a store, `<store>/xyz/ab/cdef...xyz`, without slash and extension.
pub fn half_named(path: &Path) -> Option<String> {
    if path.extension()? != "xyz" {
        return None;
    }
    let name = format!("{}{}", path.parent()?.file_name()?.to_str()?, path.file_stem()?.to_str()?);
    (name.len() == 32 && name.bytes().all(|c| c.is_ascii_hexdigit())).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_told_from_other_files() {
        let own = inspect(std::process::id() as i32, &std::env::current_exe().unwrap()).unwrap();
        assert!(own.text_bytes > 10_000 && own.data_bytes > 1_000, "{own:?}");
        assert_eq!(own.other_half, None);
        assert_eq!(inspect(1, Path::new("/etc/passwd")), None);
        assert_eq!(inspect(1, Path::new("/dev/zero")), None);
        assert_eq!(inspect(1, Path::new("[vdso]")), None);
    }

    #[test]
    fn halves_in_a_store_are_known_by_their_name() {
        let named = |path: &str| half_named(Path::new(path));
        assert_eq!(
            named("/nvm/store/xyz/ab/cdef0123456789cdef0123456789ab.xyz").as_deref(),
            Some("abcdef0123456789cdef0123456789ab")
        );
        assert_eq!(named("/nvm/store/xyz/ab/short.xyz"), None);
        assert_eq!(named("/usr/bin/ls"), None);
    }

    #[test]
    fn a_split_program_names_its_other_half() {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &split_program()).unwrap();
        let found = inspect_file(&file).unwrap();
        assert_eq!(found.other_half.as_deref(), Some("07".repeat(16).as_str()));
        assert_eq!((found.text_bytes, found.data_bytes), (3 * PAGE, 0));
    }

    /// Headers, one marked text segment of three pages, the record in its second.
    fn split_program() -> Vec<u8> {
        let mut bytes = vec![0; 4 * PAGE as usize];
        bytes[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(6, &[1]);
        put(16, &3u16.to_le_bytes());
        put(32, &64u64.to_le_bytes());
        put(54, &56u16.to_le_bytes());
        put(56, &1u16.to_le_bytes());
        put(64, &elf::PT_LOAD.to_le_bytes());
        put(68, &(elf::PF_X | elf::PF_R | SPLIT_MARK).to_le_bytes());
        for (at, value) in [(72, PAGE), (80, PAGE), (96, 3 * PAGE), (104, 3 * PAGE), (112, PAGE)] {
            put(at, &value.to_le_bytes());
        }
        let record = AbcRecord { magic: ABC_MAGIC, key: [7; 32], ..AbcRecord::zeroed() };
        put(2 * PAGE as usize, bytemuck::bytes_of(&record));
        bytes
    }
}
