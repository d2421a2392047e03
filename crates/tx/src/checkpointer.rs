//! The checkpointer: brings the image up from the logs and frees them.
//!
//! ```text
//!   round:  1 frontier t   2 heads   3 apply records <= t, by time   4 fence, cut   5 tails: log space is free   6 wake who waits
//! ```
//!
//! What must always hold: one round at a time, in whichever process; a tail moves only behind a durable cut. Stopping after any step is
//! safe: before the cut the records are still live and the next round, by anybody, applies them again from the last cut on.

use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

use crossbeam_utils::Backoff;
use towa_heap::Heap;
use towa_heap::lanes::Replayer;
use towa_media::holder;

use crate::buffered::Group;
use crate::control::{self, Control};
use crate::engine::Engine;
use crate::error::Result;
use crate::meeting::{self, Progress};
use crate::options::{Checkpointer, Commit};
use crate::stats::Stats;

/// What is left in a log is applied after so long without a request.
const IDLE: Duration = Duration::from_millis(100);

/// A pool that is being closed waits so long for a checkpointer that is stopped, and looks that often.
const STOPPED: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(100);

/// The rounds of one checkpointer.
#[derive(Debug)]
pub(crate) struct Rounds {
    replayer: Replayer,
    heads: Vec<u64>,
    pub group: Group,
    count: u64,
    records: u64,
    lines: u64,
    busy: Duration,
}

impl Rounds {
    /// For a pool of this process.
    pub fn of(heap: &Heap) -> Result<Rounds> {
        Ok(Rounds::with(Replayer::of(heap)?))
    }

    /// For any pool.
    pub fn with(replayer: Replayer) -> Rounds {
        Rounds { replayer, heads: Vec::new(), group: Group::default(), count: 0, records: 0, lines: 0, busy: Duration::ZERO }
    }

    /// Looks at the cut again, which another process may have moved.
    fn again(&mut self, heap: &Heap) -> Result<()> {
        self.replayer = Replayer::take_over(heap)?;
        Ok(())
    }

    /// Whether there is anything in the logs.
    fn has_work(&self, control: &Control) -> bool {
        control.used().iter().any(|lane| lane.tail.load(Relaxed) != lane.head.load(Acquire))
    }

    /// One round; whether anything was applied.
    pub fn round(&mut self, control: &Control) -> Result<bool> {
        let began = Instant::now();
        let upto = control.frontier(usize::MAX);
        // After the frontier: what is older than it is below these heads.
        let lanes = control.used();
        self.heads.clear();
        self.heads.extend(lanes.iter().map(|lane| lane.head.load(Acquire)));
        if lanes.iter().zip(&self.heads).all(|(lane, head)| lane.tail.load(Relaxed) == *head) {
            return Ok(false);
        }
        let applied = self.replayer.apply(&self.heads, upto, &mut || ())?;
        for (lane, tail) in lanes.iter().zip(&applied.tails) {
            lane.tail.store(*tail, Release);
        }
        control.applied.store(upto, Release);
        control.done.fetch_add(1, Release);
        control::wake(&control.done);
        self.count += 1;
        self.records += applied.records;
        self.lines += applied.lines;
        self.busy += began.elapsed();
        Ok(applied.records > 0)
    }

    /// What they came to.
    pub fn progress(&self) -> Progress {
        Progress { rounds: self.count, records: self.records, lines: self.lines }
    }

    pub fn add_to(&self, stats: &mut Stats) {
        stats.checkpoints += self.count;
        stats.records_applied += self.records;
        stats.lines_written_back += self.lines;
        stats.replay_ns += self.busy.as_nanos() as u64;
    }
}

impl Engine {
    /// A round on the calling thread, with the group's records written first where commits are buffered.
    pub fn checkpoint_here(&self) -> Result<()> {
        self.check_files(false)?;
        self.flush_group()?;
        let mut rounds = self.rounds.lock();
        self.check_failed()?;
        let Some(rounds) = rounds.as_mut() else { return Ok(()) };
        if self.checkpointer == Checkpointer::Process {
            self.answer_attached()?;
            return self.stand_in(rounds);
        }
        rounds.round(&self.control).inspect_err(|e| self.poison(e.to_string()))?;
        Ok(())
    }

    /// Syncs image and log for a checkpointer that comes, by descriptors that are older than all that an earlier one did: a sync of
    /// that one which failed is told to these, too, and not to the new one's. Its pages may still be in the cache, and
    /// would never be written again.
    fn answer_attached(&self) -> Result<()> {
        let attached = self.control.attached.load(Acquire);
        if attached == self.control.synced.load(Relaxed) {
            return Ok(());
        }
        let synced = self.heap.image().fence().map_err(towa_heap::Error::from).and_then(|()| self.heap.lanes().fence());
        synced.inspect_err(|e| self.poison(e.to_string()))?;
        self.control.synced.store(attached, Release);
        control::wake(&self.control.synced);
        Ok(())
    }

    /// A round of a pool that has a separate checkpointer, if there is none now.
    fn stand_in(&self, rounds: &mut Rounds) -> Result<()> {
        let Some(lock) = self.heap.lock().filter(|_| rounds.has_work(&self.control)) else { return Ok(()) };
        if !meeting::stand_in(lock, &self.control)? {
            return Ok(());
        }
        let round = rounds.again(&self.heap).and_then(|()| rounds.round(&self.control));
        meeting::stand_back(lock, &self.control);
        round.inspect_err(|e| self.poison(e.to_string()))?;
        Ok(())
    }

    /// Waits for a separate checkpointer to see that the pool is being closed; none comes after it. One that is stopped is not waited for without
    /// end: all that was committed is in the logs.
    pub fn await_checkpointer(&self) -> Result<()> {
        let Some(lock) = self.heap.lock().filter(|_| self.checkpointer == Checkpointer::Process) else { return Ok(()) };
        let (mut looked, mut stopped) = (Instant::now(), None);
        while !meeting::stand_in(lock, &self.control)? {
            control::wake(&self.control.work);
            std::thread::sleep(Duration::from_millis(1));
            if looked.elapsed() < LOOK {
                continue;
            }
            looked = Instant::now();
            let writer = self.heap.medium().and_then(|medium| meeting::writer_of(&**medium));
            let stopped_writer = writer.filter(|pid| holder::is_stopped(*pid));
            stopped = stopped_writer.map(|pid| stopped.filter(|(other, _)| *other == pid).unwrap_or((pid, Instant::now())));
            if let Some((pid, _)) = stopped.filter(|(_, since)| since.elapsed() > STOPPED) {
                self.poison(format!(
                    "its checkpointer (process {pid}) is stopped, and closing the pool has waited for it long enough; let it go on (`kill -CONT \
                     {pid}`), or end it (`kill -KILL {pid}`), before the pool is opened again"
                ));
                return self.check_failed();
            }
        }
        // The lock is kept for the last round: a checkpointer that attaches would have it for a moment, and the round be left out.
        Ok(())
    }

    /// Makes all buffered commits before this call durable. Waits for transactions that run: they may come before those.
    pub fn flush_upto_now(&self) -> Result<()> {
        let target = self.control.no_sooner();
        let backoff = Backoff::new();
        while self.flush_group()? < target {
            self.check_failed()?;
            backoff.snooze();
        }
        self.check_files(true)
    }

    /// Poisons the pool if its files are gone from their directory, or others in their place; with `now` by a look, else by what was found in
    /// the last 100 ms or so.
    fn check_files(&self, now: bool) -> Result<()> {
        let found = if now { self.heap.look_at_files() } else { self.heap.check_files() };
        Ok(found.inspect_err(|e| self.poison(e.to_string()))?)
    }

    /// Makes buffered commits durable; gives the timestamp up to which they are.
    pub fn flush_group(&self) -> Result<u64> {
        let mut rounds = self.rounds.lock();
        // A flush that failed has taken its transactions out of the buffers: without this check, the thread that waited for the
        // lock would find nothing left to write, and report success for them.
        self.check_failed()?;
        let Some(rounds) = rounds.as_mut() else { return Ok(u64::MAX) };
        if self.commit == Commit::Strict {
            return Ok(u64::MAX);
        }
        let mut group = std::mem::take(&mut rounds.group);
        let lane = &self.control.lanes[self.lanes - 1];
        let flushed = group.flush(self, &mut |len| {
            // What is in the lane is older than all that is announced, so a round frees it.
            while self.heap.lanes().end_of(lane.head.load(Relaxed), len) - lane.tail.load(Relaxed) > self.lane_len {
                rounds.round(&self.control)?;
            }
            Ok(())
        });
        rounds.group = group;
        flushed.inspect_err(|e| self.poison(e.to_string()))
    }
}

/// The checkpointer's thread.
pub(crate) fn run(engine: &Engine, interval: Duration) {
    let control = &engine.control;
    let pause = if engine.commit == Commit::Buffered { interval } else { IDLE };
    while control.stop.load(Acquire) == 0 {
        let work = control.work.load(Acquire);
        if let Err(e) = engine.checkpoint_here() {
            // Nothing would free the logs any more.
            if engine.check_failed().is_ok() {
                engine.poison(e.to_string());
            }
            return;
        }
        control.asleep.fetch_add(1, SeqCst);
        if control.work.load(SeqCst) == work && control.stop.load(SeqCst) == 0 {
            control::wait(&control.work, work, pause);
        }
        control.asleep.fetch_sub(1, SeqCst);
    }
}
