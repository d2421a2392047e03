//! `towa xip run`: a program split, without changing it.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
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
/// Its other half is made in the store, once, and used again until the program changes or `towa xip gc` removes it. Programs that look for
/// files beside themselves do not find them this way: split those in their place. Programs that this one starts (gcc starts cc1) are not
/// split.
///
/// A program that runs with more rights than its user's (set-user-id, set-group-id, file capabilities) runs whole, and so does one whose
/// other half cannot be made: it has too little text, the store is full, read-only, another user's, or in use. With --libs the text of its
/// libraries comes from the store all the same, where the program itself has too little to be split (java): it is started with LD_AUDIT,
/// which the programs that it starts inherit. Libraries that it opens later (libjvm.so) are split by naming them.
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
    let (split, auditor) = match half(args, &path) {
        Err(error) if is_no_reason_not_to_run(&error) => {
            let auditor = auditor_for(args, &path, &error);
            let what = if auditor.is_some() { "only the text of its libraries comes from the store" } else { "it runs whole" };
            report::say(&format!("{}; {what}", failure::message(&error)));
            (path, auditor)
        }
        other => (other?, None),
    };
    let mut command = Command::new(&split);
    if let Some(auditor) = auditor {
        command.env("LD_AUDIT", auditor);
    }
    let error = command.arg0(name).args(&args.program[1..]).exec();
    Err(failure::coded(NOT_STARTED, format!("{}: cannot be started: {error}", split.display())))
}

/// The program is no worse off whole: it has no other half, or nobody can make one now.
fn is_no_reason_not_to_run(error: &anyhow::Error) -> bool {
    use towa_xip::Error::*;
    matches!(error.downcast_ref(), Some(Unfit { .. } | Full { .. } | Unsupported { .. })) || is_forbidden(error)
}

/// The audit object by which ld.so maps the text of the program's libraries from the store, if the program itself has no other half, and
/// nothing is against it.
fn auditor_for(args: &RunArgs, path: &Path, error: &anyhow::Error) -> Option<PathBuf> {
    let is_unfit = matches!(error.downcast_ref(), Some(towa_xip::Error::Unfit { .. }));
    if !(args.how.libs && is_unfit && install::rights_of(path).ok()?.is_none()) || std::env::var_os("LD_AUDIT").is_some() {
        return None;
    }
    let store = Store::open(&args.store).ok().filter(|store| store.is_safe())?;
    let auditor = store.audit_path();
    install::can_be_audited(path, &auditor).then_some(auditor)
}

/// This user must not write there, nobody can, or others do all the time.
fn is_forbidden(error: &anyhow::Error) -> bool {
    if matches!(error.downcast_ref(), Some(towa_xip::Error::Busy { .. })) {
        return true;
    }
    let kind = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>()).map(std::io::Error::kind);
    matches!(kind, Some(ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem))
}

/// The program's other half, made if it is not there.
fn half(args: &RunArgs, path: &Path) -> Result<PathBuf> {
    let path = fs::canonicalize(path).with_context(|| format!("{}: finding", path.display()))?;
    let about = fs::metadata(&path).with_context(|| format!("{}: looking at", path.display()))?;
    if let Some(rights) = install::rights_of(&path)? {
        // A copy of it would keep those rights when the program itself has lost them, by an upgrade.
        let why = format!("{rights}, of which no copy is made");
        return Err(towa_xip::Error::Unfit { path, why }.into());
    }
    // Another program, a changed one, or one split in another way has another folder.
    let identity =
        format!("{}-{}-{}-{}.{}-{:?}", about.dev(), about.ino(), about.len(), about.ctime(), about.ctime_nsec(), args.how);
    let folder = Path::new("run").join(hex(&key_of(identity.as_bytes())[..16]));
    let place = folder.join(path.file_name().unwrap_or_default());
    let made = |store: &Store| Some(store.path().join(&place)).filter(|half| has_its_text(store, half));
    let store = match Store::open_or_create(&args.store) {
        Ok(store) => store,
        Err(error) => {
            // Who may not write to a store, and a safe one it is, can run what others made there.
            let error = error.into();
            let found = || Store::open(&args.store).ok().as_ref().and_then(made);
            return is_forbidden(&error).then(found).flatten().ok_or(error);
        }
    };
    if let Some(half) = made(&store) {
        return Ok(half);
    }
    make(&store, &path, &store.path().join(place), &args.how)
}

/// Makes the other half of the program at `path`.
fn make(store: &Store, path: &Path, split: &Path, how: &HowArgs) -> Result<PathBuf> {
    let folder = split.parent().unwrap_or(store.path());
    fs::create_dir_all(folder).with_context(|| format!("{}: making", folder.display()))?;
    for made in [folder, &store.path().join("run")] {
        fs::set_permissions(made, fs::Permissions::from_mode(0o755)).with_context(|| format!("{}: permissions", made.display()))?;
    }
    if how.libs {
        for (library, done) in put_libraries(store, path, how.how(), true) {
            if let Err(error) = done {
                log::info!("{}: keeps its own text: {error}", library.display());
            }
        }
    }
    install::split(store, path, Some(split), how.how())?;
    Ok(split.to_owned())
}

fn has_its_text(store: &Store, half: &Path) -> bool {
    let Ok(abc) = install::read(half) else { return false };
    AbcHead::find(&abc).is_ok_and(|head| store.text(&head.record.key).is_ok())
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
