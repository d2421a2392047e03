//! The crash sweeps of the trees: random operations, a crash at every event, and exactly what had returned, plus possibly the one in
//! flight, must be there.

pub mod fptree;
