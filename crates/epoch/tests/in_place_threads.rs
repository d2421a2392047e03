//! Threads of a pool in place that is killed: two epochs are alive at a time, and blocks of the undo log pass from thread to thread.

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::ptr::NonNull;
use std::time::Duration;

use towa_epoch::{Options, Pool, Root};

const NAME: &str = "a_kill_beside_threads_leaves_whole_transactions";
const DIR: &str = "TOWA_TEST_THREADS_DIR";
const THREADS: usize = 4;
/// Lines that each transaction changes: some blocks of the undo log.
const LINES: usize = 300;

fn options() -> Options {
    let (medium, interval) = (Some(towa_media::Kind::Ram), Duration::from_micros(500));
    Options { heap_len: 16 << 20, log_len: Some(8 << 20), medium, interval, in_place: true, ..Options::default() }
}

/// The lines of thread `number`: a number in each, all of them the same at any moment that counts.
fn lines_of(pool: &Pool, number: usize) -> NonNull<u64> {
    pool.root(&number.to_string()).unwrap().ptr.cast()
}

/// Works until it is killed. What is durable is in a file beside the pool.
fn work(dir: &Path) {
    let pool = Pool::open(&dir.join("pool"), &options()).unwrap();
    let told = std::fs::OpenOptions::new().write(true).open(dir.join("durable")).unwrap();
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let (pool, told, first) = (&pool, &told, lines_of(&pool, number).as_ptr().addr());
            scope.spawn(move || {
                let mut thread = pool.register().unwrap();
                let line = |nth: usize| (first + nth * 64) as *mut u64;
                // SAFETY: this thread alone uses these lines, of a live block; each is marked before it is written.
                let start = unsafe { line(0).read() };
                for value in start + 1.. {
                    let tx = thread.begin().unwrap();
                    for nth in 0..LINES {
                        // SAFETY: as above.
                        unsafe {
                            tx.mark(line(nth).cast(), 8);
                            line(nth).write(value);
                        }
                    }
                    tx.try_commit().unwrap();
                    if value % 64 == 0 {
                        pool.sync().unwrap();
                        told.write_all_at(&value.to_le_bytes(), number as u64 * 8).unwrap();
                    }
                }
            });
        }
        println!("working");
        std::io::stdout().flush().unwrap();
    });
}

#[test]
fn a_kill_beside_threads_leaves_whole_transactions() {
    if let Some(dir) = std::env::var_os(DIR) {
        return work(Path::new(&dir));
    }
    let shm = Path::new("/dev/shm");
    let home = tempfile::tempdir_in(if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() }).unwrap();
    let path = home.path().join("pool");
    let pool = Pool::create(&path, &options()).unwrap();
    let mut thread = pool.register().unwrap();
    for number in 0..THREADS {
        let tx = thread.begin().unwrap();
        let ptr = tx.alloc(LINES * 64 + 64).unwrap();
        // Lines of no other thread's.
        let ptr = NonNull::new(ptr.as_ptr().map_addr(|address| address.next_multiple_of(64))).unwrap();
        // SAFETY: within a new block, which is marked.
        unsafe {
            ptr.write_bytes(0, LINES * 64);
            tx.set_root(&number.to_string(), Some(Root { ptr, type_tag: 1, size: (LINES * 64) as u64 })).unwrap();
        }
        tx.commit();
    }
    drop(thread);
    pool.close().unwrap();
    std::fs::write(home.path().join("durable"), [0; THREADS * 8]).unwrap();
    let (mut undone, mut newest) = (0, 0);
    for round in 0..8 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env(DIR, home.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(150 + round * 37));
        child.kill().unwrap();
        child.wait().unwrap();
        let pool = Pool::open(&path, &options()).unwrap();
        undone += u64::from(pool.recovery().lines_replayed > 0);
        let told = std::fs::read(home.path().join("durable")).unwrap();
        for number in 0..THREADS {
            let first = lines_of(&pool, number);
            // SAFETY: a live block, which no thread writes now.
            let values: Vec<u64> = (0..LINES).map(|nth| unsafe { first.as_ptr().byte_add(nth * 64).read() }).collect();
            assert!(values.iter().all(|value| *value == values[0]), "round {round}, thread {number}: {values:?}");
            let told = u64::from_le_bytes(told[number * 8..][..8].try_into().unwrap());
            assert!(values[0] >= told, "round {round}, thread {number}: {} after {told} was durable", values[0]);
            newest = newest.max(values[0]);
        }
        pool.close().unwrap();
    }
    // Enough for the log several times over.
    assert!(undone > 3 && newest as usize * LINES * 86 > 8 << 20, "{undone} recoveries undid lines, {newest} transactions");
}
