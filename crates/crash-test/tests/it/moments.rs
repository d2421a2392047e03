//! Files of different moments: a pool is opened only from files that fit together, and is then as its log says.
//!
//! A pool is created, worked on, closed, reopened, left as by a crash and recovered; its three files are kept at each
//! of these moments. Then each combination of a superblock, an image and a log is tried. Those of one moment must
//! open. Any other is refused, or is right: the state at the end of what the log holds, for which the other two files
//! may be older.

use std::sync::Arc;

use towa_heap::superblock::Door;
use towa_heap::{names, verify};
use towa_media::sim::{Model, SimMedium};
use towa_media::{Access, Allocation, Medium, PAGE};

const NAMES: [&str; 3] = [names::SUPERBLOCK, names::IMAGE, names::LOG];
const ROOT: &str = "numbers";
/// Where in the block the second number lies: in another page.
const SECOND: usize = 8192;
const MODELS: [Model; 2] = [Model::Line, Model::File];

/// The three files at a moment, and the number that the pool holds, twice; 0 before there is a root.
struct Moment {
    what: &'static str,
    files: [Vec<u8>; 3],
    number: u64,
}

fn keep(medium: &SimMedium, what: &'static str, number: u64) -> Moment {
    let content = |name: &str| {
        let region = medium.open(name, Access::ReadOnly).unwrap();
        let mut bytes = vec![0; region.len() as usize];
        region.read(0, &mut bytes).unwrap();
        bytes
    };
    Moment { what, files: NAMES.map(content), number }
}

fn medium_of(model: Model, files: [&[u8]; 3]) -> SimMedium {
    let medium = SimMedium::new(model);
    for (name, bytes) in NAMES.iter().zip(files) {
        let region = medium.create(name, bytes.len() as u64, Allocation::Full).unwrap();
        for (i, page) in bytes.chunks(PAGE).enumerate().filter(|(_, page)| page.iter().any(|b| *b != 0)) {
            region.stream((i * PAGE) as u64, page).unwrap();
        }
        region.fence().unwrap();
    }
    medium.sync_names().unwrap();
    medium
}

/// Tries every combination; `read` opens a pool and gives its two numbers.
fn try_all(model: Model, door: Door, moments: &[Moment], read: impl Fn(SimMedium) -> Result<(u64, u64), String>) {
    let (mut opened, mut refused) = (0, 0);
    for superblock in moments {
        for image in moments {
            for log in moments {
                let which = format!("{model:?}: superblock {}, image {}, log {}", superblock.what, image.what, log.what);
                let medium = medium_of(model, [&superblock.files[0], &image.files[1], &log.files[2]]);
                let sound = verify(&medium, door, &mut |_, _| ()).is_ok();
                let found = read(medium);
                assert_eq!(sound, found.is_ok(), "{which}: verify says otherwise than opening: {found:?}");
                match found {
                    Ok(found) => assert_eq!(found, (log.number, log.number), "{which}"),
                    Err(why) => assert!(
                        !(superblock.what == image.what && image.what == log.what),
                        "{which}: of one moment, and refused: {why}"
                    ),
                }
                if sound { opened += 1 } else { refused += 1 }
            }
        }
    }
    println!("{model:?}, {}: {opened} combinations open, {refused} are refused", door.name());
    assert!(refused > opened);
}

mod epoch {
    use super::*;
    use towa_epoch::{Options, Pool};

    fn options() -> Options {
        Options { heap_len: 1 << 20, log_len: Some(1 << 20), manual: true, ..Options::default() }
    }

    fn write(pool: &Pool, number: u64) {
        let mut thread = pool.register().unwrap();
        let tx = thread.begin_reserving(4 * SECOND).unwrap();
        let at = match pool.root(ROOT) {
            Some(root) => root.ptr,
            None => {
                let at = tx.alloc(2 * SECOND).unwrap();
                // SAFETY: the block is as long as said, and stays.
                unsafe { tx.set_root(ROOT, Some(towa_epoch::Root { ptr: at, type_tag: 1, size: 2 * SECOND as u64 })).unwrap() };
                at
            }
        };
        for at in [at, at.map_addr(|at| at.saturating_add(SECOND))] {
            // SAFETY: in the block; no other thread writes.
            unsafe {
                tx.mark(at.as_ptr(), 8);
                at.cast::<u64>().write(number);
            }
        }
        tx.commit();
        drop(thread);
        pool.checkpoint().unwrap();
    }

    fn read(medium: SimMedium) -> Result<(u64, u64), String> {
        let pool = Pool::open_on(Arc::new(medium), &options()).map_err(|e| e.to_string())?;
        let number = |at: usize| {
            // SAFETY: in the block, which the root's owner made as long.
            pool.root(ROOT).map_or(0, |root| unsafe { root.ptr.byte_add(at).cast::<u64>().read() })
        };
        let found = (number(0), number(SECOND));
        pool.abandon();
        Ok(found)
    }

    #[test]
    fn of_different_moments_are_refused_or_right() {
        for model in MODELS {
            let medium = SimMedium::new(model);
            let open = || Pool::open_on(Arc::new(medium.clone()), &options()).unwrap();
            let mut moments = Vec::new();
            let pool = Pool::create_on(Arc::new(medium.clone()), &options()).unwrap();
            write(&pool, 1);
            moments.push(keep(&medium, "open", 1));
            pool.apply_now().unwrap();
            write(&pool, 2);
            moments.push(keep(&medium, "open, later", 2));
            pool.close().unwrap();
            moments.push(keep(&medium, "closed", 2));
            let pool = open();
            write(&pool, 3);
            pool.apply_now().unwrap();
            write(&pool, 4);
            pool.abandon();
            moments.push(keep(&medium, "crashed", 4));
            let pool = open();
            moments.push(keep(&medium, "recovered", 4));
            write(&pool, 5);
            pool.apply_now().unwrap();
            moments.push(keep(&medium, "recovered, later", 5));
            pool.close().unwrap();
            moments.push(keep(&medium, "closed again", 5));
            try_all(model, Door::Epoch, &moments, read);
        }
    }
}

mod tx {
    use super::*;
    use std::ptr::{NonNull, with_exposed_provenance_mut};
    use towa_tx::{Checkpointer, Options, Pool, Root};

    fn options() -> Options {
        Options { heap_len: 1 << 20, lanes: 2, lane_len: 64 << 10, checkpointer: Checkpointer::Manual, ..Options::default() }
    }

    fn write(pool: &Pool, number: u64) {
        let mut thread = pool.register().unwrap();
        let root = pool.root(ROOT);
        let done = thread.transaction(|tx| {
            let at = match root {
                Some(root) => root.ptr.as_ptr().addr() as u64,
                None => {
                    let at = tx.alloc(2 * SECOND)?;
                    let ptr = NonNull::new(with_exposed_provenance_mut(at as usize)).expect("an address");
                    tx.create_root(ROOT, Root { ptr, type_tag: 1, size: 2 * SECOND as u64 })?;
                    at
                }
            };
            tx.write(at, number)?;
            tx.write(at + SECOND as u64, number)
        });
        done.unwrap();
    }

    fn read(medium: SimMedium) -> Result<(u64, u64), String> {
        let pool = Pool::open_on(Arc::new(medium), &options()).map_err(|e| e.to_string())?;
        let thread = pool.register().map_err(|e| e.to_string())?;
        let at = pool.root(ROOT).map(|root| root.ptr.as_ptr().addr() as u64);
        let found = at.map_or((0, 0), |at| (thread.load(at), thread.load(at + SECOND as u64)));
        drop(thread);
        pool.abandon();
        Ok(found)
    }

    #[test]
    fn of_different_moments_are_refused_or_right() {
        for model in MODELS {
            let medium = SimMedium::new(model);
            let open = || Pool::open_on(Arc::new(medium.clone()), &options()).unwrap();
            let mut moments = Vec::new();
            let pool = Pool::create_on(Arc::new(medium.clone()), &options()).unwrap();
            write(&pool, 1);
            moments.push(keep(&medium, "open", 1));
            pool.checkpoint().unwrap();
            write(&pool, 2);
            moments.push(keep(&medium, "open, later", 2));
            pool.close().unwrap();
            moments.push(keep(&medium, "closed", 2));
            let pool = open();
            write(&pool, 3);
            pool.checkpoint().unwrap();
            write(&pool, 4);
            pool.abandon();
            moments.push(keep(&medium, "crashed", 4));
            let pool = open();
            moments.push(keep(&medium, "recovered", 4));
            write(&pool, 5);
            pool.checkpoint().unwrap();
            moments.push(keep(&medium, "recovered, later", 5));
            pool.close().unwrap();
            moments.push(keep(&medium, "closed again", 5));
            try_all(model, Door::Tx, &moments, read);
        }
    }
}
