//! Who could change what programs execute, and who can reach it.
//!
//! What must hold: a store, and the place of a program that is replaced, is accepted only where its owner is the one who splits, or root,
//! all the way up to `/`, and no other user can write to or exchange a directory on that way (one that is sticky, like /tmp, does no harm).

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::error::{Error, Result};

const STICKY: u32 = 0o1000;

/// `path` and the directories it lies in belong to this user or to root, and nobody else can write there.
///
/// # Errors
/// Somebody else can, and so could exchange what programs, or this one, execute.
pub fn check_owned(path: &Path) -> Result<()> {
    check(path, &[0, me()], "this user nor root")
}

/// `path` and the directories it lies in are root's alone.
///
/// # Errors
/// They are not.
pub fn check_root_owned(path: &Path) -> Result<()> {
    check(path, &[0], "root")
}

/// What `path` leads to, a file with `about`, can be written by none but `owners`.
///
/// # Errors
/// Somebody else can.
pub fn check_file(path: &Path, about: &fs::Metadata, owners: &[u32]) -> Result<()> {
    let what = match (owners.contains(&about.uid()), about.mode() & 0o022) {
        (true, 0) => return Ok(()),
        (false, _) => format!("belongs to user {}, who could exchange what is executed", about.uid()),
        _ => "others can write to it, and so exchange what is executed; chmod go-w".into(),
    };
    Err(Error::Unsafe { path: path.to_owned(), what })
}

/// The effective user.
pub fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The directories between `path` and the store `store` that it lies in belong to this user or to root; no other user can write there.
///
/// # Errors
/// Somebody else can; or one of them is a link, or no directory.
pub fn check_within(path: &Path, store: &Path) -> Result<()> {
    for above in path.ancestors().skip(1).take_while(|above| *above != store && above.starts_with(store)) {
        let about = fs::symlink_metadata(above).map_err(Error::io(above, "looking at"))?;
        if !about.is_dir() {
            return Err(Error::NotUsable { path: above.to_owned(), what: "not a directory; remove it".into() });
        }
        check_file(above, &about, &[0, me()])?;
    }
    Ok(())
}

fn check(path: &Path, owners: &[u32], whose: &str) -> Result<()> {
    for above in path.ancestors() {
        let about = fs::metadata(above).map_err(Error::io(above, "looking at"))?;
        let unsafe_because = |what: String| Err(Error::Unsafe { path: above.to_owned(), what });
        if !owners.contains(&about.uid()) {
            let owner = about.uid();
            return unsafe_because(format!(
                "belongs to user {owner}, not to {whose}, who could exchange what is executed; do it as user {owner}, or in another place"
            ));
        }
        let sticky = above != path && about.mode() & STICKY != 0;
        if about.mode() & 0o022 != 0 && !sticky {
            return unsafe_because("others can write there, and so exchange what is executed; chmod go-w".into());
        }
    }
    Ok(())
}

/// Whether everybody can get to what lies in the directory `path`.
pub fn others_reach(path: &Path) -> bool {
    path.ancestors().all(|above| fs::metadata(above).is_ok_and(|about| about.mode() & 0o001 != 0))
}

/// Programs may be executed from there.
///
/// # Errors
/// Its file system is mounted `noexec`.
pub fn check_executable(path: &Path) -> Result<()> {
    let of = rustix::fs::statvfs(path).map_err(|e| Error::io(path, "looking at its file system")(e.into()))?;
    if of.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC) {
        let what = "its file system is mounted noexec: no text can be mapped from there; mount it with exec, or take another place";
        return Err(Error::Unsupported { what: format!("{}: {what}", path.display()) });
    }
    Ok(())
}
