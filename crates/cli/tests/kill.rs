//! The kill test: real processes are killed with SIGKILL at random moments, and what they had promised must be there afterwards.
//!
//! ```text
//!   vm-load ──"ACK n"──► test            transactions that check themselves; after each kill, vm-check proves the structure
//!   serve ◄──sockets──► clients          self-checking items; after each kill, what is read back must be a prefix of what each client
//!                                        did, with everything that a barrier had acknowledged
//! ```
//!
//! A third part does the same to a server that is full, with values whose sizes drift: what is left is whole, and none of it is older
//! than what was acknowledged.
//!
//! What must always hold, after every kill: no acknowledged-durable write is lost; no item is torn; nothing lost is older than an interval and
//! the checkpoint that was cut short; `towa verify` finds the pool sound; the items' count is exact. Kills hit start-up and recovery too.
//!
//! One of the server's clients is pymemcache, where Python has it.
//!
//! TOWA_KILL_ROUNDS sets the number of rounds (200), TOWA_SEED repeats one (the moments repeat, the machine's timing does not). A soak
//! is the same test with more rounds. A failure prints the seed and keeps the pool.

#[path = "kill/age.rs"]
mod age;
#[path = "kill/client.rs"]
mod client;
#[path = "kill/evictions.rs"]
mod evictions;
#[path = "kill/history.rs"]
mod history;
#[path = "kill/load.rs"]
mod load;
#[path = "kill/process.rs"]
mod process;
#[path = "kill/serve.rs"]
mod serve;
#[path = "kill/third_party.rs"]
mod third_party;

use std::path::{Path, PathBuf};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

fn rounds() -> usize {
    std::env::var("TOWA_KILL_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(200)
}

fn seed() -> u64 {
    let given = std::env::var("TOWA_SEED").ok().and_then(|text| text.trim().parse().ok());
    given.unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().expect("a clock after 1970").as_nanos() as u64 % 1_000_000_000)
}

/// A directory for pools on one medium, removed when all went well, kept and named when not.
struct Place {
    medium: &'static str,
    dir: Option<tempfile::TempDir>,
    seed: u64,
}

impl Place {
    /// On `medium`: memory where there is a tmpfs, a disk's file system where the build is.
    fn on(medium: &'static str, seed: u64) -> Place {
        let shm = Path::new("/dev/shm");
        let parent = if medium == "ram" && shm.is_dir() { shm } else { Path::new(env!("CARGO_TARGET_TMPDIR")) };
        let dir = tempfile::Builder::new().prefix("towa-kill-").tempdir_in(parent).expect("a temporary directory");
        Place { medium, dir: Some(dir), seed }
    }

    fn path(&self) -> PathBuf {
        self.dir.as_ref().expect("there until dropped").path().to_owned()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let kept = self.dir.take().expect("there until dropped").keep();
            eprintln!("kill test FAILED on {}: TOWA_SEED={}; the pool is kept in {}", self.medium, self.seed, kept.display());
        }
    }
}

const MEDIA: [&str; 2] = ["ram", "file"];

#[test]
fn acknowledged_transactions_survive_sigkill() {
    let (seed, rounds) = (seed(), (rounds() * 9 / 20).max(2));
    println!("kill test, transactions: {rounds} rounds, TOWA_SEED={seed}");
    for (index, medium) in MEDIA.into_iter().enumerate() {
        let place = Place::on(medium, seed);
        let mut rng = SmallRng::seed_from_u64(seed ^ index as u64);
        let mut pool = load::Rounds::new(&place.path(), medium);
        let share = rounds * (index + 1) / MEDIA.len() - rounds * index / MEDIA.len();
        // A slow machine may need some rounds until one of them gets as far as an acknowledgement.
        for round in 0..share + 30 {
            if round >= share && pool.has_acknowledged() {
                break;
            }
            pool.round(&mut rng, round);
        }
        println!("{medium}: {}", pool.summary());
    }
}

#[test]
fn acknowledged_writes_survive_sigkill_of_the_server() {
    let (seed, rounds) = (seed(), rounds().saturating_sub(rounds() * 9 / 20).max(2));
    println!("kill test, server: {rounds} rounds, TOWA_SEED={seed}");
    for (index, medium) in MEDIA.into_iter().enumerate() {
        let place = Place::on(medium, seed);
        let mut rng = SmallRng::seed_from_u64(seed.rotate_left(32) ^ index as u64);
        let mut server = serve::Rounds::new(&place.path(), medium, &mut rng);
        let share = rounds * (index + 1) / MEDIA.len() - rounds * index / MEDIA.len();
        for round in 0..share + 30 {
            if round >= share && server.has_acknowledged() {
                break;
            }
            server.round(rng.random(), round);
        }
        println!("{medium}: {}", server.summary());
    }
}

#[test]
fn what_a_full_server_acknowledged_is_never_undone() {
    let (seed, rounds) = (seed(), (rounds() / 10).max(4));
    println!("kill test, full server: {rounds} rounds, TOWA_SEED={seed}");
    for (index, medium) in MEDIA.into_iter().enumerate() {
        let place = Place::on(medium, seed);
        let mut rng = SmallRng::seed_from_u64(seed.rotate_left(16) ^ index as u64);
        let mut server = evictions::Rounds::new(&place.path(), medium);
        (0..rounds / MEDIA.len() + 1).for_each(|round| server.round(&mut rng, round));
        println!("{medium}: {}", server.summary());
    }
}
