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

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use towa_epoch::{Error as EpochError, Options, Pool};
use towa_media::{Guarantee, Medium, RamMedium};
use towa_server::{Handle, Server};

use crate::pool_dir::{self, medium_name};
use crate::progress::Progress;
use crate::report::{self, bytes, micros};
pub use options::ServeArgs;

/// `towa serve`.
pub fn run(args: &ServeArgs) -> Result<()> {
    let config = args.config()?;
    config.check()?;
    let dir = args.pool_dir()?;
    let options = args.pool_options(&config);
    let pool = open(args, &options, dir.as_ref())?;
    tell_differences(args, &options, &pool);
    let handle = Server::start(config, &pool)?;
    let signals = watch::Signals::obey(handle.stopper())?;
    let health = watch::Health::of(&pool);
    tell_ready(args, &pool, &handle, dir.as_ref());
    let served = handle.join();
    drop((health, signals));
    if let Some(dir) = &dir {
        pool_dir::remove_address(dir);
    }
    let closed = pool.close();
    Ok(served.and(closed.map_err(Into::into))?)
}

/// Opens the pool in `dir`, or creates it; without a directory, memory that nothing keeps.
fn open(args: &ServeArgs, options: &Options, dir: Option<&PathBuf>) -> Result<Pool> {
    let Some(dir) = dir else { return Ok(Pool::volatile(options)?) };
    if args.pool.is_none() {
        pool_dir::make_parents(dir)?;
    }
    let _progress = Progress::spinner(format!("opening {}", dir.display()));
    let pool = match args.nvm_model() {
        None => Pool::open_or_create(dir, options),
        Some(model) => {
            RamMedium::open(dir, true, Some(model)).map_err(Into::into).and_then(|medium| open_or_create_on(medium, options))
        }
    };
    let parent_is_missing = dir.parent().is_some_and(|parent| !parent.as_os_str().is_empty() && !parent.exists());
    if parent_is_missing {
        return pool.with_context(|| format!("{}: the directory above it is not there; make it first", dir.display()));
    }
    Ok(pool?)
}

fn open_or_create_on(medium: Arc<dyn Medium>, options: &Options) -> towa_epoch::Result<Pool> {
    match Pool::open_on(Arc::clone(&medium), options) {
        Err(EpochError::Heap(towa_heap::Error::Missing { .. })) => Pool::create_on(medium, options),
        other => other,
    }
}

/// What a pool is made with it keeps: options that ask for something else are told so.
fn tell_differences(args: &ServeArgs, wanted: &Options, pool: &Pool) {
    let Some(medium) = pool.medium() else { return };
    let place = medium.location();
    let (base, heap_len) = pool.heap_range();
    let log_len = pool.stats().log_capacity;
    if heap_len < wanted.heap_len && args.memory_limit_bytes() > heap_len - heap_len / 8 {
        let most = bytes(heap_len - heap_len / 8);
        eprintln!(
            "towa: {place}: the pool was made with a heap of {}, so -m {} becomes {most}; to have more, serve from a new pool",
            bytes(heap_len),
            args.memory_limit
        );
    }
    if args.log_mb.is_some_and(|mb| mb << 20 != log_len) {
        eprintln!("towa: {place}: the pool was made with a log of {}; --log-mb is ignored", bytes(log_len));
    }
    if wanted.base.is_some_and(|wanted| wanted != base) {
        eprintln!("towa: {place}: the pool was made for address {base:#x}; --base is ignored");
    }
    let recovery = pool.recovery();
    if !recovery.clean {
        let (epochs, size, time) =
            (recovery.epochs_replayed, bytes(recovery.lines_replayed * 64), micros(recovery.elapsed.as_micros() as u64));
        eprintln!(
            "towa: {place}: was not closed cleanly; recovered epoch {}: {epochs} epochs ({size}) replayed in {time}",
            recovery.epoch
        );
    }
}

/// Says that it answers, on one line that scripts may wait for.
fn tell_ready(args: &ServeArgs, pool: &Pool, handle: &Handle, dir: Option<&PathBuf>) {
    let address = match (&args.unix_socket, handle.addr) {
        (Some(path), _) => std::path::absolute(path).unwrap_or_else(|_| path.clone()).display().to_string(),
        (None, Some(address)) => address.to_string(),
        (None, None) => "nowhere".into(),
    };
    if let Some(dir) = dir {
        pool_dir::note_address(dir, &address);
    }
    let promise = match pool.medium() {
        None => "volatile: nothing is kept".to_owned(),
        Some(medium) => {
            let survives = match medium.guarantee() {
                Guarantee::PowerSafe => "power-safe",
                Guarantee::ProcessSafe => "process-safe (power loss takes all)",
            };
            let interval = micros(pool.interval().as_micros() as u64);
            format!("pool {}, medium {}, {survives}, checkpoint every {interval}", medium.location(), medium_name(medium.kind()))
        }
    };
    // Nobody may be reading; that is no reason not to serve.
    let _ = report::print(&format!("ready: {address}, {promise}\n"));
}
