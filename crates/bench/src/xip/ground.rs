//! The ground that programs start from: a file system on a block device, whose pages can be made cold without touching the rest of the machine.
//!
//! ```text
//!   image file ── loop device ── ext4, mounted in a mount namespace of this thread and its children
//!   cold = umount; drop the image's pages; mount          (page cache, inodes and names of these files are gone, and of no others)
//!   not permitted: a directory, and POSIX_FADV_DONTNEED on each file
//! ```
//!
//! What must hold: nobody else sees the mount, and it goes with this process, however that ends, and the loop device with it; how cold the
//! files really were is measured (mincore), not assumed.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::cleanup::Scratch;

/// Room of the image, which takes only what is written to it.
const IMAGE_BYTES: u64 = 1 << 30;
/// How long a file system may be in use that nobody uses: a child that another thread starts has this process's open files until it
/// executes, and what has just ended lets go of its files a little later.
const BUSY_FOR: Duration = Duration::from_secs(10);

/// Where programs lie.
#[derive(Debug)]
pub struct Ground {
    root: PathBuf,
    image: Option<PathBuf>,
    mounted: bool,
}

impl Ground {
    /// In `scratch`; and, if it is a mere directory, why.
    pub fn open(scratch: &Scratch) -> Result<(Ground, Option<String>)> {
        let root = scratch.fresh("ground")?;
        let image = scratch.path().join("image");
        let mut ground = Ground { root, image: Some(image.clone()), mounted: false };
        let made = own_namespace().and_then(|()| make_image(&image)).and_then(|()| ground.mount(false));
        let note = made.err().map(|why| {
            let _ = std::fs::remove_file(&image);
            ground.image = None;
            format!("no file system of its own for the programs ({why:#}): cold means POSIX_FADV_DONTNEED on their files")
        });
        Ok((ground, note))
    }

    /// Where to put files.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// How pages are made cold.
    pub fn how(&self) -> &'static str {
        if self.image.is_some() { "ext4 on a loop device, unmounted and mounted" } else { "POSIX_FADV_DONTNEED on the files" }
    }

    /// Nothing more will be written.
    pub fn settle(&mut self) -> Result<()> {
        if self.image.is_none() {
            // SAFETY: takes nothing, touches no memory.
            unsafe { libc::sync() };
            return Ok(());
        }
        self.unmount()?;
        self.mount(true)
    }

    /// None of `files` has a page in memory after this, nor has any other file here, if this is a file system of its own.
    pub fn make_cold(&mut self, files: &[PathBuf]) -> Result<()> {
        if let Some(image) = self.image.clone() {
            self.unmount()?;
            forget(&image)?;
            return self.mount(true);
        }
        files.iter().try_for_each(|file| forget(file))
    }

    fn mount(&mut self, read_only: bool) -> Result<()> {
        let image = self.image.as_ref().context("no image")?;
        let options = if read_only { "loop,noatime,ro" } else { "loop,noatime" };
        quietly(Command::new("mount").args(["-t", "ext4", "-o", options]).arg(image).arg(&self.root))?;
        self.mounted = true;
        Ok(())
    }

    fn unmount(&mut self) -> Result<()> {
        let name = CString::new(self.root.as_os_str().as_bytes())?;
        let begin = Instant::now();
        // SAFETY: a live name; the kernel refuses what is not mounted, or in use.
        while unsafe { libc::umount2(name.as_ptr(), 0) } != 0 {
            let why = std::io::Error::last_os_error();
            let passes = why.raw_os_error() == Some(libc::EBUSY) && begin.elapsed() < BUSY_FOR;
            ensure!(passes, "{}: unmounting: {why}", self.root.display());
            std::thread::sleep(Duration::from_millis(5));
        }
        self.mounted = false;
        Ok(())
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if self.mounted {
            let _ = self.unmount();
        }
    }
}

/// Mounts of this thread, and of the children and threads that it starts, are theirs alone from now on.
fn own_namespace() -> Result<()> {
    // SAFETY: takes an integer; only what this thread sees of the file system is set apart.
    let apart = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    ensure!(apart == 0, "mounting: {}", std::io::Error::last_os_error());
    let flags = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: a static name; nothing is mounted, only the sharing of mounts ends.
    let private = unsafe { libc::mount(c"none".as_ptr(), c"/".as_ptr(), std::ptr::null(), flags, std::ptr::null()) };
    ensure!(private == 0, "mounting: {}", std::io::Error::last_os_error());
    Ok(())
}

fn make_image(image: &Path) -> Result<()> {
    File::create(image)?.set_len(IMAGE_BYTES)?;
    quietly(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(image))
}

/// Runs a command that says nothing unless it fails.
pub fn quietly(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let ended = command.stdin(Stdio::null()).output().with_context(|| format!("{name}: cannot be started"))?;
    ensure!(ended.status.success(), "{name}: {}", String::from_utf8_lossy(&ended.stderr).trim());
    Ok(())
}

/// Its pages leave memory, if nobody maps them.
fn forget(path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| format!("{}: opening", path.display()))?;
    let _ = towa_media::files::sync(&file);
    advise(&file, libc::POSIX_FADV_DONTNEED).with_context(|| format!("{}: dropping its pages", path.display()))
}

/// All of it is read into memory.
pub fn read_ahead(path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| format!("{}: opening", path.display()))?;
    advise(&file, libc::POSIX_FADV_WILLNEED).with_context(|| format!("{}: reading ahead", path.display()))
}

fn advise(file: &File, advice: i32) -> Result<()> {
    // SAFETY: a live descriptor and integers; the kernel only drops or reads clean pages.
    let error = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, advice) };
    ensure!(error == 0, "{}", std::io::Error::from_raw_os_error(error));
    Ok(())
}

/// Whether the kernel maps files in `dir` directly, as on NVM.
pub fn is_dax(dir: &Path) -> bool {
    let probe = || -> Result<bool> {
        let file = tempfile::NamedTempFile::new_in(dir)?;
        let name = CString::new(file.path().as_os_str().as_bytes())?;
        // SAFETY: a live name, and a struct of numbers that the kernel fills.
        let about = unsafe {
            let mut about: libc::statx = std::mem::zeroed();
            let done = libc::statx(libc::AT_FDCWD, name.as_ptr(), 0, libc::STATX_BASIC_STATS, &raw mut about);
            ensure!(done == 0, "{}", std::io::Error::last_os_error());
            about
        };
        Ok(about.stx_attributes & libc::STATX_ATTR_DAX as u64 != 0)
    };
    probe().unwrap_or(false)
}

/// Share of the pages of `files` that are in memory.
pub fn resident(files: &[PathBuf]) -> Result<f64> {
    let (mut there, mut all) = (0, 0);
    for path in files {
        let pages = resident_pages(path).with_context(|| format!("{}: looking for its pages", path.display()))?;
        there += pages.iter().filter(|page| **page & 1 != 0).count();
        all += pages.len();
    }
    Ok(there as f64 / all.max(1) as f64)
}

fn resident_pages(path: &Path) -> Result<Vec<u8>> {
    let file = File::open(path)?;
    let len = file.metadata()?.len() as usize;
    if len == 0 {
        return Ok(Vec::new());
    }
    let mut pages = vec![0u8; len.div_ceil(4096)];
    // SAFETY: a new mapping of a file that is as long, and that nobody reads through; one byte a page is stored to a vector of as many.
    let done = unsafe {
        let at = libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
        ensure!(at != libc::MAP_FAILED, "mapping: {}", std::io::Error::last_os_error());
        let done = libc::mincore(at, len, pages.as_mut_ptr());
        libc::munmap(at, len);
        done
    };
    ensure!(done == 0, "mincore: {}", std::io::Error::last_os_error());
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cold_files_are_not_in_memory() {
        // A thread of its own: the namespace is that of the thread.
        let test = || {
            let scratch = Scratch::within(&std::env::temp_dir()).unwrap();
            let (mut ground, note) = Ground::open(&scratch).unwrap();
            assert_eq!(note.is_none(), ground.how().contains("loop"));
            let file = ground.root().join("file");
            std::fs::write(&file, vec![7u8; 1 << 20]).unwrap();
            ground.settle().unwrap();
            read_ahead(&file).unwrap();
            assert_eq!(std::fs::read(&file).unwrap().len(), 1 << 20);
            let files = [file];
            assert_eq!(resident(&files).unwrap(), 1.0);
            ground.make_cold(&files).unwrap();
            let cold = resident(&files).unwrap();
            let named = crate::snap::system::name(ground.root()).unwrap();
            assert!(cold < 0.1 || !["ext4", "xfs", "btrfs"].contains(&named.as_str()), "{cold} on {named}");
            let root = ground.root().to_owned();
            drop(ground);
            drop(scratch);
            assert!(!root.exists());
        };
        std::thread::spawn(test).join().unwrap();
    }

    #[test]
    fn what_fails_says_why() {
        let why = quietly(Command::new("sh").args(["-c", "echo broken >&2; exit 1"])).unwrap_err().to_string();
        assert!(why.contains("sh: broken"), "{why}");
        assert!(read_ahead(Path::new("/proc/nonexistent")).is_err() && resident(&["/proc/nonexistent".into()]).is_err());
    }
}
