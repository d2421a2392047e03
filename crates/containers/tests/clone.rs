//! Copies that share their blocks with the pool (reflink): a store into such a block takes a new one, which a full disk does not have. So an
//! opening takes them all, or is refused; what is open never meets the end of the disk there.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use towa_containers::{HashMap, HashMapOptions};
use towa_epoch::{Options, Pool};
use towa_media::{Kind, extents};

/// XFS, which clones files, on a loop device; unmounted at the end.
struct Disk(tempfile::TempDir);

impl Disk {
    fn new() -> Option<Disk> {
        let dir = tempfile::tempdir().unwrap();
        let (image, point) = (dir.path().join("image"), dir.path().join("mnt"));
        File::create(&image).unwrap().set_len(400 << 20).unwrap();
        std::fs::create_dir(&point).unwrap();
        let made = run(Command::new("mkfs.xfs").args(["-q", "-m", "reflink=1"]).arg(&image));
        if made && run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&point)) {
            return Some(Disk(dir));
        }
        println!("SKIP: no XFS on a loop device here (needs root and mkfs.xfs)");
        None
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join("mnt").join(name)
    }

    /// Takes all the space that is left, but for some pages.
    fn fill(&self) -> PathBuf {
        let path = self.at("full");
        let file = File::options().create(true).append(true).open(&path).unwrap();
        let mut len: i64 = 256 << 20;
        while len >= 4096 {
            let off = file.metadata().unwrap().len() as i64;
            // SAFETY: a call on a descriptor that we own.
            if unsafe { libc::fallocate(file.as_raw_fd(), 0, off, len) } != 0 {
                len /= 2;
            }
        }
        path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        run(Command::new("umount").arg(self.0.path().join("mnt")));
    }
}

fn run(command: &mut Command) -> bool {
    command.output().is_ok_and(|out| out.status.success())
}

fn options(medium: Kind) -> Options {
    Options { heap_len: 24 << 20, log_len: Some(16 << 20), medium: Some(medium), ..Options::default() }
}

fn shared(path: &Path) -> u64 {
    let all = extents::of(&File::open(path).unwrap()).unwrap();
    all.iter().filter(|extent| extent.is_shared).map(|extent| extent.len).sum()
}

#[test]
fn a_clone_is_opened_with_blocks_of_its_own() {
    let Some(disk) = Disk::new() else { return };
    for (medium, name) in [(Kind::Ram, "ram"), (Kind::File, "file")] {
        let (origin, clone) = (disk.at(name), disk.at(&format!("{name} clone")));
        let fill = |pool: &Pool, value: u8| {
            let map = HashMap::open(pool, "map", &HashMapOptions::default()).unwrap();
            let mut session = map.session().unwrap();
            for i in 0..3000u32 {
                session.insert(&i.to_le_bytes(), &[value; 1000]).unwrap();
            }
        };
        let pool = Pool::open_or_create(&origin, &options(medium)).unwrap();
        fill(&pool, 1);
        pool.close().unwrap();
        assert!(run(Command::new("cp").args(["-r", "--reflink=always"]).arg(&origin).arg(&clone)));
        let image = clone.join("image");
        assert!(shared(&image) > 3 << 20, "nothing is shared");
        let rest = disk.fill();
        let refused = Pool::open(&clone, &options(medium)).map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains("no space left"), "{refused}");
        std::fs::remove_file(rest).unwrap();
        let pool = Pool::open(&clone, &options(medium)).unwrap();
        let left = ["superblock", "image", "log"].map(|name| shared(&clone.join(name)));
        assert_eq!(left, [0; 3]);
        let rest = disk.fill();
        fill(&pool, 2);
        pool.close().unwrap();
        std::fs::remove_file(rest).unwrap();
        drop(Pool::open(&origin, &options(medium)).unwrap());
    }
}
