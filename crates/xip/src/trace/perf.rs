//! Every page fault of a tree of processes, from perf's software events: one record for each, with its address.
//!
//! ```text
//!   one ring a CPU ──┐                                            before the horizon: in the order of time
//!   one ring a CPU ──┼─► read every 2 ms ─► waiting, by time ─────────────────────────────► spaces
//!   one ring a CPU ──┘                      └─ younger than the last round but one: they wait, an older one may still come
//! ```
//!
//! What must hold: the events are those of the first process and are inherited by all its descendants, so nothing is missed between a fork
//! and a first fault; every record that the kernel had no room for is counted. The events begin with the first exec.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use perf_event_open_sys::bindings as b;

use super::spaces::{Event, Spaces};
use super::sys::{self, Pid, Ring};

/// Most memory for one ring, and for all.
const RING: usize = 8 << 20;
const ALL_RINGS: usize = 512 << 20;
const ROUND: Duration = Duration::from_millis(2);
/// Bytes at the end of every record but a sample: process, thread, time, event.
const TRAILER: usize = 24;

/// The events of a process that has not begun.
#[derive(Debug)]
pub struct Events {
    rings: Vec<Ring>,
    /// Their numbers tell major faults from minor ones; they write to the rings of the others.
    major: Vec<(File, u64)>,
    /// Whether faults that the kernel takes at a program's addresses (reading into a buffer, say) are seen too.
    pub sees_kernel: bool,
}

/// What the records said.
#[derive(Debug)]
pub struct Seen {
    /// The counts.
    pub spaces: Spaces,
    /// Records that were lost.
    pub lost: u64,
}

impl Events {
    /// Events for `pid` and all that will descend from it.
    pub fn open(pid: Pid) -> io::Result<Events> {
        let cpus = online_cpus()?;
        let most = (ALL_RINGS / cpus.len().max(1)).clamp(1 << 16, RING);
        let len = 1 << most.ilog2();
        Events::open_with(pid, &cpus, len, true).or_else(|e| match e.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => Events::open_with(pid, &cpus, len, false),
            _ => Err(e),
        })
    }

    fn open_with(pid: Pid, cpus: &[i32], mut len: usize, sees_kernel: bool) -> io::Result<Events> {
        let mut events = Events { rings: Vec::new(), major: Vec::new(), sees_kernel };
        for &cpu in cpus {
            let event = sys::perf_open(&mut attributes(false, sees_kernel), pid, cpu);
            let mut event = match event {
                // A processor that went away since its number was read.
                Err(e) if e.raw_os_error() == Some(libc::ENODEV) => continue,
                event => event?,
            };
            let ring = loop {
                match Ring::map(event, len) {
                    Ok(ring) => break ring,
                    // What a user may lock in memory is limited.
                    Err((back, e)) if e.raw_os_error() == Some(libc::EPERM) && len > 1 << 15 => (event, len) = (back, len / 2),
                    Err((_, e)) => return Err(e),
                }
            };
            let major = sys::perf_open(&mut attributes(true, sees_kernel), pid, cpu)?;
            sys::perf_output(&major, ring.event())?;
            let id = sys::perf_id(&major)?;
            events.rings.push(ring);
            events.major.push((major, id));
        }
        Ok(events)
    }

    /// Reads the records until [`Following::finish`] is called.
    pub fn follow(self) -> io::Result<Following> {
        let done = Arc::new(AtomicBool::new(false));
        let is_done = Arc::clone(&done);
        let thread = std::thread::Builder::new().name("towa-trace-perf".into()).spawn(move || self.read(&is_done))?;
        Ok(Following { done, thread })
    }

    fn read(mut self, is_done: &AtomicBool) -> Seen {
        let mut seen = Seen { spaces: Spaces::default(), lost: 0 };
        let (mut waiting, mut bytes) = (Vec::new(), Vec::new());
        let mut horizon = 0;
        loop {
            let is_last = is_done.load(Ordering::Acquire);
            let now = sys::now();
            for ring in &mut self.rings {
                bytes.clear();
                ring.drain(&mut bytes);
                records(&bytes, |record| self.major.iter().any(|(_, id)| *id == record), &mut waiting, &mut seen.lost);
            }
            waiting.sort_by_key(|(time, _)| *time);
            let ready = if is_last { waiting.len() } else { waiting.partition_point(|(time, _)| *time < horizon) };
            waiting.drain(..ready).for_each(|(_, event)| seen.spaces.apply(event));
            if is_last {
                return seen;
            }
            horizon = now;
            std::thread::park_timeout(ROUND);
        }
    }
}

/// A thread that reads records.
#[derive(Debug)]
pub struct Following {
    done: Arc<AtomicBool>,
    thread: JoinHandle<Seen>,
}

impl Following {
    /// Reads what is left.
    pub fn finish(self) -> Seen {
        self.done.store(true, Ordering::Release);
        self.thread.thread().unpark();
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn attributes(is_major: bool, sees_kernel: bool) -> b::perf_event_attr {
    let mut attr = b::perf_event_attr { type_: b::PERF_TYPE_SOFTWARE, ..Default::default() };
    attr.size = size_of::<b::perf_event_attr>() as u32;
    attr.config = u64::from(if is_major { b::PERF_COUNT_SW_PAGE_FAULTS_MAJ } else { b::PERF_COUNT_SW_PAGE_FAULTS_MIN });
    attr.__bindgen_anon_1.sample_period = 1;
    attr.sample_type = u64::from(b::PERF_SAMPLE_IDENTIFIER | b::PERF_SAMPLE_TID | b::PERF_SAMPLE_TIME | b::PERF_SAMPLE_ADDR);
    attr.clockid = libc::CLOCK_MONOTONIC;
    attr.set_use_clockid(1);
    attr.set_disabled(1);
    attr.set_enable_on_exec(1);
    attr.set_inherit(1);
    attr.set_exclude_kernel(u64::from(!sees_kernel));
    attr.set_exclude_hv(1);
    attr.set_sample_id_all(1);
    if !is_major {
        attr.set_mmap(1);
        attr.set_mmap2(1);
        attr.set_mmap_data(1);
        attr.set_comm(1);
        attr.set_comm_exec(1);
        attr.set_task(1);
    }
    attr
}

/// The numbers in "0-3,8".
fn online_cpus() -> io::Result<Vec<i32>> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<i32>().ok()?..=last.parse::<i32>().ok()?)
    };
    Ok(text.trim().split(',').filter_map(range).flatten().collect())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |bytes| u32::from_ne_bytes(bytes.try_into().unwrap_or_default()))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |bytes| u64::from_ne_bytes(bytes.try_into().unwrap_or_default()))
}

/// Takes records apart: a header (type, flags, length), a body, a trailer.
fn records(mut bytes: &[u8], is_major: impl Fn(u64) -> bool, events: &mut Vec<(u64, Event)>, lost: &mut u64) {
    while bytes.len() >= 8 {
        let head = u32_at(bytes, 4);
        let (kind, flags, len) = (u32_at(bytes, 0), head & 0xffff, (head >> 16) as usize);
        let Some((record, rest)) = bytes.split_at_checked(len.max(8)) else { return };
        bytes = rest;
        let body = &record[8..];
        if kind == b::PERF_RECORD_SAMPLE {
            let (pid, address) = (u32_at(body, 8) as Pid, u64_at(body, 24));
            events.push((u64_at(body, 16), Event::Fault { pid, address, is_major: is_major(u64_at(body, 0)) }));
            continue;
        }
        let Some((body, trailer)) = body.split_at_checked(body.len().saturating_sub(TRAILER)) else { return };
        match kind {
            b::PERF_RECORD_LOST => *lost += u64_at(body, 8),
            b::PERF_RECORD_LOST_SAMPLES => *lost += u64_at(body, 0),
            _ => events.extend(other_record(kind, flags, body).map(|event| (u64_at(trailer, 8), event))),
        }
    }
}

fn other_record(kind: u32, flags: u32, body: &[u8]) -> Option<Event> {
    let pid = u32_at(body, 0) as Pid;
    match kind {
        b::PERF_RECORD_MMAP2 => {
            let (start, len) = (u64_at(body, 8), u64_at(body, 16));
            let is_file = u64_at(body, 40) != 0;
            let name = body.get(64..)?.split(|byte| *byte == 0).next()?;
            let file = is_file.then(|| PathBuf::from(OsStr::from_bytes(name)));
            let is_text = u32_at(body, 56) & libc::PROT_EXEC as u32 != 0;
            let file = file.filter(|path| path.is_absolute() && path != Path::new("/toolong") && !name.starts_with(b"//"));
            Some(Event::Map { pid, start, end: start.saturating_add(len), offset: u64_at(body, 24), is_text, file })
        }
        b::PERF_RECORD_COMM if flags & b::PERF_RECORD_MISC_COMM_EXEC != 0 => Some(Event::Exec { pid }),
        b::PERF_RECORD_FORK if u32_at(body, 4) as Pid == pid => Some(Event::Thread { pid }),
        b::PERF_RECORD_FORK => Some(Event::Fork { pid, parent: u32_at(body, 4) as Pid }),
        b::PERF_RECORD_EXIT => Some(Event::Exit { pid }),
        _ => None,
    }
}
