//! Rounds: every side takes its turn, each from an empty map through all phases, and what they took is told side by side.
//!
//! ```text
//!   round 0   bptree_tx  fptree  pmdk_btree  volatile      each: make, insert, lookup, ..., drop
//!   round 1   fptree  pmdk_btree  volatile  bptree_tx      another begins, so that no one always follows the same
//! ```
//!
//! What must hold: a figure is the median over rounds, a ratio the median of the ratios within rounds; no side lives while another is
//! measured; a side that fails is told and left out of the rest, and the others go on.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result};
use towa_media::{Mapping, Medium, NvmModel, RamMedium};

use super::contenders::{Contender, FPTREE, LOG_BYTES_PER_THREAD, Lost, Site};
use super::durable::BYTES_PER_KEY;
use super::load::{self, Measured, Phase, Work};
use super::report::{Breakdown, Row};
use crate::cleanup::Scratch;
use crate::progress::Progress;

/// Whoever can be measured: a contender within this program, or a program of its own.
pub trait Side {
    /// Tree and transaction path, for rows and messages.
    fn label(&self) -> (&'static str, &'static str);
    /// Whether it runs with so many threads.
    fn fits(&self, threads: usize) -> bool;
    /// Runs the phases it can, among `phases`, from an empty map on.
    fn run(
        &self,
        scratch: &Scratch,
        work: &Work,
        phases: &[Phase],
        threads: usize,
        model: Option<NvmModel>,
    ) -> Result<Vec<Measured>>;
}

/// Opens the medium of a fresh directory.
pub fn site(scratch: &Scratch, name: &str, keys: u64, threads: usize, model: Option<NvmModel>) -> Result<Site> {
    let dir = scratch.fresh(name)?;
    let medium = RamMedium::open(&dir, false, model).with_context(|| format!("{}: opening the medium", dir.display()))?;
    Ok(Site { dir, medium, keys, threads })
}

/// Has the machine have memory for a map of so many keys at hand: a virtual machine may have given free memory back to its host, and gets
/// it anew page by page, which takes some ten times as long as clearing it. All of it is touched, and free again.
fn warm_up(keys: u64, threads: usize) -> Result<()> {
    let bytes = 3 * keys * BYTES_PER_KEY + threads as u64 * LOG_BYTES_PER_THREAD;
    Ok(Mapping::anonymous(None, bytes as usize, true)?.provide(0, bytes as usize)?)
}

impl Side for Box<dyn Contender> {
    fn label(&self) -> (&'static str, &'static str) {
        (self.tree(), self.tm())
    }

    fn fits(&self, threads: usize) -> bool {
        Contender::fits(&**self, threads)
    }

    fn run(
        &self,
        scratch: &Scratch,
        work: &Work,
        phases: &[Phase],
        threads: usize,
        model: Option<NvmModel>,
    ) -> Result<Vec<Measured>> {
        let site = site(scratch, "map", work.keys(), threads, model)?;
        let medium = Arc::clone(&site.medium);
        warm_up(work.keys(), threads)?;
        let counters = self.durable().then(|| medium.counters());
        let instance = self.make(&site).context("making an empty map")?;
        let measured =
            phases.iter().map(|phase| load::run(&*instance, counters, work, *phase, threads)).collect::<Result<Vec<_>>>()?;
        drop(instance);
        std::fs::remove_dir_all(&site.dir).with_context(|| format!("{}: removing", site.dir.display()))?;
        Ok(measured)
    }
}

/// What one side took, a list entry a round.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    by_phase: BTreeMap<Phase, Vec<Option<Measured>>>,
    broken: bool,
}

/// All rounds with one number of threads.
#[derive(Debug)]
pub struct Rounds {
    /// Threads.
    pub threads: usize,
    /// By tree and path, in the order of the sides.
    pub sides: Vec<((&'static str, &'static str), Taken)>,
}

/// Runs `rounds` rounds, or fewer (but one) when `due` of the time of `progress` is over; what broke goes to `broken`.
pub fn rounds(
    sides: &[Box<dyn Side>],
    scratch: &Scratch,
    work: &Work,
    (threads, rounds, due): (usize, usize, f64),
    progress: &mut Progress,
    broken: &mut Vec<String>,
) -> Rounds {
    let fitting: Vec<_> = sides.iter().filter(|s| s.fits(threads)).collect();
    let mut all = Rounds { threads, sides: fitting.iter().map(|s| (s.label(), Taken::default())).collect() };
    for round in 0..rounds {
        if round > 0 && progress.spent(due) {
            break;
        }
        for turn in 0..fitting.len() {
            let n = (turn + round) % fitting.len();
            let ((tree, tm), taken) = &mut all.sides[n];
            if taken.broken {
                continue;
            }
            progress.step(&format!("{threads} thread(s), round {} of {rounds}: {tree} ({tm})", round + 1));
            match fitting[n].run(scratch, work, &Phase::ALL, threads, None) {
                Ok(measured) => taken.add(&measured, round),
                Err(e) => {
                    taken.broken = true;
                    eprintln!("{tree} ({tm}), {threads} thread(s): {e:#}");
                    broken.push(format!("{tree} ({tm}), {threads} thread(s): {e:#}"));
                }
            }
        }
    }
    all
}

impl Taken {
    fn add(&mut self, measured: &[Measured], round: usize) {
        for m in measured {
            let rounds = self.by_phase.entry(m.phase).or_default();
            rounds.resize(round, None);
            rounds.push(Some(*m));
        }
    }

    fn of(&self, phase: Phase) -> &[Option<Measured>] {
        self.by_phase.get(&phase).map_or(&[], Vec::as_slice)
    }
}

/// The middle value; of an even number the mean of the two in the middle.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    let middle = [values.get(n.wrapping_sub(1) / 2)?, values.get(n / 2)?];
    Some((middle[0] + middle[1]) / 2.0)
}

impl Rounds {
    /// Throughput of the best side of `tree` in a round.
    fn best(&self, tree: &str, phase: Phase, round: usize) -> Option<f64> {
        let sides = self.sides.iter().filter(|((name, _), _)| *name == tree);
        sides.filter_map(|(_, taken)| Some((*taken.of(phase).get(round)?)?.mops())).reduce(f64::max)
    }

    /// Median over rounds of `mops / best of tree`.
    fn ratio(&self, taken: &Taken, tree: &str, phase: Phase) -> Option<f64> {
        let rounds = taken.of(phase).iter().enumerate();
        median(rounds.filter_map(|(round, m)| Some((*m)?.mops() / self.best(tree, phase, round)?)).collect())
    }

    /// One row for each side that ran `phase`.
    pub fn rows(&self, phase: Phase) -> Vec<Row> {
        let row = |((tree, tm), taken): &((&'static str, &'static str), Taken)| {
            let measured: Vec<Measured> = taken.of(phase).iter().flatten().copied().collect();
            let mops: Vec<f64> = measured.iter().map(Measured::mops).collect();
            let per_op = |get: fn(&towa_media::CounterValues) -> u64| {
                median(measured.iter().filter_map(|m| Some(get(&m.used?) as f64 / m.ops as f64)).collect())
            };
            Some(Row {
                tree: (*tree).into(),
                threads: self.threads,
                tm: (*tm).into(),
                mops: median(mops.clone())?,
                flushes_per_op: per_op(|used| used.write_backs),
                fences_per_op: per_op(|used| used.fences),
                streamed_bytes_per_op: per_op(|used| used.bytes_streamed),
                ratio_to_fptree: self.ratio(taken, FPTREE, phase),
                ratio_to_pmdk: self.ratio(taken, super::contenders::PMDK_BTREE, phase),
                mops_range: [mops.iter().copied().fold(f64::MAX, f64::min), mops.iter().copied().fold(0.0, f64::max)],
                rounds: mops.len(),
            })
        };
        self.sides.iter().filter_map(row).collect()
    }

    /// Where the time of the inserts went, for each side that tells.
    pub fn breakdown(&self) -> Vec<Breakdown> {
        let shares = |((tree, tm), taken): &((&'static str, &'static str), Taken)| {
            let measured: Vec<(Measured, Lost)> =
                taken.of(Phase::Insert).iter().flatten().filter_map(|m| Some((*m, m.lost?))).collect();
            // Time of all threads: they run, or wait for the drain, as long as the phase lasts.
            let total = |m: &Measured| m.elapsed.as_nanos() as f64 * self.threads as f64;
            let share = |get: fn(&Lost) -> u64| median(measured.iter().map(|(m, lost)| get(lost) as f64 / total(m)).collect());
            Some(Breakdown::new(
                ((*tree).into(), (*tm).into(), self.threads),
                share(|l| l.abort_ns)?,
                share(|l| l.log_full_ns)?,
                share(|l| l.durability_wait_ns)?,
            ))
        };
        self.sides.iter().filter_map(shares).collect()
    }
}

/// What the settings say about the log.
pub fn log_mb_per_thread() -> u64 {
    LOG_BYTES_PER_THREAD >> 20
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tx::contenders::Instance;
    use std::ops::{Bound, ControlFlow};
    use std::time::Duration;
    use towa_media::{Allocation, Region};
    use towa_tree::{Direction, OrderedMap, Session};

    /// A side of which everything is known.
    struct Fixed(&'static str, u64, bool);

    impl Side for Fixed {
        fn label(&self) -> (&'static str, &'static str) {
            (self.0, "stm")
        }
        fn fits(&self, threads: usize) -> bool {
            threads <= 2
        }
        fn run(&self, _: &Scratch, _: &Work, phases: &[Phase], threads: usize, _: Option<NvmModel>) -> Result<Vec<Measured>> {
            anyhow::ensure!(!self.2, "told to fail");
            let used = towa_media::CounterValues { write_backs: 3000, fences: 1000, ..Default::default() };
            let lost = Lost { abort_ns: 100_000_000 * threads as u64, log_full_ns: 0, durability_wait_ns: 300_000_000 };
            let measured = |phase: &Phase| Measured {
                phase: *phase,
                ops: 1000,
                elapsed: Duration::from_millis(self.1),
                used: Some(used),
                lost: Some(lost),
            };
            Ok(phases.iter().map(measured).collect())
        }
    }

    #[test]
    fn rows_are_medians_and_ratios_are_within_rounds() {
        let scratch = Scratch::within(&std::env::temp_dir()).unwrap();
        let sides: Vec<Box<dyn Side>> = vec![
            Box::new(Fixed("bptree_tx", 500, false)),
            Box::new(Fixed(FPTREE, 1000, false)),
            Box::new(Fixed("volatile", 1, true)),
        ];
        let mut broken = Vec::new();
        let work = Work::new(10, 1);
        let all = rounds(&sides, &scratch, &work, (2, 3, 1.0), &mut Progress::new(), &mut broken);
        assert_eq!(broken.len(), 1, "a failing side is told once and left out: {broken:?}");
        let rows = all.rows(Phase::Insert);
        assert_eq!(rows.len(), 2);
        assert!((rows[0].ratio_to_fptree.unwrap() - 2.0).abs() < 1e-9);
        assert_eq!((rows[0].flushes_per_op, rows[0].fences_per_op, rows[0].rounds), (Some(3.0), Some(1.0), 3));
        let breakdown = all.breakdown();
        assert!((breakdown[0].share_abort - 0.2).abs() < 1e-9, "200 ms of two threads' 500: {breakdown:?}");
        assert!((breakdown[0].share_durability_wait - 0.3).abs() < 1e-9);
        assert!((breakdown[0].share_other - 0.5).abs() < 1e-9);
        assert!((breakdown[0].of_extra.unwrap().abort - 0.4).abs() < 1e-9);
        assert!(rounds(&sides, &scratch, &work, (4, 1, 1.0), &mut Progress::new(), &mut broken).rows(Phase::Insert).is_empty());
    }

    /// A contender that makes each insert durable: one line, one fence; and drains with one more.
    struct Writing;

    struct WritingInstance(Box<dyn Instance>, Arc<dyn Region>);

    struct WritingSession<'m>(Box<dyn Session<u64> + 'm>, &'m dyn Region);

    impl Contender for Writing {
        fn tree(&self) -> &'static str {
            FPTREE
        }
        fn tm(&self) -> &'static str {
            "lock"
        }
        fn make(&self, site: &Site) -> Result<Box<dyn Instance>> {
            let inner = crate::tx::volatile::Skip.make(site)?;
            let region = site.medium.create("lines", 4096, Allocation::Full)?;
            // The making's own flushes are nobody's operation.
            region.store(0, &[1; 4096])?;
            region.write_back(0, 4096);
            region.fence()?;
            Ok(Box::new(WritingInstance(inner, region)))
        }
    }

    impl Instance for WritingInstance {
        fn map(&self) -> &dyn OrderedMap<u64> {
            self
        }
        fn drain(&self) -> Result<()> {
            Ok(self.1.fence()?)
        }
    }

    impl OrderedMap<u64> for WritingInstance {
        fn session(&self) -> towa_tree::Result<Box<dyn Session<u64> + '_>> {
            Ok(Box::new(WritingSession(self.0.map().session()?, &*self.1)))
        }
        fn count(&self) -> towa_tree::Result<u64> {
            self.0.map().count()
        }
        fn check(&self) -> towa_tree::Result<()> {
            self.0.map().check()
        }
    }

    impl Session<u64> for WritingSession<'_> {
        fn insert(&mut self, key: &u64, value: u64) -> towa_tree::Result<bool> {
            self.1.store(0, &key.to_ne_bytes()).expect("it fits");
            self.1.write_back(0, 8);
            self.1.fence().expect("memory does not fail");
            self.0.insert(key, value)
        }
        fn upsert(&mut self, key: &u64, value: u64) -> towa_tree::Result<Option<u64>> {
            self.0.upsert(key, value)
        }
        fn get(&mut self, key: &u64) -> towa_tree::Result<Option<u64>> {
            self.0.get(key)
        }
        fn remove(&mut self, key: &u64) -> towa_tree::Result<Option<u64>> {
            self.0.remove(key)
        }
        fn scan(
            &mut self,
            bounds: (Bound<&u64>, Bound<&u64>),
            direction: Direction,
            each: &mut dyn FnMut(&u64, u64) -> ControlFlow<()>,
        ) -> towa_tree::Result<()> {
            self.0.scan(bounds, direction, each)
        }
    }

    #[test]
    fn flushes_and_fences_are_the_mediums_and_a_slower_medium_is_slower() {
        let scratch = Scratch::within(&std::env::temp_dir()).unwrap();
        let side: Box<dyn Contender> = Box::new(Writing);
        let work = Work::new(1000, 1);
        let measured = side.run(&scratch, &work, &Phase::ALL, 1, None).unwrap();
        let used = |phase| measured.iter().find(|m| m.phase == phase).unwrap().used.unwrap();
        assert_eq!((used(Phase::Insert).write_backs, used(Phase::Insert).fences), (1000, 1001));
        assert_eq!((used(Phase::Lookup).write_backs, used(Phase::Lookup).fences), (0, 0));
        assert_eq!(used(Phase::Mixed).write_backs, 500);
        let slow = NvmModel { write_back_ns: 20_000.0, ..NvmModel::optane() };
        let measured = side.run(&scratch, &work, &[Phase::Insert], 1, Some(slow)).unwrap();
        assert!(measured[0].elapsed >= Duration::from_millis(20), "{measured:?}");
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0]), Some(2.5));
    }
}
