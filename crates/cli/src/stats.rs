//! `towa stats`: what a running server is doing, asked over its own protocol.

mod watch;
mod wire;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Map, Value};

use crate::pool_dir;
use crate::report::{self, Lines};
use wire::{Address, Connection};

/// Show what a running server is doing.
///
/// Asks the server for memcached's statistics and for those of its durability: epochs, log, stalls. Works with memcached too, which has
/// only the former.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  towa stats                                   the server on 127.0.0.1:11211
  towa stats ~/.local/state/towa/serve         the server of this pool, wherever it listens
  towa stats cache-7:11311 --watch 1           a line each second
  towa stats /run/towa.sock --json | jq .towa.durable_age_us")]
pub struct StatsArgs {
    /// HOST, HOST:PORT, :PORT, a Unix socket, or the directory of a pool.
    #[arg(value_name = "ADDR|POOL", default_value = "127.0.0.1:11211")]
    target: String,
    /// Print a line of what happened every so many seconds, until interrupted.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    watch: Option<Duration>,
    /// Report as JSON; with --watch, one object a line.
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.01..=86_400.0).contains(&s) => Ok(Duration::from_secs_f64(s)),
        _ => Err("seconds between 0.01 and 86400".into()),
    }
}

/// One set of figures.
pub struct Figures {
    /// memcached's.
    server: Map<String, Value>,
    /// Those of durability; `None` from a server that has none.
    towa: Option<Map<String, Value>>,
}

impl Figures {
    fn get(connection: &mut Connection) -> Result<Figures> {
        let Some(server) = connection.stats("")? else {
            bail!("{} does not know the command `stats`: not a memcached", connection.address());
        };
        Ok(Figures { server, towa: connection.stats("towa")? })
    }

    fn json(&self) -> Value {
        serde_json::json!({ "server": self.server, "towa": self.towa })
    }
}

/// `towa stats`.
pub fn run(args: &StatsArgs) -> Result<()> {
    let mut connection = Connection::open(address(&args.target)?)?;
    if let Some(period) = args.watch {
        return watch::watch(&mut connection, period, args.json);
    }
    let figures = Figures::get(&mut connection)?;
    if args.json { report::json(&figures.json()) } else { print(&figures, connection.address()) }
}

/// Where `target` leads to.
fn address(target: &str) -> Result<Address> {
    let path = PathBuf::from(target);
    if path.is_dir() {
        return match pool_dir::noted_address(&path) {
            Some(noted) => Address::parse(&noted),
            None if pool_dir::looks_like_pool(&path) => Err(crate::failure::coded(
                crate::failure::NO_ANSWER,
                format!("{target}: no server runs on this pool; `towa serve --pool {target}` starts one, `towa info` describes it"),
            )),
            None => Err(crate::failure::coded(
                crate::failure::MISSING,
                format!("{target}: no pool there; name a pool's directory, or HOST:PORT"),
            )),
        };
    }
    Address::parse(target)
}

fn print(figures: &Figures, address: &Address) -> Result<()> {
    let mut lines = Lines::default();
    let mut section = |heading: &str, map: &Map<String, Value>| {
        lines.heading(heading);
        let width = map.keys().map(String::len).max().unwrap_or(0);
        for (name, value) in map {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            lines.line(&format!("{name:<width$}"), value);
        }
    };
    section(&format!("server {address}"), &figures.server);
    match &figures.towa {
        Some(towa) => section("durability", towa),
        None => lines.heading("durability\n  none: this server keeps nothing"),
    }
    lines.print()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_checked() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["0", "-1", "x", "inf", "NaN", "1e9"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
