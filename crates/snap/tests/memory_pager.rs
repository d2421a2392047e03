//! A process whose memory is filled as it touches it sees what the checkpoint holds, and nothing else, whatever it does meanwhile.

mod target;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rand::prelude::*;
use target::{PAGE, PRIVATE, RW, Target};
use towa_snap::memory::pager::Report;
use towa_snap::memory::{Pager, Source};
use towa_snap::pages::{PageSet, Pages};
use towa_snap::{Error, Result};

/// Page p is full of `byte_of(p)`.
struct Striped {
    pages: PageSet,
    /// Cannot be read.
    damaged: Option<u64>,
    reads: Cell<u64>,
}

fn byte_of(page: u64) -> u8 {
    (page % 251) as u8 + 1
}

impl Source for Striped {
    fn read(&self, first_page: u64, into: &mut [u8]) -> Result<()> {
        self.reads.set(self.reads.get() + 1);
        for (page, bytes) in (first_page..).zip(into.chunks_mut(PAGE as usize)) {
            assert!(self.pages.contains(page), "nothing was ever at {page:x}");
            if Some(page) == self.damaged {
                return Err(Error::NotUsable { path: "checkpoint".into(), what: "damaged on purpose".into() });
            }
            bytes.fill(byte_of(page));
        }
        Ok(())
    }

    fn pages(&self) -> &PageSet {
        &self.pages
    }
}

/// A target with a mapping that is lazily filled.
struct Lazy {
    target: Target,
    /// First page of the mapping.
    first: u64,
    fill: Arc<AtomicBool>,
    pager: Option<JoinHandle<Result<Report>>>,
}

impl Lazy {
    /// `pages` pages, of which those in `content` (relative numbers) have content.
    fn start(pages: u64, content: impl IntoIterator<Item = Pages>, damaged: Option<u64>) -> Lazy {
        let mut target = Target::start();
        let uffd = target.userfaultfd(0);
        let first = target.map(pages, RW, PRIVATE) / PAGE;
        let fill = Arc::new(AtomicBool::new(false));
        let (pid, filling) = (target.pid(), fill.clone());
        let content: PageSet = content.into_iter().map(|range| first + range.start..first + range.end).collect();
        let (ready, wait) = std::sync::mpsc::channel();
        let pager = std::thread::spawn(move || {
            let source = Striped { pages: content, damaged: damaged.map(|page| first + page), reads: Cell::new(0) };
            let range = first..first + pages;
            let mut pager = Pager::new(uffd, pid, &[range], source)?;
            ready.send(()).unwrap();
            pager.run(&filling)
        });
        wait.recv().unwrap();
        Lazy { target, first, fill, pager: Some(pager) }
    }

    fn at(&self, page: u64) -> u64 {
        (self.first + page) * PAGE
    }

    /// What page `page` of the checkpoint holds.
    fn content(&self, page: u64) -> i64 {
        i64::from(byte_of(self.first + page))
    }

    /// Fills the rest, and waits for the pager's end.
    fn finish(&mut self) -> Report {
        self.fill.store(true, Ordering::Relaxed);
        self.pager.take().unwrap().join().unwrap().unwrap()
    }
}

#[test]
fn touched_pages_are_the_sources() {
    let mut lazy = Lazy::start(1000, [0..100, 500..800], None);
    for page in [0, 99, 100, 499, 500, 640, 799, 800, 999] {
        let has = page < 100 || (500..800).contains(&page);
        assert_eq!(lazy.target.byte(lazy.at(page) + 77), if has { lazy.content(page) } else { 0 }, "page {page}");
    }
    // Written before it is read, and by a system call.
    lazy.target.write(lazy.at(510), 1, 7);
    assert_eq!(lazy.target.byte(lazy.at(510) + 1), lazy.content(510));
    let size = 3 * PAGE;
    lazy.target.ok(libc::SYS_getrandom, [lazy.at(550), size, 0]);
    assert_eq!(lazy.target.byte(lazy.at(553)), lazy.content(553));
    let report = lazy.finish();
    assert!(report.filled_pages == 400 && report.faults >= 8 && report.poisoned_pages == 0, "{report:?}");
    for page in [3, 98, 509, 511, 700] {
        assert_eq!(lazy.target.byte(lazy.at(page)), lazy.content(page));
    }
    assert_eq!(lazy.target.byte(lazy.at(510)), 7);
}

#[test]
fn dropped_pages_are_zeros() {
    let mut lazy = Lazy::start(200, Some(0..200), None);
    lazy.target.byte(lazy.at(20)); // its neighbours come along
    lazy.target.madvise(lazy.at(10), 100, libc::MADV_DONTNEED);
    for page in [10, 20, 25, 60, 109] {
        assert_eq!(lazy.target.byte(lazy.at(page)), 0, "page {page}");
    }
    let report = lazy.finish();
    assert_eq!(lazy.target.byte(lazy.at(9)), lazy.content(9));
    assert_eq!(lazy.target.byte(lazy.at(110)), lazy.content(110));
    assert_eq!(lazy.target.byte(lazy.at(50)), 0);
    assert!(report.filled_pages <= 116, "{report:?}");
}

#[test]
fn moved_and_unmapped_pages() {
    let mut lazy = Lazy::start(200, Some(0..200), None);
    let to = 0x610000000000;
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
    lazy.target.ok(libc::SYS_mremap, [lazy.at(50), 50 * PAGE, 50 * PAGE, flags, to]);
    assert_eq!(lazy.target.byte(to + 7 * PAGE), lazy.content(57));
    assert_eq!(lazy.target.byte(lazy.at(60)), -1);
    // Grown where they are now: zeros behind.
    lazy.target.ok(libc::SYS_mremap, [to, 50 * PAGE, 60 * PAGE, 0]);
    assert_eq!(lazy.target.byte(to + 55 * PAGE), 0);
    // Something else in the place of some.
    let fixed = PRIVATE | libc::MAP_FIXED as u64;
    lazy.target.ok(libc::SYS_mmap, [lazy.at(120), 10 * PAGE, RW, fixed, u64::MAX, 0]);
    lazy.target.ok(libc::SYS_munmap, [lazy.at(140), 10 * PAGE]);
    assert_eq!(lazy.target.byte(lazy.at(125)), 0);
    assert_eq!(lazy.target.byte(lazy.at(145)), -1);
    // Split into several mappings: groups of neighbours lie across their borders.
    lazy.target.ok(libc::SYS_mprotect, [lazy.at(163), 5 * PAGE, 0]);
    assert_eq!(lazy.target.byte(lazy.at(162)), lazy.content(162));
    let report = lazy.finish();
    assert_eq!(report.filled_pages, 180, "{report:?}");
    lazy.target.ok(libc::SYS_mprotect, [lazy.at(163), 5 * PAGE, RW]);
    for page in [0, 49, 100, 119, 130, 139, 150, 163, 167, 199] {
        assert_eq!(lazy.target.byte(lazy.at(page)), lazy.content(page), "page {page}");
    }
    for page in [0, 30, 49] {
        assert_eq!(lazy.target.byte(to + page * PAGE), lazy.content(50 + page));
    }
}

#[test]
fn children_have_their_own() {
    let mut lazy = Lazy::start(300, Some(0..300), None);
    lazy.target.byte(lazy.at(0));
    lazy.target.write(lazy.at(100), 1, 55);
    lazy.target.madvise(lazy.at(200), 20, libc::MADV_DONTNEED);
    lazy.target.ask("f"); // the child takes the commands now
    for depth in 0..2 {
        assert_eq!(lazy.target.byte(lazy.at(1 + depth)), lazy.content(1 + depth));
        assert_eq!(lazy.target.byte(lazy.at(100)), 55);
        assert_eq!(lazy.target.byte(lazy.at(150 + depth * 20)), lazy.content(150 + depth * 20));
        assert_eq!(lazy.target.byte(lazy.at(205)), 0);
        lazy.target.madvise(lazy.at(280 + depth), 1, libc::MADV_DONTNEED);
        assert_eq!(lazy.target.byte(lazy.at(280 + depth)), 0);
        if depth == 0 {
            lazy.target.ask("f"); // and a grandchild
        }
    }
    let report = lazy.finish();
    assert_eq!(report.children, 2, "{report:?}");
    // All three are complete.
    for (who, dropped) in [("grandchild", [280, 281]), ("child", [280, 280]), ("parent", [205, 205])] {
        for page in [10, 60, 190, 290] {
            assert_eq!(lazy.target.byte(lazy.at(page)), lazy.content(page), "{who}");
        }
        for page in dropped {
            assert_eq!(lazy.target.byte(lazy.at(page)), 0, "{who}");
        }
        assert_eq!(lazy.target.byte(lazy.at(100)), 55, "{who}");
        if who != "parent" {
            lazy.target.tell("q");
            // Its parent is back from waiting for it, and answers.
            lazy.target.answer();
        }
    }
    assert_eq!(lazy.target.byte(lazy.at(281)), lazy.content(281), "the grandchild's memory is its own");
}

#[test]
fn a_damaged_page_is_no_zeros() {
    let mut lazy = Lazy::start(100, Some(0..100), Some(33));
    assert_eq!(lazy.target.byte(lazy.at(32)), lazy.content(32));
    assert_eq!(lazy.target.byte(lazy.at(33)), -1);
    let report = lazy.finish();
    assert_eq!((report.poisoned_pages, report.filled_pages), (1, 99));
    assert_eq!(lazy.target.byte(lazy.at(33)), -1);
    assert_eq!(lazy.target.byte(lazy.at(34)), lazy.content(34));
}

#[test]
fn a_pager_ends_with_its_process() {
    let mut lazy = Lazy::start(100_000, Some(0..100_000), None);
    lazy.target.byte(lazy.at(5));
    drop(lazy.target);
    lazy.fill.store(true, Ordering::Relaxed);
    let report = lazy.pager.take().unwrap().join().unwrap().unwrap();
    assert!(report.filled_pages < 100_000);
}

/// Pages are touched, dropped, moved and unmapped, and children forked, while the rest is filled.
#[test]
fn at_random_under_way() {
    let seed = std::env::var("TOWA_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(|| u64::from(std::process::id()));
    println!("TOWA_SEED={seed}");
    for seed in seed..seed + 8 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let pages = 4000;
        let mut lazy = Lazy::start(pages, [0..1500, 1600..1601, 1700..4000], None);
        // What each page of the target's memory must hold; nothing if it is not mapped.
        let has = |page: &u64| *page < 1500 || *page == 1600 || *page >= 1700;
        let mut model: BTreeMap<u64, i64> =
            (0..pages).map(|page| (lazy.at(page), if has(&page) { lazy.content(page) } else { 0 })).collect();
        let mut free = 0x620000000000;
        let mut children = 0;
        for step in 0..150 {
            if step == 20 {
                lazy.fill.store(true, Ordering::Relaxed);
            }
            let places: Vec<u64> = model.keys().copied().collect();
            let from = rng.random_range(0..places.len());
            // A run of pages that lie behind one another.
            let most = rng.random_range(1..200);
            let run: Vec<u64> =
                places[from..].iter().zip(0..most).filter(|(at, n)| **at == places[from] + n * PAGE).map(|(at, _)| *at).collect();
            let (at, count) = (run[0], run.len() as u64);
            match rng.random_range(0..12) {
                0 | 1 => {
                    lazy.target.madvise(at, count, libc::MADV_DONTNEED);
                    model.extend(run.iter().map(|at| (*at, 0)));
                }
                2 | 3 => {
                    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
                    // Only within one mapping: the kernel moves no others before 6.17.
                    if lazy.target.call(libc::SYS_mremap, [at, count * PAGE, count * PAGE, flags, free]) > 0 {
                        for (n, old) in (0..).zip(&run) {
                            let byte = model.remove(old).unwrap();
                            model.insert(free + n * PAGE, byte);
                        }
                    }
                    free += (count + rng.random_range(0..2)) * PAGE;
                }
                4 => {
                    lazy.target.ok(libc::SYS_munmap, [at, count * PAGE]);
                    model.retain(|at, _| !run.contains(at));
                }
                5 if children < 6 => {
                    children += 1;
                    lazy.target.ask("f");
                }
                6 => {
                    lazy.target.write(at, count, 3);
                    for (n, at) in (0..).zip(&run) {
                        model.insert(*at, (3 + n) % 256);
                    }
                }
                _ => {
                    for _ in 0..5 {
                        let at = *run.choose(&mut rng).unwrap();
                        assert_eq!(lazy.target.byte(at), model[&at], "seed {seed}, step {step}, {at:x}");
                    }
                }
            }
            std::thread::sleep(Duration::from_micros(rng.random_range(0..200)));
        }
        lazy.finish();
        for (at, byte) in &model {
            assert_eq!(lazy.target.byte(*at), *byte, "seed {seed}, {at:x}");
        }
    }
}

/// Prints how fast memory is filled, and how long a touch takes while it is (the way through two pipes included).
#[test]
fn how_long_filling_takes() {
    let pages = 64 << 8; // 64 MB
    let mut lazy = Lazy::start(pages, Some(0..pages), None);
    let touch = |lazy: &mut Lazy, page: u64| {
        let began = Instant::now();
        assert_eq!(lazy.target.byte(lazy.at(page)), lazy.content(page));
        began.elapsed()
    };
    let first = touch(&mut lazy, 1000);
    let again = touch(&mut lazy, 1000);
    let began = Instant::now();
    lazy.fill.store(true, Ordering::Relaxed);
    let meanwhile: Vec<Duration> = (0..20).map(|n| touch(&mut lazy, pages - 1 - n * 40)).collect();
    lazy.finish();
    println!(
        "64 MB filled in {:?}; a touch: first {first:?}, of a page that is there {again:?}, while filling {meanwhile:?}",
        began.elapsed()
    );
}
