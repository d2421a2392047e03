//! The kill test of transactions: a process that runs them, its checkpointer, or both are killed with SIGKILL at random moments, and exactly
//! what had returned must be there afterwards.
//!
//! ```text
//!   tx-load ──"ACK thread n"──► test           transactions of three threads that check themselves; logs so small that they wrap
//!   checkpointer ──► image                     another process, killed and started again while transactions run
//!   verify, tx-check                           after each round: whole, no leak, each thread at what it had said, or one further
//! ```
//!
//! What must always hold, after every kill: each transaction that returned is there, at most one more of each thread, and none without its
//! causes; `towa verify` finds the pool sound; the blocks are those of the structure. While its checkpointer is dead a program goes on. Once
//! the pool was opened again nothing is left in memory of who was killed.
//!
//! TOWA_KILL_ROUNDS sets the number of rounds of each kind (200), TOWA_SEED repeats one (the moments repeat, the machine's timing does not). A
//! failure prints the seed and keeps the pool.

#[allow(dead_code, reason = "the other kill test uses the rest")]
#[path = "kill/process.rs"]
mod process;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::ChildStdout;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use process::Running;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const THREADS: usize = 3;
const MEDIUM: &str = "ram";

fn rounds() -> usize {
    std::env::var("TOWA_KILL_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(200)
}

fn seed() -> u64 {
    let given = std::env::var("TOWA_SEED").ok().and_then(|text| text.trim().parse().ok());
    given.unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().expect("a clock after 1970").as_nanos() as u64 % 1_000_000_000)
}

/// What each thread said last.
#[derive(Clone, Default)]
struct Acked(Arc<[AtomicU64; THREADS]>);

impl Acked {
    fn total(&self) -> u64 {
        self.0.iter().map(|seq| seq.load(Relaxed)).sum()
    }

    fn text(&self) -> String {
        self.0.iter().map(|seq| seq.load(Relaxed).to_string()).collect::<Vec<_>>().join(",")
    }

    /// Follows what a process says, to its end. The last line may be cut short by the kill: only whole ones count.
    fn follow(&self, mut stdout: BufReader<ChildStdout>) -> JoinHandle<()> {
        let acked = self.clone();
        std::thread::spawn(move || {
            let mut line = String::new();
            while stdout.read_line(&mut line).is_ok_and(|n| n > 0) && line.ends_with('\n') {
                let mut words = line.split_whitespace().skip(1).map(|word| word.parse::<u64>());
                let (Some(Ok(thread)), Some(Ok(seq))) = (words.next(), words.next()) else { panic!("tx-load said {line:?}") };
                acked.0[thread as usize].store(seq, Relaxed);
                line.clear();
            }
        })
    }
}

/// One pool, used and killed again and again.
struct Pool {
    dir: Option<tempfile::TempDir>,
    pool: PathBuf,
    complaints: PathBuf,
    acked: Acked,
    returned: u64,
    replayed: u64,
    seed: u64,
}

impl Pool {
    fn new(seed: u64) -> Pool {
        let shm = Path::new("/dev/shm");
        let parent = if shm.is_dir() { shm } else { Path::new(env!("CARGO_TARGET_TMPDIR")) };
        let dir = tempfile::Builder::new().prefix("towa-kill-tx-").tempdir_in(parent).expect("a temporary directory");
        let (pool, complaints) = (dir.path().join("pool"), dir.path().join("complaints"));
        Pool { dir: Some(dir), pool, complaints, acked: Acked::default(), returned: 0, replayed: 0, seed }
    }

    fn load(&self, rng: &mut SmallRng, more: &[&str]) -> Running {
        let pool = self.pool.display().to_string();
        let tm = ["auto", "auto", "stm", "lock"][rng.random_range(0..4)];
        let mut args = vec!["tx-load", &pool, "--medium", MEDIUM, "--tm", tm];
        args.extend(more);
        Running::start(&args, &self.complaints)
    }

    fn checkpointer(&self) -> Running {
        let pool = self.pool.display().to_string();
        Running::start(&["checkpointer", "--wait", "60", "--medium", MEDIUM, &pool], &self.complaints)
    }

    /// Everything that was said is there, and nothing but what may be.
    fn check(&mut self, round: usize, before: u64) {
        if !self.pool.join("superblock").exists() {
            assert_eq!(self.acked.total(), 0, "round {round}: the pool is gone");
            return;
        }
        process::verify(&self.pool, MEDIUM);
        let (pool, acked) = (self.pool.display().to_string(), self.acked.text());
        let out = process::run(&["tx-check", &pool, "--medium", MEDIUM, "--acked", &acked]);
        let (said, complained) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        if self.acked.total() == 0 && complained.contains("the structure is not in it") {
            return;
        }
        assert!(out.status.success(), "round {round}: {}: {complained}", out.status);
        // The next process goes on from what is there.
        let mut words = said.split_whitespace().skip(1);
        let seqs = words.next().expect("what each thread did last").split(',').map(|seq| seq.parse().expect("a number"));
        self.acked.0.iter().zip(seqs).for_each(|(acked, seq)| acked.store(seq, Relaxed));
        let replayed = said.split("records_replayed=").nth(1).and_then(|n| n.trim().parse::<u64>().ok());
        self.replayed += replayed.expect("records replayed");
        self.returned += self.acked.total() - before;
    }

    /// The socket that a program left, where it met its checkpointer.
    fn left_behind(&self) -> Option<PathBuf> {
        Some(self.pool.join("checkpointer")).filter(|socket| socket.exists())
    }

    fn summary(&self) -> String {
        assert!(self.returned > 0, "nothing was at stake");
        format!("{} transactions returned, {} records replayed", self.returned, self.replayed)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let kept = self.dir.take().expect("there until dropped").keep();
            eprintln!("kill test of transactions FAILED: TOWA_SEED={}; the pool is kept in {}", self.seed, kept.display());
        }
    }
}

/// Runs the rounds of one kind.
fn run(kind: &str, salt: u64, mut round: impl FnMut(&mut Pool, &mut SmallRng)) {
    let (seed, rounds) = (seed(), rounds().max(2));
    println!("kill test of transactions, {kind}: {rounds} rounds, TOWA_SEED={seed}");
    let (mut pool, mut rng) = (Pool::new(seed), SmallRng::seed_from_u64(seed ^ salt));
    for number in 0..rounds + 30 {
        // A slow machine may need some rounds until one of them gets far enough.
        if number >= rounds && pool.returned > 0 {
            break;
        }
        let before = pool.acked.total();
        round(&mut pool, &mut rng);
        pool.check(number, before);
        assert_eq!(pool.left_behind(), None, "round {number}: the socket of a dead program stayed");
    }
    println!("{kind}: {}", pool.summary());
}

/// Kills the program while it starts, now and then, else while it works.
fn kill_at_work(pool: &Pool, mut running: Running, rng: &mut SmallRng) {
    let following = pool.acked.follow(running.stdout.take().expect("piped"));
    if rng.random_bool(0.15) {
        running.kill_after(Duration::from_micros(rng.random_range(0..20_000)));
    } else {
        std::thread::sleep(Duration::from_micros(rng.random_range(10_000..180_000)));
        running.kill();
    }
    following.join().expect("reading does not panic");
}

#[test]
fn what_returned_survives_sigkill_of_the_program() {
    run("program", 1, |pool, rng| {
        let separate = rng.random_bool(0.3);
        let checkpointer = separate.then(|| pool.checkpointer());
        let running = pool.load(rng, if separate { &["--separate"] } else { &[] });
        kill_at_work(pool, running, rng);
        if rng.random_bool(0.2) && pool.pool.join("superblock").exists() {
            // Recovery is killed, too.
            let dir = pool.pool.display().to_string();
            Running::start(&["recover", &dir, "--medium", MEDIUM], &pool.complaints)
                .kill_after(Duration::from_micros(rng.random_range(0..15_000)));
        }
        // It finds out by itself; if it never met the program it still waits.
        drop(checkpointer);
    });
}

#[test]
fn what_returned_survives_sigkill_of_the_checkpointer_and_the_program_goes_on() {
    run("checkpointer", 2, |pool, rng| {
        let transactions = rng.random_range(300..3000).to_string();
        let mut running = pool.load(rng, &["--separate", "--transactions", &transactions]);
        let following = pool.acked.follow(running.stdout.take().expect("piped"));
        let began = Instant::now();
        while !following.is_finished() {
            let checkpointer = pool.checkpointer();
            std::thread::sleep(Duration::from_micros(rng.random_range(1000..60_000)));
            checkpointer.kill_after(Duration::ZERO);
            assert!(began.elapsed() < Duration::from_secs(60), "the program stands still: {}", pool.acked.text());
        }
        following.join().expect("reading does not panic");
        // It closed its standard output when it was done; now it ends, and well.
        running.end();
    });
}

#[test]
fn what_returned_survives_sigkill_of_both() {
    run("both", 3, |pool, rng| {
        let running = pool.load(rng, &["--separate"]);
        let checkpointer = pool.checkpointer();
        if rng.random() {
            kill_at_work(pool, running, rng);
            checkpointer.kill_after(Duration::from_micros(rng.random_range(0..3000)));
        } else {
            let at = Duration::from_micros(rng.random_range(5000..150_000));
            let dying = std::thread::spawn(move || checkpointer.kill_after(at));
            kill_at_work(pool, running, rng);
            dying.join().expect("killing does not panic");
        }
    });
}

#[test]
fn a_stopped_checkpointer_is_noticed_and_killing_it_is_enough() {
    let mut pool = Pool::new(seed());
    let mut rng = SmallRng::seed_from_u64(4);
    let mut running = pool.load(&mut rng, &["--separate"]);
    let following = pool.acked.follow(running.stdout.take().expect("piped"));
    let mut checkpointer = pool.checkpointer();
    assert!(checkpointer.first_line().starts_with("ready: "));
    checkpointer.signal(libc::SIGSTOP);
    let began = Instant::now();
    while !running.complaints().contains("is stopped") {
        assert!(began.elapsed() < Duration::from_secs(60) && !following.is_finished(), "no warning: {}", running.complaints());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(running.complaints().contains("kill -CONT"), "{}", running.complaints());
    let stood_at = pool.acked.total();
    checkpointer.kill_after(Duration::ZERO);
    // More than what had returned and was not read here yet.
    while pool.acked.total() < stood_at + 20_000 {
        assert!(
            began.elapsed() < Duration::from_secs(120) && !following.is_finished(),
            "it does not go on: {}",
            running.complaints()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    running.kill();
    following.join().expect("reading does not panic");
    pool.check(0, 0);
    assert_eq!(pool.left_behind(), None);
}
