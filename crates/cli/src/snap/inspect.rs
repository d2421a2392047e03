//! `towa snap inspect`: what a checkpoint holds, for people to read.

use std::path::Path;

use anyhow::Result;
use clap::Args;
use towa_snap::state::State;
use towa_snap::state::descriptors::{Kind, in_words};
use towa_snap::state::region::Backing;
use towa_snap::store::Store;

use super::Place;
use crate::report::{self, Lines, bytes};

/// Show what a checkpoint holds: the program, its threads, memory, descriptors.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// Report all of it as JSON.
    #[arg(long)]
    json: bool,
    /// The directory of the checkpoints; the newest one, or @N.
    #[arg(value_name = "DIR[@N]", value_parser = super::places())]
    place: Place,
}

/// `towa snap inspect`.
pub fn inspect(args: &InspectArgs) -> Result<()> {
    let opened = || -> Result<_> {
        let checkpoint = Store::open(&args.place.dir)?.open_checkpoint(args.place.which)?;
        let state = State::decode(checkpoint.manifest())?;
        Ok((checkpoint, state))
    };
    let (checkpoint, state) = report::bad_news(args.json, ("directory", report::path(&args.place.dir)), opened())?;
    if args.json {
        return report::json(&state);
    }
    let process = &state.process;
    let mut lines = Lines::default();
    lines.row(format_args!("checkpoint {}", checkpoint.number()));
    lines.row(format_args!("process {}: {}", process.pid, process.arguments.join(" ")));
    lines.row(format_args!("in {}", report::path(&process.directory)));
    lines.row(format_args!("on {}", state.kernel));
    lines.heading("");
    lines.heading("threads");
    for thread in &state.threads {
        lines.row(format_args!("  {:>7}  {}", thread.tid, thread.name));
    }
    lines.heading("");
    lines.heading("descriptors");
    for descriptor in &state.descriptors.table {
        lines.row(format_args!("  {:>5}  {}", descriptor.fd, file(&state.descriptors.files[descriptor.file].kind)));
    }
    lines.heading("");
    lines.heading("memory");
    for region in &state.regions {
        let content: u64 = checkpoint.runs(region.pages.clone()).map(|run| (run.pages.end - run.pages.start) * 4096).sum();
        let [len, content] = [region.len(), content].map(bytes);
        let what = backing(&region.backing);
        lines.row(format_args!("  {:>12x}  {len:>10}  kept {content:>10}  {what}", region.start()));
    }
    lines.print()
}

/// An open file, in words.
fn file(kind: &Kind) -> String {
    let at = |path: &Path, position: u64| format!("{}, at {position}", report::path(path));
    match kind {
        Kind::Regular { path, position, locks, .. } if locks.is_empty() => at(path, *position),
        Kind::Regular { path, position, .. } => format!("{}, locked", at(path, *position)),
        Kind::Nameless { name, memfd: true, position, .. } => format!("memfd {}, at {position}, kept", name),
        Kind::Nameless { name, position, .. } => format!("{} (removed), at {position}, kept", name),
        Kind::Directory { path, .. } => format!("directory {}", report::path(path)),
        Kind::Own { path, .. } => format!("/proc/self/{}", report::path(path)),
        Kind::Device { path } => report::path(path),
        Kind::Standard { stream: 0, .. } => "standard input of the restart".into(),
        Kind::Standard { stream: 1, .. } => "standard output of the restart".into(),
        Kind::Standard { .. } => "standard error of the restart".into(),
        Kind::PipeEnd { pipe, writes } => format!("pipe {pipe}, {} end", if *writes { "write" } else { "read" }),
        Kind::PairEnd { pair, second } => format!("pair of sockets {pair}, {} end", if *second { "second" } else { "first" }),
        Kind::Event { count, .. } => format!("eventfd, {count}"),
        Kind::Timer { value_ns: 0, .. } => "timerfd, not armed".into(),
        Kind::Timer { value_ns, .. } => format!("timerfd, expires in {}", report::micros(value_ns / 1000)),
        Kind::Signal { mask } => format!("signalfd, signals {mask:x}"),
        Kind::Epoll { watches } => format!("epoll, of {} descriptors", watches.len()),
        Kind::Listening { address, backlog, .. } => format!("listens at {}, backlog {backlog}", in_words(address)),
    }
}

/// What is mapped, in words.
fn backing(backing: &Backing) -> String {
    match backing {
        Backing::Anonymous { name } if name.is_empty() => "memory".into(),
        Backing::Anonymous { name } => format!("memory, {}", name),
        Backing::SharedAnonymous { inode, offset } => format!("shared memory {inode}, from {offset:x}"),
        Backing::File { path, offset, .. } => format!("{}, from {offset:x}", report::path(path)),
        Backing::Pool { offset } => format!("the pool, from {offset:x}"),
        Backing::Stack => "stack".into(),
        Backing::Kernel { name } => name.clone(),
    }
}
