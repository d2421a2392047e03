//! Tests of the transaction door through its public interface.

mod attach;
mod guarded;
mod read_set;
mod refused;
mod transactions;
mod waiting;
mod ways;
