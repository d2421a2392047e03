//! The copy of a process's memory that is made while it runs is its memory.
//!
//! The target does everything that a process can do to its memory, by command or at random; the truth to compare with comes from another
//! place than the tracker's: `/proc/PID/pagemap`'s entries and `/proc/PID/mem`.

mod target;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rand::prelude::*;
use target::{PAGE, PRIVATE, RW, Target};
use towa_snap::memory::maps::{self, Kept, Mapping};
use towa_snap::memory::{FrozenRound, Held, Limits, Method, Phase, Reader, Round, Sink, Tracker, precopy};
use towa_snap::pages::PageSet;
use towa_snap::{Error, Result};

const USER_MODE_ONLY: u64 = 1;
const MADV_GUARD_INSTALL: i32 = 102;
const MADV_GUARD_REMOVE: i32 = 103;

/// A copy of a memory.
#[derive(Default)]
struct Model(BTreeMap<u64, Vec<u8>>);

impl Sink for Model {
    fn write(&mut self, first_page: u64, bytes: &[u8]) -> Result<()> {
        self.0.extend((first_page..).zip(bytes.chunks(PAGE as usize).map(<[u8]>::to_vec)));
        Ok(())
    }

    fn forget(&mut self, pages: &PageSet) -> Result<()> {
        for range in pages.ranges() {
            let gone: Vec<u64> = self.0.range(range.clone()).map(|(page, _)| *page).collect();
            gone.iter().for_each(|page| drop(self.0.remove(page)));
        }
        Ok(())
    }
}

/// A target with a tracker and the copy that is kept of it.
struct Followed {
    target: Target,
    tracker: Tracker,
    reader: Reader,
    held: Held,
    frozen: FrozenRound,
    copy: Model,
}

impl Followed {
    fn start() -> Followed {
        let mut target = Target::start();
        let uffd = target.userfaultfd(USER_MODE_ONLY);
        Followed::of(target, Method::WriteProtect(uffd))
    }

    fn of(target: Target, method: Method) -> Followed {
        let tracker = Tracker::new(target.pid(), method).unwrap();
        let reader = Reader::open(target.pid()).unwrap();
        Followed { target, tracker, reader, held: Held::default(), frozen: FrozenRound::prepare(8192), copy: Model::default() }
    }

    /// A whole checkpoint: rounds, the one that stands still, and the proof that the copy is the memory.
    fn checkpoint(&mut self, limits: Limits) -> (Vec<Round>, Round) {
        let rounds = precopy(&mut self.tracker, &self.reader, limits, &mut self.held, &mut self.copy, &mut |_, _| ()).unwrap();
        (rounds, self.frozen_round(Phase::Last))
    }

    fn frozen_round(&mut self, phase: Phase) -> Round {
        self.target.stop();
        let mappings = maps::read(self.target.pid()).unwrap();
        let awake = self.tracker.wake_helpers();
        let round = self.frozen.copy(&mut self.tracker, &self.reader, &mappings, phase).unwrap();
        drop(awake);
        self.held.hand_over(&mut self.copy).unwrap();
        self.frozen.hand_over(&mut self.copy).unwrap();
        self.compare(&mappings);
        self.target.resume();
        round
    }

    /// Changes since the last call, into the copy.
    fn changes(&mut self) -> Round {
        precopy(
            &mut self.tracker,
            &self.reader,
            Limits { rounds: 1, ..Limits::default() },
            &mut self.held,
            &mut self.copy,
            &mut |_, _| (),
        )
        .unwrap()[0]
    }

    /// Panics unless the copy is the memory of the target, which stands still.
    fn compare(&self, mappings: &[Mapping]) {
        let pid = self.target.pid();
        let open = |name: &str| File::open(format!("/proc/{pid}/{name}")).unwrap();
        let (pagemap, mem) = (open("pagemap"), open("mem"));
        let mut kept = BTreeSet::new();
        for mapping in mappings {
            let Some(kind) = mapping.kept() else { continue };
            let mut entries = vec![0u8; ((mapping.pages.end - mapping.pages.start) * 8) as usize];
            pagemap.read_exact_at(&mut entries, mapping.pages.start * 8).unwrap();
            let in_copy: Vec<u64> = self.copy.0.range(mapping.pages.clone()).map(|(page, _)| *page).collect();
            let there = mapping.pages.clone().zip(entries.chunks(8)).filter_map(|(page, entry)| {
                let entry = u64::from_ne_bytes(entry.try_into().unwrap());
                let own = entry >> 62 != 0 && (kind != Kept::OwnCopies || entry >> 61 & 1 == 0);
                (own || kind == Kept::SharedAnonymous).then_some(page)
            });
            let pages: BTreeSet<u64> = in_copy.iter().copied().chain(there).collect();
            let mut truth = vec![0; PAGE as usize];
            for page in pages {
                let entry = &entries[((page - mapping.pages.start) * 8) as usize..][..8];
                let entry = u64::from_ne_bytes(entry.try_into().unwrap());
                let at = format!("page {page:x} of {mapping:x?} (pagemap {entry:x})");
                let read = mem.read_at(&mut truth, page * PAGE);
                if kind == Kept::OwnCopies && is_the_files_and_armed(mapping, page, entry, &truth) {
                    println!(
                        "{at}: its thread was stopped between the two faults of a write, which the tracker does not see (see there)"
                    );
                    continue;
                }
                match (read, self.copy.0.get(&page)) {
                    (Ok(4096), Some(copy)) => assert!(*copy == truth, "{at}: {:?} {:?}", sample(copy), sample(&truth)),
                    (Ok(4096), None) => assert!(
                        truth.iter().all(|byte| *byte == 0) && kind != Kept::OwnCopies,
                        "{at} is not in the copy: {:?}",
                        sample(&truth)
                    ),
                    (_, copy) => assert!(copy.is_none(), "{at} cannot be read, and is in the copy"),
                }
            }
            kept.extend(in_copy);
        }
        let foreign: Vec<u64> = self.copy.0.keys().copied().filter(|page| !kept.contains(page)).collect();
        assert!(foreign.is_empty(), "in the copy, and not mapped: {foreign:x?}");
        assert_eq!(self.tracker.content().count(), self.copy.0.len() as u64, "what the tracker says the copy holds");
    }
}

/// Whether a page of the target's own in a mapping of its file holds what the file does, and is armed: the one change that the tracker
/// says it does not see. The file holds the numbers from 0 on.
fn is_the_files_and_armed(mapping: &Mapping, page: u64, entry: u64, bytes: &[u8]) -> bool {
    const ARMED: u64 = 1 << 57;
    let first = (mapping.offset + (page - mapping.pages.start) * PAGE) / 4;
    let of_file = bytes.chunks(4).zip(first..).all(|(found, number)| found == (number as u32).to_ne_bytes());
    mapping.name.contains("memfd:content") && entry & ARMED != 0 && of_file
}

fn sample(bytes: &[u8]) -> Vec<(usize, u8)> {
    bytes.iter().copied().enumerate().filter(|(_, byte)| *byte != 0).take(8).collect()
}

fn seed() -> u64 {
    let seed = std::env::var("TOWA_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(|| u64::from(std::process::id()));
    println!("TOWA_SEED={seed}");
    seed
}

/// Whatever the target does, the copy is its memory at the moment of the last round.
#[test]
fn at_random_the_copy_is_the_memory() {
    let (first, rounds) = (seed(), std::env::var("TOWA_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(40));
    for seed in first..first + 3 {
        println!("seed {seed}");
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut followed = Followed::start();
        followed.target.tell(&format!("z {seed}"));
        for _ in 0..rounds {
            std::thread::sleep(Duration::from_micros(rng.random_range(0..3000)));
            let limits = Limits { small_pages: rng.random_range(0..50), rounds: rng.random_range(0..5) };
            followed.checkpoint(limits);
            if rng.random_ratio(1, 50) {
                followed.tracker.start_over();
                followed.copy = Model::default();
            }
        }
    }
}

/// The same for processes that are armed only while they stand still, and without tracking at all.
#[test]
fn at_random_without_rounds() {
    let seed = seed();
    let mut armed_late = Followed::start();
    let mut untracked = Followed::of(Target::start(), Method::Everything);
    for followed in [&mut armed_late, &mut untracked] {
        followed.target.tell(&format!("z {seed}"));
        for _ in 0..40 {
            std::thread::sleep(Duration::from_millis(1));
            followed.frozen_round(Phase::Only);
        }
    }
}

#[test]
fn only_written_pages_are_told() {
    let mut followed = Followed::start();
    let at = followed.target.map(1000, RW, PRIVATE);
    followed.target.write(at, 1000, 1);
    assert!(followed.changes().written_pages >= 1000);
    followed.changes();
    followed.target.write(at + 10 * PAGE, 3, 7);
    let round = followed.changes();
    // The target's own stack and heap take part.
    assert!((3..20).contains(&round.written_pages), "{round:?}");
    assert_eq!(round.fresh_mappings, 0);
    followed.checkpoint(Limits::default());
}

#[test]
fn dropped_pages_are_told() {
    let mut followed = Followed::start();
    let at = followed.target.map(100, RW, PRIVATE);
    followed.target.write(at, 100, 1);
    followed.checkpoint(Limits::default());
    followed.target.madvise(at, 50, libc::MADV_DONTNEED);
    followed.target.write(at + 10 * PAGE, 1, 9); // one of them comes back
    followed.target.byte(at + 20 * PAGE); // one is looked at, and is the page of zeros
    let round = followed.changes();
    assert_eq!(round.dropped_pages, 49, "{round:?}");
    followed.checkpoint(Limits::default());
    // Dropped, written, told, and dropped again.
    followed.target.madvise(at, 100, libc::MADV_DONTNEED);
    assert_eq!(followed.changes().dropped_pages, 51);
    followed.checkpoint(Limits::default());
}

#[test]
fn another_mapping_in_the_same_place() {
    let mut followed = Followed::start();
    let at = followed.target.map(10, RW, PRIVATE);
    followed.target.write(at, 10, 1);
    followed.checkpoint(Limits::default());
    let fixed = libc::MAP_FIXED as u64;
    followed.target.ok(libc::SYS_mmap, [at + 2 * PAGE, 3 * PAGE, RW, PRIVATE | fixed, u64::MAX, 0]);
    followed.target.write(at + 3 * PAGE, 1, 5);
    let round = followed.changes();
    assert_eq!((round.dropped_pages, round.fresh_mappings), (2, 1), "{round:?}");
    followed.checkpoint(Limits::default());
    followed.target.ok(libc::SYS_munmap, [at, 10 * PAGE]);
    assert_eq!(followed.changes().dropped_pages, 8);
    followed.checkpoint(Limits::default());
}

#[test]
fn moved_by_mremap() {
    let mut followed = Followed::start();
    let at = followed.target.map(64, RW, PRIVATE);
    followed.target.write(at, 64, 1);
    followed.checkpoint(Limits::default());
    let to = 0x610000000000;
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
    followed.target.ok(libc::SYS_mremap, [at, 64 * PAGE, 64 * PAGE, flags, to]);
    let round = followed.changes();
    assert_eq!((round.dropped_pages, round.fresh_mappings), (64, 1), "{round:?}");
    assert!(round.written_pages >= 64);
    followed.target.write(to, 1, 9);
    assert!(followed.changes().written_pages < 20);
    followed.checkpoint(Limits::default());
    // Grown where it is: it is still the same.
    followed.target.ok(libc::SYS_mremap, [to, 64 * PAGE, 80 * PAGE, 0]);
    followed.target.write(to + 70 * PAGE, 1, 9);
    let round = followed.changes();
    assert!(round.fresh_mappings == 0 && round.written_pages < 20, "{round:?}");
    followed.checkpoint(Limits::default());
}

#[test]
fn heap_and_stack_grow() {
    let mut followed = Followed::start();
    followed.checkpoint(Limits::default());
    let end = followed.target.ok(libc::SYS_brk, [0]);
    followed.target.ok(libc::SYS_brk, [end + 20 * PAGE]);
    followed.target.write(end, 20, 3);
    assert!(followed.changes().written_pages >= 20);
    followed.checkpoint(Limits::default());
    followed.target.ok(libc::SYS_brk, [end + 5 * PAGE]);
    assert!(followed.changes().dropped_pages >= 15);
    let (stack, below) = {
        let all = maps::read(followed.target.pid()).unwrap();
        let stack = all.iter().find(|mapping| mapping.name == "[stack]").unwrap().pages.clone();
        (stack.clone(), stack.start - 10)
    };
    followed.target.write(below * PAGE, stack.start - below, 3);
    assert!(followed.changes().written_pages >= 10);
    followed.checkpoint(Limits::default());
}

#[test]
fn memory_that_may_not_be_read() {
    let mut followed = Followed::start();
    let at = followed.target.map(30, RW, PRIVATE);
    followed.target.write(at, 30, 1);
    followed.target.ok(libc::SYS_mprotect, [at + 10 * PAGE, 10 * PAGE, 0]);
    followed.checkpoint(Limits::default());
    assert_eq!(followed.copy.0[&(at / PAGE + 15)][0], 16);
    // Split by mprotect, it is still known.
    let round = followed.changes();
    assert!(round.fresh_mappings == 0 && round.written_pages < 20, "{round:?}");
    followed.checkpoint(Limits::default());
}

#[test]
fn huge_pages() {
    let mut followed = Followed::start();
    let at = followed.target.map(2048, RW, PRIVATE).next_multiple_of(512 * PAGE);
    followed.target.madvise(at, 1024, libc::MADV_HUGEPAGE);
    followed.target.write(at, 1024, 1);
    assert!(followed.changes().written_pages >= 1024);
    followed.target.write(at + 100 * PAGE, 1, 77);
    let (rounds, frozen) = followed.checkpoint(Limits::default());
    assert!(rounds[0].written_pages + frozen.written_pages < 600, "{rounds:?} {frozen:?}");
    followed.target.madvise(at + 200 * PAGE, 700, libc::MADV_DONTNEED);
    followed.checkpoint(Limits::default());
    assert!(!followed.copy.0.contains_key(&(at / PAGE + 500)));
}

/// Portions of it are copied as soon as they are armed, and helpers look through it in the pause.
#[test]
fn much_memory_that_is_written_all_the_time() {
    const PAGES: u64 = 40_000;
    let mut followed = Followed::start();
    let at = followed.target.map(PAGES, RW, PRIVATE);
    followed.target.write(at, PAGES, 1);
    followed.checkpoint(Limits::default());
    followed.target.tell(&format!("d {at} {PAGES} 1500"));
    // On a busy machine it may not have had its turn between two looks: such a checkpoint shows nothing, and does not count.
    let (mut good, end) = (0, Instant::now() + Duration::from_secs(60));
    while good < 10 {
        std::thread::sleep(Duration::from_millis(20));
        let (rounds, last) = followed.checkpoint(Limits { small_pages: 0, rounds: 6 });
        println!("{} rounds, {} pages in the pause", rounds.len(), last.written_pages);
        good += u32::from(rounds.len() > 1 && last.written_pages > 0);
        assert!(Instant::now() < end, "it writes");
    }
}

/// What its portions told until then is out of date: it is told anew, whole.
#[test]
fn part_of_a_mapping_is_replaced_between_two_of_its_portions() {
    let mut followed = Followed::start();
    let at = followed.target.map(20_000, RW, PRIVATE);
    followed.target.write(at, 100, 1);
    followed.checkpoint(Limits::default());
    let mappings = maps::read(followed.target.pid()).unwrap();
    let (target, mut portions) = (&mut followed.target, 0);
    let mut told = |_: &PageSet| {
        if portions == 0 {
            let fixed = PRIVATE | libc::MAP_FIXED as u64;
            target.ok(libc::SYS_mmap, [at + 10_000 * PAGE, 10_000 * PAGE, RW, fixed, u64::MAX, 0]);
            target.write(at + 500 * PAGE, 1, 7);
        }
        portions += 1;
        Ok(())
    };
    let change = followed.tracker.changed_by_portions(&mappings, Phase::Running, &mut told).unwrap();
    assert_eq!((portions, change.fresh), (1, 1));
    assert!(change.written.contains(at / PAGE + 500) && !change.dropped.contains(at / PAGE + 500));
}

#[test]
fn a_large_reservation_costs_nothing() {
    let mut followed = Followed::start();
    let at = followed.target.map(16 << 20, RW, PRIVATE | libc::MAP_NORESERVE as u64); // 64 GB
    for part in 0..16 {
        followed.target.write(at + (part << 32), 4, 1);
    }
    let tables = |pid: i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmPTE:")).unwrap().trim().to_owned();
        line.trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let before = tables(followed.target.pid());
    for _ in 0..3 {
        followed.target.write(at + (3 << 32), 2, 7);
        followed.target.madvise(at + (4 << 32), 4, libc::MADV_DONTNEED);
        let round = followed.changes();
        println!("64 GB reserved: {round:?}");
    }
    followed.target.stop();
    let mappings = maps::read(followed.target.pid()).unwrap();
    let round = followed.frozen.copy(&mut followed.tracker, &followed.reader, &mappings, Phase::Last).unwrap();
    println!("64 GB reserved: {round:?}");
    let after = tables(followed.target.pid());
    assert!(after <= before + 64, "page tables grew from {before} to {after} kB");
    assert!(!followed.tracker.content().contains(at / PAGE + (4 << 20) + 1));
    assert!(followed.tracker.content().contains(at / PAGE + (5 << 20) + 1));
}

/// The marker that dropping an armed page leaves in a file mapping is not content, and its loss is seen.
#[test]
fn own_copies_of_file_pages() {
    let mut followed = Followed::start();
    let path = std::env::current_exe().unwrap();
    followed.copy = Model::default();
    let all = maps::read(followed.target.pid()).unwrap();
    let libc_data = all.iter().find(|mapping| mapping.name.contains("libc.so") && mapping.prot & libc::PROT_WRITE != 0);
    let at = libc_data.map(|mapping| mapping.pages.start).expect("the C library's data");
    followed.checkpoint(Limits::default());
    // Text of the target, patched: the page is its own from then on.
    let text =
        all.iter().find(|mapping| mapping.prot == libc::PROT_READ && mapping.inode != 0 && mapping.kept().is_some()).unwrap();
    let (page, count) = (text.pages.start, text.pages.end - text.pages.start);
    assert!(!followed.copy.0.contains_key(&page), "{path:?} {at:x}");
    followed.target.ok(libc::SYS_mprotect, [page * PAGE, count * PAGE, RW]);
    followed.target.write(page * PAGE + 9, 1, 66);
    followed.checkpoint(Limits::default());
    assert_eq!(followed.copy.0[&page][9], 66);
    followed.checkpoint(Limits::default());
    followed.target.madvise(page * PAGE, 1, libc::MADV_DONTNEED);
    followed.checkpoint(Limits::default());
    followed.target.byte(page * PAGE);
    followed.checkpoint(Limits::default());
    assert!(!followed.copy.0.contains_key(&page), "it is the file's again");
}

#[test]
fn shared_memory_without_a_name() {
    let mut followed = Followed::start();
    let shared = (libc::MAP_SHARED | libc::MAP_ANONYMOUS) as u64;
    let at = followed.target.map(64, RW, shared);
    followed.target.write(at, 32, 1);
    followed.checkpoint(Limits::default());
    assert_eq!(followed.copy.0[&(at / PAGE + 5)][0], 6);
    // Written and unmapped from the page table at once: it is still there.
    followed.target.write(at + 3 * PAGE, 1, 99);
    followed.target.madvise(at, 64, libc::MADV_DONTNEED);
    followed.checkpoint(Limits::default());
    assert_eq!(followed.copy.0[&(at / PAGE + 3)][0], 99);
    followed.target.madvise(at + 8 * PAGE, 8, libc::MADV_REMOVE);
    followed.checkpoint(Limits::default());
    assert!(!followed.copy.0.contains_key(&(at / PAGE + 9)));
    // Written through another mapping of it, which is there or gone when it is looked for.
    let twin = followed.target.ok(libc::SYS_mremap, [at, 0, 64 * PAGE, libc::MREMAP_MAYMOVE as u64]);
    followed.target.write(twin + 20 * PAGE, 1, 98);
    followed.checkpoint(Limits::default());
    assert_eq!(followed.copy.0[&(at / PAGE + 20)][0], 98);
    followed.target.write(twin + 21 * PAGE, 1, 97);
    followed.target.ok(libc::SYS_munmap, [twin, 64 * PAGE]);
    followed.checkpoint(Limits::default());
    assert_eq!(followed.copy.0[&(at / PAGE + 21)][0], 97);
}

#[test]
fn guards_are_told() {
    let mut followed = Followed::start();
    let at = followed.target.map(20, RW, PRIVATE);
    followed.target.write(at, 20, 1);
    followed.checkpoint(Limits::default());
    if followed.target.call(libc::SYS_madvise, [at + 5 * PAGE, 2 * PAGE, MADV_GUARD_INSTALL as u64]) < 0 {
        println!("SKIP guards: this kernel has none (6.13)");
        return;
    }
    followed.checkpoint(Limits::default());
    assert_eq!(followed.frozen.change().guards, PageSet::of(Some(at / PAGE + 5..at / PAGE + 7)));
    assert!(!followed.copy.0.contains_key(&(at / PAGE + 5)));
    followed.target.madvise(at, 20, MADV_GUARD_REMOVE);
    followed.target.write(at + 5 * PAGE, 1, 9);
    followed.checkpoint(Limits::default());
    assert_eq!(followed.copy.0[&(at / PAGE + 5)][0], 9);
}

/// A mapping that has a userfaultfd of the target's own cannot be tracked: it is copied each time.
#[test]
fn what_cannot_be_tracked_is_copied() {
    let mut followed = Followed::start();
    let at = followed.target.map(16, RW, PRIVATE);
    followed.target.write(at, 16, 1);
    let others = Tracker::new(followed.target.pid(), Method::WriteProtect(followed.target.userfaultfd(USER_MODE_ONLY)));
    let mut others = others.unwrap();
    others.changed(&maps::read(followed.target.pid()).unwrap(), Phase::Running).unwrap();
    for _ in 0..3 {
        let round = followed.changes();
        assert!(round.untracked_mappings > 0 && round.written_pages == 0, "{round:?}");
        let (_, round) = followed.checkpoint(Limits::default());
        assert!(round.written_pages >= 16, "{round:?}");
    }
    followed.target.write(at, 16, 9);
    followed.checkpoint(Limits::default());
    drop(others);
    followed.checkpoint(Limits::default());
    followed.target.write(at, 16, 19);
    followed.checkpoint(Limits::default());
    assert_eq!(followed.changes().untracked_mappings, 0);
}

#[test]
fn another_program_is_an_error() {
    let mut followed = Followed::start();
    followed.checkpoint(Limits::default());
    let mut words = [0; 4096];
    words[..10].copy_from_slice(b"/bin/sleep");
    words[32..34].copy_from_slice(b"60");
    let at = followed.target.map(1, RW, PRIVATE);
    words[64..72].copy_from_slice(&at.to_ne_bytes());
    words[72..80].copy_from_slice(&(at + 32).to_ne_bytes());
    let mem = File::options().write(true).open(format!("/proc/{}/mem", followed.target.pid())).unwrap();
    mem.write_all_at(&words, at).unwrap();
    followed.target.tell(&format!("s {} {at} {} 0", libc::SYS_execve, at + 64));
    let end = Instant::now() + Duration::from_secs(10);
    let err = loop {
        let mappings = maps::read(followed.target.pid());
        match mappings.and_then(|all| followed.tracker.changed(&all, Phase::Running)) {
            Err(err) => break err,
            Ok(_) => assert!(Instant::now() < end, "exec is not seen"),
        }
    };
    assert!(matches!(&err, Error::Target { what, .. } if what.contains("exec")), "{err}");
    let (pid, mut tracker) = (followed.target.pid(), followed.tracker);
    drop(followed.target);
    assert!(matches!(maps::read(pid), Err(Error::Gone { .. })));
    assert!(matches!(tracker.changed(&[], Phase::Running), Err(Error::Gone { .. })));
}

/// Also while it gives back its memory, when its parent cannot be told of its end yet.
#[test]
fn a_process_that_ends_is_gone() {
    for _ in 0..10 {
        let mut followed = Followed::start();
        let at = followed.target.map(20_000, RW, PRIVATE);
        followed.target.write(at, 20_000, 1);
        followed.changes();
        let mappings = maps::read(followed.target.pid()).unwrap();
        // SAFETY: one call of the system, with numbers.
        unsafe { libc::kill(followed.target.pid(), libc::SIGKILL) };
        let err = loop {
            if let Err(err) = followed.tracker.changed(&mappings, Phase::Running) {
                break err;
            }
        };
        assert!(matches!(err, Error::Gone { .. }), "{err}");
    }
}

/// Prints the memory's part of the pause: 512 MB, 10,000 random pages written in a second.
#[test]
fn how_long_the_pause_is() {
    let mut followed = Followed::start();
    let at = followed.target.map(512 << 8, RW, PRIVATE);
    followed.target.madvise(at, 512 << 8, libc::MADV_NOHUGEPAGE);
    followed.target.write(at, 512 << 8, 1);
    struct Nowhere;
    impl Sink for Nowhere {
        fn write(&mut self, _: u64, _: &[u8]) -> Result<()> {
            Ok(())
        }
        fn forget(&mut self, _: &PageSet) -> Result<()> {
            Ok(())
        }
    }
    followed.target.tell(&format!("d {at} {} 10", 512 << 8));
    for _ in 0..8 {
        std::thread::sleep(Duration::from_millis(300));
        let rounds =
            precopy(&mut followed.tracker, &followed.reader, Limits::default(), &mut followed.held, &mut Nowhere, &mut |_, _| ())
                .unwrap();
        followed.target.stop();
        let began = Instant::now();
        let mappings = maps::read(followed.target.pid()).unwrap();
        let read = began.elapsed();
        let frozen = followed.frozen.copy(&mut followed.tracker, &followed.reader, &mappings, Phase::Last).unwrap();
        let pause = began.elapsed();
        followed.target.resume();
        let pages: Vec<u64> = rounds.iter().map(|round| round.written_pages).collect();
        println!(
            "rounds of {pages:?} pages; pause {pause:?}: mappings {read:?}, {} pages found in {:?}, copied in {:?}",
            frozen.written_pages, frozen.find, frozen.copy
        );
    }
}

/// Prints what a thousand mappings cost in the pause.
#[test]
fn how_long_a_thousand_mappings_take() {
    let mut followed = Followed::start();
    let at = followed.target.map(4000, RW, PRIVATE);
    followed.target.write(at, 4000, 1);
    for n in 0..500 {
        followed.target.ok(libc::SYS_mprotect, [at + n * 8 * PAGE, 4 * PAGE, libc::PROT_READ as u64]);
    }
    for _ in 0..3 {
        followed.changes();
        followed.target.stop();
        let began = Instant::now();
        let mappings = maps::read(followed.target.pid()).unwrap();
        let read = began.elapsed();
        let round = followed.frozen.copy(&mut followed.tracker, &followed.reader, &mappings, Phase::Last).unwrap();
        println!("{} mappings: read in {read:?}, changes found in {:?}", mappings.len(), round.find);
        followed.frozen.hand_over(&mut followed.copy).unwrap();
        followed.target.resume();
    }
    assert!(followed.tracker.content().count() >= 4000);
}
