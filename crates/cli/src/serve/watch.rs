//! What goes on beside the server: signals that end it, and a look at whether its pool is well.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator;
use towa_epoch::{Error, Pool};
use towa_server::Shutdown;

use crate::report;

/// How often the pool is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Obeys signals until dropped: the first ends the server gracefully, the second the process at once. SIGHUP is none of them.
pub struct Signals {
    handle: iterator::Handle,
    thread: Option<JoinHandle<()>>,
}

impl Signals {
    /// From now on.
    pub fn obey(stopper: Shutdown) -> Result<Signals> {
        let mut signals = iterator::Signals::new([SIGINT, SIGTERM, SIGUSR1, SIGHUP]).context("signals cannot be received")?;
        let handle = signals.handle();
        let work = move || {
            for signal in signals.forever() {
                if signal == SIGHUP {
                    // The terminal is gone, or somebody asks to read files again that we do not have: as memcached, serve on.
                    log::info!("SIGHUP: nothing to do");
                    continue;
                }
                if stopper.is_wanted() {
                    // SAFETY: ends the process, and runs nothing of ours: like kill -9, which the pool survives.
                    unsafe { libc::_exit(128 + signal) };
                }
                log::info!("signal {signal}: ending; once more ends at once");
                stopper.trigger();
            }
        };
        let thread = std::thread::Builder::new().name("towa-signals".into()).spawn(work).context("a thread cannot be started")?;
        Ok(Signals { handle, thread: Some(thread) })
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Looks after the pool until dropped, and says so when it fails.
pub struct Health {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Health {
    /// Of `pool`.
    pub fn of(pool: &Pool) -> Health {
        let (stop, stopped) = channel();
        let pool = pool.clone();
        let work = move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(LOOK_EVERY) {
                // Registering is refused by a pool that has failed, and by nothing else in a server's lifetime.
                if let Err(error @ Error::Poisoned { .. }) = pool.register() {
                    report::say(&format!("{error}; reads go on, writes are refused: restart the server"));
                    return;
                }
            }
        };
        // A server without this thread serves all the same, and its exit status tells.
        let thread = std::thread::Builder::new().name("towa-health".into()).spawn(work).ok();
        Health { stop: Some(stop), thread }
    }
}

impl Drop for Health {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
