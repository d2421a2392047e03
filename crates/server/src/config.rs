//! What a server is told: memcached's options, and where its pool is.

use std::path::PathBuf;
use std::time::Duration;

use towa_epoch::{Options, Pool, default_log_len, default_undo_len};

use crate::error::{Error, Result};
use crate::memory::{self, Allowed, Footprint, Given, Residence};

/// An item is stored in one transaction, which must fit the log beside everybody else's: the log holds this many of the largest.
pub(crate) const LOG_PER_ITEM: u64 = 8;

/// How much more items a new pool has addresses for than `-m` says when it is made.
const GROWTH: u64 = 4;
/// The longest heap.
const HEAP_MAX: u64 = 1 << 40;

/// A limit of items that control groups have lowered.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// What was asked for, in bytes.
    pub from: u64,
    /// What it became.
    pub to: u64,
    /// The limit of the control group.
    pub by: Allowed,
}

/// The heap for `limit` bytes of items and for their table, which takes a sixth of that where all items are as small as can be.
fn heap_for(limit: u64) -> u64 {
    limit + limit / 4 + (64 << 20)
}

/// Options of a server. `Config::default()` is memcached's defaults on the loopback address.
#[derive(Clone, Debug)]
pub struct Config {
    /// `-l`: addresses or host names to listen on, each with an optional `:port`.
    pub listen: Vec<String>,
    /// `-p`: TCP port; 0 picks a free one.
    pub port: u16,
    /// `-s`: listen on this Unix socket instead of TCP.
    pub unix_socket: Option<PathBuf>,
    /// `-a`: permissions of the Unix socket.
    pub unix_socket_mode: u32,
    /// `-b`: connections that may wait to be accepted.
    pub backlog: i32,
    /// `-t`: worker threads.
    pub threads: usize,
    /// `-c`: most connections at a time.
    pub max_connections: usize,
    /// With all connections in use: refuse more with an error message, as memcached 1.6 does; else let them wait in the backlog
    /// (`-o no_maxconns_fast`).
    pub reject_when_full: bool,
    /// `-m`: bytes of chunks that items take before eviction begins; `None`: seven eighths of the heap.
    pub memory_limit: Option<u64>,
    /// Evict when full; `-M` says no.
    pub evict: bool,
    /// The pool is opened, or made, with all memory of its heap taken beforehand ([`Options::prefault`]): it counts.
    pub prefault: bool,
    /// `-I`: largest item in bytes.
    pub item_size_max: u64,
    /// Close connections that send no request for this long (`-o idle_timeout`); `None`: never.
    pub idle_timeout: Option<Duration>,
    /// Close connections that begin a request and do not end it for this long and a second per 4 KiB, or do not take their answers
    /// for this long; `None`: never.
    pub request_timeout: Option<Duration>,
    /// `-A`: the `shutdown` command works.
    pub shutdown_command: bool,
    /// `flush_all` works; `-F` says no.
    pub flush_enabled: bool,
    /// Tests only: `debugtime` moves the clock.
    pub debug_commands: bool,
    /// `-v`: what `stats settings` and `verbosity` speak of.
    pub verbosity: u32,
    /// Further lines of `stats towa`, name and value: what its owner wants it to be known by.
    pub labels: Vec<(&'static str, String)>,
    /// How long a stopping server waits for clients that wait for durability or have not taken their answers.
    pub drain_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: vec!["127.0.0.1".into()],
            port: 11211,
            unix_socket: None,
            unix_socket_mode: 0o700,
            backlog: 1024,
            threads: 4,
            max_connections: 1024,
            reject_when_full: true,
            memory_limit: None,
            evict: true,
            prefault: false,
            item_size_max: 1 << 20,
            idle_timeout: None,
            request_timeout: Some(Duration::from_secs(60)),
            shutdown_command: false,
            flush_enabled: true,
            debug_commands: false,
            verbosity: 0,
            labels: Vec::new(),
            drain_timeout: Duration::from_secs(2),
        }
    }
}

impl Config {
    /// Refuses what makes no sense.
    pub fn check(&self) -> Result<()> {
        let refuse = |why: &str| Err(Error::Config(why.into()));
        if self.threads == 0 || self.threads > 256 {
            return refuse("the number of threads (-t) must be between 1 and 256");
        }
        if self.max_connections == 0 {
            return refuse("the number of connections (-c) must be at least 1");
        }
        if !(1024..=1 << 30).contains(&self.item_size_max) {
            return refuse("the item size limit (-I) must be between 1k and 1g");
        }
        if self.unix_socket.is_none() && self.listen.is_empty() {
            return refuse("nothing to listen on: give an address (-l) or a Unix socket (-s)");
        }
        Ok(())
    }

    /// Options for a pool that this server is to be started on, where one must be made that has its bytes as `residence` says: what
    /// `options` say, with a heap in which `-m` can be four times as much one day (of which only what is used takes space, so not where
    /// all is taken at once), and, unless they ask for a length, a log for what it is now and for the largest item (`-I`).
    pub fn fit(&self, mut options: Options, residence: Residence) -> Options {
        let mut len = options.heap_len;
        if let Some(limit) = self.memory_limit {
            len = len.max(heap_for(limit));
            options.heap_len = len.max(if options.prefault { 0 } else { heap_for(limit.saturating_mul(GROWTH)).min(HEAP_MAX) });
        }
        if options.log_len.is_none() && residence != Residence::Volatile {
            options.log_len = Some(self.log_len(len, residence));
        }
        options
    }

    /// Bytes of log in a pool with a heap for `heap_len` bytes.
    fn log_len(&self, heap_len: u64, residence: Residence) -> u64 {
        let usual = if residence == Residence::InPlace { default_undo_len(heap_len) } else { default_log_len(heap_len) };
        usual.max(self.item_size_max * LOG_PER_ITEM)
    }

    /// Lowers `-m` to what the control groups of this process allow, for a server on the new pool that `options` ask for. Says what it was,
    /// and who limits it. Refuses what is too much with nearly no items.
    pub fn obey_new(&mut self, options: &Options, residence: Residence) -> Result<Option<Lowered>> {
        let limit = self.memory_limit.unwrap_or(options.heap_len);
        self.obey(limit, residence, |config, limit| {
            let fitted = Config { memory_limit: Some(limit), ..config.clone() }.fit(options.clone(), residence);
            Given { log: fitted.log_len.unwrap_or(0), heap: if config.prefault { fitted.heap_len } else { 0 } }
        })
    }

    /// The same for a server on `pool`.
    pub fn obey_for(&mut self, pool: &Pool) -> Result<Option<Lowered>> {
        let (limit, given) = (self.limit_in(pool.heap_range().1), Given::of(self, pool));
        self.obey(limit, Residence::of(pool), |_, _| given)
    }

    fn obey(&mut self, limit: u64, residence: Residence, given: impl Fn(&Config, u64) -> Given) -> Result<Option<Lowered>> {
        let Some(by) = memory::allowed() else { return Ok(None) };
        let given = |limit| given(self, limit);
        match memory::limit_within(self, limit, by.bytes, residence, given) {
            Some(fitting) if fitting == limit => Ok(None),
            Some(fitting) => {
                self.memory_limit = Some(fitting);
                Ok(Some(Lowered { from: limit, to: fitting, by }))
            }
            None => {
                let least = Footprint::of(self, 1 << 20, residence, given(1 << 20)).total();
                Err(Error::Config(format!(
                    "the control group allows {} bytes of memory ({}), and this server takes {least} beside its items: connections (-c), workers \
                     (-t), values of the largest size (-I), the pool's log, and what of its heap has memory in any case (with --prefault all of it; without \
                     evictions (-M), or with other programs' objects, what is in use); allow more, or lower these",
                    by.bytes,
                    by.file.display()
                )))
            }
        }
    }

    /// Refuses options for a new pool that this server could not be started on: asked before a pool is made, so that none is
    /// left behind that is of no use.
    pub fn check_new_pool(&self, options: &Options) -> Result<()> {
        match options.log_len {
            Some(len) => self.check_log(len).map_err(|_| {
                let (least, len) = ((self.item_size_max * LOG_PER_ITEM).div_ceil(1 << 20), len >> 20);
                Error::Config(format!(
                    "a log of {len} MiB is too small for items of up to {} bytes (-I), which take {least}; give more, or smaller items",
                    self.item_size_max
                ))
            }),
            None => Ok(()),
        }
    }

    /// Refuses a log too small for the largest item.
    pub(crate) fn check_log(&self, log_len: u64) -> Result<()> {
        if self.item_size_max <= log_len / LOG_PER_ITEM {
            return Ok(());
        }
        Err(Error::Config(format!(
            "items of up to {} bytes (-I) need a pool with a log of at least {LOG_PER_ITEM} times that; this one has {log_len}: \
             serve from a new pool, whose log is made for that -I, or this one with -I {}",
            self.item_size_max,
            log_len / LOG_PER_ITEM
        )))
    }

    /// The limit of the bytes of items' chunks in a heap of `heap_len`.
    pub(crate) fn limit_in(&self, heap_len: u64) -> u64 {
        let most = heap_len - heap_len / 8;
        self.memory_limit.map_or(most, |limit| limit.min(most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_too_small_for_an_item_is_refused_before_there_is_a_pool() {
        let config = Config::default();
        let with = |log_len| Options { log_len, ..Options::default() };
        assert!(config.check_new_pool(&config.fit(with(None), Residence::Stored)).is_ok());
        assert!(config.check_new_pool(&with(Some(8 << 20))).is_ok());
        let said = config.check_new_pool(&with(Some(4 << 20))).unwrap_err().to_string();
        assert!(said.contains("4 MiB") && said.contains("take 8"), "{said}");
    }
}
