//! A server with memcached's flags: what `towa serve` does, without the rest of `towa`. Its flags are memcached's, so that memcached's
//! own tests can start it; those it does not offer are refused, those that mean nothing here are taken and ignored.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use towa_epoch::Options;
use towa_server::{Config, PoolChoice, run};

const HELP: &str = "\
serve [--pool DIR | --volatile] [memcached's options]
  --pool DIR            keep the items in the pool in DIR (made if need be)
  --volatile            keep nothing (the default here)
  --heap MB             heap of a new pool
  --interval MS         time between checkpoints
  --debug-commands      tests only: debugtime moves the clock
  -p PORT               TCP port (11211)
  -s, --unix-socket=F   Unix socket instead of TCP
  -a, --unix-mask=MASK  its permissions, octal (0700)
  -l ADDRESSES          where to listen, separated by commas (127.0.0.1)
  -m MB                 memory limit (64)
  -M                    an error when full, no eviction
  -c N                  connections (1024)
  -t N                  threads (4)
  -I SIZE               largest item, with k, m or g (1m)
  -b N                  backlog (1024)
  -A                    the shutdown command works
  -F                    flush_all does not work
  -o idle_timeout=S,no_maxconns_fast   and others, ignored
  -v, -vv, -vvv         verbosity
  -u USER, -U PORT, -R N, -B auto|ascii, -C: taken and ignored";

struct Arguments {
    config: Config,
    pool: PoolChoice,
    options: Options,
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1).collect()) {
        Ok(Some(arguments)) => arguments,
        Ok(None) => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(why) => {
            eprintln!("serve: {why}");
            return ExitCode::from(2);
        }
    };
    let result = run(arguments.config, &arguments.pool, &arguments.options, |handle| {
        if let Some(addr) = handle.addr {
            eprintln!("serving on {addr}");
        }
        let stopper = handle.stopper();
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGUSR1]).expect("signals can be caught");
        std::thread::spawn(move || {
            for _ in &mut signals {
                stopper.trigger();
            }
        });
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("serve: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parse(words: Vec<String>) -> Result<Option<Arguments>, String> {
    let config = Config { memory_limit: Some(64 << 20), ..Config::default() };
    let mut arguments = Arguments { config, pool: PoolChoice::Volatile, options: Options::default() };
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let (flag, attached) = split(&word);
        let mut value = || attached.clone().or_else(|| words.next()).ok_or(format!("{flag} needs a value"));
        let config = &mut arguments.config;
        match flag.as_str() {
            "-h" | "--help" => return Ok(None),
            "--pool" => arguments.pool = PoolChoice::Directory(PathBuf::from(value()?)),
            "--volatile" => arguments.pool = PoolChoice::Volatile,
            "--heap" => arguments.options.heap_len = number::<u64>(&flag, &value()?)? << 20,
            "--interval" => arguments.options.interval = Duration::from_millis(number(&flag, &value()?)?),
            "--debug-commands" => config.debug_commands = true,
            "-p" => config.port = number(&flag, &value()?)?,
            "-s" | "--unix-socket" => config.unix_socket = Some(value()?.into()),
            "-a" | "--unix-mask" => config.unix_socket_mode = u32::from_str_radix(&value()?, 8).map_err(|e| format!("-a: {e}"))?,
            "-l" => config.listen = value()?.split(',').map(str::to_owned).collect(),
            "-m" => config.memory_limit = Some(number::<u64>(&flag, &value()?)? << 20),
            "-M" => config.evict = false,
            "-c" => config.max_connections = number(&flag, &value()?)?,
            "-t" => config.threads = number(&flag, &value()?)?,
            "-I" => config.item_size_max = size(&value()?)?,
            "-b" => config.backlog = number(&flag, &value()?)?,
            "-A" => config.shutdown_command = true,
            "-F" => config.flush_enabled = false,
            "-o" => extended(config, &value()?)?,
            "-v" => config.verbosity += 1,
            "-vv" => config.verbosity += 2,
            "-vvv" => config.verbosity += 3,
            "-u" | "-U" | "-R" => drop(value()?),
            // CAS ids cost nothing here: there is no doing without.
            "-C" => {}
            "-B" => match value()?.as_str() {
                "auto" | "ascii" => {}
                other => return Err(format!("-B {other}: only the text and meta protocols are offered")),
            },
            other => return Err(format!("{other} is not offered; -h lists what is")),
        }
    }
    Ok(Some(arguments))
}

/// A flag and the value attached to it.
fn split(word: &str) -> (String, Option<String>) {
    match word.split_once('=') {
        Some((flag, value)) if word.starts_with("--") => (flag.to_owned(), Some(value.to_owned())),
        _ if word.starts_with('-') && !word.starts_with("--") && word.len() > 2 && !word.starts_with("-v") => {
            (word[..2].to_owned(), Some(word[2..].to_owned()))
        }
        _ => (word.to_owned(), None),
    }
}

fn number<T: std::str::FromStr>(flag: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{flag} {text}: not a number in range"))
}

fn size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    Ok(number::<u64>("-I", digits)? << shift)
}

fn extended(config: &mut Config, list: &str) -> Result<(), String> {
    for option in list.split(',') {
        match option.split_once('=') {
            Some(("idle_timeout", seconds)) => config.idle_timeout = Some(Duration::from_secs(number("idle_timeout", seconds)?)),
            None if option == "no_maxconns_fast" => config.reject_when_full = false,
            // Slabs, LRU lists, hot and cold memory: memcached's own machinery, which this server has not.
            _ => {}
        }
    }
    Ok(())
}
