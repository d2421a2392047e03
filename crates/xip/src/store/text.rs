//! One text of a store.
//!
//! What must hold: a text is replaced only by one that holds all it held; its permissions are never less than those who run the
//! program need, and nobody can write to it.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use bytemuck::Zeroable;
use rustix::fs::{FallocateFlags, IFlags, fallocate, ioctl_getflags, ioctl_setflags};
use towa_media::files;

use super::write::Draft;
use super::{Store, Writing};
use crate::error::{Error, Result};
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

/// Who must be able to read a text: the group, and everybody, as far as they may run the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readers {
    /// Permission bits: 0o400, 0o440 or 0o444.
    pub mode: u32,
    /// The group.
    pub group: u32,
}

impl Text {
    /// Opens the text at `path` and checks its record.
    ///
    /// # Errors
    /// It is not there, is no text, or a damaged one.
    pub fn open(path: &Path) -> Result<Text> {
        let missing = |_| Error::Missing { path: path.to_owned(), what: "the text of a program is not there".into() };
        let file = match File::open(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Err(missing(e)),
            other => other.map_err(Error::io(path, "opening"))?,
        };
        let metadata = file.metadata().map_err(Error::io(path, "looking at"))?;
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

    /// Whether it holds all of `ranges`.
    fn holds(&self, ranges: &[Range]) -> bool {
        ranges.iter().all(|range| self.record.ranges().contains(range))
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
        let mut mode = readers.mode;
        if let Some(text) = &there {
            let (old_mode, old_group) = (text.metadata.mode() & 0o444, text.metadata.gid());
            let is_read_by_group = old_mode & 0o004 != 0 || readers.mode & 0o040 == 0 || old_group == readers.group;
            if !is_read_by_group && readers.mode & 0o004 == 0 {
                let what =
                    format!("the same program is there for group {old_group} alone, and cannot be for group {} too", readers.group);
                return Err(Error::Unsafe { path, what });
            }
            mode |= old_mode;
            if mode == old_mode && text.holds(&halves.layout.ranges) {
                return self.link_and_seal(halves, path, sealed);
            }
            unseal(&path)?;
        }
        self.folder_of(&path)?;
        let mut draft = Draft::begin(&path)?;
        if huge {
            reserve_aligned(draft.file(), halves);
        }
        draft.write_sparse(&halves.xyz)?;
        give_to_group(&draft, readers, mode)?;
        draft.finish(mode)?;
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
            return Ok(());
        }
        self.folder_of(&link)?;
        let temporary = super::write::temporary(&link);
        let _ = fs::remove_file(&temporary);
        std::os::unix::fs::symlink(&to, &temporary).map_err(Error::io(&link, "linking"))?;
        fs::rename(&temporary, &link).map_err(Error::io(&link, "renaming"))?;
        let above = link.parent().unwrap_or(&link);
        files::sync_dir(above).map_err(Error::io(above, "syncing"))
    }
}

/// Where the group needs it: a user may give a file to groups of its own only.
fn give_to_group(draft: &Draft, readers: Readers, mode: u32) -> Result<()> {
    let path = draft.temporary();
    let group = draft.file().metadata().map_err(Error::io(path, "looking at"))?.gid();
    if group == readers.group || mode & 0o044 != 0o040 {
        return Ok(());
    }
    std::os::unix::fs::fchown(draft.file(), None, Some(readers.group)).map_err(Error::io(path, "setting its group"))
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
/// It may be run by some who may not read it.
pub fn readers_of(path: &Path, metadata: &fs::Metadata) -> Result<Readers> {
    let mode = metadata.permissions().mode();
    let run = (mode & 0o111) << 2;
    if run & !mode & 0o044 != 0 {
        let why = "some may run it and not read it, but its text has to be read by who runs it; chmod +r".into();
        return Err(Error::Unfit { path: path.to_owned(), why });
    }
    Ok(Readers { mode: (mode & 0o444) | 0o400, group: metadata.gid() })
}
