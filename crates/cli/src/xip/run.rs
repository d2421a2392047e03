//! `towa xip run`: a program split, without changing it.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;
use towa_xip::install;
use towa_xip::split::{AbcHead, key_of};
use towa_xip::store::{Store, hex};

use super::split::{HowArgs, put_libraries};
use crate::failure;
use crate::report;

/// Run a program with its text in a store, without changing the program.
///
/// Its other half is made in the store, once, and used again until the program changes or `towa xip gc` removes it. Programs that look for files beside themselves do
/// not find them this way: split those in their place.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Directory of the texts; made if it is not there.
    #[arg(long, value_name = "DIR")]
    store: PathBuf,
    #[command(flatten)]
    how: HowArgs,
    /// The program and its arguments.
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

/// As a shell says it.
const NOT_FOUND: u8 = 127;
const NOT_STARTED: u8 = 126;

/// `towa xip run`.
pub fn run(args: &RunArgs) -> Result<()> {
    let name = &args.program[0];
    let path = find(name).ok_or_else(|| failure::coded(NOT_FOUND, format!("{}: no such program", name.display())))?;
    let store = Store::open_or_create(&args.store)?;
    let split = match prepare(&store, &path, &args.how) {
        Err(error) if matches!(error.downcast_ref(), Some(towa_xip::Error::Unfit { .. })) => {
            report::say(&format!("{}; it runs whole", failure::message(&error)));
            path
        }
        other => other?,
    };
    let error = Command::new(&split).arg0(name).args(&args.program[1..]).exec();
    Err(failure::coded(NOT_STARTED, format!("{}: cannot be started: {error}", split.display())))
}

/// The program's other half, made if it is not there.
fn prepare(store: &Store, path: &Path, how: &HowArgs) -> Result<PathBuf> {
    let path = fs::canonicalize(path).with_context(|| format!("{}: finding", path.display()))?;
    let about = fs::metadata(&path).with_context(|| format!("{}: looking at", path.display()))?;
    // Another program, a changed one, or one split in another way has another folder.
    let identity = format!("{}-{}-{}-{}.{}-{how:?}", about.dev(), about.ino(), about.len(), about.ctime(), about.ctime_nsec());
    let folder = store.path().join("run").join(hex(&key_of(identity.as_bytes())[..16]));
    let split = folder.join(path.file_name().unwrap_or_default());
    if split.exists() && fs::read(&split).is_ok_and(|abc| has_its_text(store, &abc)) {
        return Ok(split);
    }
    fs::create_dir_all(&folder).with_context(|| format!("{}: making", folder.display()))?;
    for made in [&folder, &store.path().join("run")] {
        fs::set_permissions(made, fs::Permissions::from_mode(0o755)).with_context(|| format!("{}: permissions", made.display()))?;
    }
    if how.libs {
        for (library, done) in put_libraries(store, &path, how.how()) {
            if let Err(error) = done {
                log::info!("{}: keeps its own text: {error}", library.display());
            }
        }
    }
    install::split(store, &path, Some(&split), how.how())?;
    Ok(split)
}

fn has_its_text(store: &Store, abc: &[u8]) -> bool {
    AbcHead::find(abc).is_ok_and(|head| store.text(&head.record.key).is_ok())
}

/// As a shell finds it.
fn find(name: &OsString) -> Option<PathBuf> {
    let is_program = |path: &Path| fs::metadata(path).is_ok_and(|about| about.is_file() && about.mode() & 0o111 != 0);
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name)).filter(|path| path.exists());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| is_program(path))
}
