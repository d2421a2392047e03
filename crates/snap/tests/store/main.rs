//! Tests of the store of checkpoints.

mod damage;
mod failing;
mod kill;
mod model;
#[path = "../places/mod.rs"]
mod places;
mod power;
mod readers;
mod space;
