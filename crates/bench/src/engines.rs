//! The engines side by side in one program: the same store in three modes, and the control.
//!
//! ```text
//!   round 0   volatile  towa  cpnvm  control     each a fresh table of operations, the same for all four
//!   round 1   control  cpnvm  towa  volatile     backwards, so that a drift of the machine cancels out
//!   ...
//! ```
//!
//! What must hold: a ratio is taken within a round, a report shows the median over rounds; before the next engine's turn the
//! last one's work is durable and done; the control copies what towa was measured to log, no more.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use towa_epoch::{Mode, Options, Stats};

use crate::clock::Clock;
use crate::progress::Progress;
use crate::report::{CpuPerOp, EngineActivity, Stretch, WorkloadReport};
use crate::rounds::{Burst, Copier, Round, measure};
use crate::store::{Shelf, VALUE_BYTES};
use crate::windows::{StopTally, WINDOW_NS, mean, median};
use crate::workload::{Keys, OpTable, TABLE_LEN, Workload, fnv1a};

/// What takes turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Keeps nothing.
    Volatile,
    /// Checkpoints beside the program.
    Towa,
    /// Stops the program for each checkpoint.
    Cpnvm,
    /// Volatile, beside a thread that copies memory.
    Control,
}

/// Order of an even round.
const TURNS: [Engine; 4] = [Engine::Volatile, Engine::Towa, Engine::Cpnvm, Engine::Control];
/// Rounds that are run however late it is.
const LEAST_ROUNDS: usize = 2;
/// Windows kept for the plot: 400 ms, which hold three or four checkpoints.
const STRETCH: usize = 4000;
/// Buffers of the control: beyond every cache.
const COPIER_BYTES: usize = 128 << 20;

/// How long and often to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Workloads, in turn.
    pub workloads: Vec<Workload>,
    /// User threads.
    pub threads: usize,
    /// Rounds of each engine.
    pub rounds: usize,
    /// Counted time of a round.
    pub round: Duration,
    /// Keep the completions of a stretch, for the plot, of these workloads.
    pub stretches: Vec<Workload>,
    /// Share of the run's time limit at which this plan should begin and end; behind it, rounds are left out, down to two.
    pub time: (f64, f64),
}

/// The stores of a run, filled, in one process.
#[derive(Debug)]
pub struct Rig {
    volatile: Shelf,
    towa: Shelf,
    cpnvm: Shelf,
    copier: Copier,
    clock: Clock,
    buckets: u64,
    interval: Duration,
    seed: u64,
}

/// One workload's rounds so far.
#[derive(Default)]
struct Tally {
    ops: [Vec<f64>; 4],
    cpu_ns_per_op: [Vec<f64>; 4],
    stops: [StopTally; 4],
    activity: EngineActivity,
    stretch: Stretch,
    logged_per_burst: usize,
    burst_interval: Duration,
}

/// What towa's engine did between two looks.
struct Delta {
    checkpoints: u64,
    logged: u64,
    media: u64,
    stalls: u64,
    stall_us: u64,
}

impl Delta {
    fn between(a: &Stats, b: &Stats) -> Self {
        Self {
            checkpoints: b.checkpoints - a.checkpoints,
            logged: (b.lines_logged - a.lines_logged) * towa_media::LINE as u64,
            media: b.medium_bytes - a.medium_bytes,
            stalls: b.stalls - a.stalls,
            stall_us: b.stall_us - a.stall_us,
        }
    }
}

impl Rig {
    /// Creates and fills the stores below `dir`.
    pub fn new(
        dir: &std::path::Path,
        medium: towa_media::Kind,
        buckets: u64,
        interval: Duration,
        seed: u64,
        progress: &Progress,
    ) -> Result<Self> {
        let make = |name: &str, mode| -> Result<Shelf> {
            progress.step(&format!("filling {name}"));
            let options = Options { mode, interval, ..Options::default() };
            // Half of twice as many keys are present on average; never all of them.
            let shelf = Shelf::create(&dir.join(name), medium, 2 * buckets, options)?;
            shelf.fill(buckets).with_context(|| format!("filling the {name} store"))?;
            Ok(shelf)
        };
        Ok(Self {
            volatile: make("volatile", Mode::Volatile)?,
            towa: make("towa", Mode::NonStop)?,
            cpnvm: make("cpnvm", Mode::StopTheWorld)?,
            copier: Copier::new(COPIER_BYTES),
            clock: Clock::new(),
            buckets,
            interval,
            seed,
        })
    }

    /// Name of the clock that cuts windows.
    pub fn clock_name(&self) -> &'static str {
        self.clock.name()
    }

    /// Share of the volatile heap's and of towa's working copy's resident memory in huge pages, if the kernel tells.
    pub fn huge_page_shares(&self) -> [Option<f64>; 2] {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        [&self.volatile, &self.towa].map(|shelf| {
            let (base, len) = shelf.pool.heap_range();
            huge_page_share(&smaps, base, base + len as usize)
        })
    }

    /// Runs a plan; workload names to figures.
    pub fn run(&mut self, plan: &Plan, progress: &Progress) -> Result<BTreeMap<String, WorkloadReport>> {
        let mut reports = BTreeMap::new();
        for workload in &plan.workloads {
            let keys = Keys::of(*workload, self.buckets);
            let mut tally = Tally::default();
            let (begin, end) = plan.time;
            let due = begin + (end - begin) * (reports.len() + 1) as f64 / plan.workloads.len() as f64;
            for round in 0..plan.rounds {
                if round >= LEAST_ROUNDS && progress.spent(due) {
                    break;
                }
                let what = format!("{} x{}, round {} of {}", workload.name(), plan.threads, round + 1, plan.rounds);
                progress.step(&what);
                self.round(*workload, &keys, plan, round, &mut tally).with_context(|| what)?;
            }
            reports.insert(workload.name().to_owned(), tally.report(plan.stretches.contains(workload)));
        }
        Ok(reports)
    }

    /// Every engine once, over the same operations.
    fn round(&mut self, workload: Workload, keys: &Keys, plan: &Plan, round: usize, tally: &mut Tally) -> Result<()> {
        let seed = |thread: usize| fnv1a(self.seed ^ fnv1a((round as u64) << 32 | (plan.threads as u64) << 16 | thread as u64));
        let tables: Vec<_> = (0..plan.threads).map(|t| OpTable::new(workload, keys, seed(t), TABLE_LEN)).collect();
        let windows = (plan.round.as_nanos() as u64 / WINDOW_NS) as usize;
        let mut turns = TURNS;
        if round % 2 == 1 {
            turns.reverse();
        }
        let mut seen: [Option<Round>; 4] = Default::default();
        for engine in turns {
            seen[engine as usize] = Some(self.turn(engine, &tables, windows, tally)?);
        }
        let seen = seen.map(|round| round.expect("every engine has had its turn"));
        tally.add(&seen);
        Ok(())
    }

    /// One engine's turn; waits until its work is durable.
    fn turn(&mut self, engine: Engine, tables: &[OpTable], windows: usize, tally: &mut Tally) -> Result<Round> {
        let burst = (engine == Engine::Control).then_some(Burst {
            copier: &mut self.copier,
            bytes: tally.logged_per_burst,
            interval: tally.burst_interval.max(self.interval),
        });
        let shelf = match engine {
            Engine::Volatile | Engine::Control => &self.volatile,
            Engine::Towa => &self.towa,
            Engine::Cpnvm => &self.cpnvm,
        };
        let before = shelf.pool.stats();
        let round = measure(shelf, tables, windows, self.clock, burst)?;
        let running = Delta::between(&before, &shelf.pool.stats());
        shelf.settle()?;
        if engine == Engine::Towa {
            let after = shelf.pool.stats();
            tally.activity_of(&Delta::between(&before, &after), round.puts, after.boundary_us_max);
            let time = Duration::from_nanos(windows as u64 * WINDOW_NS);
            tally.logged_per_burst = (running.logged / running.checkpoints.max(1)) as usize;
            tally.burst_interval = time / running.checkpoints.max(1) as u32;
        }
        Ok(round)
    }
}

impl Tally {
    fn activity_of(&mut self, delta: &Delta, puts: u64, boundary_us_max: u64) {
        let a = &mut self.activity;
        a.checkpoints += delta.checkpoints;
        // A running sum until `report` divides it.
        a.logged_bytes_per_checkpoint += delta.logged;
        a.media_bytes_written += delta.media;
        a.user_bytes_written += puts * VALUE_BYTES as u64;
        a.stalls += delta.stalls;
        a.stall_us += delta.stall_us;
        a.boundary_us_max = a.boundary_us_max.max(boundary_us_max);
    }

    fn add(&mut self, seen: &[Round; 4]) {
        let reference = mean(&seen[Engine::Volatile as usize].counts);
        for (engine, round) in seen.iter().enumerate() {
            self.ops[engine].push(round.ops_per_s());
            self.cpu_ns_per_op[engine].push(round.cpu_ns as f64 / round.ops.max(1) as f64);
            self.stops[engine].merge(&StopTally::of(&round.counts, reference));
        }
        if self.stretch.volatile.is_empty() {
            let cut = |engine: Engine| {
                let counts = &seen[engine as usize].counts;
                counts[..counts.len().min(STRETCH)].to_vec()
            };
            self.stretch = Stretch { volatile: cut(Engine::Volatile), towa: cut(Engine::Towa), cpnvm: cut(Engine::Cpnvm) };
        }
    }

    /// Ratios of `engine` to volatile, one per round.
    fn ratios(&self, engine: Engine) -> Vec<f64> {
        let volatile = &self.ops[Engine::Volatile as usize];
        self.ops[engine as usize].iter().zip(volatile).filter(|(_, v)| **v > 0.0).map(|(e, v)| e / v).collect()
    }

    fn report(mut self, with_stretch: bool) -> WorkloadReport {
        let some = |values: &[f64]| (!values.is_empty()).then(|| median(values));
        let ops = |engine: Engine| some(&self.ops[engine as usize]);
        let cpu = |engine: Engine| some(&self.cpu_ns_per_op[engine as usize]);
        let ratio = |engine| some(&self.ratios(engine));
        let shares = |engine: Engine| Some(self.stops[engine as usize].shares());
        let towa = self.ratios(Engine::Towa);
        let range = towa.iter().copied().reduce(f64::min).zip(towa.iter().copied().reduce(f64::max));
        let report = WorkloadReport {
            ops_volatile: ops(Engine::Volatile),
            ops_towa: ops(Engine::Towa),
            ops_cpnvm: ops(Engine::Cpnvm),
            ops_control: ops(Engine::Control),
            ratio_to_volatile: ratio(Engine::Towa),
            ratio_cpnvm_to_volatile: ratio(Engine::Cpnvm),
            ratio_control_to_volatile: ratio(Engine::Control),
            ratio_to_volatile_range: range.map(|(a, b)| [a, b]),
            volatile: shares(Engine::Volatile),
            towa: shares(Engine::Towa),
            cpnvm: shares(Engine::Cpnvm),
            control: shares(Engine::Control),
            rounds: self.ops[0].len(),
            user_cpu_ns_per_op: CpuPerOp {
                volatile: cpu(Engine::Volatile),
                towa: cpu(Engine::Towa),
                cpnvm: cpu(Engine::Cpnvm),
                control: cpu(Engine::Control),
            },
            ..WorkloadReport::default()
        };
        let a = &mut self.activity;
        a.logged_bytes_per_checkpoint /= a.checkpoints.max(1);
        a.write_amplification = (a.user_bytes_written > 0).then(|| a.media_bytes_written as f64 / a.user_bytes_written as f64);
        let stretch = with_stretch.then(|| self.stretch.clone());
        WorkloadReport { towa_engine: Some(self.activity), stretch_100us: stretch, ..report }
    }
}

/// Share of the resident memory of `from..to` that `smaps` says is in huge pages.
fn huge_page_share(smaps: &str, from: usize, to: usize) -> Option<f64> {
    let (mut within, mut resident, mut huge) = (false, 0u64, 0u64);
    for line in smaps.lines() {
        let word = line.split_whitespace().next().unwrap_or_default();
        if let Some((a, b)) = word.split_once('-') {
            let parse = |s| usize::from_str_radix(s, 16).ok();
            within = parse(a).zip(parse(b)).is_some_and(|(a, b)| a < to && b > from);
        } else if within {
            let kb = || line.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
            match word {
                "Rss:" => resident += kb(),
                "AnonHugePages:" => huge += kb(),
                _ => {}
            }
        }
    }
    (resident > 0).then(|| huge as f64 / resident as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(per_window: u32) -> Round {
        Round { counts: vec![per_window; 100], puts: 10, ops: 100, cpu_ns: 50_000 }
    }

    #[test]
    fn ratios_are_of_one_round_and_their_median_is_reported() {
        let mut tally = Tally::default();
        // The machine halves its speed in the second round: ratios within rounds do not move.
        for speed in [100, 50, 100] {
            tally.add(&[round(speed), round(speed * 8 / 10), round(speed / 2), round(speed)]);
        }
        tally.activity_of(&Delta { checkpoints: 4, logged: 4000, media: 30_720, stalls: 1, stall_us: 7 }, 10, 3);
        let report = tally.report(true);
        assert_eq!(report.ratio_to_volatile, Some(0.8));
        assert_eq!(report.ratio_cpnvm_to_volatile, Some(0.5));
        assert_eq!(report.user_cpu_ns_per_op.towa, Some(500.0));
        assert_eq!(report.ops_volatile, Some(1e6), "100 in each 100 us");
        assert_eq!(report.towa.as_ref().unwrap().windows_500us_above_50pct, 1.0, "judged by its own round's volatile mean");
        assert_eq!(report.stretch_100us.unwrap().towa.len(), 100);
        let engine = report.towa_engine.unwrap();
        assert_eq!((engine.logged_bytes_per_checkpoint, engine.write_amplification), (1000, Some(3.0)));
    }

    #[test]
    fn huge_pages_are_counted_within_the_heap_only() {
        let smaps =
            "1000-3000 rw-p 0 0:0 0 \nRss: 8 kB\nAnonHugePages: 4 kB\n9000-a000 rw-p 0 0:0 0\nRss: 4 kB\nAnonHugePages: 0 kB\n";
        assert_eq!(huge_page_share(smaps, 0x1000, 0x3000), Some(0.5));
        assert_eq!(huge_page_share(smaps, 0x9000, 0xa000), Some(0.0));
        assert_eq!(huge_page_share(smaps, 0x4000, 0x5000), None);
    }
}
