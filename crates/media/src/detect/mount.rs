//! The mount behind a directory: its file system, options and device, and what these do to durability.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::{Error, Kind, Result};

/// One line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub fs: String,
    pub device: String,
    pub options: Vec<String>,
    /// `major:minor`.
    number: String,
}

impl Mount {
    /// The mount that `handle`, an open directory, lies on.
    pub fn of(handle: &File, directory: &Path) -> Result<Mount> {
        let failed = |e| Error::from_io(directory.display().to_string(), "finding the mount", 0, e);
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", handle.as_raw_fd())).map_err(failed)?;
        let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:")).map(str::trim).unwrap_or("");
        let table = std::fs::read_to_string("/proc/self/mountinfo").map_err(failed)?;
        if let Some(mount) = find(&table, id) {
            return Ok(mount);
        }
        // A mount of another namespace is not in our table: the file system's magic number still tells what it is.
        Ok(Mount { fs: by_magic(handle).map_err(failed)?, device: "unknown".into(), options: vec![], number: String::new() })
    }

    /// Whether it is memory.
    pub fn is_memory(&self) -> bool {
        matches!(self.fs.as_str(), "tmpfs" | "ramfs" | "hugetlbfs" | "devtmpfs")
    }

    /// The value of option `name`.
    pub fn option(&self, name: &str) -> Option<String> {
        let value = self.options.iter().find_map(|option| option.strip_prefix(name)?.strip_prefix('='))?;
        Some(value.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\"))
    }

    /// `major:minor` of the block device it is on; `None` where it is on none. (btrfs gives its mounts a number of their own.)
    pub fn device_number(&self) -> Option<String> {
        let named = super::beneath::block_device(&self.device);
        named.or_else(|| (!self.number.is_empty() && !self.number.starts_with("0:")).then(|| self.number.clone()))
    }

    /// Whether the mount is told to ignore syncs, so that nothing survives a power loss for sure.
    pub fn ignores_sync(&self) -> bool {
        self.is_memory()
            || self.options.iter().any(|o| matches!(o.as_str(), "nobarrier" | "barrier=0" | "volatile" | "fsync=volatile"))
    }

    /// What weakens the guarantee when this mount is used as `kind`.
    pub fn warnings(&self, kind: Kind) -> Vec<String> {
        let mut warnings = Vec::new();
        let mut warn = |text: String| warnings.push(text);
        let fs = self.fs.as_str();
        match fs {
            "overlay" => warn("overlayfs: a container's layer is usually discarded with it; use a volume".into()),
            "nfs" | "nfs4" | "cifs" | "smb3" | "ceph" | "9p" | "virtiofs" | "afs" => {
                warn(format!("{fs}: what fdatasync is worth, and who else may open the pool, is up to the server"));
            }
            _ if fs.starts_with("fuse") => warn(format!("{fs}: what fdatasync is worth is up to the program behind it")),
            "btrfs" | "zfs" | "bcachefs" => {
                warn(format!("{fs} copies on write: overwriting can run out of space in spite of reservations"));
            }
            "hugetlbfs" => warn("hugetlbfs: lengths must be multiples of its page size, which our pools' are not".into()),
            _ => {}
        }
        if kind != Kind::Ram && self.ignores_sync() {
            warn("mounted so that syncs are ignored (nobarrier or volatile): a power loss can lose what was synced".into());
        }
        match kind {
            Kind::Dax => self.dax_warnings(&mut warn),
            Kind::File => self.cache_warnings(&mut warn),
            Kind::Ram | Kind::Sim => {}
        }
        warnings
    }

    fn dax_warnings(&self, warn: &mut impl FnMut(String)) {
        if !self.device.starts_with("/dev/pmem") && !self.device.starts_with("/dev/dax") {
            warn(format!("MAP_SYNC works on {}, which is no pmem device: make sure that its memory survives", self.device));
        }
        let command_line = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
        if command_line.split_whitespace().any(|word| word.starts_with("memmap=") && word.contains('!')) {
            warn("the kernel was started with memmap=...!...: this pmem is ordinary memory and loses all without power".into());
        }
    }

    fn cache_warnings(&self, warn: &mut impl FnMut(String)) {
        if !self.device.starts_with("/dev/") {
            return;
        }
        let disk = format!("/sys/dev/block/{}", self.number);
        let read = |file: &str| {
            std::fs::read_to_string(format!("{disk}/queue/{file}"))
                .or_else(|_| std::fs::read_to_string(format!("{disk}/../queue/{file}")))
                .map(|text| text.trim().to_owned())
        };
        match read("write_cache").as_deref() {
            Ok("write through") if self.device.starts_with("/dev/vd") => {
                warn(format!("{}: a virtual disk; what fdatasync is worth depends on the host's cache mode", self.device));
            }
            Ok("write through") => {}
            Ok(_) => warn(format!("{}: has a volatile write cache, which must obey flushes", self.device)),
            Err(_) => warn(format!("{}: whether it has a volatile write cache is unknown", self.device)),
        }
    }
}

/// The mount with `id` in the text of a mountinfo file:
/// `36 35 98:0 /root /mount/point rw,noatime shared:1 - ext4 /dev/sda1 rw,errors=continue`.
fn find(table: &str, id: &str) -> Option<Mount> {
    table.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let left: Vec<&str> = left.split(' ').collect();
        let mut right = right.split(' ');
        if left.first() != Some(&id) {
            return None;
        }
        let (fs, device) = (right.next()?, right.next()?);
        let mut options: Vec<String> = left.get(5)?.split(',').map(str::to_owned).collect();
        for option in right.next().unwrap_or("").split(',') {
            if !option.is_empty() && !options.iter().any(|known| known == option) {
                options.push(option.to_owned());
            }
        }
        let number = left.get(2)?.to_string();
        Some(Mount { fs: fs.into(), device: device.replace("\\040", " "), options, number })
    })
}

fn by_magic(handle: &File) -> std::io::Result<String> {
    // SAFETY: all-zero is a valid `statfs`, a plain structure of integers.
    let mut status: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is ours, and `status` is ours to fill.
    crate::directory::result(unsafe { libc::fstatfs(handle.as_raw_fd(), &mut status) })?;
    let name = match status.f_type as u64 & 0xffff_ffff {
        0xef53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683e => "btrfs",
        0x2fc1_2fc1 => "zfs",
        0xf2f5_2010 => "f2fs",
        0x0102_1994 => "tmpfs",
        0x8584_58f6 => "ramfs",
        0x9584_58f6 => "hugetlbfs",
        0x794c_7630 => "overlay",
        0x6969 => "nfs",
        0xff53_4d42 | 0xfe53_4d42 => "cifs",
        0x0102_1997 => "9p",
        0x6573_5546 => "fuse",
        other => return Ok(format!("{other:#x}")),
    };
    Ok(name.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,errors=remount-ro
31 22 0:26 / /dev/shm rw,nosuid,nodev shared:4 - tmpfs tmpfs rw,size=1024k
40 22 259:0 /data /mnt/a\\040b rw - ext4 /dev/pmem0 rw,dax=always,nobarrier
41 22 0:50 / /merged rw - overlay overlay rw,lowerdir=/l,volatile
";

    #[test]
    fn mountinfo_is_parsed() {
        let mount = find(TABLE, "22").unwrap();
        assert_eq!((mount.fs.as_str(), mount.device.as_str(), mount.number.as_str()), ("ext4", "/dev/vda", "254:0"));
        assert_eq!(mount.options, ["rw", "relatime", "errors=remount-ro"]);
        assert!(!mount.ignores_sync());
        assert!(find(TABLE, "2").is_none());
        assert!(find("", "22").is_none());
    }

    #[test]
    fn what_weakens_the_guarantee_is_said() {
        let has = |id: &str, kind, word: &str| find(TABLE, id).unwrap().warnings(kind).iter().any(|w| w.contains(word));
        assert!(has("40", Kind::Dax, "nobarrier"));
        assert!(!has("40", Kind::Dax, "no pmem device"));
        assert!(has("22", Kind::Dax, "no pmem device"));
        assert!(has("41", Kind::File, "overlayfs"));
        assert!(has("41", Kind::File, "ignored"));
        assert!(find(TABLE, "41").unwrap().ignores_sync());
        assert!(has("31", Kind::File, "ignored"));
        assert!(find(TABLE, "31").unwrap().warnings(Kind::Ram).is_empty());
    }
}
