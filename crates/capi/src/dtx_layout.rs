//! The structs of `include/towa_tx.h`, field for field (`tests/abi.rs` compares sizes and offsets), and what their numbers mean.
//!
//! They start with their size, and grow as those of [`layout`](crate::layout) do.

use crate::error::Failure;
use crate::layout::{INTERVAL_US_MAX, LEN_MAX, OpenHow, medium_of, read_sized, room};
use std::ffi::c_int;
use std::time::Duration;
use towa_tx::{Checkpointer, Commit, Tm, TmChoice};

/// `towa_dtx_options.flags`: load everything at open.
pub const DTX_EAGER: u32 = 1;
/// `towa_dtx_options.flags`: keeps nothing.
pub const DTX_VOLATILE: u32 = 2;
/// `towa_dtx_options.flags`: take the heap's memory at open.
pub const DTX_PREFAULT: u32 = 4;
/// What an access gives when another transaction was in the way.
pub const DTX_AGAIN: c_int = -64;

/// `towa_dtx_options`: how to open a pool of transactions; zero means the default.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DtxOptions {
    /// `sizeof(towa_dtx_options)` of the caller's header.
    pub size: u32,
    /// `TOWA_OPEN_OR_CREATE` (0), `TOWA_OPEN_EXISTING` (1), `TOWA_CREATE_NEW` (2).
    pub open: u32,
    /// `TOWA_MEDIUM_DETECT` (0), `_DAX` (1), `_FILE` (2), `_RAM` (3).
    pub medium: u32,
    /// `TOWA_DTX_TM_AUTO` (0), `_RTM` (1), `_STM` (2), `_LOCK` (3).
    pub tm: u32,
    /// `TOWA_DTX_STRICT` (0), `TOWA_DTX_BUFFERED` (1).
    pub commit: u32,
    /// `TOWA_DTX_CHECKPOINTER_THREAD` (0), `_PROCESS` (1), `_MANUAL` (2).
    pub checkpointer: u32,
    /// `TOWA_DTX_EAGER`, `TOWA_DTX_VOLATILE`, `TOWA_DTX_PREFAULT`.
    pub flags: u32,
    /// Logs of the pool.
    pub lanes: u32,
    /// Capacity of the heap in bytes.
    pub heap_len: u64,
    /// Bytes of each log.
    pub lane_len: u64,
    /// Microseconds between writes of buffered commits.
    pub interval_us: u64,
    /// Address of the heap.
    pub base: u64,
}

impl DtxOptions {
    /// Copies the caller's options, however old or new its header; the defaults if `from` is NULL.
    ///
    /// # Safety
    /// `from` is NULL or points to as many readable bytes as its first field says (at least four).
    pub(crate) unsafe fn read(from: *const DtxOptions) -> Result<DtxOptions, Failure> {
        let defaults = DtxOptions { size: size_of::<DtxOptions>() as u32, ..DtxOptions::default() };
        // SAFETY: handed on; DtxOptions has no invalid bit patterns and begins with its size.
        unsafe { read_sized(from, defaults, "towa_dtx_options", "TOWA_DTX_OPTIONS_INIT") }
    }

    /// The same for the engine.
    pub(crate) fn to_engine(self) -> Result<(OpenHow, towa_tx::Options), Failure> {
        let unknown = |field: &str, value: u32| {
            Failure::invalid(format!("towa_dtx_options.{field} is {value}, which towa_tx.h does not define"))
        };
        let how = OpenHow::of(self.open).ok_or_else(|| unknown("open", self.open))?;
        let mut engine = towa_tx::Options {
            medium: medium_of(self.medium).map_err(|()| unknown("medium", self.medium))?,
            tm: match self.tm {
                0 => TmChoice::Auto,
                1 => TmChoice::Rtm,
                2 => TmChoice::Stm,
                3 => TmChoice::Lock,
                other => return Err(unknown("tm", other)),
            },
            commit: match self.commit {
                0 => Commit::Strict,
                1 => Commit::Buffered,
                other => return Err(unknown("commit", other)),
            },
            checkpointer: match self.checkpointer {
                0 => Checkpointer::Thread,
                1 => Checkpointer::Process,
                2 => Checkpointer::Manual,
                other => return Err(unknown("checkpointer", other)),
            },
            ..towa_tx::Options::default()
        };
        if self.flags & !(DTX_EAGER | DTX_VOLATILE | DTX_PREFAULT) != 0 {
            return Err(unknown("flags", self.flags));
        }
        engine.eager = self.flags & DTX_EAGER != 0;
        engine.prefault = self.flags & DTX_PREFAULT != 0;
        let lens = [("heap_len", self.heap_len), ("lane_len", self.lane_len)];
        if let Some((field, len)) = lens.into_iter().find(|l| l.1 > LEN_MAX) {
            return Err(Failure::invalid(format!("towa_dtx_options.{field} is {len} bytes, more than a process can address")));
        }
        if self.lanes != 0 {
            engine.lanes = self.lanes;
        }
        if self.heap_len != 0 {
            engine.heap_len = self.heap_len;
        }
        if self.lane_len != 0 {
            engine.lane_len = self.lane_len;
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
    ($($field:ident),* $(,)?) => {
        /// `struct towa_dtx_stats`; see [`towa_tx::Stats`] for the fields.
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default)]
        pub struct DtxStats {
            /// In: the caller's size; out: bytes filled.
            pub size: u64,
            /// How transactions run: `TOWA_DTX_TM_RTM`, `_STM` or `_LOCK`.
            pub tm: u64,
            $(#[allow(missing_docs)] pub $field: u64,)*
        }

        impl DtxStats {
            /// Offset and name of every field, for the comparison with the header.
            pub const FIELDS: &[(usize, &str)] = &[
                (std::mem::offset_of!(DtxStats, size), "size"),
                (std::mem::offset_of!(DtxStats, tm), "tm"),
                $((std::mem::offset_of!(DtxStats, $field), stringify!($field)),)*
            ];

            pub(crate) fn of(pool: &towa_tx::Pool) -> Self {
                let s = pool.stats();
                let tm = match pool.tm() {
                    Tm::Rtm => 1,
                    Tm::Stm => 2,
                    Tm::Lock => 3,
                };
                Self { size: size_of::<Self>() as u64, tm, $($field: s.$field,)* }
            }
        }
    };
}

stats!(
    commits_hardware,
    commits_software,
    commits_read_only,
    aborts_conflict,
    aborts_capacity,
    aborts_explicit,
    aborts_spurious,
    aborts_software,
    stale,
    aborts_user,
    abort_ns,
    log_full_ns,
    durability_ns,
    dependency_ns,
    log_words,
    log_bytes,
    checkpoints,
    records_applied,
    lines_written_back,
    replay_ns,
);

impl DtxStats {
    /// Gives the caller as much as it has room for.
    ///
    /// # Safety
    /// `to` is NULL or points to as many writable bytes as its first field says (at least eight).
    pub(crate) unsafe fn write(mut self, to: *mut DtxStats) -> Result<(), Failure> {
        // SAFETY: handed on.
        self.size = unsafe { room(to, "towa_dtx_stats") }?;
        // SAFETY: so many bytes are writable there, by this function's contract, and readable here.
        unsafe { std::ptr::copy_nonoverlapping((&raw const self).cast::<u8>(), to.cast::<u8>(), self.size as usize) };
        Ok(())
    }
}
