//! Where things may be put: what OUT may replace, and which stores do not last.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Result;
use towa_media::Kind;
use towa_xip::elf::{self, Elf};
use towa_xip::install;
use towa_xip::split::AbcHead;

use crate::failure::{FAILED, USAGE, coded};

/// `out`, given by -o for `files`, may be made: it is for one program, is no directory, and replaces nothing that somebody could miss.
pub fn check_output(out: &Path, files: &[impl AsRef<Path>], force: bool) -> Result<()> {
    match files {
        [one] if one.as_ref().is_dir() => return Err(coded(USAGE, "-o is for one program; a directory is given")),
        [_] => {}
        _ => return Err(coded(USAGE, format!("-o is for one program; {} are given", files.len()))),
    }
    if out.is_dir() {
        return Err(coded(USAGE, format!("{}: a directory; name the file that is to be made", out.display())));
    }
    // What cannot be looked at cannot be written either, which is said there.
    let Ok(there) = fs::symlink_metadata(out) else { return Ok(()) };
    let is_split = || install::read(out).is_ok_and(|bytes| AbcHead::find(&bytes).is_ok());
    if force || there.is_file() && (there.len() == 0 || is_split()) {
        return Ok(());
    }
    let what = "is there, and is neither empty nor a split program; it is as it was (--force replaces it)";
    Err(coded(FAILED, format!("{}: {what}", out.display())))
}

/// Programs in `files`, or in directories there, are not to be replaced by halves whose text is lost when the machine is switched off.
pub fn check_lasting(store: &Path, files: &[PathBuf]) -> Result<()> {
    let Some(fs) = volatile(store) else { return Ok(()) };
    for file in files {
        let mut below = Vec::new();
        if !file.is_dir() || elf_files(file, &mut below).is_err() {
            below.push(file.clone());
        }
        if let Some(program) = below.iter().find(|file| is_program(file)) {
            return Err(coded(
                FAILED,
                format!(
                    "{}: not split: the store is on {fs}: a reboot loses the text, and the program with it; use a durable place, -o, \
                     `towa xip run`, or --volatile",
                    program.display()
                ),
            ));
        }
    }
    Ok(())
}

/// Something that would be replaced: not a library, and not what is refused anyhow.
fn is_program(path: &Path) -> bool {
    let read = || Elf::read(&install::read(path).ok()?).ok();
    read().is_some_and(|elf| elf.kind != elf::Kind::Library && !elf.is_split())
}

/// The file system of `store`, which need not be there yet, if that loses everything when the machine is switched off.
fn volatile(store: &Path) -> Option<String> {
    // What cannot be found out (no /proc) is not held against it.
    towa_media::detect(store).ok().filter(|found| found.kind == Kind::Ram).map(|found| found.fs)
}

/// Files below `dir` that begin like ELF, by name; links are not followed.
pub fn elf_files(dir: &Path, into: &mut Vec<PathBuf>) -> std::io::Result<()> {
    let mut entries = fs::read_dir(dir)?.collect::<std::io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let kind = entry.file_type()?;
        let path = entry.path();
        if kind.is_dir() {
            elf_files(&path, into)?;
        } else if kind.is_file() {
            let mut first = [0; 4];
            let read = fs::File::open(&path).and_then(|mut file| file.read_exact(&mut first));
            if read.is_ok() && first == *b"\x7fELF" {
                into.push(path);
            }
        }
    }
    Ok(())
}
