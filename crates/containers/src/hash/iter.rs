//! Walking a whole map while others change it.
//!
//! **Weakly consistent**: what is there from beginning to end is met exactly once; what is inserted, removed or changed meanwhile
//! may or may not be seen. One stripe is locked at a time; growth moves items within their stripe only.

use super::HashMap;
use super::table::{STRIPES, Table, items};
use crate::Result;
use crate::pair::Pair;
use towa_epoch::typed::scope;

impl HashMap {
    /// Runs `f` on every key and value, each under its lock: `f` must be short and may only read other containers.
    ///
    /// # Errors
    /// Inside a transaction of the same thread.
    pub fn for_each(&self, mut f: impl FnMut(&[u8], &[u8])) -> Result<()> {
        let scope = scope::read()?;
        for stripe in 0..STRIPES {
            self.0.stripe_items(stripe, scope.is_nested(), &mut f);
        }
        Ok(())
    }

    /// Copies of all keys and values, a stripe at a time; holds no lock between steps, so anything may be done meanwhile -
    /// except inside a transaction, where it ends.
    pub fn iter(&self) -> Iter {
        Iter { map: self.clone(), stripe: 0, batch: Vec::new() }
    }
}

impl Table {
    fn stripe_items(&self, stripe: usize, is_nested: bool, f: &mut impl FnMut(&[u8], &[u8])) {
        let _held = self.read(stripe, is_nested);
        for line in self.lines_of_stripe(stripe) {
            // SAFETY: the stripe is held.
            for item in unsafe { items(line) } {
                // SAFETY: the stripe is held.
                unsafe { f(Pair::key(&raw const (*item).pair), Pair::value(&raw const (*item).pair)) };
            }
        }
    }
}

/// Iterator over copies of a map's items; see [`HashMap::iter`].
#[derive(Debug)]
pub struct Iter {
    map: HashMap,
    stripe: usize,
    batch: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Iterator for Iter {
    type Item = (Vec<u8>, Vec<u8>);

    fn next(&mut self) -> Option<Self::Item> {
        while self.batch.is_empty() && self.stripe < STRIPES {
            let is_nested = scope::check_read().ok()?;
            let batch = &mut self.batch;
            self.map.0.stripe_items(self.stripe, is_nested, &mut |k, v| batch.push((k.to_vec(), v.to_vec())));
            self.stripe += 1;
        }
        self.batch.pop()
    }
}
