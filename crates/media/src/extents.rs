//! Where the blocks of a file lie on its device, as far as the file system tells (FIEMAP).
//!
//! What must hold: nothing is changed, and nothing is synced: what has no blocks yet has no extent.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// A piece of a file whose blocks lie side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte of it in the file.
    pub logical: u64,
    /// First byte of it on the device that the file system is on.
    pub physical: u64,
    /// Its bytes.
    pub len: u64,
    /// Whether another file has the same blocks.
    pub is_shared: bool,
}

/// Number of the ioctl (whose type is another with glibc than with musl), and what it takes and gives (linux/fiemap.h).
const FS_IOC_FIEMAP: libc::c_ulong = 0xC020_660B;
const LAST: u32 = 1;
const SHARED: u32 = 0x2000;
const ROOM: usize = 512;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Told {
    logical: u64,
    physical: u64,
    len: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_too: [u32; 3],
}

#[repr(C)]
struct Map {
    start: u64,
    len: u64,
    flags: u32,
    mapped: u32,
    room: u32,
    reserved: u32,
    extents: [Told; ROOM],
}

/// The extents of `file`, in the order of the file.
///
/// # Errors
/// The file system does not tell (tmpfs).
pub fn of(file: &File) -> io::Result<Vec<Extent>> {
    let (mut start, mut all) = (0, Vec::new());
    loop {
        let room = ROOM as u32;
        let mut map =
            Map { start, len: u64::MAX - start, flags: 0, mapped: 0, room, reserved: 0, extents: [Told::default(); ROOM] };
        // SAFETY: `map` is laid out as the kernel expects, has room for as many extents as it says, and is ours to fill.
        if unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP as _, &mut map) } == -1 {
            return Err(io::Error::last_os_error());
        }
        let found = &map.extents[..(map.mapped as usize).min(ROOM)];
        let extent = |told: &Told| Extent {
            logical: told.logical,
            physical: told.physical,
            len: told.len,
            is_shared: told.flags & SHARED != 0,
        };
        all.extend(found.iter().map(extent));
        match found.last() {
            Some(last) if last.flags & LAST == 0 && last.len > 0 => start = last.logical + last.len,
            _ => return Ok(all),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn what_is_written_has_extents_and_a_hole_has_none() {
        let file = tempfile::tempfile_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
        file.write_all_at(&[7; 4096], 1 << 20).unwrap();
        file.sync_all().unwrap();
        match of(&file) {
            Ok(all) => {
                assert!(all.iter().any(|extent| (extent.logical..extent.logical + extent.len).contains(&(1 << 20))), "{all:?}");
                assert!(all.iter().all(|extent| extent.logical >= 1 << 20), "{all:?}");
            }
            Err(why) => eprintln!("SKIP: this file system does not tell where files lie: {why}"),
        }
    }
}
