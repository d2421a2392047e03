//! The program under test: it fills its memory, writes to random pages of it at a steady pace, and watches the clock.
//!
//! ```text
//!   main     1/1000 s of pages, sleep till the next, ... ── and does what the board asks
//!   watch    looks at the clock every 20 us: two looks far apart are a gap, and go to the board
//!   others   sleep, a little at a time: only that there are more threads
//! ```
//!
//! What must hold: no two pages are alike, and none can be compressed; the pace is kept on average, but what a long stop left undone is not
//! made up for; it has no descriptor but the standard ones, and dies with whoever started it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use clap::Parser;
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

use super::board::{Board, Order, now_ns};
use crate::cleanup::Running;

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Two looks at the clock that are farther apart are a gap.
const GAP_NS: u64 = 150_000;
/// Between two looks. A watch that never slept would take one processor of two.
const NAP: Duration = Duration::from_micros(20);
/// Between two batches of writes.
const TICK: Duration = Duration::from_millis(1);
/// What is more behind than this is not made up for.
const BEHIND: Duration = Duration::from_millis(100);
/// How long it may take to do what it is asked.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the program is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Memory it fills, in MiB.
    pub mb: u64,
    /// Pages it writes each second.
    pub pages_per_s: u64,
    /// Threads, at least two.
    pub threads: usize,
}

impl Shape {
    /// Pages it fills.
    pub fn pages(&self) -> u64 {
        (self.mb << 20) / PAGE
    }
}

#[derive(Clone, Debug, Parser)]
#[command(name = "bench-child snap program", no_binary_name = true)]
struct ProgramArgs {
    #[arg(long)]
    board: PathBuf,
    #[arg(long)]
    mb: u64,
    #[arg(long)]
    pages_per_s: u64,
    #[arg(long)]
    threads: usize,
}

/// The program.
pub fn main(args: &[String]) -> Result<()> {
    let args = ProgramArgs::try_parse_from(args)?;
    // What leaked in here would be refused by a checkpoint.
    // SAFETY: nothing of ours is open but the standard streams.
    unsafe { libc::close_range(3, u32::MAX, 0) };
    let board: &'static Board = Box::leak(Box::new(Board::open(&args.board)?));
    let mut memory = Memory::filled(args.mb << 20)?;
    std::thread::Builder::new().name("watch".into()).spawn(move || watch(board))?;
    for _ in 2..args.threads {
        let sleeper = || {
            loop {
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        std::thread::Builder::new().name("sleeper".into()).spawn(sleeper)?;
    }
    board.set_ready();
    let (mut began, mut due) = (Instant::now(), 0);
    loop {
        std::thread::sleep(TICK);
        let pace = |elapsed: Duration| (elapsed.as_secs_f64() * args.pages_per_s as f64) as u64;
        let elapsed = began.elapsed();
        if pace(elapsed).saturating_sub(due) > pace(BEHIND) {
            (began, due) = (Instant::now() - TICK, 0);
        }
        let now_due = pace(began.elapsed());
        memory.write_random(now_due.saturating_sub(due));
        board.add_written(now_due.saturating_sub(due));
        due = now_due.max(due);
        if let Some((order, amount)) = board.asked() {
            let began = Instant::now();
            match order {
                Order::Touch => memory.touch(),
                Order::Write => memory.write(amount),
                Order::Change => memory.change(amount),
                Order::End => {}
            }
            // Also before the end: the next one that is started from the same checkpoint is not to end at once.
            board.answer(began.elapsed().as_nanos() as u64);
            if order == Order::End {
                return Ok(());
            }
        }
    }
}

fn watch(board: &Board) -> ! {
    // SAFETY: a number. The kernel adds 50 us to each sleep otherwise.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    let mut last = now_ns();
    loop {
        std::thread::sleep(NAP);
        let now = now_ns();
        if now - last > GAP_NS {
            board.add_gap(last, now);
        }
        last = now;
    }
}

/// Its memory.
struct Memory {
    words: &'static mut [u64],
    rng: SmallRng,
    /// Where the next change begins.
    next: u64,
}

const WORDS: usize = PAGE as usize / 8;

impl Memory {
    fn filled(bytes: u64) -> Result<Memory> {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes as usize, prot, flags, -1, 0) };
        ensure!(at != libc::MAP_FAILED, "{bytes} bytes of memory: {}", std::io::Error::last_os_error());
        // SAFETY: ours alone, as long as this, and for ever.
        let words = unsafe { std::slice::from_raw_parts_mut(at.cast::<u64>(), bytes as usize / 8) };
        let mut rng = SmallRng::seed_from_u64(bytes);
        words.iter_mut().for_each(|word| *word = rng.next_u64());
        Ok(Memory { words, rng, next: 0 })
    }

    fn pages(&self) -> u64 {
        (self.words.len() / WORDS) as u64
    }

    /// Writes go past the compiler: each is wanted.
    fn put(&mut self, page: u64, word: usize, value: u64) {
        let at = &raw mut self.words[page as usize * WORDS + word];
        // SAFETY: a live word of ours.
        unsafe { at.write_volatile(value) };
    }

    fn write_random(&mut self, count: u64) {
        for _ in 0..count {
            let value = self.rng.next_u64();
            let page = self.rng.random_range(0..self.pages());
            self.put(page, value as usize % WORDS, value);
        }
    }

    fn touch(&mut self) {
        for page in 0..self.pages() as usize {
            // SAFETY: a live word of ours.
            unsafe { (&raw const self.words[page * WORDS]).read_volatile() };
        }
    }

    fn write(&mut self, count: u64) {
        for page in 0..count.min(self.pages()) {
            self.put(page, 0, count ^ page);
        }
    }

    /// Pages that lie apart: steps of a number that has no divisor in common with any power of two come to each page once.
    fn change(&mut self, count: u64) {
        const STEP: u64 = 0x9e37_79b1;
        for _ in 0..count {
            self.next += 1;
            let value = self.rng.next_u64();
            self.put(self.next.wrapping_mul(STEP) % self.pages().next_power_of_two() % self.pages(), 1, value);
        }
    }
}

/// The program, running, as the benchmark sees it.
#[derive(Debug)]
pub struct Program {
    process: Option<Running>,
    /// What both see.
    pub board: Board,
    path: PathBuf,
    pid: i32,
}

impl Program {
    /// Starts it in `dir`, and waits until its memory is full.
    pub fn start(children: &Path, dir: &Path, shape: Shape) -> Result<Program> {
        Self::start_by(children, dir, shape, |command| Ok(command.spawn()?))
    }

    /// The same, where `spawn` starts it.
    pub fn start_by(
        children: &Path,
        dir: &Path,
        shape: Shape,
        spawn: impl FnOnce(&mut Command) -> Result<Child>,
    ) -> Result<Program> {
        let path = dir.join("board");
        let board = Board::create(&path)?;
        let mut command = Command::new(children);
        command.args(["bench-child", super::CHILD, "program", "--mb", &shape.mb.to_string()]);
        command.args(["--pages-per-s", &shape.pages_per_s.to_string(), "--threads", &shape.threads.to_string()]);
        command.arg("--board").arg(&path).stdin(Stdio::null()).stdout(Stdio::null());
        let mut process = Running::spawn_by(&mut command, spawn)?;
        let began = Instant::now();
        while !board.ready() {
            if let Some(status) = process.ended()? {
                bail!("the program under test ended with {status} before its memory was full");
            }
            ensure!(began.elapsed() < PATIENCE, "the program under test did not fill its memory within {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Program { pid: process.pid() as i32, process: Some(process), board, path })
    }

    /// Its number.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Has it do something once; how long that took.
    pub fn order(&self, order: Order, amount: u64) -> Result<Duration> {
        let question = self.board.ask(order, amount);
        let began = Instant::now();
        loop {
            if let Some(took) = self.board.answered(question) {
                return Ok(Duration::from_nanos(took));
            }
            ensure!(began.elapsed() < PATIENCE, "the program under test did not do what it was asked within {PATIENCE:?}");
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// SIGKILL, and waits until it is gone: its number is free then.
    pub fn kill(&mut self) -> Result<()> {
        self.process.take().map_or(Ok(()), Running::kill)
    }

    /// The moment of its first look at the clock after `moment`, which it did not see: it has it from before, when it is started again.
    pub fn first_look_after(&self, moment: u64, seen: &mut u64) -> Result<u64> {
        let (began, mut gaps) = (Instant::now(), Vec::new());
        loop {
            self.board.gaps(seen, &mut gaps)?;
            if let Some(gap) = gaps.iter().find(|gap| gap.0 < moment && gap.1 >= moment) {
                return Ok(gap.1);
            }
            ensure!(began.elapsed() < PATIENCE, "the program under test does not run {PATIENCE:?} after it was to be restarted");
            std::thread::sleep(Duration::from_micros(500));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.kill();
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_come_to_every_page_once() {
        let mut memory = Memory::filled(1 << 20).unwrap();
        let before = memory.words.to_vec();
        memory.change(128);
        memory.change(128);
        let changed = memory.words.chunks(WORDS).zip(before.chunks(WORDS)).filter(|(now, before)| now != before);
        assert_eq!(changed.count(), 256);
        memory.write(10);
        memory.write_random(100);
        memory.touch();
        assert!(main(&["--board".into(), "/proc/nonexistent".into()]).is_err());
    }
}
