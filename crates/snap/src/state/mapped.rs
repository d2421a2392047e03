//! Files that a process has mapped, and its program: which they were, so that a restart does not mix another one into its memory.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::descriptors::Identity;
use super::region::{Backing, Region};

/// A file that is mapped, or the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappedFile {
    /// Its name.
    #[serde(with = "towa_media::paths::one")]
    pub path: PathBuf,
    /// Which it is, and in which state.
    pub identity: Identity,
    /// Whether its bytes are run as code.
    pub code: bool,
    /// Whether the process writes into it through its memory.
    pub written: bool,
}

/// All of them, each once. One that has gone is not told: its name leads nowhere at a restart, which says so.
pub fn look(regions: &[Region], program: &Path) -> Vec<MappedFile> {
    let mut paths: BTreeSet<&Path> = BTreeSet::from([program]);
    let path_of = |region: &Region| match &region.backing {
        Backing::File { path, .. } => Some(path.clone()),
        _ => None,
    };
    for region in regions {
        if let Backing::File { path, .. } = &region.backing {
            paths.insert(path);
        }
    }
    let mut files = Vec::new();
    for path in paths {
        let Ok(metadata) = std::fs::metadata(path) else { continue };
        let of_it = || regions.iter().filter(|region| path_of(region).as_deref() == Some(path));
        files.push(MappedFile {
            path: path.to_owned(),
            identity: Identity::of(&metadata),
            code: path == program || of_it().any(|region| region.prot & libc::PROT_EXEC != 0),
            written: of_it().any(|region| region.shared && region.prot & libc::PROT_WRITE != 0),
        });
    }
    files
}
