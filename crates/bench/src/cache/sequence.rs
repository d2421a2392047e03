//! What the application of a cache asks for: the five loads, as items and a table of operations made before the clock starts.
//!
//! ```text
//!   keys     |-- band 0 --|-- band 1 --|-- band 2 --| ...      a law of lengths for each band; a key is its band's first + its rank
//!   step 0   [========= window =======]                        each operation: any band of the window, then a rank by Zipf's law
//!   step 1                [========= window =======]
//! ```
//!
//! What must hold:
//! - one table for all servers, made from the seed alone;
//! - the items of a window are larger than the cache by a fixed factor, at each step: the cache is full all the time, and evicts;
//! - each step has operations in proportion to the keys of its window, so a band of few large items is not asked for longer than one of many
//!   small ones.
//!
//! A load that does not drift has one band, which is every step's window.

use std::ops::Range;
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Zipf};

use super::laws::{ItemLaws, KeyLaw, ValueLaw};
use crate::workload::{Op, OpTable};

/// What a server adds to an item, as far as sizing a load is concerned: memcached's header.
const ITEM_OVERHEAD: usize = 56;
/// How much is loaded before the first round, over the cache's size: so much that it evicts.
const FILL: f64 = 1.15;
/// Bands in the window of the load that drifts.
const DRIFT_WINDOW: usize = 6;
/// Its steps: from small to large and back.
const DRIFT_STEPS: usize = 24;
/// Its typical sizes, in bytes: the small and the large ones.
const DRIFT_SIZES: (f64, f64) = (512.0, 262_144.0);

/// A way to use a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheLoad {
    /// Sizes mixed from 100 bytes to 500 KB, 95 % reads.
    MixedRead,
    /// The same, half reads.
    MixedWrite,
    /// The typical size moves from small to large and back.
    Drift,
    /// As Facebook's ETC pool.
    Etc,
    /// As cluster 13 of Twitter's.
    Twitter,
}

/// What makes a load.
struct Shape {
    keys: KeyLaw,
    /// One for each band.
    values: Vec<ValueLaw>,
    /// Bands asked for at a time.
    window: usize,
    /// Size of a window's items, over the cache's.
    working_set: f64,
    /// Rank r of a band is asked for in proportion to 1 / r to this power.
    zipf: f64,
    /// Share of reads.
    reads: f64,
}

/// A load, made.
#[derive(Debug)]
pub struct Sequence {
    /// Lengths of its items.
    pub laws: Arc<ItemLaws>,
    /// Keys there are.
    pub keys: u64,
    /// Bytes of the items asked for at a time, on average over the steps: names and values.
    pub working_set: u64,
    /// Keys to load before the first round: of the first window those that are asked for most, the most popular last.
    pub fill: Vec<u64>,
    /// All operations.
    pub table: OpTable,
    /// Operations of each round.
    pub rounds: Vec<Range<usize>>,
}

impl Sequence {
    /// Lengths of the values asked for, in bytes: mean, median and 99th percentile, by operations.
    pub fn value_bytes(&self) -> [f64; 3] {
        let mut lens: Vec<_> = (0..self.table.len()).map(|i| self.laws.item(self.table.at(i).1).value).collect();
        lens.sort_unstable();
        let at = |share: f64| lens.get((lens.len() as f64 * share) as usize).copied().unwrap_or(0) as f64;
        [lens.iter().sum::<usize>() as f64 / lens.len().max(1) as f64, at(0.5), at(0.99)]
    }
}

/// Keys next to each other with one law of lengths.
struct Band {
    first: u64,
    keys: u64,
    bytes: u64,
    /// Its most popular keys that fill their part of the cache.
    fill: u64,
    popularity: Zipf<f64>,
}

impl CacheLoad {
    /// All of them.
    pub const ALL: [CacheLoad; 5] =
        [CacheLoad::MixedRead, CacheLoad::MixedWrite, CacheLoad::Drift, CacheLoad::Etc, CacheLoad::Twitter];

    /// Name in the report.
    pub fn name(self) -> &'static str {
        match self {
            CacheLoad::MixedRead => "mixed_95_5",
            CacheLoad::MixedWrite => "mixed_50_50",
            CacheLoad::Drift => "drift",
            CacheLoad::Etc => "etc",
            CacheLoad::Twitter => "twitter",
        }
    }

    /// What it is, and after what source.
    pub fn what(self) -> &'static str {
        match self {
            CacheLoad::MixedRead => "values lognormal from 100 B to 500 KB (median 7 KB), get:set 95:5, Zipf 0.9",
            CacheLoad::MixedWrite => "values lognormal from 100 B to 500 KB (median 7 KB), get:set 50:50, Zipf 0.9",
            CacheLoad::Drift => {
                "the typical value goes from 512 B to 256 KB and back, get:set 95:5, Zipf 0.9 in each band of sizes"
            }
            CacheLoad::Etc => {
                "Facebook's ETC (Atikoglu et al., SIGMETRICS 2012, statistical model of ETC): published laws of key and value lengths, \
                 get:set 30:1; Zipf 0.99 is ours, popularity is published as a plot"
            }
            CacheLoad::Twitter => {
                "Twitter's cluster 13 (Yang et al., OSDI 2020, table of the published traces): keys of 44 B, values of 4266 B on average, \
                 62 % sets, Zipf 0.4565; the lognormal law of values is ours, only their mean is published"
            }
        }
    }

    fn shape(self) -> Shape {
        // Three deviations on each side of the geometric mean reach the bounds.
        let mixed = ValueLaw::by_median(7071.0, 1.42, 100);
        let steady = Shape { keys: KeyLaw::Fixed(32), values: vec![mixed], window: 1, working_set: 3.0, zipf: 0.9, reads: 0.95 };
        match self {
            CacheLoad::MixedRead => steady,
            CacheLoad::MixedWrite => Shape { reads: 0.5, ..steady },
            CacheLoad::Drift => {
                let values = drifting_sizes().map(|size| ValueLaw::by_median(size, 0.5, 100)).collect();
                Shape { values, window: DRIFT_WINDOW, working_set: 2.0, ..steady }
            }
            // The paper's introduction: 30 gets for each set.
            CacheLoad::Etc => Shape { keys: KeyLaw::Etc, values: vec![ValueLaw::Etc], zipf: 0.99, reads: 30.0 / 31.0, ..steady },
            // Yang, Yue, Rashmi: A large scale analysis of hundreds of in-memory cache clusters at Twitter, OSDI 2020; the traces' table is
            // stat/2020Mar.md of their repository twitter/cache-trace: key 44, value 4266, get 0.38, set 0.62, alpha 0.4565.
            CacheLoad::Twitter => Shape {
                keys: KeyLaw::Fixed(44),
                values: vec![ValueLaw::by_mean(4266.0, 1.0, 16)],
                zipf: 0.4565,
                reads: 0.38,
                ..steady
            },
        }
    }

    /// The load on a cache of `memory` bytes: `requests` operations in `rounds` rounds.
    pub fn sequence(self, memory: u64, rounds: usize, requests: usize, seed: u64) -> Sequence {
        let shape = self.shape();
        let mut laws = ItemLaws::new(seed, shape.keys);
        let bands = bands(&shape, memory, &mut laws);
        let steps = rounds.max(bands.len() - shape.window + 1);
        let window = |step: usize| {
            let first = step * (bands.len() - shape.window) / (steps - 1).max(1);
            &bands[first..first + shape.window]
        };
        let keys_of = |step| window(step).iter().map(|band| band.keys).sum::<u64>();
        let all_keys: u64 = (0..steps).map(keys_of).sum();
        let mut rng = SmallRng::seed_from_u64(seed);
        let (mut ops, mut parts) = (Vec::with_capacity(requests), Vec::new());
        for round in 0..rounds {
            let first = ops.len();
            // The steps of this round: all of them, spread evenly.
            for step in (steps * round).div_ceil(rounds)..(steps * (round + 1)).div_ceil(rounds) {
                let count = requests as u64 * keys_of(step) / all_keys;
                ops.extend((0..count).map(|_| draw(window(step), shape.reads, &mut rng)));
            }
            parts.push(first..ops.len());
        }
        Sequence {
            laws: Arc::new(laws),
            keys: bands.iter().map(|band| band.keys).sum(),
            working_set: (0..steps).map(|step| window(step).iter().map(|band| band.bytes).sum::<u64>()).sum::<u64>() / steps as u64,
            fill: fill(window(0)),
            table: OpTable::of(ops.into_iter()),
            rounds: parts,
        }
    }
}

/// Typical sizes of the drifting load's bands: up to the middle one, down from there, by equal factors.
fn drifting_sizes() -> impl Iterator<Item = f64> {
    let bands = DRIFT_STEPS + DRIFT_WINDOW - 1;
    let (small, large) = DRIFT_SIZES;
    (0..bands).map(move |band| {
        let middle = (bands - 1) as f64 / 2.0;
        small * (large / small).powf(1.0 - (band as f64 - middle).abs() / middle)
    })
}

/// Lays bands next to each other, each with as many keys as make its part of the working set.
fn bands(shape: &Shape, memory: u64, laws: &mut ItemLaws) -> Vec<Band> {
    let part = memory as f64 / shape.window as f64;
    let (mut bands, mut next) = (Vec::new(), 0);
    for law in &shape.values {
        laws.begin(next, *law);
        let (first, mut bytes, mut room, mut fill) = (next, 0, 0, 0);
        while (room as f64) < part * shape.working_set {
            let item = laws.item(next);
            next += 1;
            bytes += (item.key + item.value) as u64;
            room += item.key + item.value + ITEM_OVERHEAD;
            if (room as f64) < part * FILL {
                fill = next - first;
            }
        }
        let popularity = Zipf::new((next - first) as f64, shape.zipf).expect("a band has keys, and the exponent is positive");
        bands.push(Band { first, keys: next - first, bytes, fill, popularity });
    }
    bands
}

fn draw(window: &[Band], reads: f64, rng: &mut SmallRng) -> (Op, u64) {
    let band = &window[rng.random_range(0..window.len())];
    // Zipf's ranks count from 1.
    let key = band.first + (band.popularity.sample(rng) as u64 - 1).min(band.keys - 1);
    (if rng.random_bool(reads) { Op::Get } else { Op::Put }, key)
}

/// Rank by rank, the least popular first: what a cache holds that has been asked for a long time.
fn fill(window: &[Band]) -> Vec<u64> {
    let ranks = window.iter().map(|band| band.fill).max().unwrap_or(0);
    let of_rank = |rank| window.iter().filter(move |band| rank < band.fill).map(move |band| band.first + rank);
    (0..ranks).rev().flat_map(of_rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: u64 = 16 << 20;

    fn bytes(sequence: &Sequence, keys: impl Iterator<Item = u64>) -> u64 {
        keys.map(|key| sequence.laws.item(key)).map(|item| (item.key + item.value) as u64).sum()
    }

    #[test]
    fn one_seed_one_sequence() {
        for load in CacheLoad::ALL {
            let make = |seed| load.sequence(MEMORY, 4, 5000, seed);
            let ops = |s: &Sequence| (0..s.table.len()).map(|i| (s.table.at(i), s.laws.item(s.table.at(i).1))).collect::<Vec<_>>();
            let (one, same, other) = (make(5), make(5), make(6));
            assert_eq!(ops(&one), ops(&same), "{load:?}");
            assert_eq!(one.fill, same.fill);
            assert_ne!(ops(&one), ops(&other), "{load:?}");
        }
    }

    #[test]
    fn what_is_asked_for_is_larger_than_the_cache_and_what_is_loaded_fills_it() {
        for load in CacheLoad::ALL {
            let sequence = load.sequence(MEMORY, 4, 5000, 1);
            let times = sequence.working_set as f64 / MEMORY as f64;
            // ETC's items are small beside what a server adds to each.
            let least = if load == CacheLoad::Etc { 2.0 } else { 1.8 };
            assert!(times > least && times < 3.5, "{load:?}: {times} times the cache");
            let loaded = bytes(&sequence, sequence.fill.iter().copied()) + sequence.fill.len() as u64 * ITEM_OVERHEAD as u64;
            assert!(loaded as f64 > MEMORY as f64 * 0.95 && (loaded as f64) < MEMORY as f64 * 1.2, "{load:?}: {loaded} loaded");
            assert!(sequence.table.len() > 4900 && sequence.table.len() <= 5000, "{load:?}: {}", sequence.table.len());
            assert_eq!(sequence.rounds.len(), 4);
            assert_eq!((sequence.rounds[0].start, sequence.rounds[3].end), (0, sequence.table.len()));
            assert!(sequence.rounds.windows(2).all(|pair| pair[0].end == pair[1].start));
        }
    }

    #[test]
    fn reads_and_writes_are_mixed_as_told_and_the_popular_keys_are_asked_for_most() {
        for (load, reads) in [
            (CacheLoad::MixedRead, 0.95),
            (CacheLoad::MixedWrite, 0.5),
            (CacheLoad::Drift, 0.95),
            (CacheLoad::Etc, 0.9677),
            (CacheLoad::Twitter, 0.38),
        ] {
            let sequence = load.sequence(MEMORY, 2, 100_000, 1);
            let len = sequence.table.len();
            let got = (0..len).filter(|i| sequence.table.at(*i).0 == Op::Get).count() as f64 / len as f64;
            assert!((got - reads).abs() < 0.01, "{load:?}: {got} reads, {reads} expected");
        }
        let etc = CacheLoad::Etc.sequence(MEMORY, 2, 100_000, 1);
        let hottest = (0..etc.table.len()).filter(|i| etc.table.at(*i).1 == 0).count() as f64 / etc.table.len() as f64;
        let all: f64 = (1..=etc.keys).map(|rank| (rank as f64).powf(-0.99)).sum();
        assert!((hottest * all - 1.0).abs() < 0.05, "the hottest key has {hottest}, {} expected", 1.0 / all);
    }

    #[test]
    fn drifting_sizes_go_up_and_come_back() {
        let sequence = CacheLoad::Drift.sequence(MEMORY, 6, 60_000, 1);
        let typical = |part: &Range<usize>| {
            let mut lens: Vec<_> = part.clone().map(|i| sequence.laws.item(sequence.table.at(i).1).value).collect();
            lens.sort_unstable();
            lens[lens.len() / 2]
        };
        let sizes: Vec<_> = sequence.rounds.iter().map(typical).collect();
        assert!(sizes[0] < 4 << 10 && sizes[5] < 4 << 10, "{sizes:?}");
        assert!(sizes[2] > 40 << 10 && sizes[3] > 40 << 10, "{sizes:?}");
        assert!(sizes[0] < sizes[1] && sizes[1] < sizes[2] && sizes[3] > sizes[4] && sizes[4] > sizes[5], "{sizes:?}");
    }
}
