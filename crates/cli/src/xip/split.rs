//! `towa xip split`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use towa_xip::elf::Kind;
use towa_xip::install::{self, How};
use towa_xip::needed;
use towa_xip::split::Options;
use towa_xip::store::{Identity, Store};

use super::ledger::Ledger;
use super::place;
use crate::failure;
use crate::report::{self, bytes};

/// How text is split off; of `split` and `run`.
#[derive(Clone, Debug, Args)]
pub struct HowArgs {
    /// Map read-only data from the store as well.
    #[arg(long)]
    with_rodata: bool,
    /// Map the text of the program's libraries from the store as well. The libraries themselves stay as they are: other programs do not
    /// notice. Those that a program opens later (plug-ins) are split by naming them.
    #[arg(long)]
    pub libs: bool,
    /// Lay text out so that DAX can map it with pages of 2 MiB. It takes up to 4 MiB more of the store.
    #[arg(long)]
    huge: bool,
    /// Make texts immutable. Needs root and a file system that can; `towa xip gc` still removes them.
    #[arg(long)]
    seal: bool,
}

impl HowArgs {
    /// As the library takes it.
    pub fn how(&self) -> How {
        How { split: Options { with_rodata: self.with_rodata, libs: self.libs, huge: self.huge }, sealed: self.seal }
    }
}

/// Move the text of programs and libraries to a store.
///
/// A program is replaced at once by its other half, which starts as before; `towa xip join` undoes it. A library stays as it is, and split
/// programs map its text from the store. In a directory everything that can be split is; what cannot is told, and is no failure, unless
/// nothing can be, or a program would not have started. A file that is named and cannot be split is as it was; the others are split.
///
/// Debuggers: `starti`, `hbreak main`, `continue`, then as ever. Give `towa xip join -o` to what reads text from the file (core dumps, `strip`).
#[derive(Debug, Args)]
pub struct SplitArgs {
    /// Programs, libraries, directories.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Directory of the texts; made if it is not there. Programs look for it under this name when they start.
    #[arg(long, value_name = "DIR")]
    store: PathBuf,
    #[command(flatten)]
    how: HowArgs,
    /// Leave the program as it is, and make its other half OUT.
    #[arg(long, short, value_name = "OUT")]
    output: Option<PathBuf>,
    /// Replace OUT whatever it is; without it only what is empty or a split program.
    #[arg(long, requires = "output")]
    force: bool,
    /// Split programs in their place though the store is on tmpfs: a reboot loses their text, and with it the programs.
    #[arg(long)]
    volatile: bool,
    /// Report as JSON.
    #[arg(long)]
    json: bool,
}

/// What became of a file.
#[derive(Debug, Serialize)]
struct Line {
    path: String,
    kind: Option<&'static str>,
    text: Option<String>,
    mapped_bytes: u64,
    file_bytes: u64,
    notes: Vec<String>,
    not_split: Option<String>,
}

/// `towa xip split`.
pub fn run(args: &SplitArgs) -> Result<()> {
    let mut ledger = Ledger::new(args.json);
    if let Err(error) = split_all(args, &mut ledger) {
        ledger.fail(error);
    }
    if !args.json && ledger.lines().len() > 1 {
        report::print(&summary(ledger.lines()))?;
    }
    ledger.close(("store", report::path(&args.store)))
}

fn split_all(args: &SplitArgs, ledger: &mut Ledger<Line>) -> Result<()> {
    if let Some(out) = &args.output {
        place::check_output(out, &args.files, args.force)?;
    }
    let is_same =
        |out: &PathBuf| fs::canonicalize(out).is_ok_and(|out| fs::canonicalize(&args.files[0]).is_ok_and(|file| out == file));
    if !args.volatile && args.output.as_ref().is_none_or(is_same) {
        place::check_lasting(&args.store, &args.files)?;
    }
    let store = Store::open_or_create(&args.store)?;
    for file in &args.files {
        let done = if file.is_dir() { split_dir(&store, file, args, ledger) } else { split_one(&store, file, args, ledger) };
        match done {
            Err(error) if is_about_a_file(&error, &store) => {
                if args.files.len() > 1 {
                    ledger.write(Line::refused(file, &error))?;
                }
                ledger.fail(error);
            }
            other => other?,
        }
    }
    Ok(())
}

fn split_one(store: &Store, file: &Path, args: &SplitArgs, ledger: &mut Ledger<Line>) -> Result<()> {
    let mut notes = Vec::new();
    if args.how.libs {
        notes = split_libraries(store, file, args.how.how(), ledger)?;
    }
    let done = install::split(store, file, args.output.as_deref(), args.how.how())?;
    ledger.write(Line::of(done, notes))
}

/// Puts the texts of a program's libraries into the store, or of those alone that have none there (`missing_only`); gives what could not be,
/// which is no reason not to split the program.
pub fn put_libraries(
    store: &Store,
    program: &Path,
    how: How,
    missing_only: bool,
) -> Vec<(PathBuf, towa_xip::Result<install::Done>)> {
    let libraries = match needed::libraries(program) {
        Ok(libraries) => libraries,
        Err(error) => return vec![(program.to_owned(), Err(error))],
    };
    let is_there = |library: &PathBuf| {
        let text = fs::metadata(library).ok().and_then(|about| store.library_text(&Identity::of(&about)));
        text.is_some_and(|text| !how.split.with_rodata || text.has_rodata())
    };
    let wanted = libraries.into_iter().filter(|library| !(missing_only && is_there(library)));
    wanted.map(|library| (library.clone(), install::split(store, &library, None, how))).collect()
}

fn split_libraries(store: &Store, program: &Path, how: How, ledger: &mut Ledger<Line>) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    for (library, done) in put_libraries(store, program, how, false) {
        match done {
            Ok(_) if ledger.lines().iter().any(|line| line.path == report::path(&library)) => {}
            Ok(done) => ledger.write(Line::of(done, Vec::new()))?,
            Err(error) => notes.push(format!("a library keeps its own text: {error}")),
        }
    }
    Ok(notes)
}

/// Everything in `dir` that can be split. What cannot is no failure; that something which can does not start is one, and that there is nothing.
fn split_dir(store: &Store, dir: &Path, args: &SplitArgs, ledger: &mut Ledger<Line>) -> Result<()> {
    let mut files = Vec::new();
    place::elf_files(dir, &mut files).map_err(towa_xip::Error::io(dir, "looking for programs"))?;
    let (mut split, mut broken) = (0, 0);
    for file in &files {
        match split_one(store, file, args, ledger) {
            Ok(()) => split += 1,
            Err(error) if is_about_a_file(&error, store) => {
                ledger.write(Line::refused(file, &error))?;
                if matches!(error.downcast_ref(), Some(towa_xip::Error::NotUsable { .. })) {
                    broken += 1;
                    ledger.fail(failure::coded(failure::FAILED, failure::message(&error)));
                }
            }
            Err(error) => return Err(error),
        }
    }
    if split + broken == 0 {
        let what = if files.is_empty() { "there is no program and no library in it" } else { "nothing in it could be split" };
        ledger.fail(failure::coded(failure::FAILED, format!("{}: {what}", dir.display())));
    }
    Ok(())
}

/// Whether the next file may fare better.
fn is_about_a_file(error: &anyhow::Error, store: &Store) -> bool {
    use towa_xip::Error::*;
    match error.downcast_ref() {
        Some(Unfit { .. } | Unsafe { .. } | NotUsable { .. }) => true,
        Some(Busy { path } | Io { path, .. }) => !path.starts_with(store.path()),
        _ => false,
    }
}

fn summary(lines: &[Line]) -> String {
    let split = || lines.iter().filter(|line| line.not_split.is_none());
    let [mapped, all] = [split().map(|line| line.mapped_bytes).sum(), split().map(|line| line.file_bytes).sum()].map(bytes);
    let count = split().count();
    format!("{count} split, {} not; {mapped} of {all} are mapped from the store\n", lines.len() - count)
}

impl Line {
    fn of(done: install::Done, notes: Vec<String>) -> Line {
        let kind = match done.kind {
            Kind::Program => "program",
            Kind::Static => "static program",
            Kind::Library => "library",
        };
        Line {
            path: report::path(&done.path),
            kind: Some(kind),
            text: Some(report::path(&done.text)),
            mapped_bytes: done.mapped,
            file_bytes: done.len,
            notes: done.notes.into_iter().chain(notes).collect(),
            not_split: None,
        }
    }

    fn refused(path: &Path, error: &anyhow::Error) -> Line {
        Line {
            path: report::path(path),
            kind: None,
            text: None,
            mapped_bytes: 0,
            file_bytes: fs::metadata(path).map_or(0, |about| about.len()),
            notes: Vec::new(),
            not_split: Some(failure::message(error)),
        }
    }
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.not_split, self.kind) {
            (Some(why), _) => write!(f, "not split  {}", report::plain(why))?,
            (None, kind) => {
                let kind = kind.unwrap_or("file");
                let [mapped, all] = [self.mapped_bytes, self.file_bytes].map(bytes);
                write!(f, "{}: {kind}, {mapped} of {all} mapped from the store", self.path)?;
            }
        }
        self.notes.iter().try_for_each(|note| write!(f, "\n  note: {}", report::plain(note)))
    }
}
