//! What the user threads do: the five workloads, as tables of operations made before the clock starts.
//!
//! What must hold:
//! - every engine of a round runs the *same* table, so a ratio compares equal work;
//! - making keys costs nothing while measuring (a table is 4 MiB, read in order), so the generator does not hide the
//!   engine's price behind its own;
//! - YCSB keys follow YCSB's scrambled Zipfian law (Gray et al., SIGMOD 1994; Cooper et al., SoCC 2010), constant 0.99;
//!   hash-map keys are uniform over twice the number of keys present, so the map stays half filled.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// YCSB's constant: rank r is drawn in proportion to 1 / r^0.99.
pub const YCSB_THETA: f64 = 0.99;
/// Operations in a table; at about 1 M operations a second, one pass in a second.
pub const TABLE_LEN: usize = 1 << 20;

/// Zipfian ranks 0..n by Gray's method (constant time a draw, after one pass over n).
#[derive(Clone, Debug)]
pub struct Zipf {
    n: u64,
    theta: f64,
    alpha: f64,
    zeta_n: f64,
    eta: f64,
}

impl Zipf {
    /// Ranks `0..n`, rank r in proportion to `1 / (r + 1)^theta`; `n >= 2`, `0 < theta < 1`.
    pub fn new(n: u64, theta: f64) -> Self {
        assert!(n >= 2 && theta > 0.0 && theta < 1.0, "zipf over {n} keys with constant {theta}");
        let zeta = |n: u64| (1..=n).map(|i| (i as f64).powf(-theta)).sum::<f64>();
        let zeta_n = zeta(n);
        let eta = (1.0 - (2.0 / n as f64).powf(1.0 - theta)) / (1.0 - zeta(2) / zeta_n);
        Self { n, theta, alpha: 1.0 / (1.0 - theta), zeta_n, eta }
    }

    /// Draws a rank; 0 is the most frequent.
    pub fn rank(&self, rng: &mut impl Rng) -> u64 {
        let u: f64 = rng.random();
        let uz = u * self.zeta_n;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5f64.powf(self.theta) {
            return 1;
        }
        let rank = (self.n as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as u64;
        rank.min(self.n - 1)
    }

    /// Draws a key of `0..n`: the rank, scattered over the key space as YCSB does (FNV-1a, modulo n), so that hot keys are
    /// not neighbours.
    pub fn scrambled(&self, rng: &mut impl Rng) -> u64 {
        fnv1a(self.rank(rng)) % self.n
    }

    /// Probability of `rank`, for tests.
    pub fn probability(&self, rank: u64) -> f64 {
        ((rank + 1) as f64).powf(-self.theta) / self.zeta_n
    }
}

/// FNV-1a over the eight bytes of `x`: YCSB's scrambling hash.
pub fn fnv1a(x: u64) -> u64 {
    x.to_le_bytes().iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

/// One operation on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Look the key up and read its value.
    Get,
    /// Write a whole value: inserts the key if absent, replaces its value if there.
    Put,
    /// Remove the key if there.
    Remove,
}

/// The five workloads of every report, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Workload {
    /// YCSB A: half reads, half updates, Zipfian.
    YcsbA,
    /// YCSB B: 95 % reads, 5 % updates, Zipfian.
    YcsbB,
    /// Hash map, get:insert:remove 0:1:1, uniform.
    HashmapWrite,
    /// Hash map, get:insert:remove 2:1:1, uniform.
    HashmapMixed,
    /// Hash map, get:insert:remove 18:1:1, uniform.
    HashmapRead,
}

impl Workload {
    /// All of them.
    pub const ALL: [Workload; 5] =
        [Workload::YcsbA, Workload::YcsbB, Workload::HashmapWrite, Workload::HashmapMixed, Workload::HashmapRead];

    /// Name in the report.
    pub fn name(self) -> &'static str {
        match self {
            Workload::YcsbA => "ycsb_a",
            Workload::YcsbB => "ycsb_b",
            Workload::HashmapWrite => "hashmap_write",
            Workload::HashmapMixed => "hashmap_mixed",
            Workload::HashmapRead => "hashmap_read",
        }
    }

    /// Whether keys are Zipfian over the keys present (YCSB) or uniform over twice as many (hash map).
    pub fn is_ycsb(self) -> bool {
        matches!(self, Workload::YcsbA | Workload::YcsbB)
    }

    /// Weights of get, put and remove.
    fn weights(self) -> [u32; 3] {
        match self {
            Workload::YcsbA => [1, 1, 0],
            Workload::YcsbB => [19, 1, 0],
            Workload::HashmapWrite => [0, 1, 1],
            Workload::HashmapMixed => [2, 1, 1],
            Workload::HashmapRead => [18, 1, 1],
        }
    }

    /// Draws an operation by the workload's weights.
    fn draw(self, rng: &mut impl Rng) -> Op {
        let [get, put, remove] = self.weights();
        let x = rng.random_range(0..get + put + remove);
        if x < get {
            Op::Get
        } else if x < get + put {
            Op::Put
        } else {
            Op::Remove
        }
    }
}

/// Draws keys for a workload over a store that holds the [`initial_keys`] at the start.
#[derive(Clone, Debug)]
pub enum Keys {
    /// Scrambled Zipfian over the `n` even keys below `2 * n`: all present.
    Zipf(Zipf),
    /// Uniform over `0..n`.
    Uniform(u64),
}

impl Keys {
    /// The law of `workload` over a store with `buckets` buckets: YCSB draws among the `buckets` initial keys; the hash map
    /// among twice as many, half of them present.
    pub fn of(workload: Workload, buckets: u64) -> Self {
        if workload.is_ycsb() { Keys::Zipf(Zipf::new(buckets, YCSB_THETA)) } else { Keys::Uniform(2 * buckets) }
    }

    fn draw(&self, rng: &mut impl Rng) -> u64 {
        match self {
            Keys::Zipf(z) => 2 * z.scrambled(rng),
            Keys::Uniform(n) => rng.random_range(0..*n),
        }
    }
}

/// Keys a store holds before the first round: every second one of `0..2 * buckets`. YCSB runs first and finds them all.
pub fn initial_keys(buckets: u64) -> impl Iterator<Item = u64> {
    (0..buckets).map(|i| 2 * i)
}

/// Operations made beforehand: key in the low 30 bits, kind in the high two.
#[derive(Debug)]
pub struct OpTable(Vec<u32>);

impl OpTable {
    /// `len` operations of `workload` over `keys`; the same seed gives the same table.
    pub fn new(workload: Workload, keys: &Keys, seed: u64, len: usize) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        Self::of((0..len).map(|_| {
            let key = keys.draw(&mut rng);
            (workload.draw(&mut rng), key)
        }))
    }

    /// These operations.
    pub fn of(ops: impl Iterator<Item = (Op, u64)>) -> Self {
        let pack = |(op, key): (Op, u64)| {
            assert!(key < 1 << 30, "a table holds keys below 2^30");
            (op as u32) << 30 | key as u32
        };
        Self(ops.map(pack).collect())
    }

    /// Operation `i`, counting round and round.
    #[inline]
    pub fn at(&self, i: usize) -> (Op, u64) {
        let word = self.0[i % self.0.len()];
        let op = match word >> 30 {
            0 => Op::Get,
            1 => Op::Put,
            _ => Op::Remove,
        };
        (op, u64::from(word & ((1 << 30) - 1)))
    }

    /// Operations in the table.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipf_ranks_follow_the_law() {
        let n = 10_000;
        let zipf = Zipf::new(n, YCSB_THETA);
        let mut rng = SmallRng::seed_from_u64(7);
        let draws = 2_000_000u64;
        let mut seen = vec![0u64; n as usize];
        for _ in 0..draws {
            seen[zipf.rank(&mut rng) as usize] += 1;
        }
        // Gray's method is exact for the two hottest ranks, approximate (within some per cent) for blocks of others.
        for rank in 0..2 {
            let want = zipf.probability(rank) * draws as f64;
            let got = seen[rank as usize] as f64;
            assert!((got / want - 1.0).abs() < 0.02, "rank {rank}: {got} draws, {want:.0} expected");
        }
        for (lo, hi) in [(2, 10), (10, 100), (100, 1000), (1000, n)] {
            let want: f64 = (lo..hi).map(|r| zipf.probability(r)).sum::<f64>() * draws as f64;
            let got: u64 = seen[lo as usize..hi as usize].iter().sum();
            assert!((got as f64 / want - 1.0).abs() < 0.10, "ranks {lo}..{hi}: {got} draws, {want:.0} expected");
        }
        let total: f64 = (0..n).map(|r| zipf.probability(r)).sum();
        assert!((total - 1.0).abs() < 1e-9);
    }

    #[test]
    fn scrambling_keeps_the_heat_and_moves_the_place() {
        let zipf = Zipf::new(1000, YCSB_THETA);
        let mut rng = SmallRng::seed_from_u64(1);
        let mut seen = vec![0u32; 1000];
        for _ in 0..200_000 {
            seen[zipf.scrambled(&mut rng) as usize] += 1;
        }
        let hottest = (0..1000).max_by_key(|k| seen[*k]).unwrap() as u64;
        assert_eq!(hottest, fnv1a(0) % 1000);
        let share = f64::from(seen[hottest as usize]) / 200_000.0;
        assert!((share / zipf.probability(0) - 1.0).abs() < 0.1, "hottest key has {share}");
    }

    #[test]
    fn tables_have_the_mix_and_the_range() {
        for workload in Workload::ALL {
            let keys = Keys::of(workload, 5_000);
            let table = OpTable::new(workload, &keys, 3, 100_000);
            let mut counts = [0u32; 3];
            let mut max_key = 0;
            for i in 0..table.len() {
                let (op, key) = table.at(i);
                counts[op as usize] += 1;
                max_key = max_key.max(key);
            }
            let weights = workload.weights();
            let sum: u32 = weights.iter().sum();
            for (got, weight) in counts.iter().zip(weights) {
                let want = f64::from(weight) / f64::from(sum);
                assert!((f64::from(*got) / 1e5 - want).abs() < 0.01, "{workload:?}: {counts:?} for weights {weights:?}");
            }
            let range = 10_000;
            assert!(max_key < range && max_key > range * 9 / 10, "{workload:?}: largest key {max_key} of {range}");
        }
    }

    #[test]
    fn one_seed_one_table() {
        let keys = Keys::of(Workload::YcsbA, 1000);
        let table = |seed| OpTable::new(Workload::YcsbA, &keys, seed, 1000).0;
        assert_eq!(table(5), table(5));
        assert_ne!(table(5), table(6));
    }

    #[test]
    fn the_map_starts_half_filled() {
        assert_eq!(initial_keys(4).collect::<Vec<_>>(), [0, 2, 4, 6]);
        let table = OpTable::new(Workload::YcsbA, &Keys::of(Workload::YcsbA, 4), 1, 1000);
        assert!((0..1000).all(|i| table.at(i).1.is_multiple_of(2)), "YCSB asks for keys that are there");
    }
}
