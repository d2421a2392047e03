//! The file system that checkpoints go to.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use towa_snap::store::{Mode, Store};

/// What the kernel says of the file system that `dir` lies in.
pub fn statfs(dir: &Path) -> Result<libc::statfs> {
    let name = CString::new(dir.as_os_str().as_bytes())?;
    let mut status = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: a live name, and a struct that the kernel fills.
    let done = unsafe { libc::statfs(name.as_ptr(), status.as_mut_ptr()) };
    ensure!(done == 0, "{}: {}", dir.display(), std::io::Error::last_os_error());
    // SAFETY: numbers, zeroed and then filled.
    Ok(unsafe { status.assume_init() })
}

/// Its name.
pub fn name(dir: &Path) -> Result<String> {
    let kind = statfs(dir)?.f_type as u64;
    Ok(match kind & 0xffff_ffff {
        0x0102_1994 => "tmpfs".into(),
        0xef53 => "ext4".into(),
        0x5846_5342 => "xfs".into(),
        0x9123_683e => "btrfs".into(),
        0x794c_7630 => "overlayfs".into(),
        other => format!("{other:#x}"),
    })
}

/// Whether it clones files: a store that is made there says.
pub fn clones(dir: &Path) -> Result<bool> {
    let at = dir.join("probe");
    let mode = Store::open_or_create(&at)?.mode();
    std::fs::remove_dir_all(&at).with_context(|| format!("{}: removing", at.display()))?;
    Ok(mode == Mode::Reflink)
}

/// Bytes free in it, in MiB.
pub fn free_mb(dir: &Path) -> Result<u64> {
    let status = statfs(dir)?;
    Ok((status.f_bavail * status.f_bsize as u64) >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_system_is_described() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!name(dir.path()).unwrap().is_empty() && free_mb(dir.path()).unwrap() > 0);
        clones(dir.path()).unwrap();
        assert_eq!(dir.path().read_dir().unwrap().count(), 0, "nothing is left");
        assert_eq!(name(Path::new("/proc")).unwrap(), "0x9fa0");
    }
}
