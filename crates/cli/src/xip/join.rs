//! `towa xip join` and `gc`: the ways back.

use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use towa_xip::install;
use towa_xip::store::{Collect, Store};

use super::ledger::Ledger;
use super::place;
use crate::failure;
use crate::report::{self, bytes};

/// Make split programs whole again, byte for byte as they were.
///
/// One that cannot be is as it was; the others are made whole.
#[derive(Debug, Args)]
pub struct JoinArgs {
    /// Split programs.
    #[arg(value_name = "PROGRAM", required = true)]
    programs: Vec<PathBuf>,
    /// Leave the split program as it is, and make the whole one OUT, the same as before it was split: to be debugged from its start, for
    /// another machine. With a core file of the split program a debugger needs another one: --for-debugger.
    #[arg(long, short, value_name = "OUT")]
    output: Option<PathBuf>,
    /// Make OUT a file for a debugger, which reads a core file of the split program with it: whole, but for its program headers. It cannot be
    /// run.
    #[arg(long, requires = "output")]
    for_debugger: bool,
    /// Replace OUT whatever it is; without it only what is empty or a split program.
    #[arg(long, requires = "output")]
    force: bool,
    /// Where the texts are, if not where the program looks for them.
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// Report as JSON.
    #[arg(long)]
    json: bool,
}

/// What became of a program.
#[derive(Serialize)]
struct Line {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_joined: Option<String>,
    #[serde(skip)]
    made: Made,
}

/// What a joined program is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Made {
    InPlace,
    Elsewhere,
    ForDebugger,
}

impl Display for Line {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.not_joined {
            None if self.made == Made::ForDebugger => write!(f, "{}: for a debugger", self.path),
            None if self.made == Made::InPlace => write!(f, "{}: whole again", self.path),
            None => write!(f, "{}: whole (with core files of the split one a debugger needs what --for-debugger makes)", self.path),
            Some(why) => write!(f, "not joined  {why}"),
        }
    }
}

/// Remove texts that no program and no library uses any more.
///
/// A text cannot be made anew without its program, so it goes only if that is known to be whole: joined, or never replaced. The text of a
/// program that is not at its place any more is kept, for it may have been moved; --force removes it as well. Copies of split programs made
/// by `cp` are not known here; join them first, or split them in their place.
#[derive(Debug, Args)]
pub struct GcArgs {
    /// Only say what would go.
    #[arg(long, short = 'n')]
    dry_run: bool,
    /// Remove also the texts of programs that are not at their place any more: removed, replaced by a package, or moved. One that was
    /// moved, and is split, does not run after that.
    #[arg(long)]
    force: bool,
    /// Report as JSON.
    #[arg(long)]
    json: bool,
    /// The store.
    #[arg(value_name = "STORE")]
    store: PathBuf,
}

/// `towa xip join`.
pub fn run(args: &JoinArgs) -> Result<()> {
    let mut ledger = Ledger::new(args.json);
    if let Err(error) = join_all(args, &mut ledger) {
        ledger.fail(error);
    }
    ledger.close(("program", report::path(&args.programs[0])))
}

fn join_all(args: &JoinArgs, ledger: &mut Ledger<Line>) -> Result<()> {
    if let Some(out) = &args.output {
        place::check_output(out, &args.programs, args.force)?;
    }
    let made = match &args.output {
        Some(_) if args.for_debugger => Made::ForDebugger,
        Some(_) => Made::Elsewhere,
        None => Made::InPlace,
    };
    for program in &args.programs {
        let joined = match (&args.output, args.store.as_deref()) {
            (Some(out), store) if args.for_debugger => install::join_for_debugger(program, out, store),
            (out, store) => install::join(program, out.as_deref(), store),
        };
        match joined {
            Ok(path) => ledger.write(Line { path: report::path(&path), not_joined: None, made })?,
            Err(error @ towa_xip::Error::Full { .. }) => return Err(error.into()),
            Err(error) => refuse(program, error.into(), (args.programs.len() > 1).then_some(made), ledger)?,
        }
    }
    Ok(())
}

/// It has a line of its own where there are others.
fn refuse(program: &Path, error: anyhow::Error, among_others: Option<Made>, ledger: &mut Ledger<Line>) -> Result<()> {
    if let Some(made) = among_others {
        ledger.write(Line { path: report::path(program), not_joined: Some(failure::message(&error)), made })?;
    }
    ledger.fail(error);
    Ok(())
}

/// `towa xip gc`.
pub fn gc(args: &GcArgs) -> Result<()> {
    let how = Collect { dry: args.dry_run, force: args.force };
    let collect = || -> Result<_> { Ok(Store::open(&args.store)?.write()?.collect(how)?) };
    let done = report::bad_news(args.json, ("store", report::path(&args.store)), collect())?;
    if args.json {
        return report::json(&done);
    }
    let would = if args.dry_run { "would be " } else { "" };
    for path in &done.forgotten {
        report::line(format_args!("{}: split no more", report::path(path)))?;
    }
    for path in &done.missed {
        let what = "not there any more, or replaced; its text is kept, for it may have been moved (--force removes it)";
        report::print(&format!("{}: {what}\n", report::path(path)))?;
    }
    for path in &done.kept {
        report::line(format_args!("{}: its directory is not there; its text is kept", report::path(path)))?;
    }
    let total: u64 = done.texts.iter().map(|text| text.bytes).sum();
    report::line(format_args!("{} texts {would}removed, {}", done.texts.len(), bytes(total)))
}
