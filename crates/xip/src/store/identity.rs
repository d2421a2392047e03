//! The state of a file: how a library's text is found, and how a program is known that was never replaced.
//!
//! What must hold: a file whose bytes changed has another identity than before. The kernel sets the time of the last change (ctime) at
//! each write, and users cannot set it; [`Identity::settled`] waits until a later write must get a later time. The device's number is no
//! part of it: it is another one after a reboot, and in each machine that mounts a clone of the same image.
//!
//! `loader/overlay.h` makes the same name of what `fstat` says.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::hex;
use crate::error::{Error, Result};

/// Bytes of an identity.
pub const IDENTITY_LEN: usize = 40;
/// The kernel's clock for times of files advances every 10 ms at least; some file systems store whole seconds, or pairs of them.
const TICK: Duration = Duration::from_millis(20);
const COARSE_TICK: Duration = Duration::from_millis(2020);

/// Inode, size, and times of the last change of content and of anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity([u8; IDENTITY_LEN]);

impl Identity {
    /// That of a file with this metadata.
    pub fn of(metadata: &Metadata) -> Identity {
        let mut bytes = [0; IDENTITY_LEN];
        let fields = [metadata.ino(), metadata.size(), metadata.mtime() as u64, metadata.ctime() as u64];
        for (at, field) in fields.into_iter().enumerate() {
            bytes[8 * at..][..8].copy_from_slice(&field.to_le_bytes());
        }
        bytes[32..36].copy_from_slice(&(metadata.mtime_nsec() as u32).to_le_bytes());
        bytes[36..].copy_from_slice(&(metadata.ctime_nsec() as u32).to_le_bytes());
        Identity(bytes)
    }

    /// That of the open `file`, once the clock has left its last change behind: what is read from then on and changed later is noticed.
    ///
    /// # Errors
    /// It cannot be looked at, or is changed all the time.
    pub fn settled(file: &File, path: &Path) -> Result<(Identity, Metadata)> {
        for _ in 0..10 {
            let metadata = file.metadata().map_err(Error::io(path, "looking at"))?;
            let tick = if metadata.ctime_nsec() == 0 { COARSE_TICK } else { TICK };
            let changed = Duration::new(metadata.ctime().max(0) as u64, metadata.ctime_nsec() as u32);
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            // A change that lies in the future tells of a clock that was set back: waiting does not help.
            match (changed + tick).checked_sub(now) {
                Some(left) if left <= tick => std::thread::sleep(left),
                _ => return Ok((Identity::of(&metadata), metadata)),
            }
        }
        Err(Error::Unfit { path: path.to_owned(), why: "it is being changed all the time".into() })
    }

    /// The bytes of which its name is made.
    pub fn bytes(&self) -> &[u8; IDENTITY_LEN] {
        &self.0
    }

    /// As text.
    pub fn to_hex(self) -> String {
        hex(&self.0)
    }

    /// From bytes as [`Identity::bytes`] gives them.
    pub fn from_bytes(bytes: &[u8]) -> Option<Identity> {
        bytes.try_into().ok().map(Identity)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A change in place, of as many bytes, whose time of content is set back as `touch -r` does.
    #[test]
    fn a_changed_file_has_another_identity_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("library");
        for round in 0..20 {
            fs::write(&path, "one").unwrap();
            let file = File::open(&path).unwrap();
            let (before, metadata) = Identity::settled(&file, &path).unwrap();
            assert_eq!(Identity::of(&file.metadata().unwrap()), before);
            let writing = File::options().write(true).open(&path).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&writing, b"two", 0).unwrap();
            writing.set_modified(metadata.modified().unwrap()).unwrap();
            assert_ne!(Identity::of(&file.metadata().unwrap()), before, "round {round}");
        }
    }

    #[test]
    fn an_identity_is_its_bytes() {
        let metadata = fs::metadata("/").unwrap();
        let identity = Identity::of(&metadata);
        assert_eq!(Identity::from_bytes(identity.bytes()), Some(identity));
        assert_eq!(identity.to_hex()[..16], hex(&metadata.ino().to_le_bytes()));
        assert_eq!(Identity::from_bytes(&[0; 39]), None);
    }
}
