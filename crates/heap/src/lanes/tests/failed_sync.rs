//! What a failed sync left in the kernel's cache: records that an opening finds there, and lines of the image that a
//! replayer left to the next one.

use towa_media::Access;

use super::*;
use crate::lanes::Cut;
use crate::names::{IMAGE, LOG};
use crate::superblock::read_superblock;
use crate::tests::kernel::Kernel;
use crate::verify;

fn open_through(kernel: &Kernel) -> Result<Heap> {
    Heap::open(Arc::new(kernel.clone()), &OpenOptions { door: Door::Tx, eager: true, prefault: false })
}

/// A record of lane 0 that writes words of its own.
fn written(ts: u64) -> Written {
    Written { ts, lane: 0, words: (0..20).map(|n| (DATA + (ts * 100 + n) * 8, ts << 32 | n)).collect() }
}

/// Appends it at `head` of lane 0 and makes it durable; gives the next head.
fn append(heap: &Heap, head: u64, record: &Written) -> u64 {
    let head = heap.lanes().append(0, head, &record.builder()).unwrap();
    heap.lanes().fence().unwrap();
    head
}

/// A pool with a record whose process is gone, and one of which the sync failed.
fn pool() -> Kernel {
    let medium = SimMedium::new(Model::File);
    let heap = create(medium.clone());
    heap.lanes().provide(0).unwrap();
    let head = append(&heap, 0, &written(1));
    let kernel = Kernel::over(&medium);
    kernel.fail(&[LOG], || _ = append(&heap, head, &written(2)));
    kernel
}

#[test]
fn a_record_that_is_only_in_the_cache_never_was() {
    // Let go of before the first reading; or, those of superblock, image and log kept by something else, before the
    // second.
    for kept in [0, 3] {
        let kernel = pool();
        assert_eq!(verify(&kernel.apart(), Door::Tx, &mut |_, _| ()).unwrap().records_to_replay, 1);
        kernel.keep(kept);
        let heap = open_through(&kernel).unwrap();
        assert_eq!(heap.recovery().records_replayed, 1, "{kept} evictions let nothing go");
        heap.lanes().provide(0).unwrap();
        append(&heap, 0, &written(3));
        drop(heap);
        // The cache is gone with the power.
        let (heap, all) = (open(&kernel.device).unwrap(), [written(1), written(3)]);
        assert_eq!(Words::read(&heap, &all), Words::of(&all));
    }
}

/// The owner of a pool with one record in lane 0, the heads of its lanes, and a kernel over its device.
fn owner_of_a_record() -> (Heap, Vec<u64>, Kernel) {
    let medium = SimMedium::new(Model::File);
    let owner = create(medium.clone());
    owner.lanes().provide(0).unwrap();
    let mut heads = vec![0; LANES as usize];
    heads[0] = append(&owner, 0, &written(1));
    (owner, heads, Kernel::over(&medium))
}

#[test]
fn what_a_replayers_failed_sync_left_of_the_image_is_not_built_on() {
    let (owner, heads, kernel) = owner_of_a_record();
    let apply = |medium: &dyn Medium| Replayer::attach(medium).unwrap().apply(&heads, u64::MAX, &mut || ()).unwrap();
    kernel.fail(&[IMAGE, LOG], || _ = apply(&kernel.device));
    // It ended when the sync of the image failed: there was no cut yet.
    kernel.let_go_of_all_but(IMAGE);
    assert_eq!(kernel.left(), [IMAGE]);
    assert_eq!(apply(&kernel).records, 1);
    drop(owner);
    let (heap, all) = (open(&kernel.device).unwrap(), [written(1)]);
    assert_eq!(Words::read(&heap, &all), Words::of(&all));
}

/// The pages of the image, too, may be held by something else when opening begins: the replay must not write through them.
#[test]
fn words_that_a_failed_sync_left_are_not_written_through() {
    let (owner, heads, kernel) = owner_of_a_record();
    let apply = || _ = Replayer::attach(&kernel.device).unwrap().apply(&heads, u64::MAX, &mut || ()).unwrap();
    kernel.fail(&[IMAGE, LOG], apply);
    kernel.let_go_of_all_but(IMAGE);
    drop(owner);
    kernel.keep(3);
    assert_eq!(open_through(&kernel).unwrap().recovery().records_replayed, 1);
    let (heap, all) = (open(&kernel.device).unwrap(), [written(1)]);
    assert_eq!(Words::read(&heap, &all), Words::of(&all));
}

/// A cut whose sync failed frees nothing: the next replayer makes one that is on the device.
#[test]
fn a_cut_that_is_only_in_the_cache_never_was() {
    let (_owner, heads, kernel) = owner_of_a_record();
    let apply = |medium: &dyn Medium| _ = Replayer::attach(medium).unwrap().apply(&heads, u64::MAX, &mut || ()).unwrap();
    let tail_on_the_device = || {
        let sb = read_superblock(&kernel.device, Door::Tx).unwrap();
        let log = kernel.device.open(LOG, Access::ReadOnly).unwrap();
        Cut::read(&*log, &sb).unwrap().unwrap().tails[0]
    };
    kernel.fail(&[LOG], || apply(&kernel.device));
    assert_eq!((kernel.left(), tail_on_the_device()), (vec![LOG.to_owned()], 0));
    apply(&kernel);
    assert_eq!(tail_on_the_device(), heads[0]);
}
