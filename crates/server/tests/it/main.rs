//! Tests of the server through real sockets, and of its sessions without any.

mod crowd;
mod differential;
mod durability;
mod golden;
mod isolation;
mod memory;
mod network;
mod peers;
mod session;
mod waiting;
