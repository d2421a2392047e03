//! The directory behind the media that live in a file system: names, files, space, and the owner's lock.
//!
//! What must always hold: every operation goes through the directory's descriptor, so that renaming or replacing the path
//! above an open medium cannot mix two pools; nothing follows a symbolic link; files are 0600, the directory 0700 when made
//! here; the name `lock` is the owner's note alone; opening to read changes no time stamp where we may ask for that.

use std::ffi::CString;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::descriptor::Descriptor;
use crate::{Access, Allocation, Error, PAGE, Result, extents, files, owner};

pub(crate) const LOCK: &str = "lock";

/// An open directory.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    pub(crate) handle: Descriptor,
}

impl Directory {
    /// Opens the directory at `path`, making it (not its parents) first when `create` says so.
    pub fn open(path: &Path, create: bool) -> Result<Directory> {
        let location = path.display().to_string();
        if create {
            match std::fs::DirBuilder::new().mode(0o700).create(path) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => {
                    return Err(Error::from_io(location, "creating the directory", PAGE as u64, e));
                }
            }
        }
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| Error::Unsupported { location: location.clone(), what: "a path with a NUL byte names nothing".into() })?;
        // SAFETY: `name` is NUL-terminated; the descriptor returned is ours alone.
        let fd = unsafe { libc::open(name.as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC) };
        if fd < 0 {
            let source = io::Error::last_os_error();
            return Err(match source.raw_os_error() {
                Some(libc::ENOTDIR) => {
                    Error::Unsupported { location, what: "is not a directory; a pool is a directory, name one".into() }
                }
                _ => Error::from_io(location, "opening the directory", 0, source),
            });
        }
        // SAFETY: `fd` was just opened and has no other owner.
        Self::of(path.to_owned(), unsafe { File::from_raw_fd(fd) })
    }

    /// The directory open as `handle`, which was opened by `path`.
    pub fn of(path: PathBuf, handle: File) -> Result<Directory> {
        let handle = Descriptor::of(handle);
        let handle = handle.map_err(|e| Error::from_io(path.display().to_string(), "reading the status of the directory", 0, e))?;
        Ok(Directory { path, handle })
    }

    /// The descriptor's number, if it is still the directory's.
    fn number(&self) -> Result<RawFd> {
        self.handle.check().map_err(|e| Error::from_io(self.path.display().to_string(), "using the directory", 0, e))?;
        Ok(self.handle.as_raw_fd())
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Refuses a directory of another user, before anything is written there.
    pub(crate) fn check_owner(&self) -> Result<()> {
        let status = self.handle.metadata();
        let status =
            status.map_err(|e| Error::from_io(self.path.display().to_string(), "reading the status of the directory", 0, e))?;
        owner::check(|| self.path.display().to_string(), status.uid())
    }

    /// A descriptor of the directory, borrowed.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        borrow(&self.handle)
    }

    /// Where region `name` is, for messages.
    pub fn location(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }

    /// Creates file `name` of `len` zero bytes. Nothing is left behind when it fails.
    pub fn create(&self, name: &str, len: u64, allocation: Allocation) -> Result<File> {
        self.check(name)?;
        let file = self.open_at(name, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL)?;
        let location = self.location(name);
        let sized =
            file.set_len(len).map_err(|e| Error::from_io(&location, "setting the length", len, e)).and_then(
                |()| match allocation {
                    Allocation::Sparse => Ok(()),
                    Allocation::Full => reserve(&file, &location, 0, len),
                },
            );
        if let Err(e) = sized {
            let _ = self.remove(name);
            return Err(e);
        }
        Ok(file)
    }

    /// Opens file `name`; gives its length too. Anything but a regular file is refused.
    pub fn open_file(&self, name: &str, access: Access) -> Result<(File, u64)> {
        self.check(name)?;
        let file = match access {
            Access::ReadOnly => self.open_without_trace(name)?,
            // O_NONBLOCK: opening a FIFO that somebody put there must not wait for its writer.
            Access::ReadWrite => self.open_at(name, libc::O_RDWR | libc::O_NONBLOCK)?,
        };
        let location = self.location(name);
        let status = file.metadata().map_err(|e| Error::from_io(&location, "reading the status", 0, e))?;
        if !status.is_file() {
            return Err(Error::NotRegular { location });
        }
        if access == Access::ReadWrite {
            owner::check(|| location, status.uid())?;
        }
        Ok((file, status.len()))
    }

    /// Opens `name` to be read, which waits for nothing and leaves its access time alone if the file's owner asks.
    pub(crate) fn open_without_trace(&self, name: &str) -> Result<File> {
        let open = |more| self.open_at(name, libc::O_RDONLY | libc::O_NONBLOCK | more);
        open(libc::O_NOATIME).or_else(|e| match e {
            Error::Io { source, .. } if source.raw_os_error() == Some(libc::EPERM) => open(0),
            e => Err(e),
        })
    }

    /// Whether `name` is there, as whatever kind of file.
    pub fn exists(&self, name: &str) -> Result<bool> {
        Ok(self.status(name)?.is_some())
    }

    /// The status of `name`, as whatever kind of file; `None` where it is not.
    pub fn status(&self, name: &str) -> Result<Option<libc::stat>> {
        let c_name = self.check(name)?;
        // SAFETY: all-zero is a valid `stat`, a plain structure of integers.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the name is NUL-terminated and `status` is ours to fill.
        let rc = unsafe { libc::fstatat(self.number()?, c_name.as_ptr(), &mut status, libc::AT_SYMLINK_NOFOLLOW) };
        match result(rc) {
            Ok(()) => Ok(Some(status)),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(e) => Err(Error::from_io(self.location(name), "looking for", 0, e)),
        }
    }

    /// Removes `name`.
    pub fn remove(&self, name: &str) -> Result<()> {
        let c_name = self.check(name)?;
        // SAFETY: the name is NUL-terminated.
        result(unsafe { libc::unlinkat(self.number()?, c_name.as_ptr(), 0) })
            .map_err(|e| Error::from_io(self.location(name), "removing", 0, e))
    }

    /// Renames `from` to `to` atomically.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (c_from, c_to) = (self.check(from)?, self.check(to)?);
        let fd = self.number()?;
        // SAFETY: both names are NUL-terminated.
        result(unsafe { libc::renameat(fd, c_from.as_ptr(), fd, c_to.as_ptr()) })
            .map_err(|e| Error::from_io(self.location(from), "renaming", PAGE as u64, e))
    }

    /// Makes the names durable, and the directory's own, and those of all directories above it on the file system: whoever made them,
    /// this process, one that was killed or a user's `mkdir`, need not have synced them, and a pool must not vanish with its path.
    pub fn sync(&self) -> Result<()> {
        let failed = |e| Error::from_io(self.path.display().to_string(), "syncing the directory and those above it", 0, e);
        self.number()?;
        sync_directory(&self.handle).map_err(failed)?;
        let mut below = self.handle.try_clone().map_err(failed)?;
        loop {
            let above = match open_above(&below) {
                Ok(above) => above,
                // One that we may pass through and not read: all of the file system, then.
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                    // SAFETY: a call on a descriptor that we own.
                    return result(unsafe { libc::syncfs(self.handle.as_raw_fd()) }).map_err(failed);
                }
                Err(e) => return Err(failed(e)),
            };
            let (low, high) = (below.metadata().map_err(failed)?, above.metadata().map_err(failed)?);
            if low.dev() != high.dev() || low.ino() == high.ino() {
                return Ok(());
            }
            sync_directory(&above).map_err(failed)?;
            below = above;
        }
    }

    pub(crate) fn open_at(&self, name: &str, flags: libc::c_int) -> Result<File> {
        let c_name = CString::new(name).expect("names are checked");
        let flags = flags | libc::O_CLOEXEC | libc::O_NOFOLLOW;
        // SAFETY: the name is NUL-terminated; a mode is given, as O_CREAT wants.
        let fd = unsafe { libc::openat(self.number()?, c_name.as_ptr(), flags, 0o600 as libc::mode_t) };
        if fd < 0 {
            let source = io::Error::last_os_error();
            let doing = if flags & libc::O_CREAT != 0 { "creating" } else { "opening" };
            return Err(Error::from_io(self.location(name), doing, PAGE as u64, source));
        }
        // SAFETY: `fd` was just opened and has no other owner.
        Ok(unsafe { File::from_raw_fd(fd) })
    }

    fn check(&self, name: &str) -> Result<CString> {
        check_name(name).map_err(|what| Error::Unsupported { location: self.location(name), what: what.into() })?;
        Ok(CString::new(name).expect("names are checked"))
    }
}

/// Refuses names that are no plain file name, or that the medium keeps for itself.
pub(crate) fn check_name(name: &str) -> std::result::Result<(), &'static str> {
    match name {
        "" | "." | ".." => Err("is no name for a region; give it a plain file name"),
        LOCK => Err("is the name of the owner's lock; give the region another"),
        _ if name.len() > 255 => Err("is longer than the 255 bytes that a name may have"),
        _ if name.contains(['/', '\0']) => Err("names of regions hold no slash and no NUL"),
        _ => Ok(()),
    }
}

/// Provides space for `off..off + len` of `file` and keeps what is there, so that no later write fails for want of it.
///
/// On tmpfs too: a store into a hole of a full tmpfs is not an error but SIGBUS. There the machine is asked first: a memfd or
/// a large tmpfs would take more than there is, and set the kernel killing processes.
pub(crate) fn reserve(file: &File, location: &str, off: u64, len: u64) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    if lives_in_memory(file) && !memory_suffices(file, len) {
        return Err(Error::Full { location: location.to_owned(), wanted: len });
    }
    loop {
        // SAFETY: a call on a descriptor that we own.
        let rc = unsafe { libc::fallocate(file.as_raw_fd(), 0, off as libc::off_t, len as libc::off_t) };
        match result(rc) {
            Ok(()) => return Ok(()),
            Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                return reserve_by_writing(file, location, off, len);
            }
            Err(e) => return Err(Error::from_io(location, "reserving space", len, e)),
        }
    }
}

/// Whether the first `len` bytes of `file` have space, all of them: copies that leave out zeros have holes where the original had space, and so have
/// clones where that was not written yet.
pub(crate) fn is_provided(file: &File, len: u64) -> bool {
    if lives_in_memory(file) {
        // Without looking at each page: there is no space but for pages. Those behind may all have it.
        let behind =
            |status: &Metadata| files::next_data(file.as_fd(), len).map_or(0, |data| status.len() - data.min(status.len()));
        return file.metadata().is_ok_and(|status| status.blocks() * 512 >= len + behind(&status));
    }
    // SAFETY: numbers only. The position of this file is used by nobody.
    let hole = unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_HOLE) };
    hole >= 0 && hole as u64 >= len
}

/// Gives back the memory of the whole pages in `off..off + len` of a file that lives in memory.
pub(crate) fn release(file: &File, location: &str, off: u64, len: u64) -> Result<()> {
    let (from, to) = (off.next_multiple_of(PAGE as u64), (off + len) / PAGE as u64 * PAGE as u64);
    if from >= to || !lives_in_memory(file) {
        return Ok(());
    }
    let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: a call on a descriptor that we own.
    let rc = unsafe { libc::fallocate(file.as_raw_fd(), how, from as libc::off_t, (to - from) as libc::off_t) };
    result(rc).map_err(|e| Error::from_io(location, "giving memory back", to - from, e))
}

/// Gives `file` blocks of its own for what of `off..off + len` it shares with another file, of which one is a clone (reflink), so that no later
/// write there fails for want of space. Where the file system cannot do that ahead of a write, nothing.
pub(crate) fn unshare(file: &File, location: &str, off: u64, len: u64) -> Result<()> {
    let unshared = |off: u64, len: u64| {
        // SAFETY: a call on a descriptor that we own.
        let rc =
            unsafe { libc::fallocate(file.as_raw_fd(), libc::FALLOC_FL_UNSHARE_RANGE, off as libc::off_t, len as libc::off_t) };
        result(rc)
    };
    let page = PAGE as u64;
    // The first page is no hole, which this would fill. It tells whether asking for extents is of use, for that takes Btrfs long.
    match unshared(0, page) {
        Err(e) if e.raw_os_error() == Some(libc::ENOSPC) => {
            return Err(Error::from_io(location, "copying what a clone shares", page, e));
        }
        Err(_) => return Ok(()),
        Ok(()) => {}
    }
    for extent in extents::of(file).unwrap_or_default().into_iter().filter(|extent| extent.is_shared) {
        let (first, end) = (extent.logical.max(off), (extent.logical + extent.len).min(off + len));
        if first < end {
            unshared(first, end - first).map_err(|e| Error::from_io(location, "copying what a clone shares", end - first, e))?;
        }
    }
    Ok(())
}

/// Whether the machine can provide the part of `len` bytes that `file` does not have already.
fn memory_suffices(file: &File, len: u64) -> bool {
    let available = available_memory();
    // Blocks of the status are 512 bytes whatever the file system.
    len <= available || len.saturating_sub(file.metadata().map_or(0, |status| status.blocks() * 512)) <= available
}

/// Bytes that can be taken without pushing the machine out of memory: what the kernel calls available, less a sixteenth.
fn available_memory() -> u64 {
    let kib = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    });
    kib.map_or(u64::MAX, |kib| kib * 1024 / 16 * 15)
}

/// Whether what is written to `file` stays in memory.
fn lives_in_memory(file: &File) -> bool {
    // SAFETY: all-zero is a valid `statfs`, a plain structure of integers.
    let mut status: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is ours, and `status` is ours to fill.
    let rc = unsafe { libc::fstatfs(file.as_raw_fd(), &mut status) };
    const TMPFS: u32 = 0x0102_1994;
    const RAMFS: u32 = 0x8584_58f6;
    rc == 0 && matches!(status.f_type as u32, TMPFS | RAMFS)
}

/// For file systems without fallocate (some network ones): one byte of each page is read and written back.
fn reserve_by_writing(file: &File, location: &str, off: u64, len: u64) -> Result<()> {
    let mut at = off;
    while at < off + len {
        let mut byte = [0];
        file.read_at(&mut byte, at)
            .and_then(|_| file.write_at(&byte, at))
            .map_err(|e| Error::from_io(location, "reserving space", len, e))?;
        at = (at / PAGE as u64 + 1) * PAGE as u64;
    }
    Ok(())
}

/// When `file` was made, in nanoseconds since 1970 (modulo 2^64), where its file system tells. Never 0.
pub(crate) fn birth(file: &File) -> Option<u64> {
    let made = file.metadata().ok()?.created().ok()?;
    let since = made.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some((since.as_nanos() as u64).max(1))
}

/// A borrowed descriptor of `file`.
pub(crate) fn borrow(file: &File) -> Option<BorrowedFd<'_>> {
    Some(std::os::fd::AsFd::as_fd(file))
}

/// The system's answer as a result.
pub(crate) fn result(rc: libc::c_int) -> io::Result<()> {
    if rc == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The directory above the one open as `directory`, whatever path it was opened by.
fn open_above(directory: &File) -> io::Result<File> {
    // SAFETY: the name is NUL-terminated.
    let fd = unsafe { libc::openat(directory.as_raw_fd(), c"..".as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just opened and has no other owner.
    Ok(unsafe { File::from_raw_fd(fd) })
}

fn sync_directory(directory: &File) -> io::Result<()> {
    #[cfg(test)]
    tests::SYNCED.with_borrow_mut(|synced| synced.push(directory.metadata().map_or(0, |status| status.ino())));
    directory.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    thread_local! {
        /// Inodes of the directories that this thread synced.
        pub static SYNCED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    }

    /// A user's mkdir, or an attempt that was killed right after its own, leaves a directory whose name is not durable.
    #[test]
    fn directories_that_were_there_already_are_synced_with_the_names() {
        let root = tempfile::tempdir().unwrap();
        let pool = root.path().join("a/b/pool");
        std::fs::create_dir_all(&pool).unwrap();
        let inode = |path: &Path| std::fs::metadata(path).unwrap().ino();
        for create in [true, false] {
            let directory = Directory::open(&pool, create).unwrap();
            SYNCED.with_borrow_mut(Vec::clear);
            directory.sync().unwrap();
            let synced = SYNCED.with_borrow(Vec::clone);
            for path in ["a/b/pool", "a/b", "a", "."] {
                assert!(synced.contains(&inode(&root.path().join(path))), "{path} was not synced");
            }
        }
    }

    /// The space behind the first bytes is no space of theirs.
    #[test]
    fn a_hole_is_found_whatever_lies_behind() {
        for place in ["/dev/shm", "."] {
            let Ok(file) = tempfile::tempfile_in(place) else { continue };
            file.set_len(72 << 10).unwrap();
            file.write_all_at(&[1; 56 << 10], 8 << 10).unwrap();
            file.write_all_at(&[1; 8 << 10], 64 << 10).unwrap();
            assert!(!is_provided(&file, 64 << 10), "{place}");
            file.write_all_at(&[1; 8 << 10], 0).unwrap();
            file.sync_all().unwrap();
            assert!(is_provided(&file, 64 << 10), "{place}");
        }
    }
}
