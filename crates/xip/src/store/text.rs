//! One text of a store.
//!
//! What must hold: a text is replaced only by one that holds all it held; those who run the program can read it; it belongs to the owner
//! of the store, and no user can write to it.
//!
//! Why a program executes its own code, and nothing else: its half that stays names the text by the SHA-256 of the whole original file, a
//! library is looked for by the state of its file ([`Identity`]). Both names were given to bytes that were read from the very file, never to
//! bytes that lay in the store. Who could exchange them afterwards is the owner of the store, or root: the loader refuses the texts of all
//! others, whatever their mode says. And of libraries only those have texts that belong to root, or to who splits, all the way up: they
//! could be executed by every program that was split with its libraries. So an honest owner suffices; the rest is what `towa xip verify`
//! hashes again.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use bytemuck::Zeroable;
use rustix::fs::{FallocateFlags, IFlags, fallocate, ioctl_getflags, ioctl_setflags};
use towa_media::extents::{self, Extent};
use towa_media::files;

use super::write::Draft;
use super::{Identity, Readers, Store, Writing, safety};
use crate::error::{Error, Result};
use crate::file;
use crate::format::{PAGE, RANGE_RODATA, RANGE_TEXT, XyzRecord};
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

impl Text {
    /// Opens the text at `path` and checks its record.
    ///
    /// # Errors
    /// It is not there, is no text, or a damaged one.
    pub fn open(path: &Path) -> Result<Text> {
        let (file, metadata) = match file::open_in_store(path) {
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
        (&self.file).seek(SeekFrom::Start(0)).map_err(Error::io(&self.path, "reading"))?;
        file::rest_of(&self.file, &self.path)
    }

    /// Whether it is, to the byte, `bytes`.
    fn is(&self, bytes: &[u8]) -> bool {
        self.metadata.len() == bytes.len() as u64 && self.read().is_ok_and(|there| there == bytes)
    }

    /// Whether it holds more than text: read-only data, which a program that was split with it needs.
    pub fn has_rodata(&self) -> bool {
        self.record.ranges().iter().any(|range| range.kind == RANGE_RODATA)
    }

    /// Who can read it.
    pub fn readers(&self) -> Readers {
        Readers::of_text(&self.file, &self.metadata)
    }

    /// It was written by root or by the owner of its store, and no other user could have changed it since.
    ///
    /// # Errors
    /// Somebody could.
    pub fn check_owner(&self, store: &Store) -> Result<()> {
        safety::check_file(&self.path, &self.metadata, &[0, store.owner()?])
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
    /// Puts the text of `halves` there, unless it is. It can be read by `readers`, and is read-only; if `sealed`, it is immutable.
    /// Not a byte of it comes from what was there.
    ///
    /// # Errors
    /// No space, or no permission: what was there is as it was.
    pub fn put_text(&self, halves: &Halves, readers: &Readers, huge: bool, sealed: bool) -> Result<PathBuf> {
        let path = self.store.text_path(&halves.key);
        let there = self.store.text(&halves.key).ok();
        let readers = there.as_ref().map_or_else(|| readers.clone(), |text| text.readers().and(readers));
        let is_right = |text: &Text| {
            let mode = text.metadata.mode() & 0o7777;
            let is_owned = [0, safety::me()].contains(&text.metadata.uid());
            is_owned && mode & !0o444 == 0 && text.readers().include(&readers) && text.is(&halves.xyz)
        };
        if there.as_ref().is_some_and(is_right) {
            safety::check_within(&path, self.store.path())?;
            self.sync_way_to(&path)?;
        } else {
            unseal(&path)?;
            self.folder_of(&path)?;
            let mut draft = Draft::begin(&path)?;
            if huge {
                reserve_aligned(draft.file(), halves);
            }
            draft.write_sparse(&halves.xyz)?;
            let mode = readers.grant(draft.file(), &path)?;
            draft.finish(mode)?;
        }
        if sealed {
            seal(&path)?;
        }
        Ok(path)
    }

    /// Makes the text `text` that of the library whose file is in the state `identity`. The link is relative: it holds wherever the store
    /// is mounted.
    ///
    /// # Errors
    /// That state leads to another text already, which is kept: one of the two is not what its name says.
    pub fn link_library(&self, identity: &Identity, text: &Path) -> Result<()> {
        let link = self.store.library_path(identity);
        let to = Path::new("../..").join(text.strip_prefix(self.store.path()).unwrap_or(text));
        match fs::read_link(&link) {
            Ok(there) if there == to => return self.sync_way_to(&link),
            Ok(there) => {
                let what = format!("leads to {}, not to the text of that very library; remove it by hand", there.display());
                return Err(Error::NotUsable { path: link, what });
            }
            Err(_) => {}
        }
        self.folder_of(&link)?;
        let temporary = super::write::temporary(&link);
        std::os::unix::fs::symlink(&to, &temporary).map_err(Error::io(&link, "linking"))?;
        fs::rename(&temporary, &link).map_err(Error::io(&link, "renaming"))?;
        let above = link.parent().unwrap_or(&link);
        files::sync_dir(above).map_err(Error::io(above, "syncing"))
    }
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
    let (file, _) = file::open_in_store(path)?;
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
    let Ok((file, _)) = file::open_in_store(path) else { return Ok(()) };
    match ioctl_getflags(&file) {
        Ok(flags) if flags.contains(IFlags::IMMUTABLE) => {
            ioctl_setflags(&file, flags - IFlags::IMMUTABLE).map_err(|e| Error::io(path, "unsealing")(e.into()))
        }
        _ => Ok(()),
    }
}
