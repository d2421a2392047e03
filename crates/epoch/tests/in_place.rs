//! Pools whose image is their working copy.

use std::cell::RefCell;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;
use towa_epoch::{Error, Options, Phase, Pool, Root, Thread, Tx};
use towa_heap::superblock::Door;

const CELLS: usize = 96;

/// Memory that survives the process; a directory elsewhere is opened as such, too.
fn dir() -> TempDir {
    let shm = Path::new("/dev/shm");
    let at = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("towa-in-place-").tempdir_in(at).unwrap()
}

/// New pools lie apart, each at a place of its own: no other test's new pool takes the place of one that is opened again.
fn options() -> Options {
    static PLACES: AtomicUsize = AtomicUsize::new(0);
    Options {
        base: Some((50 << 40) + PLACES.fetch_add(1, Relaxed) * (256 << 20)),
        heap_len: 1 << 20,
        log_len: Some(8 << 20),
        medium: Some(towa_media::Kind::Ram),
        in_place: true,
        manual: true,
        ..Options::default()
    }
}

fn open(dir: &Path) -> Pool {
    Pool::open_or_create(dir, &options()).unwrap()
}

/// Cells of a block, a line apart, that a root leads to.
struct Cells(NonNull<u64>);

impl Cells {
    fn of(pool: &Pool, thread: &mut Thread) -> Cells {
        if let Some(root) = pool.root("cells") {
            return Cells(root.ptr.cast());
        }
        let tx = thread.begin().unwrap();
        let ptr = tx.alloc(CELLS * 64).unwrap();
        // SAFETY: a new block of that size, marked.
        unsafe {
            ptr.write_bytes(0, CELLS * 64);
            tx.set_root("cells", Some(Root { ptr, type_tag: 7, size: (CELLS * 64) as u64 })).unwrap();
        }
        tx.commit();
        Cells(ptr.cast())
    }

    fn at(&self, cell: usize) -> *mut u64 {
        // SAFETY: within the block.
        unsafe { self.0.as_ptr().add(cell * 8) }
    }

    fn set(&self, tx: &Tx<'_>, cell: usize, value: u64) {
        // SAFETY: one transaction at a time writes a cell.
        unsafe {
            tx.mark(self.at(cell).cast(), 8);
            self.at(cell).write(value);
        }
    }

    fn all(&self) -> Vec<u64> {
        // SAFETY: no thread writes now.
        (0..CELLS).map(|cell| unsafe { self.at(cell).read() }).collect()
    }
}

/// The files that a process leaves which is killed at some moment: their lengths, and the pages that are not zeros.
struct Left(Vec<(&'static str, u64, Pages)>);

/// Where each page begins, and what is there.
type Pages = Vec<(u64, Vec<u8>)>;

impl Left {
    fn now(dir: &Path) -> Left {
        let of = |name| {
            let bytes = std::fs::read(dir.join(name)).unwrap();
            let pages = (0..).step_by(4096).zip(bytes.chunks(4096)).filter(|(_, page)| page.iter().any(|byte| *byte != 0));
            (name, bytes.len() as u64, pages.map(|(at, page)| (at, page.to_vec())).collect())
        };
        Left(["superblock", "image", "log"].map(of).into())
    }

    fn restore(&self) -> TempDir {
        let copy = dir();
        for (name, len, pages) in &self.0 {
            let file = std::fs::File::create(copy.path().join(name)).unwrap();
            file.set_len(*len).unwrap();
            pages.iter().for_each(|(at, page)| file.write_all_at(page, *at).unwrap());
        }
        copy
    }

    /// The next process finds `wanted`, can go on with it, and can be killed in its turn.
    fn check(&self, wanted: &[u64]) {
        let copy = self.restore();
        let medium = towa_media::open_dir(copy.path(), Some(towa_media::Kind::Ram), false).unwrap();
        towa_heap::accept_copy(&*medium).unwrap();
        let report = towa_heap::verify(&*medium, Door::Epoch, &mut |_, _| ()).unwrap();
        drop(medium);
        let pool = open(copy.path());
        assert_eq!(pool.recovery().lines_replayed, report.lines_to_replay);
        let mut thread = pool.register().unwrap();
        let cells = Cells::of(&pool, &mut thread);
        assert_eq!(cells.all(), wanted);
        let tx = thread.begin().unwrap();
        (0..CELLS).for_each(|cell| cells.set(&tx, cell, 1 << 40));
        tx.commit();
        drop(thread);
        pool.abandon();
        for clean in [false, true] {
            let pool = open(copy.path());
            let recovery = pool.recovery();
            assert_eq!((recovery.clean, recovery.lines_replayed > 0), (clean, !clean));
            let mut thread = pool.register().unwrap();
            assert_eq!(Cells::of(&pool, &mut thread).all(), wanted);
            drop(thread);
            pool.close().unwrap();
        }
    }
}

/// Sets some cells of `model` in a transaction, with a look at what a kill would leave between any two steps.
fn change(cells: &Cells, tx: &Tx<'_>, random: &mut SmallRng, model: &mut [u64], look: &dyn Fn()) {
    for _ in 0..random.random_range(1..6) {
        let (cell, value) = (random.random_range(0..CELLS), random.random());
        // SAFETY: one transaction at a time writes a cell.
        unsafe { tx.mark(cells.at(cell).cast(), 8) };
        look();
        cells.set(tx, cell, value);
        model[cell] = value;
        look();
    }
}

/// Whenever a process is killed, the next one finds the newest durable epoch: between any two stores of one or two epochs that are
/// not durable, and between all steps of a checkpoint.
#[test]
fn a_kill_at_any_moment_leaves_the_durable_epoch() {
    for seed in 0..2 {
        let (home, mut random) = (dir(), SmallRng::seed_from_u64(seed));
        let left = RefCell::new(Vec::new());
        let look = |durable: &[u64]| left.borrow_mut().push((Left::now(home.path()), durable.to_vec()));
        let pool = open(home.path());
        let (mut one, mut two) = (pool.register().unwrap(), pool.register().unwrap());
        let cells = Cells::of(&pool, &mut one);
        pool.checkpoint().unwrap();
        let mut model = vec![0; CELLS];
        let mut durable = model.clone();
        for _ in 0..6 {
            for _ in 0..random.random_range(1..4) {
                let tx = one.begin().unwrap();
                change(&cells, &tx, &mut random, &mut model, &|| look(&durable));
                tx.commit();
            }
            // One that runs when the epoch ends, beside one of the next.
            let mut late = Some(one.begin().unwrap());
            change(&cells, late.as_ref().unwrap(), &mut random, &mut model, &|| ());
            let (mut next, ended) = (model.clone(), model.clone());
            pool.checkpoint_observed(&mut |phase| match phase {
                Phase::Advanced => {
                    drop(late.take());
                    let tx = two.begin().unwrap();
                    change(&cells, &tx, &mut random, &mut next, &|| look(&durable));
                    tx.commit();
                }
                Phase::Quiet => look(&durable),
                _ => look(&ended),
            })
            .unwrap();
            (durable, model) = (ended, next);
            look(&durable);
        }
        drop((one, two));
        pool.close().unwrap();
        look(&model);
        left.into_inner().iter().for_each(|(left, wanted)| left.check(wanted));
    }
}

/// A line has its old bytes in the undo log before it is changed: whatever was not durable is gone after a kill, blocks that were
/// allocated or freed, and roots, too.
#[test]
fn blocks_and_roots_are_undone() {
    let home = dir();
    let pool = open(home.path());
    let mut thread = pool.register().unwrap();
    let cells = Cells::of(&pool, &mut thread);
    let tx = thread.begin().unwrap();
    let kept = tx.alloc(100).unwrap();
    tx.commit();
    pool.checkpoint().unwrap();
    let live = |left: Left| {
        let copy = left.restore();
        let medium = towa_media::open_dir(copy.path(), Some(towa_media::Kind::Ram), false).unwrap();
        towa_heap::accept_copy(&*medium).unwrap();
        let report = towa_heap::verify(&*medium, Door::Epoch, &mut |_, _| ()).unwrap();
        (report.live_blocks, report.live_bytes, report.roots)
    };
    let before = live(Left::now(home.path()));
    let tx = thread.begin().unwrap();
    // SAFETY: live, and not used afterwards. No program reads the root.
    unsafe {
        tx.free(kept);
        let other = tx.alloc(70_000).unwrap();
        other.write_bytes(7, 70_000);
        tx.set_root("other", Some(Root { ptr: other, type_tag: 1, size: 70_000 })).unwrap();
    }
    cells.set(&tx, 5, 5);
    tx.commit();
    drop(thread);
    pool.abandon();
    let after = live(Left::now(home.path()));
    let pool = open(home.path());
    assert_eq!((pool.root_names(), &after), (vec!["cells".to_owned()], &before));
    assert!(pool.recovery().lines_replayed > 70_000 / 64);
    pool.close().unwrap();
    assert_eq!(live(Left::now(home.path())), before);
}

/// A transaction that marks more than it may is the end of the pool, and is undone whole.
#[test]
fn a_transaction_that_marks_too_much_is_undone() {
    let home = dir();
    let options = Options { heap_len: 64 << 20, ..options() };
    let pool = Pool::create(home.path(), &options).unwrap();
    let mut thread = pool.register().unwrap();
    let tx = thread.begin_reserving(4 << 20).unwrap();
    let blocks: Vec<_> = (0..4).map(|_| tx.alloc(1 << 20).unwrap()).collect();
    tx.commit();
    pool.checkpoint().unwrap();
    let mut parts = Vec::new();
    for _ in 0..8 {
        let tx = thread.begin_reserving(3 << 20).unwrap();
        parts.extend((0..3).map(|_| tx.alloc(1 << 20).unwrap()));
        tx.commit();
        pool.checkpoint().unwrap();
    }
    let tx = thread.begin().unwrap();
    for part in blocks.iter().chain(&parts) {
        // SAFETY: this test alone uses these blocks.
        unsafe {
            tx.mark(part.as_ptr(), 1 << 20);
            part.write_bytes(9, 1 << 20);
        }
    }
    assert!(matches!(tx.try_commit(), Err(Error::Poisoned { .. })));
    let firsts: Vec<usize> = blocks.iter().chain(&parts).map(|part| part.as_ptr().addr()).collect();
    drop(thread);
    drop(pool);
    let pool = Pool::open(home.path(), &options).unwrap();
    // SAFETY: live blocks, which no thread writes.
    assert!(firsts.iter().all(|at| unsafe { *(*at as *const u8) } != 9));
    drop(pool);
}

/// Log space that the durable epoch holds comes free for those who wait for it.
#[test]
fn log_space_comes_free_without_a_change() {
    let home = dir();
    let options = Options { heap_len: 64 << 20, manual: false, interval: std::time::Duration::from_secs(3600), ..options() };
    let pool = Pool::create(home.path(), &options).unwrap();
    let mut thread = pool.register().unwrap();
    for _ in 0..40 {
        let tx = thread.begin_reserving(2 << 20).unwrap();
        let block = tx.alloc(2 << 20).unwrap();
        // SAFETY: a live block.
        unsafe { tx.free(block) };
        tx.commit();
    }
    let stats = pool.stats();
    assert!(stats.log_bytes <= stats.log_capacity && stats.log_capacity <= 8 << 20, "{stats:?}");
    drop(thread);
    pool.close().unwrap();
}

/// Threads that begin without asking for log space get it too, however little an epoch leaves of the log.
#[test]
fn transactions_that_reserve_nothing_go_on_when_an_epoch_fills_the_log() {
    let home = dir();
    let options = Options { heap_len: 64 << 20, manual: false, interval: std::time::Duration::from_secs(3600), ..options() };
    let pool = Pool::create(home.path(), &options).unwrap();
    let (ended, end) = std::sync::mpsc::channel();
    let copy = pool.clone();
    std::thread::spawn(move || {
        let mut thread = copy.register().unwrap();
        // Each marks half of a transaction's share; all of them eight times the log.
        for _ in 0..2000 {
            let tx = thread.begin().unwrap();
            let block = tx.alloc(32 << 10).unwrap();
            // SAFETY: a live block of this thread.
            unsafe {
                block.write_bytes(1, 32 << 10);
                tx.free(block);
            }
            tx.commit();
        }
        ended.send(()).unwrap();
    });
    end.recv_timeout(std::time::Duration::from_secs(60)).expect("a thread waits for log space for ever");
    let stats = pool.stats();
    assert!(stats.log_bytes <= stats.log_capacity, "{stats:?}");
    pool.close().unwrap();
}

/// Options that cannot be are refused before anything is made.
#[test]
fn a_refused_creation_leaves_nothing() {
    let home = dir();
    let refused = Pool::create(home.path(), &Options { detect_forgotten_marks: true, ..options() }).unwrap_err();
    assert!(matches!(&refused, Error::Usage(why) if why.contains("not in place")), "{refused}");
    assert!(!home.path().join("superblock").exists() && !home.path().join("image").exists());
    // A log that is too short for a pool in place does for one on a disk, and is longer in place.
    for (kind, len) in [(towa_media::Kind::File, 4 << 20), (towa_media::Kind::Ram, 8 << 20)] {
        let pool = Pool::create(
            &home.path().join(format!("{kind:?}")),
            &Options { log_len: Some(4 << 20), medium: Some(kind), ..options() },
        );
        let pool = pool.unwrap();
        assert_eq!(pool.stats().log_capacity, len);
        pool.close().unwrap();
    }
}

/// A backup is of one moment, while threads write: each pair of cells has one value.
#[test]
fn a_backup_beside_writers_is_whole() {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    let home = dir();
    let options = Options { manual: false, interval: std::time::Duration::from_millis(20), ..options() };
    let pool = Pool::create(home.path(), &options).unwrap();
    let mut thread = pool.register().unwrap();
    let cells = Cells::of(&pool, &mut thread);
    let (over, first) = (AtomicBool::new(false), cells.0.as_ptr().addr());
    pool.sync().unwrap();
    std::thread::scope(|scope| {
        for half in 0..2 {
            let (pool, over) = (&pool, &over);
            scope.spawn(move || {
                let cells = Cells(NonNull::new(first as *mut u64).unwrap());
                let (mut thread, mut random) = (pool.register().unwrap(), SmallRng::seed_from_u64(half));
                for value in 1.. {
                    if over.load(Relaxed) {
                        return;
                    }
                    let pair = random.random_range(0..CELLS / 4) * 4 + half as usize * 2;
                    let tx = thread.begin().unwrap();
                    cells.set(&tx, pair, value);
                    cells.set(&tx, pair + 1, value);
                    tx.commit();
                }
            });
        }
        for _ in 0..5 {
            let copy = dir();
            let medium = |at: &Path, create| towa_media::open_dir(at, Some(towa_media::Kind::Ram), create).unwrap();
            let report = towa_heap::backup(&*medium(home.path(), false), &*medium(copy.path(), true), &mut |_, _| ()).unwrap();
            assert!(report.was_open);
            // At another address: the original is open.
            let found = cells_of_copy(copy.path(), first, pool.heap_range().0);
            assert!(found.chunks(2).all(|pair| pair[0] == pair[1]), "{found:?}");
            assert!(found.iter().any(|value| *value > 0));
        }
        over.store(true, Relaxed);
    });
    drop(thread);
    pool.close().unwrap();
}

/// A backup ends although more lines are changed than it keeps, and more in each epoch than there is time to read one by one.
#[test]
fn a_backup_beside_a_busy_writer_ends() {
    const COUNT: usize = 8 << 20;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    let home = dir();
    let options = Options {
        heap_len: 160 << 20,
        log_len: Some(64 << 20),
        manual: false,
        interval: std::time::Duration::from_millis(100),
        ..options()
    };
    let pool = Pool::create(home.path(), &options).unwrap();
    let mut thread = pool.register().unwrap();
    // Blocks of a line for each number; all of them have one number at any moment that counts.
    let tx = thread.begin_reserving(COUNT).unwrap();
    let block = tx.alloc(COUNT).unwrap();
    // SAFETY: a new block, marked.
    unsafe {
        block.write_bytes(0, COUNT);
        tx.set_root("lines", Some(Root { ptr: block, type_tag: 7, size: COUNT as u64 })).unwrap();
    }
    tx.commit();
    pool.sync().unwrap();
    let (over, mut lines) = (AtomicBool::new(false), Vec::<Vec<u64>>::new());
    let first = block.as_ptr().addr();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut thread = pool.register().unwrap();
            for value in 1u64.. {
                if over.load(Relaxed) {
                    return;
                }
                let tx = thread.begin_reserving(COUNT).unwrap();
                // SAFETY: this thread alone writes the block, whose lines are marked before.
                unsafe {
                    tx.mark(first as *const u8, COUNT);
                    (0..COUNT / 64).for_each(|line| ((first + line * 64) as *mut u64).write(value));
                }
                tx.commit();
            }
        });
        let mut backups = Vec::new();
        for _ in 0..2 {
            let copy = dir();
            let medium = |at: &Path, create| towa_media::open_dir(at, Some(towa_media::Kind::Ram), create).unwrap();
            backups.push(towa_heap::backup(&*medium(home.path(), false), &*medium(copy.path(), true), &mut |_, _| ()));
            let image = std::fs::read(copy.path().join("image")).unwrap();
            let at = first - pool.heap_range().0;
            lines.push((0..COUNT / 64).map(|line| u64::from_le_bytes(image[at + line * 64..][..8].try_into().unwrap())).collect());
        }
        // Only now, for the writer goes on until it is told.
        over.store(true, Relaxed);
        backups.into_iter().for_each(|backup| drop(backup.unwrap()));
    });
    for copy in lines {
        let wrong = copy.iter().position(|value| *value != copy[0]);
        assert!(wrong.is_none() && copy[0] > 0, "line {wrong:?} beside {}", copy[0]);
    }
    drop(thread);
    pool.close().unwrap();
}

/// The cells in the image of a closed copy.
fn cells_of_copy(dir: &Path, first: usize, base: usize) -> Vec<u64> {
    let image = std::fs::read(dir.join("image")).unwrap();
    let at = |cell: usize| first - base + cell * 64;
    (0..CELLS).map(|cell| u64::from_le_bytes(image[at(cell)..at(cell) + 8].try_into().unwrap())).collect()
}

/// On a medium that outlives a loss of power such a pool is refused; its backup is not.
#[test]
fn a_pool_in_place_is_for_memory_alone() {
    let (home, copy) = (dir(), dir());
    let pool = open(home.path());
    let mut thread = pool.register().unwrap();
    let cells = Cells::of(&pool, &mut thread);
    let tx = thread.begin().unwrap();
    cells.set(&tx, 3, 33);
    tx.commit();
    drop(thread);
    pool.close().unwrap();
    let on_file = Options { medium: Some(towa_media::Kind::File), ..options() };
    let error = Pool::open(home.path(), &on_file).unwrap_err().to_string();
    assert!(error.contains("working copy") && error.contains("towa backup"), "{error}");
    let medium = |at: &Path, create| towa_media::open_dir(at, Some(towa_media::Kind::Ram), create).unwrap();
    towa_heap::backup(&*medium(home.path(), false), &*medium(copy.path(), true), &mut |_, _| ()).unwrap();
    let pool = Pool::open(copy.path(), &on_file).unwrap();
    let mut thread = pool.register().unwrap();
    assert_eq!(Cells::of(&pool, &mut thread).all()[3], 33);
}
