//! Backups of lanes, whose owner appends, applies and laps while the image is copied.

use std::sync::atomic::{AtomicBool, AtomicUsize};

use parking_lot::Mutex;

use super::*;
use crate::names::{IMAGE, LOG};
use crate::tests::kernel::Kernel;
use crate::{BackupReport, backup};

/// A record of a lane, of words that it shares with no other record.
fn written(lane: usize, ts: u64) -> Written {
    Written { ts, lane, words: (0..40).map(|n| (DATA + (ts * 40 + n) * 8, ts << 32 | n)).collect() }
}

/// The owner of a pool on a device.
struct Owner {
    heap: Heap,
    heads: Vec<u64>,
    all: Vec<Written>,
}

impl Owner {
    fn new(device: &SimMedium) -> Owner {
        let heap = create(device.clone());
        (0..LANES as usize).for_each(|lane| heap.lanes().provide(lane).unwrap());
        Owner { heap, heads: vec![0; LANES as usize], all: Vec::new() }
    }

    fn append(&mut self, lane: usize) {
        self.append_at(lane, self.all.len() as u64 + 1);
    }

    fn append_at(&mut self, lane: usize, ts: u64) {
        let record = written(lane, ts);
        self.heads[lane] = self.heap.lanes().append(lane, self.heads[lane], &record.builder()).unwrap();
        self.heap.lanes().fence().unwrap();
        self.all.push(record);
    }

    /// Applies everything, and frees the lanes.
    fn apply(&self, device: &SimMedium) {
        Replayer::attach(device).unwrap().apply(&self.heads, u64::MAX, &mut || ()).unwrap();
    }
}

/// Backs up while the owner does `act` when the image is first read; then `at_log` is told which reading of the log of the backup's own thread
/// comes. Gives the copy, too.
fn beside(
    device: &SimMedium,
    act: impl Fn() + Send + Sync + 'static,
    at_log: impl Fn(usize) + Send + Sync + 'static,
) -> (BackupReport, SimMedium) {
    let (gate, began, reads) = (Mutex::new(()), AtomicBool::new(false), AtomicUsize::new(0));
    let me = std::thread::current().id();
    let mut kernel = Kernel::over(device);
    kernel.before_read = Some(Arc::new(move |name, _| {
        let _alone = gate.lock();
        match name {
            IMAGE if !began.swap(true, Relaxed) => act(),
            LOG if began.load(Relaxed) && std::thread::current().id() == me => at_log(reads.fetch_add(1, Relaxed)),
            _ => {}
        }
    }));
    let copy = SimMedium::new(Model::File);
    (backup(&kernel, &copy, &mut |_, _| ()).unwrap(), copy)
}

#[test]
fn records_that_come_while_the_image_is_copied_are_in_the_copy() {
    let device = SimMedium::new(Model::File);
    let owner = Arc::new(Mutex::new(Owner::new(&device)));
    (0..3).for_each(|lane| owner.lock().append(lane));
    let act = {
        let owner = Arc::clone(&owner);
        move || (0..9).for_each(|n| owner.lock().append(n % 3))
    };
    let (report, copy) = beside(&device, act, |_| ());
    let all = std::mem::take(&mut owner.lock().all);
    drop(owner);
    assert_eq!(report.attempts, 1);
    assert_eq!(Words::read(&open(&copy).unwrap(), &all), Words::of(&all));
}

/// Records that appear in a lane which was read before, and others in lanes that are read later and depend on them: the newest at one moment,
/// and at a later one two that had their timestamps before that.
#[test]
fn what_a_record_depends_on_is_looked_for_again() {
    for (first, then) in (0..24).flat_map(|first| (first..24).map(move |then| (first, then))) {
        let device = SimMedium::new(Model::File);
        let owner = Arc::new(Mutex::new(Owner::new(&device)));
        (0..3).for_each(|lane| owner.lock().append(lane));
        let at_log = {
            let owner = Arc::clone(&owner);
            move |read| {
                if read == first {
                    owner.lock().append_at(2, 10);
                }
                if read == then {
                    [(0, 7), (1, 8)].into_iter().for_each(|(lane, ts)| owner.lock().append_at(lane, ts));
                }
            }
        };
        let (_, copy) = beside(&device, || (), at_log);
        let all = std::mem::take(&mut owner.lock().all);
        drop(owner);
        let heap = open(&copy).unwrap();
        let has = |n: usize| {
            all[n].words.iter().all(|(offset, value)| {
                let mut word = [0; 8];
                heap.image().read(*offset, &mut word).unwrap();
                u64::from_ne_bytes(word) == *value
            })
        };
        let place = format!("at {first} and {then}");
        assert!(has(0) && has(1) && has(2), "{place}");
        // The newest one depends on none; of the two others the second on the first.
        assert!(all.len() < 6 || !has(5) || has(4), "{place}: what a record of the copy depends on is not there");
    }
}

#[test]
fn a_backup_whose_lanes_were_lapped_begins_again() {
    let device = SimMedium::new(Model::File);
    let owner = Arc::new(Mutex::new(Owner::new(&device)));
    owner.lock().append(0);
    let act = {
        let (owner, device) = (Arc::clone(&owner), device.clone());
        move || {
            let mut owner = owner.lock();
            while owner.heads[0] < 3 * LANE_LEN {
                (0..20).for_each(|_| owner.append(0));
                owner.apply(&device);
            }
        }
    };
    let (report, copy) = beside(&device, act, |_| ());
    drop(owner);
    assert_eq!(report.attempts, 2);
    open(&copy).unwrap();
}
