//! How long it takes until a killed program runs again from its checkpoint, and until all its memory is there.
//!
//! ```text
//!   program   runs, checkpoint, runs on, SIGKILL                 ┌ its watch looks at the clock: first instruction
//!   helper                               started │ towa_snap::restart ──► program, its child │ waits for it
//!   copy                                 started │ reads all pages into fresh memory │ told
//! ```
//!
//! What must hold: time runs from just before the helper is started; the program itself says when it runs; each restart is of the same
//! checkpoint, and the image is in the page cache (`warm`) or was put out of it (`cold`).

use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use serde::{Deserialize, Serialize};
use towa_snap::restart::{self, Options};
use towa_snap::store::{Store, Which};
use towa_snap::take::Target;

use super::board::{Order, now_ns};
use super::program::{PAGE, Program, Shape};
use super::report::RestartRow;
use super::stats::{median, ms};
use crate::child::TellingChild;

/// How a program is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// All memory first.
    Eager,
    /// Pages as they are touched, and the rest meanwhile.
    Lazy,
    /// Nothing is started: the image is read into memory, as a restart that copies has to at least.
    Copy,
}

impl How {
    /// All of them, in the order of plots.
    pub const ALL: [How; 3] = [How::Eager, How::Lazy, How::Copy];

    /// Name in the report, and to the helper.
    pub fn name(self) -> &'static str {
        match self {
            How::Eager => "eager",
            How::Lazy => "lazy",
            How::Copy => "copy",
        }
    }

    fn options(self) -> Options {
        let memory = if self == How::Lazy { restart::How::Lazy } else { restart::How::Eager };
        // The board is the benchmark's, and goes on.
        Options { memory, files: restart::Files::Keep, ..Options::default() }
    }
}

#[derive(Clone, Debug, Parser)]
#[command(name = "bench-child snap restart", no_binary_name = true)]
struct HelperArgs {
    #[arg(long)]
    dir: PathBuf,
    #[arg(long)]
    how: String,
}

/// What the helper tells when it has nothing more to do, as a line of JSON.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Told {
    /// When all memory was there.
    complete_ns: u64,
}

/// The helper: one thread, as a restart needs.
pub fn main(args: &[String]) -> Result<()> {
    let args = HelperArgs::try_parse_from(args)?;
    let how = How::ALL.into_iter().find(|how| how.name() == args.how).with_context(|| format!("no restart is {}", args.how))?;
    let checkpoint = Store::open(&args.dir)?.open_checkpoint(Which::Newest)?;
    let tell = || -> Result<()> {
        println!("{}", serde_json::to_string(&Told { complete_ns: now_ns() })?);
        Ok(())
    };
    if how == How::Copy {
        copy(&checkpoint)?;
        return tell();
    }
    let restarted = restart::restart(&checkpoint, &how.options())?;
    if let Some(paging) = restarted.paging {
        paging.wait()?;
    }
    tell()?;
    let mut status = 0;
    // SAFETY: our own child.
    ensure!(unsafe { libc::waitpid(restarted.pid, &raw mut status, 0) } == restarted.pid, "the program is gone");
    ensure!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "the restarted program ended with status {status:#x}");
    Ok(())
}

/// Reads all pages into fresh memory.
fn copy(checkpoint: &towa_snap::store::Checkpoint) -> Result<()> {
    let bytes = (checkpoint.pages().count() * PAGE) as usize;
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, flags, -1, 0) };
    ensure!(at != libc::MAP_FAILED, "{bytes} bytes of memory: {}", std::io::Error::last_os_error());
    // SAFETY: ours alone, as long as this; unmapped when this process ends.
    let mut rest = unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), bytes) };
    for run in checkpoint.runs(0..u64::MAX / PAGE) {
        let (into, after) = rest.split_at_mut(((run.pages.end - run.pages.start) * PAGE) as usize);
        run.file.read_exact_at(into, run.offset).context("reading the image")?;
        rest = after;
    }
    Ok(())
}

/// What is measured of one size.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The program.
    pub shape: Shape,
    /// Restarts of each kind.
    pub times: usize,
    /// Whether the image can be put out of the page cache.
    pub cold: bool,
}

/// Checkpoints a program in an empty directory, kills it, and starts it again, and again.
pub fn measure(children: &Path, dir: &Path, config: Config) -> Result<Vec<RestartRow>> {
    let mut program = Program::start(children, dir, config.shape)?;
    let at = dir.join("store");
    let store = Store::open_or_create(&at)?;
    let mut target = Target::open(program.pid(), None)?;
    target.take(&store)?;
    // What a running program's checkpoints come to: not one file only.
    std::thread::sleep(std::time::Duration::from_millis(100));
    target.take(&store)?;
    drop(target);
    store.keep(1)?;
    program.kill()?;
    let caches: &[&'static str] = if config.cold { &["warm", "cold"] } else { &["warm"] };
    let mut rows = Vec::new();
    for cache in caches {
        for how in How::ALL {
            let once = |_| -> Result<Once> {
                if *cache == "cold" { put_out(&at) } else { read_all(&at) }.context("the image and the page cache")?;
                one(children, &at, &program, how)
            };
            let all = (0..config.times).map(once).collect::<Result<Vec<Once>>>()?;
            let of = |figure: fn(&Once) -> f64| median(all.iter().map(figure));
            let touch: Option<Vec<f64>> = all.iter().map(|one| one.touch_ms).collect();
            rows.push(RestartRow {
                mb: config.shape.mb,
                mode: how.name().into(),
                cache,
                first_instruction_ms: of(|one| one.first_ms),
                total_ms: of(|one| one.complete_ms),
                touch_all_ms: touch.map(median),
                restarts: all.len(),
            });
        }
    }
    Ok(rows)
}

struct Once {
    first_ms: f64,
    complete_ms: f64,
    touch_ms: Option<f64>,
}

fn one(children: &Path, store: &Path, program: &Program, how: How) -> Result<Once> {
    let mut seen = 0;
    let _ = program.board.gaps(&mut seen, &mut Vec::new());
    let mut command = Command::new(children);
    command.args(["bench-child", super::CHILD, "restart", "--how", how.name()]).arg("--dir").arg(store);
    let began = now_ns();
    let mut helper = TellingChild::start(&mut command)?;
    let line = helper.line().with_context(|| format!("{} restart", how.name()))?;
    let told: Told = serde_json::from_str(&line).with_context(|| format!("the helper said {line:?}"))?;
    let complete_ms = ms(told.complete_ns - began);
    let (first_ms, touch_ms) = if how == How::Copy {
        (complete_ms, None)
    } else {
        let first = program.first_look_after(began, &mut seen)?;
        let touch = program.order(Order::Touch, 0)?;
        program.board.ask(Order::End, 0);
        (ms(first - began), Some(touch.as_secs_f64() * 1e3))
    };
    let ended = loop {
        if let Some(status) = helper.process.ended()? {
            break status;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    };
    ensure!(ended.success(), "the {} restart ended with {ended}", how.name());
    Ok(Once { first_ms, complete_ms, touch_ms })
}

/// All files of a store.
fn files(dir: &Path, each: &mut impl FnMut(&std::fs::File) -> std::io::Result<()>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            files(&path, each)?;
        } else {
            each(&std::fs::File::open(&path)?)?;
        }
    }
    Ok(())
}

/// Into the page cache.
fn read_all(dir: &Path) -> std::io::Result<()> {
    files(dir, &mut |mut file| std::io::copy(&mut file, &mut std::io::sink()).map(drop))
}

/// Out of the page cache.
fn put_out(dir: &Path) -> std::io::Result<()> {
    files(dir, &mut |file| {
        towa_media::files::sync(file)?;
        // SAFETY: numbers only.
        match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
            0 => Ok(()),
            error => Err(std::io::Error::from_raw_os_error(error)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_helper_refuses_what_it_does_not_know() {
        let why = main(&["--dir".into(), "/proc/nonexistent".into(), "--how".into(), "slowly".into()]).unwrap_err();
        assert!(why.to_string().contains("slowly"), "{why}");
        assert!(main(&["--dir".into(), "/proc/nonexistent".into(), "--how".into(), "eager".into()]).is_err());
    }
}
