//! The new process's memory: that of this program is taken away, that of the checkpoint put in its place.
//!
//! ```text
//!   all but the stub and the kernel's pages unmapped ─► vdso and vvar moved to where they were ─► regions mapped, writable
//!   ─► content read from the checkpoint's files, or (lazily) given to the pager ─► permissions, wishes, locks as they were
//! ```
//!
//! Of a process that goes on in mode `nv`, regions in the pool have their content when they are mapped.

use std::os::fd::AsRawFd;

use super::content;
use super::files::Opened;
use crate::error::{Error, Result};
use crate::memory::maps;
use crate::pages::{PAGE, PageSet, Pages};
use crate::remote::{Call, LEN, Stub};
use crate::state::State;
use crate::state::region::{Backing, Region};
use crate::store::Checkpoint;
use crate::sys::ptrace::Tid;

/// Lowest address that may be mapped, with much to spare.
const LOWEST: u64 = 1 << 20;

/// An address where neither the new process as it is now nor the old one has anything.
pub fn place_of_stub(state: &State, pid: Tid) -> Result<u64> {
    free(state, pid, LEN)
}

fn free(state: &State, pid: Tid, len: u64) -> Result<u64> {
    let now = maps::read(pid)?;
    let taken = now.iter().map(|mapping| mapping.pages.clone()).chain(state.regions.iter().map(|region| region.pages.clone()));
    // With room around: stacks grow, and nothing shall come to lie against a region of the program.
    let taken: PageSet = taken.map(|pages| pages.start.saturating_sub(256)..pages.end + 256).collect();
    let mut start = LOWEST / PAGE;
    for range in taken.ranges() {
        if range.start >= start + len / PAGE {
            return Ok(start * PAGE);
        }
        start = start.max(range.end);
    }
    Err(Error::Target { pid, what: "has no room left in its address space".into() })
}

fn all(stub: &Stub, tid: Tid, calls: &[Call]) -> Result<()> {
    for (call, result) in calls.iter().zip(stub.run(tid, calls)?) {
        stub.checked(call.number, result).map_err(|e| match e {
            Error::Io { what, source } => Error::Io { what: format!("{what} {:x?}", call.args), source },
            other => other,
        })?;
    }
    Ok(())
}

/// Takes away what is there, and moves the kernel's pages to where they were.
pub fn empty(state: &State, stub: &Stub) -> Result<()> {
    let pid = state.process.pid;
    let now = maps::read(pid)?;
    let of_kernel = |name: &str| matches!(name, "[vdso]" | "[vvar]" | "[vvar_vclock]");
    let keeps = |pages: &Pages| stub.range().contains(&(pages.start * PAGE));
    let unmap = now.iter().filter(|mapping| !of_kernel(&mapping.name) && mapping.name != "[vsyscall]" && !keeps(&mapping.pages));
    let calls: Vec<Call> = unmap
        .map(|mapping| Call::new(libc::SYS_munmap, &[mapping.pages.start * PAGE, (mapping.pages.end - mapping.pages.start) * PAGE]))
        .collect();
    all(stub, pid, &calls)?;
    // First aside, all of them: one may have to go where another is.
    let moves = |from: u64, to: u64, len: u64| {
        let how = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
        Call::new(libc::SYS_mremap, &[from, len, len, how, to])
    };
    let parts: Vec<_> = now.iter().filter(|mapping| of_kernel(&mapping.name)).collect();
    let total: u64 = parts.iter().map(|part| (part.pages.end - part.pages.start) * PAGE).sum();
    let mut aside = free(state, pid, total)?;
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for part in parts {
        let len = (part.pages.end - part.pages.start) * PAGE;
        let was = state.regions.iter().find(|region| matches!(&region.backing, Backing::Kernel { name } if *name == part.name));
        match was {
            Some(was) if was.len() == len => {
                first.push(moves(part.pages.start * PAGE, aside, len));
                second.push(moves(aside, was.start(), len));
                aside += len;
            }
            Some(_) => {
                let what = format!("{} is of another size than on the kernel of the checkpoint", part.name);
                return Err(Error::Unsupported { what, remedy: "restart it on the kernel it ran on" });
            }
            None => first.push(Call::new(libc::SYS_munmap, &[part.pages.start * PAGE, len])),
        }
    }
    all(stub, pid, &first)?;
    all(stub, pid, &second)
}

fn has_content(region: &Region, checkpoint: &Checkpoint) -> bool {
    checkpoint.runs(region.pages.clone()).next().is_some()
}

/// Maps all regions; those that have content can be written to for now.
pub fn map(state: &State, checkpoint: &Checkpoint, opened: &Opened, stub: &Stub) -> Result<()> {
    let regions = state.regions.iter().filter(|region| !matches!(region.backing, Backing::Kernel { .. }));
    let calls: Vec<Call> = regions.map(|region| mapped(region, opened, has_content(region, checkpoint))).collect();
    all(stub, state.process.pid, &calls)
}

/// Reads the content of `pages`.
pub fn read(state: &State, checkpoint: &Checkpoint, opened: &Opened, stub: &Stub, pages: &PageSet) -> Result<()> {
    content::read(state.process.pid, checkpoint, opened, stub, &pages.difference(&pooled(state, opened)))
}

/// Permissions, and what the program wished for.
pub fn finish(state: &State, checkpoint: &Checkpoint, stub: &Stub) -> Result<()> {
    let wishes = state.regions.iter().flat_map(|region| wishes(region, has_content(region, checkpoint)));
    all(stub, state.process.pid, &wishes.collect::<Vec<_>>())
}

/// The pool's number, and where in it the region lies.
fn in_pool(region: &Region, opened: &Opened) -> Option<(u64, u64)> {
    match (&region.backing, &opened.pool) {
        (Backing::Pool { offset }, Some(pool)) => Some((pool.as_raw_fd() as u64, *offset)),
        _ => None,
    }
}

/// Pages that have their content when the pool is mapped.
fn pooled(state: &State, opened: &Opened) -> PageSet {
    PageSet::of(state.regions.iter().filter(|region| in_pool(region, opened).is_some()).map(|region| region.pages.clone()))
}

fn mapped(region: &Region, opened: &Opened, has_content: bool) -> Call {
    if let Some((pool, offset)) = in_pool(region, opened) {
        let flags = (libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE) as u64;
        return Call::new(libc::SYS_mmap, &[region.start(), region.len(), region.prot as u64, flags, pool, offset]);
    }
    let write = if has_content && !region.shared { libc::PROT_WRITE } else { 0 };
    let flag = |wanted: bool, flag: i32| if wanted { flag } else { 0 };
    let share = if region.shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
    let flags = share | libc::MAP_FIXED_NOREPLACE | flag(region.has("nr"), libc::MAP_NORESERVE);
    let grows = matches!(region.backing, Backing::Stack) || region.has("gd");
    let (flags, fd, offset) = match &region.backing {
        Backing::File { path, offset, .. } => (flags, opened.mapped[path].as_raw_fd() as u64, *offset),
        _ => (flags | libc::MAP_ANONYMOUS | flag(grows, libc::MAP_GROWSDOWN), u64::MAX, 0),
    };
    let write = if matches!(region.backing, Backing::SharedAnonymous { .. }) { libc::PROT_WRITE } else { write };
    Call::new(libc::SYS_mmap, &[region.start(), region.len(), (region.prot | write) as u64, flags as u64, fd, offset])
}

fn wishes(region: &Region, has_content: bool) -> Vec<Call> {
    let (start, len) = (region.start(), region.len());
    if matches!(region.backing, Backing::Kernel { .. }) {
        return Vec::new();
    }
    let advice = |flag: &str, advice: i32| region.has(flag).then(|| Call::new(libc::SYS_madvise, &[start, len, advice as u64]));
    let mut calls: Vec<Call> = [
        advice("hg", libc::MADV_HUGEPAGE),
        advice("nh", libc::MADV_NOHUGEPAGE),
        advice("dc", libc::MADV_DONTFORK),
        advice("wf", libc::MADV_WIPEONFORK),
        advice("dd", libc::MADV_DONTDUMP),
        advice("mg", libc::MADV_MERGEABLE),
    ]
    .into_iter()
    .flatten()
    .collect();
    let shared_memory = matches!(region.backing, Backing::SharedAnonymous { .. });
    if region.prot & libc::PROT_WRITE == 0 && (has_content || shared_memory) {
        calls.push(Call::new(libc::SYS_mprotect, &[start, len, region.prot as u64]));
    }
    if region.has("lo") {
        calls.push(Call::new(libc::SYS_mlock, &[start, len]));
    }
    calls
}
