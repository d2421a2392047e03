//! Reopening after SIGKILL under full write load, by heap size, lazily and eagerly.
//!
//! ```text
//!   child 1   create, fill ── "writing" ── writes at full speed ... SIGKILL
//!   child 2   open lazily, first look-up ── tells times, checks values ── "writing" ── writes ... SIGKILL   (several times)
//!   child 3   open eagerly, first look-up ── tells times, checks values, ends
//! ```
//!
//! What must hold: each opening is of a heap that was killed while it was written at full speed, in a process of its own;
//! time runs from the call that opens to the first answered look-up; every value read afterwards is whole. Some moments of a kill
//! leave nothing to replay, so there are several kills, and the lazy opening that replayed most is the one reported.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use towa_epoch::Options;

use crate::child::TellingChild;
use crate::cleanup::Scratch;
use crate::machine::memory_available_mb;
use crate::progress::Progress;
use crate::report::RecoveryPoint;
use crate::rounds::{Store, Worker};
use crate::store::{Shelf, VALUE_BYTES};
use crate::workload::{Op, initial_keys};

/// Kills and lazy openings of each heap.
const KILLS: usize = 5;
/// Keys looked at after each reopening, to see that they are whole.
const CHECKED: u64 = 10_000;

/// What a child process is told to do; given by `towa bench-child`, hidden.
#[derive(Clone, Debug, Parser)]
#[command(name = "bench-child", no_binary_name = true)]
struct ChildArgs {
    /// `create` a heap and fill it, or `open` one.
    #[arg(value_parser = ["create", "open"])]
    what: String,
    #[arg(long)]
    pool: PathBuf,
    #[arg(long)]
    medium: String,
    /// Keys in the heap.
    #[arg(long)]
    keys: u64,
    #[arg(long)]
    interval_ms: u64,
    #[arg(long)]
    seed: u64,
    /// Load everything while opening.
    #[arg(long)]
    eager: bool,
    /// Write at full speed until killed.
    #[arg(long)]
    write: bool,
}

/// What a child that opened a heap tells, as one line of JSON.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Opened {
    /// From the call to the first answered look-up.
    first_answer_us: u64,
    replayed_lines: u64,
    present: u64,
    checked: u64,
}

/// How children are started: the program that answers to `bench-child`.
#[derive(Clone, Debug)]
pub struct Children {
    /// The program.
    pub program: PathBuf,
    /// Medium by name.
    pub medium: String,
    /// Time between checkpoints.
    pub interval: Duration,
    /// Seed of the writes.
    pub seed: u64,
}

/// The hidden child mode: `args` are those after `bench-child`.
pub fn child_main(args: &[String]) -> Result<()> {
    if args.first().is_some_and(|what| what == crate::tx::CHILD) {
        return crate::tx::child_main(&args[1..]);
    }
    if args.first().is_some_and(|what| what == crate::snap::CHILD) {
        return crate::snap::child_main(&args[1..]);
    }
    let args = ChildArgs::try_parse_from(args)?;
    let medium = crate::epoch::medium_kind(&args.medium)?;
    let interval = Duration::from_millis(args.interval_ms);
    let options = Options { interval, eager: args.eager, ..Options::default() };
    let shelf = if args.what == "create" {
        let shelf = Shelf::create(&args.pool, medium, args.keys, options)?;
        shelf.fill(args.keys)?;
        shelf
    } else {
        let start = Instant::now();
        let shelf = Shelf::open(&args.pool, medium, options)?;
        let mut worker = shelf.worker()?;
        ensure!(worker.check(0)?, "the first key is gone");
        let first_answer_us = start.elapsed().as_micros() as u64;
        let step = (args.keys / CHECKED).max(1) as usize;
        let (mut present, mut checked) = (0, 0);
        for key in initial_keys(args.keys).step_by(step) {
            present += u64::from(worker.check(key)?);
            checked += 1;
        }
        drop(worker);
        let opened = Opened { first_answer_us, replayed_lines: shelf.pool.stats().recovered_lines, present, checked };
        println!("{}", serde_json::to_string(&opened)?);
        shelf
    };
    if args.write {
        println!("writing");
        let mut rng = SmallRng::seed_from_u64(args.seed);
        let mut worker = shelf.worker()?;
        loop {
            worker.run(Op::Put, 2 * rng.random_range(0..args.keys))?;
        }
    }
    Ok(())
}

impl Children {
    fn start(&self, what: &str, pool: &Path, keys: u64, more: &[&str]) -> Result<TellingChild> {
        let mut command = Command::new(&self.program);
        command.args(["bench-child", what, "--medium", &self.medium]).arg("--pool").arg(pool);
        command.args(["--keys", &keys.to_string(), "--interval-ms", &self.interval.as_millis().to_string()]);
        command.args(["--seed", &self.seed.to_string()]).args(more);
        TellingChild::start(&mut command)
    }

    /// Lets it write for a while, and kills it.
    fn kill_under_load(&self, child: TellingChild, rng: &mut SmallRng) -> Result<()> {
        let said = child.line()?;
        ensure!(said == "writing", "the child said {said:?} instead of writing");
        // Several checkpoints, then any moment of the next two.
        std::thread::sleep(self.interval * 5 + self.interval.mul_f64(rng.random_range(0.0..2.0)));
        child.process.kill()
    }

    /// One heap size.
    fn measure(&self, pool: &Path, heap_mb: u64, rng: &mut SmallRng) -> Result<RecoveryPoint> {
        let keys = heap_mb * (1 << 20) / VALUE_BYTES as u64;
        let child = self.start("create", pool, keys, &["--write"])?;
        self.kill_under_load(child, rng)?;
        let mut lazy: Option<Opened> = None;
        for _ in 0..KILLS {
            let child = self.start("open", pool, keys, &["--write"])?;
            let opened = opened(&child)?;
            lazy = Some(lazy.filter(|most| most.replayed_lines >= opened.replayed_lines).unwrap_or(opened));
            self.kill_under_load(child, rng)?;
        }
        let lazy = lazy.context("no lazy opening")?;
        let eager = opened(&self.start("open", pool, keys, &["--eager"])?)?;
        let ms = |o: &Opened| Some(o.first_answer_us as f64 / 1e3);
        Ok(RecoveryPoint {
            heap_mb,
            lazy_ms: ms(&lazy),
            eager_ms: ms(&eager),
            replayed_lines: Some(lazy.replayed_lines),
            replayed_mb: Some(lazy.replayed_lines as f64 * towa_media::LINE as f64 / (1 << 20) as f64),
        })
    }
}

/// What a child tells that opened a heap.
fn opened(child: &TellingChild) -> Result<Opened> {
    let line = child.line()?;
    let opened: Opened = serde_json::from_str(&line).with_context(|| format!("the child said {line:?}"))?;
    ensure!(opened.present == opened.checked, "{} of {} keys are there", opened.present, opened.checked);
    Ok(opened)
}

/// All heap sizes, in the order of their importance; what does not fit the machine's memory is skipped with the reason.
pub fn run(
    children: &Children,
    scratch: &Scratch,
    sizes_mb: &[u64],
    in_memory: bool,
    progress: &mut Progress,
    skipped: &mut Vec<String>,
) -> Result<Vec<RecoveryPoint>> {
    progress.section("recovery");
    let mut rng = SmallRng::seed_from_u64(children.seed);
    let mut points = Vec::new();
    for heap_mb in sizes_mb {
        if progress.spent(1.0) {
            skipped.push(format!("recovery of {heap_mb} MiB: the time was up; run without --quick"));
            continue;
        }
        // The working copy, and on a medium in memory the image, the log and room for the allocator.
        let need_mb = heap_mb * if in_memory { 3 } else { 2 } + 600;
        if memory_available_mb().is_some_and(|free| free < need_mb) {
            skipped.push(format!("recovery of {heap_mb} MiB: needs {need_mb} MiB of memory"));
            continue;
        }
        progress.step(&format!("{heap_mb} MiB"));
        let pool = scratch.path().join("recovery");
        let point = children.measure(&pool, *heap_mb, &mut rng).with_context(|| format!("recovery of {heap_mb} MiB"));
        let _ = std::fs::remove_dir_all(&pool);
        points.push(point?);
    }
    points.sort_by_key(|point| point.heap_mb);
    Ok(points)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_refuses_what_it_does_not_know() {
        let args = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        assert!(child_main(&args(&["dance"])).is_err());
        assert!(child_main(&args(&["open", "--pool", "/proc/nonexistent"])).is_err());
    }
}
