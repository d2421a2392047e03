//! Tests of the doors under the crash simulator.

mod damaged;
mod deletions;
mod epoch;
mod failing_device;
mod faults;
mod linear;
mod moments;
mod tree;
mod tree_blocks;
mod tree_bptree_deletions;
mod tree_destroy;
mod tx;
mod tx_damaged;
mod tx_deletions;
mod tx_faults;
mod tx_image;
