//! How long the items of a cache are: the laws of published traces and of two made-up loads, as functions of the key.
//!
//! What must hold: the lengths of an item depend on its key and the seed alone, so that every server is given the same items, however often
//! and in whatever order they are written; a draw follows its law within the bounds of what both servers take.
//!
//! *ETC* is the general pool of Facebook's caches: Atikoglu, Xu, Frachtenberg, Jiang, Paleczny: Workload Analysis of a Large-Scale
//! Key-Value Store, SIGMETRICS 2012, its statistical model of ETC: keys by a generalized extreme value distribution, values by a generalized
//! Pareto distribution from 15 bytes on, shorter ones by its table of the first few lengths' probabilities.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, LogNormal};

use crate::wire::{ItemLen, KEY_DIGITS};
use crate::workload::fnv1a;

/// Longest value. Both servers take it with the limits they have by default.
pub const VALUE_MAX: usize = 500_000;
/// Longest key of memcached's protocol.
pub const KEY_MAX: usize = 250;

/// Probabilities of ETC's values of 0 to 14 bytes.
const ETC_SHORT: [f64; 15] = [
    0.00536, 0.00047, 0.17820, 0.09239, 0.00018, 0.02740, 0.00065, 0.00606, 0.00023, 0.00837, 0.00837, 0.08989, 0.00092, 0.00326,
    0.01980,
];
/// ETC's longer values: location 0, scale and shape.
const ETC_LONG: GeneralizedPareto = GeneralizedPareto { scale: 214.476, shape: 0.348238 };

/// How long keys are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KeyLaw {
    /// All alike.
    Fixed(usize),
    /// As ETC's.
    Etc,
}

/// How long values are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValueLaw {
    /// Lognormal, drawn again where it falls outside `least..=VALUE_MAX`.
    Lognormal {
        /// The law.
        law: LogNormal<f64>,
        /// The shortest.
        least: usize,
    },
    /// As ETC's.
    Etc,
}

impl ValueLaw {
    /// Lognormal by its median and the deviation of its logarithm, `least` bytes at least.
    pub fn by_median(median: f64, sigma: f64, least: usize) -> Self {
        let law = LogNormal::new(median.ln(), sigma).expect("a deviation is no less than 0");
        ValueLaw::Lognormal { law, least }
    }

    /// The same by its mean.
    pub fn by_mean(mean: f64, sigma: f64, least: usize) -> Self {
        Self::by_median(mean * (-sigma * sigma / 2.0).exp(), sigma, least)
    }

    fn draw(&self, rng: &mut SmallRng) -> usize {
        match self {
            ValueLaw::Etc => etc_value(rng),
            // A median between the bounds is drawn within some tries.
            ValueLaw::Lognormal { law, least } => loop {
                let len = law.sample(rng) as usize;
                if (*least..=VALUE_MAX).contains(&len) {
                    return len;
                }
            },
        }
    }
}

impl KeyLaw {
    fn draw(&self, rng: &mut SmallRng) -> usize {
        let len = match self {
            KeyLaw::Fixed(len) => *len,
            KeyLaw::Etc => extreme_value(30.7984, 8.20449, 0.078688, rng.random()) as usize,
        };
        // One key in a thousand of ETC is shorter than the digits that tell keys apart.
        len.clamp(KEY_DIGITS, KEY_MAX)
    }
}

/// The generalized extreme value distribution's value below which a share `u` of all lies.
fn extreme_value(location: f64, scale: f64, shape: f64, u: f64) -> f64 {
    location + scale / shape * ((-u.ln()).powf(-shape) - 1.0)
}

/// A generalized Pareto distribution that begins at 0.
#[derive(Clone, Copy)]
struct GeneralizedPareto {
    scale: f64,
    shape: f64,
}

impl GeneralizedPareto {
    /// Share of all that lies above `x`.
    fn above(self, x: f64) -> f64 {
        (1.0 + self.shape * x / self.scale).powf(-1.0 / self.shape)
    }

    /// What a share `above` of all lies above.
    fn value(self, above: f64) -> f64 {
        self.scale / self.shape * (above.powf(-self.shape) - 1.0)
    }
}

fn etc_value(rng: &mut SmallRng) -> usize {
    let mut u: f64 = rng.random();
    for (len, share) in ETC_SHORT.iter().enumerate() {
        if u < *share {
            return len;
        }
        u -= share;
    }
    // The law beyond the table's lengths: of what lies above 15 bytes, a share drawn evenly (from 1 down, so that it is never 0).
    let share = 1.0 - rng.random::<f64>();
    let beyond = ETC_SHORT.len();
    (ETC_LONG.value(share * ETC_LONG.above(beyond as f64)) as usize).clamp(beyond, VALUE_MAX)
}

/// Lengths of all items of a load.
#[derive(Clone, Debug)]
pub struct ItemLaws {
    seed: u64,
    keys: KeyLaw,
    /// First key that a law is of, in rising order.
    values: Vec<(u64, ValueLaw)>,
}

impl ItemLaws {
    /// Without laws of values: [`begin`](Self::begin) comes before [`item`](Self::item).
    pub fn new(seed: u64, keys: KeyLaw) -> Self {
        Self { seed, keys, values: Vec::new() }
    }

    /// From key `first` on values follow `law`.
    pub fn begin(&mut self, first: u64, law: ValueLaw) {
        assert!(self.values.last().map_or(first == 0, |(last, _)| *last < first), "laws begin at key 0, in rising order");
        self.values.push((first, law));
    }

    /// Lengths of the item `key`.
    pub fn item(&self, key: u64) -> ItemLen {
        let mut rng = SmallRng::seed_from_u64(fnv1a(key ^ self.seed.rotate_left(32)));
        let law = &self.values[self.values.partition_point(|(first, _)| *first <= key) - 1].1;
        ItemLen { key: self.keys.draw(&mut rng), value: law.draw(&mut rng) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u64 = 200_000;

    fn draws(keys: KeyLaw, law: ValueLaw) -> (Vec<usize>, Vec<usize>) {
        let mut laws = ItemLaws::new(11, keys);
        laws.begin(0, law);
        let (mut keys, mut values): (Vec<_>, Vec<_>) = (0..DRAWS).map(|k| (laws.item(k).key, laws.item(k).value)).unzip();
        keys.sort_unstable();
        values.sort_unstable();
        (keys, values)
    }

    fn mean(lens: &[usize]) -> f64 {
        lens.iter().sum::<usize>() as f64 / lens.len() as f64
    }

    fn quantile(lens: &[usize], share: f64) -> f64 {
        lens[(lens.len() as f64 * share) as usize] as f64
    }

    /// Within so many per cent, and the half byte that is cut off.
    fn near(what: &str, got: f64, want: f64, percent: f64) {
        assert!((got - want).abs() <= want * percent / 100.0 + 1.0, "{what}: {got}, {want} expected");
    }

    #[test]
    fn etc_keys_follow_the_published_law() {
        let (keys, _) = draws(KeyLaw::Etc, ValueLaw::Etc);
        // Location + scale / shape * (gamma(1 - shape) - 1), gamma(0.921312) = 1.05203; and -ln(1/2), -ln(0.99) into the law.
        near("mean", mean(&keys), 36.22, 1.0);
        near("median", quantile(&keys, 0.5), 33.85, 1.0);
        near("99 %", quantile(&keys, 0.99), 76.28, 2.0);
        assert!(keys[0] >= KEY_DIGITS && *keys.last().unwrap() <= KEY_MAX);
    }

    #[test]
    fn etc_values_follow_the_published_table_and_law() {
        let (_, values) = draws(KeyLaw::Etc, ValueLaw::Etc);
        for (len, share) in ETC_SHORT.iter().enumerate() {
            let got = values.iter().filter(|v| **v == len).count() as f64 / DRAWS as f64;
            assert!((got - share).abs() < 0.003, "{len} bytes: {got} of all, {share} expected");
        }
        // Of 55.8 % that are longer, the mean is 15 + (214.476 + 0.348238 * 15) / (1 - 0.348238) = 352.1.
        let long = &values[values.partition_point(|v| *v < 15)..];
        near("share of long ones", long.len() as f64 / DRAWS as f64 * 100.0, 55.845, 0.5);
        near("mean of long ones", mean(long), 351.6, 3.0);
        near("median of long ones", quantile(long, 0.5), 187.2, 2.0);
        near("99 % of long ones", quantile(long, 0.99), 2520.0, 5.0);
    }

    #[test]
    fn lognormal_values_have_their_median_mean_and_bounds() {
        let (keys, values) = draws(KeyLaw::Fixed(44), ValueLaw::by_mean(4266.0, 1.0, 16));
        assert!(keys.iter().all(|len| *len == 44));
        near("mean", mean(&values), 4266.0, 2.0);
        let (_, values) = draws(KeyLaw::Fixed(32), ValueLaw::by_median(7071.0, 1.42, 100));
        near("median", quantile(&values, 0.5), 7071.0, 2.0);
        assert!(values[0] >= 100 && values[0] < 200, "{}", values[0]);
        let last = *values.last().unwrap();
        assert!(last <= VALUE_MAX && last > VALUE_MAX * 9 / 10, "{last}");
    }

    #[test]
    fn lengths_are_a_function_of_the_key_and_the_seed() {
        let laws = |seed| {
            let mut laws = ItemLaws::new(seed, KeyLaw::Etc);
            laws.begin(0, ValueLaw::Etc);
            laws.begin(500, ValueLaw::by_median(1e5, 0.1, 100));
            laws
        };
        let items = |laws: &ItemLaws, keys: &[u64]| keys.iter().map(|k| laws.item(*k)).collect::<Vec<_>>();
        let keys: Vec<_> = (0..1000).collect();
        let mut backwards = items(&laws(1), &keys.iter().rev().copied().collect::<Vec<_>>());
        backwards.reverse();
        assert_eq!(items(&laws(1), &keys), backwards);
        assert_ne!(items(&laws(2), &keys), backwards);
        assert!(backwards[500..].iter().all(|item| item.value > 50_000), "the second law begins at its key");
        assert!(backwards[..500].iter().all(|item| item.value < 50_000));
    }
}
