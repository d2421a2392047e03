//! Who could change what programs execute.
//!
//! What must hold: a store is accepted only where its owner is the one who splits, or root, all the way up to `/`, and no other user
//! can write to or exchange a directory on that way (one that is sticky, like /tmp, does no harm).

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::error::{Error, Result};

const STICKY: u32 = 0o1000;

/// The directory and those it lies in belong to this user or to root, and nobody else can write there.
pub fn check_directory(path: &Path) -> Result<()> {
    let me = rustix::process::geteuid().as_raw();
    check(path, &[0, me], "this user nor root")
}

/// The directory and those it lies in are root's alone.
pub fn check_root_owned(path: &Path) -> Result<()> {
    check(path, &[0], "root")
}

fn check(path: &Path, owners: &[u32], whose: &str) -> Result<()> {
    for above in path.ancestors() {
        let about = fs::metadata(above).map_err(Error::io(above, "looking at"))?;
        let unsafe_because = |what: String| Err(Error::Unsafe { path: above.to_owned(), what });
        if !owners.contains(&about.uid()) {
            return unsafe_because(format!(
                "belongs to user {}, not to {whose}, who could exchange what programs execute",
                about.uid()
            ));
        }
        let sticky = above != path && about.mode() & STICKY != 0;
        if about.mode() & 0o022 != 0 && !sticky {
            return unsafe_because("others can write there, and so exchange what programs execute; chmod go-w".into());
        }
    }
    Ok(())
}

/// Programs may be executed from there.
pub fn check_executable(path: &Path) -> Result<()> {
    let of = rustix::fs::statvfs(path).map_err(|e| Error::io(path, "looking at its file system")(e.into()))?;
    if of.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC) {
        let what = "its file system is mounted noexec: no text can be mapped from there; mount it with exec, or take another place";
        return Err(Error::Unsupported { what: format!("{}: {what}", path.display()) });
    }
    Ok(())
}
