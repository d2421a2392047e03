//! What a file that is mapped or executed is: an ELF file, how large its segments are; or the text of one, in a store.
//!
//! What must hold: only regular files are opened, and only their headers read: looking must not bring the pages into memory whose
//! faults are counted.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use object::elf::{self, FileHeader32, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, ReadCache};

/// An ELF file that can be loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Elf {
    /// Bytes of its executable segments, in memory.
    pub text_bytes: u64,
    /// Bytes of its other loaded segments, in memory.
    pub data_bytes: u64,
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
    let mut found = Elf::default();
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
    }
    (found.text_bytes + found.data_bytes > 0).then_some(found)
}

/// Whether `path` is that of a text in a store, `<store>/xyz/ab/cdef...xyz`.
pub fn is_text_in_store(path: &Path) -> bool {
    let name = |path: Option<&Path>| path.and_then(Path::file_name).and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    let (folder, file) = (name(path.parent()), name(Some(path)));
    let digits = format!("{folder}{}", file.strip_suffix(".xyz").unwrap_or_default());
    digits.len() == 32 && digits.bytes().all(|c| c.is_ascii_hexdigit()) && name(path.parent().and_then(Path::parent)) == "xyz"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_told_from_other_files() {
        let own = inspect(std::process::id() as i32, &std::env::current_exe().unwrap()).unwrap();
        assert!(own.text_bytes > 10_000 && own.data_bytes > 1_000, "{own:?}");
        assert_eq!(inspect(1, Path::new("/etc/passwd")), None);
        assert_eq!(inspect(1, Path::new("/dev/zero")), None);
        assert_eq!(inspect(1, Path::new("[vdso]")), None);
    }

    #[test]
    fn texts_in_a_store_are_known_by_their_name() {
        let is_text = |path: &str| is_text_in_store(Path::new(path));
        assert!(is_text("/nvm/store/xyz/ab/cdef0123456789cdef0123456789ab.xyz"));
        for other in ["/nvm/store/xyz/ab/short.xyz", "/nvm/ab/cdef0123456789cdef0123456789ab.xyz", "/usr/bin/ls", "/"] {
            assert!(!is_text(other), "{other}");
        }
    }
}
