//! Descriptors: which numbers a process has, which open files stand behind them, and what each of these is.
//!
//! ```text
//!   table          open files                     what lies in them
//!   0 ─────────►  0 standard stream
//!   3 ─────────►  1 regular file, at 4711
//!   4 ──┐
//!   7 ──┴──────►  2 pipe 0, read end  ───────┐
//!   5 ─────────►  3 pipe 0, write end ───────┴──►  pipe 0: "hello"
//! ```

mod look;
mod pairs;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use look::{Found, in_words, look};

/// All descriptors of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptors {
    /// By number, ascending.
    pub table: Vec<Descriptor>,
    /// What they stand for.
    pub files: Vec<OpenFile>,
    /// Pipes with both ends in the process.
    pub pipes: Vec<Pipe>,
    /// Pairs of unix sockets with both ends in the process.
    pub pairs: Vec<Pair>,
}

/// A number, and what it stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptor {
    /// The number.
    pub fd: i32,
    /// FD_CLOEXEC.
    pub close_on_exec: bool,
    /// Index of the open file. Duplicates have the same.
    pub file: usize,
}

/// An open file: what open(2) and its kin make, and dup(2) shares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFile {
    /// Access mode and status flags (O_APPEND, O_NONBLOCK, ...).
    pub flags: i32,
    /// What it is.
    pub kind: Kind,
}

/// What an open file is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A file with a name: it is opened again, and must be the same one then.
    Regular {
        /// Its name.
        #[serde(with = "towa_media::paths::one")]
        path: PathBuf,
        /// Which it is.
        identity: Identity,
        /// Where the next read or write begins.
        position: u64,
        /// Locks that the process holds on it.
        locks: Vec<Lock>,
    },
    /// A file without a name: its content is kept.
    Nameless {
        /// The name it had, or a memfd's.
        name: String,
        /// Whether it is a memfd.
        memfd: bool,
        /// Which it is: several open files may be one.
        identity: Identity,
        /// Where the next read or write begins.
        position: u64,
    },
    /// A directory.
    Directory {
        /// Its name.
        #[serde(with = "towa_media::paths::one")]
        path: PathBuf,
        /// Where the next listing goes on.
        position: u64,
    },
    /// What the system tells of the process itself: /proc/self/fd, /proc/self/maps and the like.
    Own {
        /// Its name below /proc/self.
        #[serde(with = "towa_media::paths::one")]
        path: PathBuf,
        /// Where the next read or listing goes on.
        position: u64,
    },
    /// One of the devices that have no state: null, zero, full, random, urandom.
    Device {
        /// Its name.
        #[serde(with = "towa_media::paths::one")]
        path: PathBuf,
    },
    /// Standard input, output or error, where that is a terminal or leads out of the process: the restarted process gets those of its
    /// restarter.
    Standard {
        /// 0, 1 or 2.
        stream: i32,
        /// Modes of the terminal (termios(3)), in hexadecimal; empty: it is none.
        terminal: String,
    },
    /// An end of a pipe whose other end is in the process, too.
    PipeEnd {
        /// Index of the pipe.
        pipe: usize,
        /// Whether it is the end that is written.
        writes: bool,
    },
    /// An end of a pair of unix sockets whose other end is in the process, too.
    PairEnd {
        /// Index of the pair.
        pair: usize,
        /// Which end.
        second: bool,
    },
    /// eventfd(2)
    Event {
        /// Its number.
        count: u64,
        /// EFD_SEMAPHORE
        semaphore: bool,
    },
    /// timerfd_create(2)
    Timer {
        /// Its clock.
        clock: i32,
        /// Expirations not read yet.
        ticks: u64,
        /// Flags of timerfd_settime(2).
        settime_flags: i32,
        /// Nanoseconds until it expires, 0: not armed.
        value_ns: u64,
        /// Nanoseconds between expirations.
        interval_ns: u64,
    },
    /// signalfd(2)
    Signal {
        /// Its signals.
        mask: u64,
    },
    /// epoll_create(2)
    Epoll {
        /// What it watches.
        watches: Vec<Watch>,
    },
    /// A socket that listens. Connections that wait to be accepted are not kept.
    Listening {
        /// AF_INET, AF_INET6 or AF_UNIX.
        domain: i32,
        /// Its type: SOCK_STREAM or SOCK_SEQPACKET.
        kind: i32,
        /// Its protocol.
        protocol: i32,
        /// The `sockaddr` it is bound to.
        address: Vec<u8>,
        /// How many may wait.
        backlog: i32,
        /// Options that are set: level, name, value.
        options: Vec<(i32, i32, i32)>,
    },
}

/// Which file it is, and in which state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Device.
    pub device: u64,
    /// Inode.
    pub inode: u64,
    /// Bytes.
    pub len: u64,
    /// When its content changed last, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// When anything of it changed last.
    pub changed_ns: i64,
}

impl Identity {
    /// The name by which a checkpoint keeps its content.
    pub fn name(&self) -> String {
        format!("inode-{}-{}", self.device, self.inode)
    }
}

impl Identity {
    /// From what stat(2) says.
    pub fn of(metadata: &std::fs::Metadata) -> Identity {
        use std::os::unix::fs::MetadataExt;
        Identity {
            device: metadata.dev(),
            inode: metadata.ino(),
            len: metadata.len(),
            modified_ns: metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec(),
            changed_ns: metadata.ctime() * 1_000_000_000 + metadata.ctime_nsec(),
        }
    }
}

/// A lock on a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// flock(2), not fcntl(2).
    pub whole: bool,
    /// For writing.
    pub exclusive: bool,
    /// First byte.
    pub start: u64,
    /// Last byte; `None`: to the end, wherever that is.
    pub last: Option<u64>,
}

/// What an epoll instance watches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    /// By this number.
    pub fd: i32,
    /// EPOLLIN and its kin.
    pub events: u32,
    /// What the program wants to be told.
    pub data: u64,
}

/// A pipe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pipe {
    /// Its inode, by which the ends know each other.
    pub inode: u64,
    /// Bytes that it holds at most.
    pub capacity: i32,
    /// What lies in it.
    pub content: Vec<u8>,
}

/// A pair of unix sockets. Whoever asks for the other side's identity (SO_PEERCRED) is told that of the restarter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// Their inodes, by which the ends know each other.
    pub inodes: [u32; 2],
    /// SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET.
    pub kind: i32,
    /// Protocol: 0, mostly.
    pub protocol: i32,
    /// The two ends.
    pub ends: [End; 2],
}

/// An end of a pair.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// What waits to be read there; of streams only.
    pub content: Vec<u8>,
    /// What was shut down: 1 reading, 2 writing.
    pub shutdown: u8,
    /// Options of SOL_SOCKET: name and value.
    pub options: Vec<(i32, i32)>,
}
