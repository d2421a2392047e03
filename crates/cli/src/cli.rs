//! What can be asked for: the subcommands and the help that teaches them.

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::{
    backup, bench, checkpointer, crash_test, failure, generate, info, recover, serve, snap, stats, tx_load, verify, vm, xip,
};

/// Durable memory for ordinary programs.
///
/// A pool is a directory that keeps a program's in-memory data through crashes: the program works in memory at full speed, and
/// what it did is durable a moment later. `towa serve` is a memcached on such a pool; C, C++ and Rust programs use pools
/// through a library.
#[derive(Debug, Parser)]
#[command(name = "towa", version, propagate_version = true, arg_required_else_help = true, after_long_help = after_help(), after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  towa serve                         a memcached that survives, on 127.0.0.1:11211
  towa serve --pool /mnt/pmem/cache -m 4096 -t 8
  towa info /mnt/pmem                what would survive there, and what not
  towa stats --watch 1               what a running server is doing
  towa verify /mnt/pmem/cache        check every structure and checksum, change nothing
  towa backup /mnt/pmem/cache /backup/cache   copy a pool, while it is served";

fn after_help() -> String {
    format!(
        "{EXAMPLES}\n\nExit status:\n{}\nMessages of the library are shown by RUST_LOG=info (or debug, trace).",
        failure::table()
    )
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    Serve(Box<serve::ServeArgs>),
    Info(info::InfoArgs),
    Verify(verify::VerifyArgs),
    Recover(recover::RecoverArgs),
    Backup(backup::BackupArgs),
    Stats(stats::StatsArgs),
    Checkpointer(checkpointer::CheckpointerArgs),
    Snap(snap::SnapArgs),
    Xip(xip::XipArgs),
    Bench(bench::BenchArgs),
    CrashTest(crash_test::CrashTestArgs),
    Completions(generate::CompletionsArgs),
    Man(generate::ManArgs),
    #[command(hide = true)]
    BenchChild(bench::ChildArgs),
    #[command(hide = true)]
    VmLoad(vm::LoadArgs),
    #[command(hide = true)]
    VmCheck(vm::CheckArgs),
    #[command(hide = true)]
    TxLoad(tx_load::LoadArgs),
    #[command(hide = true)]
    TxCheck(tx_load::CheckArgs),
}

impl Command {
    /// Does what was asked for.
    pub fn run(self) -> Result<()> {
        match self {
            Command::Serve(args) => serve::run(&args),
            Command::Info(args) => info::run(&args),
            Command::Verify(args) => verify::run(&args),
            Command::Recover(args) => recover::run(&args),
            Command::Backup(args) => backup::run(&args),
            Command::Stats(args) => stats::run(&args),
            Command::Checkpointer(args) => checkpointer::run(&args),
            Command::Snap(args) => snap::run(args),
            Command::Xip(args) => xip::run(args),
            Command::Bench(args) => bench::run(args),
            Command::BenchChild(args) => bench::run_child(&args),
            Command::CrashTest(args) => crash_test::run(&args),
            Command::Completions(args) => generate::completions(&args),
            Command::Man(args) => generate::man(&args),
            Command::VmLoad(args) => vm::load(&args),
            Command::VmCheck(args) => vm::check(&args),
            Command::TxLoad(args) => tx_load::load(&args),
            Command::TxCheck(args) => tx_load::check(&args),
        }
    }

    /// Whether it must outlive the reader of its output: it has a pool to close, or processes to end.
    pub fn outlives_its_reader(&self) -> bool {
        match self {
            Command::Xip(args) => args.outlives_its_reader(),
            _ => self.has_something_to_close(),
        }
    }

    fn has_something_to_close(&self) -> bool {
        matches!(
            self,
            Command::Serve(_)
                | Command::Checkpointer(_)
                | Command::VmLoad(_)
                | Command::TxLoad(_)
                | Command::Bench(_)
                | Command::BenchChild(_)
        )
    }

    /// How much is logged.
    pub fn verbosity(&self) -> u8 {
        match self {
            Command::Serve(args) => args.verbose,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definitions_hold_together() {
        Cli::command().debug_assert();
    }
}
