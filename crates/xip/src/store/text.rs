//! One text of a store.
//!
//! What must hold: a text is replaced only by one that holds all it held; its permissions are never less than those who run the
//! program need, and nobody can write to it.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use bytemuck::Zeroable;
use rustix::fs::{FallocateFlags, IFlags, fallocate, ioctl_getflags, ioctl_setflags};
use towa_media::extents::{self, Extent};
use towa_media::files;

use super::write::Draft;
use super::{Store, Writing, safety};
use crate::error::{Error, Result};
use crate::file;
use crate::format::{PAGE, RANGE_TEXT, Range, XyzRecord};
use crate::layout::HUGE_PAGE;
use crate::split::{Halves, Key};

/// A text that was found.
#[derive(Debug)]
pub struct Text {
    /// Where it is.
    pub path: PathBuf,
    /// Its record, checked.
    pub record: XyzRecord,
    /// Bytes that it takes on the medium.
    pub allocated: u64,
    /// Its permissions and owner.
    pub metadata: fs::Metadata,
    file: File,
}

/// Who must be able to read a text: everybody, or the owner and the group of the program, as far as they may run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readers {
    /// Permission bits: 0o400, 0o440 or 0o444.
    pub mode: u32,
    /// The program's owner.
    pub owner: u32,
    /// The program's group.
    pub group: u32,
}

impl Readers {
    fn are_all(&self) -> bool {
        self.mode & 0o004 != 0
    }

    /// Whose the text is to be: where all may read it, whoever splits keeps it.
    fn owner_and_group(&self) -> Option<(u32, u32)> {
        (!self.are_all()).then_some((self.owner, self.group))
    }
}

impl Text {
    /// Opens the text at `path` and checks its record.
    ///
    /// # Errors
    /// It is not there, is no text, or a damaged one.
    pub fn open(path: &Path) -> Result<Text> {
        let (file, metadata) = match file::open(path) {
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::Missing { path: path.to_owned(), what: "the text of a program is not there".into() });
            }
            other => other?,
        };
        let not_usable = |what: String| Error::NotUsable { path: path.to_owned(), what };
        let at = metadata.len().checked_sub(PAGE).ok_or_else(|| not_usable("too short for a text".into()))?;
        let mut record = XyzRecord::zeroed();
        file.read_exact_at(bytemuck::bytes_of_mut(&mut record), at).map_err(Error::io(path, "reading"))?;
        record.check(metadata.len()).map_err(not_usable)?;
        Ok(Text { path: path.to_owned(), record, allocated: metadata.blocks() * 512, metadata, file })
    }

    /// All of its bytes.
    pub fn read(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.metadata.len() as usize];
        self.file.read_exact_at(&mut bytes, 0).map_err(Error::io(&self.path, "reading"))?;
        Ok(bytes)
    }

    /// All of its bytes, if they are sound and hold all that `halves` has.
    fn read_if_enough(&self, halves: &Halves) -> Option<Vec<u8>> {
        let holds = |range: &Range| self.record.ranges().contains(range);
        let bytes = halves.layout.ranges.iter().all(holds).then(|| self.read().ok())??;
        self.record.check_content(&bytes).ok().map(|()| bytes)
    }

    /// Whether all of its text that fills huge pages lies where those can map it; nobody knows where the file system does not tell.
    pub fn lies_in_huge_pages(&self) -> Option<bool> {
        let extents = extents::of(&self.file).ok()?;
        let text = self.record.ranges().iter().filter(|range| range.kind == RANGE_TEXT);
        let huge = text.map(|range| (range.offset.next_multiple_of(HUGE_PAGE), (range.offset + range.len) / HUGE_PAGE * HUGE_PAGE));
        let askew = |extent: &Extent| extent.logical % HUGE_PAGE != extent.physical % HUGE_PAGE;
        let within = |extent: &Extent, (from, to): (u64, u64)| extent.logical < to && extent.logical + extent.len > from;
        let mut pages = huge.filter(|(from, to)| from < to);
        Some(pages.all(|pages| !extents.iter().any(|extent| within(extent, pages) && askew(extent))))
    }

    /// Whether it is immutable.
    pub fn is_sealed(&self) -> bool {
        ioctl_getflags(&self.file).is_ok_and(|flags| flags.contains(IFlags::IMMUTABLE))
    }
}

impl Store {
    /// The text with `key`.
    ///
    /// # Errors
    /// It is not there, or damaged.
    pub fn text(&self, key: &Key) -> Result<Text> {
        let text = Text::open(&self.text_path(key))?;
        if text.record.key == *key {
            return Ok(text);
        }
        Err(Error::NotUsable { path: text.path, what: "the text of another program than its name says".into() })
    }
}

impl Writing<'_> {
    /// Puts the text of `halves` there, unless it is; and the link by its build-id. It can be read by `readers`, and written by nobody; if
    /// `sealed`, it is immutable.
    ///
    /// # Errors
    /// No space, or no permission: what was there is as it was.
    pub fn put_text(&self, halves: &Halves, readers: Readers, huge: bool, sealed: bool) -> Result<PathBuf> {
        let path = self.store.text_path(&halves.key);
        let there = self.store.text(&halves.key).ok();
        let mut readers = readers;
        if let Some(text) = &there {
            readers = text.readers_with(readers)?;
        }
        // What is there may hold more than is put there now, and a program that needs it.
        let bytes = there.as_ref().and_then(|text| text.read_if_enough(halves));
        let has_readers = there.as_ref().is_some_and(|text| text.has_readers(readers));
        if bytes.is_some() && has_readers {
            self.sync_way_to(&path)?;
            return self.link_and_seal(halves, path, sealed);
        }
        unseal(&path)?;
        self.folder_of(&path)?;
        let mut draft = Draft::begin(&path)?;
        if huge {
            reserve_aligned(draft.file(), halves);
        }
        draft.write_sparse(bytes.as_deref().unwrap_or(&halves.xyz))?;
        if let Some((owner, group)) = readers.owner_and_group() {
            give(&draft, owner, group)?;
        }
        draft.finish(readers.mode)?;
        self.link_and_seal(halves, path, sealed)
    }

    fn link_and_seal(&self, halves: &Halves, path: PathBuf, sealed: bool) -> Result<PathBuf> {
        if let Some(id) = halves.build_id.as_deref() {
            self.link(id, &path)?;
        }
        if sealed {
            seal(&path)?;
        }
        Ok(path)
    }

    /// A link by build-id: relative, so that whoever sees the store under another name finds it as well.
    fn link(&self, build_id: &[u8], path: &Path) -> Result<()> {
        let link = self.store.build_id_path(build_id);
        let to = Path::new("../..").join(path.strip_prefix(self.store.path()).unwrap_or(path));
        if fs::read_link(&link).is_ok_and(|there| there == to) {
            return self.sync_way_to(&link);
        }
        self.folder_of(&link)?;
        let temporary = super::write::temporary(&link);
        std::os::unix::fs::symlink(&to, &temporary).map_err(Error::io(&link, "linking"))?;
        fs::rename(&temporary, &link).map_err(Error::io(&link, "renaming"))?;
        let above = link.parent().unwrap_or(&link);
        files::sync_dir(above).map_err(Error::io(above, "syncing"))
    }
}

impl Text {
    /// Who must be able to read it, if `more` must be, too.
    fn readers_with(&self, more: Readers) -> Result<Readers> {
        let (owner, group) = (self.metadata.uid(), self.metadata.gid());
        let now = Readers { mode: self.metadata.mode() & 0o444 | 0o400, owner, group };
        if now.are_all() || more.are_all() {
            return Ok(Readers { mode: 0o444, ..more });
        }
        if (now.owner, now.group) == (more.owner, more.group) {
            return Ok(Readers { mode: now.mode | more.mode, ..more });
        }
        let what = format!(
            "the same program is there for user {owner} and group {group} alone, and cannot be for user {} and group {} too",
            more.owner, more.group
        );
        Err(Error::Unsafe { path: self.path.clone(), what })
    }

    fn has_readers(&self, readers: Readers) -> bool {
        let (owner, group) = (self.metadata.uid(), self.metadata.gid());
        let is_owned = match readers.owner_and_group() {
            Some(wanted) => (owner, group) == wanted,
            None => [0, safety::me()].contains(&owner),
        };
        is_owned && self.metadata.mode() & 0o7777 == readers.mode
    }
}

/// Gives it to those who run the program: a user may give a file to groups of its own only.
fn give(draft: &Draft, owner: u32, group: u32) -> Result<()> {
    let path = draft.temporary();
    let now = draft.file().metadata().map_err(Error::io(path, "looking at"))?;
    if (now.uid(), now.gid()) == (owner, group) {
        return Ok(());
    }
    std::os::unix::fs::fchown(draft.file(), Some(owner), Some(group)).map_err(Error::io(path, "giving it to who runs the program"))
}

/// Space for text in whole aligned huge pages, where the file system gives that; where not, pages are small, and nothing is lost.
fn reserve_aligned(file: &File, halves: &Halves) {
    for text in halves.layout.ranges.iter().filter(|range| range.kind == RANGE_TEXT) {
        let from = text.offset / HUGE_PAGE * HUGE_PAGE;
        let to = (text.offset + text.len).next_multiple_of(HUGE_PAGE);
        if let Err(e) = fallocate(file, FallocateFlags::KEEP_SIZE, from, to - from) {
            log::info!("{}: no space reserved in whole huge pages: {e}", super::hex(&halves.key[..4]));
        }
    }
}

/// Makes a file immutable.
fn seal(path: &Path) -> Result<()> {
    let file = File::open(path).map_err(Error::io(path, "opening"))?;
    let set = ioctl_getflags(&file).and_then(|flags| ioctl_setflags(&file, flags | IFlags::IMMUTABLE));
    set.map_err(|e| Error::Unsupported {
        what: format!(
            "{}: sealing needs a file system with immutable files, and CAP_LINUX_IMMUTABLE ({e}); split without --seal",
            path.display()
        ),
    })
}

/// Lets an immutable file be replaced or removed again.
pub(super) fn unseal(path: &Path) -> Result<()> {
    let Ok(file) = File::open(path) else { return Ok(()) };
    match ioctl_getflags(&file) {
        Ok(flags) if flags.contains(IFlags::IMMUTABLE) => {
            ioctl_setflags(&file, flags - IFlags::IMMUTABLE).map_err(|e| Error::io(path, "unsealing")(e.into()))
        }
        _ => Ok(()),
    }
}

/// Who can run a file with `metadata`, and so must be able to read its text.
///
/// # Errors
/// It may be run by some who may not read it, or by some whom only a list names.
pub fn readers_of(path: &Path, file: &File, metadata: &fs::Metadata) -> Result<Readers> {
    let mode = metadata.permissions().mode();
    let run = (mode & 0o111) << 2;
    let unfit = |why: &str| Err(Error::Unfit { path: path.to_owned(), why: why.into() });
    if run & !mode & 0o044 != 0 {
        return unfit("some may run it and not read it, but its text has to be read by who runs it; chmod +r");
    }
    let has_list = rustix::fs::fgetxattr(file, "system.posix_acl_access", &mut [0u8; 4096]).is_ok();
    if has_list && mode & 0o004 == 0 {
        return unfit(
            "an access list (ACL) says who may run it, which its text in the store cannot have; setfacl -b, or chmod o+r",
        );
    }
    Ok(Readers { mode: (mode & 0o444) | 0o400, owner: metadata.uid(), group: metadata.gid() })
}
