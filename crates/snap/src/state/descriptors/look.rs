//! Finds out what the descriptors of a process are; what cannot be kept is listed, all of it.
//!
//! Most is in `/proc/PID/fdinfo`; the rest is asked of the open file itself, taken over by `pidfd_getfd`. Nothing is consumed or moved.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::pairs::Ends;
use super::{Descriptor, Descriptors, Identity, Kind, Lock, OpenFile, Pipe, Watch};
use crate::error::{Error, Refusal, Result};
use crate::state::thread::hex;
use crate::sys::fd::{self, Process};
use crate::sys::proc;

/// What was found, and what stands in the way.
#[derive(Debug, Default)]
pub struct Found {
    /// The descriptors.
    pub descriptors: Descriptors,
    /// Those that cannot be kept.
    pub refused: Vec<Refusal>,
    /// For each open file, a descriptor of this process that shares it.
    pub taken: Vec<OwnedFd>,
}

/// One descriptor, as the kernel describes it.
struct Seen {
    pid: i32,
    fd: i32,
    /// What the link in /proc says.
    name: String,
    info: Info,
    taken: OwnedFd,
}

/// What `/proc/PID/fdinfo/FD` says: `key: value` lines.
struct Info(Vec<(String, String)>);

impl Info {
    fn of(pid: i32, fd: i32) -> io::Result<Info> {
        let text = proc::text(&format!("/proc/{pid}/fdinfo/{fd}"))?;
        let line = |line: &str| line.split_once(':').map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()));
        Ok(Info(text.lines().filter_map(line).collect()))
    }

    fn all(&self, key: &'static str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    fn word(&self, key: &'static str) -> &str {
        self.all(key).next().unwrap_or("")
    }

    fn number(&self, key: &'static str) -> u64 {
        self.word(key).parse().unwrap_or(0)
    }

    /// "(seconds, nanoseconds)"
    fn time_ns(&self, key: &'static str) -> u64 {
        let inner = self.word(key).trim_matches(['(', ')']);
        let (seconds, ns) = inner.split_once(',').unwrap_or(("0", "0"));
        seconds.trim().parse::<u64>().unwrap_or(0) * 1_000_000_000 + ns.trim().parse::<u64>().unwrap_or(0)
    }

    fn flags(&self) -> i32 {
        i32::from_str_radix(self.word("flags"), 8).unwrap_or(0)
    }
}

/// Looks at all descriptors of a process.
pub fn look(process: &Process) -> Result<Found> {
    let pid = process.pid();
    let mut found = Found::default();
    let mut seen = Vec::new();
    for fd in numbers(pid)? {
        match see(process, fd) {
            Ok(one) => seen.push(one),
            Err(Error::Io { source, .. }) if source.raw_os_error() == Some(libc::EBADF) => {} // closed meanwhile
            Err(Error::Io { what, source }) => {
                found.refused.push(Refusal { place: format!("fd {fd}"), what: format!("cannot be looked at: {what}: {source}") });
            }
            Err(e) => return Err(e),
        }
    }
    // Which are one open file: looked for among those alone that look the same.
    let mut alike: HashMap<_, Vec<(i32, usize)>> = HashMap::new();
    let (ends, pairs) = (pipe_ends(&seen), Ends::of(&unix_sockets(&seen)));
    for one in seen {
        let flags = one.info.flags();
        let close_on_exec = flags & libc::O_CLOEXEC != 0;
        let flags = flags & !libc::O_CLOEXEC;
        let key = (one.name.clone(), flags, one.info.number("pos"), one.info.number("ino"));
        let others = alike.entry(key).or_default();
        let mut same = None;
        for (fd, file) in others.iter() {
            if process.is_same_file(*fd, one.fd)? {
                same = Some(*file);
                break;
            }
        }
        let file = match same {
            Some(file) => file,
            None => match kind(&one, &mut found.descriptors, &ends, &pairs) {
                Ok(kind) => {
                    found.descriptors.files.push(OpenFile { flags, kind });
                    found.taken.push(one.taken);
                    found.descriptors.files.len() - 1
                }
                Err(what) => {
                    found.refused.push(Refusal { place: format!("fd {}", one.fd), what });
                    continue;
                }
            },
        };
        others.push((one.fd, file));
        found.descriptors.table.push(Descriptor { fd: one.fd, close_on_exec, file });
    }
    check_watches(&mut found);
    Ok(found)
}

fn numbers(pid: i32) -> Result<Vec<i32>> {
    let path = format!("/proc/{pid}/fd");
    let entries = std::fs::read_dir(&path).map_err(proc::failed(pid, &path))?;
    let mut numbers: Vec<i32> = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

fn see(process: &Process, fd: i32) -> Result<Seen> {
    let pid = process.pid();
    let taken = process.descriptor(fd)?;
    let failed = |e: io::Error| Error::io(format!("descriptor {fd} of process {pid}"), e);
    let name = std::fs::read_link(format!("/proc/{pid}/fd/{fd}")).map_err(failed)?;
    Ok(Seen { pid, fd, name: name.to_string_lossy().into_owned(), info: Info::of(pid, fd).map_err(failed)?, taken })
}

/// For each pipe, whether its read end and its write end are among these.
fn pipe_ends(seen: &[Seen]) -> HashMap<String, (bool, bool)> {
    let mut ends: HashMap<String, (bool, bool)> = HashMap::new();
    for one in seen.iter().filter(|one| one.name.starts_with("pipe:[")) {
        let (reads, writes) = ends.entry(one.name.clone()).or_default();
        match one.info.flags() & libc::O_ACCMODE {
            libc::O_RDONLY => *reads = true,
            libc::O_WRONLY => *writes = true,
            _ => (*reads, *writes) = (true, true),
        }
    }
    ends
}

/// The inodes of the unix sockets among these.
fn unix_sockets(seen: &[Seen]) -> Vec<u32> {
    let inode = |one: &Seen| one.name.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u32>().ok();
    let is_unix = |one: &Seen| fd::socket_option(one.taken.as_fd(), libc::SOL_SOCKET, libc::SO_DOMAIN).ok() == Some(libc::AF_UNIX);
    seen.iter().filter_map(|one| Some((inode(one)?, one))).filter(|(_, one)| is_unix(one)).map(|(inode, _)| inode).collect()
}

/// What it is; an error says why that cannot be kept.
fn kind(
    one: &Seen,
    descriptors: &mut Descriptors,
    ends: &HashMap<String, (bool, bool)>,
    pairs: &Ends,
) -> std::result::Result<Kind, String> {
    if one.info.flags() & libc::O_ASYNC != 0 {
        return Err(format!("{}: it sends signals when it is ready (O_ASYNC)", one.name));
    }
    if let Some(what) = one.name.strip_prefix("anon_inode:") {
        return anonymous(what, &one.info);
    }
    let metadata =
        File::from(one.taken.try_clone().map_err(|e| e.to_string())?).metadata().map_err(|e| format!("{}: {e}", one.name))?;
    if let Some(path) = one.name.strip_prefix(&format!("/proc/{}", one.pid)).filter(|path| path.is_empty() || path.starts_with('/'))
    {
        return own(path, one);
    }
    let kind = metadata.file_type();
    if kind.is_fifo() {
        pipe_end(one, &mut descriptors.pipes, ends)
    } else if kind.is_socket() {
        let inode = metadata.ino() as u32;
        if pairs.other(inode).is_some() {
            let (pair, second) = pairs.pair(inode, one.taken.as_fd(), &mut descriptors.pairs)?;
            return Ok(Kind::PairEnd { pair, second });
        }
        socket(one)
    } else if kind.is_char_device() {
        device(one, metadata.rdev())
    } else if kind.is_dir() {
        let path = named(one, &metadata)?;
        Ok(Kind::Directory { path, position: one.info.number("pos") })
    } else if kind.is_file() {
        regular(one, &metadata)
    } else {
        Err(format!("{}: a block device", one.name))
    }
}

fn anonymous(what: &str, info: &Info) -> std::result::Result<Kind, String> {
    match what {
        "[eventfd]" => Ok(Kind::Event { count: info.number("eventfd-count"), semaphore: info.word("eventfd-semaphore") == "1" }),
        "[timerfd]" => Ok(Kind::Timer {
            clock: info.number("clockid") as i32,
            ticks: info.number("ticks"),
            settime_flags: i32::from_str_radix(info.word("settime flags"), 8).unwrap_or(0),
            value_ns: info.time_ns("it_value"),
            interval_ns: info.time_ns("it_interval"),
        }),
        "[signalfd]" => Ok(Kind::Signal { mask: u64::from_str_radix(info.word("sigmask"), 16).unwrap_or(0) }),
        "[eventpoll]" => Ok(Kind::Epoll { watches: info.all("tfd").map(watch).collect() }),
        "[io_uring]" => Err("an io_uring, whose requests in flight cannot be kept".into()),
        "inotify" => Err("an inotify instance, which watches files by more than their names".into()),
        "[userfaultfd]" => Err("a userfaultfd: another program, or this one, serves its page faults".into()),
        "[pidfd]" => Err("a pidfd: another process".into()),
        other => Err(format!("{other}, of a kind that is not known here")),
    }
}

/// "3 events: 19 data: 3  pos:0 ino:5ce891 sdev:f", behind "tfd:"
fn watch(line: &str) -> Watch {
    let mut words = line.split_whitespace().flat_map(|word| word.split(':')).filter(|word| !word.is_empty());
    let fd = words.next().and_then(|word| word.parse().ok()).unwrap_or(-1);
    let mut hex = |key: &str| {
        words.find(|word| *word == key)?;
        words.next().and_then(|word| u64::from_str_radix(word, 16).ok())
    };
    let events = hex("events").unwrap_or(0) as u32;
    Watch { fd, events, data: hex("data").unwrap_or(0) }
}

/// An epoll instance may watch an open file whose number is closed, or means another now: that cannot be made again.
fn check_watches(found: &mut Found) {
    let table = &found.descriptors.table;
    for descriptor in table {
        let Kind::Epoll { watches } = &found.descriptors.files[descriptor.file].kind else { continue };
        for watch in watches.iter().filter(|watch| table.iter().all(|other| other.fd != watch.fd)) {
            let what = format!("an epoll instance that watches number {}, which is closed or cannot be kept", watch.fd);
            found.refused.push(Refusal { place: format!("fd {}", descriptor.fd), what });
        }
    }
}

/// Of a descriptor that leads out of the process: the stream that it is, if it is a standard one.
fn standard(one: &Seen, what: &str) -> std::result::Result<Kind, String> {
    if (0..=2).contains(&one.fd) {
        return Ok(Kind::Standard { stream: one.fd, terminal: String::new() });
    }
    Err(format!("{what}; only standard input, output and error may lead out of the process"))
}

fn pipe_end(one: &Seen, pipes: &mut Vec<Pipe>, ends: &HashMap<String, (bool, bool)>) -> std::result::Result<Kind, String> {
    let flags = one.info.flags();
    if !one.name.starts_with("pipe:[") {
        return standard(one, &format!("{}: a named pipe", one.name));
    }
    if ends.get(&one.name) != Some(&(true, true)) && !other_end_is_closed(one.taken.as_fd()) {
        return standard(one, &format!("{}: a pipe whose other end is in another process", one.name));
    }
    let writes = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => false,
        libc::O_WRONLY => true,
        _ => return Err(format!("{}: a pipe opened for reading and writing at once", one.name)),
    };
    if flags & libc::O_DIRECT != 0 {
        return Err(format!("{}: a pipe of packets (O_DIRECT)", one.name));
    }
    let inode = one.info.number("ino");
    let pipe = match pipes.iter().position(|pipe| pipe.inode == inode) {
        Some(pipe) => pipe,
        None => {
            let capacity = fd::pipe_capacity(one.taken.as_fd()).map_err(|e| format!("{}: {e}", one.name))?;
            pipes.push(Pipe { inode, capacity, content: Vec::new() });
            pipes.len() - 1
        }
    };
    if !writes && pipes[pipe].content.is_empty() {
        pipes[pipe].content = fd::peek_pipe(one.taken.as_fd()).map_err(|e| format!("{}: {e}", one.name))?;
    }
    Ok(Kind::PipeEnd { pipe, writes })
}

/// Whether nobody has the other end of a pipe any more.
fn other_end_is_closed(pipe: BorrowedFd<'_>) -> bool {
    let mut look = libc::pollfd { fd: pipe.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: one live pollfd; it does not wait.
    unsafe { libc::poll(&raw mut look, 1, 0) == 1 && look.revents & (libc::POLLHUP | libc::POLLERR) != 0 }
}

fn device(one: &Seen, rdev: u64) -> std::result::Result<Kind, String> {
    match (libc::major(rdev), libc::minor(rdev)) {
        (1, 3 | 5 | 7 | 8 | 9) => Ok(Kind::Device { path: PathBuf::from(&one.name) }),
        // Virtual consoles and serial lines, the controlling terminal, pseudo-terminals.
        (4 | 5 | 136..=143, _) => {
            let stream =
                if (0..=2).contains(&one.fd) { one.fd } else { i32::from(one.info.flags() & libc::O_ACCMODE != libc::O_RDONLY) };
            let terminal = fd::terminal_modes(one.taken.as_fd()).map_or(String::new(), |modes| hex(&modes));
            Ok(Kind::Standard { stream, terminal })
        }
        (major, minor) => Err(format!("{}: a device ({major}:{minor})", one.name)),
    }
}

/// Below /proc/PID. When the process opens it again it has its first thread only.
fn own(path: &str, one: &Seen) -> std::result::Result<Kind, String> {
    if path.starts_with("/task/") {
        return Err(format!("{}: what the system tells of a thread", one.name));
    }
    Ok(Kind::Own { path: path.trim_start_matches('/').into(), position: one.info.number("pos") })
}

/// The name of a file that still has it.
fn named(one: &Seen, metadata: &std::fs::Metadata) -> std::result::Result<PathBuf, String> {
    let path = Path::new(&one.name);
    match std::fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            Err(format!("{}: this user may not look for it there ({e})", one.name))
        }
        Ok(there) if (there.dev(), there.ino()) == (metadata.dev(), metadata.ino()) => Ok(path.to_owned()),
        _ => Err(format!("{}: it is not what this name means here (removed, renamed, or in another mount namespace)", one.name)),
    }
}

fn regular(one: &Seen, metadata: &std::fs::Metadata) -> std::result::Result<Kind, String> {
    let (position, identity) = (one.info.number("pos"), Identity::of(metadata));
    let locks: Vec<Lock> = one.info.all("lock").map(lock).collect::<std::result::Result<_, String>>()?;
    if metadata.nlink() > 0 {
        return Ok(Kind::Regular { path: named(one, metadata)?, identity, position, locks });
    }
    if !locks.is_empty() {
        return Err(format!("{}: a lock on a file without a name", one.name));
    }
    let memfd = one.name.strip_prefix("/memfd:");
    let name = memfd.unwrap_or(&one.name).trim_end_matches(" (deleted)").to_owned();
    if memfd.is_some() && seals(one.taken.as_fd()) & !libc::F_SEAL_SEAL != 0 {
        return Err(format!("{}: a sealed memfd", one.name));
    }
    Ok(Kind::Nameless { name, memfd: memfd.is_some(), identity, position })
}

fn seals(file: BorrowedFd<'_>) -> i32 {
    // SAFETY: numbers only.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) }.max(0)
}

/// "1: POSIX  ADVISORY  WRITE 23541 fe:00:10240165 0 EOF"
fn lock(line: &str) -> std::result::Result<Lock, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, kind @ ("POSIX" | "FLOCK"), _, mode @ ("READ" | "WRITE"), _, _, start, last] = words[..] else {
        return Err(format!("a lock of a kind that cannot be taken again: {line}"));
    };
    let start = start.parse().map_err(|_| format!("a lock from {start}"))?;
    Ok(Lock { whole: kind == "FLOCK", exclusive: mode == "WRITE", start, last: last.parse().ok() })
}

/// Options that are kept of a listening socket.
const OPTIONS: [(i32, i32); 9] = [
    (libc::SOL_SOCKET, libc::SO_SNDBUF),
    (libc::SOL_SOCKET, libc::SO_RCVBUF),
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_PASSCRED),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
];

fn socket(one: &Seen) -> std::result::Result<Kind, String> {
    let socket = one.taken.as_fd();
    let option = |name| fd::socket_option(socket, libc::SOL_SOCKET, name).map_err(|e| format!("{}: {e}", one.name));
    let (domain, kind, protocol) = (option(libc::SO_DOMAIN)?, option(libc::SO_TYPE)?, option(libc::SO_PROTOCOL)?);
    let address = fd::socket_address(socket, false).map_err(|e| format!("{}: {e}", one.name))?;
    if option(libc::SO_ACCEPTCONN)? == 0 {
        let peer = fd::socket_address(socket, true).ok();
        return standard(one, &described(domain, kind, &address, peer.as_deref()));
    }
    if ![libc::AF_INET, libc::AF_INET6, libc::AF_UNIX].contains(&domain) {
        return Err(format!("a listening socket of address family {domain}"));
    }
    let options = OPTIONS
        .iter()
        .filter(|(level, _)| *level == libc::SOL_SOCKET || domain != libc::AF_UNIX)
        .filter(|(level, _)| *level != libc::IPPROTO_IPV6 || domain == libc::AF_INET6)
        .filter_map(|(level, name)| Some((*level, *name, fd::socket_option(socket, *level, *name).ok()?)))
        .filter(|(_, name, value)| *value != 0 || *name == libc::IPV6_V6ONLY)
        .collect();
    // The kernel tells a backlog of TCP only (`tcpi_sacked`), of others nobody: the most there may be.
    let backlog = if domain == libc::AF_UNIX { None } else { tcp_backlog(socket) };
    Ok(Kind::Listening { domain, kind, protocol, address, backlog: backlog.unwrap_or(libc::SOMAXCONN), options })
}

fn tcp_backlog(socket: BorrowedFd<'_>) -> Option<i32> {
    const TCPI_SACKED: usize = 28;
    let mut bytes = [0u8; 256];
    let mut len = bytes.len() as libc::socklen_t;
    // SAFETY: a buffer and its length.
    let got =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, bytes.as_mut_ptr().cast(), &raw mut len) };
    let word = bytes.get(TCPI_SACKED..TCPI_SACKED + 4).filter(|_| got == 0 && len as usize >= TCPI_SACKED + 4)?;
    Some(u32::from_ne_bytes(word.try_into().ok()?) as i32)
}

/// A socket that cannot be kept, in words.
fn described(domain: i32, kind: i32, address: &[u8], peer: Option<&[u8]>) -> String {
    let family = match (domain, kind) {
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM) => "TCP",
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_DGRAM) => "UDP",
        (libc::AF_UNIX, _) => "unix",
        (libc::AF_NETLINK, _) => "netlink",
        _ => "socket",
    };
    match peer {
        Some(peer) => format!("connected {family} {} to {}", in_words(address), in_words(peer)),
        None => format!("{family} socket {} that is neither connected nor listens", in_words(address)),
    }
}

/// `127.0.0.1:80`, `[::1]:80`, a path; else nothing.
pub fn in_words(address: &[u8]) -> String {
    let family = address.get(..2).map(|two| i32::from(u16::from_ne_bytes([two[0], two[1]])));
    let port = || u16::from_be_bytes([address[2], address[3]]);
    match family {
        Some(libc::AF_INET) if address.len() >= 8 => {
            let octets: [u8; 4] = address[4..8].try_into().expect("four bytes");
            format!("{}:{}", std::net::Ipv4Addr::from(octets), port())
        }
        Some(libc::AF_INET6) if address.len() >= 24 => {
            let octets: [u8; 16] = address[8..24].try_into().expect("sixteen bytes");
            format!("[{}]:{}", std::net::Ipv6Addr::from(octets), port())
        }
        Some(libc::AF_UNIX) if address.len() > 2 => {
            let (mark, name) = if address[2] == 0 { ("@", &address[3..]) } else { ("", &address[2..]) };
            format!("{mark}{}", String::from_utf8_lossy(name).trim_end_matches('\0'))
        }
        _ => "without a name".into(),
    }
}
