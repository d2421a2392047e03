//! Where a pool's owner and its separate checkpointer find each other: a socket in the pool's own directory.
//!
//! ```text
//!   owner, thread towa-meeting      listens at POOL/checkpointer ──memfd of the control block──► checkpointer maps it
//!                                   keeps the connection           ◄──────────────────────────── and the connection
//! ```
//!
//! The control block is memory without a name: nothing lies in a shared folder, where another user could take its
//! name first or where it could be left behind. The socket is the owner's alone (mode 0600), so that connecting takes
//! the rights that opening the pool takes. A copy of the pool has another directory, and so another socket. The
//! descriptors of the owner's side stand in the table of a thread apart (`towa_media::apart`): the connection ends
//! when the owner ends, and not before. That is how a checkpointer learns that its owner died, in whatever container
//! the two are.
//!
//! What must always hold: the socket is made and removed only by the process that holds the pool's lock; a process
//! maps only a control block that came from the pool's owner, whose user is the pool's, and that cannot be shortened
//! under it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use towa_media::{Error, Medium, Result, apart};

use crate::control::ControlMemory;

/// The socket's name in the pool's directory.
const SOCKET: &std::ffi::CStr = c"checkpointer";
/// Most that a closing owner waits for its thread, in milliseconds.
const NAP_MS: libc::c_int = 20;
/// Seconds that an owner that lives may take to hand the control block over; one that is stopped does not.
const ANSWER_S: libc::time_t = 2;

/// The owner's side: answers, once it [listens](Self::listen), until it is dropped, which removes the socket that it made.
#[derive(Debug)]
pub(crate) struct Place {
    location: String,
    over: Arc<AtomicBool>,
    /// Tells the thread to listen; the answer comes the way that is sent.
    go: Option<SyncSender<SyncSender<io::Result<()>>>>,
    thread: Option<JoinHandle<()>>,
}

/// The checkpointer's side.
#[derive(Debug)]
pub(crate) struct Line(OwnedFd);

impl Place {
    /// Makes a control block, and a thread that has it; no socket yet.
    pub fn make(medium: &dyn Medium) -> Result<(ControlMemory, Place)> {
        let location = medium.location();
        let unsupported = |what: &str| Error::Unsupported { location: location.clone(), what: what.into() };
        let directory =
            medium.directory().ok_or_else(|| unsupported("has no directory where a separate checkpointer could find it"))?;
        let cannot =
            |source| Error::Io { location: location.clone(), doing: "making the socket for a separate checkpointer", source };
        let directory = directory.try_clone_to_owned().map_err(cannot)?;
        let over = Arc::<AtomicBool>::default();
        let (told, heard) = sync_channel(1);
        let (go, asked) = sync_channel(1);
        let theirs = Arc::clone(&over);
        let work = move |given: Vec<OwnedFd>| {
            if let Some(directory) = given.first() {
                work(directory.as_fd(), &theirs, &told, &asked);
            }
        };
        let thread = apart::spawn("towa-meeting", vec![directory], work).map_err(cannot)?;
        let place = Place { location: location.clone(), over, go: Some(go), thread: Some(thread) };
        let control = heard.recv().unwrap_or_else(|_| Err(io::Error::other(ENDED)));
        Ok((control.map_err(cannot)?, place))
    }

    /// Makes the socket, in place of one that an owner left, and hands the control block to each process that asks there from now on. The pool's
    /// lock is held, and is let go after this is dropped.
    pub fn listen(&self) -> Result<()> {
        let (answer, answered) = sync_channel(1);
        let sent = self.go.as_ref().is_some_and(|go| go.send(answer).is_ok());
        let listens = sent.then(|| answered.recv().ok()).flatten().unwrap_or_else(|| Err(io::Error::other(ENDED)));
        let location = self.location.clone();
        listens.map_err(|source| Error::Io { location, doing: "making the socket for a separate checkpointer", source })
    }
}

const ENDED: &str = "its thread ended";

impl Drop for Place {
    fn drop(&mut self) {
        self.over.store(true, Release);
        self.go = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread's work: the control block now, the socket when it is told to. It removes that one at its end, and nothing where it made none.
fn work(
    directory: BorrowedFd<'_>,
    over: &AtomicBool,
    told: &SyncSender<io::Result<ControlMemory>>,
    asked: &Receiver<SyncSender<io::Result<()>>>,
) {
    let made = memory().and_then(|block| Ok((ControlMemory::of(&block)?, block)));
    let block = match made {
        Ok((control, block)) => {
            let _ = told.send(Ok(control));
            block
        }
        Err(e) => {
            let _ = told.send(Err(e));
            return;
        }
    };
    let Ok(go) = asked.recv() else { return };
    match clear(directory).and_then(|()| listen(directory)) {
        Ok(listener) => {
            let ours = status(directory).ok().flatten().map(|status| (status.st_dev, status.st_ino));
            let _ = go.send(Ok(()));
            answer(&listener, &block, over);
            if status(directory).ok().flatten().map(|status| (status.st_dev, status.st_ino)) == ours {
                let _ = clear(directory);
            }
        }
        Err(e) => drop(go.send(Err(e))),
    }
}

/// Hands `block` to all who ask.
fn answer(listener: &OwnedFd, block: &File, over: &AtomicBool) {
    let mut lines: Vec<OwnedFd> = Vec::new();
    while !over.load(Acquire) {
        let waits = [listener].into_iter().chain(&lines).map(|fd| poll_of(fd.as_raw_fd()));
        let mut waits: Vec<libc::pollfd> = waits.collect();
        // SAFETY: as many entries as are named, ours to fill.
        unsafe { libc::poll(waits.as_mut_ptr(), waits.len() as libc::nfds_t, NAP_MS) };
        let mut found = waits[1..].iter();
        lines.retain(|_| found.next().is_some_and(|line| line.revents == 0));
        if waits[0].revents != 0 {
            // SAFETY: a call on a descriptor that we own; what it gives is ours alone.
            let line =
                unsafe { libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC) };
            if line >= 0 {
                // SAFETY: as above.
                let line = unsafe { OwnedFd::from_raw_fd(line) };
                if send(&line, block).is_ok() {
                    lines.push(line);
                }
            }
        }
    }
}

/// Memory for a control block, zeroed, that no process can shorten.
fn memory() -> io::Result<File> {
    // SAFETY: the name is NUL-terminated; what the call gives is ours alone.
    let file = unsafe {
        let fd = libc::memfd_create(c"towa-control".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        File::from(owned(fd)?)
    };
    file.set_len(ControlMemory::LEN)?;
    // SAFETY: a call on a descriptor that we own.
    done(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL) })?;
    Ok(file)
}

/// Makes the socket, and listens there.
fn listen(directory: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let socket = socket()?;
    let (address, len) = address(directory)?;
    // SAFETY: calls on a descriptor that we own; the address is as long as said. A socket's own mode is that of its
    // name.
    unsafe {
        done(libc::fchmod(socket.as_raw_fd(), 0o600))?;
        done(libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len))?;
        done(libc::listen(socket.as_raw_fd(), 8))?;
    }
    Ok(socket)
}

/// Removes a socket that an owner left. The pool's lock is held.
///
/// # Errors
/// Something else has the name.
fn clear(directory: BorrowedFd<'_>) -> io::Result<()> {
    match status(directory)? {
        None => Ok(()),
        Some(status) if status.st_mode & libc::S_IFMT == libc::S_IFSOCK => {
            // SAFETY: the name is NUL-terminated.
            match done(unsafe { libc::unlinkat(directory.as_raw_fd(), SOCKET.as_ptr(), 0) }) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
                other => other.map(drop),
            }
        }
        Some(_) => Err(io::Error::other("`checkpointer` in the pool's directory is something else; move it away")),
    }
}

/// Removes what an owner left that was killed. The pool's lock is held.
pub(crate) fn clear_stale(medium: &dyn Medium) {
    if let Some(directory) = medium.directory() {
        let _ = clear(directory);
    }
}

/// The control block of the pool on `medium`, and the line to its owner; `None`: no process has it open with a
/// separate checkpointer.
pub(crate) fn call(medium: &dyn Medium) -> Result<Option<(ControlMemory, Line)>> {
    let Some(directory) = medium.directory() else { return Ok(None) };
    let failed = |source| Error::Io { location: medium.location(), doing: "asking the pool's owner for the control block", source };
    let Some(status) = status(directory).map_err(failed)? else { return Ok(None) };
    let owner = File::from(directory.try_clone_to_owned().map_err(failed)?).metadata().map_err(failed)?.uid();
    // SAFETY: asks, and changes nothing.
    let me = unsafe { libc::geteuid() };
    if status.st_mode & libc::S_IFMT != libc::S_IFSOCK || ![0, me, owner].contains(&status.st_uid) {
        return Ok(None);
    }
    match connect(directory) {
        Ok(found) => Ok(Some(found)),
        Err(e) if matches!(e.raw_os_error(), Some(libc::ECONNREFUSED | libc::ENOENT | libc::EAGAIN | libc::ECONNRESET)) => Ok(None),
        Err(e) => Err(failed(e)),
    }
}

fn connect(directory: BorrowedFd<'_>) -> io::Result<(ControlMemory, Line)> {
    let socket = socket()?;
    let (address, len) = address(directory)?;
    let patience = libc::timeval { tv_sec: ANSWER_S, tv_usec: 0 };
    // SAFETY: calls on a descriptor that we own; lengths are those of what is passed.
    unsafe {
        for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            let len = size_of::<libc::timeval>() as libc::socklen_t;
            done(libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const patience).cast(), len))?;
        }
        done(libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len))?;
    }
    let block = receive(&socket)?;
    // SAFETY: a call on a descriptor that we own.
    let seals = done(unsafe { libc::fcntl(block.as_raw_fd(), libc::F_GET_SEALS) })?;
    if seals & libc::F_SEAL_SHRINK == 0 || block.metadata()?.len() < ControlMemory::LEN {
        return Err(io::Error::other("what came is no control block"));
    }
    Ok((ControlMemory::of(&block)?, Line(socket)))
}

impl Line {
    /// Whether the owner still has its end: it lives, and has the pool open.
    pub fn is_open(&self) -> bool {
        let mut poll = poll_of(self.0.as_raw_fd());
        // SAFETY: one entry, ours to fill. A call that a signal interrupts has found nothing.
        unsafe { libc::poll(&raw mut poll, 1, 0) <= 0 }
    }
}

fn poll_of(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: what the call gives is ours alone.
    unsafe { owned(libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0)) }
}

/// The socket's address: by the directory's descriptor, for paths may be longer than an address, and lead elsewhere
/// by now.
fn address(directory: BorrowedFd<'_>) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    let path = format!("/proc/thread-self/fd/{}/{}", directory.as_raw_fd(), SOCKET.to_string_lossy());
    // SAFETY: all-zero is a valid address, a plain structure of integers.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    if path.len() >= address.sun_path.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, byte) in address.sun_path.iter_mut().zip(path.bytes()) {
        *to = byte as libc::c_char;
    }
    Ok((address, size_of::<libc::sockaddr_un>() as libc::socklen_t))
}

/// The status of the socket's name.
fn status(directory: BorrowedFd<'_>) -> io::Result<Option<libc::stat>> {
    // SAFETY: all-zero is a valid `stat`; the name is NUL-terminated, the structure ours to fill.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        match done(libc::fstatat(directory.as_raw_fd(), SOCKET.as_ptr(), &raw mut status, libc::AT_SYMLINK_NOFOLLOW)) {
            Ok(_) => Ok(Some(status)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// Room for one descriptor in a message, aligned as its header wants.
#[repr(C, align(8))]
struct Ancillary([u8; 64]);

/// Calls `exchange` with a message of one byte that has room for one descriptor.
fn with_message<T>(exchange: impl FnOnce(&mut libc::msghdr) -> io::Result<T>) -> io::Result<T> {
    let (mut byte, mut ancillary) = ([0u8; 1], Ancillary([0; 64]));
    let mut vector = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: all-zero is a valid header, a plain structure of integers and pointers. All that it names lives until
    // the call is over.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = ancillary.0.as_mut_ptr().cast();
    // SAFETY: arithmetic alone.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<RawFd>() as u32) } as _;
    exchange(&mut message)
}

/// Hands a descriptor of `block` over.
fn send(line: &OwnedFd, block: &File) -> io::Result<()> {
    with_message(|message| {
        // SAFETY: there is room for one header with one descriptor, and the message lives until the call is over.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
            libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(block.as_raw_fd());
            match libc::sendmsg(line.as_raw_fd(), message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) {
                1 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        }
    })
}

/// The descriptor that the owner hands over; more than one closes them all.
fn receive(line: &OwnedFd) -> io::Result<File> {
    with_message(|message| {
        let mut came: Vec<OwnedFd> = Vec::new();
        // SAFETY: as in `send`; the kernel says how much of the room it filled, which may be more descriptors than were asked for, as the
        // room is rounded up. All that came are ours alone.
        unsafe {
            if libc::recvmsg(line.as_raw_fd(), message, libc::MSG_CMSG_CLOEXEC) < 0 {
                return Err(io::Error::last_os_error());
            }
            let mut header = libc::CMSG_FIRSTHDR(message);
            while !header.is_null() {
                if ((*header).cmsg_level, (*header).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                    let bytes = ((*header).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                    let first = libc::CMSG_DATA(header).cast::<RawFd>();
                    for n in 0..bytes / size_of::<RawFd>() {
                        came.push(owned(first.add(n).read_unaligned())?);
                    }
                }
                header = libc::CMSG_NXTHDR(message, header);
            }
        }
        match <[OwnedFd; 1]>::try_from(came) {
            Ok([block]) => Ok(File::from(block)),
            Err(came) if came.is_empty() => Err(io::Error::from_raw_os_error(libc::ECONNRESET)),
            Err(_) => Err(io::Error::other("what came is not one control block, but several")),
        }
    })
}

/// A descriptor that a call gave, or its error.
///
/// # Safety
/// `fd` is -1, or was just opened and has no other owner.
unsafe fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: by the caller's promise.
    done(fd).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What a system call gave, or its error.
fn done(rc: libc::c_int) -> io::Result<libc::c_int> {
    if rc == -1 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    use std::os::unix::net::UnixListener;
    use std::sync::atomic::Ordering::Relaxed;

    use towa_media::RamMedium;

    #[test]
    fn both_sides_share_a_control_block_that_has_no_name_anywhere() {
        let dir = tempfile::tempdir().unwrap();
        // Longer than the address of a socket can be.
        let long = dir.path().join("d".repeat(200));
        let medium = RamMedium::open(&long, true, None).unwrap();
        assert!(call(&*medium).unwrap().is_none());
        let (ours, place) = Place::make(&*medium).unwrap();
        assert!(call(&*medium).unwrap().is_none(), "it does not listen yet");
        place.listen().unwrap();
        let status = std::fs::symlink_metadata(long.join("checkpointer")).unwrap();
        assert!(status.file_type().is_socket() && status.permissions().mode() & 0o777 == 0o600, "{status:?}");
        let (theirs, line) = call(&*medium).unwrap().expect("it listens");
        ours.done.store(7, Relaxed);
        assert_eq!(theirs.done.load(Relaxed), 7);
        assert!(line.is_open());
        // A renamed directory is the same pool.
        let renamed = dir.path().join("renamed");
        std::fs::rename(&long, &renamed).unwrap();
        let medium = RamMedium::open(&renamed, false, None).unwrap();
        assert!(call(&*medium).unwrap().is_some());
        drop(place);
        assert!(!line.is_open(), "the owner is gone");
        assert!(call(&*medium).unwrap().is_none());
        assert_eq!(std::fs::read_dir(&renamed).unwrap().count(), 0, "something was left");
    }

    #[test]
    fn what_an_owner_left_is_replaced_and_what_is_no_socket_is_in_the_way() {
        let dir = tempfile::tempdir().unwrap();
        let medium = RamMedium::open(dir.path(), false, None).unwrap();
        let socket = dir.path().join("checkpointer");
        drop(UnixListener::bind(&socket).unwrap());
        assert!(call(&*medium).unwrap().is_none(), "its owner is gone");
        let (_, place) = Place::make(&*medium).unwrap();
        place.listen().unwrap();
        assert!(call(&*medium).unwrap().is_some());
        drop(place);
        drop(UnixListener::bind(&socket).unwrap());
        clear_stale(&*medium);
        assert!(!socket.exists());
        std::fs::write(&socket, "mine").unwrap();
        let refused = Place::make(&*medium).and_then(|(_, place)| place.listen()).unwrap_err().to_string();
        assert!(refused.contains("move it away"), "{refused}");
        clear_stale(&*medium);
        assert!(call(&*medium).unwrap().is_none());
        assert_eq!(std::fs::read(&socket).unwrap(), b"mine");
    }

    /// An owner that fails before it listens, and one whose socket was replaced, may let go of the pool's lock first: the socket that is there
    /// then is the next owner's.
    #[test]
    fn a_socket_of_the_next_owner_stays() {
        let dir = tempfile::tempdir().unwrap();
        let medium = RamMedium::open(dir.path(), false, None).unwrap();
        let (_, failed) = Place::make(&*medium).unwrap();
        let (_, next) = Place::make(&*medium).unwrap();
        next.listen().unwrap();
        drop(failed);
        assert!(call(&*medium).unwrap().is_some(), "the socket went with an owner that had made none");
        let (_, third) = Place::make(&*medium).unwrap();
        third.listen().unwrap();
        drop(next);
        assert!(call(&*medium).unwrap().is_some(), "the socket went with an owner whose it is not");
    }

    /// The room for one descriptor holds two: none of them stays open.
    #[test]
    fn more_descriptors_than_one_are_closed_and_refused() {
        let mut ends = [0; 2];
        // SAFETY: two numbers, ours to fill; what the call gives is ours alone.
        let [ours, theirs] = unsafe {
            done(libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, ends.as_mut_ptr())).unwrap();
            ends.map(|fd| OwnedFd::from_raw_fd(fd))
        };
        let (read, write) = io::pipe().unwrap();
        let sent = with_message(|message| {
            let both = [write.as_raw_fd(); 2];
            // SAFETY: as in `send`; there is room for two, which the assertion sees.
            unsafe {
                assert!(libc::CMSG_SPACE(size_of_val(&both) as u32) as usize <= size_of::<Ancillary>());
                message.msg_controllen = libc::CMSG_SPACE(size_of_val(&both) as u32) as _;
                let header = libc::CMSG_FIRSTHDR(message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(size_of_val(&both) as u32) as _;
                libc::CMSG_DATA(header).cast::<[RawFd; 2]>().write_unaligned(both);
                Ok(libc::sendmsg(theirs.as_raw_fd(), message, libc::MSG_NOSIGNAL))
            }
        });
        assert_eq!(sent.unwrap(), 1);
        drop(write);
        let refused = receive(&ours).unwrap_err().to_string();
        assert!(refused.contains("not one control block"), "{refused}");
        let mut poll = poll_of(read.as_raw_fd());
        // SAFETY: one entry, ours to fill. Threads of other tests may have a copy for a moment.
        unsafe { libc::poll(&raw mut poll, 1, 10_000) };
        assert!(poll.revents & libc::POLLHUP != 0, "a descriptor that came is still open");
    }
}
