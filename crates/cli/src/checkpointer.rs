//! `towa checkpointer`: the process that brings up the image of a pool of transactions, beside the program that uses it.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use towa_tx::{Ended, Error, Progress as Done, SeparateCheckpointer};

use crate::failure;
use crate::pool_dir::MediumArg;
use crate::report::{self, bytes};

/// Bring up the image of a pool, beside the program that uses it.
///
/// A program that opens a pool of transactions with a separate checkpointer writes its transactions to logs; this process applies them to
/// the image and frees the logs, as in the NV-HTM paper. It ends when the program closes the pool or dies, or by Ctrl-C. Whichever of
/// the two is killed, no committed transaction is lost: while there is no checkpointer, a thread of the program stands in; what a
/// program that died left in its logs is recovered when the pool is opened again.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  towa checkpointer /dev/shm/pool            the program is running
  towa checkpointer --wait 60 /dev/shm/pool  it may still be starting

Exit status: 0 the pool was closed, its program died, or Ctrl-C; 1 no program has it open with a separate checkpointer; 3 no
pool of transactions; 4 another checkpointer is at work; 5 no pool there.")]
pub struct CheckpointerArgs {
    /// Directory of the pool.
    #[arg(value_name = "POOL")]
    pool: PathBuf,
    /// The medium the pool was made for, where that was chosen by hand.
    #[arg(long, value_enum)]
    medium: Option<MediumArg>,
    /// Seconds to wait for a program to open the pool.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    wait: u64,
    /// Report as JSON, when it ends.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Outcome {
    pool: String,
    owner: u32,
    ended: Ended,
    #[serde(flatten)]
    done: Done,
}

/// `towa checkpointer`.
pub fn run(args: &CheckpointerArgs) -> Result<()> {
    let outcome = report::bad_news(args.json, ("pool", report::path(&args.pool)), work(args))?;
    if args.json { report::json(&outcome) } else { print(&outcome) }
}

fn work(args: &CheckpointerArgs) -> Result<Outcome> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("the signals that stop it cannot be watched")?;
    }
    let until = Instant::now() + Duration::from_secs(args.wait.min(1 << 30));
    let checkpointer = loop {
        match attach(args) {
            Err(error) if waiting_helps(&error) && Instant::now() < until && !stop.load(Relaxed) => {
                std::thread::sleep(Duration::from_millis(20));
            }
            other => break other?,
        }
    };
    let owner = checkpointer.owner();
    if !args.json {
        report::line(format_args!("ready: {}, open in process {owner}", report::path(&args.pool)))?;
    }
    let bar = std::io::stderr().is_terminal().then(indicatif::ProgressBar::new_spinner);
    let mut done = Done::default();
    let ended = checkpointer.run(&|| stop.load(Relaxed), &mut |now| {
        done = now;
        if let Some(bar) = &bar {
            bar.set_message(format!("{} rounds, {} records, {} written", now.rounds, now.records, bytes(now.lines * 64)));
            bar.tick();
        }
    });
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    Ok(Outcome { pool: report::path(&args.pool), owner, ended: ended?, done })
}

fn attach(args: &CheckpointerArgs) -> Result<SeparateCheckpointer> {
    let medium = towa_media::open_dir(&args.pool, args.medium.map(Into::into), false)?;
    Ok(SeparateCheckpointer::attach(&*medium)?)
}

/// Whether the program may just not have come so far.
fn waiting_helps(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::Usage(_))) || failure::code(error) == failure::MISSING
}

fn print(outcome: &Outcome) -> Result<()> {
    let why = match outcome.ended {
        Ended::Closed => "the pool is being closed",
        Ended::OwnerDied => "its program died; what is in its logs is recovered at the next opening",
        Ended::Stopped => "stopped; a thread of the program goes on",
    };
    let Done { rounds, records, lines } = outcome.done;
    report::print(&format!(
        "{}: {why}; {rounds} rounds, {records} records applied, {} written back\n",
        outcome.pool,
        bytes(lines * 64)
    ))
}
