//! Files of a process whose content a checkpoint keeps.

use std::fs::File;

use crate::error::{Error, Result};
use crate::state::descriptors::{Found, Kind};
use crate::store::Draft;

/// Whether the process may have a device write into its memory.
pub(super) fn reads_directly(found: &Found) -> bool {
    found.descriptors.files.iter().any(|file| file.flags & libc::O_DIRECT != 0)
}

/// Content of files without a name, as it is now: nobody else has another copy.
pub(super) fn keep_nameless(draft: &mut Draft, found: &Found) -> Result<()> {
    let mut kept = Vec::new();
    for (file, taken) in found.descriptors.files.iter().zip(&found.taken) {
        let Kind::Nameless { identity, .. } = &file.kind else { continue };
        let name = identity.name();
        if !kept.contains(&name) {
            let taken = taken.try_clone().map_err(|e| Error::io("a descriptor", e))?;
            draft.attach(&std::fs::File::from(taken), &name)?;
            kept.push(name);
        }
    }
    Ok(())
}

/// Files with a name that the process may write, open to read; each once.
pub(super) fn written_files(found: &Found) -> Vec<(File, String)> {
    let mut files: Vec<(File, String)> = Vec::new();
    for file in found.descriptors.files.iter().filter(|file| file.flags & libc::O_ACCMODE != libc::O_RDONLY) {
        let Kind::Regular { path, identity, .. } = &file.kind else { continue };
        let name = identity.name();
        if files.iter().all(|(_, other)| *other != name)
            && let Ok(open) = File::open(path)
        {
            files.push((open, name));
        }
    }
    files
}
