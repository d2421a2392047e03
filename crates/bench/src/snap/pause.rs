//! How long a program stands still for a checkpoint: seen by the program itself, and measured by the tool.
//!
//! ```text
//!   program's watch   looks at the clock ............│           gap            │........│ gap │...............
//!   tool              rounds of copying │ stopped at ├──────── pause ────────┤ │ files, sync │ idle: as long a window, at random
//!                                                    └───── seen: the longest gap that touches it ─┘            └─ noise
//! ```
//!
//! What must hold: every mode is asked for the same of the same program, and what it has to prepare it has prepared; the first checkpoints,
//! which hold everything, count nowhere.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use rand::Rng;
use rand::rngs::SmallRng;
use towa_snap::memory::precopy::Limits;
use towa_snap::nv;
use towa_snap::store::Store;
use towa_snap::take::{Breakdown, Taken, Target};

use super::board::now_ns;
use super::program::{Program, Shape};
use super::report::{BreakdownUs, PauseRow};
use super::stats::{Spread, longest, median, ms};

/// How a checkpoint is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Copied while the program runs, the rest in the pause.
    Dram,
    /// In a file that is cloned in the pause; where the file system does that.
    Nv,
    /// What changed is copied in the pause.
    Copy,
    /// Everything is copied in the pause, each time.
    CopyAll,
}

impl Mode {
    /// All of them, in the order of plots.
    pub const ALL: [Mode; 4] = [Mode::Dram, Mode::Nv, Mode::Copy, Mode::CopyAll];

    /// Name in the report.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Dram => "dram",
            Mode::Nv => "nv",
            Mode::Copy => "copy",
            Mode::CopyAll => "copy_all",
        }
    }

    fn prepare(self, target: &mut Target, shape: Shape) {
        if matches!(self, Mode::Copy | Mode::CopyAll) {
            // A quarter more: the program has other memory, too.
            target.set_limits(Limits { rounds: 0, ..Limits::default() }, shape.pages() / 4 * 5);
        }
    }

    fn before_each(self, target: &mut Target) {
        if self == Mode::CopyAll {
            target.forget();
        }
    }

    /// Times the program's memory that a run of it needs at most, in memory: the program, the buffer of the copy, the store and what a
    /// merge makes beside it.
    pub fn needs(self) -> u64 {
        if matches!(self, Mode::Copy | Mode::CopyAll) { 5 } else { 4 }
    }
}

/// One program, one mode.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The program.
    pub shape: Shape,
    /// The mode.
    pub mode: Mode,
    /// Checkpoints that count.
    pub checkpoints: usize,
}

/// Checkpoints that count nowhere.
const FIRST: usize = 2;
/// Between two checkpoints, in milliseconds.
const IDLE_MS: std::ops::Range<u64> = 100..200;
/// So long after the tool let go of the program the program may still be about to run.
const SLACK_NS: u64 = 200_000;

/// A checkpoint, and what the program saw.
struct Seen {
    taken: Taken,
    seen_ns: u64,
    noise_ns: u64,
}

/// Takes checkpoints, in an empty directory.
pub fn measure(children: &Path, dir: &Path, config: Config, rng: &mut SmallRng) -> Result<PauseRow> {
    let store = Store::open_or_create(dir.join("store"))?;
    let (program, mut target) = start(children, dir, config, &store)?;
    config.mode.prepare(&mut target, config.shape);
    let (mut all, mut gaps, mut read) = (Vec::new(), Vec::new(), 0);
    let (mut began, mut written) = (now_ns(), program.board.written());
    for n in 0..FIRST + config.checkpoints {
        if n == FIRST {
            (began, written) = (now_ns(), program.board.written());
        }
        config.mode.before_each(&mut target);
        let taken = target.take(&store)?;
        // Not more than a few lie there, as with `towa snap run --keep`.
        store.keep(2)?;
        store.merge()?;
        let idle = now_ns();
        std::thread::sleep(Duration::from_millis(rng.random_range(IDLE_MS)));
        let (idle, pause_ns) = (idle..now_ns(), taken.pause.as_nanos() as u64);
        gaps.clear();
        program.board.gaps(&mut read, &mut gaps)?;
        let window = |from: u64| longest(&gaps, from, from + pause_ns + SLACK_NS);
        let last_start = (idle.end - SLACK_NS).saturating_sub(pause_ns).max(idle.start + 1);
        let noise_ns = window(rng.random_range(idle.start..last_start));
        let seen_ns = window(taken.stopped_at_ns);
        if n >= FIRST {
            all.push(Seen { taken, seen_ns, noise_ns });
        }
    }
    let rate = (program.board.written() - written) as f64 / ((now_ns() - began) as f64 / 1e9);
    target.leave().context("leaving the program")?;
    Ok(row(config, rate, &all))
}

fn start(children: &Path, dir: &Path, config: Config, store: &Store) -> Result<(Program, Target)> {
    if config.mode != Mode::Nv {
        let program = Program::start(children, dir, config.shape)?;
        let target = Target::open(program.pid(), None)?;
        return Ok((program, target));
    }
    let mut in_file = None;
    let program = Program::start_by(children, dir, config.shape, |command| {
        let (child, nv) = nv::spawn(command, store)?;
        in_file = Some(nv);
        Ok(child)
    })?;
    let target = Target::open_nv(program.pid(), in_file.context("a program in mode nv has a file")?)?;
    Ok((program, target))
}

fn row(config: Config, pages_per_s: f64, all: &[Seen]) -> PauseRow {
    let spread = |figure: fn(&Seen) -> f64| Spread::of(all.iter().map(figure).collect());
    let seen = spread(|s| ms(s.seen_ns));
    let tool = spread(|s| s.taken.pause.as_secs_f64() * 1e3);
    let noise = spread(|s| ms(s.noise_ns));
    PauseRow {
        mb: config.shape.mb,
        dirty_pages_per_s: config.shape.pages_per_s,
        pages_per_s_reached: pages_per_s,
        threads: config.shape.threads,
        mode: config.mode.name().into(),
        pause_ms_p50: seen.p50,
        pause_ms_p99: seen.p99,
        pause_ms_max: seen.max,
        tool_pause_ms_p50: tool.p50,
        tool_pause_ms_p99: tool.p99,
        tool_pause_ms_max: tool.max,
        noise_ms_p50: noise.p50,
        noise_ms_p99: noise.p99,
        noise_ms_max: noise.max,
        total_ms: spread(|s| s.taken.total.as_secs_f64() * 1e3).p50,
        pages_in_pause: spread(|s| s.taken.last.written_pages as f64).p50,
        pages_while_running: spread(|s| s.taken.rounds.iter().map(|round| round.written_pages).sum::<u64>() as f64).p50,
        rounds: spread(|s| s.taken.rounds.len() as f64).p50,
        checkpoints: all.len(),
        breakdown_us: breakdown(all),
    }
}

fn breakdown(all: &[Seen]) -> BreakdownUs {
    let of = |part: fn(&Breakdown) -> Duration| median(all.iter().map(|s| part(&s.taken.breakdown).as_secs_f64() * 1e6));
    BreakdownUs {
        freeze: of(|b| b.freeze),
        maps: of(|b| b.maps),
        process: of(|b| b.process),
        told: of(|b| b.told),
        descriptors: of(|b| b.descriptors),
        find: of(|b| b.find),
        copy: of(|b| b.copy),
        files: of(|b| b.files),
        thaw: of(|b| b.thaw),
    }
}
