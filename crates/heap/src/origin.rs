//! Whether the files of a pool are the ones that its owner had open, or copies.
//!
//! A copy of files that a program writes holds each of them, and each part of them, as of another moment. No checksum
//! can tell that from what a crash leaves: of a pool of transactions, one lane may be copied before a record that a
//! record in the next lane depends on. So the superblock records, while the pool is open, when its files were made. A
//! file that is copied is made anew; one that is moved within its file system, or comes back with a snapshot of the
//! whole file system or machine, is not. After a clean close there is nothing to tell: stamps (`stamp.rs`) show
//! whether the three files are of that close.
//!
//! What must always hold: a pool that was not closed is opened only from the files that its owner had, unless
//! somebody says that the copy was made while nothing ran ([`accept_copy`]). Where the file system does not tell when
//! a file was made, nothing is known, and the pool is opened.

use towa_media::{Access, Medium, Region};

use crate::superblock::{self, Superblock};
use crate::{Error, Result, names};

/// When the three files were made; 0 where that is not known.
pub(crate) fn births(superblock: &dyn Region, image: &dyn Region, log: &dyn Region) -> [u64; 3] {
    [superblock, image, log].map(|region| region.birth().unwrap_or(0))
}

/// Whether the files are copies of those of a pool that was open.
pub(crate) fn is_copy_of_open(sb: &Superblock, births: [u64; 3]) -> bool {
    let differ = |(then, now): (u64, u64)| then != 0 && now != 0 && then != now;
    sb.clean == 0 && sb.births.into_iter().zip(births).any(differ)
}

/// Refuses copies of a pool that was open.
pub(crate) fn check(medium: &dyn Medium, sb: &Superblock, births: [u64; 3]) -> Result<()> {
    if is_copy_of_open(sb, births) { Err(Error::CopiedWhileOpen { pool: medium.location() }) } else { Ok(()) }
}

/// Takes the files on `medium`, copied after a crash while nothing wrote them, for the pool's own: from here on the
/// pool opens there. Of a pool that was copied while it was in use, this makes a pool of different moments; opening
/// notices that in part only.
///
/// One update of the superblock: before its fence the files are refused as before, after it they are accepted.
pub fn accept_copy(medium: &dyn Medium) -> Result<()> {
    let _lock = crate::open::lock(medium, false)?;
    superblock::find_superblock(medium, None)?;
    let region = superblock::open_file(medium, names::SUPERBLOCK, Access::ReadWrite)?;
    // An earlier call's sync may have failed: what that left in the cache is not accepted yet.
    region.evict();
    let mut sb = superblock::find_superblock(medium, None)?;
    let (image, log) = superblock::open_files(medium, &sb, Access::ReadOnly)?;
    let births = births(&*region, &*image, &*log);
    if !is_copy_of_open(&sb, births) {
        return Ok(());
    }
    // What was copied just now is in the kernel's cache: the update overwrites the older slot, so the newer one must
    // be durable.
    region.write_back(0, superblock::LEN);
    region.fence()?;
    sb.births = births;
    superblock::update(&*region, &mut sb)
}
