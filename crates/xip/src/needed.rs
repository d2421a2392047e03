//! The libraries that a program needs when it starts: ld.so's own answer.
//!
//! What must hold: the program itself is not run. What is run is a dynamic loader that only this user and root can have put there, and the
//! file that it reads is the one that was looked at here: one without objects that audit it, which ld.so would execute.
//! Libraries that it opens later (plug-ins, name services) are not found here.

use std::fs::{File, Metadata};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use object::elf;

use crate::bounded;
use crate::elf::{Elf, Segment, stretch};
use crate::error::{Error, Result};
use crate::file;
use crate::format::LOADER_NAME;
use crate::store::safety;

/// The group that has no rights anywhere.
const NO_GROUP: u32 = 65534;

/// Whether something may be started for the sake of a file with this metadata: root can take its owner's rights, and another user cannot.
pub fn may_start(file: &Metadata) -> bool {
    let me = safety::me();
    me == 0 || [0, me].contains(&file.uid())
}

/// What is started for the sake of a file of another user is started with that user's rights, and without this one's environment; and
/// whatever is started has no terminal, into which it could put what this user seems to have typed. Whether the file is another's.
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
    // SAFETY: between fork and exec, setsid is a call that may be made; it allocates nothing and touches no memory.
    unsafe { command.pre_exec(|| rustix::process::setsid().map(drop).map_err(Into::into)) };
    is_anothers
}

/// The paths of the libraries that the unsplit program at `path` needs, ld.so itself among them; without links, each once, in the order in which
/// they are loaded.
///
/// # Errors
/// Its ld.so cannot tell: it is not glibc's, or a library is missing. [`Error::Unsafe`]: it is not asked, or not of what lies beside the
/// program, since others could change that or its ld.so.
pub fn libraries(path: &Path) -> Result<Vec<PathBuf>> {
    // ld.so looks for a name without a slash where it looks for libraries.
    let path = &std::fs::canonicalize(path).map_err(Error::io(path, "finding"))?;
    let (file, about) = file::open_no_link(path)?;
    let bytes = file::rest_of(&file, path)?;
    let unfit = |why: String| Error::Unfit { path: path.to_owned(), why };
    let parsed = Elf::read(&bytes).map_err(unfit)?;
    let Some(segment) = parsed.segments.iter().find(|segment| segment.kind == elf::PT_INTERP) else { return Ok(Vec::new()) };
    let interpreter = interpreter(&bytes, segment).ok_or_else(|| unfit("its ld.so has no name".into()))?;
    if parsed.audited {
        return Err(unfit("its libraries are not known: it names objects that audit it, which would be run to tell".into()));
    }
    check_asked(path, &file, &about)?;
    let place = find_loader(path, interpreter)?;
    let mut command = Command::new(&place);
    command.arg("--list").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    as_owner(&mut command, &about);
    let is_held = is_held(path, &about);
    if is_held {
        command.arg(path);
    } else {
        pass(&mut command, &file);
    }
    let told = bounded::output(&mut command).map_err(Error::io(path, "asking ld.so for its libraries"))?;
    drop(file);
    let unknown = |why: String| match is_held {
        true => unfit(why),
        false => unsafe_to_ask(path, format!("{why}; none is looked for beside it ($ORIGIN), where others can exchange it")),
    };
    if !told.status.success() {
        let said = String::from_utf8_lossy(&told.stderr);
        return Err(unknown(format!("its libraries are not known: {interpreter} --list: {}", said.trim())));
    }
    let listed = String::from_utf8_lossy(&told.stdout).into_owned();
    if let Some(missing) = listed.lines().find(|line| line.ends_with("=> not found")) {
        return Err(unknown(format!("a library of it is not there: {}", missing.trim())));
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

/// The name of the interpreter, as the kernel takes it: up to the only zero byte, which ends the segment.
fn interpreter<'a>(bytes: &'a [u8], segment: &Segment) -> Option<&'a str> {
    let (end, name) = stretch(bytes, segment.offset, segment.file_len)?.split_last()?;
    if *end != 0 || name.is_empty() || name.contains(&0) {
        return None;
    }
    std::str::from_utf8(name).ok()
}

/// ld.so runs with the rights of the file's owner: only that user, and root, may decide what it reads.
fn check_asked(path: &Path, file: &File, about: &Metadata) -> Result<()> {
    let why = if !may_start(about) {
        format!("it belongs to user {}, for whose file nothing is started; do it as that user, or as root", about.uid())
    } else if about.mode() & 0o022 != 0 {
        "others can write to it; chmod go-w".into()
    } else {
        return safety::check_claims(path, file, about);
    };
    Err(unsafe_to_ask(path, format!("its libraries are not looked for: {why}")))
}

/// Nothing is known of the libraries of a program that may well start.
fn unsafe_to_ask(path: &Path, what: String) -> Error {
    Error::Unsafe { path: path.to_owned(), what }
}

/// Where the dynamic loader with the name `interpreter` is. The program names it, and could name any program of root's: `env` would run
/// what it is given.
fn find_loader(path: &Path, interpreter: &str) -> Result<PathBuf> {
    let place = std::fs::canonicalize(interpreter).map_err(Error::io(Path::new(interpreter), "finding"))?;
    safety::check_owned(&place)?;
    let last = |path: &Path| path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    let is_named = is_loader_name(&last(&place))
        // musl's loader is its C library, under another name.
        || last(Path::new(interpreter)).starts_with("ld-musl") && last(&place) == "libc.so";
    if is_named
        && file::open_no_link(&place).and_then(|(file, _)| file::rest_of(&file, &place)).is_ok_and(|bytes| is_loader(&bytes))
    {
        return Ok(place);
    }
    let why = format!("its libraries are not looked for: {interpreter}, which it names as its interpreter, is no ld.so");
    Err(Error::Unfit { path: path.to_owned(), why })
}

/// ld-linux-x86-64.so.2, ld-2.31.so, ld-musl-x86_64.so.1; not the loader of a store.
fn is_loader_name(name: &str) -> bool {
    name.starts_with("ld-") && (name.contains(".so") || name.starts_with("ld-musl")) && name != LOADER_NAME
}

/// It can be loaded anywhere, and needs no interpreter, unlike a program that is position-independent.
fn is_loader(bytes: &[u8]) -> bool {
    let is_shared = bytes.get(16..18) == Some(&elf::ET_DYN.to_le_bytes()[..]);
    let needs_none = |elf: &Elf| elf.segments.iter().all(|segment| segment.kind != elf::PT_INTERP);
    is_shared && Elf::read(bytes).is_ok_and(|elf| needs_none(&elf))
}

/// Whether `path` leads to the file with `about`, and only this user and root could change that.
fn is_held(path: &Path, about: &Metadata) -> bool {
    let is_same = |now: Metadata| (now.dev(), now.ino()) == (about.dev(), about.ino());
    safety::check_owned(path).is_ok() && std::fs::symlink_metadata(path).is_ok_and(is_same)
}

/// Names `file` to what is started by its descriptor: a path could lead to another file by then. `file` must be open until then.
fn pass(command: &mut Command, file: &File) {
    let number = file.as_raw_fd();
    command.arg(format!("/proc/self/fd/{number}"));
    // SAFETY: between fork and exec, fcntl is a call that may be made; it allocates nothing, and changes the child's descriptor alone.
    unsafe {
        command.pre_exec(move || match libc::fcntl(number, libc::F_SETFD, 0) {
            -1 => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        })
    };
}
