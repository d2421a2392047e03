//! A program is replaced by its half, and a half by the whole: on disk, at once.
//!
//! ```text
//!   split   1 text into the store   2 entry into the store   3 ABC beside the program, tried   4 rename
//!   join    1 original beside ABC   2 rename                 3 entry goes                      (the text goes with `gc`)
//! ```
//!
//! What must hold: stopped after any step, by SIGKILL or a power cut, the program's name leads to the original or to an ABC whose text
//! and entry are there: a rename is the only thing that changes it, and what the new file needs was synced before. Between 1 and 2, and
//! between 2 and 4, the store has a text too many, which `gc` removes.

use std::ffi::{CString, OsString};
use std::fs::{self, File, FileTimes};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::fs::{IFlags, XattrFlags, fgetxattr, flistxattr, fsetxattr, ioctl_getflags};

use crate::bounded;
use crate::elf::{Elf, Kind};
use crate::error::{Error, Result};
use crate::file;
use crate::needed;
use crate::split::{self, AbcHead, Halves, Options};
use crate::store::Writing;
use crate::store::write::Draft;
use crate::store::{Entry, Identity, Readers, Store, Text, hex, is_within_one, safety};
use crate::tls;

/// In the environment of a split program, with the key as in its text's name, it makes the loader end with [`CHECKED`] when all is mapped,
/// before the program's first instruction.
pub const CHECK: &str = "TOWA_XIP_CHECK";
/// The status with which the loader ends then: not that of success, which who started the program for its own sake would believe.
pub const CHECKED: i32 = 86;

/// What is said of text that was to be mapped with huge pages.
const ASKEW: &str = "its text is mapped with small pages: the file system of the store did not put it at whole 2 MiB; one that is made with \
                     `mkfs.ext4 -E stride=512,stripe-width=512` or `mkfs.xfs -d su=2m,sw=1` does";

/// How files are replaced.
#[derive(Clone, Copy, Debug, Default)]
pub struct How {
    /// What goes to the store.
    pub split: Options,
    /// Texts are made immutable.
    pub sealed: bool,
}

/// What was done with a file.
#[derive(Clone, Debug)]
pub struct Done {
    /// Where ABC is; of a library, where that is.
    pub path: PathBuf,
    /// What it is.
    pub kind: Kind,
    /// Where its text is.
    pub text: PathBuf,
    /// Bytes mapped from there.
    pub mapped: u64,
    /// Bytes of the whole file.
    pub len: u64,
    /// What its user should know.
    pub notes: Vec<String>,
}

/// A file that was read.
struct Source {
    path: PathBuf,
    identity: Identity,
    metadata: fs::Metadata,
    bytes: Vec<u8>,
    file: File,
}

impl Source {
    fn open(path: &Path) -> Result<Source> {
        let path = fs::canonicalize(path).map_err(Error::io(path, "finding"))?;
        let (file, _) = file::open(&path)?;
        let (identity, metadata) = Identity::settled(&file, &path)?;
        let bytes = file::rest_of(&file, &path)?;
        let source = Source { path, identity, metadata, bytes, file };
        // Bytes of before and after a change make a file that never was.
        source.check_unchanged()?;
        Ok(source)
    }

    /// Nobody changed or exchanged it since it was read.
    fn check_unchanged(&self) -> Result<()> {
        let now = fs::metadata(&self.path).map_err(Error::io(&self.path, "looking at"))?;
        if (now.dev(), Identity::of(&now)) == (self.metadata.dev(), self.identity) {
            return Ok(());
        }
        Err(Error::Unfit { path: self.path.clone(), why: "it was changed meanwhile; it is as that change left it".into() })
    }

    /// Whether it runs with more rights than those of who starts it.
    fn is_privileged(&self) -> bool {
        rights(&self.file, &self.metadata).is_some()
    }

    /// The loader takes the text of a program with more rights than its starter's from root alone: another store's is refused here, where
    /// nothing was written yet.
    fn check_store(&self, store: &Store) -> Result<()> {
        let Some(rights) = rights(&self.file, &self.metadata) else { return Ok(()) };
        store.check_for_privileged().map_err(|error| match error {
            Error::Unsafe { path, what } => {
                let what = format!(
                    "{what}. Only root may be able to change the text of {}, for {rights}: split it into a store in a directory of \
                     root's, or take its rights away (chmod ug-s, setcap -r)",
                    self.path.display()
                );
                Error::Unsafe { path, what }
            }
            other => other,
        })
    }
}

fn rights(file: &File, metadata: &fs::Metadata) -> Option<&'static str> {
    match metadata.mode() {
        mode if mode & 0o4000 != 0 => Some("it is set-user-id"),
        mode if mode & 0o2000 != 0 => Some("it is set-group-id"),
        _ => fgetxattr(file, "security.capability", &mut [0u8; 256]).is_ok().then_some("it has file capabilities"),
    }
}

/// All bytes of the regular file at `path`.
///
/// # Errors
/// It is something else, too long, or cannot be read.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    file::read(path)
}

/// Whether the program at `path`, which is not split, can be started with `auditor` as what audits it.
pub fn can_be_audited(path: &Path, auditor: &Path) -> bool {
    let is_dynamic = file::read(path).is_ok_and(|bytes| Elf::read(&bytes).is_ok_and(|elf| elf.kind == Kind::Program));
    let has_room = || needed::libraries(path).is_ok_and(|libraries| tls::hindrance(path, &libraries).is_none());
    is_dynamic && !auditor.as_os_str().as_bytes().contains(&b':') && has_room()
}

/// By what the program at `path` runs with more rights than those of who starts it, if it does.
///
/// # Errors
/// It cannot be looked at.
pub fn rights_of(path: &Path) -> Result<Option<&'static str>> {
    file::open(path).map(|(file, metadata)| rights(&file, &metadata))
}

/// Splits the program at `path`, or, if `out` is given, makes its ABC there; a library's text is put into the store, and the library is as it was.
///
/// # Errors
/// It cannot be split, or the store is not safe for it: everything is as it was.
pub fn split(store: &Store, path: &Path, out: Option<&Path>, how: How) -> Result<Done> {
    let writing = store.write()?;
    let source = Source::open(path)?;
    let unfit = |why| Error::Unfit { path: source.path.clone(), why };
    if is_within_one(&source.path) {
        return Err(unfit("it lies in a store, and is part of that".into()));
    }
    source.check_store(store)?;
    let readers = Readers::of_program(&source.path, &source.file, &source.metadata)?;
    let mut options = how.split;
    let hindrance = if options.libs { libraries_hindrance(store, &source) } else { None };
    options.libs &= hindrance.is_none();
    let halves = split::split(&source.bytes, store.path().as_os_str().as_bytes(), options).map_err(unfit)?;
    let mut place = source.path.clone();
    if halves.abc.is_some() {
        check_program(store, &source, &readers)?;
        place = place_for(&source, out)?;
    } else {
        if out.is_some() {
            return Err(Error::Wrong(format!("{}: a library stays as it is; leave -o away", source.path.display())));
        }
        // Each program that is split with its libraries could execute this text.
        safety::check_owned(&source.path)?;
        safety::check_has_state(&source.path, &source.file, &source.metadata)?;
    }
    let text = put_text(&writing, &source, &halves, &readers, how)?;
    let mut done = Done {
        path: place,
        kind: halves.kind,
        text,
        mapped: halves.layout.mapped_len(),
        len: source.bytes.len() as u64,
        notes: Vec::new(),
    };
    if how.split.huge && store.text(&halves.key)?.lies_in_huge_pages() == Some(false) {
        done.notes.push(ASKEW.into());
    }
    match &halves.abc {
        None => {
            source.check_unchanged()?;
            writing.link_library(&source.identity, &done.text)?;
            writing.enter(&Entry::new(&source.path, halves.key, halves.kind, Some(source.identity)))?;
        }
        Some(abc) => {
            check_halves(store, &halves, abc, &source, &readers)?;
            let replaced = out.is_none().then_some(source.identity);
            writing.enter(&Entry::new(&done.path, halves.key, halves.kind, replaced))?;
            let keeps_rights = out.is_none();
            put_abc(&source, abc, &done.path, keeps_rights)?;
            if !keeps_rights && source.is_privileged() {
                done.notes.push("it has no more rights than who starts it, unlike the program".into());
            }
            done.notes.extend(hindrance.map(|why| format!("its libraries keep their own text: {why}")));
            if out.is_none() && source.metadata.nlink() > 1 {
                done.notes.push(format!("{} other names of it keep the whole file (hard links)", source.metadata.nlink() - 1));
            }
        }
    }
    Ok(done)
}

/// Whoever may run the program, and gets to it, must get to the store.
fn check_program(store: &Store, source: &Source, readers: &Readers) -> Result<()> {
    let unfit = |why| Error::Unfit { path: source.path.clone(), why };
    if source.metadata.mode() & 0o111 == 0 {
        return Err(unfit("no user may run it; chmod +x, if it is a program".into()));
    }
    readers.check_reach(source.path.parent().unwrap_or(Path::new("/")), store.path()).map_err(unfit)
}

/// Where the new file is to be. Nobody else can exchange there what is written, tried and renamed.
fn place_for(source: &Source, out: Option<&Path>) -> Result<PathBuf> {
    let place = match out {
        Some(out) => absolute(out)?,
        None => source.path.clone(),
    };
    safety::check_owned(place.parent().unwrap_or(Path::new("/")))?;
    let is_immutable = |file: &File| ioctl_getflags(file).is_ok_and(|flags| flags.contains(IFlags::IMMUTABLE));
    if out.is_none() && is_immutable(&source.file) {
        let source = std::io::Error::from_raw_os_error(libc::EPERM);
        return Err(Error::Io { path: place, doing: "replacing it, which is immutable (chattr -i)", source });
    }
    Ok(place)
}

/// Puts the text of `halves` there. One that is there may have read-only data besides, which another program needs: then it keeps that, as it
/// is in `source`.
fn put_text(writing: &Writing<'_>, source: &Source, halves: &Halves, readers: &Readers, how: How) -> Result<PathBuf> {
    let store = writing.store;
    let is_more = !how.split.with_rodata && store.text(&halves.key).is_ok_and(|text| text.has_rodata());
    let more = is_more.then(|| {
        let options = Options { with_rodata: true, ..how.split };
        split::split(&source.bytes, store.path().as_os_str().as_bytes(), options)
    });
    let more = more.transpose().map_err(|why| Error::Unfit { path: source.path.clone(), why })?;
    writing.put_text(more.as_ref().unwrap_or(halves), readers, how.split.huge, how.sealed)
}

/// Why text of its libraries cannot be mapped from a store. Where ld.so cannot tell its libraries, nothing is known against it;
/// where it is not asked, they may be such that the program would not start.
fn libraries_hindrance(store: &Store, source: &Source) -> Option<String> {
    if store.path().as_os_str().as_bytes().contains(&b':') {
        return Some("the path of the store has a colon, at which ld.so ends the name of what maps them".into());
    }
    let elf = Elf::read(&source.bytes).ok()?;
    if let Some(why) = elf.audit_hindrance() {
        return Some(why.into());
    }
    match needed::libraries(&source.path) {
        Ok(libraries) => tls::hindrance(&source.path, &libraries),
        Err(Error::Unsafe { what, .. }) => Some(what),
        Err(_) => None,
    }
}

/// All who may run a program can read its text, and only root or the store's owner could have written that; root alone, where it runs
/// with more rights than those of who starts it. So the loader will take it.
pub(crate) fn check_text(store: &Store, text: &Text, readers: &Readers, is_privileged: bool) -> Result<()> {
    text.check_owner(store)?;
    if is_privileged {
        store.check_for_privileged()?;
        safety::check_file(&text.path, &text.metadata, &[0])?;
    }
    if text.readers().include(readers) {
        return Ok(());
    }
    let what = "not all who may run the program can read it; split the program again";
    Err(Error::Unsafe { path: text.path.clone(), what: what.into() })
}

/// What is in the store by now gives the original, together with ABC, and all who may run that.
fn check_halves(store: &Store, halves: &Halves, abc: &[u8], source: &Source, readers: &Readers) -> Result<()> {
    let text = store.text(&halves.key)?;
    check_text(store, &text, readers, source.is_privileged())?;
    match split::join(abc, &text.read()?) {
        Ok(original) if original == source.bytes => Ok(()),
        Ok(_) => Err(Error::NotUsable { path: text.path, what: "it does not give back the program".into() }),
        Err(what) => Err(Error::NotUsable { path: text.path, what }),
    }
}

fn put_abc(source: &Source, abc: &[u8], to: &Path, keeps_rights: bool) -> Result<()> {
    let mut draft = Draft::begin(to)?;
    draft.write_sparse(abc)?;
    copy_attributes(source, draft.file(), keeps_rights)?;
    draft.settle()?;
    if !(keeps_rights && source.is_privileged()) {
        answers(draft.temporary()).map_err(|error| about(error, to))?;
    }
    source.check_unchanged()?;
    draft.finish_as_it_is()
}

/// An error of a draft, said of the file that it was to become.
fn about(error: Error, to: &Path) -> Error {
    match error {
        Error::NotUsable { what, .. } => Error::NotUsable { path: to.to_owned(), what },
        Error::Io { doing, source, .. } => Error::Io { path: to.to_owned(), doing, source },
        other => other,
    }
}

/// Starts the split program at `path` as far as its own first instruction, which it does not reach; as the user whose it is. One that its
/// owner may not run, or does not get to, is not tried; nor one of another user than root and who asks, unless that is root.
///
/// # Errors
/// It does not get there; with what the loader says.
pub fn answers(path: &Path) -> Result<()> {
    let (file, metadata) = file::open(path)?;
    // One with more rights than its user's does not listen, and would run.
    if rights(&file, &metadata).is_some() || metadata.mode() & 0o100 == 0 || !needed::may_start(&metadata) {
        return Ok(());
    }
    let key = hex(&store_of(path, &file::rest_of(&file, path)?)?.0.record.key[..16]);
    let mut command = Command::new(path);
    let is_anothers = needed::as_owner(&mut command, &metadata);
    command.env_clear().env(CHECK, key).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let ended = match output(command) {
        Err(e) if is_anothers && e.kind() == std::io::ErrorKind::PermissionDenied => return Ok(()),
        other => other.map_err(Error::io(path, "starting"))?,
    };
    if ended.status.code() == Some(CHECKED) {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ended.stderr);
    let what = format!("does not start with its text in the store ({}) {}", ended.status, said.trim());
    Err(Error::NotUsable { path: path.to_owned(), what: what.trim_end().to_owned() })
}

/// Runs a file that was just written. Another thread that starts something has the right to write to it, as a copy of ours, until it is
/// through with `execve`, and until then nobody can start it.
fn output(mut command: Command) -> std::io::Result<Output> {
    for attempt in 0.. {
        match bounded::output(&mut command) {
            Err(e) if e.raw_os_error() == Some(libc::ETXTBSY) && attempt < 100 => {
                std::thread::sleep(Duration::from_millis(1 + attempt / 4))
            }
            other => return other,
        }
    }
    unreachable!("the loop ends by a return")
}

/// Owner, permissions, times and extended attributes. A copy elsewhere, which is not to keep the rights that a program has beyond those of
/// who starts it, belongs to who makes it where that user cannot give it away; and a group that it has then may not do what it might not.
fn copy_attributes(source: &Source, to: &File, keeps_rights: bool) -> Result<()> {
    let about = &source.metadata;
    let path = &source.path;
    let now = to.metadata().map_err(Error::io(path, "looking at its copy"))?;
    let mut mode = about.mode() & if keeps_rights { 0o7777 } else { 0o1777 };
    if (now.uid(), now.gid()) != (about.uid(), about.gid()) {
        match std::os::unix::fs::fchown(to, Some(about.uid()), Some(about.gid())) {
            Err(e) if !keeps_rights && e.kind() == std::io::ErrorKind::PermissionDenied => {
                mode = mode & !0o070 | (mode & 0o007) << 3
            }
            other => other.map_err(Error::io(path, "keeping its owner"))?,
        }
    }
    to.set_permissions(fs::Permissions::from_mode(mode)).map_err(Error::io(path, "keeping its permissions"))?;
    copy_extended_attributes(source, to, keeps_rights)?;
    let times = FileTimes::new()
        .set_accessed(about.accessed().map_err(Error::io(path, "looking at"))?)
        .set_modified(about.modified().map_err(Error::io(path, "looking at"))?);
    to.set_times(times).map_err(Error::io(path, "keeping its times"))
}

fn copy_extended_attributes(source: &Source, to: &File, keeps_rights: bool) -> Result<()> {
    let path = &source.path;
    let mut names = vec![0u8; 65536];
    let len = flistxattr(&source.file, &mut names).unwrap_or(0);
    for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        if !keeps_rights && name == b"security.capability" {
            continue;
        }
        let is_of_users = name.starts_with(b"user.") || name.starts_with(b"system.");
        let name = CString::new(name).expect("split at zero bytes");
        let mut value = vec![0u8; 65536];
        let len =
            fgetxattr(&source.file, &name, &mut value).map_err(|e| Error::io(path, "reading an extended attribute")(e.into()))?;
        match fsetxattr(to, &name, &value[..len], XattrFlags::empty()) {
            // Labels of a security module are the module's to give to a copy.
            Err(rustix::io::Errno::PERM | rustix::io::Errno::ACCESS) if !keeps_rights && !is_of_users => {}
            other => other.map_err(|e| Error::io(path, "keeping an extended attribute")(e.into()))?,
        }
    }
    Ok(())
}

fn absolute(path: &Path) -> Result<PathBuf> {
    let name = path.file_name().ok_or_else(|| Error::Wrong(format!("{}: not the name of a file", path.display())))?;
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(fs::canonicalize(above).map_err(Error::io(above, "finding"))?.join(name))
}

/// The store that the split program with the bytes `abc`, at `path`, names.
///
/// # Errors
/// It is none.
pub fn store_of(path: &Path, abc: &[u8]) -> Result<(AbcHead, PathBuf)> {
    let head = AbcHead::find(abc).map_err(|why| Error::NotSplit { path: path.to_owned(), why })?;
    let store = PathBuf::from(OsString::from_vec(head.store.clone()));
    Ok((head, store))
}

/// Makes the split program at `path` whole again, in place or as `out`; its text is looked for in `store`, or else in the one that it names.
///
/// # Errors
/// It is not split, its text is not there, or the two do not give the original: everything is as it was.
pub fn join(path: &Path, out: Option<&Path>, store: Option<&Path>) -> Result<PathBuf> {
    let source = Source::open(path)?;
    let (original, store) = original_of(&source, store)?;
    let to = place_for(&source, out)?;
    let mut draft = Draft::begin(&to)?;
    draft.write_sparse(&original)?;
    copy_attributes(&source, draft.file(), out.is_none())?;
    source.check_unchanged()?;
    draft.finish_as_it_is()?;
    // Under its other names it needs its text as before. Another's store keeps its entry, until its own gc.
    if out.is_none()
        && source.metadata.nlink() == 1
        && let Ok(writing) = store.write()
    {
        writing.leave(&source.path)?;
    }
    Ok(to)
}

/// The whole of the split program `source`; and the store with its text: `store`, or else the one that it names.
fn original_of(source: &Source, store: Option<&Path>) -> Result<(Vec<u8>, Store)> {
    let (head, named) = store_of(&source.path, &source.bytes)?;
    let store = Store::open(store.unwrap_or(&named))?;
    let text = store.text(&head.record.key)?;
    let not_usable = |what| Error::NotUsable { path: source.path.clone(), what };
    let original = split::join(&source.bytes, &text.read()?).map_err(not_usable)?;
    Ok((original, store))
}

/// Makes `out` a file for debuggers, of the split program at `path`: the whole program, but with the program headers of the half. A core file
/// has those, and a debugger finds out by them where the program was loaded. It cannot be run.
///
/// # Errors
/// As [`join`].
pub fn join_for_debugger(path: &Path, out: &Path, store: Option<&Path>) -> Result<PathBuf> {
    let source = Source::open(path)?;
    let (mut whole, _) = original_of(&source, store)?;
    let elf = Elf::read(&source.bytes).map_err(|why| Error::NotSplit { path: source.path.clone(), why })?;
    let headers = elf.headers_at as usize..elf.headers_at as usize + 56 * elf.segments.len();
    whole[headers.clone()].copy_from_slice(&source.bytes[headers]);
    let mut draft = Draft::begin(&place_for(&source, Some(out))?)?;
    draft.write_sparse(&whole)?;
    copy_attributes(&source, draft.file(), false)?;
    source.check_unchanged()?;
    draft.finish(source.metadata.mode() & 0o666)?;
    absolute(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_after_reading_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        fs::write(&path, "one").unwrap();
        let source = Source::open(&path).unwrap();
        source.check_unchanged().unwrap();
        let mut file = File::options().append(true).open(&path).unwrap();
        std::io::Write::write_all(&mut file, b"two").unwrap();
        assert!(source.check_unchanged().is_err(), "it is longer");
        let source = Source::open(&path).unwrap();
        fs::write(dir.path().join("newer"), "onetwo").unwrap();
        fs::rename(dir.path().join("newer"), &path).unwrap();
        assert!(source.check_unchanged().is_err(), "it is another file");
    }
}
