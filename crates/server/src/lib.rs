//! **towa-server**: a memcached that survives.
//!
//! It speaks memcached's text and meta protocol ([`protocol`]) and keeps its items in a pool of [`towa_epoch`]: after a crash it
//! opens with the data of the last durable epoch, at most one interval and one epoch old, and answers at once, whatever the size.
//! See `crates/server/README.md` for the commands, and what a client may rely on.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::io::{Read, Write};
//! use towa_server::{Config, Server};
//! let options = towa_epoch::Options { heap_len: 64 << 20, ..Default::default() };
//! let pool = towa_epoch::Pool::volatile(&options)?;
//! let server = Server::start(Config { port: 0, threads: 1, ..Config::default() }, &pool)?;
//! let mut client = std::net::TcpStream::connect(server.addr.unwrap())?;
//! client.write_all(b"set answer 0 0 2\r\n42\r\n")?;
//! let mut reply = [0; 8];
//! client.read_exact(&mut reply)?;
//! assert_eq!(&reply, b"STORED\r\n");
//! server.shutdown();
//! server.join()?;
//! # Ok(())
//! # }
//! ```
//!
//! The store inside is no part of the interface: an item kept past its lock reads freed blocks.
//!
//! ```compile_fail
//! use towa_server::store::Store;
//! ```

pub mod budget;
mod clock;
pub mod commands;
mod config;
mod counters;
mod error;
pub mod memory;
mod net;
pub mod protocol;
mod receiving;
mod run;
mod server;
mod store;
mod unsent;

pub use config::{Config, Lowered};
pub use error::{Error, Result};
pub use net::{Clients, Key, Transport};
pub use run::{PoolChoice, run};
pub use server::{Handle, Server, Shared, Shutdown, VERSION};
pub use store::{ROOT, StoreReport, check};
