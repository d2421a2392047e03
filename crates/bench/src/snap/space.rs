//! What checkpoints take on the medium, and what the next writes of the program cost.
//!
//! What must hold: between two checkpoints the program changes one per cent of its pages, each once and far apart; bytes are what the file
//! system counts, of files with several names once.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use towa_snap::store::{Mode, Store};
use towa_snap::take::Target;

use super::board::Order;
use super::program::{PAGE, Program, Shape};
use super::report::{DeferredRow, SpaceRow};
use super::stats::median;

/// Of the program's pages change between two checkpoints.
const CHANGED_SHARE: u64 = 100;

/// Takes a first checkpoint and so many more in an empty directory.
pub fn measure(children: &Path, dir: &Path, mb: u64, checkpoints: usize) -> Result<SpaceRow> {
    let shape = Shape { mb, pages_per_s: 0, threads: 2 };
    let program = Program::start(children, dir, shape)?;
    let store = Store::open_or_create(dir.join("store"))?;
    let mut target = Target::open(program.pid(), None)?;
    target.take(&store)?;
    let changed = shape.pages() / CHANGED_SHARE;
    let (files, system) = (blocks(store.dir())?, used(store.dir())?);
    for _ in 0..checkpoints {
        program.order(Order::Change, changed)?;
        target.take(&store)?;
    }
    let each = |after: u64, before: u64| after.saturating_sub(before) as f64 / checkpoints as f64;
    let by_files = each(blocks(store.dir())?, files);
    let by_system = each(used(store.dir())?, system);
    let list = store.list()?;
    let own = median(list.iter().map(|one| one.bytes_own as f64));
    let sharing = store.mode();
    // Blocks of a clone count for each of its files: then only the file system as a whole knows.
    let bytes_per_checkpoint = if sharing == Mode::Reflink { by_system } else { by_files };
    Ok(SpaceRow {
        mb,
        sharing: if sharing == Mode::Reflink { "reflink" } else { "hard links" },
        checkpoints,
        changed_bytes: changed * PAGE,
        bytes_per_checkpoint,
        file_system_bytes_per_checkpoint: by_system,
        own_bytes_listed: own,
        memory_bytes: list.last().map_or(0, |one| one.pages * PAGE),
        ratio_to_changed: bytes_per_checkpoint / (changed * PAGE) as f64,
    })
}

/// Bytes of all files below `dir`, each once.
fn blocks(dir: &Path) -> Result<u64> {
    fn add(dir: &Path, seen: &mut HashSet<u64>, sum: &mut u64) -> std::io::Result<()> {
        for entry in std::fs::read_dir(dir)? {
            let path = entry?.path();
            let status = path.symlink_metadata()?;
            if seen.insert(status.ino()) {
                *sum += status.blocks() * 512;
            }
            if status.is_dir() {
                add(&path, seen, sum)?;
            }
        }
        Ok(())
    }
    let mut sum = 0;
    add(dir, &mut HashSet::new(), &mut sum).with_context(|| format!("{}: counting", dir.display()))?;
    Ok(sum)
}

/// Bytes used of the file system that `dir` lies in.
fn used(dir: &Path) -> Result<u64> {
    let folder = std::fs::File::open(dir)?;
    // SAFETY: what is to be written is known by now, or counted as free.
    unsafe { libc::syncfs(std::os::fd::AsRawFd::as_raw_fd(&folder)) };
    let status = super::system::statfs(dir)?;
    Ok((status.f_blocks - status.f_bfree) * status.f_bsize as u64)
}

/// The program's own writes, before it is tracked and after checkpoints.
pub fn deferred(children: &Path, dir: &Path, mb: u64, times: usize) -> Result<DeferredRow> {
    let shape = Shape { mb, pages_per_s: 0, threads: 2 };
    let program = Program::start(children, dir, shape)?;
    let ns = |took: Duration| took.as_nanos() as f64 / shape.pages() as f64;
    let write = || program.order(Order::Write, shape.pages()).map(ns);
    write()?;
    let untracked = (0..times).map(|_| write()).collect::<Result<Vec<f64>>>()?;
    let store = Store::open_or_create(dir.join("store"))?;
    let mut target = Target::open(program.pid(), None)?;
    target.take(&store)?;
    let (mut first, mut next) = (Vec::new(), Vec::new());
    for _ in 0..times {
        target.take(&store)?;
        store.keep(1)?;
        first.push(write()?);
        next.push(write()?);
    }
    Ok(DeferredRow { mb, untracked_write_ns: median(untracked), first_write_ns: median(first), next_write_ns: median(next) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_two_names_counts_once() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        let before = blocks(dir.path()).unwrap();
        std::fs::write(dir.path().join("a/x"), vec![1; 1 << 20]).unwrap();
        std::fs::hard_link(dir.path().join("a/x"), dir.path().join("y")).unwrap();
        let grown = blocks(dir.path()).unwrap() - before;
        assert!((1 << 20..(1 << 20) + 65536).contains(&grown), "{grown}");
        assert!(used(dir.path()).unwrap() > 0);
    }
}
