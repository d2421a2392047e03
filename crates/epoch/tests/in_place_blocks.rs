//! New blocks of a pool in place: what a kill leaves of them, and of the blocks whose memory they took.

use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tempfile::TempDir;
use towa_epoch::{Options, Phase, Pool, Tx};
use towa_heap::superblock::Door;

const OLD: u8 = 0x11;
const NEW: u8 = 0x22;
const GROUP: u64 = 8192;

/// Memory that survives the process; a directory elsewhere is opened as such, too.
fn dir() -> TempDir {
    let shm = Path::new("/dev/shm");
    let at = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("towa-in-place-").tempdir_in(at).unwrap()
}

fn open(dir: &Path) -> Pool {
    static PLACES: AtomicUsize = AtomicUsize::new(0);
    let options = Options {
        base: Some((54 << 40) + PLACES.fetch_add(1, Relaxed) * (256 << 20)),
        heap_len: 8 << 20,
        log_len: Some(64 << 20),
        medium: Some(towa_media::Kind::Ram),
        in_place: true,
        manual: true,
        ..Options::default()
    };
    Pool::open_or_create(dir, &options).unwrap()
}

/// The files as a kill leaves them at this moment, sound.
fn killed(dir_of_pool: &Path) -> TempDir {
    let copy = dir();
    for name in ["superblock", "image", "log"] {
        std::fs::copy(dir_of_pool.join(name), copy.path().join(name)).unwrap();
    }
    let medium = towa_media::open_dir(copy.path(), Some(towa_media::Kind::Ram), false).unwrap();
    towa_heap::accept_copy(&*medium).unwrap();
    towa_heap::verify(&*medium, Door::Epoch, &mut |_, _| ()).unwrap();
    copy
}

#[derive(Clone, Copy)]
struct Block(NonNull<u8>, usize);

impl Block {
    fn new(tx: &Tx<'_>, len: usize, byte: u8) -> Block {
        let block = tx.alloc(len).unwrap();
        // SAFETY: a new block of that size, marked.
        unsafe { block.write_bytes(byte, len) };
        Block(block, len)
    }

    fn overlaps(&self, other: &Block) -> bool {
        let of = |block: &Block| block.0.as_ptr().addr()..block.0.as_ptr().addr() + block.1;
        of(self).start < of(other).end && of(other).start < of(self).end
    }

    /// Whether each of its bytes is this one. Its pool is open, at the place where the block was made.
    fn is_all(&self, byte: u8) -> bool {
        // SAFETY: memory of the heap, which no thread writes now.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.1) }.iter().all(|found| *found == byte)
    }
}

/// Blocks of one size are freed, and blocks of another take their memory, before the freeing is durable: in the same epoch, or in the next
/// while the first one ends.
#[test]
fn a_block_that_is_taken_again_comes_back() {
    for (old_len, new_len) in [(1000, 1000), (300_000, 300_000), (300_000, 3000), (60_000, 3000), (3000, 200_000)] {
        for later in [false, true] {
            let case = format!("{old_len} bytes, then {new_len}; in the next epoch: {later}");
            let home = dir();
            let pool = open(home.path());
            let mut thread = pool.register().unwrap();
            let tx = thread.begin_reserving(4 << 20).unwrap();
            let old: Vec<Block> = (0..(2 << 20) / old_len).map(|_| Block::new(&tx, old_len, OLD)).collect();
            tx.commit();
            pool.checkpoint().unwrap();
            let take = |tx: &Tx<'_>| {
                let new: Vec<Block> = (0..(3 << 20) / new_len.max(30_000)).map(|_| Block::new(tx, new_len, NEW)).collect();
                assert!(new.iter().any(|new| old.iter().any(|old| new.overlaps(old))), "{case}: no memory was taken again");
            };
            let tx = thread.begin_reserving(4 << 20).unwrap();
            // SAFETY: live, and not used in this process any more.
            old.iter().for_each(|block| unsafe { tx.free(block.0) });
            let mut left = None;
            if later {
                tx.commit();
                pool.checkpoint_observed(&mut |phase| match phase {
                    Phase::Advanced => {
                        let tx = thread.begin_reserving(4 << 20).unwrap();
                        take(&tx);
                        tx.commit();
                    }
                    Phase::Quiet => left = Some(killed(home.path())),
                    _ => {}
                })
                .unwrap();
            } else {
                take(&tx);
                tx.commit();
                left = Some(killed(home.path()));
            }
            drop(thread);
            pool.close().unwrap();
            let pool = open(left.unwrap().path());
            assert!(pool.recovery().lines_replayed > 0);
            old.iter().for_each(|block| assert!(block.is_all(OLD), "{case}: a block has other bytes"));
            pool.close().unwrap();
        }
    }
}

/// A block that was free when the durable epoch ended costs the log one entry, and its memory comes back as zeros.
#[test]
fn new_blocks_are_blank_and_cost_an_entry() {
    let home = dir();
    let pool = open(home.path());
    let mut thread = pool.register().unwrap();
    thread.begin().unwrap().commit();
    pool.checkpoint().unwrap();
    let mut blocks = Vec::new();
    // Chunks that were never carved, and then those of blocks that are no more.
    for round in 0..2 {
        let before = pool.stats().log_bytes;
        let tx = thread.begin_reserving(1 << 20).unwrap();
        blocks = [300_000, 60_000, 1000, 300_000].map(|len| Block::new(&tx, len, NEW)).to_vec();
        tx.commit();
        let cost = pool.stats().log_bytes - before;
        assert!(cost <= 2 * GROUP, "round {round}: {cost} bytes of log for new blocks");
        if round == 1 {
            break;
        }
        // Sound with blank lines in chunks that no durable epoch knows of.
        killed(home.path());
        pool.checkpoint().unwrap();
        let tx = thread.begin().unwrap();
        // SAFETY: live, and not used in this process any more.
        blocks.iter().for_each(|block| unsafe { tx.free(block.0) });
        tx.commit();
        pool.checkpoint().unwrap();
        pool.checkpoint().unwrap();
    }
    let left = killed(home.path());
    drop(thread);
    pool.abandon();
    let pool = open(left.path());
    for block in blocks {
        // The first line was saved: it has a header.
        // SAFETY: within the block.
        let behind = Block(unsafe { block.0.add(64) }, block.1 - 64);
        assert!(behind.is_all(0), "a block of {} bytes is not blank", block.1);
    }
    pool.close().unwrap();
}
