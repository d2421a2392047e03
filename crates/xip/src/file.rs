//! Reading what others may have put there: every file of this door that is read is opened here.
//!
//! What must hold: only a regular file is read, and it is the one that was opened: a named pipe does not make us wait, a device does not
//! fill memory, an exchange between looking and reading is not noticed too late; and no more than a bound is read, whatever length the
//! file claims.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::error::{Error, Result};

/// Most bytes of a program, a library or a text: all of it is in memory at once.
pub const PROGRAM_MAX: u64 = 2 << 30;

/// Opens the regular file at `path`.
///
/// # Errors
/// It is something else, or cannot be opened.
pub fn open(path: &Path) -> Result<(File, Metadata)> {
    open_with(path, 0)
}

/// Opens the regular file at `path`, which is no link.
///
/// # Errors
/// As [`open`]; or it is a link by now.
pub fn open_no_link(path: &Path) -> Result<(File, Metadata)> {
    open_with(path, libc::O_NOFOLLOW)
}

/// Opens a file that lies in a store, where no link leads anywhere else.
///
/// # Errors
/// As [`open`]; or it is a link.
pub fn open_in_store(path: &Path) -> Result<(File, Metadata)> {
    match open_with(path, libc::O_NOFOLLOW) {
        Err(Error::Unfit { path, why }) => Err(Error::NotUsable { path, what: why }),
        Err(Error::Io { path, source, .. }) if source.raw_os_error() == Some(libc::ELOOP) => {
            Err(Error::NotUsable { path, what: "a link; in a store only files are read".into() })
        }
        other => other,
    }
}

fn open_with(path: &Path, flags: i32) -> Result<(File, Metadata)> {
    let mut options = File::options();
    let flags = flags | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = options.read(true).custom_flags(flags).open(path).map_err(Error::io(path, "opening"))?;
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

/// All of a file of a store, of at most `most` bytes.
///
/// # Errors
/// As [`open_in_store`], or it is longer, or cannot be read.
pub fn read_in_store(path: &Path, most: u64) -> Result<Vec<u8>> {
    open_in_store(path).and_then(|(file, _)| rest_up_to(&file, path, most))
}

/// What is left to be read of `file`, which is that of `path`.
pub fn rest_of(file: &File, path: &Path) -> Result<Vec<u8>> {
    rest_up_to(file, path, PROGRAM_MAX)
}

fn rest_up_to(file: &File, path: &Path, most: u64) -> Result<Vec<u8>> {
    let too_long = || Error::NotUsable { path: path.to_owned(), what: format!("longer than {most} bytes, which is too long") };
    if file.metadata().map_err(Error::io(path, "looking at"))?.len() > most {
        return Err(too_long());
    }
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(Error::io(path, "reading"))?;
    if bytes.len() as u64 > most { Err(too_long()) } else { Ok(bytes) }
}
