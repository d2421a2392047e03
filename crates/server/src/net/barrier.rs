//! Waiting for durability without blocking a worker.
//!
//! A worker parks the connection, leaves the epoch here and goes on with others; this thread waits for the epochs, lowest first,
//! and wakes the worker when the pool has come that far, or will never.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use mio::Waker;
use parking_lot::{Condvar, Mutex};

use crate::error::{Result, io};
use crate::server::Shared;

/// How long the thread waits for one epoch before it looks whether a lower one was left meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(20);

#[derive(Default)]
struct State {
    /// Epoch and worker.
    waiting: Vec<(u64, usize)>,
    failed: Option<String>,
    stop: bool,
}

/// Who waits for what.
#[derive(Default)]
pub struct Barrier {
    state: Mutex<State>,
    changed: Condvar,
}

impl Barrier {
    /// Wakes `worker` when `epoch` is durable.
    pub fn wait_for(&self, epoch: u64, worker: usize) {
        self.state.lock().waiting.push((epoch, worker));
        self.changed.notify_one();
    }

    /// Why nothing will ever be durable again, if so.
    pub fn failure(&self) -> Option<String> {
        self.state.lock().failed.clone()
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_one();
    }

    /// Starts the thread.
    pub fn start(shared: Arc<Shared>, wakers: Vec<Arc<Waker>>) -> Result<JoinHandle<()>> {
        std::thread::Builder::new()
            .name("towa-barrier".into())
            .spawn(move || shared.barrier.run(&shared, &wakers))
            .map_err(io("start the barrier thread"))
    }

    fn run(&self, shared: &Shared, wakers: &[Arc<Waker>]) {
        let pool = shared.store.pool();
        loop {
            let lowest = {
                let mut state = self.state.lock();
                while state.waiting.is_empty() && !state.stop {
                    self.changed.wait(&mut state);
                }
                if state.stop {
                    return;
                }
                state.waiting.iter().map(|(epoch, _)| *epoch).min().unwrap_or(0)
            };
            let reached = match pool.wait_durable(lowest, LOOK_EVERY) {
                Ok(false) => continue,
                Ok(true) => pool.durable_epoch(),
                Err(why) => {
                    self.state.lock().failed = Some(why.to_string());
                    u64::MAX
                }
            };
            let mut wake = vec![false; wakers.len()];
            self.state.lock().waiting.retain(|(epoch, worker)| {
                wake[*worker] |= *epoch <= reached;
                *epoch > reached
            });
            for (waker, _) in wakers.iter().zip(wake).filter(|(_, wake)| *wake) {
                let _ = waker.wake();
            }
        }
    }
}
