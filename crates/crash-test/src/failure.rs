//! A failed sweep, whichever door's.

/// A state that recovery should not have given, or work that went wrong.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Reproduces it, where one thread worked: `towa crash-test DOOR --seed SEED`.
    pub seed: u64,
    /// World and generation in which it happened.
    pub place: String,
    /// What is wrong, and the smallest set of lost writes that shows it.
    pub message: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seed {}, {}: {}", self.seed, self.place, self.message)
    }
}

impl std::error::Error for Failure {}
