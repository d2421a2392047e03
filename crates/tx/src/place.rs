//! The directory in shared memory where a pool's owner and its separate checkpointer find each other's control block.
//!
//! ```text
//!   /dev/shm/towa-<uuid>-<device>-<inode>/control      made by the owner (mode 0700)
//!       removed by   the owner, when it closes the pool
//!                    the checkpointer, when it finds its owner dead, before it gives up its place
//!                    whoever opens the pool next, if both had been killed
//! ```
//!
//! A copy of a pool has the identity of the pool; only its directory is another one. So the directory is part of the name: a checkpointer
//! that met the owner of a copy would apply one's log by the other's positions.
//!
//! What must always hold: a control block is removed only by who holds the pool's lock, or stands in it as its checkpointer and finds
//! the owner dead; nobody trusts one that another user could have put there: anybody may make names in `/dev/shm`.

use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use towa_media::{Access, Allocation, Error, Medium, RamMedium, Result};

use crate::control::ControlMemory;
use crate::process::Process;

const NAME: &str = "control";
/// A checkpointer that found its owner dead has removed the place within this time.
const REMOVED: Duration = Duration::from_secs(1);

/// Where the two of one pool meet.
#[derive(Debug)]
pub(crate) struct Place(PathBuf);

impl Place {
    /// Of the pool with identity `uuid` on `medium`.
    pub fn of(medium: &dyn Medium, uuid: &str) -> Place {
        let directory = medium.identity().map_or(String::new(), |(device, inode)| format!("-{device:x}-{inode:x}"));
        Place(PathBuf::from(format!("/dev/shm/towa-{uuid}{directory}")))
    }

    /// The control block that is there, if there is one to be trusted.
    pub fn find(&self) -> Result<Option<ControlMemory>> {
        if !self.is_trusted() || !self.0.join(NAME).exists() {
            return Ok(None);
        }
        let opened = RamMedium::open(&self.0, false, None).and_then(|medium| medium.open(NAME, Access::ReadWrite));
        match opened {
            Ok(region) if region.len() >= ControlMemory::LEN => Ok(Some(ControlMemory::shared(region))),
            Ok(_) | Err(Error::NotFound { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Whether nobody but this user and root can have put there what is there. (Root looks at what any user has: it opens their pools.)
    fn is_trusted(&self) -> bool {
        let Ok(status) = std::fs::symlink_metadata(&self.0) else { return false };
        // SAFETY: asks, and changes nothing.
        let me = unsafe { libc::geteuid() };
        status.is_dir() && status.mode() & 0o022 == 0 && (me == 0 || [0, me].contains(&status.uid()))
    }

    /// Makes the place anew, with an empty control block. The pool's lock is held, and nobody who lives stands in the former one.
    pub fn make(&self) -> Result<ControlMemory> {
        let began = Instant::now();
        loop {
            self.remove();
            match self.try_make() {
                // The former checkpointer may be removing it at this moment, and ours with it.
                Err(Error::Unsupported { .. } | Error::NotFound { .. }) if began.elapsed() < REMOVED => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                made => return made,
            }
        }
    }

    fn try_make(&self) -> Result<ControlMemory> {
        let location = self.0.display().to_string();
        match std::fs::DirBuilder::new().mode(0o700).create(&self.0) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                let what = "is in the way: the control block for a separate checkpointer belongs there; remove it".into();
                return Err(Error::Unsupported { location, what });
            }
            Err(source) => return Err(Error::Io { location, doing: "making the control block's directory", source }),
            Ok(()) => {}
        }
        let region = RamMedium::open(&self.0, false, None)?.create(NAME, ControlMemory::LEN, Allocation::Full);
        Ok(ControlMemory::shared(region.inspect_err(|_| self.remove())?))
    }

    /// Removes it, if the owner that it names has died, and whoever stood in it as a checkpointer. The pool's lock is held.
    pub fn remove_stale(&self) {
        let control = match self.find() {
            Ok(Some(control)) => control,
            // Its owner died while it made the place: nobody has ever stood there.
            Ok(None) if self.is_trusted() => return self.remove(),
            // What is not ours to read is not ours to remove.
            _ => return,
        };
        let lives = |word| Process::noted(word).is_some_and(Process::lives);
        if !lives(&control.owner) && !lives(&control.checkpointer) {
            self.remove();
        }
    }

    /// Removes it.
    pub fn remove(&self) {
        let _ = std::fs::remove_file(self.0.join(NAME));
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::atomic::Ordering::Relaxed;

    fn place() -> Place {
        Place::of(&*RamMedium::anonymous(), &uuid())
    }

    /// Of no pool.
    fn uuid() -> String {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed))
    }

    #[test]
    fn what_a_dead_owner_left_is_removed_and_what_a_living_one_has_stays() {
        let place = place();
        let control = place.make().unwrap();
        control.owner.store(Process::this().word(), Relaxed);
        place.remove_stale();
        assert!(place.find().unwrap().is_some(), "its owner lives");
        // The number of this process, started at another time.
        let dead = Process::this().word() ^ 1;
        control.owner.store(dead, Relaxed);
        control.checkpointer.store(Process::this().word(), Relaxed);
        place.remove_stale();
        assert!(place.find().unwrap().is_some(), "its checkpointer lives");
        control.checkpointer.store(dead, Relaxed);
        place.remove_stale();
        assert!(!place.0.exists());
        // An owner that died before it had written its number.
        drop(place.make().unwrap());
        place.remove_stale();
        assert!(!place.0.exists());
        // ... before it had made the control block, or all of it.
        std::fs::DirBuilder::new().mode(0o700).create(&place.0).unwrap();
        place.remove_stale();
        assert!(!place.0.exists());
        drop(place.make().unwrap());
        std::fs::OpenOptions::new().write(true).open(place.0.join(NAME)).unwrap().set_len(0).unwrap();
        place.remove_stale();
        assert!(!place.0.exists());
    }

    #[test]
    fn copies_of_a_pool_do_not_meet_and_paths_to_one_do() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [one, copy] = dirs.each_ref().map(|dir| Place::of(&*RamMedium::open(dir.path(), false, None).unwrap(), "x").0);
        assert_ne!(one, copy);
        let link = dirs[1].path().join("link");
        symlink(dirs[0].path(), &link).unwrap();
        assert_eq!(one, Place::of(&*RamMedium::open(&link, false, None).unwrap(), "x").0);
    }

    #[test]
    fn what_others_may_have_put_there_is_not_trusted() {
        let place = place();
        drop(place.make().unwrap());
        assert!(place.find().unwrap().is_some());
        std::fs::set_permissions(&place.0, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(place.find().unwrap().is_none(), "anybody could have put it there");
        drop(place.make().unwrap());
        let mode = std::fs::metadata(&place.0).unwrap().mode();
        assert_eq!(mode & 0o777, 0o700, "it is made anew");
        // A link to a directory with a control block in it.
        let elsewhere = tempfile::tempdir().unwrap();
        std::fs::copy(place.0.join(NAME), elsewhere.path().join(NAME)).unwrap();
        place.remove();
        symlink(elsewhere.path(), &place.0).unwrap();
        assert!(place.find().unwrap().is_none());
        let refused = place.make().unwrap_err().to_string();
        assert!(refused.contains("is in the way"), "{refused}");
        std::fs::remove_file(&place.0).unwrap();
    }
}
