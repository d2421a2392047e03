//! Readers while checkpoints are taken, merged, marked and removed: what they get is always a whole checkpoint, or word that it is gone.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use towa_snap::Error;
use towa_snap::store::{Base, CheckpointId, Limits, Store, Which};

mod places;
use places::Place;

/// Checkpoint `n` holds `n` in the first word of a third of its pages, and of the last one; those that it does not write are its base's.
fn take(store: &Store, base: Base) -> CheckpointId {
    let mut draft = store.begin(base).unwrap();
    let number = draft.number();
    for page in (0..20).filter(|page| base == Base::Empty || (page + number).is_multiple_of(3) || *page == 19) {
        let mut bytes = vec![page as u8; 4096];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        draft.write(page * 7, &bytes).unwrap();
    }
    draft.finish(&number.to_le_bytes()).unwrap()
}

#[test]
fn readers_see_whole_checkpoints_whatever_a_writer_does() {
    for place in Place::both() {
        let store = Store::open_or_create(place.dir()).unwrap();
        let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
        let (mut newest, mut merged) = (take(&store, Base::Empty), 0);
        let least = AtomicU64::new(newest.number);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let told = least.load(Ordering::SeqCst);
                        let checkpoint = store.open_checkpoint(Which::Newest).unwrap();
                        assert!(checkpoint.number() >= told, "an older one than was told");
                        checkpoint.verify(|_, _| {}).unwrap();
                        assert_eq!(checkpoint.manifest(), checkpoint.number().to_le_bytes());
                        let mut page = vec![0; 4096];
                        checkpoint.read(7 * 19, &mut page).unwrap();
                        assert_eq!(page[..8], checkpoint.number().to_le_bytes());
                        assert!(store.list().unwrap().iter().all(|item| item.damaged.is_none()));
                        match store.open_checkpoint(Which::Number(told - told.min(2))) {
                            Ok(checkpoint) => checkpoint.verify(|_, _| {}).unwrap(),
                            Err(Error::NoCheckpoint { .. }) => {}
                            Err(e) => panic!("{e}"),
                        }
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let began = Instant::now();
            let enough = |newest: CheckpointId, merged| newest.number > 10 && merged > 3 && reads.load(Ordering::Relaxed) > 10;
            // A minute, should the disk be slow.
            while began.elapsed() < Duration::from_secs(3) || !enough(newest, merged) && began.elapsed() < Duration::from_secs(60) {
                newest = take(&store, Base::On(newest));
                least.store(newest.number, Ordering::SeqCst);
                store.keep(3).unwrap();
                merged += store.merge_beyond(Limits { packs: 2, extents: 3 }).unwrap().checkpoints;
            }
            stop.store(true, Ordering::Relaxed);
        });
        println!("{:?}: {newest} is the last, {merged} merged, {reads:?} readings", place.mode);
        assert!(newest.number > 10 && merged > 3 && reads.into_inner() > 10, "nothing happened");
    }
}
