//! **containers**: data structures that survive, built on the epoch door through its public interface only.
//!
//! | type | what | concurrency |
//! |---|---|---|
//! | [`HashMap`], [`TypedHashMap`] | byte strings (or plain values) to byte strings | 1024 reader-writer stripes |
//! | [`OrderedMap`], [`TypedOrderedMap`] | the same, in key order, with range scans both ways | readers together, writers per leaf |
//! | [`Vector`] | plain values by index; elements never move | a lock per few cache lines |
//! | [`Queue`] | first in, first out; many producers and consumers | one lock per end |
//!
//! Guarantee of all: **buffered**. Every operation is atomic, and a crash leaves the container as it was at an epoch boundary:
//! all operations up to there, none after. [`Pool::sync`](towa_epoch::Pool::sync) waits for durability. Power-safe or
//! process-safe as the pool's medium is.
//!
//! Rules that every container here keeps, so that the engine's promises hold (see `towa_epoch`):
//!
//! 1. locks are taken before a transaction begins and released after it ended;
//! 2. what is written under different locks lies in different 64-byte lines;
//! 3. all that can fail (allocation) comes before the first write, so an error changes nothing;
//! 4. a block is freed by the transaction that unlinks it, and readers hold the lock under which it is unlinked.
//!
//! Threads: writing takes the `&mut Thread` of the calling thread; one [`Thread`](towa_epoch::Thread) serves any number of
//! containers of its pool. Reading takes none.
//!
//! ```
//! use towa_containers::{HashMap, HashMapOptions};
//! use towa_epoch::{Options, Pool};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir_in("/dev/shm")?;
//! # let path = dir.path().join("pool");
//! let options = Options { heap_len: 64 << 20, ..Options::default() };
//! let pool = Pool::open_or_create(&path, &options)?;
//! let visits = HashMap::open(&pool, "visits", &HashMapOptions::default())?;
//! let mut session = visits.session()?;
//! session.insert(b"alice", b"1")?;
//! assert_eq!(visits.get(b"alice")?.as_deref(), Some(&b"1"[..]));
//! pool.sync()?; // alice survives from here on
//! # Ok(())
//! # }
//! ```

mod bounds;
mod error;
mod handle;
mod hash;
mod ordered;
mod pair;
mod queue;
mod segments;
mod store;
mod vector;
mod verify;

pub use error::{Error, Result};
pub use hash::{Change, HashMap, HashMapOptions, Iter as HashMapIter, Session, TypedHashMap, View};
pub use ordered::{OrderedKey, OrderedMap, OrderedView, Range, TypedOrderedMap};
pub use queue::Queue;
pub use vector::Vector;
pub use verify::{Checked, check_all};
