//! Which checkpoint: a number for people, and an identity for programs.
//!
//! What must always hold: two checkpoints of one identity hold the same. A number alone tells nothing: a directory may be a copy of
//! yesterday, or one in which other programs have checkpoints, too. So whatever goes on from a checkpoint names it by both.

use uuid::Uuid;

/// Which checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckpointId {
    /// Its number in the directory. No other checkpoint gets it, also when this one is removed.
    pub number: u64,
    /// Drawn when it was begun. A copy of the directory has the same.
    pub uuid: Uuid,
}

impl CheckpointId {
    /// That of a checkpoint that is being begun.
    pub(super) fn new(number: u64) -> CheckpointId {
        CheckpointId { number, uuid: Uuid::new_v4() }
    }

    /// That of none: what belongs to the whole directory has it.
    pub(super) const NONE: CheckpointId = CheckpointId { number: 0, uuid: Uuid::nil() };
}

impl std::fmt::Display for CheckpointId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.number, self.uuid)
    }
}
