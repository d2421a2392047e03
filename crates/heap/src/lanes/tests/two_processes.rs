//! Two living processes at one pool: the checkpointer of an owner that was killed, in the midst of its round, and the next owner.
//!
//! ```text
//!   checkpointer   attaches ─ applies a part ─ (stands still) ....................... the rest into the image, its cut
//!   owner          ✝ killed
//!   next owner                  opens ─ a transaction ─ into the image ─ its cut
//! ```
//!
//! What must always hold: the next owner opens when the checkpointer has ended, which the lock of the image tells. Without that lock the
//! test finds an image that is wrong.

use std::sync::mpsc::channel;
use std::time::Duration;

use towa_media::sim::Explorer;

use super::*;
use crate::names;

/// Enough for a replayer to pause in the midst of them.
const RECORDS: u64 = 1400;
const WORDS: u64 = 40;

fn written() -> Vec<Written> {
    let lane = |ts| (ts % u64::from(LANES)) as usize;
    (1..=RECORDS).map(|ts| Written { ts, lane: lane(ts), words: vec![(DATA + ts % WORDS * 8, ts)] }).collect()
}

fn append(heap: &Heap, heads: &mut [u64], record: &Written) {
    heads[record.lane] = heap.lanes().append(record.lane, heads[record.lane], &record.builder()).unwrap();
}

/// Whether nothing of the next owner's is lost, whenever the power fails then.
fn is_sound(model: Model, locked: bool) -> bool {
    let medium = SimMedium::new(model);
    if !locked {
        medium.forget_region_locks();
    }
    let heap = create(medium.clone());
    let mut heads = vec![0; LANES as usize];
    (0..LANES as usize).for_each(|lane| heap.lanes().provide(lane).unwrap());
    let old = written();
    old.iter().for_each(|record| append(&heap, &mut heads, record));
    heap.lanes().fence().unwrap();
    // The checkpointer has the image from here on.
    heap.lock().expect("a medium").give_back(names::IMAGE);
    let (reached, in_the_midst) = channel();
    let (go_on, goes_on) = channel::<()>();
    let (medium, heads) = (&medium, &heads);
    std::thread::scope(|scope| {
        let checkpointer = scope.spawn(move || {
            let _lock = medium.lock_file(names::IMAGE, Duration::ZERO, "nothing").unwrap();
            Replayer::attach(medium).unwrap().apply(heads, u64::MAX, &mut || {
                reached.send(()).unwrap();
                goes_on.recv().unwrap();
            })
        });
        in_the_midst.recv().unwrap();
        drop(heap);
        let until = locked.then(|| {
            let go_on = go_on.clone();
            scope.spawn(move || {
                // The next owner is waiting by now.
                std::thread::sleep(Duration::from_millis(50));
                go_on.send(()).unwrap();
            })
        });
        let next = scope.spawn(move || {
            let heap = open(medium).unwrap();
            // Opening has begun a generation, whose lanes are empty.
            let mut heads = vec![0; LANES as usize];
            heap.lanes().provide(0).unwrap();
            let new = Written { ts: 1, lane: 0, words: (0..WORDS).map(|n| (DATA + n * 8, 1 << 40 | n)).collect() };
            append(&heap, &mut heads, &new);
            heap.lanes().fence().unwrap();
            Replayer::of(&heap).unwrap().apply(&heads, u64::MAX, &mut || ()).unwrap();
            (new, medium.events())
        });
        let (new, told) = next.join().unwrap();
        if let Some(until) = until {
            until.join().unwrap();
        } else {
            go_on.send(()).unwrap();
        }
        let _ = checkpointer.join().unwrap();
        let all = [new];
        let check = |image: &towa_media::sim::CrashImage<'_, '_>| {
            let heap = open(&image.to_medium()).map_err(|e| e.to_string())?;
            let found = Words::read(&heap, &all);
            if found == Words::of(&all) { Ok(()) } else { Err(format!("{found:?}")) }
        };
        Explorer::new(medium.trace(), 1).starting_at(told).check(300, check).is_ok()
    })
}

#[test]
fn a_former_owners_checkpointer_is_never_beside_the_next_owner() {
    for model in [Model::Line, Model::File] {
        assert!(is_sound(model, true), "{model:?}");
        assert!(!is_sound(model, false), "{model:?}: nothing misses the lock of the image");
    }
}
