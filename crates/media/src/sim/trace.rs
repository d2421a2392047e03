//! What was done to a simulated medium, in the order in which it took effect.

use std::fmt;
use std::sync::Arc;

use super::fault::Point;
use super::pages::{Pages, Snapshot};
use super::replay::{Replay, apply_name};
use super::{Model, SimMedium};

/// The recorded events and the state before the first. Cheap to keep, copied by [`SimMedium::trace`].
#[derive(Clone)]
pub struct Trace {
    pub(super) model: Model,
    /// What was durable before the first event.
    pub(super) base: Snapshot,
    pub(super) events: Vec<Event>,
    /// The bytes of all stores and streams, one after another.
    pub(super) data: Vec<u8>,
    /// The first name of each region, by number.
    pub(super) region_names: Vec<Arc<str>>,
}

#[derive(Clone, Debug)]
pub(super) struct Event {
    pub thread: u32,
    pub op: Op,
}

#[derive(Clone, Debug)]
pub(super) enum Op {
    /// Bytes `at..at + len` of the trace's data.
    Write {
        region: u32,
        off: u64,
        at: usize,
        len: usize,
        streamed: bool,
    },
    WriteBack {
        region: u32,
        off: u64,
        len: u64,
    },
    Fence {
        region: u32,
    },
    /// A sync that failed: what was not durable stays so, whatever is synced later, until it is written again.
    FailedFence {
        region: u32,
    },
    /// A page leaves the page cache that a failed sync left clean and not durable; the device has it if it was `reached`.
    Evict {
        region: u32,
        page: u64,
        reached: bool,
    },
    Name(NameOp),
    SyncNames,
    Note(u64),
    /// A call that did nothing: deleted by a fault or by [`Trace::without`], or failed.
    Ignored {
        what: Point,
        region: Option<u32>,
    },
}

/// What becomes of a page that a failed sync left clean and not durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageFate {
    /// It stays in the page cache: readers see it, and the device may or may not have it.
    Stays,
    /// It leaves the page cache: readers see the older content, which is what the device has.
    Evicted,
    /// It leaves the page cache, and the device has it.
    Reached,
}

/// An operation on the directory.
#[derive(Clone, Debug)]
pub(super) enum NameOp {
    Create { name: Arc<str>, region: u32, len: u64 },
    Remove { name: Arc<str>, region: u32 },
    Rename { from: Arc<str>, to: Arc<str>, region: u32 },
}

impl NameOp {
    /// The names it changes.
    pub fn names(&self) -> [&str; 2] {
        match self {
            NameOp::Create { name, .. } | NameOp::Remove { name, .. } => [name, name],
            NameOp::Rename { from, to, .. } => [from, to],
        }
    }
}

/// What kind of event one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// A cached store.
    Store,
    /// A streamed store.
    Stream,
    /// A write-back.
    WriteBack,
    /// A fence.
    Fence,
    /// A sync of a file that failed.
    FailedFence,
    /// A page left the page cache.
    Evict,
    /// A region came to be.
    Create,
    /// A region's name went.
    Remove,
    /// A region's name changed.
    Rename,
    /// The names became durable.
    SyncNames,
    /// The test's own note.
    Note,
    /// A call that did nothing: deleted, or failed.
    Ignored,
}

/// One event, for people and for [`Trace::without`]. `Display` prints it on a line.
#[derive(Clone, Copy)]
pub struct EventInfo<'t> {
    trace: &'t Trace,
    index: usize,
}

impl Trace {
    /// How many events there are. A crash can strike before the first and after each.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether nothing was done.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The events in order.
    pub fn events(&self) -> impl Iterator<Item = EventInfo<'_>> {
        (0..self.len()).map(|index| EventInfo { trace: self, index })
    }

    /// The same trace as if the fences, write-backs and syncs of names that `delete` picks had been deleted from the program.
    /// Other events are never asked about. To prove that a test would notice: explore the result and expect a counterexample.
    pub fn without(&self, mut delete: impl FnMut(&EventInfo<'_>) -> bool) -> Trace {
        let mut trace = self.clone();
        for info in self.events() {
            let (what, region) = match self.events[info.index].op {
                Op::Fence { region } => (Point::Fence, Some(region)),
                Op::WriteBack { region, .. } => (Point::WriteBack, Some(region)),
                Op::SyncNames => (Point::SyncNames, None),
                _ => continue,
            };
            if delete(&info) {
                trace.events[info.index].op = Op::Ignored { what, region };
            }
        }
        trace
    }

    /// The medium that the next process finds when this one is killed after `events` events and the machine lives on: it can read
    /// everything written so far, though not all of it is durable. Its events follow those before, so that a crash of the machine
    /// can be [explored](super::Explorer::starting_at) from there on.
    pub fn killed_after(&self, events: usize) -> SimMedium {
        let mut trace = self.clone();
        trace.events.truncate(events);
        SimMedium::from_trace(trace)
    }

    /// [`killed_after`](Self::killed_after) on a machine that is short of memory: of the pages that failed syncs left clean and not
    /// durable, `fate` says which leave the page cache before the next process reads them. Only [`Model::File`] has such pages.
    pub fn killed_and_evicted(&self, events: usize, mut fate: impl FnMut() -> PageFate) -> SimMedium {
        let mut trace = self.clone();
        trace.events.truncate(events);
        let mut replay = Replay::new(&trace);
        while replay.done < trace.events.len() {
            replay.step();
        }
        let pages = replay.lost_pages();
        drop(replay);
        for (region, page) in pages {
            let reached = match fate() {
                PageFate::Stays => continue,
                PageFate::Evicted => false,
                PageFate::Reached => true,
            };
            trace.events.push(Event { thread: 0, op: Op::Evict { region, page, reached } });
        }
        SimMedium::from_trace(trace)
    }

    /// The [notes](SimMedium::note) taken so far, oldest first.
    pub fn notes(&self) -> Vec<u64> {
        self.events.iter().filter_map(|event| if let Op::Note(note) = event.op { Some(note) } else { None }).collect()
    }

    /// Names and bytes as a running program sees them after the last event.
    pub(super) fn newest(&self) -> Snapshot {
        let mut newest = self.base.clone();
        let evicts = |event: &Event| matches!(event.op, Op::Evict { .. });
        // What the device has is needed for evictions alone.
        let mut device = self.events.iter().any(evicts).then(|| Replay::new(self));
        for event in &self.events {
            if let Some(device) = &mut device {
                device.step();
            }
            match &event.op {
                Op::Evict { region, page, .. } => {
                    let device = device.as_ref().expect("made where there are evictions");
                    if let (Some(to), Some(from)) = (newest.regions.get_mut(region), device.durable.regions.get(region)) {
                        to.copy_page(from, *page);
                    }
                }
                Op::Write { region, off, at, len, .. } => {
                    if let Some(pages) = newest.regions.get_mut(region) {
                        pages.write(*off, &self.data[*at..at + len]);
                    }
                }
                Op::Name(op) => {
                    if let NameOp::Create { region, len, .. } = op {
                        newest.regions.insert(*region, Pages::zeroed(*len));
                    }
                    apply_name(&mut newest, op);
                }
                _ => {}
            }
        }
        newest
    }

    pub(super) fn info(&self, index: usize) -> EventInfo<'_> {
        EventInfo { trace: self, index }
    }

    pub(super) fn region_name(&self, region: u32) -> &str {
        &self.region_names[region as usize]
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.events().try_for_each(|event| writeln!(f, "{event}"))
    }
}

impl<'t> EventInfo<'t> {
    /// Its number, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The number of its thread, from 0 in the order in which threads first appeared.
    pub fn thread(&self) -> u32 {
        self.event().thread
    }

    /// What it is.
    pub fn kind(&self) -> EventKind {
        match &self.event().op {
            Op::Write { streamed: false, .. } => EventKind::Store,
            Op::Write { streamed: true, .. } => EventKind::Stream,
            Op::WriteBack { .. } => EventKind::WriteBack,
            Op::Fence { .. } => EventKind::Fence,
            Op::FailedFence { .. } => EventKind::FailedFence,
            Op::Evict { .. } => EventKind::Evict,
            Op::Name(NameOp::Create { .. }) => EventKind::Create,
            Op::Name(NameOp::Remove { .. }) => EventKind::Remove,
            Op::Name(NameOp::Rename { .. }) => EventKind::Rename,
            Op::SyncNames => EventKind::SyncNames,
            Op::Note(_) => EventKind::Note,
            Op::Ignored { .. } => EventKind::Ignored,
        }
    }

    /// The name under which its region was created or opened first, where it has a region.
    pub fn region(&self) -> Option<&'t str> {
        let region = match &self.event().op {
            Op::Write { region, .. } | Op::WriteBack { region, .. } | Op::Evict { region, .. } => *region,
            Op::Fence { region } | Op::FailedFence { region } => *region,
            Op::Name(NameOp::Create { region, .. } | NameOp::Remove { region, .. } | NameOp::Rename { region, .. }) => *region,
            Op::Ignored { region, .. } => (*region)?,
            Op::SyncNames | Op::Note(_) => return None,
        };
        Some(self.trace.region_name(region))
    }

    /// Offset and length in its region, of writes and write-backs.
    pub fn range(&self) -> Option<(u64, u64)> {
        match self.event().op {
            Op::Write { off, len, .. } => Some((off, len as u64)),
            Op::WriteBack { off, len, .. } => Some((off, len)),
            _ => None,
        }
    }

    fn event(&self) -> &'t Event {
        &self.trace.events[self.index]
    }
}

impl fmt::Display for EventInfo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let event = self.event();
        let name = |region: &u32| self.trace.region_name(*region);
        write!(f, "event {} thread {}: ", self.index, event.thread)?;
        match &event.op {
            Op::Write { region, off, at, len, streamed } => {
                let verb = if *streamed { "stream" } else { "store" };
                write!(f, "{verb} {} {off}+{len}:", name(region))?;
                for byte in &self.trace.data[*at..at + len.min(&16)] {
                    write!(f, " {byte:02x}")?;
                }
                if *len > 16 { f.write_str(" ...") } else { Ok(()) }
            }
            Op::WriteBack { region, off, len } => {
                write!(f, "write_back {} {off}+{len}", name(region))
            }
            Op::Fence { region } => write!(f, "fence {}", name(region)),
            Op::FailedFence { region } => write!(f, "failed fence {}", name(region)),
            Op::Evict { region, page, reached } => {
                let device = if *reached { "has it" } else { "has the older content" };
                write!(f, "evict {} page {page}; the device {device}", name(region))
            }
            Op::Name(NameOp::Create { name, len, .. }) => write!(f, "create {name} of {len} bytes"),
            Op::Name(NameOp::Remove { name, .. }) => write!(f, "remove {name}"),
            Op::Name(NameOp::Rename { from, to, .. }) => write!(f, "rename {from} to {to}"),
            Op::SyncNames => f.write_str("sync_names"),
            Op::Note(note) => write!(f, "note {note}"),
            Op::Ignored { what, region } => {
                write!(f, "without effect: {what:?} {}", region.as_ref().map_or("", name))
            }
        }
    }
}

impl fmt::Debug for EventInfo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
