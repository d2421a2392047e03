//! `towa snap restart`.

use anyhow::Result;
use clap::Args;
use towa_snap::restart::{Files, How, Options};
use towa_snap::store::Store;

use super::Place;
use super::run::Mode;

/// Start a program again from a checkpoint.
///
/// It has its old number, which must be free, the standard streams of this command where it had a terminal or pipes, and its files, which must
/// be there as they were. This command passes on to it the signals that it gets, and ends when it does. (If this command is killed by SIGKILL the
/// program goes on.)
///
/// Who may not choose numbers (that takes root, or CAP_CHECKPOINT_RESTORE) restarts programs of his own all the same: in a user and a pid
/// namespace, where the program has its old number. After a reboot the program's clocks (CLOCK_MONOTONIC, CLOCK_BOOTTIME) go on where they were,
/// in a time namespace.
#[derive(Debug, Args)]
pub struct RestartArgs {
    /// The directory of the checkpoints; the newest one, or @N.
    #[arg(value_name = "DIR[@N]", value_parser = super::places())]
    place: Place,
    /// Make files that the program was writing what they were: from the checkpoint's copy where the file system clones files, else cut back to
    /// the length they had.
    #[arg(long)]
    rewind_files: bool,
    /// Go on with files that the program was writing as they are now. For logs and the like.
    #[arg(long, conflicts_with = "rewind_files")]
    keep_files: bool,
    /// Mark the checkpoint as used up before the program runs: it cannot be restarted from it again.
    #[arg(long)]
    once: bool,
    /// Let the program run at once: each page of its memory is read when it touches it, and the rest meanwhile.
    ///
    /// Until all is read, the end of this command is the end of the program (and of children it has forked), whatever ends it; and no
    /// checkpoint can be taken. Takes root; without the right to do it, the restart is an eager one.
    #[arg(long, conflicts_with = "eager")]
    lazy: bool,
    /// Read all memory before the program runs. This is the default.
    #[arg(long)]
    eager: bool,
    /// In a pid namespace of its own, where its number is free though something else has it here: even the program itself may still run.
    /// `nsenter` leads there for the next checkpoint.
    #[arg(long)]
    pid_namespace: bool,
    /// Where the program's memory is to be: of one that ran in mode nv it is mapped in mode nv, which copies nothing and takes no longer for more
    /// memory (but no checkpoint can be taken of it then); else it is read. As it was, if not given.
    #[arg(long, value_enum, value_name = "MODE")]
    mode: Option<Mode>,
}

/// `towa snap restart`.
pub fn run(args: &RestartArgs) -> Result<()> {
    let store = Store::open(&args.place.dir)?;
    let checkpoint = store.open_checkpoint(args.place.which)?;
    let files = match (args.rewind_files, args.keep_files) {
        (true, _) => Files::Rewind,
        (_, true) => Files::Keep,
        _ => Files::Refuse,
    };
    let memory = if args.lazy { How::Lazy } else { How::Eager };
    if args.mode == Some(Mode::Nv) && checkpoint.pool().is_none() {
        anyhow::bail!("checkpoint {} was not taken in mode nv; restart it without --mode nv", checkpoint.number());
    }
    let nv = args.mode != Some(Mode::Dram);
    let options = Options { files, memory, nv, pid_namespace: args.pid_namespace };
    let number = checkpoint.number();
    // Not before all is ready: a restart that is refused uses nothing up.
    let mut ready = || if args.once { store.consume(number) } else { Ok(()) };
    super::end_as(towa_snap::restart::run(checkpoint, &options, &mut ready)?)
}
