//! What the program under test and the benchmark both see: a small file that both have mapped.
//!
//! ```text
//!   words   ready │ asked, what, how much │ answered, took │ pages written │ gaps so far
//!   ring    (from, to) │ (from, to) │ ...      CLOCK_MONOTONIC, in nanoseconds
//! ```
//!
//! What must hold: it has a name, and so is no part of a checkpoint but is there again after a restart, as it is by then; gaps are counted
//! after they are written, by one thread; who reads them less often than the ring goes round is told that it lost some.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};

use anyhow::{Context, Result, ensure};

/// Gaps that it holds.
const RING: usize = 1 << 16;

#[repr(C)]
struct Words {
    ready: AtomicU64,
    asked: AtomicU64,
    what: AtomicU64,
    amount: AtomicU64,
    answered: AtomicU64,
    took_ns: AtomicU64,
    written: AtomicU64,
    gaps: AtomicU64,
    ring: [[AtomicU64; 2]; RING],
}

/// What the program can be asked to do once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Read a word of every page.
    Touch,
    /// Write a word of each of the first so many pages.
    Write,
    /// Write a word of so many pages, each once, others than last time.
    Change,
    /// End.
    End,
}

impl Order {
    const ALL: [Order; 4] = [Order::Touch, Order::Write, Order::Change, Order::End];
}

/// The file, mapped.
#[derive(Debug)]
pub struct Board {
    words: *mut Words,
}

// SAFETY: it holds atomics only, and is unmapped when the last owner drops it.
unsafe impl Send for Board {}
// SAFETY: as above.
unsafe impl Sync for Board {}

impl Drop for Board {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, with this length, and nobody borrows from it any more.
        unsafe { libc::munmap(self.words.cast(), size_of::<Words>()) };
    }
}

impl Board {
    /// Makes the file.
    pub fn create(path: &Path) -> Result<Board> {
        let file = File::options().read(true).write(true).create_new(true).open(path);
        let file = file.with_context(|| format!("{}: creating", path.display()))?;
        file.set_len(size_of::<Words>() as u64)?;
        Board::map(&file)
    }

    /// Maps the file that another process made.
    pub fn open(path: &Path) -> Result<Board> {
        let file = File::options().read(true).write(true).open(path);
        let file = file.with_context(|| format!("{}: opening", path.display()))?;
        ensure!(file.metadata()?.len() == size_of::<Words>() as u64, "{}: not a board", path.display());
        Board::map(&file)
    }

    fn map(file: &File) -> Result<Board> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of a file that is as long.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), size_of::<Words>(), prot, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        ensure!(at != libc::MAP_FAILED, "mapping the board: {}", std::io::Error::last_os_error());
        Ok(Board { words: at.cast() })
    }

    fn words(&self) -> &Words {
        // SAFETY: mapped as long as `self` lives; all zeros are atomics, too.
        unsafe { &*self.words }
    }

    /// The program has filled its memory.
    pub fn set_ready(&self) {
        self.words().ready.store(1, Release);
    }

    /// Whether it has.
    pub fn ready(&self) -> bool {
        self.words().ready.load(Acquire) != 0
    }

    /// The program wrote so many pages more.
    pub fn add_written(&self, pages: u64) {
        self.words().written.fetch_add(pages, Release);
    }

    /// How many it wrote.
    pub fn written(&self) -> u64 {
        self.words().written.load(Acquire)
    }

    /// Asks the program to do something; gives the number of the question.
    pub fn ask(&self, order: Order, amount: u64) -> u64 {
        let words = self.words();
        words.what.store(order as u64, Release);
        words.amount.store(amount, Release);
        words.asked.fetch_add(1, Release) + 1
    }

    /// What the program is asked to do and has not done.
    pub fn asked(&self) -> Option<(Order, u64)> {
        let words = self.words();
        let asked = words.asked.load(Acquire);
        let order = *Order::ALL.get(words.what.load(Acquire) as usize)?;
        (asked != words.answered.load(Acquire)).then(|| (order, words.amount.load(Acquire)))
    }

    /// It has done it.
    pub fn answer(&self, took_ns: u64) {
        let words = self.words();
        words.took_ns.store(took_ns, Release);
        words.answered.store(words.asked.load(Acquire), Release);
    }

    /// How long question `number` took, once it is answered.
    pub fn answered(&self, number: u64) -> Option<u64> {
        (self.words().answered.load(Acquire) >= number).then(|| self.words().took_ns.load(Acquire))
    }

    /// The program's watch saw nothing between these two moments.
    pub fn add_gap(&self, from: u64, to: u64) {
        let words = self.words();
        let count = words.gaps.load(Acquire);
        let [first, second] = &words.ring[count as usize % RING];
        first.store(from, Release);
        second.store(to, Release);
        words.gaps.store(count + 1, Release);
    }

    /// Gaps after the first `seen` ones, which is then how many there are.
    pub fn gaps(&self, seen: &mut u64, into: &mut Vec<(u64, u64)>) -> Result<()> {
        let words = self.words();
        let count = words.gaps.load(Acquire);
        for n in *seen..count {
            let [from, to] = &words.ring[n as usize % RING];
            into.push((from.load(Acquire), to.load(Acquire)));
        }
        let lost = words.gaps.load(Acquire) - *seen > RING as u64;
        *seen = count;
        ensure!(!lost, "the program's watch saw more gaps than could be read: this machine is too busy to measure a pause");
        Ok(())
    }
}

/// CLOCK_MONOTONIC, in nanoseconds: the same for all processes.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel stores one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_see_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("board");
        let here = Board::create(&path).unwrap();
        let there = Board::open(&path).unwrap();
        assert!(!here.ready() && there.asked().is_none());
        there.set_ready();
        assert!(here.ready());
        let question = here.ask(Order::Change, 7);
        assert_eq!((there.asked(), here.answered(question)), (Some((Order::Change, 7)), None));
        there.answer(5);
        assert_eq!((there.asked(), here.answered(question)), (None, Some(5)));
        let (mut seen, mut gaps) = (0, Vec::new());
        for n in 0..3 {
            there.add_gap(n, n + 10);
        }
        here.gaps(&mut seen, &mut gaps).unwrap();
        here.gaps(&mut seen, &mut gaps).unwrap();
        assert_eq!((seen, gaps), (3, vec![(0, 10), (1, 11), (2, 12)]));
        (0..=RING as u64).for_each(|n| there.add_gap(n, n));
        assert!(here.gaps(&mut seen, &mut Vec::new()).is_err(), "one was overwritten");
    }
}
