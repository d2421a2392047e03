//! How to create and open pools.

use std::time::Duration;

/// Which engine runs under the same interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Checkpoints beside the running program (the paper's method).
    #[default]
    NonStop,
    /// Stops the world at each checkpoint (CpNvm), for comparison.
    StopTheWorld,
    /// Keeps nothing: no tracking, no medium. The baseline of every ratio.
    Volatile,
}

/// How to create or open a pool. `Options::default()` suits most.
#[derive(Clone, Debug)]
pub struct Options {
    /// Capacity of the heap in bytes; fixed at creation. Default 1 GiB. Only what is used takes space.
    pub heap_len: u64,
    /// Bytes of the log; fixed at creation; `None`: a quarter of the heap, between 16 and 512 MiB; in place: an eighth, between 16 and
    /// 128 MiB, and 8 MiB where less is given.
    pub log_len: Option<u64>,
    /// Time between checkpoints. Default 100 ms.
    pub interval: Duration,
    /// Which engine. Default non-stop.
    pub mode: Mode,
    /// Persister threads; 0 picks 1 (2 in stop-the-world mode, as in the paper).
    pub persisters: usize,
    /// Load everything at open instead of as touched.
    pub eager: bool,
    /// Take the memory of the whole heap when it is created or opened, instead of as it is first stored to, which the kernel zeroes 2 MiB at a
    /// time while a thread waits. Takes `heap_len` bytes. (What an opened pool holds already comes as touched, or with `eager`.)
    pub prefault: bool,
    /// Which medium: `None` detects it from the path.
    pub medium: Option<towa_media::Kind>,
    /// A new pool on memory (`ram`) is in place: its image is its working copy. It takes half of the memory, and no persister copies
    /// anything; memory has no huge pages then unless tmpfs gives them, and an epoch's first mark of a line copies it. Without effect on
    /// other media, and on pools that are there.
    pub in_place: bool,
    /// Address of the heap; fixed at creation; `None` picks one.
    pub base: Option<usize>,
    /// Compare working copy and image at every epoch and report lines that were written but not marked. Slow; for tests.
    pub detect_forgotten_marks: bool,
    /// No background threads: checkpoints happen in [`Pool::checkpoint`](crate::Pool::checkpoint) only. For deterministic tests.
    pub manual: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            heap_len: 1 << 30,
            log_len: None,
            interval: Duration::from_millis(100),
            mode: Mode::NonStop,
            persisters: 0,
            eager: false,
            prefault: false,
            medium: None,
            in_place: false,
            base: None,
            detect_forgotten_marks: false,
            manual: false,
        }
    }
}
