//! The steps by which names in a directory of checkpoints change and become durable, all in one place.
//!
//! What must always hold: the files of a directory go only when every change of a name that took it away from a number is durable.
//! Tests hold every order of these steps, a kill between any two of them and a power failure after any against that.

use std::io;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use towa_media::files;

#[cfg(test)]
mod sim;

/// Gives `from` the name `to`.
pub(super) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    #[cfg(test)]
    sim::step(sim::Step::Rename(from, to))?;
    std::fs::rename(from, to)
}

/// Exchanges two names in one step.
pub(super) fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    #[cfg(test)]
    sim::step(sim::Step::Exchange(one, other))?;
    Ok(renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
}

/// Makes the names in `dir` durable.
///
/// After an error it is not known which are. Journals (ext4, XFS, btrfs) take no further change then, so that what a later sync says is true:
/// it fails, too, or the file system was mounted again, and what is seen is what the device has.
#[track_caller]
pub(super) fn sync(dir: &Path) -> io::Result<()> {
    #[cfg(test)]
    sim::step(sim::Step::Sync(dir))?;
    files::sync_dir(dir)
}

/// [`sync`], and of the names that lead to `dir`.
#[track_caller]
pub(super) fn sync_with_those_above(dir: &Path) -> io::Result<()> {
    #[cfg(test)]
    sim::step(sim::Step::Sync(dir))?;
    files::sync_dir_and_above(dir)
}

/// Removes a directory that has no checkpoint's name, and all in it.
pub(super) fn remove_all(dir: &Path) -> io::Result<()> {
    #[cfg(test)]
    sim::step(sim::Step::RemoveAll(dir))?;
    std::fs::remove_dir_all(dir)
}
