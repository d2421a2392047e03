//! `towa_snap_*`: a program has itself checkpointed.

use std::ffi::{OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use towa_snap::own::{self, Outcome};

use crate::error::{EBUSY, EDAMAGED, EIO, ENOENT, ENOSPC, EUNSUPPORTED, Failure, guard};
use crate::pool::utf8;

/// The checkpoint is durable.
pub const SNAP_TAKEN: c_int = 0;
/// This process was started again from it.
pub const SNAP_RESTARTED: c_int = 1;

/// The code for an exit status of `towa snap take`.
fn code(status: Option<i32>) -> c_int {
    match status {
        Some(1) => EUNSUPPORTED,
        Some(3) => EDAMAGED,
        Some(4) => EBUSY,
        Some(5) => ENOENT,
        Some(6) => ENOSPC,
        _ => EIO,
    }
}

/// Takes a checkpoint of this process.
///
/// # Safety
/// `dir` is NULL or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_snap_take(dir: *const c_char) -> c_int {
    let taken = guard("towa_snap_take", || {
        // SAFETY: handed on.
        let dir = unsafe { utf8(dir, "directory") }?;
        own::take(Path::new(OsStr::from_bytes(dir.as_bytes()))).map_err(|e| {
            let code = match &e {
                towa_snap::Error::NotTaken { status, .. } => code(*status),
                towa_snap::Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => ENOENT,
                towa_snap::Error::Unsupported { .. } => EUNSUPPORTED,
                _ => EIO,
            };
            Failure::new(code, e.to_string())
        })
    });
    match taken {
        Ok(Outcome::Taken) => SNAP_TAKEN,
        Ok(Outcome::Restarted) => SNAP_RESTARTED,
        Err(code) => code,
    }
}
