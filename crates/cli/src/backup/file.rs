//! One file copied: shared with the source where the file system can, else only where it has content.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, Error, Result};
use towa_media::files;

use crate::failure::{FULL, coded};
use crate::progress::Progress;
use crate::report;

const TURN: u64 = 1 << 20;

/// What was copied.
pub struct Copied {
    /// The file's length.
    pub len: u64,
    /// Both files have the same blocks.
    pub cloned: bool,
}

/// Makes the file of a copy, which messages call `shown`.
pub fn make(to: &Path, shown: &Path) -> Result<File> {
    let made = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(to);
    made.with_context(|| format!("{}: making it", report::path(shown)))
}

/// Copies a file that does not change; durable when this returns.
pub fn copy_path(from: &Path, to: &Path) -> Result<Copied> {
    let source = File::open(from).with_context(|| report::path(from))?;
    let copy = make(to, to)?;
    let copied = copy_into(&source, &copy, from, true, &mut || Ok(()))?;
    sync(&copy, to)?;
    Ok(copied)
}

/// Copies `source`, whose name is `from`, into `copy`, which is empty; `tick` is called every megabyte. `may_clone`: they may share blocks.
pub fn copy_into(source: &File, copy: &File, from: &Path, may_clone: bool, tick: &mut dyn FnMut() -> Result<()>) -> Result<Copied> {
    let place = |e: io::Error| failed(e, &format!("{}: copying it", report::path(from)));
    let len = source.metadata().map_err(place)?.len();
    if may_clone && files::clone_whole(source.as_fd(), copy.as_fd()).is_ok() {
        return Ok(Copied { len, cloned: true });
    }
    copy.set_len(len).map_err(place)?;
    let progress = Progress::bytes("copying");
    let mut piece = vec![0; TURN as usize];
    let mut at = 0;
    while at < len {
        let (data, hole) = towa_java_pool::stretch(source, at, len);
        at = data;
        while at < hole {
            tick()?;
            progress.at(at, len);
            let here = &mut piece[..(hole - at).min(TURN) as usize];
            source.read_exact_at(here, at).map_err(place)?;
            // Blocks that were taken ahead are zeros, too.
            if here.iter().any(|byte| *byte != 0) {
                copy.write_all_at(here, at).map_err(place)?;
            }
            at += here.len() as u64;
        }
    }
    Ok(Copied { len, cloned: false })
}

/// Makes a copy durable.
pub fn sync(copy: &File, to: &Path) -> Result<()> {
    files::sync(copy).map_err(|e| failed(e, &format!("{}: making it durable", report::path(to))))
}

/// The error with its exit status.
fn failed(e: io::Error, place: &str) -> Error {
    match e.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => coded(FULL, format!("{place}: {e}; make room, or choose another place for the copy")),
        _ => Error::from(e).context(place.to_owned()),
    }
}
