//! Opens everything that stood behind the process's descriptors and mappings, before there is a new process.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::Files;
use super::names::Names;
use crate::error::{Error, Result};
use crate::nv::pool::Pool;
use crate::state::State;
use crate::state::descriptors::{Identity, Kind, OpenFile, Pair};
use crate::state::region::Backing;
use crate::store::Checkpoint;
use crate::sys::fd;

/// All of it, under numbers that the process does not use.
pub struct Opened {
    /// In the order of the state's open files.
    pub files: Vec<OwnedFd>,
    /// Files that are mapped.
    pub mapped: HashMap<PathBuf, OwnedFd>,
    /// The program.
    pub program: OwnedFd,
    /// Its current directory.
    pub directory: OwnedFd,
    /// Files of the checkpoint that hold its pages, by their numbers here and in the new process.
    pub pages: HashMap<RawFd, OwnedFd>,
    /// The file that the process's memory is to lie in, in mode `nv`.
    pub pool: Option<OwnedFd>,
}

fn refused(what: String) -> Error {
    Error::Unsupported { what, remedy: "put it back as it was when the checkpoint was taken" }
}

/// A number that the process does not use.
fn beyond(state: &State, file: OwnedFd) -> Result<OwnedFd> {
    let first = state.descriptors.table.last().map_or(3, |last| last.fd + 1).max(64);
    // SAFETY: numbers only; the new descriptor is ours.
    let high = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, first) };
    if high < 0 {
        return Err(Error::last("a descriptor beyond those of the process"));
    }
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(high) })
}

/// Opens everything. What is not as it was is an error, before there is a new process.
pub fn open(state: &State, checkpoint: &Checkpoint, changed: Files, pool: Option<&Pool>) -> Result<Opened> {
    let here = std::env::current_dir().map_err(|e| Error::io("the current directory", e))?;
    let asked = Asked { checkpoint, changed, names: Names::of(&state.process) };
    let there = &state.process.directory;
    let failed = |e| Error::io(there.display().to_string(), e);
    let directory = asked.names.open(there, libc::O_PATH | libc::O_DIRECTORY)?;
    // SAFETY: numbers only.
    if unsafe { libc::fchdir(directory.as_raw_fd()) } != 0 {
        return Err(failed(io::Error::last_os_error()));
    }
    let opened = open_there(state, &asked, directory);
    std::env::set_current_dir(&here).map_err(|e| Error::io(here.display().to_string(), e))?;
    let mut opened = opened?;
    if let Some(pool) = pool {
        let own = pool.file().try_clone().map_err(|e| Error::io("the file for the memory", e))?;
        opened.pool = Some(beyond(state, own.into())?);
    }
    Ok(opened)
}

/// What a restart was asked for, and with whose rights it opens what has a name.
struct Asked<'a> {
    checkpoint: &'a Checkpoint,
    changed: Files,
    names: Names,
}

fn open_there(state: &State, asked: &Asked<'_>, directory: File) -> Result<Opened> {
    let mut files: Vec<OwnedFd> = Vec::new();
    let mut pipes = Vec::new();
    for pipe in &state.descriptors.pipes {
        let (read_end, write_end) = io::pipe().map_err(|e| Error::io("a pipe", e))?;
        let filled = fd::set_pipe_capacity(&write_end, pipe.capacity).and_then(|()| (&write_end).write_all(&pipe.content));
        filled.map_err(|e| Error::io("filling a pipe", e))?;
        pipes.push((OwnedFd::from(read_end), OwnedFd::from(write_end)));
    }
    let pairs = state.descriptors.pairs.iter().map(pair).collect::<Result<Vec<_>>>()?;
    // All that may stand in the way, before anything is changed.
    check_mapped(state, asked.changed)?;
    for file in &state.descriptors.files {
        if let Kind::Regular { path, identity, .. } = &file.kind {
            check_regular(path, identity, file, asked)?;
        }
    }
    let mut nameless = HashMap::new();
    for file in &state.descriptors.files {
        let opened = one(file, asked, (&pipes, &pairs), &mut nameless)?;
        if !matches!(file.kind, Kind::Standard { .. }) {
            set_flags(&opened, file.flags)?;
        }
        files.push(beyond(state, opened)?);
    }
    let mut mapped = HashMap::new();
    for region in &state.regions {
        let Backing::File { path, inode, .. } = &region.backing else { continue };
        let writes = region.shared && region.prot & libc::PROT_WRITE != 0;
        if mapped.contains_key(path) && !writes {
            continue;
        }
        let file = asked.names.open(path, if writes { libc::O_RDWR } else { libc::O_RDONLY } | WITHOUT_WAITING)?;
        if file.metadata().map(|there| there.ino()).ok() != Some(*inode) {
            return Err(refused(format!("{}: another file than the one that was mapped", path.display())));
        }
        mapped.insert(path.clone(), beyond(state, file.into())?);
    }
    let program = &state.process.program;
    let program = asked.names.open(program, libc::O_RDONLY | WITHOUT_WAITING)?;
    let mut pages = HashMap::new();
    for stretch in asked.checkpoint.runs(0..u64::MAX / crate::pages::PAGE) {
        if let std::collections::hash_map::Entry::Vacant(entry) = pages.entry(stretch.file.as_raw_fd()) {
            let own = stretch.file.try_clone().map_err(|e| Error::io("a file of the checkpoint", e))?;
            entry.insert(beyond(state, own.into())?);
        }
    }
    let (program, directory) = (beyond(state, program.into())?, beyond(state, directory.into())?);
    Ok(Opened { files, mapped, program, directory, pages, pool: None })
}

/// A pair of unix sockets with what waited in it.
fn pair(pair: &Pair) -> Result<[OwnedFd; 2]> {
    let failed = |e| Error::io("a pair of unix sockets", e);
    let made = fd::socket_pair(pair.kind, pair.protocol).map_err(failed)?;
    for (n, end) in pair.ends.iter().enumerate() {
        fill(&made[1 - n], &end.content).map_err(failed)?;
    }
    for (n, end) in pair.ends.iter().enumerate() {
        // Reading ends here by itself where the other end's writing does.
        let follows = pair.ends[1 - n].shutdown & 2 != 0;
        for (bit, how) in [(2, libc::SHUT_WR), (1, libc::SHUT_RD)] {
            let wanted = end.shutdown & bit != 0 && !(bit == 1 && follows);
            // SAFETY: numbers only.
            if wanted && unsafe { libc::shutdown(made[n].as_raw_fd(), how) } != 0 {
                return Err(Error::last("shutting down a unix socket"));
            }
        }
        for (name, value) in &end.options {
            // The kernel doubles what it is given as the size of a buffer.
            let value = if [libc::SO_SNDBUF, libc::SO_RCVBUF].contains(name) { value / 2 } else { *value };
            fd::set_socket_option(&made[n], libc::SOL_SOCKET, *name, value).map_err(|e| Error::io("an option of a socket", e))?;
        }
    }
    Ok(made)
}

/// Writes all of it without waiting. What came in pieces may take more room when it is put there at once.
fn fill(end: &OwnedFd, content: &[u8]) -> io::Result<()> {
    let room = i32::try_from(content.len().max(1 << 16) * 4).unwrap_or(i32::MAX);
    fd::set_socket_option(end, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, room)
        .or_else(|_| fd::set_socket_option(end, libc::SOL_SOCKET, libc::SO_SNDBUF, room))?;
    let writer = std::os::unix::net::UnixStream::from(end.try_clone()?);
    writer.set_nonblocking(true)?;
    (&writer).write_all(content)?;
    writer.set_nonblocking(false)
}

fn set_flags(file: &OwnedFd, flags: i32) -> Result<()> {
    let settable = libc::O_APPEND | libc::O_NONBLOCK | libc::O_NOATIME;
    // SAFETY: numbers only.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags & settable) } != 0 {
        return Err(Error::last("flags of a descriptor"));
    }
    Ok(())
}

fn owned(result: i32, what: &str) -> Result<OwnedFd> {
    if result < 0 {
        return Err(Error::last(what));
    }
    // SAFETY: the caller has just made it.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}

type Nameless = HashMap<(u64, u64), OwnedFd>;

fn one(
    file: &OpenFile,
    asked: &Asked<'_>,
    (pipes, pairs): (&[(OwnedFd, OwnedFd)], &[[OwnedFd; 2]]),
    nameless: &mut Nameless,
) -> Result<OwnedFd> {
    let copy = |fd: &OwnedFd| fd.try_clone().map_err(|e| Error::io("a descriptor", e));
    match &file.kind {
        Kind::Regular { path, identity, position, .. } => regular(path, identity, file, *position, asked),
        Kind::Directory { path, position } => {
            let directory = asked.names.open(path, flags_again(file.flags))?;
            seek(&directory, path, *position)?;
            Ok(directory.into())
        }
        // It holds the place: the process opens its own itself (`child`).
        Kind::Own { .. } => Ok(asked.names.open(Path::new("/dev/null"), libc::O_RDWR)?.into()),
        Kind::Device { path } => Ok(asked.names.open(path, flags_again(file.flags))?.into()),
        Kind::Standard { stream, .. } => {
            // SAFETY: a standard descriptor, which is copied.
            owned(unsafe { libc::fcntl(*stream, libc::F_DUPFD_CLOEXEC, 3) }, "a standard stream")
        }
        Kind::PipeEnd { pipe, writes } => copy(if *writes { &pipes[*pipe].1 } else { &pipes[*pipe].0 }),
        Kind::PairEnd { pair, second } => copy(&pairs[*pair][usize::from(*second)]),
        Kind::Nameless { name, memfd, identity, position } => {
            let whole = match nameless.get(&(identity.device, identity.inode)) {
                Some(whole) => whole,
                None => {
                    let whole = recreate(name, *memfd, identity, asked)?;
                    nameless.entry((identity.device, identity.inode)).or_insert(whole)
                }
            };
            // An open file of its own, with a position of its own.
            let again = fd::opened_again(whole, flags_again(file.flags)).map_err(|e| Error::io(name, e))?;
            seek(&again, Path::new(name), *position)?;
            Ok(again.into())
        }
        Kind::Event { count, semaphore } => {
            let flags = if *semaphore { libc::EFD_SEMAPHORE } else { 0 };
            // SAFETY: numbers only.
            let event = owned(unsafe { libc::eventfd(0, flags | libc::EFD_CLOEXEC) }, "eventfd")?;
            if *count > 0 {
                let mut event = File::from(copy(&event)?);
                event.write_all(&count.to_ne_bytes()).map_err(|e| Error::io("eventfd", e))?;
            }
            Ok(event)
        }
        Kind::Timer { clock, settime_flags, value_ns, interval_ns, ticks } => {
            // SAFETY: numbers only.
            let timer = owned(unsafe { libc::timerfd_create(*clock, libc::TFD_CLOEXEC) }, "timerfd_create")?;
            let time = |ns: u64| libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
            // What had expired and was not read expires again at once.
            let value = if *ticks > 0 { 1 } else { *value_ns };
            let value = libc::itimerspec { it_interval: time(*interval_ns), it_value: time(value) };
            let flags = *settime_flags & !libc::TFD_TIMER_ABSTIME;
            // SAFETY: a live struct.
            if unsafe { libc::timerfd_settime(timer.as_raw_fd(), flags, &raw const value, std::ptr::null_mut()) } != 0 {
                return Err(Error::last("timerfd_settime"));
            }
            Ok(timer)
        }
        Kind::Signal { mask } => {
            // SAFETY: eight bytes, which the kernel reads.
            let made = unsafe { libc::syscall(libc::SYS_signalfd4, -1, std::ptr::from_ref(mask), 8, libc::SFD_CLOEXEC) };
            owned(made as i32, "signalfd")
        }
        // SAFETY: numbers only.
        Kind::Epoll { .. } => owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }, "epoll_create1"),
        Kind::Listening { domain, kind, protocol, address, backlog, options } => {
            // SAFETY: numbers only.
            let socket = owned(unsafe { libc::socket(*domain, *kind | libc::SOCK_CLOEXEC, *protocol) }, "socket")?;
            for (level, name, value) in options {
                // The kernel doubles what it is given as the size of a buffer.
                let is_size = *level == libc::SOL_SOCKET && [libc::SO_SNDBUF, libc::SO_RCVBUF].contains(name);
                // One that is given no longer follows what the kernel finds best: so only if it is another.
                if is_size && fd::socket_option(socket.as_fd(), *level, *name).is_ok_and(|now| now == *value) {
                    continue;
                }
                fd::set_socket_option(&socket, *level, *name, if is_size { value / 2 } else { *value })
                    .map_err(|e| Error::io("an option of a socket", e))?;
            }
            asked.names.as_process(|| listen(&socket, address, *backlog))??;
            Ok(socket)
        }
    }
}

fn listen(socket: &OwnedFd, address: &[u8], backlog: i32) -> Result<()> {
    // A name in the file system that the process left behind is in the way; one where somebody listens is not touched.
    if let Some(path) = unix_path(address)
        && std::fs::symlink_metadata(&path).is_ok_and(|there| there.file_type().is_socket())
        && std::os::unix::net::UnixStream::connect(&path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
    {
        let _ = std::fs::remove_file(&path);
    }
    // A relative name is one in the process's directory.
    // SAFETY: bytes of a sockaddr and their number.
    let listens = unsafe {
        libc::bind(socket.as_raw_fd(), address.as_ptr().cast(), address.len() as u32) == 0
            && libc::listen(socket.as_raw_fd(), backlog) == 0
    };
    if listens {
        return Ok(());
    }
    let words = crate::state::descriptors::in_words(address);
    Err(Error::last(format!("listening at {words} (does something else, or the process itself, still run?)")))
}

fn unix_path(address: &[u8]) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let family = i32::from(u16::from_ne_bytes(address.get(..2)?.try_into().ok()?));
    let name = address.get(2..)?;
    (family == libc::AF_UNIX && name.first().is_some_and(|first| *first != 0)).then(|| {
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        Path::new(std::ffi::OsStr::from_bytes(&name[..end])).to_owned()
    })
}

/// Flags to open a file with again that is open with these.
pub fn flags_again(flags: i32) -> i32 {
    let flags = flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOFOLLOW);
    // Of a file that was made without a name; the flag holds that of directories.
    if flags & libc::O_TMPFILE == libc::O_TMPFILE { flags & !libc::O_TMPFILE } else { flags }
}

/// A pipe or device that has taken a file's name since is opened at once, too, and then refused; the flags that the process had are set later.
const WITHOUT_WAITING: i32 = libc::O_NONBLOCK | libc::O_NOCTTY;

fn seek(mut file: &File, path: &Path, position: u64) -> Result<()> {
    file.seek(SeekFrom::Start(position)).map(drop).map_err(|e| Error::io(path.display().to_string(), e))
}

/// Mapped files, and the program, must be what they were: the process would go on with other code, or other data.
fn check_mapped(state: &State, changed: Files) -> Result<()> {
    for file in &state.mapped {
        let path = file.path.display();
        let there = std::fs::metadata(&file.path).map_err(|e| Error::io(format!("{path}, which was mapped"), e))?;
        let (now, was) = (Identity::of(&there), &file.identity);
        // One that is open for writing, too, is looked after as such.
        let open = |other: &OpenFile| {
            let writes = other.flags & libc::O_ACCMODE != libc::O_RDONLY;
            matches!(&other.kind, Kind::Regular { identity, .. } if writes && identity.inode == was.inode)
        };
        let is_same = (now.inode, now.len, now.modified_ns) == (was.inode, was.len, was.modified_ns);
        if is_same || file.written && now.inode == was.inode && state.descriptors.files.iter().any(open) {
            continue;
        }
        if now.inode != was.inode {
            return Err(refused(format!("{path}: another file than the one that was mapped")));
        }
        if file.code {
            return Err(refused(format!("{path}: has changed since the checkpoint, and the process was running its code")));
        }
        if changed != Files::Keep {
            return Err(Error::Unsupported {
                what: format!("{path}, which the process has mapped, has changed since the checkpoint"),
                remedy: "put it back as it was, or give --keep-files to go on with it as it is",
            });
        }
    }
    Ok(())
}

/// What [`regular`] would refuse, without changing anything.
fn check_regular(path: &Path, was: &Identity, file: &OpenFile, asked: &Asked<'_>) -> Result<()> {
    let Asked { checkpoint, changed, .. } = *asked;
    let writes = file.flags & libc::O_ACCMODE != libc::O_RDONLY;
    let has_copy = checkpoint.attached(&was.name()).is_some() && changed == Files::Rewind;
    if has_copy || writes && changed == Files::Keep {
        return Ok(());
    }
    let there = std::fs::metadata(path).map_err(|e| Error::io(format!("{}, which was open", path.display()), e))?;
    let now = Identity::of(&there);
    if now.inode != was.inode {
        return Err(refused(format!("{}: another file than the one that was open", path.display())));
    }
    if now.len < was.len {
        return Err(refused(format!("{}: has {} bytes, it had {}", path.display(), now.len, was.len)));
    }
    let as_it_was = (now.len, now.modified_ns) == (was.len, was.modified_ns);
    if writes && !as_it_was && changed == Files::Refuse { Err(has_changed(path)) } else { Ok(()) }
}

fn has_changed(path: &Path) -> Error {
    Error::Unsupported {
        what: format!("{}, which the process was writing, has changed since the checkpoint", path.display()),
        remedy: "give --rewind-files to make such files what they were, or --keep-files to go on with them as they are",
    }
}

fn regular(path: &Path, identity: &Identity, file: &OpenFile, position: u64, asked: &Asked<'_>) -> Result<OwnedFd> {
    let Asked { checkpoint, changed, .. } = *asked;
    let flags = flags_again(file.flags) | WITHOUT_WAITING;
    let failed = |e| Error::io(path.display().to_string(), e);
    let is_gone = std::fs::metadata(path).map_or(true, |there| there.ino() != identity.inode);
    if checkpoint.attached(&identity.name()).is_some() && is_gone && changed == Files::Rewind {
        // Removed since, or replaced: the copy takes its name. (The old one is written to by nobody any more.)
        let new = asked.names.as_process(|| {
            let _ = std::fs::remove_file(path);
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
        });
        let new = new?.map_err(failed)?;
        checkpoint.copy_attached(&identity.name(), &new)?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        durable(&new, path).and_then(|()| durable(&File::open(folder).map_err(failed)?, folder))?;
        let opened = fd::opened_again(&new, flags).map_err(failed)?;
        seek(&opened, path, position)?;
        return Ok(opened.into());
    }
    let opened = asked.names.open(path, flags)?;
    let there = opened.metadata().map_err(failed)?;
    let writes = file.flags & libc::O_ACCMODE != libc::O_RDONLY;
    if writes && changed == Files::Keep {
        seek(&opened, path, position.min(there.len()))?;
        return Ok(opened.into());
    }
    if there.ino() != identity.inode {
        return Err(refused(format!("{}: another file than the one that was open", path.display())));
    }
    let has_copy = checkpoint.attached(&identity.name()).is_some() && changed == Files::Rewind;
    if there.len() < identity.len && !has_copy {
        return Err(refused(format!("{}: has {} bytes, it had {}", path.display(), there.len(), identity.len)));
    }
    if writes {
        rewind_to(path, &opened, identity, asked)?;
    }
    seek(&opened, path, position)?;
    Ok(opened.into())
}

/// A file that the process was writing: as it was, or made so.
fn rewind_to(path: &Path, file: &File, identity: &Identity, asked: &Asked<'_>) -> Result<()> {
    let Asked { checkpoint, changed, .. } = *asked;
    let failed = |e| Error::io(path.display().to_string(), e);
    let there = file.metadata().map_err(failed)?;
    let modified = there.mtime() * 1_000_000_000 + there.mtime_nsec();
    if there.len() == identity.len && modified == identity.modified_ns {
        return Ok(());
    }
    if changed != Files::Rewind {
        return Err(has_changed(path));
    }
    // The file that was looked at, whatever has its name now.
    let to = fd::opened_again(file, libc::O_WRONLY).map_err(failed)?;
    if !checkpoint.copy_attached(&identity.name(), &to)? {
        // What was appended since is cut off; what was written in place cannot be known.
        to.set_len(identity.len).map_err(failed)?;
    }
    durable(&to, path)
}

/// What the program had synced before the checkpoint, it takes for durable: so must be what is put in its place.
fn durable(file: &File, path: &Path) -> Result<()> {
    towa_media::files::sync(file).map_err(|e| Error::io(format!("syncing {}", path.display()), e))
}

fn recreate(name: &str, memfd: bool, identity: &Identity, asked: &Asked<'_>) -> Result<OwnedFd> {
    let made = if memfd {
        let name = std::ffi::CString::new(name).unwrap_or_default();
        // SAFETY: a NUL-terminated name.
        owned(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) }, "memfd_create")?
    } else {
        let folder = Path::new(name).parent().unwrap_or(Path::new("/"));
        let mut without_name = OpenOptions::new();
        without_name.read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE);
        let file = asked.names.as_process(|| without_name.open(folder))?;
        file.map_err(|e| Error::io(format!("a file without a name in {}", folder.display()), e))?.into()
    };
    let to = File::from(made.try_clone().map_err(|e| Error::io(name, e))?);
    let kept = asked.checkpoint.copy_attached(&identity.name(), &to)?;
    if kept { Ok(made) } else { Err(refused(format!("{name}: its content is not in the checkpoint"))) }
}
