//! The structs of `include/towa.h`, field for field (`tests/abi.rs` compares sizes and offsets).
//!
//! [`Options`] and [`Stats`] start with their size so that they can grow: bytes that a caller does not know of are not touched, bytes
//! that this library does not know of must be zero (they would ask for something it cannot do).

use crate::error::Failure;
use std::time::Duration;
use towa_epoch::Mode;

/// `towa_options`: how to open a pool; zero means the default.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// `sizeof(towa_options)` of the caller's header.
    pub size: u32,
    /// `TOWA_OPEN_OR_CREATE` (0), `TOWA_OPEN_EXISTING` (1), `TOWA_CREATE_NEW` (2).
    pub open: u32,
    /// `TOWA_MODE_NONSTOP` (0), `TOWA_MODE_STOP_THE_WORLD` (1), `TOWA_MODE_VOLATILE` (2).
    pub mode: u32,
    /// `TOWA_MEDIUM_DETECT` (0), `_DAX` (1), `_FILE` (2), `_RAM` (3).
    pub medium: u32,
    /// `TOWA_EAGER`, `TOWA_DETECT_FORGOTTEN_MARKS`, `TOWA_MANUAL`, `TOWA_PREFAULT`, `TOWA_IN_PLACE`.
    pub flags: u32,
    /// Persister threads.
    pub persisters: u32,
    /// Capacity of the heap in bytes.
    pub heap_len: u64,
    /// Capacity of the log in bytes.
    pub log_len: u64,
    /// Microseconds between checkpoints.
    pub interval_us: u64,
    /// Address of the heap.
    pub base: u64,
}

/// Copies a caller's options, however old or new its header; `defaults` if `from` is NULL. Bytes that the caller's header does not know
/// of are zero, those that `T` does not know of must be.
///
/// # Safety
/// `from` is NULL or points to as many readable bytes as its first field, a `u32`, says (at least four). `T` begins with that field, and
/// has no invalid bit patterns.
pub(crate) unsafe fn read_sized<T: Copy + Default>(from: *const T, defaults: T, what: &str, init: &str) -> Result<T, Failure> {
    let ours = size_of::<T>();
    if from.is_null() {
        return Ok(defaults);
    }
    // SAFETY: the first field is there, by this function's contract.
    let theirs = unsafe { from.cast::<u32>().read_unaligned() } as usize;
    if !(4..=4096).contains(&theirs) {
        return Err(Failure::invalid(format!("{what}.size is {theirs}; start from {init}, which sets it to {ours}")));
    }
    // SAFETY: `theirs` bytes are readable, by this function's contract.
    let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), theirs) };
    if bytes.iter().skip(ours).any(|b| *b != 0) {
        return Err(Failure::invalid(format!(
            "{what} has {theirs} bytes and asks for something that this older library ({ours} bytes) does not know; update libtowa"
        )));
    }
    let mut options = T::default();
    // SAFETY: both are at least that long, and T has no invalid bit patterns.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut options).cast(), theirs.min(ours)) };
    Ok(options)
}

/// How many bytes of figures a caller's struct and ours have in common.
///
/// # Safety
/// `to` is NULL or its first field, a `u64`, is readable.
pub(crate) unsafe fn room<T>(to: *const T, what: &str) -> Result<u64, Failure> {
    if to.is_null() {
        return Err(Failure::invalid(format!("{what}: no struct to fill (NULL)")));
    }
    // SAFETY: the first field is there, by this function's contract.
    let theirs = unsafe { to.cast::<u64>().read_unaligned() };
    if !(8..=65_536).contains(&theirs) {
        return Err(Failure::invalid(format!("struct {what}: size is {theirs}; set it to sizeof(struct {what}) before the call")));
    }
    Ok(theirs.min(size_of::<T>() as u64))
}

/// `towa_options.flags`: load everything at open.
pub const EAGER: u32 = 1;
/// `towa_options.flags`: compare heap and image at every epoch.
pub const DETECT_FORGOTTEN_MARKS: u32 = 2;
/// `towa_options.flags`: no checkpoints by themselves.
pub const MANUAL: u32 = 4;
/// `towa_options.flags`: take the heap's memory at open.
pub const PREFAULT: u32 = 8;
/// [`Options::flags`]: a new pool on tmpfs has its image for its working copy.
pub const IN_PLACE: u32 = 16;

/// More microseconds than this are this many: nanoseconds fit in 64 bits.
pub(crate) const INTERVAL_US_MAX: u64 = u64::MAX / 1000;
/// A heap or log of more bytes than a process can address is a mistake.
pub(crate) const LEN_MAX: u64 = 1 << 47;

/// What `towa_options.open` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenHow {
    OpenOrCreate,
    OpenExisting,
    CreateNew,
}

impl OpenHow {
    /// From `open` of a struct of options.
    pub(crate) fn of(open: u32) -> Option<OpenHow> {
        match open {
            0 => Some(OpenHow::OpenOrCreate),
            1 => Some(OpenHow::OpenExisting),
            2 => Some(OpenHow::CreateNew),
            _ => None,
        }
    }
}

/// From `medium` of a struct of options; `Err` is no such medium.
pub(crate) fn medium_of(medium: u32) -> Result<Option<towa_media::Kind>, ()> {
    match medium {
        0 => Ok(None),
        1 => Ok(Some(towa_media::Kind::Dax)),
        2 => Ok(Some(towa_media::Kind::File)),
        3 => Ok(Some(towa_media::Kind::Ram)),
        _ => Err(()),
    }
}

impl Options {
    /// Copies the caller's options, however old or new its header; the defaults if `from` is NULL.
    ///
    /// # Safety
    /// `from` is NULL or points to as many readable bytes as its first field says (at least four).
    pub(crate) unsafe fn read(from: *const Options) -> Result<Options, Failure> {
        let defaults = Options { size: size_of::<Options>() as u32, ..Options::default() };
        // SAFETY: handed on; Options has no invalid bit patterns and begins with its size.
        unsafe { read_sized(from, defaults, "towa_options", "TOWA_OPTIONS_INIT") }
    }

    /// The same for the engine.
    pub(crate) fn to_engine(self) -> Result<(OpenHow, towa_epoch::Options), Failure> {
        let unknown =
            |field: &str, value: u32| Failure::invalid(format!("towa_options.{field} is {value}, which towa.h does not define"));
        let mut engine = towa_epoch::Options::default();
        let how = OpenHow::of(self.open).ok_or_else(|| unknown("open", self.open))?;
        engine.mode = match self.mode {
            0 => Mode::NonStop,
            1 => Mode::StopTheWorld,
            2 => Mode::Volatile,
            other => return Err(unknown("mode", other)),
        };
        engine.medium = medium_of(self.medium).map_err(|()| unknown("medium", self.medium))?;
        if self.flags & !(EAGER | DETECT_FORGOTTEN_MARKS | MANUAL | PREFAULT | IN_PLACE) != 0 {
            return Err(unknown("flags", self.flags));
        }
        engine.eager = self.flags & EAGER != 0;
        engine.detect_forgotten_marks = self.flags & DETECT_FORGOTTEN_MARKS != 0;
        engine.manual = self.flags & MANUAL != 0;
        engine.prefault = self.flags & PREFAULT != 0;
        engine.in_place = self.flags & IN_PLACE != 0;
        engine.persisters = self.persisters as usize;
        if let Some((field, len)) = [("heap_len", self.heap_len), ("log_len", self.log_len)].into_iter().find(|l| l.1 > LEN_MAX) {
            return Err(Failure::invalid(format!("towa_options.{field} is {len} bytes, more than a process can address")));
        }
        if self.heap_len != 0 {
            engine.heap_len = self.heap_len;
        }
        if self.log_len != 0 {
            engine.log_len = Some(self.log_len);
        }
        if self.interval_us != 0 {
            engine.interval = Duration::from_micros(self.interval_us.min(INTERVAL_US_MAX));
        }
        if self.base != 0 {
            engine.base = Some(self.base as usize);
        }
        Ok((how, engine))
    }
}

macro_rules! stats {
    ($($(#[$doc:meta])* $field:ident),* $(,)?) => {
        /// `struct towa_stats`: what the engine has been doing; see [`towa_epoch::Stats`] for the fields.
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default)]
        pub struct Stats {
            /// In: the caller's size; out: bytes filled.
            pub size: u64,
            $($(#[$doc])* #[allow(missing_docs)] pub $field: u64,)*
        }

        impl Stats {
            /// Offset and name of every field, for the comparison with the header.
            pub const FIELDS: &[(usize, &str)] = &[
                (std::mem::offset_of!(Stats, size), "size"),
                $((std::mem::offset_of!(Stats, $field), stringify!($field)),)*
            ];
        }

        impl From<&towa_epoch::Stats> for Stats {
            fn from(s: &towa_epoch::Stats) -> Self {
                Self { size: size_of::<Self>() as u64, $($field: s.$field,)* }
            }
        }
    };
}

stats!(
    epoch,
    durable_epoch,
    durable_age_us,
    checkpoints,
    log_bytes,
    log_capacity,
    lines_logged,
    lines_copied_on_write,
    stalls,
    stall_us,
    boundary_us_max,
    checkpoint_us_max,
    heap_used,
    heap_len,
    threads,
    recovered_lines,
    recovery_us,
    medium_bytes,
    medium_fences,
);

impl Stats {
    /// Gives the caller as much as it has room for.
    ///
    /// # Safety
    /// `to` is NULL or points to as many writable bytes as its first field says (at least eight).
    pub(crate) unsafe fn write(mut self, to: *mut Stats) -> Result<(), Failure> {
        // What is filled is whatever the caller's and our struct have in common.
        // SAFETY: handed on.
        self.size = unsafe { room(to, "towa_stats") }?;
        // SAFETY: so many bytes are writable there, by this function's contract, and readable here.
        unsafe { std::ptr::copy_nonoverlapping((&raw const self).cast::<u8>(), to.cast::<u8>(), self.size as usize) };
        Ok(())
    }
}

/// `struct towa_window`: which lines the running transaction may write without telling the library again. All zero: none.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// First address of the heap.
    pub base: usize,
    /// Its length in bytes; 0: always ask.
    pub len: usize,
    /// One byte per 64-byte line: the tag of the epoch that last marked it.
    pub tags: *const u8,
    /// The running transaction's tag.
    pub tag: u8,
    /// 1: nothing is tracked.
    pub untracked: u8,
    /// Zero.
    pub reserved: [u8; 6],
}

impl Window {
    /// Always ask.
    pub const CLOSED: Window = Window { base: 0, len: 0, tags: std::ptr::null(), tag: 0, untracked: 0, reserved: [0; 6] };

    /// What a transaction that has just begun on `thread` may do without asking.
    pub(crate) fn of(thread: &towa_epoch::Thread, undoable: bool) -> Window {
        // SAFETY: the thread is here, and its window is not written while we look.
        let engine = unsafe { thread.window_ptr().read() };
        if engine.tags.is_null() {
            // Nothing is tracked; but what may be rolled back must be saved before it is written.
            return Window { untracked: (!undoable).into(), ..Window::CLOSED };
        }
        Window { base: engine.base, len: engine.len, tags: engine.tags, tag: engine.tag, ..Window::CLOSED }
    }
}
