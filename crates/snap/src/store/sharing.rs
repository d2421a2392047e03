//! How files of a store come to share what they have in common, and how much they share.
//!
//! ```text
//!   clone   two files, the blocks of both the same until one is written (reflink: XFS, btrfs)
//!   link    one file with two names (hard link); only for files that are never written again
//!   copy    where neither can be done
//! ```
//!
//! What must always hold: whichever way it was, afterwards the new name holds what the old one does, and neither removing nor
//! writing (a clone, a copy) through the one can be seen through the other.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::io::Errno;
use towa_media::extents::{self, Extent};
use towa_media::files;

use super::{content, failed};
use crate::Result;
use crate::pages::PAGE;

/// Bytes that are moved at once.
pub(super) const CHUNK: usize = 1 << 20;

/// A new, empty file.
pub(super) fn create(path: &Path) -> Result<File> {
    let open = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path);
    open.map_err(|e| failed("creating", path, e))
}

/// Makes `to`, an empty file, share all blocks of `from`; false where the file system cannot.
pub(super) fn clone(from: &File, to: &File) -> io::Result<bool> {
    match rustix::fs::ioctl_ficlone(to, from) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOTTY | Errno::NOSYS | Errno::PERM | Errno::TXTBSY) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Gives the file `from`, which is never written again, the name `to` too. Where it cannot have two names, or no more of them, `to`
/// becomes a durable copy.
pub(super) fn link_or_copy(from: &Path, to: &Path) -> Result<()> {
    match std::fs::hard_link(from, to) {
        Ok(()) => Ok(()),
        Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EOPNOTSUPP | libc::EMLINK | libc::ENOSYS | libc::EXDEV)) => {
            let old = File::open(from).map_err(|e| failed("opening", from, e))?;
            let new = create(to)?;
            let cloned = clone(&old, &new).and_then(|cloned| if cloned { Ok(()) } else { content::copy(&old, &new).map(|_| ()) });
            cloned.and_then(|()| files::sync(&new)).map_err(|e| failed("copying to", to, e))
        }
        Err(e) => Err(failed("linking", to, e)),
    }
}

/// Bytes that a file takes: those it has for itself, and those it shares with another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Space {
    pub own: u64,
    pub shared: u64,
}

impl std::ops::AddAssign for Space {
    fn add_assign(&mut self, other: Space) {
        self.own += other.own;
        self.shared += other.shared;
    }
}

/// What `file` takes. Where the file system does not say which blocks are shared, those of one name count as its own.
pub(super) fn space(file: &File) -> io::Result<Space> {
    let status = file.metadata()?;
    // Blocks of the status are 512 bytes whatever the file system.
    let all = status.blocks() * 512;
    let shared = |extents: Vec<Extent>| extents.iter().filter(|extent| extent.is_shared).map(|extent| extent.len).sum();
    let shared = if status.nlink() > 1 { all } else { extents::of(file).map_or(0, shared).min(all) };
    Ok(Space { own: all - shared, shared })
}

/// Numbers of the ioctls that read and set a file's extended attributes of allocation, and what they take (linux/fs.h).
const FS_IOC_FSGETXATTR: libc::c_ulong = 0x801C_581F;
const FS_IOC_FSSETXATTR: libc::c_ulong = 0x401C_5820;
const COWEXTSIZE: u32 = 0x1_0000;

#[repr(C)]
#[derive(Default)]
struct Allocation {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    cow_extent_size: u32,
    pad: [u8; 8],
}

/// Asks the file system to take no more room for a block of a clone that is written than the block. XFS takes 128 KiB otherwise, and
/// keeps them for minutes: single pages here and there would cost 32 times what they are. What lies together is written together,
/// and laid out so anyhow.
pub(super) fn clone_by_block(file: &File) {
    let mut allocation = Allocation::default();
    // SAFETY: `allocation` is laid out as the kernel expects, and ours to fill.
    let got = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FSGETXATTR, &mut allocation) };
    allocation.flags |= COWEXTSIZE;
    allocation.cow_extent_size = PAGE as u32;
    // A wish: where the file system does not know of it, or has larger blocks, it does as it always does.
    // SAFETY: the kernel reads `allocation`, which it filled just before.
    let set = got == 0 && unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FSSETXATTR, &allocation) } == 0;
    if !set {
        log::debug!("the size of copies on write was not set: {}", io::Error::last_os_error());
    }
}

/// Zeroes and gives back the space of `pages` (by number in the file); where that is not possible the space stays taken.
pub(super) fn punch(file: &File, pages: &crate::pages::Pages) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    let (off, len) = (pages.start * PAGE, (pages.end - pages.start) * PAGE);
    match fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, off, len) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(e) => Err(e.into()),
    }
}
