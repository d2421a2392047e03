//! Tests of the server through real sockets, and of its sessions without any.

mod differential;
mod durability;
mod golden;
mod network;
mod peers;
mod session;
