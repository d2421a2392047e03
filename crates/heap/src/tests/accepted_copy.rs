//! A copy of a pool that was open, which somebody takes for the pool: refused until that is durable, and accepted from then on.

use towa_media::sim::{EventInfo, EventKind, Explorer};

use super::kernel::Kernel;
use super::*;
use crate::accept_copy;
use crate::names::SUPERBLOCK;
use crate::superblock::{self, read_superblock};

/// When the pool's files were made, and when those of the copy were.
const MADE: u64 = 1;
const COPIED: u64 = 2;

fn born(device: &SimMedium, born: u64) -> Kernel {
    let mut kernel = Kernel::over(device);
    kernel.born = born;
    kernel
}

fn open_born(device: &SimMedium, at: u64) -> Result<Heap> {
    let options = OpenOptions { door: Door::Epoch, eager: true, prefault: false };
    Heap::open(Arc::new(born(device, at)), &options)
}

/// What a crash left of a pool with one epoch.
fn crashed(model: Model) -> SimMedium {
    let device = SimMedium::new(model);
    let heap = Heap::create(Arc::new(born(&device, MADE)), &options()).unwrap();
    commit(&heap, heap.recovered(), &[(DATA, 1)]);
    device
}

fn is_refused(opened: Result<Heap>) -> bool {
    matches!(opened, Err(Error::CopiedWhileOpen { .. }))
}

#[test]
fn a_copy_is_refused_until_it_is_accepted() {
    let device = crashed(Model::File);
    assert!(is_refused(open_born(&device, COPIED)));
    accept_copy(&born(&device, COPIED)).unwrap();
    assert_eq!(open_born(&device, COPIED).unwrap().recovery().epoch, 1);
    // Its owner has it by now.
    let owner = open_born(&device, COPIED).unwrap();
    assert!(matches!(accept_copy(&born(&device, COPIED + 1)), Err(Error::Media(towa_media::Error::Busy { .. }))));
    drop(owner);
}

/// The sync of the first call fails: what the cache shows of it is not what the device has.
#[test]
fn a_copy_that_is_accepted_in_the_cache_only_is_accepted_again() {
    let device = crashed(Model::File);
    let kernel = born(&device, COPIED);
    kernel.fail(&[SUPERBLOCK], || accept_copy(&kernel).unwrap());
    assert_eq!(kernel.left(), [SUPERBLOCK]);
    assert!(is_refused(open_born(&device, COPIED)), "the device has it as it was");
    accept_copy(&kernel).unwrap();
    open_born(&device, COPIED).unwrap();
}

/// The newer slot of a superblock that was copied just now may not be durable, and accepting writes over the older one.
#[test]
fn accepting_a_copy_leaves_a_superblock_wherever_it_is_stopped() {
    for model in [Model::Line, Model::File] {
        let source = crashed(model);
        // As the program that copies leaves it: there, and not yet durable.
        let copy = source.trace().killed_after(source.events());
        let mut bytes = vec![0; superblock::LEN as usize];
        let region = copy.open(SUPERBLOCK, Access::ReadWrite).unwrap();
        region.read(0, &mut bytes).unwrap();
        region.store(0, &vec![0; superblock::LEN as usize]).unwrap();
        region.write_back(0, superblock::LEN);
        region.fence().unwrap();
        region.store(0, &bytes).unwrap();
        let before = copy.events();
        accept_copy(&born(&copy, COPIED)).unwrap();
        let is_store =
            |event: &EventInfo<'_>| event.index() >= before && event.range().is_some() && event.kind() == EventKind::Store;
        let first = copy.trace().events().find(is_store).unwrap().index();
        let explored = Explorer::new(copy.trace(), 1)
            .starting_at(first)
            .check(2000, |image| read_superblock(&image.to_medium(), Door::Epoch).map(|_| ()).map_err(|e| e.to_string()));
        let explored = explored.unwrap_or_else(|e| panic!("{model:?}: {e}"));
        assert!(explored.images > 10, "{explored:?}");
    }
}
