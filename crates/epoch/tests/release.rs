//! Memory of free chunks that is given back to the system: it is given back, it comes back, and nothing live goes with it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tempfile::TempDir;
use towa_epoch::{Options, Pool, Root, Thread};
use towa_media::Kind;

const BLOCK: usize = 300_000;
const BLOCKS: usize = 200;
const HEAP: u64 = 128 << 20;

fn dir() -> TempDir {
    let shm = Path::new("/dev/shm");
    let at = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("towa-release-").tempdir_in(at).unwrap()
}

fn options(medium: Kind, in_place: bool) -> Options {
    Options { heap_len: HEAP, medium: Some(medium), in_place, manual: true, eager: true, ..Options::default() }
}

/// Blocks, each full of its number, whose addresses a root's block has.
fn fill(pool: &Pool, thread: &mut Thread) {
    let tx = thread.begin().unwrap();
    let list = tx.alloc(BLOCKS * 8).unwrap();
    // SAFETY: a new block of that size, marked by its allocation.
    unsafe {
        list.as_ptr().write_bytes(0, BLOCKS * 8);
        tx.set_root("list", Some(Root { ptr: list, type_tag: 1, size: (BLOCKS * 8) as u64 })).unwrap();
    }
    tx.commit();
    for i in 0..BLOCKS {
        // More than a log takes of all of them.
        if i % 20 == 0 {
            pool.checkpoint().unwrap();
        }
        let tx = thread.begin_reserving(BLOCK + 4096).unwrap();
        let block = tx.alloc(BLOCK).unwrap();
        // SAFETY: a new block of that size, marked by its allocation, and a word of the list.
        unsafe {
            block.as_ptr().write_bytes(i as u8, BLOCK);
            let at = list.cast::<u64>().add(i);
            tx.mark(at.as_ptr().cast(), 8);
            at.write(block.as_ptr() as u64);
        }
        tx.commit();
    }
    pool.checkpoint().unwrap();
}

/// Address of each block.
fn list(pool: &Pool) -> Vec<u64> {
    let root = pool.root("list").unwrap();
    // SAFETY: a block of so many addresses.
    unsafe { std::slice::from_raw_parts(root.ptr.as_ptr().cast::<u64>(), BLOCKS) }.to_vec()
}

/// Frees all blocks but each tenth.
fn free_most(pool: &Pool, thread: &mut Thread) {
    let list = list(pool);
    let tx = thread.begin().unwrap();
    for i in (0..BLOCKS).filter(|i| i % 10 != 0) {
        // SAFETY: live, and of this list alone.
        unsafe { tx.free(std::ptr::NonNull::new(list[i] as *mut u8).unwrap()) };
    }
    tx.commit();
}

fn check(pool: &Pool) {
    for (i, &block) in list(pool).iter().enumerate().step_by(10) {
        // SAFETY: live, and written by `fill` alone.
        let bytes = unsafe { std::slice::from_raw_parts(block as *const u8, BLOCK) };
        assert!(bytes.iter().all(|&byte| byte == i as u8), "block {i}");
    }
}

/// Bytes of the working copy that are in memory.
fn resident(pool: &Pool) -> u64 {
    let (base, len) = pool.heap_range();
    let mut pages = vec![0u8; len as usize / 4096];
    // SAFETY: the heap's range, and a byte for each of its pages.
    let rc = unsafe { libc::mincore(base as *mut _, len as usize, pages.as_mut_ptr()) };
    assert_eq!(rc, 0);
    pages.iter().filter(|&&page| page & 1 == 1).count() as u64 * 4096
}

fn image_bytes(dir: &Path) -> u64 {
    std::fs::metadata(dir.join("image")).unwrap().blocks() * 512
}

#[test]
fn memory_of_free_chunks_goes_and_comes_back() {
    for (medium, in_place) in [(Kind::Ram, true), (Kind::Ram, false), (Kind::File, false)] {
        let dir = dir();
        let what = format!("{medium:?}, in place: {in_place}");
        let pool = Pool::create(dir.path(), &options(medium, in_place)).unwrap();
        let mut thread = pool.register().unwrap();
        fill(&pool, &mut thread);
        let (before, image) = (resident(&pool), image_bytes(dir.path()));
        assert!(before > 55 << 20, "{what}: {before}");
        free_most(&pool, &mut thread);
        for when in ["not durable", "durable, and was not at the call before"] {
            assert!(pool.release_memory(u64::MAX) < 8 << 20, "{what}: the epoch that freed them is {when}");
            pool.checkpoint().unwrap();
        }
        let released = pool.release_memory(u64::MAX);
        assert!(released > 45 << 20, "{what}: {released}");
        let after = resident(&pool);
        assert!(after < before - (45 << 20), "{what}: {after} of {before}");
        assert_eq!(image_bytes(dir.path()) + (45 << 20) < image, in_place, "{what}: the image");
        check(&pool);
        // A kill, and a start: what was given back stays so where it can, and is there again for new blocks.
        drop(thread);
        pool.abandon();
        let pool = Pool::open(dir.path(), &options(medium, in_place)).unwrap();
        assert_eq!(image_bytes(dir.path()) + (45 << 20) < image, in_place, "{what}: the image after a start");
        let space = pool.space();
        assert!(space.resident >= space.in_use + (45 << 20), "{what}: what has memory is not known after a start: {space:?}");
        check(&pool);
        let mut thread = pool.register().unwrap();
        let kept = list(&pool);
        fill(&pool, &mut thread);
        assert!(resident(&pool) > 55 << 20);
        let anew = list(&pool);
        assert!(anew.iter().all(|block| !kept.iter().step_by(10).any(|kept| kept == block)), "{what}: a live block was given out");
        check(&pool);
        drop(thread);
        pool.close().unwrap();
        check(&Pool::open(dir.path(), &options(medium, in_place)).unwrap());
    }
}

/// The flags of the mapping that holds an address, as the kernel tells them.
fn mapping_flags(address: usize) -> String {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_it = false;
    for line in maps.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let number = |text: &str| usize::from_str_radix(text, 16).ok();
        if let Some((from, to)) = range.and_then(|(from, to)| Some((number(from)?, number(to)?))) {
            is_it = (from..to).contains(&address);
        } else if let Some(flags) = line.strip_prefix("VmFlags: ").filter(|_| is_it) {
            return flags.to_owned();
        }
    }
    panic!("no mapping holds {address:#x}");
}

/// A program that gives nothing up keeps its huge pages; one that does shall not have the gaps filled again.
#[test]
fn huge_pages_are_given_up_with_memory_and_not_before() {
    let pool = Pool::volatile(&Options { heap_len: HEAP, ..Options::default() }).unwrap();
    let mut thread = pool.register().unwrap();
    let tx = thread.begin().unwrap();
    let block = tx.alloc(8 << 20).unwrap();
    tx.commit();
    let base = pool.heap_range().0;
    let before = mapping_flags(base);
    pool.release_memory(0);
    assert_eq!(mapping_flags(base), before, "nothing was given back");
    let tx = thread.begin().unwrap();
    // SAFETY: live, and of this test alone.
    unsafe { tx.free(block) };
    tx.commit();
    for _ in 0..2 {
        pool.checkpoint().unwrap();
        pool.release_memory(u64::MAX);
    }
    let after = mapping_flags(base);
    let wish = |flags: &str, flag: &str| flags.split(' ').any(|word| word == flag);
    assert!(!wish(&before, "nh") && wish(&after, "nh"), "{before}, then {after}");
}
