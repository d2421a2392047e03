//! `towa crash-test`: crashes a simulated machine at every moment and checks what recovery makes of it.

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use towa_crash_test::{epoch, tree, tx};
use towa_media::sim::Model;

use crate::failure;
use crate::progress::Progress;
use crate::report;

/// Prove crash consistency: simulate a crash at every store, flush and fence, recover, and compare with a model.
///
/// Random transactions run on a simulated medium that records everything. For each moment, the sweep makes the images that a crash there
/// could leave (all of them where they are few, a sample where not), recovers each, and checks it against what the program had been
/// promised. Some recoveries are crashed in their turn.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  towa crash-test epoch --images 100000        as in the tests
  towa crash-test tree --tree bptree           the B+-tree alone
  towa crash-test tx --seed 1234               again, after a failure printed its seed")]
pub struct CrashTestArgs {
    #[command(subcommand)]
    door: Door,
}

#[derive(Debug, Subcommand)]
enum Door {
    /// Epoch checkpointing: allocation, transactions across epochs, log, image, recovery.
    ///
    /// Each image must be exactly the state at the end of an epoch, not older than the newest acknowledged. With both models also pools in
    /// place, in memory, whose process is killed between any two of its stores (x86-64).
    Epoch(SweepArgs),
    /// Durable transactions: records in lanes, checkpoints, recovery, with one thread and with several at once.
    ///
    /// Each image must hold the transactions that returned, plus possibly one in flight of each thread, whole or not at all, and none
    /// without those whose values it saw. What several threads do at once a seed does not repeat.
    Tx(SweepArgs),
    /// Ordered maps: the B+-tree on durable transactions and the FPTree; splits, merges, keys of both kinds, full heaps.
    ///
    /// Each image must hold the operations that returned, plus possibly the one in flight, in a tree that keeps every invariant and in
    /// which each block has one owner.
    Tree {
        /// Which tree.
        #[arg(long, value_enum, default_value_t = TreeArg::Both)]
        tree: TreeArg,
        #[command(flatten)]
        args: SweepArgs,
    },
}

#[derive(Debug, Args)]
struct SweepArgs {
    /// Where everything random comes from; drawn and printed if not given.
    #[arg(long)]
    seed: Option<u64>,
    /// About how many crash images to check.
    #[arg(long, default_value_t = 100_000, value_parser = some)]
    images: usize,
    /// What is simulated: cache lines, a file, or both in turn.
    #[arg(long, value_enum, default_value_t = ModelArg::Both)]
    model: ModelArg,
    /// Report as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ModelArg {
    Line,
    File,
    Both,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TreeArg {
    /// The B+-tree on transactions.
    #[value(name = "bptree")]
    BpTree,
    /// The FPTree.
    #[value(name = "fptree")]
    FpTree,
    /// One in turn with the other.
    Both,
}

impl From<TreeArg> for tree::Which {
    fn from(tree: TreeArg) -> tree::Which {
        match tree {
            TreeArg::BpTree => tree::Which::BpTree,
            TreeArg::FpTree => tree::Which::FpTree,
            TreeArg::Both => tree::Which::Both,
        }
    }
}

/// None at all would prove nothing.
fn some(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| "a number from 1 on".into())
}

/// `towa crash-test`.
pub fn run(args: &CrashTestArgs) -> Result<()> {
    match &args.door {
        Door::Epoch(args) => sweep("epoch", args, epoch::sweep, |r| {
            format!(
                "{} crash images recovered to an acknowledged epoch, {} of them crashes during recovery, {} kills in pools in place\n\
                 {} crash points: {} exhaustive, {} sampled; {} worlds, {} epochs, {} transactions\n",
                r.images,
                r.images_in_recovery,
                r.images_in_place,
                r.crash_points,
                r.exhaustive_points,
                r.sampled_points,
                r.worlds,
                r.epochs,
                r.transactions
            )
        }),
        Door::Tx(args) => sweep("tx", args, tx::sweep, |r| {
            format!(
                "{} crash images recovered to what had returned: {} while threads ran at once, {} during recovery\n\
                 {} crash points: {} exhaustive, {} sampled; {} worlds, {} checkpoints, {} transactions\n",
                r.images,
                r.images_concurrent,
                r.images_in_recovery,
                r.crash_points,
                r.exhaustive_points,
                r.sampled_points,
                r.worlds,
                r.checkpoints,
                r.transactions
            )
        }),
        Door::Tree { tree, args } => sweep(
            "tree",
            args,
            |s, progress| tree::sweep(s, (*tree).into(), progress),
            |r| {
                format!(
                    "{} crash images recovered to what had returned: {} of the B+-tree ({} with buffered commits), {} during recovery, {} after a \
                     kill\n{} crash points: {} exhaustive, {} sampled; {} worlds, {} operations, {} refused for want of space\n",
                    r.images,
                    r.images_of_bptree,
                    r.images_buffered,
                    r.images_in_recovery,
                    r.images_after_kill,
                    r.crash_points,
                    r.exhaustive_points,
                    r.sampled_points,
                    r.worlds,
                    r.operations,
                    r.refused
                )
            },
        ),
    }
}

/// Runs one door's sweep and prints what it came to, as JSON or in `words`.
fn sweep<R: Serialize, F: std::fmt::Display>(
    door: &str,
    args: &SweepArgs,
    sweep: impl FnOnce(&epoch::Settings, &mut dyn FnMut(usize)) -> Result<R, F>,
    words: impl FnOnce(&R) -> String,
) -> Result<()> {
    let seed = args.seed.unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().map_or(1, |t| t.as_nanos() as u64 % 1_000_000_000));
    let model = match args.model {
        ModelArg::Line => Some(Model::Line),
        ModelArg::File => Some(Model::File),
        ModelArg::Both => None,
    };
    eprintln!("crash test of the {door} door: seed {seed}, {} images", args.images);
    let bar = Progress::count("crash images");
    let settings = epoch::Settings { seed, images: args.images, model };
    let result = sweep(&settings, &mut |done| bar.at(done.min(args.images) as u64, args.images as u64));
    drop(bar);
    match result {
        Ok(report) if args.json => report::json(&report),
        Ok(report) => report::print(&words(&report)),
        Err(failure) => {
            let failed = Err(failure::coded(failure::FAILED, failure.to_string()));
            report::bad_news(args.json, ("seed", seed.to_string()), failed)
        }
    }
}
