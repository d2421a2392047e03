//! `towa xip`: executables in two files.

mod join;
mod ledger;
mod look;
mod model;
mod place;
mod plan;
mod run;
mod split;
mod table;
mod trace;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::failure;

/// Split executables in two files: code that is mapped from NVM and never read, and the rest.
///
/// The text of a program moves to a store; what stays in the program's place has its name, its length, its data, and starts like any
/// program: from a shell, a script, as the first process. A store on DAX memory is executed in place: text is neither read nor copied, and
/// takes no DRAM. Any other file system works as well; a store on tmpfs is empty after a reboot: that is for `towa xip run`, and for halves
/// beside whole programs (-o).
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "\
Examples:
  towa xip split --store /mnt/pmem/text --libs ./server     split a program; its libraries' text is mapped from there, too
  towa xip split --store /mnt/pmem/text -o ./half ./server  its other half elsewhere, the program as it is
  towa xip split --store /dev/shm/text --volatile ./scratch on tmpfs, for a program that need not outlast a reboot
  towa xip stat ./server                                    what of it lies where
  towa xip run --store /dev/shm/text python3 big.py         run a program split, without changing it
  towa xip verify /mnt/pmem/text                            every text, every program: sound?
  towa xip join ./server                                    whole again, to the byte
  towa xip gc /mnt/pmem/text                                remove texts that nobody uses any more
  towa xip trace --json boot.json -- make -C src            what a command forks, executes and faults
  towa xip plan --budget 64M --trace boot.json              what of it to put on 64 MiB of NVM
  towa xip model                                            the paper's equations and figures

Exit status: as for `towa`, of several files that of the first failure; of `run` that of the program, 127 if it is not there and 126 if it
cannot be started. A split program whose text cannot be found ends with 127, and says which file is not there."
)]
pub struct XipArgs {
    #[command(subcommand)]
    command: XipCommand,
}

impl XipArgs {
    /// Whether it must outlive the reader of its output: it has processes that it traces.
    pub fn outlives_its_reader(&self) -> bool {
        matches!(self.command, XipCommand::Trace(_))
    }
}

#[derive(Debug, Subcommand)]
enum XipCommand {
    Split(split::SplitArgs),
    Join(join::JoinArgs),
    Run(run::RunArgs),
    Stat(look::StatArgs),
    Verify(look::VerifyArgs),
    Gc(join::GcArgs),
    Trace(trace::TraceArgs),
    Plan(plan::PlanArgs),
    Model(model::ModelArgs),
}

/// `towa xip`.
pub fn run(args: XipArgs) -> Result<()> {
    match args.command {
        XipCommand::Split(args) => split::run(&args),
        XipCommand::Join(args) => join::run(&args),
        XipCommand::Run(args) => run::run(&args),
        XipCommand::Stat(args) => look::stat(&args),
        XipCommand::Verify(args) => look::verify(&args),
        XipCommand::Gc(args) => join::gc(&args),
        XipCommand::Trace(args) => trace::run(&args),
        XipCommand::Plan(args) => plan::run(&args),
        XipCommand::Model(args) => model::run(&args),
    }
}

/// The exit status for an error of the xip door.
pub fn code(error: &towa_xip::Error) -> u8 {
    use towa_xip::Error::*;
    match error {
        NotUsable { .. } => failure::DAMAGED,
        NoStore { .. } | Missing { .. } => failure::MISSING,
        Busy { .. } => failure::BUSY,
        Full { .. } => failure::FULL,
        Wrong(_) => failure::USAGE,
        _ => failure::FAILED,
    }
}
