//! `towa xip join` and `gc`: the ways back.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use towa_xip::install;
use towa_xip::store::Store;

use crate::report::{self, bytes};

/// Make split programs whole again, byte for byte as they were.
#[derive(Debug, Args)]
pub struct JoinArgs {
    /// Split programs.
    #[arg(value_name = "PROGRAM", required = true)]
    programs: Vec<PathBuf>,
    /// Leave the split program as it is, and make the whole one OUT: for debuggers, for another machine.
    #[arg(long, short, value_name = "OUT")]
    output: Option<PathBuf>,
    /// Where the texts are, if not where the program looks for them.
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
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
    anyhow::ensure!(args.output.is_none() || args.programs.len() == 1, "-o is for one program; {} are given", args.programs.len());
    for program in &args.programs {
        let path = install::join(program, args.output.as_deref(), args.store.as_deref())?;
        report::print(&format!("{}: whole again\n", report::path(&path)))?;
    }
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
        report::print(&format!("{}: split no more\n", report::path(path)))?;
    }
    for path in &done.kept {
        report::print(&format!("{}: its directory is not there; its text is kept\n", report::path(path)))?;
    }
    let total: u64 = done.texts.iter().map(|text| text.bytes).sum();
    report::print(&format!("{} texts {would}removed, {}\n", done.texts.len(), bytes(total)))
}
