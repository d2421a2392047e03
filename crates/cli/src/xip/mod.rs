//! `towa xip`: executables in two files, whose code pages are mapped from NVM.

mod model;
mod plan;

use anyhow::Result;
use clap::{Args, Subcommand};

/// Executables in two files: code pages are mapped from NVM, never read or copied.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub struct XipArgs {
    #[command(subcommand)]
    command: XipCommand,
}

#[derive(Debug, Subcommand)]
enum XipCommand {
    Model(model::ModelArgs),
    Plan(plan::PlanArgs),
}

/// `towa xip`.
pub fn run(args: &XipArgs) -> Result<()> {
    match &args.command {
        XipCommand::Model(args) => model::run(args),
        XipCommand::Plan(args) => plan::run(args),
    }
}
