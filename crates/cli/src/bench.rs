//! `towa bench`: the measurements behind every figure in the documents.

use anyhow::Result;
use clap::{Args, Subcommand};
use towa_bench::epoch::{self, EpochBenchArgs};
use towa_bench::snap::{self, SnapBenchArgs};
use towa_bench::tx::{self, TxBenchArgs};
use towa_bench::xip::{self, XipBenchArgs};

/// Measure a door beside its peers, on this machine.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  towa bench epoch --quick                           four minutes at most
  towa bench epoch --json out.json --html out.html
  towa bench epoch --quick --only mixed,drift        as a cache, beside memcached
  towa bench tx --quick --html out.html
  towa bench snap --quick --json out.json
  towa bench xip --quick --html out.html")]
pub struct BenchArgs {
    #[command(subcommand)]
    door: Door,
}

#[derive(Debug, Subcommand)]
enum Door {
    Epoch(Box<EpochBenchArgs>),
    Tx(Box<TxBenchArgs>),
    Snap(Box<SnapBenchArgs>),
    Xip(Box<XipBenchArgs>),
}

/// A process that the benchmark starts for itself.
#[derive(Debug, Args)]
pub struct ChildArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// `towa bench`.
pub fn run(args: BenchArgs) -> Result<()> {
    match args.door {
        Door::Epoch(args) => epoch::run(*args),
        Door::Tx(args) => tx::run(*args),
        Door::Snap(args) => snap::run(*args),
        Door::Xip(args) => xip::run(*args),
    }
}

/// `towa bench-child`.
pub fn run_child(args: &ChildArgs) -> Result<()> {
    towa_bench::child_main(&args.args)
}
