//! Tests of the trees through their public interface.

mod bptree;
mod bptree_threads;
mod model;
