//! Verifying whatever containers a pool holds, by the tags of its roots.

use crate::{Error, HashMap, OrderedMap, Queue, Result, vector};
use towa_epoch::Pool;

/// A sound container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Name of its root.
    pub name: String,
    /// What it is: `hash map`, `ordered map`, `vector` or `queue`.
    pub kind: &'static str,
    /// Its items.
    pub items: u64,
}

/// Verifies every container in `pool`, which nobody uses meanwhile; roots that are no container are passed over. Every address
/// and length is looked at before it is followed, so that a damaged pool is an error and not a crash.
///
/// # Errors
/// [`Error::Damaged`] for the first that is broken says which, what and where.
pub fn check_all(pool: &Pool) -> Result<Vec<Checked>> {
    type Check = fn(&Pool, &str) -> Result<Option<u64>>;
    let kinds: [(&'static str, Check); 4] = [
        ("hash map", HashMap::check_named),
        ("ordered map", OrderedMap::check_named),
        ("vector", vector::check_named),
        ("queue", Queue::check_named),
    ];
    let mut checked = Vec::new();
    for name in pool.root_names() {
        for (kind, check) in kinds {
            let items = check(pool, &name).map_err(|error| match error {
                Error::Damaged(why) => Error::Damaged(format!("{kind} {name:?}: {why}")),
                other => other,
            })?;
            checked.extend(items.map(|items| Checked { name: name.clone(), kind, items }));
        }
    }
    Ok(checked)
}
