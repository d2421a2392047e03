//! Every invariant of a tree, while nobody writes.
//!
//! What must always hold, and is checked here: the index leads to the leaves of the list, in its order; each leaf's keys lie between the
//! separators around it; only the head may be empty; every block of the arena that is taken is a leaf of the list, a spare leaf, or the
//! key of one entry, and each of these is taken once.

use std::borrow::Borrow;
use std::ops::ControlFlow;

use super::FpTree;
use super::layout::LEAF_LEN;
use super::leaf::Leaf;
use super::recover::{check_order, examine};
use crate::{Key, Result};

impl<K: Key + ?Sized> FpTree<K> {
    pub(super) fn check_all(&self) -> Result<()> {
        let audit = self.allocator.audit()?;
        let (mut leaves, mut keys) = (Vec::new(), Vec::new());
        let mut expected = self.head;
        let mut one = |off: u64, low: Option<&K>, high: Option<&K>| -> Result<()> {
            if off != expected {
                return Err(self.damaged(format!("the index leads to leaf {off:#x}, the list to {expected:#x}")));
            }
            audit.mark(off, LEAF_LEN)?;
            let Some(leaf) = Leaf::at(&self.arena, off) else {
                return Err(self.damaged(format!("the index leads to {off:#x}, where there is no leaf")));
            };
            if leaf.version() & 1 != 0 {
                return Err(self.damaged(format!("leaf {off:#x} is locked")));
            }
            let ends = examine::<K>(&self.arena, &leaf, self.full, &mut |off, len| Ok(audit.mark(off, len)?))?;
            if let Some((least, greatest)) = &ends
                && (low.is_some_and(|low| least.borrow() < low) || high.is_some_and(|high| greatest.borrow() >= high))
            {
                return Err(self.damaged(format!("leaf {off:#x} holds keys outside its range")));
            }
            expected = leaf.next();
            leaves.push(off);
            keys.push(ends);
            Ok(())
        };
        let mut result = Ok(());
        self.index.for_each_leaf(&mut |off, range| {
            result = one(off, range.low.as_ref().map(Borrow::borrow), range.high.as_ref().map(Borrow::borrow));
            if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        result?;
        if expected != 0 {
            return Err(self.damaged(format!("the list goes on to leaf {expected:#x}, the index ends")));
        }
        check_order::<K>(&self.arena, &leaves, &keys)?;
        for off in self.spare.lock().iter() {
            audit.mark(*off, LEAF_LEN)?;
        }
        Ok(audit.finish()?)
    }
}
