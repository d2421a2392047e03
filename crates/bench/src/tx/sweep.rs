//! Inserts on memory that is slower than this machine's: each write-back takes longer, or all writes share less bandwidth.
//!
//! What must hold: one thing varies at a time; at each point the trees take turns; the first point of each sweep is the machine's own
//! memory, so that the model's own cost (reading the clock) shows beside the rows without a model.

use towa_media::NvmModel;

use super::load::{Phase, Work};
use super::report::SweepPoint;
use super::sides::{Side, median};
use crate::cleanup::Scratch;
use crate::progress::Progress;

/// Nanoseconds added per line written back.
const WRITE_BACK_NS: [f64; 5] = [0.0, 50.0, 100.0, 200.0, 400.0];
/// GB/s of writes; one Optane module writes 2.3, six of them 13.9.
const WRITE_GB_S: [f64; 5] = [f64::INFINITY, 13.9, 4.6, 2.3, 1.0];

/// Adds nothing; what varies is set in a copy.
const PLAIN: NvmModel = NvmModel {
    write_back_ns: 0.0,
    fence_ns: 0.0,
    write_gb_s: f64::INFINITY,
    read_ns: 0.0,
    read_gb_s: f64::INFINITY,
    granule: 256,
    queue: 16384,
};

fn models() -> Vec<(&'static str, NvmModel)> {
    let slower = WRITE_BACK_NS.map(|write_back_ns| ("write_back_ns", NvmModel { write_back_ns, ..PLAIN }));
    let narrower = WRITE_GB_S.map(|write_gb_s| ("write_gb_s", NvmModel { write_gb_s, ..PLAIN }));
    slower.into_iter().chain(narrower).collect()
}

/// All points, each number of threads, the median of `rounds`; sides that cannot be slowed down are not given.
pub fn run(
    sides: &[Box<dyn Side>],
    scratch: &Scratch,
    work: &Work,
    (threads, rounds, due): (&[usize], usize, f64),
    progress: &mut Progress,
    broken: &mut Vec<String>,
) -> Vec<SweepPoint> {
    progress.section("sweep of the memory's speed");
    let mut points = Vec::new();
    for threads in threads {
        for (varies, model) in models() {
            let mut mops = vec![Vec::new(); sides.len()];
            for round in 0..rounds {
                for turn in 0..sides.len() {
                    let n = (turn + round) % sides.len();
                    let (tree, tm) = sides[n].label();
                    if !sides[n].fits(*threads) || (progress.spent(due) && (round > 0 || varies != "write_back_ns")) {
                        continue;
                    }
                    progress.step(&format!("{varies}, {threads} thread(s): {tree} ({tm})"));
                    match sides[n].run(scratch, work, &[Phase::Insert], *threads, Some(model)) {
                        Ok(measured) => mops[n].extend(measured.iter().map(|m| m.mops())),
                        Err(e) => broken.push(format!("sweep, {tree} ({tm}): {e:#}")),
                    }
                }
            }
            for (side, mops) in sides.iter().zip(mops) {
                let Some(mops) = median(mops) else { continue };
                let (tree, tm) = side.label();
                let write_gb_s = model.write_gb_s.is_finite().then_some(model.write_gb_s);
                let (tree, tm, threads) = (tree.into(), tm.into(), *threads);
                points.push(SweepPoint { varies, write_back_ns: model.write_back_ns, write_gb_s, tree, tm, threads, mops });
            }
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tx::contenders::contenders;

    #[test]
    fn every_point_is_measured() {
        let scratch = Scratch::within(&std::env::temp_dir()).unwrap();
        let here = contenders().into_iter().filter(|contender| contender.missing().is_none());
        let sides: Vec<Box<dyn Side>> = here.map(|c| Box::new(c) as Box<dyn Side>).collect();
        let mut broken = Vec::new();
        let points = run(&sides[..2], &scratch, &Work::new(100, 1), (&[1], 1, 1.0), &mut Progress::new(), &mut broken);
        assert!(broken.is_empty(), "{broken:?}");
        assert_eq!(points.len(), 2 * models().len());
        assert!(points.iter().all(|p| p.mops > 0.0));
    }
}
