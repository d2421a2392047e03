//! `towa vm-load` and `towa vm-check`: a structure that proves itself, for tests that kill the process or cut the power.
//!
//! ```text
//!   vm-load  ──transactions──► pool ──sync──► "ACK n" on standard output: everything up to transaction n is durable
//!      ╳ killed, or the power goes
//!   vm-check ──reopens──► is the structure whole, without a leak, and at transaction n or later?
//! ```

mod block;
mod proof;
mod structure;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use towa_epoch::{Options, Pool};
use towa_heap::superblock::Door;

use crate::pool_dir::MediumArg;
use crate::report;
use structure::{LANES, Structure};

/// Capacity of the pool: small, so that it fits every test machine and gets full turns of the log in seconds.
const HEAP_LEN: u64 = 64 << 20;
const LOG_LEN: u64 = 4 << 20;

/// Write a self-proving structure for ever, and acknowledge what is durable.
#[derive(Debug, Args)]
pub struct LoadArgs {
    /// Directory of the pool; created where there is none.
    dir: PathBuf,
    /// Milliseconds between checkpoints.
    #[arg(long, default_value_t = 20)]
    interval_ms: u64,
    /// The medium, instead of what suits the directory.
    #[arg(long, value_enum)]
    medium: Option<MediumArg>,
    /// End, with a clean close, after this many transactions.
    #[arg(long)]
    transactions: Option<u64>,
}

/// Reopen the pool and check the structure.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Directory of the pool.
    dir: PathBuf,
    /// What vm-load had printed: its last "ACK n" must be there.
    #[arg(conflicts_with = "acked")]
    transcript: Option<PathBuf>,
    /// The number of the last "ACK n".
    #[arg(long)]
    acked: Option<u64>,
    /// The medium, as given to vm-load.
    #[arg(long, value_enum)]
    medium: Option<MediumArg>,
}

fn options(interval_ms: u64, medium: Option<MediumArg>) -> Options {
    Options {
        heap_len: HEAP_LEN,
        log_len: Some(LOG_LEN),
        interval: Duration::from_millis(interval_ms),
        medium: medium.map(Into::into),
        ..Options::default()
    }
}

/// `towa vm-load`.
pub fn load(args: &LoadArgs) -> Result<()> {
    let pool = Pool::open_or_create(&args.dir, &options(args.interval_ms, args.medium))?;
    let structure = Structure::open_or_create(&pool)?;
    let start: Vec<u64> = (0..LANES).map(|lane| structure.seq(lane)).collect::<Result<_>>()?;
    let before: u64 = start.iter().sum();
    let done: Vec<AtomicU64> = start.into_iter().map(AtomicU64::new).collect();
    let total = || done.iter().map(|d| d.load(Acquire)).sum::<u64>();
    let (stop, failed) = (AtomicBool::new(false), Mutex::new(None));
    std::thread::scope(|scope| {
        for (lane, done) in done.iter().enumerate() {
            let (pool, structure, stop, failed) = (&pool, &structure, &stop, &failed);
            scope.spawn(move || {
                if let Err(error) = write(pool, structure, lane, done, stop) {
                    failed.lock().expect("nobody panics with it").get_or_insert(error);
                    stop.store(true, Relaxed);
                }
            });
        }
        let result = acknowledge(&pool, &total, &stop, args.transactions.map(|n| before + n));
        stop.store(true, Relaxed);
        result
    })?;
    if let Some(error) = failed.into_inner().expect("nobody panics with it") {
        return Err(error);
    }
    drop(structure);
    Ok(pool.close()?)
}

/// One lane's transactions, one after the other.
fn write(pool: &Pool, structure: &Structure<'_>, lane: usize, done: &AtomicU64, stop: &AtomicBool) -> Result<()> {
    let mut thread = pool.register()?;
    while !stop.load(Relaxed) {
        done.store(structure.step(&mut thread, lane)?, Release);
    }
    Ok(())
}

/// Syncs, and says what was complete before.
fn acknowledge(pool: &Pool, total: &dyn Fn() -> u64, stop: &AtomicBool, end: Option<u64>) -> Result<()> {
    while !stop.load(Relaxed) {
        let complete = total();
        pool.sync()?;
        report::print(&format!("ACK {complete}\n"))?;
        if end.is_some_and(|end| complete >= end) {
            break;
        }
    }
    Ok(())
}

/// `towa vm-check`.
pub fn check(args: &CheckArgs) -> Result<()> {
    let acked = match (&args.transcript, args.acked) {
        (Some(path), _) => last_ack(path)?,
        (None, acked) => acked.unwrap_or(0),
    };
    let options = options(100, args.medium);
    let medium = towa_media::open_dir(&args.dir, options.medium, false)?;
    let live_blocks = towa_heap::verify(&*medium, Door::Epoch, &mut |_, _| ()).context("before opening")?.live_blocks;
    let pool = Pool::open_on(medium, &options)?;
    let structure = Structure::open(&pool)?.context("the pool opened, but the structure is not in it")?;
    let recovered = proof::check(&structure)?;
    ensure!(
        live_blocks == structure.blocks()?,
        "{live_blocks} blocks are live, {} belong to the structure: some leaked or were freed twice",
        structure.blocks()?
    );
    ensure!(recovered >= acked, "transaction {acked} was acknowledged as durable, but only {recovered} were recovered");
    drop(structure);
    let replayed = pool.recovery().epochs_replayed;
    pool.close()?;
    report::print(&format!("OK recovered seq={recovered} last={acked} epochs_replayed={replayed}\n"))
}

fn last_ack(path: &Path) -> Result<u64> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{}: cannot be read", path.display()))?;
    // The last line may be cut short by the kill: only whole ones count.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let Some(line) = whole.lines().rev().find_map(|line| line.strip_prefix("ACK ")) else { return Ok(0) };
    match line.parse() {
        Ok(n) => Ok(n),
        Err(_) => bail!("{}: \"ACK {line}\" names no transaction", path.display()),
    }
}
