//! `towa crash-test`: crashes a simulated machine at every moment and checks what recovery makes of it.

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use towa_crash_test::epoch::{self, Report, Settings};
use towa_media::sim::Model;

use crate::failure;
use crate::progress::Progress;
use crate::report;

/// Prove crash consistency: simulate a crash at every store, flush and fence, recover, and compare with a model.
///
/// Random transactions run on a simulated medium that records everything. For each moment, the sweep makes the images that a crash there
/// could leave (all of them where they are few, a sample where not), recovers each, and checks that it is exactly the state at the
/// end of an epoch, not older than the newest acknowledged. Some recoveries are crashed in their turn.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  towa crash-test epoch --images 100000        as in the tests
  towa crash-test epoch --seed 1234            again, after a failure printed its seed")]
pub struct CrashTestArgs {
    #[command(subcommand)]
    door: Door,
}

#[derive(Debug, Subcommand)]
enum Door {
    /// Epoch checkpointing: allocation, transactions across epochs, log, image, recovery.
    Epoch(EpochArgs),
}

#[derive(Debug, Args)]
struct EpochArgs {
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

/// None at all would prove nothing.
fn some(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| "a number from 1 on".into())
}

/// `towa crash-test`.
pub fn run(args: &CrashTestArgs) -> Result<()> {
    let Door::Epoch(args) = &args.door;
    let seed = args.seed.unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().map_or(1, |t| t.as_nanos() as u64 % 1_000_000_000));
    let model = match args.model {
        ModelArg::Line => Some(Model::Line),
        ModelArg::File => Some(Model::File),
        ModelArg::Both => None,
    };
    eprintln!("crash test of the epoch door: seed {seed}, {} images", args.images);
    let bar = Progress::count("crash images");
    let settings = Settings { seed, images: args.images, model };
    let result = epoch::sweep(&settings, &mut |done| bar.at(done.min(args.images) as u64, args.images as u64));
    drop(bar);
    match result {
        Ok(report) if args.json => report::json(&report),
        Ok(report) => print(&report),
        Err(failure) => {
            let failed = Err(failure::coded(failure::FAILED, failure.to_string()));
            report::bad_news(args.json, ("seed", seed.to_string()), failed)
        }
    }
}

fn print(r: &Report) -> Result<()> {
    report::print(&format!(
        "{} crash images recovered to an acknowledged epoch, {} of them crashes during recovery\n\
         {} crash points: {} exhaustive, {} sampled; {} worlds, {} epochs, {} transactions\n",
        r.images, r.images_in_recovery, r.crash_points, r.exhaustive_points, r.sampled_points, r.worlds, r.epochs, r.transactions
    ))
}
