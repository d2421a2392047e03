//! `towa tx-load` and `towa tx-check`: transactions of several threads that check themselves, for tests that kill processes.
//!
//! ```text
//!   tx-load ──"ACK thread n"──► whoever tests      transaction n of that thread has returned
//!      ╳ killed, or its checkpointer
//!   tx-check ──reopens──► is everything whole, without a leak, and each thread at transaction n or n + 1?
//! ```
//!
//! What must always hold: a line is written, whole, after its transaction returned and before the thread's next one begins. So of each
//! thread one transaction at most is there beyond what was said.

mod structure;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::*};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use towa_heap::superblock::Door;
use towa_tx::{Checkpointer, Options, Pool, TmChoice};

use crate::pool_dir::MediumArg;
use crate::report;
use structure::{Structure, THREADS};

/// Write a self-proving structure by transactions for ever, and say which have returned.
#[derive(Debug, Args)]
pub struct LoadArgs {
    /// Directory of the pool; created where there is none.
    dir: PathBuf,
    /// The medium, instead of what suits the directory.
    #[arg(long, value_enum)]
    medium: Option<MediumArg>,
    /// How transactions run.
    #[arg(long, value_enum, default_value_t = TmArg::Auto)]
    tm: TmArg,
    /// A process of its own brings up the image (`towa checkpointer`).
    #[arg(long)]
    separate: bool,
    /// Say only "ACK n", when each thread's transaction n has returned.
    #[arg(long)]
    least: bool,
    /// End, with a clean close, after this many transactions of each thread.
    #[arg(long)]
    transactions: Option<u64>,
}

/// Reopen the pool and check the structure.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Directory of the pool.
    dir: PathBuf,
    /// What each thread had said last: "12,40,5". It must be there, or one more.
    #[arg(long, value_delimiter = ',')]
    acked: Vec<u64>,
    /// Each thread had returned from this transaction. That, or a later one, must be there.
    #[arg(long, default_value_t = 0)]
    least: u64,
    /// The medium, as given to tx-load.
    #[arg(long, value_enum)]
    medium: Option<MediumArg>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TmArg {
    Auto,
    Rtm,
    Stm,
    Lock,
}

impl From<TmArg> for TmChoice {
    fn from(arg: TmArg) -> TmChoice {
        match arg {
            TmArg::Auto => TmChoice::Auto,
            TmArg::Rtm => TmChoice::Rtm,
            TmArg::Stm => TmChoice::Stm,
            TmArg::Lock => TmChoice::Lock,
        }
    }
}

/// Logs so small that they wrap many times a second.
fn options(medium: Option<MediumArg>) -> Options {
    Options { heap_len: 32 << 20, lanes: 8, lane_len: 64 << 10, medium: medium.map(Into::into), ..Options::default() }
}

/// `towa tx-load`.
pub fn load(args: &LoadArgs) -> Result<()> {
    let checkpointer = if args.separate { Checkpointer::Process } else { Checkpointer::Thread };
    let options = Options { tm: args.tm.into(), checkpointer, ..options(args.medium) };
    let pool = Pool::open_or_create(&args.dir, &options)?;
    let structure = Structure::open_or_create(&pool)?;
    let (stop, failed) = (AtomicBool::new(false), Mutex::new(None));
    let least = args.least.then(Least::default);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (pool, structure, stop, failed, least) = (&pool, &structure, &stop, &failed, &least);
            scope.spawn(move || {
                if let Err(error) = write(pool, structure, thread, stop, args.transactions, least.as_ref()) {
                    failed.lock().expect("nobody panics with it").get_or_insert(error);
                    stop.store(true, Relaxed);
                }
            });
        }
    });
    if let Some(error) = failed.into_inner().expect("nobody panics with it") {
        return Err(error);
    }
    Ok(pool.close()?)
}

/// How far the threads are: the last transaction of each that returned, and what was said of the least of them.
#[derive(Default)]
struct Least(Mutex<([u64; THREADS], u64)>);

impl Least {
    /// Transaction `seq` of thread `number` has returned.
    fn returned(&self, number: usize, seq: u64) -> Result<()> {
        let mut held = self.0.lock().expect("nobody panics with it");
        held.0[number] = seq;
        let least = held.0.into_iter().min().unwrap_or(0);
        if least > held.1 {
            held.1 = least;
            report::print(&format!("ACK {least}\n"))?;
        }
        Ok(())
    }
}

/// One thread's transactions, one after the other.
fn write(
    pool: &Pool,
    structure: &Structure,
    number: usize,
    stop: &AtomicBool,
    end: Option<u64>,
    least: Option<&Least>,
) -> Result<()> {
    let mut thread = pool.register()?;
    let first = structure.seq(&thread, number);
    let end = end.map_or(u64::MAX, |end| first + end);
    let mut seq = first;
    while !stop.load(Relaxed) && seq < end {
        seq += 1;
        structure.step(&mut thread, number, seq)?;
        match least {
            Some(least) => least.returned(number, seq)?,
            None => report::print(&format!("ACK {number} {seq}\n"))?,
        }
    }
    Ok(())
}

/// `towa tx-check`.
pub fn check(args: &CheckArgs) -> Result<()> {
    let live_blocks = live_blocks(&args.dir, args.medium).context("before opening")?;
    let pool = Pool::open(&args.dir, &options(args.medium))?;
    let structure = Structure::open(&pool).context("the pool opened, but the structure is not in it")?;
    let thread = pool.register()?;
    let found = structure.check(&thread)?;
    ensure!(
        live_blocks == found.blocks,
        "{live_blocks} blocks are live, {} belong to the structure: some leaked or were freed twice",
        found.blocks
    );
    for (thread, (&acked, seq)) in args.acked.iter().zip(found.seqs).enumerate() {
        ensure!(
            (acked..=acked + 1).contains(&seq),
            "thread {thread}: transaction {acked} was the last that returned, {seq} is the last that is there"
        );
    }
    let behind = found.seqs.iter().position(|seq| *seq < args.least);
    if let Some(thread) = behind {
        ensure!(
            false,
            "thread {thread}: transaction {} had returned, {} is the last that is there",
            args.least,
            found.seqs[thread]
        );
    }
    drop(thread);
    let replayed = pool.recovery().records_replayed;
    pool.close()?;
    let seqs: Vec<String> = found.seqs.iter().map(u64::to_string).collect();
    report::print(&format!("OK {} blocks={} records_replayed={replayed}\n", seqs.join(","), found.blocks))
}

fn live_blocks(dir: &Path, medium: Option<MediumArg>) -> Result<u64> {
    let medium = towa_media::open_dir(dir, medium.map(Into::into), false)?;
    Ok(towa_heap::verify(&*medium, Door::Tx, &mut |_, _| ())?.live_blocks)
}
