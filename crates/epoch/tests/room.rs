//! Clearing chunks of a pool in which other threads work.

use std::ptr::NonNull;

use towa_epoch::{Cleared, Clearing, Options, Pool, Thread};

const HEAP: u64 = 32 << 20;

fn pool() -> Pool {
    Pool::volatile(&Options { heap_len: HEAP, ..Options::default() }).unwrap()
}

fn fill(thread: &mut Thread, size: usize, count: usize) -> Vec<NonNull<u8>> {
    let tx = thread.begin().unwrap();
    (0..count).map(|_| tx.alloc(size).unwrap()).collect()
}

fn free(thread: &mut Thread, blocks: &[NonNull<u8>]) {
    let tx = thread.begin().unwrap();
    // SAFETY: the blocks are live, and only the caller uses them.
    blocks.iter().for_each(|block| unsafe { tx.free(*block) });
}

/// Begins to clear the chunk that holds `block`.
fn clear(pool: &Pool, thread: &mut Thread, block: NonNull<u8>) -> Clearing {
    let survey =
        (0..).find_map(|at| pool.survey(at, 1).filter(|survey| (survey.range().0..survey.range().1).contains(&block.addr().get())));
    thread.clear(&survey.unwrap()).unwrap()
}

fn live(clearing: &Clearing) -> Vec<NonNull<u8>> {
    let mut live = Vec::new();
    assert_eq!(clearing.live(0, usize::MAX, |address| live.push(NonNull::new(address as *mut u8).unwrap())), None);
    live
}

/// A chunk is free only when the transactions have ended that ran when its clearing began, and what is live in it is
/// freed.
#[test]
fn a_clearing_waits_for_running_transactions_and_for_what_is_live() {
    let pool = pool();
    let (mut mine, mut theirs) = (pool.register().unwrap(), pool.register().unwrap());
    let blocks = fill(&mut theirs, 1000, 300);
    let running = theirs.begin().unwrap();
    let mut clearing = clear(&pool, &mut mine, blocks[5]);
    let found = live(&clearing);
    assert!(found.contains(&blocks[5]));
    free(&mut mine, &found);
    assert_eq!(mine.settle(&mut clearing).unwrap(), Cleared::Wait);
    running.commit();
    assert_eq!(mine.settle(&mut clearing).unwrap(), Cleared::Yes);
    let mut other = clear(&pool, &mut mine, blocks[299]);
    assert_eq!(mine.settle(&mut other).unwrap(), Cleared::NotYet);
    let found = live(&other);
    drop(other);
    free(&mut theirs, &found);
}

/// Free blocks in other threads' caches do not keep a chunk from being cleared, and are forgotten.
#[test]
fn free_blocks_in_other_threads_caches_do_not_hold_a_chunk() {
    let pool = pool();
    let (mut mine, mut theirs) = (pool.register().unwrap(), pool.register().unwrap());
    let blocks = fill(&mut theirs, 1000, 128);
    // Some of them stay in this thread's cache.
    free(&mut theirs, &blocks);
    let cached = *blocks.last().unwrap();
    let mut clearing = clear(&pool, &mut mine, cached);
    free(&mut mine, &live(&clearing));
    assert_eq!(mine.settle(&mut clearing).unwrap(), Cleared::Yes);
    let tx = mine.begin().unwrap();
    let large = tx.alloc(128 << 10).unwrap();
    tx.commit();
    assert!(large <= cached && cached.addr().get() < large.addr().get() + (128 << 10), "the chunk that was cleared");
    // What is cached of it is forgotten.
    let again = fill(&mut theirs, 1000, 1000);
    let range = large.addr().get()..large.addr().get() + (128 << 10);
    assert!(again.iter().all(|block| !range.contains(&block.addr().get())), "a block lies in another");
    free(&mut theirs, &again);
    free(&mut mine, &[large]);
}

/// A clearing that is dropped leaves all as it was.
#[test]
fn a_clearing_in_vain_leaves_blocks_usable() {
    let pool = pool();
    let (mut mine, mut theirs) = (pool.register().unwrap(), pool.register().unwrap());
    pool.set_bound(1 << 20);
    theirs.set_lean(true);
    let mut blocks = Vec::new();
    {
        let tx = theirs.begin().unwrap();
        blocks.extend(std::iter::from_fn(|| tx.alloc(1000).ok()));
    }
    let before = (blocks.len(), pool.space());
    drop(clear(&pool, &mut mine, blocks[0]));
    free(&mut theirs, &blocks);
    let tx = theirs.begin().unwrap();
    let again = std::iter::from_fn(|| tx.alloc(1000).ok()).count();
    assert_eq!((again, pool.space()), before);
    assert_eq!(theirs_refused(&pool), 0);
}

/// What was surveyed or is being cleared in one pool is nothing to another, of another address or length.
#[test]
fn a_clearing_stays_in_its_pool() {
    let (one, other) = (pool(), Pool::volatile(&Options { heap_len: HEAP / 2, ..Options::default() }).unwrap());
    let (mut thread, mut stranger) = (one.register().unwrap(), other.register().unwrap());
    let blocks = fill(&mut thread, 1000, 128);
    free(&mut thread, &blocks);
    let survey = (0..).find_map(|at| one.survey(at, 1)).unwrap();
    assert!(stranger.clear(&survey).is_none());
    other.sample(&survey, 0, 8, |address| panic!("{address:#x} is another pool's"));
    let mut clearing = clear(&one, &mut thread, blocks[0]);
    free(&mut thread, &live(&clearing));
    let error = stranger.settle(&mut clearing).unwrap_err().to_string();
    assert!(error.contains("another pool's"), "{error}");
    assert_eq!(thread.settle(&mut clearing).unwrap(), Cleared::Yes);
}

/// Whether an unbounded thread is refused: no.
fn theirs_refused(pool: &Pool) -> usize {
    let mut thread = pool.register().unwrap();
    thread.set_unbounded(true);
    fill(&mut thread, 100_000, 4);
    thread.refused()
}
