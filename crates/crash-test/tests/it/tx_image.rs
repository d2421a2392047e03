//! The image is brought up while transactions run: of those that do not take effect nothing gets into it, above all no header of a block,
//! which is written in place. Who does what when is arranged here, for by chance it hardly comes about.

use std::sync::Arc;
use std::time::Duration;

use towa_media::sim::{Explorer, Model, SimMedium};
use towa_tx::{Addr, Checkpointer, Error, Options, Pool, TmChoice};

/// Bytes of an object of two chunks, and lines of it that are written to.
const LARGE: usize = 200_000;
const LINES: u64 = 1024;
/// Bytes of small ones.
const SMALL: usize = 200;
/// Longer than it takes to write a few lines.
const A_WHILE: Duration = Duration::from_millis(8);

fn options(base: usize) -> Options {
    Options {
        heap_len: 24 * (128 << 10),
        lanes: 6,
        lane_len: 1 << 20,
        tm: TmChoice::Stm,
        checkpointer: Checkpointer::Manual,
        base: Some(base),
        ..Options::default()
    }
}

/// A pool in whose logs are: words all over a large object, and that it was freed.
fn freed(medium: &SimMedium, base: usize) -> (Pool, Addr) {
    let pool = Pool::create_on(Arc::new(medium.clone()), &options(base)).unwrap();
    let mut thread = pool.register().unwrap();
    let large = thread.transaction(|tx| tx.alloc(LARGE)).unwrap();
    pool.checkpoint().unwrap();
    let words = |line: u64| [0, 8].map(|word| large + line * 64 + word);
    thread.transaction(|tx| (0..LINES).flat_map(words).try_for_each(|a| tx.write(a, 0x1111))).unwrap();
    thread.transaction(|tx| tx.free(large)).unwrap();
    (pool, large)
}

/// Whatever a crash leaves from event `from` on, so many blocks are live.
fn check(medium: &SimMedium, from: usize, base: usize, live: u64) {
    Explorer::new(medium.trace(), 1)
        .starting_at(from)
        .check(3000, |image| {
            let pool = Pool::open_on(Arc::new(image.to_medium()), &options(base)).map_err(|e| e.to_string())?;
            match pool.check_blocks() {
                Ok(found) if found == live => Ok(()),
                found => Err(format!("{found:?} blocks are live, the program knows {live}")),
            }
        })
        .unwrap_or_else(|counterexample| panic!("{counterexample}"));
}

/// The large object's chunk is a slab now; a block of it is allocated while the image is brought up, and then is not.
#[test]
fn the_header_of_a_block_that_was_never_allocated_stays_out_of_the_image() {
    let medium = SimMedium::new(Model::Line);
    let base = 0x5200_0000_0000;
    let (pool, large) = freed(&medium, base);
    let mut thread = pool.register().unwrap();
    let kept = thread.transaction(|tx| tx.alloc(SMALL)).unwrap();
    let from = medium.events();
    std::thread::scope(|scope| {
        let undone = thread.transaction_software(|tx| {
            let block = tx.alloc(SMALL)?;
            assert!(
                [kept, block].iter().all(|a| (large..large + LINES * 64).contains(a)),
                "{kept:#x}, {block:#x}: not in {large:#x}"
            );
            scope.spawn(|| pool.checkpoint().unwrap());
            std::thread::sleep(A_WHILE);
            tx.abort::<()>("a test")
        });
        assert!(matches!(undone, Err(Error::Aborted(_))), "{undone:?}");
    });
    drop(thread);
    pool.abandon();
    check(&medium, from, base, 1);
}
