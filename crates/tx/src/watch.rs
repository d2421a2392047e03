//! A look, now and then, at whether a separate checkpointer works: while a living process has the checkpointer's place, no thread of the
//! program stands in, so a stopped one makes transactions wait for log space, and closing wait for it, for ever. That may be what
//! somebody wants (a debugger); but the program says why it stands still, once, and what to do.
//!
//! ```text
//!   logs hold records, or the pool is being closed;   no round ends;   the checkpointer lives
//!     ── stopped, and so for 2 s, or whatever it does, for 20 s ──► one warning ── a round ends, or another process stands there ──► quiet
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::control::Control;
use crate::engine::Engine;
use crate::meeting;
use crate::process::Process;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(500);
/// A stopped checkpointer is worth a word after this time: not every stop is noticed by anybody.
const STOPPED: Duration = Duration::from_secs(2);
/// One that runs is given as long as a round may take.
const SLOW: Duration = Duration::from_secs(20);

/// The thread that looks; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    over: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Watches the checkpointer of this pool.
    pub fn over(engine: Arc<Engine>) -> std::io::Result<Watch> {
        let over: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        let theirs = Arc::clone(&over);
        let work = move || {
            let (is_over, woken) = &*theirs;
            let mut eye = Eye::default();
            let mut guard = is_over.lock();
            while !*guard {
                let writer = || engine.heap.medium().and_then(|medium| meeting::writer_of(&**medium));
                if let Some(what) = eye.look(&engine.control, Instant::now(), writer) {
                    log::warn!("{}: {what}", engine.heap.location());
                }
                woken.wait_for(&mut guard, LOOK);
            }
        };
        let thread = std::thread::Builder::new().name("towa-watch".into()).spawn(work)?;
        Ok(Watch { over, thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        *self.over.0.lock() = true;
        self.over.1.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What was seen when something last happened.
#[derive(Debug, Default)]
struct Eye {
    /// The checkpointer, and how many rounds had ended.
    seen: Option<(Process, u32)>,
    since: Option<Instant>,
    stopped_since: Option<Instant>,
    warned: bool,
}

impl Eye {
    /// What is to be said now, if anything. `writer`: who has the image's lock.
    fn look(&mut self, control: &Control, now: Instant, writer: impl FnOnce() -> Option<u32>) -> Option<String> {
        let done = control.done.load(Acquire);
        let lanes = control.used();
        let closing = control.stop.load(Acquire) != 0;
        let waits = closing || lanes.iter().any(|lane| lane.head.load(Acquire) != lane.tail.load(Acquire));
        let other = |process: &Process| *process != Process::this() && process.lives();
        let noted = Process::noted(&control.checkpointer).filter(other);
        // One that is stopped while it attaches has the lock, and has not yet said who it is.
        let attaching = || writer().and_then(Process::of).filter(other);
        let process = noted.or_else(|| if waits { attaching() } else { None });
        let seen = process.map(|process| (process, done));
        if seen != self.seen || seen.is_none() || !waits {
            *self = Eye { seen, ..Eye::default() };
        }
        let (process, _) = seen.filter(|_| waits)?;
        let long = |since: &mut Option<Instant>, most| now.duration_since(*since.get_or_insert(now)) >= most;
        let slow = long(&mut self.since, SLOW);
        let is_stopped = process.is_stopped();
        if !is_stopped {
            self.stopped_since = None;
        }
        let stopped = is_stopped && long(&mut self.stopped_since, STOPPED);
        if self.warned || !(stopped || slow) {
            return None;
        }
        self.warned = true;
        let id = process.id();
        let what = if is_stopped { "is stopped" } else { "has not ended a round for a long time" };
        let waits =
            if closing { "closing the pool waits for it" } else { "transactions will wait for it when their logs are full" };
        Some(format!(
            "its checkpointer (process {id}) {what}, and {waits}; let it go on (`kill -CONT {id}`), or end it (`kill -KILL {id}`: nothing is \
             lost, and a thread of this program does its work)"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::ControlMemory;

    struct Child(std::process::Child);

    impl Child {
        fn signal(&self, signal: i32) {
            // SAFETY: a child of ours that nobody has waited for.
            assert_eq!(unsafe { libc::kill(self.0.id() as libc::pid_t, signal) }, 0);
        }
    }

    impl Drop for Child {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_stopped_checkpointer_is_said_once_and_a_working_one_never() {
        let child = Child(std::process::Command::new("sleep").arg("60").spawn().unwrap());
        let process = Process::of(child.0.id()).unwrap();
        let control = ControlMemory::private().unwrap();
        control.lanes_used.store(1, Relaxed);
        control.checkpointer.store(process.word(), Relaxed);
        let mut eye = Eye::default();
        let begin = Instant::now();
        let at = |tenths: u64| begin + Duration::from_millis(tenths * 100);
        let look = |eye: &mut Eye, now| eye.look(&control, now, || None);
        child.signal(libc::SIGSTOP);
        while !process.is_stopped() {
            std::thread::yield_now();
        }
        assert_eq!(look(&mut eye, at(0)).or(look(&mut eye, at(500))), None, "nobody waits for it");
        control.lanes[0].head.store(64, Relaxed);
        assert_eq!(look(&mut eye, at(500)).or(look(&mut eye, at(519))), None, "not for long");
        let said = look(&mut eye, at(520)).expect("a warning");
        assert!(said.contains("is stopped") && said.contains(&format!("kill -CONT {}", process.id())), "{said}");
        assert_eq!(look(&mut eye, at(9000)), None, "said already");
        control.done.store(1, Relaxed);
        assert_eq!(look(&mut eye, at(9001)), None, "a round ended");
        control.stop.store(1, Relaxed);
        let said = look(&mut eye, at(9021)).expect("another warning");
        assert!(said.contains("closing the pool waits"), "{said}");
        // It runs, and ends no round.
        child.signal(libc::SIGCONT);
        while process.is_stopped() {
            std::thread::yield_now();
        }
        control.done.store(2, Relaxed);
        assert_eq!(look(&mut eye, at(9100)).or(look(&mut eye, at(9299))), None);
        assert!(look(&mut eye, at(9300)).expect("a warning").contains("has not ended a round"));
        // It is stopped between taking the lock and saying who it is.
        control.checkpointer.store(0, Relaxed);
        control.done.store(3, Relaxed);
        child.signal(libc::SIGSTOP);
        while !process.is_stopped() {
            std::thread::yield_now();
        }
        let mut attaching = |now| eye.look(&control, now, || Some(child.0.id()));
        assert_eq!(attaching(at(9310)).or(attaching(at(9329))), None);
        assert!(attaching(at(9331)).expect("a warning").contains(&format!("kill -CONT {}", process.id())));
        // Nobody stands there, or this process' own thread.
        for word in [0, Process::this().word(), process.word() ^ 1] {
            control.checkpointer.store(word, Relaxed);
            assert_eq!(look(&mut eye, at(9400)).or(look(&mut eye, at(99_999))), None);
        }
    }
}
