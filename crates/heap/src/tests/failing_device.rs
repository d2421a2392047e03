//! A real ext4 on a device that fails for a while: an epoch of which the sync failed, and what is committed after the
//! next opening.
//!
//! The device is a file behind a loop device, whose length is limited: every write to the pool's log fails. Needs root.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Command;

use towa_media::extents;

use super::*;
use crate::names;

/// The file system, unmounted when dropped.
struct Device {
    root: tempfile::TempDir,
    device: PathBuf,
}

fn run(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").args(args).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

impl Device {
    /// Journal and all else of the file system's own lie before the blocks of files.
    fn new() -> Option<Device> {
        const PACKED: &str = "packed_meta_blocks=1,lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        let root = tempfile::tempdir().unwrap();
        let (file, mount) = (root.path().join("device"), root.path().join("mnt"));
        File::create(&file).unwrap().set_len(256 << 20).unwrap();
        fs::create_dir(&mount).unwrap();
        let (file, mount) = (file.to_str().unwrap(), mount.to_str().unwrap());
        run("mkfs.ext4", &["-q", "-F", "-b", "4096", "-E", PACKED, "-J", "size=8", "-N", "1024", file])?;
        let device = Device { device: run("losetup", &["--show", "-f", file])?.into(), root };
        run("mount", &["-o", "nodiscard", device.device.to_str().unwrap(), mount])?;
        // Files made later have their blocks behind this one.
        run("fallocate", &["-l", "128M", &format!("{mount}/spacer")])?;
        Some(device)
    }

    fn mount_point(&self) -> PathBuf {
        self.root.path().join("mnt")
    }

    /// From now on the device refuses what is written at `bytes` and behind; 0: nothing.
    fn limit(&self, bytes: u64) {
        const GET_STATUS: libc::c_ulong = 0x4C05;
        const SET_STATUS: libc::c_ulong = 0x4C04;
        let device = File::options().read(true).write(true).open(&self.device).unwrap();
        let mut status = [0u64; 232 / 8];
        // SAFETY: the kernel reads and writes a `struct loop_info64`, of 232 bytes; the fifth word is its limit.
        unsafe {
            assert_eq!(libc::ioctl(device.as_raw_fd(), GET_STATUS as _, status.as_mut_ptr()), 0);
            status[4] = bytes;
            assert_eq!(libc::ioctl(device.as_raw_fd(), SET_STATUS as _, status.as_ptr()), 0);
        }
    }

    /// Mounts it anew: what is read then is what the device has.
    fn mount_anew(&self) {
        let point = self.mount_point();
        run("umount", &[point.to_str().unwrap()]).unwrap();
        run("mount", &["-o", "nodiscard", self.device.to_str().unwrap(), point.to_str().unwrap()]).unwrap();
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let point = self.mount_point();
        let point = point.to_str().unwrap();
        if run("umount", &[point]).is_none() {
            run("umount", &["-l", point]);
        }
        run("losetup", &["-d", self.device.to_str().unwrap()]);
    }
}

/// Lines of an epoch that is longer than what is written again at a time.
fn many(byte: u8) -> Vec<(u64, u8)> {
    (0..45_000).map(|line| (DATA + line, byte)).collect()
}

#[test]
fn what_is_committed_after_a_failed_sync_is_on_the_device() {
    let Some(device) = Device::new() else {
        return println!("SKIP: no ext4 on a loop device (needs root, e2fsprogs and loop devices)");
    };
    let pool = device.mount_point().join("pool");
    let medium = |create| towa_media::FileMedium::open(&pool, create, towa_media::Guarantee::PowerSafe).unwrap();
    let shape = CreateOptions { heap_len: 16 << 20, log: LogShape::Ring { len: Some(16 << 20) }, ..options() };
    let reopen = || Heap::open(medium(false), &OpenOptions { door: Door::Epoch, eager: true, prefault: false });
    let heap = Heap::create(medium(true), &shape).unwrap();
    let one = commit(&heap, heap.recovered(), &[(DATA, 1)]);
    run("sync", &["-f", pool.to_str().unwrap()]).unwrap();

    let log = extents::of(&File::open(pool.join(names::LOG)).unwrap()).unwrap();
    device.limit(log.iter().map(|extent| extent.physical).min().unwrap());
    let writer = heap.log().begin(2, one.checksum);
    let mut frame = FrameBuilder::new();
    for (line, byte) in many(2) {
        if frame.room() == 0 {
            writer.frame(&mut frame).unwrap();
        }
        frame.run(line, 1).fill(byte);
    }
    writer.frame(&mut frame).unwrap();
    assert!(writer.commit(heap.allocator().frontier()).is_err(), "the device failed");
    drop(heap);
    device.limit(0);

    let heap = reopen().unwrap();
    assert_eq!(heap.recovered(), after(&one), "an epoch is there that no sync made durable");
    let told = commit(&heap, after(&one), &many(3));
    drop(heap);
    device.mount_anew();
    let heap = reopen().unwrap();
    assert_eq!(heap.recovered(), after(&told));
    assert!(many(3).into_iter().all(|(line, byte)| line_of(&heap, line) == [byte; LINE]));
}
