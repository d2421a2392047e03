//! The checkpointer: brings the image up from the logs and frees them.
//!
//! ```text
//!   round:  1 frontier t   2 heads   3 apply records <= t, by time   4 fence, cut   5 tails: log space is free   6 wake who waits
//! ```
//!
//! A thread of the program takes the words that the records name from the working copy ([`Present`]); a separate process has only the
//! records. Buffered commits are visible long before they are durable, so there it is the records, too.
//!
//! What must always hold: one round at a time, in whichever process; a tail moves only behind a durable cut. Stopping after any step is
//! safe: before the cut the records are still live and the next round, by anybody, applies them again from the last cut on.

use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

use crossbeam_utils::Backoff;
use towa_heap::Heap;
use towa_heap::lanes::{Replayer, Working};
use towa_media::{LINE, persist};

use crate::buffered::Group;
use crate::control::{self, Control};
use crate::engine::Engine;
use crate::error::Result;
use crate::meeting::{self, Progress};
use crate::options::{Checkpointer, Commit};
use crate::process::Process;
use crate::stats::Stats;

/// What is left in a log is applied after so long without a request.
const IDLE: Duration = Duration::from_millis(100);
/// A transaction that takes longer than this does not hold up a round: what the records say is applied then.
const PATIENCE: Duration = Duration::from_millis(50);

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
        self.replayer = Replayer::of(heap)?;
        Ok(())
    }

    /// One round; whether anything was applied. `present`: the working copy, where that may be used.
    pub fn round(&mut self, control: &Control, present: Option<&mut Present<'_>>) -> Result<bool> {
        let began = Instant::now();
        let upto = control.frontier(usize::MAX);
        // After the frontier: what is older than it is below these heads.
        let lanes = control.used();
        self.heads.clear();
        self.heads.extend(lanes.iter().map(|lane| lane.head.load(Acquire)));
        if lanes.iter().zip(&self.heads).all(|(lane, head)| lane.tail.load(Relaxed) == *head) {
            return Ok(false);
        }
        let applied = match present {
            Some(present) => self.replayer.apply_current(&self.heads, upto, present)?,
            None => self.replayer.apply(&self.heads, upto, &mut || ())?,
        };
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

/// The working copy as it is now.
///
/// What must always hold: a thread that makes words visible which may not be durable yet has announced itself before, and stays announced
/// until they are. So once everybody is newer than the time at which words were read, they are durable.
pub(crate) struct Present<'e> {
    engine: &'e Engine,
}

impl Working for Present<'_> {
    #[inline]
    fn line(&self, line: u64) -> [u64; LINE / 8] {
        let view = self.engine.view;
        view.load_some(view.base() + line * LINE as u64)
    }

    fn settle(&mut self) -> bool {
        let control = &self.engine.control;
        let (now, began, backoff) = (control.no_sooner(), Instant::now(), Backoff::new());
        while control.frontier(usize::MAX) < now {
            if self.engine.check_failed().is_err() || began.elapsed() > PATIENCE {
                return false;
            }
            backoff.snooze();
        }
        true
    }

    #[inline]
    fn prefetch(&self, line: u64) {
        persist::prefetch(std::ptr::without_provenance((self.engine.view.base() + line * LINE as u64) as usize));
    }

    #[inline]
    fn begins_block(&self, line: u64) -> bool {
        self.engine.heap.allocator().begins_block(line * LINE as u64)
    }

    fn layout(&self) -> u64 {
        self.engine.heap.allocator().slabs_dissolved()
    }
}

impl Engine {
    /// A round on the calling thread, with the group's records written first where commits are buffered.
    pub fn checkpoint_here(&self) -> Result<()> {
        self.flush_group()?;
        let mut rounds = self.rounds.lock();
        let Some(rounds) = rounds.as_mut() else { return Ok(()) };
        if self.checkpointer == Checkpointer::Process {
            return self.stand_in(rounds);
        }
        let mut present = Present { engine: self };
        let present = (self.commit == Commit::Strict).then_some(&mut present);
        rounds.round(&self.control, present).inspect_err(|e| self.poison(e.to_string()))?;
        Ok(())
    }

    /// A round of a pool that has a separate checkpointer, if there is none now.
    fn stand_in(&self, rounds: &mut Rounds) -> Result<()> {
        if meeting::enter(&self.control, Process::this()).is_err() {
            return Ok(());
        }
        let round = rounds.again(&self.heap).and_then(|()| rounds.round(&self.control, None));
        meeting::leave(&self.control);
        round.inspect_err(|e| self.poison(e.to_string()))?;
        Ok(())
    }

    /// Waits for a separate checkpointer to see that the pool is being closed.
    pub fn await_checkpointer(&self) {
        let me = Process::this();
        while Process::noted(&self.control.checkpointer).is_some_and(|other| other != me && other.lives()) {
            control::wake(&self.control.work);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Makes all buffered commits before this call durable. Waits for transactions that run: they may come before those.
    pub fn flush_upto_now(&self) -> Result<()> {
        let target = self.control.no_sooner();
        let backoff = Backoff::new();
        while self.flush_group()? < target {
            self.check_failed()?;
            backoff.snooze();
        }
        Ok(())
    }

    /// Makes buffered commits durable; gives the timestamp up to which they are.
    pub fn flush_group(&self) -> Result<u64> {
        let mut rounds = self.rounds.lock();
        let Some(rounds) = rounds.as_mut() else { return Ok(u64::MAX) };
        if self.commit == Commit::Strict {
            return Ok(u64::MAX);
        }
        let mut group = std::mem::take(&mut rounds.group);
        let lane = &self.control.lanes[self.lanes - 1];
        let flushed = group.flush(self, &mut |len| {
            // What is in the lane is older than all that is announced, so a round frees it.
            while self.heap.lanes().end_of(lane.head.load(Relaxed), len) - lane.tail.load(Relaxed) > self.lane_len {
                rounds.round(&self.control, None)?;
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
        if engine.checkpoint_here().is_err() {
            return;
        }
        control.asleep.fetch_add(1, SeqCst);
        if control.work.load(SeqCst) == work && control.stop.load(SeqCst) == 0 {
            control::wait(&control.work, work, pause);
        }
        control.asleep.fetch_sub(1, SeqCst);
    }
}
