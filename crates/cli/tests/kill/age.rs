//! How old what a crash loses may be: what the server said of itself until it was killed, and what follows from that.
//!
//! ```text
//!   epoch e   ├── interval, or as long as the checkpoint before took ──┤ ended ── checkpoint ──► durable
//!   lost: answered here ▲ at the earliest, if the kill comes here                            ▲
//! ```
//!
//! So nothing lost is older than the interval (or the checkpoint before it, where that took longer) and the checkpoint that the kill
//! cut short. Both are measured: checkpoints that ended by the server's own `checkpoint_us_max`, the one under way by when its epoch
//! was first seen. To that comes what the machine keeps everybody waiting, measured by a thread that does nothing but sleep. A persister
//! that has used its share of a busy machine may wait longer than that thread now and then: of twenty kills one may lose something older
//! than this bound, and none something that is half a second older.

use std::time::{Duration, Instant};

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::client::Connection;

/// How often the server is asked.
const EVERY: Duration = Duration::from_millis(2);

/// What the server said at one moment.
#[derive(Clone, Copy, Debug)]
struct Sample {
    sent: Instant,
    epoch: u64,
    durable_epoch: u64,
    age: Duration,
    /// The longest checkpoint, with the wait for its transactions.
    checkpoint: Duration,
}

/// What is known of a server that was killed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watched {
    /// Everything answered before this was durable, as the server said.
    pub durable_until: Option<Instant>,
    /// The last sample, and when the epoch before its epoch was last seen: its checkpoint began after that.
    last: Option<(Sample, Instant)>,
    /// The longest that a thread that wants to sleep for a moment slept too long.
    pub lateness: Duration,
}

impl Watched {
    /// How old what is lost may be at `killed`; `None` if the server never said anything.
    pub fn bound(&self, interval: Duration, killed: Instant) -> Option<Duration> {
        let (last, before) = self.last?;
        // Under way since then; or begun after the last sample.
        let under_way = killed - if last.epoch > last.durable_epoch + 1 { before } else { last.sent };
        // On line media the checkpoint before goes on with copying the same lines into the image.
        Some(interval.max(2 * last.checkpoint) + under_way + self.slack())
    }

    /// What a moment that the server notes may be off from one noted here.
    pub fn slack(&self) -> Duration {
        2 * self.lateness + EVERY
    }
}

/// Watches the server at `address` until it is gone.
pub fn watch(address: &str, stop: &AtomicBool) -> Watched {
    let mut watched = Watched::default();
    let Ok(mut connection) = Connection::open(address) else { return watched };
    let mut before = Instant::now();
    while !stop.load(Relaxed) {
        let Some(sample) = ask(&mut connection) else { break };
        if let Some((last, since)) = watched.last {
            before = if sample.epoch > last.epoch { last.sent } else { since };
        }
        watched.last = Some((sample, before));
        watched.durable_until = watched.durable_until.max(sample.sent.checked_sub(sample.age));
        let began = Instant::now();
        std::thread::sleep(EVERY);
        watched.lateness = watched.lateness.max(began.elapsed() - EVERY);
    }
    watched
}

fn ask(connection: &mut Connection) -> Option<Sample> {
    let sent = Instant::now();
    connection.send(b"stats towa\r\n").ok()?;
    let mut sample = Sample { sent, epoch: 0, durable_epoch: 0, age: Duration::ZERO, checkpoint: Duration::ZERO };
    loop {
        let line = connection.line().ok()?;
        if line == "END" {
            return Some(sample);
        }
        let mut words = line.split(' ').skip(1);
        let (name, value) = (words.next().unwrap_or(""), words.next().and_then(|value| value.parse().ok()).unwrap_or(0));
        match name {
            "epoch" => sample.epoch = value,
            "durable_epoch" => sample.durable_epoch = value,
            "durable_age_us" => sample.age = Duration::from_micros(value),
            "checkpoint_us_max" | "boundary_us_max" => sample.checkpoint += Duration::from_micros(value),
            _ => {}
        }
    }
}
