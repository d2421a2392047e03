//! Pools in place as a kill leaves them, and blocks in them that are full of one byte.

use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tempfile::TempDir;
use towa_epoch::{Options, Phase, Pool, Thread, Tx};
use towa_heap::superblock::Door;

pub const OLD: u8 = 0x11;
pub const NEW: u8 = 0x22;

/// Memory that survives the process; a directory elsewhere is opened as such, too.
pub fn dir() -> TempDir {
    let shm = Path::new("/dev/shm");
    let at = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("towa-in-place-").tempdir_in(at).unwrap()
}

/// Opens the pool in place there, or creates one for so many bytes. It checkpoints when told to.
pub fn open(dir: &Path, heap_len: u64) -> Pool {
    static PLACES: AtomicUsize = AtomicUsize::new(0);
    let options = Options {
        base: Some((54 << 40) + PLACES.fetch_add(1, Relaxed) * (256 << 20)),
        heap_len,
        log_len: Some(64 << 20),
        medium: Some(towa_media::Kind::Ram),
        in_place: true,
        manual: true,
        ..Options::default()
    };
    Pool::open_or_create(dir, &options).unwrap()
}

/// The files as a kill leaves them at this moment, sound.
pub fn killed(dir_of_pool: &Path) -> TempDir {
    let copy = dir();
    for name in ["superblock", "image", "log"] {
        std::fs::copy(dir_of_pool.join(name), copy.path().join(name)).unwrap();
    }
    let medium = towa_media::open_dir(copy.path(), Some(towa_media::Kind::Ram), false).unwrap();
    towa_heap::accept_copy(&*medium).unwrap();
    towa_heap::verify(&*medium, Door::Epoch, &mut |_, _| ()).unwrap();
    copy
}

/// A transaction does `first`. Then the same one does `second`, or, if that comes `later`, one of the next epoch while the first epoch ends. The
/// files as a kill leaves them then, before either is durable.
pub fn killed_after(
    (home, pool): (&Path, &Pool),
    thread: &mut Thread,
    first: impl FnOnce(&Tx<'_>),
    second: impl Fn(&Tx<'_>),
    later: bool,
) -> TempDir {
    let tx = thread.begin_reserving(4 << 20).unwrap();
    first(&tx);
    if !later {
        second(&tx);
        tx.commit();
        return killed(home);
    }
    tx.commit();
    let mut left = None;
    pool.checkpoint_observed(&mut |phase| match phase {
        Phase::Advanced => {
            let tx = thread.begin_reserving(4 << 20).unwrap();
            second(&tx);
            tx.commit();
        }
        Phase::Quiet => left = Some(killed(home)),
        _ => {}
    })
    .unwrap();
    left.unwrap()
}

/// A block and its length.
#[derive(Clone, Copy)]
pub struct Block(pub NonNull<u8>, pub usize);

impl Block {
    pub fn new(tx: &Tx<'_>, len: usize, byte: u8) -> Block {
        let block = tx.alloc(len).unwrap();
        // SAFETY: a new block of that size, marked.
        unsafe { block.write_bytes(byte, len) };
        Block(block, len)
    }

    pub fn overlaps(&self, other: &Block) -> bool {
        let of = |block: &Block| block.0.as_ptr().addr()..block.0.as_ptr().addr() + block.1;
        of(self).start < of(other).end && of(other).start < of(self).end
    }

    /// What stands there. Its pool is open, at the place where the block was made.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: memory of the heap, which no thread writes now.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.1) }
    }

    pub fn is_all(&self, byte: u8) -> bool {
        self.bytes().iter().all(|found| *found == byte)
    }
}
