//! Rounds on a device that fails: a sync fails at a random moment, the program goes on or is killed, memory pressure evicts some of the
//! pages that the failed sync left clean, the next process recovers and works on, and then the power goes.
//!
//! What must hold: everything that was acknowledged, by whichever process, is there; or the acknowledgement was an error. The doors'
//! `failing_round`s judge that with the models of their sweeps.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use towa_media::sim::{Effect, ForgetsRewrite, Model, PageFate, Point, SimMedium, Trace};

/// What a round came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Round {
    /// Crash images checked.
    pub images: usize,
    /// Processes that a failed sync poisoned, or that it kept from opening.
    pub failed: usize,
}

impl std::ops::AddAssign for Round {
    fn add_assign(&mut self, other: Round) {
        self.images += other.images;
        self.failed += other.failed;
    }
}

/// Processes of a round, one after another, on one device.
pub(crate) const PROCESSES: u64 = 4;
/// Crash images of one process's work.
pub(crate) const IMAGES: usize = 25;

/// A new, empty device. `planted`: rewrites that recovery leaves out, to see that a round notices.
pub(crate) fn device(planted: Option<ForgetsRewrite>) -> SimMedium {
    let medium = SimMedium::new(Model::File);
    plant(&medium, planted);
    medium
}

fn plant(medium: &SimMedium, planted: Option<ForgetsRewrite>) {
    planted.into_iter().for_each(|forgets| medium.forget_rewrites(forgets));
}

/// Two times in three, has one of the next `syncs` syncs fail.
pub(crate) fn let_a_sync_fail(medium: &SimMedium, syncs: u64, rng: &mut SmallRng) {
    if rng.random_ratio(2, 3) {
        medium.inject(Point::Fence, rng.random_range(0..syncs), Effect::Io);
    }
}

/// What a killed process leaves to the next one: made again and again, always the same.
pub(crate) struct Left<'t> {
    trace: &'t Trace,
    /// Events until the kill.
    pub events: usize,
    seed: u64,
    /// Of 100 pages that a failed sync left clean, so many stay in the page cache.
    stay_percent: u32,
    planted: Option<ForgetsRewrite>,
}

impl<'t> Left<'t> {
    /// The process that recorded `trace` is killed after `first` events or later, mostly at the end.
    pub fn draw(trace: &'t Trace, first: usize, planted: Option<ForgetsRewrite>, rng: &mut SmallRng) -> Left<'t> {
        let events = if rng.random_ratio(2, 3) { trace.len() } else { rng.random_range(first..=trace.len()) };
        let stay_percent = [100, 100, 80, 50, 0][rng.random_range(0..5)];
        Left { trace, events, seed: rng.random(), stay_percent, planted }
    }

    /// The device as the next process finds it.
    pub fn medium(&self) -> SimMedium {
        let mut rng = SmallRng::seed_from_u64(self.seed);
        let medium = self.trace.killed_and_evicted(self.events, || {
            if rng.random_ratio(self.stay_percent, 100) {
                PageFate::Stays
            } else if rng.random() {
                PageFate::Evicted
            } else {
                PageFate::Reached
            }
        });
        plant(&medium, self.planted);
        medium
    }
}
