//! How fast the B+-tree is: inserts into an empty tree and into a full one, then lookups, by threads.
//!
//! `cargo run --release -p towa-tree --example bptree_speed -- [millions of keys] [threads] [rounds of lookups] [paper|fptree]`
//!
//! With `paper`: the tree of the NV-HTM paper instead; with `fptree`: the FPTree. What each operation takes of a core is told of the
//! threads that ask for it, and of all of the process, the checkpointer included: that is what counts where others use the cores, too.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use towa_tree::{BpTree, FpTree, OrderedMap, PaperTree, fptree};
use towa_tx::{Options, Pool};

fn key(n: u64) -> u64 {
    // SplitMix64: scattered, no two the same.
    let mut z = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Nanoseconds that this thread has run, where the kernel tells.
fn ran() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

/// Nanoseconds that this process has run.
fn all_ran() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills in what is passed.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Operations that a thread takes at a time.
const FEW: u64 = 512;

/// Gives a thread its next operations: from, to.
type Take<'t> = dyn Fn() -> Option<(u64, u64)> + Sync + 't;

/// Millions a second, and nanoseconds of processor time for each.
fn each(threads: u64, count: u64, work: impl Fn(&Take<'_>) + Sync, drain: impl Fn()) -> String {
    // Taken a few at a time, not a part for each: where the checkpointer shares a core with one thread, the other need not wait in the end.
    let (began, process, all, next) = (Instant::now(), all_ran(), AtomicU64::new(0), AtomicU64::new(0));
    let take = || Some(next.fetch_add(FEW, Relaxed)).filter(|from| *from < count).map(|from| (from, (from + FEW).min(count)));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                work(&take);
                all.fetch_add(ran(), Relaxed);
            });
        }
    });
    drain();
    let rate = count as f64 / began.elapsed().as_secs_f64() / 1e6;
    let count = count.max(1);
    format!("{rate:.2} M/s, {} ns of a core each, {} with all else", all.into_inner() / count, (all_ran() - process) / count)
}

fn main() {
    let argument = |n: usize| std::env::args().nth(n).and_then(|a| a.parse::<f64>().ok());
    let (count, threads) = ((argument(1).unwrap_or(2.5) * 1e6) as u64, argument(2).unwrap_or(1.0) as u64);
    let lookups = argument(3).unwrap_or(1.0) as u64;
    let options = Options { heap_len: 1 << 30, lanes: 8, prefault: true, ..Options::default() };
    let pool = Pool::create_on(towa_media::RamMedium::anonymous(), &options).unwrap();
    let bptree = BpTree::<u64>::create(&pool, "map").unwrap();
    let paper = PaperTree::open_or_create(&pool, "paper").unwrap();
    let options = fptree::Options { len: 1 << 30, ..fptree::Options::default() };
    let fptree = FpTree::<u64>::create(towa_media::RamMedium::anonymous(), &options).unwrap();
    let tree: &dyn OrderedMap<u64> = match std::env::args().next_back().as_deref() {
        Some("paper") => &paper,
        Some("fptree") => &fptree,
        _ => &bptree,
    };
    let drain = || pool.checkpoint().unwrap();
    let insert = |first: u64, take: &Take<'_>| {
        let mut session = tree.session().unwrap();
        while let Some((from, to)) = take() {
            (first + from..first + to).for_each(|n| assert!(session.insert(&key(n), n).unwrap()));
        }
    };
    println!("{:?}, {threads} threads, {count} keys", pool.tm());
    println!("insert into empty:  {}", each(threads, count, |take| insert(0, take), drain));
    let before = pool.stats();
    println!("insert into full:   {}", each(threads, count, |take| insert(count, take), drain));
    let stats = pool.stats();
    println!("lookup:             {}", {
        each(
            threads,
            2 * count * lookups,
            |take| {
                let mut session = tree.session().unwrap();
                while let Some((from, to)) = take() {
                    (from..to).for_each(|n| assert_eq!(session.get(&key(n % (2 * count))).unwrap(), Some(n % (2 * count))));
                }
            },
            || (),
        )
    });
    println!(
        "depth {}, software commits {}, words an insert {:.1}, bytes {:.1}",
        bptree.depth().unwrap(),
        stats.commits_software - before.commits_software,
        (stats.log_words - before.log_words) as f64 / count as f64,
        (stats.log_bytes - before.log_bytes) as f64 / count as f64
    );
    println!("{:?}", stats);
}
