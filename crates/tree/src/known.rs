//! The trees that are in a pool, or in an arena, each checked as a whole: for whoever looks at a pool and does not know what it holds.

use std::sync::Arc;

use towa_media::Medium;
use towa_tx::Pool;

use crate::bptree::{BpTree, ROOT_TAG};
use crate::fptree::FpTree;
use crate::{Error, Key, OrderedMap, Result};

/// A tree that was found sound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Name of its root; empty for an arena, which holds one tree.
    pub name: String,
    /// What it is.
    pub kind: &'static str,
    /// Its keys.
    pub items: u64,
}

/// Checks every B+-tree of `pool`, while nobody writes. Roots of other kinds, and trees of unusual node sizes, are passed over.
///
/// # Errors
/// The first damage found; a pool without a free lane.
pub fn check_all(pool: &Pool) -> Result<Vec<Checked>> {
    let mut found = Vec::new();
    for name in pool.root_names() {
        if pool.root(&name).is_none_or(|root| root.type_tag != ROOT_TAG) {
            continue;
        }
        let checked = match check_root::<u64>(pool, &name, "B+-tree of numbers")? {
            None => check_root::<[u8]>(pool, &name, "B+-tree of byte strings")?,
            some => some,
        };
        found.extend(checked);
    }
    Ok(found)
}

fn check_root<K: Key + ?Sized>(pool: &Pool, name: &str, kind: &'static str) -> Result<Option<Checked>> {
    match BpTree::<K>::look(pool, name) {
        Ok(tree) => {
            tree.check()?;
            Ok(Some(Checked { name: name.into(), kind, items: OrderedMap::<K>::count(&tree)? }))
        }
        Err(Error::Mismatch { .. }) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Checks the FPTree in the arena on `medium`. Opens it, so recovery writes there.
///
/// # Errors
/// The first damage found; there is no arena, or something else in it.
pub fn check_arena(medium: &Arc<dyn Medium>) -> Result<Checked> {
    let checked = |map: &dyn Fn() -> Result<u64>, kind| Ok(Checked { name: String::new(), kind, items: map()? });
    match FpTree::<u64>::open(Arc::clone(medium)) {
        Ok(tree) => checked(&|| OrderedMap::<u64>::check(&tree).and_then(|()| tree.count()), "FPTree of numbers"),
        Err(Error::Mismatch { .. }) => {
            let tree = FpTree::<[u8]>::open(Arc::clone(medium))?;
            checked(&|| OrderedMap::<[u8]>::check(&tree).and_then(|()| tree.count()), "FPTree of byte strings")
        }
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Session;
    use towa_media::RamMedium;
    use towa_tx::Options;

    #[test]
    fn trees_are_found_by_what_they_are() {
        let pool = Pool::create_on(RamMedium::anonymous(), &Options { heap_len: 8 << 20, lanes: 4, ..Options::default() }).unwrap();
        let numbers = BpTree::<u64>::create(&pool, "numbers").unwrap();
        let bytes = BpTree::<[u8]>::create(&pool, "bytes").unwrap();
        BpTree::<u64, 4, 4>::create(&pool, "tiny").unwrap();
        (0..100).for_each(|n| assert!(numbers.session().unwrap().insert(&n, n).unwrap()));
        assert!(bytes.session().unwrap().insert(b"one", 1).unwrap());
        let found = check_all(&pool).unwrap();
        let items: Vec<_> = found.iter().map(|it| (it.name.as_str(), it.kind, it.items)).collect();
        assert_eq!(items, [("bytes", "B+-tree of byte strings", 1), ("numbers", "B+-tree of numbers", 100)]);

        let medium: Arc<dyn Medium> = RamMedium::anonymous();
        let tree =
            FpTree::<[u8]>::create(Arc::clone(&medium), &crate::fptree::Options { len: 4 << 20, ..Default::default() }).unwrap();
        assert!(tree.session().insert(b"one", 1).unwrap());
        drop(tree);
        assert_eq!(check_arena(&medium).unwrap().items, 1);
    }
}
