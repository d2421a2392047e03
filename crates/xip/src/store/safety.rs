//! Who could change what programs execute, and who can reach it.
//!
//! What must hold: a store, and the place of a program that is replaced, is accepted only where its owner is the one who splits, or root,
//! all the way from `/`, and no other user can write to or exchange a directory or a link on that way (in a directory that is sticky, like
//! /tmp, only its owner can exchange an entry). What a file says of its owner counts only where no user can have made it up.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, StatVfsMountFlags, fstat, fstatfs, fstatvfs, openat, readlinkat};

use crate::error::{Error, Result};

const STICKY: u32 = 0o1000;
/// Links on a way, as many as the kernel follows.
const LINKS_MAX: usize = 40;

/// Kinds of file systems, by the number that `statfs` gives.
const FUSE: u64 = 0x6573_5546;
const TMPFS: u64 = 0x0102_1994;
/// Those that keep no time of the last change (ctime), or let users set it.
const WITHOUT_CTIME: [(u64, &str); 9] = [
    (0x7371_7368, "squashfs"),
    (0xe0f5_e1e2, "erofs"),
    (0x9660, "isofs"),
    (0x7275, "romfs"),
    (0x28cd_3d45, "cramfs"),
    (0x4d44, "vfat"),
    (0x2011_bab0, "exfat"),
    (0xff53_4d42, "cifs"),
    (0xfe53_4d42, "smb"),
];

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

/// What `file`, that of `path`, says of its owner and its changes was not made up by a user: it does not lie on a medium that users mount.
///
/// # Errors
/// It may have been.
pub fn check_claims(path: &Path, file: &File, about: &fs::Metadata) -> Result<()> {
    let io = |e: rustix::io::Errno| Error::io(path, "looking at its file system")(e.into());
    let kind = fstatfs(file).map_err(io)?.f_type as u64 & 0xffff_ffff;
    let is_nosuid = fstatvfs(file).map_err(io)?.f_flag.contains(StatVfsMountFlags::NOSUID);
    // Users can mount an image of their own making, but not set-user-id (`nosuid`). A tmpfs has no image.
    let is_mine = me() != 0 && about.uid() == me();
    let what = match kind {
        FUSE => "it lies on FUSE, where a user's program says who owns a file and when it changed",
        TMPFS => return Ok(()),
        _ if is_nosuid && !is_mine => {
            "it lies on a file system that is mounted nosuid, which a user may have made and mounted; mount it with suid"
        }
        _ => return Ok(()),
    };
    Err(Error::Unsafe { path: path.to_owned(), what: what.into() })
}

/// The state of `file`, that of `path`, tells it from every other file, and from itself with other bytes.
///
/// # Errors
/// Its file system does not keep what is needed for that.
pub fn check_has_state(path: &Path, file: &File, about: &fs::Metadata) -> Result<()> {
    check_claims(path, file, about)?;
    let of = fstatfs(file).map_err(|e| Error::io(path, "looking at its file system")(e.into()))?;
    let kind = of.f_type as u64 & 0xffff_ffff;
    let Some((_, name)) = WITHOUT_CTIME.into_iter().find(|(number, _)| *number == kind) else { return Ok(()) };
    let what =
        format!("it lies on {name}, which does not keep when a file was last changed: another library could be taken for it");
    Err(Error::Unsafe { path: path.to_owned(), what })
}

fn check(path: &Path, owners: &[u32], whose: &str) -> Result<()> {
    let path = std::path::absolute(path).map_err(Error::io(path, "finding"))?;
    let mut walk = Walk::begin(owners, whose)?;
    let mut left: VecDeque<OsString> = names(&path).collect();
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        if name == ".." {
            walk.go_up();
        } else if let Some(target) = walk.go_to(&name)? {
            links += 1;
            if links > LINKS_MAX {
                return Err(Error::io(&path, "looking at")(rustix::io::Errno::LOOP.into()));
            }
            if target.is_absolute() {
                walk.steps.truncate(1);
            }
            names(&target).rev().for_each(|name| left.push_front(name));
        }
    }
    walk.check_end()
}

fn names(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    let is_step = |component: &Component<'_>| matches!(component, Component::Normal(_) | Component::ParentDir);
    path.components().filter(is_step).map(|component| component.as_os_str().to_owned())
}

/// A way from `/`, each directory of which is held open and was looked at: what is found in it is found in that very one.
struct Walk<'a> {
    owners: &'a [u32],
    whose: &'a str,
    /// The directories, `/` first, with their paths without links.
    steps: Vec<(OwnedFd, PathBuf)>,
}

impl<'a> Walk<'a> {
    fn begin(owners: &'a [u32], whose: &'a str) -> Result<Walk<'a>> {
        let mut walk = Walk { owners, whose, steps: Vec::new() };
        walk.go_to(OsStr::new("/"))?;
        Ok(walk)
    }

    fn go_up(&mut self) {
        if self.steps.len() > 1 {
            self.steps.pop();
        }
    }

    /// Goes to what has this `name` where it is; or says where a link leads.
    fn go_to(&mut self, name: &OsStr) -> Result<Option<PathBuf>> {
        let path = self.steps.last().map_or(PathBuf::from("/"), |(_, above)| above.join(name));
        let io = |e: rustix::io::Errno| Error::io(&path, "looking at")(e.into());
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = match self.steps.last() {
            Some((above, _)) => openat(above, name, flags, Mode::empty()),
            None => openat(CWD, name, flags, Mode::empty()),
        };
        let found = found.map_err(io)?;
        let about = fstat(&found).map_err(io)?;
        let is_link = FileType::from_raw_mode(about.st_mode) == FileType::Symlink;
        // Others write to a sticky directory, and exchange nothing in it. Nobody writes to a link, whose permissions say nothing.
        self.check_step(&path, &about, is_link || about.st_mode & STICKY != 0)?;
        if is_link {
            let target = readlinkat(&found, c"", Vec::new()).map_err(io)?;
            return Ok(Some(PathBuf::from(OsString::from_vec(target.into_bytes()))));
        }
        self.steps.push((found, path));
        Ok(None)
    }

    /// To the end of the way nobody else writes, sticky or not.
    fn check_end(&self) -> Result<()> {
        let Some((end, path)) = self.steps.last() else { return Ok(()) };
        let about = fstat(end).map_err(|e| Error::io(path, "looking at")(e.into()))?;
        self.check_step(path, &about, false)
    }

    fn check_step(&self, path: &Path, about: &Stat, may_be_written: bool) -> Result<()> {
        let unsafe_because = |what: String| Err(Error::Unsafe { path: path.to_owned(), what });
        if !self.owners.contains(&about.st_uid) {
            let (owner, whose) = (about.st_uid, self.whose);
            // No other user can do it where root alone may be.
            let way_out = match self.owners {
                [0] => "what runs with more rights than its user's is split as root, in a place that is root's alone".into(),
                _ => format!("do it as user {owner}, or in another place"),
            };
            return unsafe_because(format!(
                "belongs to user {owner}, not to {whose}, who could exchange what is executed; {way_out}"
            ));
        }
        if !may_be_written && about.st_mode & 0o022 != 0 {
            return unsafe_because("others can write there, and so exchange what is executed; chmod go-w".into());
        }
        Ok(())
    }
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};

    use super::*;

    #[test]
    fn links_are_followed_and_must_be_ours() {
        let dir = tempfile::tempdir().unwrap();
        let place = fs::canonicalize(dir.path()).unwrap();
        let folder = place.join("folder");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(folder.join("file"), "").unwrap();
        fs::set_permissions(folder.join("file"), fs::Permissions::from_mode(0o644)).unwrap();
        let [relative, absolute, looped, up] = ["relative", "absolute", "looped", "folder/up"].map(|name| place.join(name));
        symlink("folder/../folder", &relative).unwrap();
        symlink(&folder, &absolute).unwrap();
        symlink("looped", &looped).unwrap();
        for link in [&relative, &absolute] {
            check_owned(link).unwrap();
            check_owned(&link.join("file")).unwrap();
        }
        assert!(matches!(check_owned(&looped), Err(Error::Io { .. })));
        // A sticky directory on the way does no harm; as the end of the way, by whatever way, it is one to which others write.
        fs::set_permissions(&place, fs::Permissions::from_mode(0o1777)).unwrap();
        check_owned(&folder).unwrap();
        symlink("..", &up).unwrap();
        for end in [&place, &up] {
            assert!(matches!(check_owned(end), Err(Error::Unsafe { .. })), "{}", end.display());
        }
        if me() != 0 {
            return eprintln!("SKIP in part: giving a link to another user takes root");
        }
        for link in [&relative, &absolute] {
            lchown(link, Some(65534), None).unwrap();
            for way in [link.clone(), link.join("file")] {
                assert!(matches!(check_owned(&way), Err(Error::Unsafe { .. })), "{}", way.display());
            }
        }
        let told = |found: Result<()>| found.unwrap_err().to_string();
        assert!(told(check_owned(&relative)).contains("do it as user 65534"));
        assert!(told(check_root_owned(&relative)).contains("is split as root"), "as that user it would be refused again");
    }

    /// Of a file system that is mounted nosuid, and is no tmpfs: that of processes, on most machines.
    #[test]
    fn an_owner_on_a_medium_of_users_does_not_count() {
        let path = Path::new("/proc/version");
        let (Ok(file), Ok(about)) = (File::open(path), fs::metadata(path)) else { return eprintln!("SKIP: no {}", path.display()) };
        if !fstatvfs(&file).unwrap().f_flag.contains(StatVfsMountFlags::NOSUID) {
            return eprintln!("SKIP: /proc is not mounted nosuid");
        }
        assert!(matches!(check_has_state(path, &file, &about), Err(Error::Unsafe { .. })));
        let own = tempfile::tempfile_in("/dev/shm").unwrap_or_else(|_| tempfile::tempfile().unwrap());
        check_has_state(path, &own, &own.metadata().unwrap()).unwrap();
    }
}
