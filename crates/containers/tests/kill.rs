//! Real processes, killed with SIGKILL at a random moment and recovered: no promised write lost, and over all containers and
//! threads the state of one moment.
//!
//! The test starts itself again as the victim (`victim` below, with a directory in the environment). Each of the victim's threads
//! counts; for every number it does the same steps in the same order, so that any moment of its history can be recognised.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, mpsc};
use std::time::Duration;
use towa_containers::{Error, HashMap, HashMapOptions, OrderedMap, Queue, Vector};
use towa_epoch::{Options, Pool};

const DIRECTORY: &str = "TOWA_TEST_VICTIM";
const THREADS: u64 = 2;
const ROUNDS: u64 = 6;
const SLOTS: u64 = 50;

struct All {
    pool: Pool,
    hash: HashMap,
    ordered: OrderedMap,
    vector: Vector<[u64; 2]>,
    queue: Queue,
}

fn open(dir: &Path) -> All {
    let options =
        Options { heap_len: 256 << 20, log_len: Some(16 << 20), interval: Duration::from_millis(2), ..Options::default() };
    let pool = Pool::open_or_create(dir, &options).expect("open");
    All {
        hash: HashMap::open(&pool, "hash", &HashMapOptions::default()).expect("open"),
        ordered: OrderedMap::open(&pool, "ordered").expect("open"),
        vector: Vector::open(&pool, "vector").expect("open"),
        queue: Queue::open(&pool, "queue").expect("open"),
        pool,
    }
}

fn number(bytes: Option<Vec<u8>>) -> u64 {
    bytes.map_or(0, |bytes| u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")))
}

fn counter_key(t: u64) -> Vec<u8> {
    format!("counter {t}").into_bytes()
}

fn slot_key(t: u64, n: u64) -> Vec<u8> {
    format!("thread {t} slot {}", n % SLOTS).into_bytes()
}

/// What a thread does for number `n`.
fn step(all: &All, thread: &mut towa_epoch::Thread, t: u64, n: u64) -> Result<(), Error> {
    // 1: counter and slot together; the value grows and shrinks, so that items move.
    let value = [&n.to_le_bytes()[..], &vec![t as u8; (n % 700) as usize]].concat();
    all.hash.transact(thread, &[&counter_key(t), &slot_key(t, n)], |view| {
        view.insert(&counter_key(t), &n.to_le_bytes())?;
        view.insert(&slot_key(t, n), &value)?;
        Ok::<_, Error>(())
    })?;
    // 2: the last SLOTS numbers are in the ordered map.
    all.ordered.insert(thread, &[t.to_be_bytes(), n.to_be_bytes()].concat(), b"")?;
    // 3
    if n > SLOTS {
        assert!(all.ordered.remove(thread, &[t.to_be_bytes(), (n - SLOTS).to_be_bytes()].concat())?);
    }
    // 4
    all.vector.set(thread, t, &[n, !n])?;
    // 5: in and out, so that the queue is short at times and empty at others.
    all.queue.push(thread, &[t.to_le_bytes(), n.to_le_bytes()].concat())?;
    while all.queue.len() > n / 64 % 2 * 20 {
        all.queue.pop(thread)?;
    }
    Ok(())
}

/// Not a test: the process that is killed.
#[test]
fn victim() {
    let Ok(dir) = std::env::var(DIRECTORY) else { return };
    let all = open(Path::new(&dir));
    std::thread::scope(|scope| {
        for t in 0..THREADS {
            let all = &all;
            scope.spawn(move || {
                let mut thread = all.pool.register().expect("register");
                let first = number(all.hash.get(&counter_key(t)).expect("get")) + 1;
                for n in first.. {
                    step(all, &mut thread, t, n).expect("step");
                    if n.is_multiple_of(97) {
                        all.pool.sync().expect("sync");
                        println!("durable {t} {n}.");
                    }
                }
            });
        }
    });
}

struct Victim(Child);

impl Victim {
    fn start(dir: &Path) -> Self {
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "victim", "--nocapture", "--test-threads=1"])
            .env(DIRECTORY, dir)
            .stdout(Stdio::piped())
            .spawn();
        Self(child.expect("started"))
    }

    /// Kills it `time` after its first promise, wherever it is then, and gives the newest promise to each thread.
    fn kill_after(mut self, time: Duration) -> [u64; THREADS as usize] {
        let lines = BufReader::new(self.0.stdout.take().expect("piped")).lines();
        let promises = Mutex::new([0; THREADS as usize]);
        let (promised, first) = mpsc::channel();
        std::thread::scope(|scope| {
            let promises = &promises;
            scope.spawn(move || {
                let promised = promised; // dropped when the victim's output ends
                for line in lines.map_while(Result::ok) {
                    let Some((_, promise)) = line.split_once("durable ") else { continue };
                    // The last line may have been cut off by the kill.
                    let Some((t, n)) = promise.strip_suffix('.').and_then(|p| p.split_once(' ')) else { continue };
                    promises.lock().expect("not poisoned")[t.parse::<usize>().expect("a thread")] = n.parse().expect("a number");
                    let _ = promised.send(());
                }
            });
            first.recv().expect("a promise before the victim ends");
            std::thread::sleep(time);
            assert!(self.0.try_wait().expect("a status").is_none(), "the victim ended by itself");
            self.0.kill().expect("killed");
        });
        self.0.wait().expect("gone");
        promises.into_inner().expect("not poisoned")
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Checks that what thread `t` left is one moment of its history, not before number `promised`.
fn check_thread(all: &All, queue: &[Vec<u8>], t: u64, promised: u64) -> u64 {
    let n = number(all.hash.get(&counter_key(t)).expect("get"));
    assert!(n >= promised, "thread {t} is at {n}; {promised} was promised");
    for k in n.saturating_sub(SLOTS - 1).max(1)..=n {
        let value = all.hash.get(&slot_key(t, k)).expect("get").expect("there");
        assert_eq!(value.len(), 8 + (k % 700) as usize);
        assert!(value[8..].iter().all(|byte| *byte == t as u8));
        assert_eq!(number(Some(value)), k, "thread {t} at {n}");
    }
    // Steps 2 and 3: of number n all, none, or only the second.
    let bounds = [t.to_be_bytes(), (t + 1).to_be_bytes()];
    let keys = all.ordered.range(&bounds[0][..]..&bounds[1][..]);
    let keys: Vec<u64> = keys.map(|(key, _)| u64::from_be_bytes(key[8..].try_into().expect("eight bytes"))).collect();
    let o = keys.last().copied().unwrap_or(0);
    assert!(o == n || o + 1 == n, "ordered map at {o}, hash map at {n}");
    let least = keys.first().copied().unwrap_or(1);
    let steady = o.saturating_sub(SLOTS - 1).max(1);
    assert!(least == steady || (o == n && least + 1 == steady), "ordered map from {least} to {o}");
    assert!(keys.iter().copied().eq(least..=o));
    // Step 4.
    let [v, not_v] = all.vector.get(t).expect("get").expect("there");
    assert!(v == !not_v && (v == o || v + 1 == o) && v + 1 >= n, "vector at {v}, ordered map at {o}, hash map at {n}");
    // Step 5: a thread's items come in order, the newest of them is the last pushed.
    let mine = queue.iter().filter(|item| item[..8] == t.to_le_bytes()).map(|item| number(Some(item[8..].to_vec())));
    let mine: Vec<u64> = mine.collect();
    assert!(mine.windows(2).all(|w| w[0] + 1 == w[1]), "queue holds {mine:?}");
    if let Some(q) = mine.last() {
        assert!(*q == v || q + 1 == v, "queue at {q}, vector at {v}");
    }
    n
}

#[test]
fn a_killed_process_keeps_its_promises() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in /dev/shm");
    let dir = dir.path().join("pool");
    {
        let all = open(&dir);
        let mut thread = all.pool.register().expect("register");
        (0..THREADS).for_each(|_| _ = all.vector.push(&mut thread, &[0, !0]).expect("push"));
    }
    let mut reached = [0; THREADS as usize];
    for round in 0..ROUNDS {
        let promised = Victim::start(&dir).kill_after(Duration::from_millis(60 * (round + 1)));
        let all = open(&dir);
        all.hash.check().expect("sound");
        all.ordered.check().expect("sound");
        all.vector.check().expect("sound");
        all.queue.check().expect("sound");
        let mut thread = all.pool.register().expect("register");
        let queue: Vec<Vec<u8>> = std::iter::from_fn(|| all.queue.pop(&mut thread).expect("pop")).collect();
        for t in 0..THREADS as usize {
            let n = check_thread(&all, &queue, t as u64, promised[t]);
            assert!(n >= reached[t], "round {round} went from {} to {n}", reached[t]);
            // What was in the middle of number n is finished, so that the next victim starts at a whole step.
            finish(&all, &mut thread, t as u64, n);
            reached[t] = n;
        }
        println!("round {round}: {reached:?}, promised {promised:?}");
    }
}

/// Brings the steps after the first up to number `n`.
fn finish(all: &All, thread: &mut towa_epoch::Thread, t: u64, n: u64) {
    all.ordered.insert(thread, &[t.to_be_bytes(), n.to_be_bytes()].concat(), b"").expect("insert");
    if n > SLOTS {
        all.ordered.remove(thread, &[t.to_be_bytes(), (n - SLOTS).to_be_bytes()].concat()).expect("remove");
    }
    all.vector.set(thread, t, &[n, !n]).expect("set");
}
