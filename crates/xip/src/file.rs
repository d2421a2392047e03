//! Reading what others may have put there.
//!
//! What must hold: only a regular file is read, and it is the one that was opened: a named pipe does not make us wait, a device does not
//! fill memory, and an exchange between looking and reading is not noticed too late.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::error::{Error, Result};

/// Opens the regular file at `path`.
///
/// # Errors
/// It is something else, or cannot be opened.
pub fn open(path: &Path) -> Result<(File, Metadata)> {
    let mut options = File::options();
    let file = options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path).map_err(Error::io(path, "opening"))?;
    let metadata = file.metadata().map_err(Error::io(path, "looking at"))?;
    if metadata.is_file() {
        return Ok((file, metadata));
    }
    Err(Error::Unfit { path: path.to_owned(), why: "not a regular file".into() })
}

/// All of the regular file at `path`.
///
/// # Errors
/// As [`open`], or it cannot be read.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    open(path).and_then(|(file, _)| rest_of(&file, path))
}

/// What is left to be read of `file`, which is that of `path`.
pub fn rest_of(mut file: &File, path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(Error::io(path, "reading"))?;
    Ok(bytes)
}
