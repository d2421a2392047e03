//! What a path and a CPU offer: which medium a directory is best used as, what survives there, and why.
//!
//! What must always hold: detection promises no more than it found out. `MAP_SYNC` is tried, not inferred from mount options;
//! what cannot be found out (whether a disk's write cache obeys flushes, whether the platform has eADR) becomes a warning or
//! `None`, never a guess. It leaves nothing behind, and in a directory that holds a pool it creates nothing at all.

mod beneath;
mod mount;

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{DaxMedium, Durability, Error, FileMedium, Guarantee, Kind, Mapping, Medium, PAGE, RamMedium, Result, persist};
use mount::Mount;

/// What a path offers.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Detected {
    /// The path looked at: the one given, or its nearest parent that exists.
    #[serde(with = "crate::paths::one")]
    pub path: PathBuf,
    /// The medium that suits it.
    pub kind: Kind,
    /// How bytes become durable on that medium.
    pub durability: Durability,
    /// What survives there.
    pub guarantee: Guarantee,
    /// Type of the file system, as the kernel names it: `ext4`, `tmpfs`.
    pub fs: String,
    /// What is mounted there: `/dev/pmem0`, `tmpfs`.
    pub device: String,
    /// Options of the mount and of its file system.
    pub mount_options: Vec<String>,
    /// Why this kind, for people.
    pub reason: String,
    /// What weakens the guarantee, or could.
    pub warnings: Vec<String>,
}

/// Finds out which medium suits `path`. A path that does not exist yet is judged by its nearest parent that does.
pub fn detect(path: &Path) -> Result<Detected> {
    let there = nearest(path)?;
    let (handle, directory) = directory_at(&there)?;
    let mount = Mount::of(&handle, &directory)?;
    let (kind, reason) = if mount.is_memory() {
        (Kind::Ram, format!("{} lives in memory: it survives the process, not the machine", mount.fs))
    } else {
        match try_map_sync(&handle, &directory) {
            Ok(()) if persist::write_back_method() != "none" => {
                (Kind::Dax, format!("{} on {} can be mapped with MAP_SYNC", mount.fs, mount.device))
            }
            Ok(()) => (Kind::File, "MAP_SYNC works, but this CPU has no known write-back instruction".to_owned()),
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                (Kind::File, format!("{} on {} refuses MAP_SYNC, so fdatasync makes it durable", mount.fs, mount.device))
            }
            Err(e) => (Kind::File, format!("MAP_SYNC could not be tried ({e}), so fdatasync makes it durable")),
        }
    };
    let volatile = if kind == Kind::Ram { None } else { beneath::volatile(&mount) };
    let guarantee = match kind {
        Kind::Ram => Guarantee::ProcessSafe,
        _ if mount.ignores_sync() || volatile.is_some() => Guarantee::ProcessSafe,
        _ => Guarantee::PowerSafe,
    };
    let warnings =
        mount.warnings(kind).into_iter().chain(volatile.map(|why| format!("a power loss can take all: {why}"))).collect();
    Ok(Detected {
        path: there,
        kind,
        durability: if kind == Kind::File { Durability::Sync } else { Durability::Line },
        guarantee,
        warnings,
        fs: mount.fs,
        device: mount.device,
        mount_options: mount.options,
        reason,
    })
}

/// Opens the directory at `path` as a medium: as `kind`, or as what [`detect`] says. `create` makes the directory (0700) first.
pub fn open_dir(path: &Path, kind: Option<Kind>, create: bool) -> Result<Arc<dyn Medium>> {
    if !create && !path.exists() {
        return Err(Error::NotFound { location: path.display().to_string() });
    }
    let detected = detect(path)?;
    Ok(match kind.unwrap_or(detected.kind) {
        Kind::Dax if detected.kind != Kind::Dax => {
            return Err(Error::Unsupported {
                location: path.display().to_string(),
                what: format!("is not DAX: {}; use the {} medium there", detected.reason, name(detected.kind)),
            });
        }
        Kind::Dax => DaxMedium::open(path, create)?,
        Kind::Ram => RamMedium::open(path, create, None)?,
        Kind::File => FileMedium::open(path, create, detected.guarantee)?,
        Kind::Sim => {
            return Err(Error::Unsupported {
                location: path.display().to_string(),
                what: "the simulator has no directory; make a SimMedium".into(),
            });
        }
    })
}

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Dax => "dax",
        Kind::File => "file",
        Kind::Ram => "ram",
        Kind::Sim => "sim",
    }
}

/// What the CPU has for durable memory.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct CpuFeatures {
    /// CLWB: writes a line back and keeps it in the cache.
    pub clwb: bool,
    /// CLFLUSHOPT: writes a line back and drops it, without waiting.
    pub clflushopt: bool,
    /// 256-bit stores past the cache.
    pub avx: bool,
    /// 512-bit vectors.
    pub avx512f: bool,
    /// Restricted transactional memory (RTM) is announced. It may still be switched off by microcode.
    pub rtm: bool,
    /// The write-back in use; see [`persist::write_back_method`].
    pub write_back: &'static str,
    /// Whether caches survive power loss too (eADR). A program cannot find out, hence always `None`: lines are written back.
    pub eadr: Option<bool>,
}

/// What this CPU has.
pub fn cpu_features() -> CpuFeatures {
    let (leaf, write_back) = (extended_features(), persist::write_back_method());
    CpuFeatures {
        clwb: leaf & CLWB != 0,
        clflushopt: leaf & CLFLUSHOPT != 0,
        avx: has_avx(),
        avx512f: leaf & AVX512F != 0,
        rtm: leaf & RTM != 0,
        write_back,
        eadr: None,
    }
}

const RTM: u32 = 1 << 11;
const AVX512F: u32 = 1 << 16;
pub(crate) const CLFLUSHOPT: u32 = 1 << 23;
pub(crate) const CLWB: u32 = 1 << 24;

/// Register EBX of CPUID leaf 7, which holds the bits above.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) fn extended_features() -> u32 {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    if __cpuid(0).eax >= 7 { __cpuid_count(7, 0).ebx } else { 0 }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn has_avx() -> bool {
    is_x86_feature_detected!("avx")
}

#[cfg(any(miri, not(target_arch = "x86_64")))]
fn extended_features() -> u32 {
    0
}

#[cfg(any(miri, not(target_arch = "x86_64")))]
fn has_avx() -> bool {
    false
}

fn nearest(path: &Path) -> Result<PathBuf> {
    let mut at = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    loop {
        match std::fs::metadata(at) {
            Ok(_) => return Ok(at.to_owned()),
            Err(e) if e.kind() == io::ErrorKind::NotFound && parent_of(at) != at => at = parent_of(at),
            Err(e) => return Err(Error::from_io(at.display().to_string(), "looking at", 0, e)),
        }
    }
}

fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        None => path,
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
    }
}

/// The directory at `path`, or the one that holds the file there, opened.
fn directory_at(path: &Path) -> Result<(File, PathBuf)> {
    let directory = if path.is_dir() { path } else { parent_of(path) };
    let failed = |e| Error::from_io(directory.display().to_string(), "opening the directory", 0, e);
    Ok((File::open(directory).map_err(failed)?, directory.to_owned()))
}

/// Files of a pool. One that is there is asked in place of a new file: its answer is the one that counts, and looking at a pool must
/// not write beside it, not even where the file system may be written.
const ASKED_FIRST: [&CStr; 3] = [c"image", c"log", c"superblock"];

/// Maps a page with MAP_SYNC: of a pool's file, to read, or of a new file. The new one has no name where the file system can do that,
/// and loses it at once where not.
fn try_map_sync(handle: &File, directory: &Path) -> io::Result<()> {
    let there = ASKED_FIRST.iter().find_map(|name| there_to_read(handle, name));
    let writable = there.is_none();
    let file = match there {
        Some(file) => file,
        None => {
            let file = nameless(handle).or_else(|_| named_and_removed(handle))?;
            file.set_len(PAGE as u64)?;
            file
        }
    };
    match Mapping::shared(&file, PAGE, true, writable, &directory.display().to_string()) {
        Ok(_) => Ok(()),
        Err(Error::Io { source, .. }) => Err(source),
        Err(Error::Unsupported { .. }) => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
        Err(other) => Err(io::Error::other(other)),
    }
}

/// The regular file `name`, opened so that not even its access time changes; the latter only its owner may ask for.
fn there_to_read(handle: &File, name: &CStr) -> Option<File> {
    let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let open = |flags| {
        // SAFETY: the name is NUL-terminated.
        let fd = unsafe { libc::openat(handle.as_raw_fd(), name.as_ptr(), flags) };
        // SAFETY: `fd` was just opened and has no other owner.
        (fd >= 0).then(|| unsafe { File::from_raw_fd(fd) })
    };
    let file = open(flags | libc::O_NOATIME).or_else(|| open(flags))?;
    file.metadata().is_ok_and(|status| status.is_file()).then_some(file)
}

fn nameless(handle: &File) -> io::Result<File> {
    #[cfg(test)]
    tests::PROBES.set(tests::PROBES.get() + 1);
    let flags = libc::O_RDWR | libc::O_TMPFILE | libc::O_CLOEXEC;
    // SAFETY: the name is NUL-terminated, and a mode is given.
    let fd = unsafe { libc::openat(handle.as_raw_fd(), c".".as_ptr(), flags, 0o600 as libc::mode_t) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just opened and has no other owner.
    Ok(unsafe { File::from_raw_fd(fd) })
}

fn named_and_removed(handle: &File) -> io::Result<File> {
    let name = std::ffi::CString::new(format!(".towa-probe-{}", std::process::id())).expect("no NUL");
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
    // SAFETY: the name is NUL-terminated, and a mode is given.
    let fd = unsafe { libc::openat(handle.as_raw_fd(), name.as_ptr(), flags, 0o600 as libc::mode_t) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just opened and has no other owner; the name is NUL-terminated.
    unsafe {
        libc::unlinkat(handle.as_raw_fd(), name.as_ptr(), 0);
        Ok(File::from_raw_fd(fd))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        /// Files created to be asked.
        pub static PROBES: Cell<u32> = const { Cell::new(0) };
    }

    #[test]
    fn nothing_is_created_beside_a_pool() {
        // Not in /tmp, which may be a tmpfs: there nothing has to be asked.
        let dir = tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
        let probes = || {
            PROBES.set(0);
            let kind = detect(dir.path()).unwrap().kind;
            (kind, PROBES.get())
        };
        let (kind, created) = probes();
        if kind == Kind::Ram {
            println!("SKIP: this directory lives in memory");
            return;
        }
        assert_eq!(created, 1);
        for name in ["superblock", "log", "image"] {
            std::fs::write(dir.path().join(name), []).unwrap();
            assert_eq!(probes(), (kind, 0), "with {name} there");
        }
    }
}
