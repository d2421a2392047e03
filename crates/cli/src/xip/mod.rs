//! `towa xip`: executables in two files.
//!
//! What must hold: each command is in a file of its own; this one only tells them apart.

mod trace;

use anyhow::Result;
use clap::{Args, Subcommand};

/// Executables in two files, whose code pages are mapped from NVM.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub struct XipArgs {
    #[command(subcommand)]
    command: XipCommand,
}

#[derive(Debug, Subcommand)]
enum XipCommand {
    Trace(trace::TraceArgs),
}

/// `towa xip`.
pub fn run(args: XipArgs) -> Result<()> {
    match args.command {
        XipCommand::Trace(args) => trace::run(&args),
    }
}
