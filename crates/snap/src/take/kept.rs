//! Files with a name that the process writes: as they are while it stands still, where the file system clones files.

use std::fs::File;
use std::time::{Duration, Instant};

use crate::state::descriptors::{Found, Kind};
use crate::sys::{fd, writeback};

/// Whether the process may have a device write into its memory.
pub(super) fn reads_directly(found: &Found) -> bool {
    found.descriptors.files.iter().any(|file| file.flags & libc::O_DIRECT != 0)
}

/// Files with a name that the process may write, open to read; each once.
pub(super) fn written_files(found: &Found) -> Vec<(File, String)> {
    let mut files: Vec<(File, String)> = Vec::new();
    let each = found.descriptors.files.iter().zip(&found.taken);
    for (file, taken) in each.filter(|(file, _)| file.flags & libc::O_ACCMODE != libc::O_RDONLY) {
        let Kind::Regular { identity, .. } = &file.kind else { continue };
        let name = identity.name();
        // The file that the process has open: its name may lead to another one by now, which is not the process's to read.
        if files.iter().all(|(_, other)| *other != name)
            && let Ok(open) = fd::reopened(taken)
        {
            files.push((open, name));
        }
    }
    files
}

/// Has what is dirty of these files now written, for some time: cloning waits for what is not. A program that goes on writing is not
/// waited for. No error of it is asked for: it is the
/// program's, and told once.
pub(super) fn write_back(files: &[(File, String)]) {
    const PATIENCE: Duration = Duration::from_millis(500);
    let (began, mut pause) = (Instant::now(), Duration::from_millis(1));
    for (file, name) in files {
        if let Err(e) = writeback::begin(file) {
            log::debug!("{name}: writing cannot be begun: {e}");
        }
    }
    while began.elapsed() < PATIENCE && files.iter().any(|(file, _)| writeback::pending(file).is_ok_and(|pages| pages > 0)) {
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}
