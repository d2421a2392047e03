//! Faults that tests inject: a fence that is not there, a full disk, a failing device.

/// Where a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Point {
    /// [`Region::fence`](crate::Region::fence).
    Fence,
    /// [`Region::write_back`](crate::Region::write_back).
    WriteBack,
    /// [`Medium::sync_names`](crate::Medium::sync_names).
    SyncNames,
    /// [`Region::store`](crate::Region::store) and [`Region::stream`](crate::Region::stream).
    Write,
    /// [`Region::read`](crate::Region::read).
    Read,
    /// [`Region::reserve`](crate::Region::reserve).
    Reserve,
    /// [`Medium::create`](crate::Medium::create).
    Create,
    /// [`Medium::remove`](crate::Medium::remove).
    Remove,
    /// [`Medium::rename`](crate::Medium::rename).
    Rename,
}

/// What happens there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The call returns success and does nothing, as if it had been deleted from the program. For fences, write-backs and
    /// `sync_names` only.
    Ignore,
    /// The call fails with [`Error::Full`](crate::Error::Full).
    Full,
    /// The call fails with an input/output error; a handle whose fence failed so stays failed, and so do the other handles of the
    /// region that are open then. In [`Model::File`](super::Model::File), what was not durable before a failed fence is never made
    /// durable by a later one, unless it is written again. A write-back, which cannot fail, is ignored.
    Io,
}

/// The faults still to come.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// Where, how many calls to let pass first, what.
    pending: Vec<(Point, u64, Effect)>,
}

impl Faults {
    pub fn add(&mut self, point: Point, after: u64, effect: Effect) {
        let deletable = matches!(point, Point::Fence | Point::WriteBack | Point::SyncNames);
        assert!(effect != Effect::Ignore || deletable, "{point:?} cannot be ignored: the program would see it");
        self.pending.push((point, after, effect));
    }

    /// Called once per call at `point`: the fault that strikes now, if any.
    pub fn strike(&mut self, point: Point) -> Option<Effect> {
        let mut striking = None;
        self.pending.retain_mut(|(at, after, effect)| {
            if *at != point {
                return true;
            }
            if *after == 0 {
                striking = striking.or(Some(*effect));
                return false;
            }
            *after -= 1;
            true
        });
        striking
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strikes_once_at_its_call() {
        let mut faults = Faults::default();
        faults.add(Point::Fence, 2, Effect::Ignore);
        faults.add(Point::Create, 0, Effect::Full);
        assert_eq!(faults.strike(Point::Fence), None);
        assert_eq!(faults.strike(Point::Create), Some(Effect::Full));
        assert_eq!(faults.strike(Point::Fence), None);
        assert_eq!(faults.strike(Point::Fence), Some(Effect::Ignore));
        assert_eq!(faults.strike(Point::Fence), None);
        assert_eq!(faults.strike(Point::Create), None);
    }
}
