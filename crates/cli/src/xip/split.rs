//! `towa xip split`.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use towa_xip::elf::Kind;
use towa_xip::install::{self, How};
use towa_xip::needed;
use towa_xip::split::Options;
use towa_xip::store::Store;

use crate::progress::Progress;
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
/// programs map its text from the store. In a directory everything that can be split is; what cannot is told, and is no failure.
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
    let lines = report::bad_news(args.json, ("store", report::path(&args.store)), split_all(args))?;
    if args.json {
        report::json(&lines)?;
    } else {
        lines.iter().try_for_each(|line| report::print(&format!("{line}\n")))?;
        if lines.len() > 1 {
            report::print(&summary(&lines))?;
        }
    }
    Ok(())
}

fn split_all(args: &SplitArgs) -> Result<Vec<Line>> {
    let store = Store::open_or_create(&args.store)?;
    if args.output.is_some() {
        anyhow::ensure!(
            args.files.len() == 1 && !args.files[0].is_dir(),
            "-o is for one program; {} files are given",
            args.files.len()
        );
    }
    let mut lines = Vec::new();
    for file in &args.files {
        if file.is_dir() {
            split_dir(&store, file, args, &mut lines)?;
        } else {
            split_one(&store, file, args, &mut lines)?;
        }
    }
    Ok(lines)
}

fn split_one(store: &Store, file: &Path, args: &SplitArgs, lines: &mut Vec<Line>) -> Result<()> {
    let mut notes = Vec::new();
    if args.how.libs {
        notes = split_libraries(store, file, args.how.how(), lines);
    }
    let done = install::split(store, file, args.output.as_deref(), args.how.how())?;
    lines.push(Line::of(done, notes));
    Ok(())
}

/// Puts the texts of a program's libraries into the store; gives what could not be, which is no reason not to split the program.
pub fn put_libraries(store: &Store, program: &Path, how: How) -> Vec<(PathBuf, towa_xip::Result<install::Done>)> {
    let libraries = match needed::libraries(program) {
        Ok(libraries) => libraries,
        Err(error) => return vec![(program.to_owned(), Err(error))],
    };
    libraries.into_iter().map(|library| (library.clone(), install::split(store, &library, None, how))).collect()
}

fn split_libraries(store: &Store, program: &Path, how: How, lines: &mut Vec<Line>) -> Vec<String> {
    let mut notes = Vec::new();
    for (library, done) in put_libraries(store, program, how) {
        match done {
            Ok(_) if lines.iter().any(|line| line.path == report::path(&library)) => {}
            Ok(done) => lines.push(Line::of(done, Vec::new())),
            Err(error) => notes.push(format!("a library keeps its own text: {error}")),
        }
    }
    notes
}

fn split_dir(store: &Store, dir: &Path, args: &SplitArgs, lines: &mut Vec<Line>) -> Result<()> {
    let mut files = Vec::new();
    elf_files(dir, &mut files).with_context(|| format!("{}: looking for programs", dir.display()))?;
    let bar = Progress::count("splitting");
    let count = files.len() as u64;
    for (index, file) in files.iter().enumerate() {
        bar.at(index as u64, count);
        match split_one(store, file, args, lines) {
            Ok(()) => {}
            Err(error) if is_about_the_file(&error) => lines.push(Line::refused(file, &error)),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether the next file may fare better.
fn is_about_the_file(error: &anyhow::Error) -> bool {
    use towa_xip::Error::*;
    matches!(error.downcast_ref(), Some(Unfit { .. } | Unsafe { .. } | Busy { .. } | NotUsable { .. } | Io { .. }))
}

/// Files below `dir` that begin like ELF, by name; links are not followed.
fn elf_files(dir: &Path, into: &mut Vec<PathBuf>) -> std::io::Result<()> {
    let mut entries = fs::read_dir(dir)?.collect::<std::io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let kind = entry.file_type()?;
        let path = entry.path();
        if kind.is_dir() {
            elf_files(&path, into)?;
        } else if kind.is_file() {
            let mut first = [0; 4];
            let read = fs::File::open(&path).and_then(|mut file| file.read_exact(&mut first));
            if read.is_ok() && first == *b"\x7fELF" {
                into.push(path);
            }
        }
    }
    Ok(())
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
            not_split: Some(crate::failure::message(error)),
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
