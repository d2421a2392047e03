//! How to create and open pools.

use std::time::Duration;

use towa_heap::superblock::Door;
use towa_heap::{CreateOptions, LogShape};

use crate::engine;
use crate::error::{Error, Result};

/// How transactions are run. What is asked for; [`Pool::tm`](crate::Pool::tm) says what it came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TmChoice {
    /// In hardware where the machine commits hardware transactions, else in software.
    #[default]
    Auto,
    /// In hardware; refused where there is none.
    Rtm,
    /// In software (NOrec; where versions guard all that is touched, their locks).
    Stm,
    /// One after another, under a lock.
    Lock,
}

/// How transactions run in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tm {
    /// In hardware, with the software path for what does not fit or does not get through.
    Rtm,
    /// In software.
    Stm,
    /// One after another.
    Lock,
}

/// When a transaction is durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Commit {
    /// When the call returns. What is read is durable.
    #[default]
    Strict,
    /// Soon after, or when [`Pool::sync`](crate::Pool::sync) returns: after a crash a prefix of the order in which they took effect is there.
    Buffered,
}

/// Who brings the image up and frees the logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Checkpointer {
    /// A thread of this process.
    #[default]
    Thread,
    /// Another process (`towa checkpointer`), as in the paper; while there is none, a thread stands in.
    Process,
    /// Nobody but [`Pool::checkpoint`](crate::Pool::checkpoint). For deterministic tests.
    Manual,
}

/// When a hardware transaction that aborts is tried again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Retry {
    /// By the reason of the abort.
    #[default]
    ByCause,
    /// So many times, whatever the reason: what public codes of NV-HTM do. To compare with.
    Blind(u32),
}

/// How to create or open a pool. `Options::default()` suits most.
#[derive(Clone, Debug)]
pub struct Options {
    /// Capacity of the heap in bytes; fixed at creation. Default 1 GiB. Only what is used takes space.
    pub heap_len: u64,
    /// Number of logs, and so of threads at a time; fixed at creation. Default 64, the most there can be.
    pub lanes: u32,
    /// Bytes of each log; fixed at creation. Default 16 MiB. Space is taken when a thread first uses it.
    pub lane_len: u64,
    /// How transactions are run.
    pub tm: TmChoice,
    /// When one that aborts in hardware is tried again.
    pub retry: Retry,
    /// When they are durable.
    pub commit: Commit,
    /// Who checkpoints.
    pub checkpointer: Checkpointer,
    /// With [`Commit::Buffered`]: time between writes of the log. Default 10 ms.
    pub interval: Duration,
    /// Load everything at open instead of as touched.
    pub eager: bool,
    /// Take the memory of the whole heap when it is created or opened, instead of as it is first stored to, which the kernel zeroes 2 MiB at a
    /// time while a thread waits. Takes `heap_len` bytes. (What an opened pool holds already comes as touched, or with `eager`.)
    pub prefault: bool,
    /// Which medium: `None` detects it from the path.
    pub medium: Option<towa_media::Kind>,
    /// Address of the heap; fixed at creation; `None` picks one.
    pub base: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            heap_len: 1 << 30,
            lanes: 64,
            lane_len: 16 << 20,
            tm: TmChoice::Auto,
            retry: Retry::ByCause,
            commit: Commit::Strict,
            checkpointer: Checkpointer::Thread,
            interval: Duration::from_millis(10),
            eager: false,
            prefault: false,
            medium: None,
            base: None,
        }
    }
}

impl Options {
    /// Whether a pool can be created like that. Asked before anything is made, its directory included.
    pub(crate) fn check_to_create(&self) -> Result<()> {
        engine::choose(self.tm)?;
        self.to_create().check()?;
        self.check(self.lanes as usize)
    }

    /// What the heap's part of a new pool is like.
    pub(crate) fn to_create(&self) -> CreateOptions {
        let log = LogShape::Lanes { count: self.lanes, lane_len: self.lane_len };
        CreateOptions { door: Door::Tx, heap_len: self.heap_len, log, base: self.base, prefault: self.prefault }
    }

    /// Whether a pool with so many logs, which is kept, can be used like that.
    pub(crate) fn check(&self, lanes: usize) -> Result<()> {
        let why = match (self.commit, self.checkpointer) {
            (Commit::Strict, _) => return Ok(()),
            (_, Checkpointer::Process) => {
                "buffered commits are grouped by a thread of the program; use them with a checkpointer that is a thread"
            }
            _ if lanes == 1 => {
                "buffered commits need a log of their own beside those of threads; create the pool with two lanes at least"
            }
            _ => return Ok(()),
        };
        Err(Error::Usage(why.into()))
    }
}
