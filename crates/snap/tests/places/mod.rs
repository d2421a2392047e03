//! Where the store's tests put their directories: the file system at hand, and small ones of their own in a loop device or in memory.
//!
//! What must always hold: what was mounted is unmounted when the test ends, however it ends.

#![allow(dead_code, reason = "each test uses some of it")]

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;
use towa_snap::store::Mode;

/// A directory to make stores in, on a file system that shares pages as `mode` says.
pub struct Place {
    root: TempDir,
    /// How it is mounted, but for the mount point.
    mount: Option<Vec<OsString>>,
    pub mode: Mode,
}

/// Megabytes that an XFS takes at least.
const LEAST: u64 = 320;

impl Place {
    /// Where the store is to be.
    pub fn dir(&self) -> PathBuf {
        self.mount_point().join("checkpoints")
    }

    /// The top of the file system, or a directory where there is none of its own.
    pub fn mount_point(&self) -> PathBuf {
        if self.mount.is_some() { self.root.path().join("mnt") } else { self.root.path().to_owned() }
    }

    /// In the directory for temporary files, if files cannot be cloned there.
    pub fn at_hand() -> Place {
        Place { root: tempfile::tempdir().unwrap(), mount: None, mode: Mode::HardLinks }
    }

    /// In memory, where there is a directory of it; else at hand. No power cut but a simulated one asks for more.
    pub fn in_memory() -> Place {
        let root = tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap());
        Place { root, mount: None, mode: Mode::HardLinks }
    }

    /// XFS with reflink on 320 MB in a file.
    pub fn xfs() -> Option<Place> {
        Self::xfs_of(LEAST)
    }

    /// XFS with reflink on so many megabytes in a sparse file.
    pub fn xfs_of(megabytes: u64) -> Option<Place> {
        Self::on_loop(&["mkfs.xfs", "-q", "-m", "reflink=1"], megabytes, Mode::Reflink)
    }

    /// XFS without reflink.
    pub fn xfs_without_reflink() -> Option<Place> {
        Self::on_loop(&["mkfs.xfs", "-q", "-m", "reflink=0"], LEAST, Mode::HardLinks)
    }

    /// ext4 of its own.
    pub fn ext4() -> Option<Place> {
        Self::on_loop(&["mkfs.ext4", "-q", "-F"], LEAST, Mode::HardLinks)
    }

    /// XFS with reflink in a sparse file on another one of these, which it may outgrow.
    pub fn xfs_on(other: &Place) -> Option<Place> {
        let root = tempfile::tempdir_in(other.mount_point()).unwrap();
        Self::on_loop_in(root, &["mkfs.xfs", "-q", "-K", "-m", "reflink=1"], LEAST * 2, Mode::Reflink)
    }

    fn on_loop(make: &[&str], megabytes: u64, mode: Mode) -> Option<Place> {
        Self::on_loop_in(tempfile::tempdir().unwrap(), make, megabytes, mode)
    }

    fn on_loop_in(root: TempDir, make: &[&str], megabytes: u64, mode: Mode) -> Option<Place> {
        let image = root.path().join("image");
        std::fs::File::create(&image).unwrap().set_len(megabytes << 20).unwrap();
        let made = run(Command::new(make[0]).args(&make[1..]).arg(&image));
        let mount = vec!["-o".into(), "loop".into(), image.into()];
        Self::mounted(root, made, mount, mode, &format!("{} on a loop device (needs root and that program)", make.join(" ")))
    }

    /// A file system in memory, of `megabytes`.
    pub fn tmpfs(megabytes: u64) -> Option<Place> {
        let root = tempfile::tempdir().unwrap();
        let mount = vec!["-t".into(), "tmpfs".into(), "-o".into(), format!("size={megabytes}m").into(), "towa-test".into()];
        Self::mounted(root, true, mount, Mode::HardLinks, "a tmpfs of its own (needs root)")
    }

    fn mounted(root: TempDir, made: bool, mount: Vec<OsString>, mode: Mode, name: &str) -> Option<Place> {
        let point = root.path().join("mnt");
        std::fs::create_dir(&point).unwrap();
        if made && run(Command::new("mount").args(&mount).arg(&point)) {
            return Some(Place { root, mount: Some(mount), mode });
        }
        println!("SKIP {name}: it could not be mounted");
        None
    }

    /// Cuts the power of a file system on a loop device: what the file system has not written to its device, log included, is lost. Everything fails until
    /// [`back`](Self::back).
    pub fn cut(&self) {
        assert!(run(Command::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(self.mount_point())), "xfs_io, of xfsprogs, is here");
    }

    /// Brings it back after a cut: mounted again, its log replayed.
    pub fn back(&self) {
        let mount = self.mount.as_ref().unwrap();
        assert!(run(Command::new("umount").arg(self.mount_point())));
        assert!(run(Command::new("mount").args(mount).arg(self.mount_point())));
    }

    /// One that shares by hard links, and one that clones where that can be had.
    pub fn both() -> impl Iterator<Item = Place> {
        [Some(Place::at_hand()), Place::xfs()].into_iter().flatten()
    }
}

fn run(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| {
        print!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        output.status.success()
    })
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.mount.is_some() {
            let point = self.mount_point();
            if !run(Command::new("umount").arg(&point)) {
                run(Command::new("umount").arg("-l").arg(&point));
            }
        }
    }
}
