//! Group commit for one file: at most one sync runs at a time, and all threads that wait for it get its one result.
//!
//! The kernel reports a failed write-back once for each open file description. When several threads call `fdatasync` on one
//! descriptor at the same time, one of them gets the error; the others return success for data that the device does not have.
//! Here one thread, the leader, syncs for all that wait. That is also faster: the others' data share its device flush.
//!
//! ```text
//!   thread A   call ── leads sync 1 ─────────► result of sync 1
//!   thread B        call ── waits ───────────► leads sync 2 ──────────► result of sync 2
//!   thread C          call ── waits ─────────────────────────────────► result of sync 2
//! ```
//!
//! What must always hold:
//! 1. a call returns success only if a sync that began after the call succeeded, and no sync before it failed;
//! 2. after a failed sync every call fails, those that were waiting included. The kernel has marked the dirty pages clean, so
//!    a second sync would report success for data that was lost.

use std::io;

#[cfg(loom)]
use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(loom))]
use std::sync::{Condvar, Mutex, MutexGuard};

/// The syncs of one open file.
#[derive(Debug, Default)]
pub(crate) struct GroupSync {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// How many syncs have begun.
    begun: u64,
    /// Whether the newest of them still runs.
    running: bool,
    /// Whether one failed.
    failed: bool,
}

/// The sync that the current thread leads. Dropped without a result (a panic), it counts as failed.
struct Leader<'g> {
    group: &'g GroupSync,
    succeeded: bool,
}

impl GroupSync {
    /// Returns when a sync that began after this call has succeeded. `sync` is called if this thread is the one to lead it.
    pub fn run(&self, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut state = self.lock();
        // A sync that runs already may have missed what this thread wrote.
        let needed = state.begun + 1;
        loop {
            if state.failed {
                return Err(io::Error::other("an earlier sync failed, what is durable is unknown; reopen to recover"));
            }
            if state.begun - u64::from(state.running) >= needed {
                return Ok(());
            }
            if !state.running {
                break;
            }
            state = self.ended.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        state.begun += 1;
        state.running = true;
        drop(state);
        let mut leader = Leader { group: self, succeeded: false };
        let result = sync();
        leader.succeeded = result.is_ok();
        result
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under the lock.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        let mut state = self.group.lock();
        state.running = false;
        state.failed |= !self.succeeded;
        drop(state);
        self.group.ended.notify_all();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

    /// A file as Linux keeps it: a failed sync loses what was dirty, and one caller is told.
    #[derive(Default)]
    struct KernelFile {
        dirty: Mutex<Vec<u64>>,
        durable: Mutex<Vec<u64>>,
        refuses: AtomicBool,
    }

    impl KernelFile {
        fn write(&self, record: u64) {
            self.dirty.lock().unwrap().push(record);
        }

        fn sync(&self) -> io::Result<()> {
            let records = std::mem::take(&mut *self.dirty.lock().unwrap());
            std::thread::yield_now();
            if self.refuses.load(SeqCst) && !records.is_empty() {
                return Err(io::Error::from_raw_os_error(libc::EIO));
            }
            self.durable.lock().unwrap().extend(records);
            Ok(())
        }
    }

    /// Without the group, the thread whose records another thread's sync lost is told that they are durable.
    #[test]
    fn a_record_is_durable_when_its_sync_returns_whichever_thread_was_told_of_the_failure() {
        for round in 0..200 {
            let (file, group) = (Arc::new(KernelFile::default()), Arc::new(GroupSync::default()));
            let threads = (0..4u64).map(|thread| {
                let (file, group) = (Arc::clone(&file), Arc::clone(&group));
                std::thread::spawn(move || {
                    let mut acknowledged = Vec::new();
                    for n in 0..50 {
                        file.write(thread << 32 | n);
                        if group.run(|| file.sync()).is_err() {
                            break;
                        }
                        acknowledged.push(thread << 32 | n);
                        if thread == 0 && n == round % 40 {
                            file.refuses.store(true, SeqCst);
                        }
                    }
                    acknowledged
                })
            });
            let threads: Vec<_> = threads.collect();
            let acknowledged: Vec<u64> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
            let durable = file.durable.lock().unwrap();
            let lost: Vec<_> = acknowledged.iter().filter(|record| !durable.contains(record)).collect();
            assert!(lost.is_empty(), "round {round}: acknowledged and lost: {lost:x?}");
        }
    }

    #[test]
    fn threads_that_wait_share_one_sync() {
        let (group, syncs) = (Arc::new(GroupSync::default()), Arc::new(AtomicU64::new(0)));
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let (group, syncs) = (Arc::clone(&group), Arc::clone(&syncs));
                std::thread::spawn(move || {
                    for _ in 0..20 {
                        let sync = || {
                            syncs.fetch_add(1, SeqCst);
                            std::thread::sleep(std::time::Duration::from_millis(1));
                            Ok(())
                        };
                        group.run(sync).unwrap();
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let syncs = syncs.load(SeqCst);
        assert!((20..=110).contains(&syncs), "{syncs} syncs for 160 calls of 8 threads");
    }

    #[test]
    fn a_leader_that_panics_counts_as_a_failed_sync() {
        let group = GroupSync::default();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| group.run(|| panic!("as a bug would"))));
        assert!(panicked.is_err());
        assert!(group.run(|| Ok(())).is_err());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

    /// Two threads write and sync; the first sync that finds the device failing loses what was dirty. A thread that is told
    /// success must have its record on the device.
    #[test]
    fn loom_no_thread_is_told_success_for_what_another_threads_sync_lost() {
        loom::model(|| {
            let group = Arc::new(GroupSync::default());
            let dirty = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
            let durable = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
            let syncs = Arc::new(AtomicUsize::new(0));
            let body = |me: usize| {
                let (group, dirty, durable, syncs) = (group.clone(), dirty.clone(), durable.clone(), syncs.clone());
                move || {
                    dirty[me].store(true, SeqCst);
                    let sync = || {
                        let fails = syncs.fetch_add(1, SeqCst) == 0;
                        for record in 0..2 {
                            if dirty[record].swap(false, SeqCst) && !fails {
                                durable[record].store(true, SeqCst);
                            }
                        }
                        if fails { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) }
                    };
                    if group.run(sync).is_ok() {
                        assert!(durable[me].load(SeqCst), "acknowledged and lost");
                    }
                }
            };
            let other = loom::thread::spawn(body(1));
            body(0)();
            other.join().unwrap();
        });
    }

    /// The same without a failure: no thread returns before a sync that began after its own write.
    #[test]
    fn loom_success_means_a_sync_that_began_after_the_call() {
        loom::model(|| {
            let group = Arc::new(GroupSync::default());
            let (dirty, durable) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let body = |bit: usize| {
                let (group, dirty, durable) = (group.clone(), dirty.clone(), durable.clone());
                move || {
                    dirty.fetch_or(bit, SeqCst);
                    let sync = || {
                        let seen = dirty.load(SeqCst);
                        loom::thread::yield_now();
                        durable.fetch_or(seen, SeqCst);
                        Ok(())
                    };
                    group.run(sync).unwrap();
                    assert_ne!(durable.load(SeqCst) & bit, 0, "returned before its record was synced");
                }
            };
            let other = loom::thread::spawn(body(1));
            body(2)();
            other.join().unwrap();
        });
    }
}
