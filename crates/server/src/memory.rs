//! How much memory a server takes at most, and how much its control groups allow.
//!
//! What must always hold: each sum in a [`Footprint`] has a limit that the code keeps (named beside it), so that the
//! total is a promise and no guess. What a file system keeps in its page cache is not counted: the kernel takes that
//! back when memory is short.

mod cgroup;

pub use cgroup::{Allowed, allowed};

use std::path::Path;

use towa_epoch::{Mode, Options, Pool, applied_together};
use towa_media::Kind;

use crate::config::Config;
use crate::error::Result;
use crate::{receiving, unsent};

/// What the program takes besides: its code, allocator tables, threads' stacks, what the store counts and remembers.
const PROGRAM: u64 = 24 << 20;
/// What a worker takes: buffers to read to and to answer from, free blocks of its own.
const WORKER: u64 = 2 << 20;
/// What a connection takes without counted buffers: its state, a short request or answer.
const CONNECTION: u64 = 8 << 10;
/// Space of an image in memory that is taken before the heap needs it: a step of the image, and one of the allocator.
const AHEAD: u64 = 20 << 20;
/// The table of a cache full of the smallest items is a sixth of their chunks.
const TABLE_SHARE: u64 = 6;
/// A mebibyte, in which `-m` is given.
const MIB: u64 = 1 << 20;

/// Where a pool has its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residence {
    /// No pool: items are in the working copy alone.
    Volatile,
    /// The image lies in memory and is the working copy.
    InPlace,
    /// The image lies in memory, and the working copy beside it.
    Copied,
    /// The image lies on a disk or on durable memory; the working copy is in memory.
    Stored,
}

impl Residence {
    /// That of the pool which `options` would make in `dir`.
    pub fn of_new(options: &Options, dir: Option<&Path>) -> Result<Residence> {
        let Some(dir) = dir.filter(|_| options.mode != Mode::Volatile) else { return Ok(Residence::Volatile) };
        let kind = match options.medium {
            Some(kind) => kind,
            None => towa_media::detect(dir).map_err(towa_epoch::Error::from)?.kind,
        };
        Ok(if kind == Kind::Ram && options.in_place { Residence::InPlace } else { Residence::on(kind) })
    }

    /// That of `pool`.
    pub fn of(pool: &Pool) -> Residence {
        match pool.medium() {
            None => Residence::Volatile,
            Some(_) if pool.is_in_place() => Residence::InPlace,
            Some(medium) => Residence::on(medium.kind()),
        }
    }

    /// That of a pool with a working copy beside its image, which is on a medium of this kind.
    fn on(kind: Kind) -> Residence {
        match kind {
            Kind::Ram | Kind::Sim => Residence::Copied,
            Kind::Dax | Kind::File => Residence::Stored,
        }
    }
}

/// The most bytes of memory that a server takes, by purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Items' chunks: `-m` (`Store::fit_bound`).
    pub items: u64,
    /// The table of items.
    pub table: u64,
    /// Image of both, where it lies in memory beside the working copy; and what is taken ahead for it.
    pub image: u64,
    /// The log where it lies in memory, and what goes there, or comes from there.
    pub log: u64,
    /// Values that are arriving (`receiving`).
    pub values: u64,
    /// Answers that sockets do not take (`unsent`).
    pub answers: u64,
    /// Connections (`-c`) and workers (`-t`).
    pub connections: u64,
    /// The program.
    pub program: u64,
}

impl Footprint {
    /// That of a server with `limit` bytes of items, on a pool with a log of `log_len` bytes.
    pub fn of(config: &Config, limit: u64, residence: Residence, log_len: u64) -> Footprint {
        let table = limit / TABLE_SHARE;
        let image = match residence {
            Residence::Volatile | Residence::Stored => 0,
            Residence::InPlace => AHEAD,
            Residence::Copied => limit + table + AHEAD,
        };
        // Old lines that threads save, for which the log has space, and lists of marked lines: 8 bytes of each, 73 in the log.
        let (saved, lists) = (log_len, log_len / 8);
        let log = match residence {
            Residence::Volatile => 0,
            Residence::InPlace => log_len,
            Residence::Copied => log_len + saved + lists,
            Residence::Stored => saved + lists + applied_together(log_len) * 4 / 3,
        };
        let connections = config.max_connections as u64 * CONNECTION + config.threads as u64 * WORKER;
        let values = receiving::limit(limit, config.item_size_max, config.threads);
        let answers = unsent::limit(limit, config.item_size_max, config.threads);
        Footprint { items: limit, table, image, log, values, answers, connections, program: PROGRAM }
    }

    /// That of a server on `pool`.
    pub fn for_pool(config: &Config, pool: &Pool) -> Footprint {
        Footprint::of(config, config.limit_in(pool.heap_range().1), Residence::of(pool), pool.stats().log_capacity)
    }

    /// Whether `pool` has memory of items beyond that now: of a server that had more of them. It gives up items and memory until it has not.
    pub fn is_exceeded_by(&self, pool: &Pool) -> bool {
        pool.space().resident > self.items + self.table
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.items + self.table + self.image + self.log + self.values + self.answers + self.connections + self.program
    }
}

/// The most mebibytes of items, at most `limit` bytes, with which a server stays within `allowed` bytes; `log_of` says how long the log is
/// for that many bytes. `None`: all else is too much.
pub fn limit_within(config: &Config, limit: u64, allowed: u64, residence: Residence, log_of: impl Fn(u64) -> u64) -> Option<u64> {
    let fits = |mib: u64| Footprint::of(config, mib * MIB, residence, log_of(mib * MIB)).total() <= allowed;
    let most = limit / MIB;
    if fits(most) {
        return Some(limit);
    }
    // The footprint grows with the limit.
    let (mut fitting, mut above) = (0, most);
    while fitting + 1 < above {
        let middle = fitting.midpoint(above);
        if fits(middle) { fitting = middle } else { above = middle }
    }
    (fitting > 0).then_some(fitting * MIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_fits_stays_and_another_is_lowered_to_the_most_that_fits() {
        let config = Config::default();
        for residence in [Residence::Volatile, Residence::InPlace, Residence::Copied, Residence::Stored] {
            let total = |limit| Footprint::of(&config, limit, residence, 32 << 20).total();
            let within = |limit, allowed| limit_within(&config, limit, allowed, residence, |_| 32 << 20);
            assert_eq!(within(256 << 20, total(256 << 20)), Some(256 << 20));
            assert_eq!(within(256 << 20, total(256 << 20) - 1), Some(255 << 20));
            let lowered = within(4 << 30, 600 << 20).unwrap();
            assert!(total(lowered) <= 600 << 20 && total(lowered + MIB) > 600 << 20, "{residence:?} {lowered}");
            assert_eq!(within(64 << 20, 20 << 20), None);
        }
    }
}
