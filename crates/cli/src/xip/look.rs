//! `towa xip stat` and `verify`: looking, changing nothing.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use towa_xip::stat::{Stat, stat as stat_of};
use towa_xip::store::Store;

use crate::failure;
use crate::progress::Progress;
use crate::report::{self, Lines, bytes};

/// What programs and libraries consist of, and where each part lies.
#[derive(Debug, Args)]
pub struct StatArgs {
    /// Report as JSON.
    #[arg(long)]
    json: bool,
    /// A store to look for libraries' texts in; programs say themselves where theirs is.
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// Programs, libraries.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

/// Check a store: its texts, and each program and library that has its text there.
///
/// Each program must, with its text, give back the file that was split, and is started as far as its first instruction, which is not
/// executed. Exit status 3 if something is wrong.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Do not start programs.
    #[arg(long)]
    no_start: bool,
    /// Report as JSON.
    #[arg(long)]
    json: bool,
    /// The store.
    #[arg(value_name = "STORE")]
    store: PathBuf,
}

/// `towa xip stat`.
pub fn stat(args: &StatArgs) -> Result<()> {
    let (json, path) = (args.json, report::path);
    let open = |dir: &PathBuf| report::bad_news(json, ("store", path(dir)), Store::open(dir).map_err(Into::into));
    let store = args.store.as_ref().map(open).transpose()?;
    let look = |file: &PathBuf| report::bad_news(json, ("file", path(file)), stat_of(file, store.as_ref()).map_err(Into::into));
    let found = args.files.iter().map(look).collect::<Result<Vec<Stat>>>()?;
    if args.json {
        return report::json(&found);
    }
    let mut lines = Lines::default();
    found.iter().for_each(|stat| describe(&mut lines, stat));
    lines.print()
}

fn describe(lines: &mut Lines, stat: &Stat) {
    lines.heading(&report::path(&stat.path));
    let split = if stat.text.is_some() { ", its text in a store" } else { "" };
    lines.line("kind", format!("{}{split}", stat.kind));
    lines.line("file", format!("{}, takes {}", bytes(stat.len), bytes(stat.allocated)));
    let pages = stat.pages;
    lines.line("pages", format!("{} text, {} read-only data, {} data", pages.text, pages.rodata, pages.data));
    lines.line("text share", format!("S = {:.3}", stat.text_share));
    lines.line("build-id", stat.build_id.as_deref().unwrap_or("none"));
    let Some(text) = &stat.text else { return };
    lines.line("text", report::path(&text.path));
    match &text.problem {
        Some(problem) => lines.line("", problem),
        None => {
            let sealed = if text.sealed { ", immutable" } else { "" };
            lines.line(
                "",
                format!("{} pages of text and {} of read-only data mapped from there", text.text_pages, text.rodata_pages),
            );
            lines.line("", format!("takes {}{sealed}", bytes(text.allocated)));
        }
    }
    lines.line("store", format!("{} ({})", report::path(&text.store), medium(&text.store)));
    if stat.kind != "library" {
        lines.line("libraries", if stat.libs { "mapped from the store, where it has them" } else { "as they are" });
    }
}

/// What a store is on: whether its text is executed where it lies.
fn medium(store: &Path) -> String {
    match towa_media::detect(store) {
        Ok(found) if found.kind == towa_media::Kind::Dax => {
            format!("{} on {}, DAX: executed where it lies", found.fs, found.device)
        }
        Ok(found) => format!("{} on {}: executed from the page cache", found.fs, found.device),
        Err(error) => error.to_string(),
    }
}

/// `towa xip verify`.
pub fn verify(args: &VerifyArgs) -> Result<()> {
    let look = || -> Result<_> {
        let store = Store::open(&args.store)?;
        let bar = Progress::count("verifying");
        Ok(store.verify(!args.no_start, |done, all| bar.at(done, all))?)
    };
    let found = report::bad_news(args.json, ("store", report::path(&args.store)), look())?;
    if args.json {
        report::json(&found)?;
    } else {
        for problem in &found.problems {
            report::line(format_args!("{}: {}", report::path(&problem.path), problem.what))?;
        }
        let towa_xip::verify::Verified { programs, libraries, texts, .. } = &found;
        report::line(format_args!(
            "{programs} programs and {libraries} libraries are sound; {texts} texts, {}",
            bytes(found.bytes)
        ))?;
        for (paths, what) in [
            (&found.stale, "not split any more, or not there (`towa xip gc` tells what becomes of its text)"),
            (&found.unseen, "not looked at: its directory is not there"),
        ] {
            paths.iter().try_for_each(|path| report::line(format_args!("{}: {what}", report::path(path))))?;
        }
    }
    match found.problems.len() {
        0 => Ok(()),
        count => Err(failure::coded(failure::DAMAGED, format!("{}: {count} problems", args.store.display()))),
    }
}
