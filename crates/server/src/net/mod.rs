//! The network: one acceptor, some workers, each with its own poll loop.
//!
//! ```text
//!   acceptor ── round robin ──► mailbox ──► worker: poll ──► read ──► Session::feed ──► one write per batch
//!                                             ▲
//!   barrier thread: waits for epochs ── wakes ┘          connections that sent `durable` are parked meanwhile
//! ```
//!
//! What must always hold: a connection belongs to one worker; no call waits in a worker for a disk or for log space, and a turn of one
//! connection ends after some work; buffers are bounded (input by the request that is arriving, output by what is let through before the
//! socket takes it); what a connection received and is to be sent belongs to it alone (`buffers`), and whatever ends it, a panic
//! too, ends nothing else (`clients`).

mod accept;
mod barrier;
mod buffers;
mod clients;
mod connection;
mod listen;
mod slots;
mod stream;
mod unix_socket;
mod worker;

pub(crate) use accept::start as start_acceptor;
pub(crate) use barrier::Barrier;
pub use clients::Clients;
pub(crate) use listen::{Listeners, raise_descriptor_limit};
pub use slots::Key;
pub use stream::Transport;
pub(crate) use worker::{Mailbox, start as start_worker};
