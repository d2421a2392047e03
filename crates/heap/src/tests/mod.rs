//! Pools by hand: epochs are written into the log line by line, without the doors above.

mod accepted_copy;
mod apply;
mod backup;
mod creation;
mod failed_sync;
mod failing_device;
pub(crate) mod kernel;
mod log;
mod opening;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::SystemTime;

use towa_media::sim::{Model, SimMedium};
use towa_media::{Access, LINE, Medium};

use crate::log::FrameBuilder;
use crate::log::commit::Commit;
use crate::superblock::Door;
use crate::{CreateOptions, Error, Heap, LogShape, OpenOptions, Result};

/// A line of the heap that neither roots nor headers use.
const DATA: u64 = 4 << 20 >> 6;

fn options() -> CreateOptions {
    // Pools of tests that run side by side live in one process.
    static NEXT: AtomicUsize = AtomicUsize::new(0x3800_0000_0000);
    let base = Some(NEXT.fetch_add(64 << 20, Relaxed));
    CreateOptions { door: Door::Epoch, heap_len: 8 << 20, log: LogShape::Ring { len: Some(1 << 20) }, base, prefault: false }
}

fn create(medium: &SimMedium) -> Heap {
    Heap::create(Arc::new(medium.clone()), &options()).unwrap()
}

fn open(medium: &SimMedium) -> Result<Heap> {
    Heap::open(Arc::new(medium.clone()), &OpenOptions { door: Door::Epoch, eager: true, prefault: false })
}

/// What opening says of a pool that it must refuse as damaged.
fn refusal(medium: &SimMedium) -> String {
    match open(medium) {
        Err(Error::Damaged { what, .. }) => what,
        Err(other) => panic!("refused, but as {other}"),
        Ok(_) => panic!("not refused"),
    }
}

/// Commits an epoch after `before` that fills each line `(index, byte)` with its byte.
fn commit(heap: &Heap, before: (u64, u64), lines: &[(u64, u8)]) -> Commit {
    let writer = heap.log().begin(before.0 + 1, before.1);
    let mut frame = FrameBuilder::new();
    for &(line, byte) in lines {
        if frame.room() == 0 {
            writer.frame(&mut frame).unwrap();
        }
        frame.run(line, 1).fill(byte);
    }
    writer.frame(&mut frame).unwrap();
    writer.fence().unwrap();
    writer.commit(heap.allocator().frontier()).unwrap()
}

fn after(commit: &Commit) -> (u64, u64) {
    (commit.epoch, commit.checksum)
}

/// Changes bytes of a region behind the pool's back.
fn tamper(medium: &SimMedium, name: &str, off: u64, change: impl FnOnce(&mut [u8]), len: usize) {
    let region = medium.open(name, Access::ReadWrite).unwrap();
    let mut bytes = vec![0; len];
    region.read(off, &mut bytes).unwrap();
    change(&mut bytes);
    region.store(off, &bytes).unwrap();
}

/// Names and bytes of a directory, with the times of change.
fn snapshot(dir: &Path) -> BTreeMap<String, (Vec<u8>, SystemTime)> {
    let entry = |e: std::fs::DirEntry| {
        let bytes = if e.file_type().unwrap().is_file() { std::fs::read(e.path()).unwrap() } else { Vec::new() };
        (e.file_name().into_string().unwrap(), (bytes, e.metadata().unwrap().modified().unwrap()))
    };
    let own = (".".to_owned(), (Vec::new(), std::fs::metadata(dir).unwrap().modified().unwrap()));
    std::fs::read_dir(dir).unwrap().map(|e| entry(e.unwrap())).chain([own]).collect()
}

fn line_of(heap: &Heap, line: u64) -> [u8; LINE] {
    let mut bytes = [0; LINE];
    heap.image().read(line * LINE as u64, &mut bytes).unwrap();
    bytes
}

fn both_models() -> [SimMedium; 2] {
    [Model::Line, Model::File].map(SimMedium::new)
}
