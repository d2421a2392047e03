//! `towa stats`: what a running server is doing, asked over its own protocol.

mod watch;
mod wire;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Error, Result, bail};
use clap::Args;
use serde_json::{Map, Value};

use crate::failure::{MISSING, NO_ANSWER, coded};
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
    target: PathBuf,
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
    let done = show(args);
    if args.watch.is_some() {
        // One object a line, the last one too.
        if let (true, Err(error)) = (args.json, &done) {
            report::json_line(&report::problem(("target", report::path(&args.target)), error))?;
        }
        return done;
    }
    report::bad_news(args.json, ("target", report::path(&args.target)), done)
}

fn show(args: &StatsArgs) -> Result<()> {
    let target = Target::find(&args.target)?;
    let mut connection = Connection::open(target.address.clone())?;
    let figures = Figures::get(&mut connection)?;
    target.check(&figures)?;
    if let Some(period) = args.watch {
        return watch::watch(&mut connection, figures, period, args.json);
    }
    if args.json { report::json(&figures.json()) } else { print(&figures, connection.address()) }
}

/// Whom to ask.
struct Target {
    address: Address,
    /// The pool that was named, if it was not the server.
    pool: Option<PathBuf>,
}

impl Target {
    fn find(target: &Path) -> Result<Target> {
        let shown = report::path(target);
        // Without a slash it is a host, unless there is a directory or a socket of that name.
        let is_dir = match target.metadata() {
            Ok(status) => status.is_dir(),
            Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                return Err(Error::from(e).context(format!("{shown}: it may not be looked at")));
            }
            Err(_) => false,
        };
        if !is_dir {
            return Ok(Target { address: Address::parse(target.as_os_str())?, pool: None });
        }
        match pool_dir::noted_address(target) {
            Some(noted) => Ok(Target { address: Address::parse(&noted)?, pool: Some(target.to_owned()) }),
            None if pool_dir::looks_like_pool(target)? => Err(not_served(target)),
            None => Err(coded(MISSING, format!("{shown}: no pool there; name a pool's directory, or HOST:PORT"))),
        }
    }

    /// Refuses the figures of another pool's server: the address that a killed server has left behind may be anybody's by now.
    fn check(&self, figures: &Figures) -> Result<()> {
        let Some(pool) = &self.pool else { return Ok(()) };
        let said = |name: &str| figures.towa.as_ref()?.get(name)?.as_str();
        let medium = towa_media::open_dir(pool, None, false)?;
        let same_pool = said(pool_dir::STAT_UUID) == Some(&*towa_heap::describe(&*medium)?.uuid);
        // A copy has the same identity, so the place counts too; one place may have two names, as in a container.
        let same_place = said(pool_dir::STAT_PATH) == pool.canonicalize().ok().map(|path| report::path(&path)).as_deref();
        let pid = figures.server.get("pid").and_then(Value::as_u64);
        let same_process = || pid.is_some() && pool_dir::owner(pool).map(u64::from) == pid;
        if same_pool && (same_place || same_process()) { Ok(()) } else { Err(not_served(pool)) }
    }
}

fn not_served(pool: &Path) -> Error {
    let pool = report::path(pool);
    coded(
        NO_ANSWER,
        format!("{pool}: no server runs on this pool; `towa serve --pool {pool}` starts one, `towa info` describes it"),
    )
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
        None => {
            lines.heading("durability");
            lines.row("  none: this server keeps nothing");
        }
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
