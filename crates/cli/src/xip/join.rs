//! `towa xip join` and `gc`: the ways back.

use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use towa_xip::install;
use towa_xip::store::Store;

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
    /// Leave the split program as it is, and make the whole one OUT: for debuggers, for another machine.
    #[arg(long, short, value_name = "OUT")]
    output: Option<PathBuf>,
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
}

impl Display for Line {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.not_joined {
            None => write!(f, "{}: whole again", self.path),
            Some(why) => write!(f, "not joined  {why}"),
        }
    }
}

/// Remove texts that no program and no library uses any more.
///
/// Of use is what a program or library needs that was split into this store, as long as it is still at its place and still what it was: not
/// replaced by a package, not joined. Copies of split programs made by `cp` are not known here; join them first, or split them in their place.
#[derive(Debug, Args)]
pub struct GcArgs {
    /// Only say what would go.
    #[arg(long, short = 'n')]
    dry_run: bool,
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
    for program in &args.programs {
        match install::join(program, args.output.as_deref(), args.store.as_deref()) {
            Ok(path) => ledger.write(Line { path: report::path(&path), not_joined: None })?,
            Err(error @ towa_xip::Error::Full { .. }) => return Err(error.into()),
            Err(error) => refuse(program, error.into(), args.programs.len() > 1, ledger)?,
        }
    }
    Ok(())
}

/// It has a line of its own where there are others.
fn refuse(program: &Path, error: anyhow::Error, among_others: bool, ledger: &mut Ledger<Line>) -> Result<()> {
    if among_others {
        ledger.write(Line { path: report::path(program), not_joined: Some(failure::message(&error)) })?;
    }
    ledger.fail(error);
    Ok(())
}

/// `towa xip gc`.
pub fn gc(args: &GcArgs) -> Result<()> {
    let collect = || -> Result<_> { Ok(Store::open(&args.store)?.write()?.collect(args.dry_run)?) };
    let done = report::bad_news(args.json, ("store", report::path(&args.store)), collect())?;
    if args.json {
        return report::json(&done);
    }
    let would = if args.dry_run { "would be " } else { "" };
    for path in &done.forgotten {
        report::line(format_args!("{}: split no more", report::path(path)))?;
    }
    for path in &done.kept {
        report::line(format_args!("{}: its directory is not there; its text is kept", report::path(path)))?;
    }
    let total: u64 = done.texts.iter().map(|text| text.bytes).sum();
    report::line(format_args!("{} texts {would}removed, {}", done.texts.len(), bytes(total)))
}
