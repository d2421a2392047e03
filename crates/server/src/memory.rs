//! How much memory a server takes at most, and how much its control groups allow.
//!
//! What must always hold: each sum in a [`Footprint`] has a limit that the code keeps (named beside it), so that the
//! total is a promise and no guess. Two things are not counted, which the kernel has and bounds: what a file system keeps in its page
//! cache, which it takes back when memory is short, and sockets' buffers.

mod cgroup;

pub use cgroup::{Allowed, allowed};

use std::path::Path;

use towa_epoch::{Mode, Options, Pool, applied_together};
use towa_media::Kind;

use crate::config::Config;
use crate::error::Result;
use crate::server::Shared;
use crate::{receiving, store, unsent};

/// What the program takes besides: its code, allocator tables, threads' stacks, what the store counts and remembers.
const PROGRAM: u64 = 24 << 20;
/// What a worker takes: buffers to read to and to answer from, free blocks of its own.
const WORKER: u64 = 2 << 20;
/// What a connection takes without counted buffers: its state, a short request or answer.
const CONNECTION: u64 = 12 << 10;
/// Space of an image in memory that is taken before the heap needs it: a step of the image, and one of the allocator.
const AHEAD: u64 = 20 << 20;
/// The table of a cache full of the smallest items is a sixth of their chunks.
const TABLE_SHARE: u64 = 6;
/// A tag is a byte for each line of 64.
const TAG_SHARE: u64 = 64;
/// Page tables have 8 bytes for each page of 4096; twice, for a working copy and its image.
const PAGE_TABLE_SHARE: u64 = 256;
/// The least undo log that there is, and what its length is a multiple of.
const UNDO: (u64, u64) = (8 << 20, 8 << 10);
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

/// What a pool has, or will have, whatever `-m` is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// Bytes of its log.
    pub log: u64,
    /// Bytes of its heap that have memory in any case: all of it where that is taken beforehand; what is in use where it is not given up.
    pub heap: u64,
}

impl Given {
    /// That of `pool`, which is there.
    pub fn of(config: &Config, pool: &Pool) -> Given {
        let heap = match config.prefault {
            true => pool.heap_range().1,
            false if config.evict && !store::is_shared(pool) => 0,
            false => pool.space().in_use,
        };
        Given { log: pool.stats().log_capacity, heap }
    }
}

/// The most bytes of memory that a server takes, by purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Items' chunks: `-m` (`Store::fit_bound`).
    pub items: u64,
    /// The table of items.
    pub table: u64,
    /// What the heap has beyond these in any case ([`Given`]).
    pub beyond: u64,
    /// Which epoch marked which line, and the kernel's page tables of all this.
    pub marks: u64,
    /// Image of the heap, where it lies in memory beside the working copy; and what is taken ahead for it.
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
    /// That of a server with `limit` bytes of items, on a pool with so much in any case.
    pub fn of(config: &Config, limit: u64, residence: Residence, given: Given) -> Footprint {
        let items = limit.max(store::LEAST);
        let table = items / TABLE_SHARE;
        let beyond = given.heap.saturating_sub(items + table);
        let heap = items + table + beyond;
        let tags = if residence == Residence::Volatile { 0 } else { heap / TAG_SHARE };
        let image = match residence {
            Residence::Volatile | Residence::Stored => 0,
            Residence::InPlace => AHEAD,
            Residence::Copied => heap + AHEAD,
        };
        Footprint {
            items,
            table,
            beyond,
            marks: tags + heap / PAGE_TABLE_SHARE,
            image,
            log: log_and_lists(residence, given.log),
            values: receiving::limit(limit, config.item_size_max, config.threads),
            answers: unsent::limit(limit, config.item_size_max, config.threads),
            connections: config.max_connections as u64 * CONNECTION + config.threads as u64 * WORKER,
            program: PROGRAM,
        }
    }

    /// That of a server on `pool`.
    pub fn for_pool(config: &Config, pool: &Pool) -> Footprint {
        Footprint::of(config, config.limit_in(pool.heap_range().1), Residence::of(pool), Given::of(config, pool))
    }

    /// That of a running server which has `limit` bytes of items from now on. How much requests and answers may take stays what it was
    /// at its start.
    pub fn with_limit(shared: &Shared, limit: u64) -> Footprint {
        let (config, pool) = (&shared.config, shared.store.pool());
        let Footprint { values, answers, .. } = Footprint::for_pool(config, pool);
        Footprint { values, answers, ..Footprint::of(config, limit, Residence::of(pool), Given::of(config, pool)) }
    }

    /// Whether `pool` has more in use than that now: of a server that had more items. It gives up items and memory until it has not.
    pub fn is_exceeded_by(&self, pool: &Pool) -> bool {
        pool.space().in_use > self.items + self.table + self.beyond
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        let heap = self.items + self.table + self.beyond + self.marks + self.image;
        heap + self.log + self.values + self.answers + self.connections + self.program
    }
}

/// What a log of `len` bytes takes, and what goes there or comes from there: old lines that threads save, for which the log has space, and
/// lists of marked lines, 8 bytes of each, 73 in the log.
fn log_and_lists(residence: Residence, len: u64) -> u64 {
    let (saved, lists) = (len, len / 8);
    match residence {
        Residence::Volatile => 0,
        Residence::InPlace => len.max(UNDO.0).next_multiple_of(UNDO.1),
        Residence::Copied => len + saved + lists,
        Residence::Stored => saved + lists + applied_together(len) * 4 / 3,
    }
}

/// Whether a running server may have `limit` bytes of items from now on, as far as control groups `allow` it.
pub fn may_become(shared: &Shared, limit: u64, allowed: Option<&Allowed>) -> bool {
    let is_more = limit > shared.store.limit();
    !is_more || allowed.is_none_or(|allowed| Footprint::with_limit(shared, limit).total() <= allowed.bytes)
}

/// The most mebibytes of items, at most `limit` bytes, with which a server stays within `allowed` bytes; `given` says what the pool has in
/// any case where there are that many bytes. `None`: all else is too much.
pub fn limit_within(config: &Config, limit: u64, allowed: u64, residence: Residence, given: impl Fn(u64) -> Given) -> Option<u64> {
    let fits = |mib: u64| Footprint::of(config, mib * MIB, residence, given(mib * MIB)).total() <= allowed;
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
            let given = Given { log: 32 << 20, heap: 0 };
            let total = |limit| Footprint::of(&config, limit, residence, given).total();
            let within = |limit, allowed| limit_within(&config, limit, allowed, residence, |_| given);
            assert_eq!(within(256 << 20, total(256 << 20)), Some(256 << 20));
            assert_eq!(within(256 << 20, total(256 << 20) - 1), Some(255 << 20));
            let lowered = within(4 << 30, 600 << 20).unwrap();
            assert!(total(lowered) <= 600 << 20 && total(lowered + MIB) > 600 << 20, "{residence:?} {lowered}");
            assert_eq!(within(64 << 20, 20 << 20), None);
        }
    }

    #[test]
    fn all_that_has_memory_is_in_the_sum() {
        let config = Config::default();
        let of = |limit, residence, log, heap| Footprint::of(&config, limit, residence, Given { log, heap });
        let (volatile, durable) = (of(96 << 20, Residence::Volatile, 0, 0), of(96 << 20, Residence::Stored, 0, 0));
        let lines = (96 + 16) * MIB / 64;
        assert_eq!(durable.marks - volatile.marks, lines, "a byte for each line");
        assert!(volatile.marks >= lines / 8, "page tables");
        // No fewer than the bound that there is in any case, and an undo log of whole groups.
        assert_eq!(of(MIB, Residence::Volatile, 0, 0).items, 4 << 20);
        assert_eq!(of(MIB, Residence::InPlace, 4 << 20, 0).log, 8 << 20);
        assert_eq!(of(MIB, Residence::InPlace, (16 << 20) + 4096, 0).log, (16 << 20) + 8192);
        // What a heap has in any case: beside items and table, once.
        let (less, more) = (of(96 << 20, Residence::Copied, 0, 100 << 20), of(96 << 20, Residence::Copied, 0, 200 << 20));
        assert_eq!((less.beyond, more.beyond), (0, (200 - 112) << 20));
        assert_eq!(more.image - less.image, more.beyond);
    }

    #[test]
    fn what_is_not_given_up_is_counted() {
        let options = towa_epoch::Options { heap_len: 64 << 20, ..Default::default() };
        let pool = Pool::volatile(&options).unwrap();
        let config = |evict, prefault| Config { memory_limit: Some(8 << 20), evict, prefault, ..Config::default() };
        let mut thread = pool.register().unwrap();
        let tx = thread.begin().unwrap();
        let block = tx.alloc(20 << 20).unwrap();
        tx.commit();
        for (evict, prefault, at_least) in [(true, false, 0), (false, false, 20 << 20), (true, true, pool.heap_range().1)] {
            let footprint = Footprint::for_pool(&config(evict, prefault), &pool);
            let heap = footprint.items + footprint.table + footprint.beyond;
            assert!(heap >= at_least && footprint.is_exceeded_by(&pool) == (at_least == 0), "{evict} {prefault}: {footprint:?}");
        }
        let tx = thread.begin().unwrap();
        // SAFETY: a block of that size, which stays.
        unsafe { tx.set_root("another's", Some(towa_epoch::Root { ptr: block, type_tag: 1, size: 20 << 20 })).unwrap() };
        tx.commit();
        assert!(!Footprint::for_pool(&config(true, false), &pool).is_exceeded_by(&pool), "it is not the server's to give up");
    }

    #[test]
    fn a_running_server_gets_no_more_items_than_its_control_group_allows() {
        let pool = Pool::volatile(&towa_epoch::Options { heap_len: 256 << 20, ..Default::default() }).unwrap();
        let shared = Shared::new(Config { memory_limit: Some(64 << 20), ..Config::default() }, &pool).unwrap();
        let now = Footprint::with_limit(&shared, 64 << 20);
        assert_eq!(now, Footprint::for_pool(&shared.config, &pool));
        let more = Footprint::with_limit(&shared, 128 << 20);
        assert_eq!((more.items, more.values, more.answers), (128 << 20, now.values, now.answers));
        let allowed = |bytes| Allowed { bytes, file: "memory.max".into() };
        assert!(may_become(&shared, 128 << 20, None) && may_become(&shared, 128 << 20, Some(&allowed(more.total()))));
        assert!(!may_become(&shared, 128 << 20, Some(&allowed(more.total() - 1))));
        assert!(may_become(&shared, 32 << 20, Some(&allowed(1))), "less is never too much");
    }
}
