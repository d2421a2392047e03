//! The network: one acceptor, some workers, each with its own poll loop.
//!
//! ```text
//!   acceptor ── round robin ──► mailbox ──► worker: poll ──► read ──► Session::feed ──► one write per batch
//!                                             ▲
//!   barrier thread: waits for epochs ── wakes ┘          connections that sent `durable` are parked meanwhile
//! ```
//!
//! What must always hold: a connection belongs to one worker; no call blocks a worker but the start of a transaction under
//! back-pressure; buffers are bounded (input by the request that is arriving, output by what is let through before the
//! socket takes it); a panic in one connection's event closes that connection and nothing else.

mod accept;
mod barrier;
mod connection;
mod listen;
mod stream;
mod worker;

pub(crate) use accept::start as start_acceptor;
pub(crate) use barrier::Barrier;
pub(crate) use listen::{Listeners, raise_descriptor_limit};
pub(crate) use worker::{Mailbox, start as start_worker};
