//! The options of `towa serve`: memcached's where it has them, and the pool's.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Error, Result};
use clap::{ArgAction, Args, ValueEnum};
use towa_epoch::Options;
use towa_heap::names::SUPERBLOCK;
use towa_media::NvmModel;
use towa_server::Config;
use towa_server::memory::Residence;

use crate::failure::{USAGE, coded};
use crate::pool_dir::{self, MediumArg};

/// Serve memcached's protocol from a pool: a cache that survives.
///
/// Keeps its items through kill -9 and, where the medium does, through power loss: after a crash it answers at once, with the data of
/// at most one interval and one checkpoint ago. A client that must know sends `durable` (or `durable now`) and gets its answer when
/// everything it wrote before is durable.
///
/// SIGTERM, SIGINT and SIGUSR1 end it gracefully: requests received are answered, a last checkpoint is taken. A second signal ends it
/// at once, which is as safe as kill -9.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  towa serve                                        1 GiB from the default pool, on 127.0.0.1:11211
  towa serve --pool /mnt/pmem/cache -m 8192 -t 8 -l 0.0.0.0
  towa serve --pool /var/lib/towa/cache --interval-ms 1000    fewer writes, up to a second lost
  towa serve --volatile                             keeps nothing, like memcached; to compare

  printf 'set k 0 0 5\\r\\nhello\\r\\ndurable now\\r\\nquit\\r\\n' | nc -q1 127.0.0.1 11211")]
pub struct ServeArgs {
    /// Directory of the pool, created where there is none [default: $XDG_STATE_HOME/towa/serve or ~/.local/state/towa/serve].
    #[arg(long, value_name = "DIR")]
    pub pool: Option<PathBuf>,
    /// Keep nothing: no pool.
    #[arg(long, conflicts_with_all = ["pool", "interval_ms", "log_mb", "medium", "eager", "copy", "base", "nvm_model"])]
    pub volatile: bool,
    /// Addresses or host names to listen on, each with an optional :PORT.
    #[arg(short, long, value_name = "ADDR", value_delimiter = ',', default_value = "127.0.0.1")]
    pub listen: Vec<String>,
    /// TCP port; 0 picks a free one.
    #[arg(short, long, default_value_t = 11211)]
    pub port: u16,
    /// Listen on this Unix socket instead of TCP.
    #[arg(short = 's', long, value_name = "PATH")]
    pub unix_socket: Option<PathBuf>,
    /// Permissions of the Unix socket, octal.
    #[arg(short = 'a', long, value_name = "MODE", default_value = "0700", value_parser = octal)]
    pub unix_mask: u32,
    /// Megabytes of memory for items before the least recently used go; a new pool is made large enough.
    #[arg(short, long, value_name = "MB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 19))]
    pub memory_limit: u64,
    /// Refuse new items when full, instead of evicting old ones.
    #[arg(short = 'M', long)]
    pub disable_evictions: bool,
    /// Worker threads [default: one for each processor].
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// Connections at a time.
    #[arg(short, long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub conn_limit: u32,
    /// Largest item, 1k to 1g; a new pool's log is at least eight times as large.
    #[arg(short = 'I', long, value_name = "SIZE", default_value = "1m", value_parser = size)]
    pub max_item_size: u64,
    /// Connections that may wait to be accepted.
    #[arg(short = 'b', long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(i32).range(1..))]
    pub listen_backlog: i32,
    /// Close connections that send no request for so many seconds; 0: never.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub idle_timeout: u64,
    /// Enable the command `shutdown`.
    #[arg(short = 'A', long)]
    pub enable_shutdown: bool,
    /// Disable the command `flush_all`.
    #[arg(short = 'F', long)]
    pub disable_flush_all: bool,
    /// Say more on standard error; twice, still more.
    #[arg(short, long, action = ArgAction::Count)]
    pub verbose: u8,
    /// UDP port: only 0, UDP is not offered.
    #[arg(short = 'U', long, hide = true, value_parser = clap::value_parser!(u16).range(0..=0))]
    pub udp_port: Option<u16>,
    /// memcached's further options: idle_timeout=SECONDS, maxconns_fast, no_maxconns_fast.
    #[arg(short = 'o', long, value_name = "OPTION", value_delimiter = ',')]
    pub extended: Vec<String>,
    /// The command `debugtime`, for tests of expiry.
    #[arg(long, hide = true)]
    pub debug_commands: bool,
    /// Milliseconds between checkpoints: what a crash may cost.
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pub interval_ms: u64,
    /// Megabytes of a new pool's log [default: a quarter of the heap, 16 to 512; on tmpfs an eighth, 16 to 128].
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(4..=1 << 19))]
    pub log_mb: Option<u64>,
    /// The medium, instead of what suits the directory (`towa info DIR`).
    #[arg(long, value_enum)]
    pub medium: Option<MediumArg>,
    /// Read the whole pool at start, instead of as it is touched.
    #[arg(long)]
    pub eager: bool,
    /// Take the memory for all items at start, instead of as it is first used.
    #[arg(long)]
    pub prefault: bool,
    /// On tmpfs, keep a copy of a new pool's items beside its image: twice the memory, in huge pages where there are any.
    #[arg(long)]
    pub copy: bool,
    /// Address of a new pool's heap, a multiple of 2 MiB, where the one chosen is taken.
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub base: Option<usize>,
    /// Take as long as durable memory would, on a pool in ordinary memory.
    #[arg(long, value_enum, value_name = "MODEL")]
    pub nvm_model: Option<ModelArg>,
}

/// A model of durable memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModelArg {
    /// Six interleaved Optane modules.
    Optane,
    /// One Optane module.
    OptaneSingle,
}

impl ServeArgs {
    /// The pool's directory, those above it made if it is the default one; `None` when volatile.
    pub fn pool_dir(&self) -> Result<Option<PathBuf>> {
        match (&self.pool, self.volatile) {
            (_, true) => Ok(None),
            (Some(dir), false) => Ok(Some(dir.clone())),
            (None, false) => {
                let (base, dir) = pool_dir::default_dir()?;
                if !dir.join(SUPERBLOCK).exists() {
                    pool_dir::make_parents(&base, &dir)?;
                }
                Ok(Some(dir))
            }
        }
    }

    /// `-m` in bytes.
    pub fn memory_limit_bytes(&self) -> u64 {
        self.memory_limit << 20
    }

    /// How to open the pool in `dir` that `config` is served from, or to make it. Lowers `-m` to what control groups allow a server on a
    /// new pool; that of an old one is known once it is open.
    pub fn pool_options(&self, config: &mut Config, dir: Option<&Path>) -> Result<Options> {
        let options = Options {
            heap_len: 0,
            log_len: self.log_mb.map(|mb| mb << 20),
            interval: Duration::from_millis(self.interval_ms),
            eager: self.eager,
            prefault: self.prefault,
            medium: self.medium.map(Into::into),
            base: self.base,
            // A model of durable memory has it copied to, as on a DAX mount.
            in_place: !self.copy && self.nvm_model.is_none(),
            ..Options::default()
        };
        let residence = Residence::of_new(&options, dir)?;
        if dir.is_none_or(|dir| !dir.join(SUPERBLOCK).exists()) {
            config.obey_new(&options, residence)?.iter().for_each(super::tell_lowered);
        }
        Ok(config.fit(options, residence))
    }

    /// The model of durable memory asked for.
    pub fn nvm_model(&self) -> Option<NvmModel> {
        self.nvm_model.map(|model| match model {
            ModelArg::Optane => NvmModel::optane(),
            ModelArg::OptaneSingle => NvmModel::optane_single(),
        })
    }

    /// What the server is told.
    pub fn config(&self) -> Result<Config> {
        if self.nvm_model.is_some() && self.medium.is_some_and(|medium| medium != MediumArg::Ram) {
            return Err(usage("--nvm-model works on the ram medium only; leave out --medium, or say --medium ram".into()));
        }
        let mut config = Config {
            listen: self.listen.clone(),
            port: self.port,
            unix_socket: self.unix_socket.clone(),
            unix_socket_mode: self.unix_mask,
            backlog: self.listen_backlog,
            threads: self.threads.map_or_else(|| std::thread::available_parallelism().map_or(4, |n| n.get().min(256)), usize::from),
            max_connections: self.conn_limit as usize,
            memory_limit: Some(self.memory_limit_bytes()),
            evict: !self.disable_evictions,
            prefault: self.prefault,
            item_size_max: self.max_item_size,
            idle_timeout: seconds(self.idle_timeout),
            shutdown_command: self.enable_shutdown,
            flush_enabled: !self.disable_flush_all,
            debug_commands: self.debug_commands,
            verbosity: u32::from(self.verbose),
            ..Config::default()
        };
        for option in &self.extended {
            match option.split_once('=').map_or((option.as_str(), None), |(name, value)| (name, Some(value))) {
                ("maxconns_fast", None) => config.reject_when_full = true,
                ("no_maxconns_fast", None) => config.reject_when_full = false,
                ("idle_timeout", Some(value)) => match value.parse() {
                    Ok(n) => config.idle_timeout = seconds(n),
                    Err(_) => return Err(usage(format!("-o idle_timeout={value}: not a number of seconds"))),
                },
                _ => {
                    return Err(usage(format!(
                        "-o {option}: not known; there are idle_timeout=SECONDS, maxconns_fast and no_maxconns_fast"
                    )));
                }
            }
        }
        Ok(config)
    }
}

fn usage(what: String) -> Error {
    coded(USAGE, what)
}

fn seconds(n: u64) -> Option<Duration> {
    (n > 0).then(|| Duration::from_secs(n))
}

fn octal(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777).ok_or_else(|| "permissions between 0 and 0777, octal".into())
}

/// `1m`, `512k`, `1g`, `1048576`.
fn size(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1 << 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    bytes.filter(|n| (1024..=1 << 30).contains(n)).ok_or_else(|| "a size between 1k and 1g".into())
}

fn address(text: &str) -> Result<usize, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => usize::from_str_radix(&hex.replace('_', ""), 16),
        None => text.parse(),
    };
    match parsed {
        Ok(address) if address != 0 && address % (2 << 20) == 0 => Ok(address),
        _ => Err("a multiple of 2 MiB, such as 0x200000000000".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_understood() {
        assert_eq!(size("1m"), Ok(1 << 20));
        assert_eq!(size("512K"), Ok(512 << 10));
        assert_eq!((size("1g"), size("1G"), size("1024m")), (Ok(1 << 30), Ok(1 << 30), Ok(1 << 30)));
        assert_eq!(size("2048"), Ok(2048));
        for bad in ["", "k", "1023", "2g", "-1m", "99999999999999999999m", "1025m"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        assert_eq!(address("0x200000000000"), Ok(0x2000_0000_0000));
        for bad in ["0", "0x1000", "x", "0x"] {
            assert!(address(bad).is_err(), "{bad}");
        }
        assert_eq!(octal("0755"), Ok(0o755));
        assert!(octal("888").is_err());
        assert!(octal("1777").is_err());
    }
}
