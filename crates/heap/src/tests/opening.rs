//! Opening: what is refused was not written, whatever is wrong with it.

use std::fs;
use std::os::unix::fs::MetadataExt;

use towa_media::sim::{Effect, EventKind, Explorer, Point};

use super::*;
use crate::alloc::{CHUNK, Marker};
use crate::log::COMMIT_SLOT;
use crate::superblock::Superblock;
use crate::{describe, names, stamp, verify};

/// Writes to a medium so far.
fn writes(medium: &SimMedium) -> usize {
    let is_write = |kind| matches!(kind, EventKind::Store | EventKind::Stream | EventKind::Rename | EventKind::Remove);
    medium.trace().events().filter(|e| is_write(e.kind())).count()
}

/// Marks nothing: the tests that use it log the lines by hand.
struct Unmarked;

impl Marker for Unmarked {
    fn mark(&self, _: usize, _: usize) {}
    fn epoch(&self) -> u64 {
        1
    }
}

/// A pool with a block and a root, in its log alone or in its image.
fn pool_with_a_root(medium: &SimMedium, applied: bool) {
    let heap = create(medium);
    let block = heap.allocator().alloc(&mut crate::alloc::Cache::new(), &Unmarked, 100).unwrap();
    let root = crate::Root { ptr: block, type_tag: 3, size: 100 };
    // SAFETY: the block is live and nobody else writes.
    unsafe { heap.roots().set(1, "name", Some(root), |_, _| ()) }.unwrap();
    let frontier = heap.allocator().frontier();
    let writer = heap.log().begin(1, heap.recovered().1);
    let mut frame = FrameBuilder::new();
    // Everything that may have been written: the used root slot, the header table, the slab.
    for line in (0..2).chain(CHUNK / 64..frontier / 64) {
        if frame.room() == 0 {
            writer.frame(&mut frame).unwrap();
        }
        // SAFETY: within the heap, and nobody writes.
        let bytes = unsafe { std::slice::from_raw_parts(heap.base().as_ptr().add(line as usize * LINE), LINE) };
        frame.run(line, 1).copy_from_slice(bytes);
    }
    writer.frame(&mut frame).unwrap();
    writer.fence().unwrap();
    let commit = writer.commit(frontier).unwrap();
    if applied {
        heap.apply(&[commit], 1, &mut || ()).unwrap();
        heap.cut(&commit).unwrap();
    }
}

/// The refusal, after which nothing was written by open or verify.
fn refused_unwritten(medium: &SimMedium) -> String {
    let before = writes(medium);
    let verdict = verify(medium, Door::Epoch, &mut |_, _| ());
    let said = refusal(medium);
    assert!(matches!(&verdict, Err(Error::Damaged { what, .. }) if *what == said), "open: {said}; verify: {verdict:?}");
    assert_eq!(writes(medium), before, "refused ({said}), but written");
    said
}

#[test]
fn every_byte_of_a_used_root_slot_is_checked() {
    for medium in both_models() {
        pool_with_a_root(&medium, true);
        assert_eq!(open(&medium).unwrap().roots().names(), ["name"]);
        for byte in 0..128 {
            tamper(&medium, names::IMAGE, byte, |b| b[0] ^= 1 << (byte % 8), 1);
            assert!(refused_unwritten(&medium).contains("root slot 0"));
            tamper(&medium, names::IMAGE, byte, |b| b[0] ^= 1 << (byte % 8), 1);
        }
        // A slot that was never used must be zero; and one copied to another place is not that place's.
        tamper(&medium, names::IMAGE, 128 * 9 + 50, |b| b[0] = 1, 1);
        assert!(refused_unwritten(&medium).contains("root slot 9"));
        let mut slot = vec![0; 128];
        tamper(&medium, names::IMAGE, 0, |b| slot.copy_from_slice(b), 128);
        tamper(&medium, names::IMAGE, 128 * 9, |b| b.copy_from_slice(&slot), 128);
        assert!(refused_unwritten(&medium).contains("root slot 9"));
    }
}

#[test]
fn a_damaged_run_header_is_refused_before_anything_is_written() {
    for medium in both_models() {
        pool_with_a_root(&medium, true);
        let heap = open(&medium).unwrap();
        // There is something to replay, too: recovery must not begin with it.
        commit(&heap, heap.recovered(), &[(DATA, 1)]);
        drop(heap);
        for byte in 0..64 {
            tamper(&medium, names::IMAGE, CHUNK + byte, |b| b[0] ^= 4, 1);
            let said = refused_unwritten(&medium);
            assert!(said.contains("heap offset 0x20000"), "{said}");
            tamper(&medium, names::IMAGE, CHUNK + byte, |b| b[0] ^= 4, 1);
        }
        open(&medium).unwrap();
    }
}

/// What the live log holds counts, not what it will be written over.
#[test]
fn damage_beneath_lines_of_the_log_is_none() {
    for medium in both_models() {
        pool_with_a_root(&medium, false);
        tamper(&medium, names::IMAGE, 8, |b| b[0] = 1, 1);
        tamper(&medium, names::IMAGE, CHUNK + 3, |b| b[0] = 1, 1);
        verify(&medium, Door::Epoch, &mut |_, _| ()).unwrap();
        assert_eq!(open(&medium).unwrap().roots().names(), ["name"]);
    }
}

#[test]
fn a_log_that_lost_the_newest_record_of_the_image_is_refused() {
    for medium in both_models() {
        let heap = create(&medium);
        let one = commit(&heap, heap.recovered(), &[(DATA, 1)]);
        let two = commit(&heap, after(&one), &[(DATA, 2)]);
        heap.apply(&[one, two], 1, &mut || ()).unwrap();
        heap.cut(&two).unwrap();
        drop(heap);
        drop(open(&medium).unwrap());
        let len = (medium.open(names::LOG, Access::ReadOnly).unwrap().len() - stamp::LEN) as usize;
        let mut kept = Vec::new();
        tamper(&medium, names::LOG, 0, |b| kept.extend_from_slice(b), len);
        for (at, len) in [(0, len), (2 * COMMIT_SLOT, 256)] {
            tamper(&medium, names::LOG, at, |b| b.fill(0), len);
            let said = refused_unwritten(&medium);
            assert!(said.contains("epoch 2") && said.contains("missing"), "{said}");
            tamper(&medium, names::LOG, 0, |b| b.copy_from_slice(&kept), kept.len());
        }
        open(&medium).unwrap();
    }
}

fn with_superblock(medium: &SimMedium, change: impl Fn(&mut Superblock)) {
    for slot in [0, 4096] {
        let reseal = |bytes: &mut [u8]| {
            let mut sb: Superblock = bytemuck::pod_read_unaligned(bytes);
            change(&mut sb);
            sb.seal();
            bytes.copy_from_slice(bytemuck::bytes_of(&sb));
        };
        tamper(medium, names::SUPERBLOCK, slot, reseal, 256);
    }
}

/// Sealed, but impossible. The first of them used to end the process: a root table beyond the mapping.
#[test]
fn superblocks_that_contradict_themselves_are_refused() {
    for change in [
        (&|sb: &mut Superblock| (sb.chunk_len, sb.heap_len, sb.frontier) = (4096, 8192, 4096)) as &dyn Fn(&mut Superblock),
        &|sb| sb.chunk_len = 1 << 18,
        &|sb| sb.heap_len = CHUNK,
        &|sb| sb.heap_len += 4096,
        &|sb| sb.heap_len = 1 << 45,
        &|sb| sb.ring_len = 1 << 62,
        &|sb| sb.ring_len = 1 << 19,
        &|sb| sb.base = 0,
        &|sb| sb.frontier += 64,
        &|sb| sb.frontier = 0,
        &|sb| sb.tail += 1,
        &|sb| sb.tail = u64::MAX - 63,
        &|sb| sb.applied_epoch = u64::MAX,
        &|sb| sb.generation = u64::MAX,
        // Refused now: opened, the next one would be out of range, and the pool never open again.
        &|sb| sb.generation = u64::MAX >> 2,
        &|sb| sb.seq = u64::MAX >> 2,
        &|sb| sb.commit_slots = 1,
    ] {
        let medium = SimMedium::new(Model::Line);
        drop(create(&medium));
        with_superblock(&medium, change);
        assert!(refused_unwritten(&medium).contains("superblock fields contradict"));
        assert!(matches!(describe(&medium), Err(Error::Damaged { .. })));
    }
}

fn pool_in(dir: &Path) {
    let medium = towa_media::open_dir(dir, None, false).unwrap();
    drop(Heap::create(medium, &options()).unwrap());
}

fn refused_in(dir: &Path, door: Door) -> Error {
    let before = snapshot(dir);
    let open = || towa_media::open_dir(dir, None, false).unwrap();
    let error = Heap::open(open(), &OpenOptions { door, eager: false, prefault: false }).unwrap_err();
    verify(&*open(), door, &mut |_, _| ()).unwrap_err();
    assert_eq!(snapshot(dir), before, "refused ({error}), but changed");
    error
}

#[test]
fn a_file_that_is_missing_is_damage_wherever_one_looks() {
    for name in [names::IMAGE, names::LOG] {
        for in_its_place in ["nothing", "a directory", "a link", "a short file"] {
            let dir = tempfile::tempdir().unwrap();
            pool_in(dir.path());
            let path = dir.path().join(name);
            fs::rename(&path, dir.path().join("elsewhere")).unwrap();
            match in_its_place {
                "a directory" => fs::create_dir(&path).unwrap(),
                "a link" => std::os::unix::fs::symlink("elsewhere", &path).unwrap(),
                "a short file" => fs::write(&path, "short").unwrap(),
                _ => {}
            }
            let error = refused_in(dir.path(), Door::Epoch);
            assert!(matches!(&error, Error::Damaged { what, .. } if what.contains(name)), "{in_its_place}: {error}");
            let described = describe(&*towa_media::open_dir(dir.path(), None, false).unwrap());
            assert!(matches!(&described, Err(Error::Damaged { what, .. }) if what.contains(name)), "{described:?}");
        }
    }
}

#[test]
fn a_refused_pool_gets_no_lock_file() {
    let dir = tempfile::tempdir().unwrap();
    pool_in(dir.path());
    fs::remove_file(dir.path().join("lock")).unwrap();
    assert!(matches!(refused_in(dir.path(), Door::Tx), Error::WrongDoor { .. }));
    let bytes = fs::read(dir.path().join(names::SUPERBLOCK)).unwrap();
    fs::write(dir.path().join(names::SUPERBLOCK), [&bytes[..4100], &[7; 4092]].concat()).unwrap();
    fs::write(dir.path().join(names::LOG), [1, 2, 3]).unwrap();
    assert!(matches!(refused_in(dir.path(), Door::Epoch), Error::Damaged { .. }));
    // Found only when all is read: a root slot.
    let dir = tempfile::tempdir().unwrap();
    pool_in(dir.path());
    fs::write(dir.path().join("lock"), "1").unwrap();
    let image = fs::OpenOptions::new().write(true).open(dir.path().join(names::IMAGE)).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&image, &[1], 0).unwrap();
    assert!(matches!(refused_in(dir.path(), Door::Epoch), Error::Damaged { .. }));
}

#[test]
fn looking_changes_no_time_stamp() {
    let dir = tempfile::tempdir().unwrap();
    pool_in(dir.path());
    // Read long before it was written: the next reading would be noted.
    let times = fs::FileTimes::new().set_accessed(SystemTime::UNIX_EPOCH);
    let all = || [names::SUPERBLOCK, names::IMAGE, names::LOG, "lock", "."].map(|name| dir.path().join(name));
    for path in all() {
        fs::File::open(path).unwrap().set_times(times).unwrap();
    }
    let stamps =
        || all().map(|path| fs::metadata(path).unwrap()).map(|m| (m.atime_nsec(), m.atime(), m.mtime_nsec(), m.ctime_nsec()));
    let before = stamps();
    let open = || towa_media::open_dir(dir.path(), None, false).unwrap();
    verify(&*open(), Door::Epoch, &mut |_, _| ()).unwrap();
    describe(&*open()).unwrap();
    assert_eq!(stamps(), before);
}

/// Space that was provided and never written need not survive a power loss: on a full DAX file system the first store there would be
/// SIGBUS.
#[test]
fn the_images_space_is_provided_again_after_an_unclean_end() {
    for medium in both_models() {
        pool_with_a_root(&medium, true);
        medium.inject(Point::Reserve, 0, Effect::Full);
        assert!(matches!(open(&medium), Err(Error::Media(towa_media::Error::Full { .. }))));
        open(&medium).unwrap();
    }
}

/// The record that must still be there, is: whatever moment a crash picks, whatever reached the medium.
#[test]
fn no_crash_loses_the_record_that_the_superblock_knows() {
    for (i, medium) in both_models().into_iter().enumerate() {
        let heap = create(&medium);
        let created = medium.events();
        let mut newest = heap.recovered();
        let mut pending = Vec::new();
        for n in 0..6 {
            let committed = commit(&heap, newest, &[(DATA + n, n as u8), (DATA, n as u8)]);
            pending.push(committed);
            newest = after(&committed);
            if n % 2 == 1 {
                heap.apply(&pending, 1, &mut || ()).unwrap();
                heap.cut(&committed).unwrap();
                pending.clear();
            }
        }
        drop(heap);
        let checked = Explorer::new(medium.trace(), i as u64)
            .starting_at(created)
            .check(1500, |image| open(&image.to_medium()).map(|_| ()).map_err(|e| e.to_string()));
        checked.unwrap_or_else(|counterexample| panic!("{counterexample}"));
    }
}
