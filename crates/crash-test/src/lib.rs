//! Crash sweeps: random work on a simulated medium, a crash at every event, recovery, and a model that knows what must be there.
//!
//! One module a door. Everything is drawn from one seed, which a failure prints.

pub mod epoch;
pub mod tx;
