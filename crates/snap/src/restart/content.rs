//! The content of the new process's memory: read from the checkpoint's files by the process itself and, if it is much, by threads of this
//! one, which have other processors.
//!
//! ```text
//!   parts     │ 1 │ 2 │ 3 │ 4 │ 5 │ 6 │ ...          whoever is free takes the next one
//!   process   └─┘     └─┘     └─┘                    the stub: pread
//!   threads       └───┘   └───┘   └───┘              pread, process_vm_writev
//! ```
//!
//! What must always hold: every part is read when this returns, and no thread is left. What a thread may not write, the stub reads.

use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use super::files::Opened;
use crate::error::{Error, Result};
use crate::pages::{PAGE, PageSet};
use crate::remote::{Call, Stub};
use crate::store::{Checkpoint, Stretch};
use crate::sys::ptrace::Tid;
use crate::sys::{machine, memory};

/// Pages of a part: some milliseconds.
const PART: u64 = 2048;
/// Parts from which on threads are worth it.
const MANY: usize = 4;
/// Bytes that a thread has under way: they stay in its processor's cache.
const UNDER_WAY: usize = 256 << 10;

/// Reads the content of `pages`, which are mapped and can be written to.
pub fn read(pid: Tid, checkpoint: &Checkpoint, opened: &Opened, stub: &Stub, pages: &PageSet) -> Result<()> {
    let parts = parts(checkpoint, pages);
    let threads = if parts.len() < MANY { 0 } else { machine::helpers() };
    share_out(parts.len(), threads, &|part| by_thread(pid, &parts[part]), &mut |part| by_stub(pid, &parts[part], opened, stub))
}

fn parts<'a>(checkpoint: &'a Checkpoint, pages: &PageSet) -> Vec<Vec<Stretch<'a>>> {
    let (mut parts, mut part, mut room) = (Vec::new(), Vec::new(), PART);
    for mut rest in pages.ranges().iter().flat_map(|range| checkpoint.runs(range.clone())) {
        while !rest.pages.is_empty() {
            let end = rest.pages.end.min(rest.pages.start + room);
            let len = end - rest.pages.start;
            part.push(Stretch { pages: rest.pages.start..end, ..rest });
            (rest.pages.start, rest.offset, room) = (end, rest.offset + len * PAGE, room - len);
            if room == 0 {
                parts.push(std::mem::take(&mut part));
                room = PART;
            }
        }
    }
    parts.extend((!part.is_empty()).then_some(part));
    parts
}

/// Does each of the parts, `here` by so many threads, or `there`; `there` what `here` failed to do, too.
fn share_out(
    parts: usize,
    threads: usize,
    here: &(impl Fn(usize) -> Result<()> + Sync),
    there: &mut impl FnMut(usize) -> Result<()>,
) -> Result<()> {
    let (next, done) = (AtomicUsize::new(0), (0..parts).map(|_| AtomicBool::new(false)).collect::<Vec<_>>());
    let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|part| *part < parts);
    let thread = || {
        while let Some(part) = take() {
            match here(part) {
                Ok(()) => done[part].store(true, Ordering::Relaxed),
                Err(err) => return log::debug!("its memory is filled without this thread: {err}"),
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            // It can be done without.
            let _ = thread::Builder::new().name("towa-fill".into()).spawn_scoped(scope, thread);
        }
        while let Some(part) = take() {
            // After an error, threads have nothing more to do.
            there(part).inspect_err(|_| next.store(parts, Ordering::Relaxed))?;
            done[part].store(true, Ordering::Relaxed);
        }
        Ok(())
    })?;
    (0..parts).filter(|part| !done[*part].load(Ordering::Relaxed)).try_for_each(there)
}

fn by_thread(pid: Tid, part: &[Stretch]) -> Result<()> {
    let mut buffer = vec![0; UNDER_WAY];
    for stretch in part {
        for at in (0..bytes(stretch)).step_by(UNDER_WAY) {
            let piece = &mut buffer[..UNDER_WAY.min((bytes(stretch) - at) as usize)];
            stretch.file.read_exact_at(piece, stretch.offset + at).map_err(|err| Error::io("a file of the checkpoint", err))?;
            memory::write(pid, stretch.pages.start * PAGE + at, piece)?;
        }
    }
    Ok(())
}

fn by_stub(pid: Tid, part: &[Stretch], opened: &Opened, stub: &Stub) -> Result<()> {
    let call = |stretch: &Stretch| {
        let file = opened.pages[&stretch.file.as_raw_fd()].as_raw_fd() as u64;
        Call::new(libc::SYS_pread64, &[file, stretch.pages.start * PAGE, bytes(stretch), stretch.offset])
    };
    let calls: Vec<Call> = part.iter().map(call).collect();
    for (call, result) in calls.iter().zip(stub.run(pid, &calls)?) {
        let (address, len) = (call.args[1], call.args[2]);
        if stub.checked(call.number, result)? != len {
            return Err(Error::Target { pid, what: format!("of {len} bytes of its memory at {address:x} {result} are there") });
        }
    }
    Ok(())
}

fn bytes(stretch: &Stretch) -> u64 {
    (stretch.pages.end - stretch.pages.start) * PAGE
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn each_part_is_done_whoever_fails() {
        for threads in [0, 1, 3] {
            for fails_at in [0, 3, usize::MAX] {
                let (by_threads, mut by_stub) = (Mutex::new(Vec::new()), Vec::new());
                let here = |part: usize| {
                    if part >= fails_at {
                        return Err(Error::Gone { pid: 1 });
                    }
                    by_threads.lock().unwrap().push(part);
                    Ok(())
                };
                share_out(20, threads, &here, &mut |part| {
                    thread::sleep(std::time::Duration::from_micros(50));
                    by_stub.push(part);
                    Ok(())
                })
                .unwrap();
                let mut all = [by_threads.into_inner().unwrap(), by_stub].concat();
                all.sort_unstable();
                assert_eq!(all, (0..20).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn an_error_of_the_process_itself_is_told() {
        for threads in [0, 2] {
            // What threads cannot do comes to the process, too.
            let result = share_out(20, threads, &|_| Err(Error::Gone { pid: 1 }), &mut |_| Err(Error::Gone { pid: 7 }));
            assert!(matches!(result, Err(Error::Gone { pid: 7 })));
        }
    }
}
