//! Space that files take.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result};

/// Bytes that the files within `dir` take: holes count for nothing, and links are not followed.
pub(crate) fn allocated(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir).with_context(|| format!("{}: listing", dir.display()))? {
        let path = entry?.path();
        let about = path.symlink_metadata()?;
        bytes += if about.is_dir() { allocated(&path)? } else { about.blocks() * 512 };
    }
    Ok(bytes)
}
