//! Every ELF file of this machine: both halves give back the original, to the byte, and each says what the kernel will be told.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use towa_xip::elf::{Elf, Kind, stretch};
use towa_xip::format::{RANGE_HEADER, RANGE_TEXT, XyzRecord};
use towa_xip::split::{AbcHead, Options, join, split};

const STORE: &[u8] = b"/dev/shm/a-store";

/// Files below `folder` that begin like ELF; links are not followed.
fn elf_files(folder: &Path, into: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            elf_files(&entry.path(), into);
        } else if kind.is_file() && begins_like_elf(&entry.path()) {
            into.push(entry.path());
        }
    }
}

fn begins_like_elf(path: &Path) -> bool {
    use std::io::Read;
    let mut first = [0; 4];
    fs::File::open(path).and_then(|mut file| file.read_exact(&mut first)).is_ok() && first == *b"\x7fELF"
}

/// What must hold of one file; `Err` is why it is not split.
fn check(path: &Path, bytes: &[u8], options: Options) -> Result<Kind, String> {
    let halves = split(bytes, STORE, options)?;
    let record = XyzRecord::read(&halves.xyz).expect("a text that was just made");
    for range in record.ranges() {
        let (from, to) = (range.offset as usize, ((range.offset + range.len) as usize).min(bytes.len()));
        assert_eq!(halves.xyz[from..to], bytes[from..to], "{}: {range:?}", path.display());
    }
    let Some(abc) = &halves.abc else { return Ok(halves.kind) };
    assert_eq!(abc.len(), bytes.len());
    assert_eq!(AbcHead::find(abc).expect("an ABC that was just made").store, STORE);
    assert!(join(abc, &halves.xyz).expect("they belong together") == bytes, "{}: not the original", path.display());
    check_abc(path, bytes, abc, &record);
    assert!(split(abc, STORE, options).is_err(), "{}: split twice", path.display());
    Ok(halves.kind)
}

/// ABC differs from the original in the pages of its text and in the program headers alone; and what is mapped from it is the same.
fn check_abc(path: &Path, original: &[u8], abc: &[u8], record: &XyzRecord) {
    let (of_original, of_abc) = (Elf::read(original).unwrap(), Elf::read(abc).unwrap());
    assert_eq!(of_original.loaded().count(), of_abc.loaded().count());
    let moved = |at: u64| record.ranges().iter().any(|range| (range.offset..range.offset + range.len).contains(&at));
    for (page, (a, b)) in original.chunks(4096).zip(abc.chunks(4096)).enumerate() {
        assert!(a == b || moved(page as u64 * 4096), "{}: page {page} of ABC is another, and is not in XYZ", path.display());
    }
    for segment in of_original.loaded().filter(|segment| segment.flags & object::elf::PF_W != 0 && segment.file_len > 0) {
        let (a, b) = (stretch(original, segment.offset, segment.file_len), stretch(abc, segment.offset, segment.file_len));
        let has_headers = record
            .ranges()
            .iter()
            .any(|r| r.kind == RANGE_HEADER && r.offset < segment.offset + segment.file_len && segment.offset < r.offset + r.len);
        assert!(a == b || has_headers, "{}: data at {:#x} is another", path.display(), segment.offset);
    }
    assert!(record.ranges().iter().any(|range| range.kind == RANGE_TEXT));
}

#[test]
fn both_halves_of_every_elf_file_give_it_back() {
    let mut files = Vec::new();
    for folder in ["/usr/bin", "/usr/sbin", "/usr/libexec", "/usr/lib", "/usr/local/bin", "/usr/local/lib", "/opt"] {
        elf_files(Path::new(folder), &mut files);
    }
    files.push(std::env::current_exe().unwrap());
    let (mut split, mut why_not) = (BTreeMap::<&str, usize>::new(), BTreeMap::<String, (usize, PathBuf)>::new());
    for path in files {
        let Ok(bytes) = fs::read(&path) else { continue };
        for with_rodata in [false, true] {
            match check(&path, &bytes, Options { with_rodata, huge: with_rodata, libs: true }) {
                Ok(kind) => {
                    let name = match kind {
                        Kind::Program => "programs",
                        Kind::Static => "static programs",
                        Kind::Library => "libraries",
                    };
                    *split.entry(name).or_default() += usize::from(!with_rodata);
                }
                Err(why) => why_not.entry(why).or_insert((0, path.clone())).0 += usize::from(!with_rodata),
            }
        }
    }
    println!("split: {split:?}");
    for (why, (count, path)) in &why_not {
        println!("not split, {count}: {why} (such as {})", path.display());
    }
    assert!(split.get("programs").copied().unwrap_or(0) >= 100, "too few programs here for this to prove anything: {split:?}");
}
