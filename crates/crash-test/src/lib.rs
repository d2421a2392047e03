//! Crash sweeps: random work on a simulated medium, a crash at every event, recovery, and a model that knows what must be there.
//!
//! One module a door. Everything is drawn from one seed, which a failure prints. [`linear`] judges
//! what threads saw of an ordered map together.

pub mod epoch;
mod failing;
mod failure;
pub mod kill;
pub mod linear;
pub mod tree;
pub mod tx;

pub use failing::Round;
pub use failure::Failure;
