//! Names of the process that is made again: they lead where they lead for that process, and nowhere else.
//!
//! Root restarts programs of other users. Between checkpoint and restart such a user can put a link to a file of root's in the place of
//! its own. So all names are looked up, made and removed with the user and the groups that the process had.
//!
//! A process may have opened a file with more rights than it has (a server that opened its log as root and became another user). Such a
//! file is opened with the restarter's rights, if its name cannot have been exchanged: root alone can change each directory on the way,
//! and no part of the name is a link.
//!
//! What must always hold: outside of [`Names::as_process`] no name of a process of another user is followed, made or removed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::error::{Error, Result};
use crate::state::process::{Process, Who};

/// With whose rights names are followed.
pub struct Names {
    /// The process's, if they are others than this thread's.
    who: Option<Who>,
}

impl Names {
    pub fn of(process: &Process) -> Names {
        // SAFETY: a number.
        let is_root = unsafe { libc::geteuid() } == 0;
        Names { who: (is_root && process.who.users[3] != 0).then(|| process.who.clone()) }
    }

    /// Does `work` on this thread with the user and the groups that the process had.
    ///
    /// # Errors
    /// This process may not take them on; `work` was not begun.
    pub fn as_process<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        let _lent = self.who.as_ref().map(Lent::take).transpose()?;
        Ok(work())
    }

    /// Opens the file of that name as the process could, or as it did before it gave rights up.
    pub fn open(&self, path: &Path, flags: i32) -> Result<File> {
        let failed = |e| Error::io(path.display().to_string(), e);
        match self.as_process(|| open(path, flags))? {
            Err(e) if self.who.is_some() && e.kind() == io::ErrorKind::PermissionDenied => {
                if !only_root_names(path) {
                    return Err(Error::Unsupported {
                        what: format!(
                            "{}: the process's user may not open it, and others than root could have put it there",
                            path.display()
                        ),
                        remedy: "let that user open it, or move it to a directory that only root can change before the checkpoint is taken",
                    });
                }
                open(path, flags | libc::O_NOFOLLOW).map_err(failed)
            }
            other => other.map_err(failed),
        }
    }
}

fn open(path: &Path, flags: i32) -> io::Result<File> {
    let access = flags & libc::O_ACCMODE;
    OpenOptions::new()
        .read(access != libc::O_WRONLY)
        .write(access != libc::O_RDONLY)
        .custom_flags(flags & !libc::O_ACCMODE)
        .open(path)
}

/// Whether root alone can make this absolute name lead to another file: no part of it is a link, each directory belongs to root, and
/// others cannot write there, or only beside names of root's (sticky).
fn only_root_names(path: &Path) -> bool {
    if !path.canonicalize().is_ok_and(|real| real == path) {
        return false;
    }
    path.ancestors().zip(path.ancestors().skip(1)).all(|(name, directory)| {
        let (Ok(name), Ok(directory)) = (name.symlink_metadata(), directory.symlink_metadata()) else { return false };
        let is_shared = directory.mode() & 0o022 != 0;
        directory.uid() == 0 && (!is_shared || directory.mode() & libc::S_ISVTX != 0 && name.uid() == 0)
    })
}

/// The rights of another user for files, on this thread, until this is dropped. (The kernel then takes away what root may do with
/// files of others, too.)
struct Lent {
    user: u32,
    group: u32,
    groups: Vec<u32>,
    dumpable: i32,
    death_signal: i32,
}

/// Of the calls that give the user and group before: an identity that there is not.
const NONE: u32 = u32::MAX;

impl Lent {
    fn take(who: &Who) -> Result<Lent> {
        let mut death_signal = 0;
        // SAFETY: numbers, and one that the kernel writes.
        let dumpable = unsafe {
            libc::prctl(libc::PR_GET_PDEATHSIG, &raw mut death_signal);
            libc::prctl(libc::PR_GET_DUMPABLE)
        };
        let lent = Lent { user: set_user(NONE), group: set_group(NONE), groups: groups()?, dumpable, death_signal };
        set_groups(&who.supplementary).map_err(|e| Error::io("taking on the groups of the process", e))?;
        set_group(who.groups[3]);
        set_user(who.users[3]);
        if (set_user(NONE), set_group(NONE)) == (who.users[3], who.groups[3]) {
            return Ok(lent);
        }
        Err(Error::Unsupported {
            what: format!("opening files as user {} and group {}", who.users[3], who.groups[3]),
            remedy: "restart it as that user, or with the capabilities CAP_SETUID and CAP_SETGID",
        })
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        set_user(self.user);
        set_group(self.group);
        let is_back = set_groups(&self.groups).is_ok() && (set_user(NONE), set_group(NONE)) == (self.user, self.group);
        if !is_back {
            eprintln!("towa: this process could not take its own rights back");
            std::process::abort();
        }
        // A change of the user has taken both away.
        // SAFETY: numbers only.
        unsafe {
            if self.dumpable == 1 {
                libc::prctl(libc::PR_SET_DUMPABLE, 1);
            }
            libc::prctl(libc::PR_SET_PDEATHSIG, self.death_signal);
        }
    }
}

// The C library's own functions would change all threads.

fn set_user(user: u32) -> u32 {
    // SAFETY: numbers only.
    unsafe { libc::syscall(libc::SYS_setfsuid, user) as u32 }
}

fn set_group(group: u32) -> u32 {
    // SAFETY: numbers only.
    unsafe { libc::syscall(libc::SYS_setfsgid, group) as u32 }
}

fn set_groups(groups: &[u32]) -> io::Result<()> {
    // SAFETY: as many numbers as are said, which the kernel reads.
    match unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn groups() -> Result<Vec<u32>> {
    // SAFETY: asks for a number.
    let count = unsafe { libc::getgroups(0, std::ptr::null_mut()) };
    let mut groups = vec![0u32; usize::try_from(count).unwrap_or(0)];
    // SAFETY: room for as many as are said.
    let got = unsafe { libc::getgroups(count, groups.as_mut_ptr()) };
    if count < 0 || got != count { Err(Error::last("the groups of this process")) } else { Ok(groups) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(id: u32) -> Names {
        let who = Who { users: [id; 4], groups: [id; 4], supplementary: vec![id], capabilities: [0; 5] };
        Names { who: Some(who) }
    }

    fn is_root() -> bool {
        // SAFETY: a number.
        let is = unsafe { libc::geteuid() } == 0;
        if !is {
            eprintln!("SKIPPED: only root can be another user");
        }
        is
    }

    #[test]
    fn a_name_leads_where_it_leads_for_the_process() {
        if !is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        std::fs::write(&secret, "root's").unwrap();
        std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let theirs = dir.path().join("theirs");
        std::fs::create_dir(&theirs).unwrap();
        std::os::unix::fs::chown(&theirs, Some(65534), Some(65534)).unwrap();
        let link = theirs.join("link");
        std::os::unix::fs::symlink(&secret, &link).unwrap();
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let refused = user(65534).open(&link, libc::O_RDWR).unwrap_err().to_string();
        assert!(refused.contains("others than root could have put it there"), "{refused}");
        // Root opened it, and became that user: nobody else can have put it there.
        user(65534).open(&secret, libc::O_RDWR).expect("a name that only root can change");
        // What it makes is its own, and this thread is root again.
        let made = user(65534).as_process(|| std::fs::write(theirs.join("made"), "")).unwrap();
        made.unwrap();
        assert_eq!(std::fs::metadata(theirs.join("made")).unwrap().uid(), 65534);
        assert!(user(65534).as_process(|| std::fs::write(dir.path().join("made"), "")).unwrap().is_err());
        std::fs::write(dir.path().join("made"), "").unwrap();
        assert_eq!(std::fs::metadata(dir.path().join("made")).unwrap().uid(), 0);
    }

    #[test]
    fn names_of_root_alone_are_told_from_others() {
        if !is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        std::fs::write(real.join("file"), "").unwrap();
        assert!(only_root_names(&real.join("file")), "root's, in a directory of root's, beside others in a sticky one");
        std::fs::create_dir(real.join("theirs")).unwrap();
        std::fs::write(real.join("theirs/file"), "").unwrap();
        std::os::unix::fs::chown(real.join("theirs"), Some(65534), None).unwrap();
        assert!(!only_root_names(&real.join("theirs/file")));
        std::os::unix::fs::symlink(real.join("file"), real.join("link")).unwrap();
        assert!(!only_root_names(&real.join("link")));
        std::fs::set_permissions(&real, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        assert!(!only_root_names(&real.join("file")));
    }
}
