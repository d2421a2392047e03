//! `towa serve`: a memcached that survives.
//!
//! ```text
//!   open or create the pool ──► start the server ──► "ready: ..." ──► signal or `shutdown` ──► drain ──► last checkpoint ──► exit
//! ```
//!
//! What must always hold: "ready" is said when the first request would be answered, not before; after a signal nothing that was
//! acknowledged is lost; a pool that fails while in use is told at once and makes the exit status 7.

mod options;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use towa_epoch::{Error as EpochError, Options, Pool};
use towa_heap::Error as HeapError;
use towa_heap::names::{IMAGE, LOG, SUPERBLOCK};
use towa_media::{Guarantee, Medium, RamMedium};
use towa_server::memory::Footprint;
use towa_server::{Config, Handle, Lowered, Server};

use crate::pool_dir::{self, Note, medium_name};
use crate::progress::Progress;
use crate::report::{self, bytes, micros, say};
pub use options::ServeArgs;

/// `towa serve`.
pub fn run(args: &ServeArgs) -> Result<()> {
    let mut config = args.config()?;
    config.check()?;
    let dir = args.pool_dir()?;
    let options = args.pool_options(&mut config, dir.as_deref())?;
    let Opened { pool, is_new } = open(args, &config, &options, dir.as_deref())?;
    tell_differences(args, &options, &pool);
    config.labels = identity(&pool, dir.as_deref());
    let (handle, signals) = match start(&mut config, &pool) {
        Ok(started) => started,
        Err(error) => {
            if is_new {
                unmake(&pool);
            }
            return Err(error);
        }
    };
    let health = watch::Health::of(&pool);
    let note = tell_ready(&config, &pool, &handle, dir.as_deref());
    let served = handle.join();
    drop((health, signals, note));
    let closed = pool.close();
    Ok(served.and(closed.map_err(Into::into))?)
}

fn start(config: &mut Config, pool: &Pool) -> Result<(Handle, watch::Signals)> {
    config.obey_for(pool)?.iter().for_each(tell_lowered);
    let handle = Server::start(config.clone(), pool)?;
    let signals = watch::Signals::obey(handle.stopper())?;
    Ok((handle, signals))
}

/// A pool, and whether it was made just now.
struct Opened {
    pool: Pool,
    is_new: bool,
}

/// Opens the pool in `dir`, or creates it; without a directory, memory that nothing keeps.
fn open(args: &ServeArgs, config: &Config, options: &Options, dir: Option<&Path>) -> Result<Opened> {
    let Some(dir) = dir else { return Ok(Opened { pool: Pool::volatile(options)?, is_new: false }) };
    let _progress = Progress::spinner(format!("opening {}", report::path(dir)));
    let model = args.nvm_model();
    let medium = |create| match &model {
        None => towa_media::open_dir(dir, options.medium, create),
        Some(model) => RamMedium::open(dir, create, Some(*model)).map(|medium| medium as Arc<dyn Medium>),
    };
    let opened = medium(false).map_err(EpochError::from).and_then(|medium| Pool::open_on(medium, options));
    match opened {
        Ok(pool) => return Ok(Opened { pool, is_new: false }),
        // Without its superblock there is no pool; with it, something else of it is not there, and that is for nobody to replace.
        Err(EpochError::Heap(HeapError::Missing { .. } | HeapError::Media(towa_media::Error::NotFound { .. })))
            if !dir.join(SUPERBLOCK).exists() => {}
        Err(error) => return Err(error.into()),
    }
    // Before anything is made: a pool keeps what it was made with, and one that cannot be served is of no use to anybody.
    config.check_new_pool(options)?;
    let made = medium(true).map_err(EpochError::from).and_then(|medium| Pool::create_on(medium, options));
    let parent_is_missing = dir.parent().is_some_and(|parent| !parent.as_os_str().is_empty() && !parent.exists());
    if parent_is_missing {
        return made
            .map(|pool| Opened { pool, is_new: true })
            .with_context(|| format!("{}: the directory above it is not there; make it first", dir.display()));
    }
    Ok(Opened { pool: made?, is_new: true })
}

/// Removes the files of a pool that was made a moment ago and cannot be served: else the next start would find it, with a capacity
/// that nobody chose to keep. The pool is still open and locked, so nobody else has put anything there.
fn unmake(pool: &Pool) {
    let Some(medium) = pool.medium() else { return };
    // The superblock first: without it there is no pool.
    for name in [SUPERBLOCK, IMAGE, LOG] {
        if let Err(error) = medium.remove(name) {
            log::warn!("{error}; the pool just made stays");
            return;
        }
    }
}

/// What the server says of its pool, so that `towa stats POOL` can tell whether it is that one.
fn identity(pool: &Pool, dir: Option<&Path>) -> Vec<(&'static str, String)> {
    let uuid = pool.medium().and_then(|medium| towa_heap::describe(&**medium).ok()).map(|it| (pool_dir::STAT_UUID, it.uuid));
    let path = dir.and_then(|dir| dir.canonicalize().ok()).map(|path| (pool_dir::STAT_PATH, report::path(&path)));
    uuid.into_iter().chain(path).collect()
}

/// What a pool is made with it keeps: options that ask for something else are told so.
fn tell_differences(args: &ServeArgs, wanted: &Options, pool: &Pool) {
    let Some(medium) = pool.medium() else { return };
    let place = medium.location();
    let (base, heap_len) = pool.heap_range();
    let log_len = pool.stats().log_capacity;
    if heap_len < wanted.heap_len && args.memory_limit_bytes() > heap_len - heap_len / 8 {
        let most = bytes(heap_len - heap_len / 8);
        say(&format!(
            "{place}: the pool was made with a heap of {}, so -m {} becomes {most}; to have more, serve from a new pool",
            bytes(heap_len),
            args.memory_limit
        ));
    }
    if args.log_mb.is_some_and(|mb| mb << 20 != log_len) {
        say(&format!("{place}: the pool was made with a log of {}; --log-mb is ignored", bytes(log_len)));
    }
    if wanted.base.is_some_and(|wanted| wanted != base) {
        say(&format!("{place}: the pool was made for address {base:#x}; --base is ignored"));
    }
    let recovery = pool.recovery();
    if !recovery.clean {
        let (size, time) = (bytes(recovery.lines_replayed * 64), micros(recovery.elapsed.as_micros() as u64));
        let how = if pool.is_in_place() {
            format!("{size} of later changes undone in {time}")
        } else {
            format!("{} epochs ({size}) replayed in {time}", recovery.epochs_replayed)
        };
        say(&format!("{place}: was not closed cleanly; recovered epoch {}: {how}", recovery.epoch));
    }
}

/// Says that `-m` is less than was asked for.
fn tell_lowered(lowered: &Lowered) {
    let Lowered { from, to, by } = lowered;
    say(&format!(
        "-m {} becomes {}: the control group allows {} of memory in all ({})",
        from >> 20,
        to >> 20,
        bytes(by.bytes),
        report::path(&by.file)
    ));
}

/// Says that it answers, on one line that scripts may wait for.
fn tell_ready(config: &Config, pool: &Pool, handle: &Handle, dir: Option<&Path>) -> Option<Note> {
    let address: PathBuf = match (&config.unix_socket, handle.addr) {
        (Some(path), _) => std::path::absolute(path).unwrap_or_else(|_| path.clone()),
        (None, Some(address)) => address.to_string().into(),
        (None, None) => "nowhere".into(),
    };
    let note = dir.and_then(|dir| Note::of_address(dir, address.as_os_str()));
    let promise = match pool.medium().zip(dir) {
        None => "volatile: nothing is kept".to_owned(),
        Some((medium, dir)) => {
            let survives = match medium.guarantee() {
                Guarantee::PowerSafe => "power-safe",
                Guarantee::ProcessSafe => "process-safe (power loss takes all)",
            };
            let interval = micros(pool.interval().as_micros() as u64);
            format!("pool {}, medium {}, {survives}, checkpoint every {interval}", report::path(dir), medium_name(medium.kind()))
        }
    };
    let footprint = Footprint::for_pool(config, pool);
    let most = bytes(footprint.total());
    let once = if footprint.is_exceeded_by(pool) { " once items beyond -m are given up" } else { "" };
    // Nobody may be reading; that is no reason not to serve.
    let _ = report::line(format_args!("ready: {}, {promise}, memory at most {most}{once}", report::path(&address)));
    note
}
