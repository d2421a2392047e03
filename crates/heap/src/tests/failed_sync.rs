//! Opening what a failed sync left in the kernel's cache: as if it were not there, for it cannot be made durable
//! through those pages.

use super::kernel::Kernel;
use super::*;
use crate::log::COMMIT_SLOT;
use crate::names::{IMAGE, LOG, SUPERBLOCK};
use crate::verify;

fn open_through(kernel: &Kernel) -> Result<Heap> {
    Heap::open(Arc::new(kernel.clone()), &OpenOptions { door: Door::Epoch, eager: true, prefault: false })
}

/// A pool with one epoch, whose process is gone.
fn pool() -> (Kernel, Commit) {
    let medium = SimMedium::new(Model::File);
    let heap = create(&medium);
    let one = commit(&heap, heap.recovered(), &[(DATA, 1)]);
    (Kernel::over(&medium), one)
}

/// Opens the pool, which must be in the state of `epoch`, and commits another: both must be there when the power goes.
fn goes_on_from(kernel: &Kernel, epoch: u64) {
    let verified = verify(&kernel.apart(), Door::Epoch, &mut |_, _| ()).unwrap();
    assert_eq!(verified.epoch, epoch, "verified");
    let heap = open_through(kernel).unwrap();
    assert_eq!(heap.recovery().epoch, epoch);
    let told = commit(&heap, heap.recovered(), &[(DATA + 1, 9)]);
    drop(heap);
    // The cache is gone with the power.
    let heap = open(&kernel.device).unwrap();
    assert_eq!((heap.recovered(), line_of(&heap, DATA + 1)), (after(&told), [9; LINE]));
    assert_eq!(line_of(&heap, DATA)[0], epoch.min(1) as u8);
}

#[test]
fn an_epoch_that_is_only_in_the_cache_never_was() {
    let (kernel, one) = pool();
    let heap = open(&kernel.device).unwrap();
    assert_eq!(heap.recovered(), after(&one));
    kernel.fail(&[LOG], || _ = commit(&heap, after(&one), &[(DATA, 2)]));
    drop(heap);
    goes_on_from(&kernel, 1);
}

/// Something else holds the pages when they are evicted: the first of the two readings finds an epoch that the second
/// does not.
#[test]
fn what_the_first_reading_found_and_the_second_did_not_is_read_again() {
    let (kernel, one) = pool();
    let heap = open(&kernel.device).unwrap();
    kernel.fail(&[LOG], || _ = commit(&heap, after(&one), &[(DATA, 2)]));
    drop(heap);
    // Those of the superblock, the image and the log.
    kernel.keep(3);
    let heap = open_through(&kernel).unwrap();
    assert_eq!(heap.recovery().epoch, 1);
    assert_eq!(kernel.left(), [""; 0]);
    drop(heap);
    goes_on_from(&kernel, 1);
}

/// Damage that is on the device is refused all the same, though it is found by the second reading.
#[test]
fn damage_beneath_the_first_reading_is_refused() {
    let (kernel, one) = pool();
    let heap = open(&kernel.device).unwrap();
    let two = commit(&heap, after(&one), &[(DATA, 2)]);
    commit(&heap, after(&two), &[(DATA, 3)]);
    drop(heap);
    // The cache shows what the device had.
    let frame = 256 * COMMIT_SLOT + two.start;
    let damage = |b: &mut [u8]| b.iter_mut().for_each(|b| *b ^= 1);
    tamper(&kernel.device, LOG, frame, damage, LINE);
    kernel.fail(&[LOG], || tamper(&kernel.device, LOG, frame, damage, LINE));
    kernel.keep(3);
    let refused = open_through(&kernel).unwrap_err().to_string();
    assert!(refused.contains("redo log of epoch 2"), "{refused}");
}

#[test]
fn a_superblock_that_is_only_in_the_cache_never_was() {
    let (kernel, one) = pool();
    // A cut, and a close, of which the last sync fails.
    let heap = open(&kernel.device).unwrap();
    heap.apply(&[one], 1, &mut || ()).unwrap();
    kernel.fail(&[SUPERBLOCK], || heap.cut(&one).unwrap());
    drop(heap);
    assert_eq!(verify(&kernel.apart(), Door::Epoch, &mut |_, _| ()).unwrap().image_epoch, 0);
    goes_on_from(&kernel, 1);
    let (kernel, one) = pool();
    let heap = open(&kernel.device).unwrap();
    heap.apply(&[one], 1, &mut || ()).unwrap();
    heap.cut(&one).unwrap();
    kernel.fail(&[SUPERBLOCK], || heap.close().unwrap());
    drop(heap);
    goes_on_from(&kernel, 1);
}

/// Of a pool that was closed, and of which an opening failed as it wrote the first of its stamps.
#[test]
fn stamps_that_are_only_in_the_cache_never_were() {
    for name in [IMAGE, LOG] {
        let (kernel, one) = pool();
        let heap = open(&kernel.device).unwrap();
        heap.apply(&[one], 1, &mut || ()).unwrap();
        heap.cut(&one).unwrap();
        heap.close().unwrap();
        drop(heap);
        kernel.fail(&[SUPERBLOCK, IMAGE, LOG], || drop(open(&kernel.device).unwrap()));
        // Only that file's pages are left; of the others nothing was written yet.
        kernel.let_go_of_all_but(name);
        assert_eq!(kernel.left(), [name]);
        goes_on_from(&kernel, 1);
    }
}

/// The pages of the image, too, may be held by something else when opening begins: the replay must not write through them.
#[test]
fn lines_that_a_failed_sync_left_are_not_written_through() {
    let (kernel, one) = pool();
    let heap = open(&kernel.device).unwrap();
    kernel.fail(&[IMAGE], || heap.apply(&[one], 1, &mut || ()).unwrap());
    drop(heap);
    assert_eq!(kernel.left(), [IMAGE]);
    kernel.keep(3);
    let heap = open_through(&kernel).unwrap();
    heap.apply(&[one], 1, &mut || ()).unwrap();
    heap.cut(&one).unwrap();
    drop(heap);
    // The cache is gone with the power.
    assert_eq!(line_of(&open(&kernel.device).unwrap(), DATA), [1; LINE]);
}
