//! The libraries that a program needs when it starts: ld.so's own answer.
//!
//! What must hold: the program itself is not run, and its ld.so only if nobody but this user and root could have put it there.
//! Libraries that it opens later (plug-ins, name services) are not found here.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use object::elf;

use crate::elf::{Elf, stretch};
use crate::error::{Error, Result};
use crate::file;
use crate::store::safety;

/// The group that has no rights anywhere.
const NO_GROUP: u32 = 65534;

/// What is started for the sake of a file of another user is started with that user's rights, and without this one's environment. Whether it
/// is another's.
pub fn as_owner(command: &mut Command, file: &Metadata) -> bool {
    let (me, owner) = (safety::me(), file.uid());
    let is_anothers = owner != 0 && owner != me;
    if is_anothers {
        command.env_clear();
    }
    if is_anothers && me == 0 {
        // Not the file's group: its owner need not be in that (a set-group-id directory gives it).
        command.uid(owner).gid(NO_GROUP);
    }
    is_anothers
}

/// The paths of the libraries that the unsplit program at `path` needs, ld.so itself among them; without links, each once, in the order in which
/// they are loaded.
///
/// # Errors
/// Its ld.so cannot tell: it is not glibc's, or a library is missing.
pub fn libraries(path: &Path) -> Result<Vec<PathBuf>> {
    // ld.so looks for a name without a slash where it looks for libraries.
    let path = &std::fs::canonicalize(path).map_err(Error::io(path, "finding"))?;
    let (file, about) = file::open(path)?;
    let bytes = file::rest_of(&file, path)?;
    let unfit = |why: String| Error::Unfit { path: path.to_owned(), why };
    let parsed = Elf::read(&bytes).map_err(unfit)?;
    let Some(segment) = parsed.segments.iter().find(|segment| segment.kind == elf::PT_INTERP) else { return Ok(Vec::new()) };
    let name = stretch(&bytes, segment.offset, segment.file_len).and_then(|name| name.split(|byte| *byte == 0).next());
    let interpreter = name.and_then(|name| std::str::from_utf8(name).ok()).ok_or_else(|| unfit("its ld.so has no name".into()))?;
    if parsed.audited {
        return Err(unfit("its libraries are not known: it names objects that audit it, which would be run to tell".into()));
    }
    // It is a program that the file names: who splits a stranger's file must not run whatever that stranger likes.
    let place = std::fs::canonicalize(interpreter).map_err(Error::io(Path::new(interpreter), "finding"))?;
    safety::check_owned(&place)?;
    let mut command = Command::new(&place);
    command.arg("--list").arg(path).stdin(Stdio::null());
    as_owner(&mut command, &about);
    let told = command.output().map_err(Error::io(&place, "starting"))?;
    if !told.status.success() {
        let said = String::from_utf8_lossy(&told.stderr);
        return Err(unfit(format!("its libraries are not known: {interpreter} --list: {}", said.trim())));
    }
    let listed = String::from_utf8_lossy(&told.stdout).into_owned();
    if let Some(missing) = listed.lines().find(|line| line.ends_with("=> not found")) {
        return Err(unfit(format!("a library of it is not there: {}", missing.trim())));
    }
    let mut found: Vec<PathBuf> = Vec::new();
    for line in listed.lines() {
        // "libz.so.1 => /lib/libz.so.1 (0x7f…)", or "/lib64/ld-linux-x86-64.so.2 (0x7f…)". A relative path (RPATH, LD_LIBRARY_PATH) is one from
        // this directory; what has no path is no file (linux-vdso.so.1).
        let named = line.split("=>").last().unwrap_or(line).trim();
        let Some((name, _)) = named.rsplit_once(" (0x") else { continue };
        if !name.contains('/') {
            continue;
        }
        let library = std::fs::canonicalize(name).map_err(Error::io(Path::new(name), "finding"))?;
        if !found.contains(&library) {
            found.push(library);
        }
    }
    Ok(found)
}
