//! A pool that a program has open, copied with that program's help: it says which pages change while its file is copied.
//!
//! ```text
//!   here                                       the program (java/towa, io.towa.backup.BackupSession)
//!   "TOWACOPY", u32 version 1, u32 0      ->   follows from here on which pages change
//!                                         <-   BEGUN    uuid, seq, stamp, capacity: of its superblock
//!   the caller copies the file; 'p'       ->
//!   'f'                                   ->   rounds: pages that changed since; the last one is of one moment
//!                                         <-   PAGES    n page numbers (u32), n pages; n at most 256
//!                                         <-   END      u64 pages sent, u64 rounds, u64 ns that stores waited for the last one
//!   at any time                           <-   REFUSED  u32 reason, text
//! ```
//!
//! Little endian; a message of the program is u32 kind, u32 length, and so many bytes.
//!
//! What must always hold: only the pool's owner, this user or root is listened to. Whatever comes, nothing is written but whole pages
//! within the pool's capacity, to the copy, and no more of them than a program that follows the protocol sends; and nothing is waited
//! for without a limit. A conversation without END is no copy.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::source::{u32_of, u64_of};

const HELLO: &[u8; 16] = b"TOWACOPY\x01\0\0\0\0\0\0\0";
const BEGUN: u32 = 1;
const PAGES: u32 = 2;
const END: u32 = 3;
const REFUSED: u32 = 4;
/// Reasons of refusals: another backup is made, and the pool is being closed.
const BUSY: u32 = 1;
const CLOSING: u32 = 2;

const PAGE: u64 = 4096;
/// Superblock slots are written by openings and closings alone.
const FIRST_PAGE: u64 = 2;
const TOGETHER: usize = 256;
const NUMBERED: usize = 4 + PAGE as usize;
const TEXT_MAX: usize = 4096 + 4;
/// More rounds no program makes.
const ROUNDS: u64 = 64;
/// The longest time without a byte: a commit may have to be waited for.
const PATIENCE: Duration = Duration::from_secs(120);
const CONNECTING: Duration = Duration::from_secs(10);
/// Between two signs of life: the program gives up a tool that is silent for a minute.
const SIGN: Duration = Duration::from_secs(1);

/// What the program did for the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Followed {
    /// Pages that changed while the file was copied, each as often as it was sent.
    pub pages: u64,
    /// Times that it sent some; the last is of one moment.
    pub rounds: u64,
    /// For how long stores waited then.
    pub pause: Duration,
}

/// A conversation with the program that has a pool open.
#[derive(Debug)]
pub struct Live {
    pool: String,
    stream: UnixStream,
    capacity: u64,
    signed: Instant,
}

impl Live {
    /// Has the program that has `pool` open, `holder`, follow what changes from now on. A copy of the file that begins after this call may hold
    /// pages of different moments. The pages of [`finish`](Live::finish), laid over it, make it a copy of one moment.
    ///
    /// # Errors
    /// The program cannot be asked, refuses, or is not one that has this file open.
    pub fn begin(pool: &Pool, holder: &str) -> Result<Live> {
        let socket = pool.socket();
        let cannot = |why: String, may_come| Error::NotAsked { pool: pool.name().into(), holder: holder.into(), why, may_come };
        let not_asked = |why: String| cannot(why, false);
        let owners = [0, me(), pool.owner_uid()];
        let stream =
            connect(&socket, &owners).map_err(|(why, may_come)| cannot(format!("{}: {why}", socket.display()), may_come))?;
        let mut live = Live { pool: pool.name().into(), stream, capacity: 0, signed: Instant::now() };
        live.set_patience().map_err(|source| Error::Io { pool: live.pool.clone(), doing: "asking the program", source })?;
        live.send(HELLO)?;
        let (kind, body) = live.message(&mut Vec::new())?;
        let identity = pool.identity()?;
        match kind {
            BEGUN if body.len() == 40 && body == identity.as_slice() => live.capacity = u64_of(&body, 32),
            BEGUN if body.len() == 40 => {
                return Err(not_asked(format!("{}: the program that listens there has another pool open", socket.display())));
            }
            kind => return Err(live.babble(format!("message {kind} of {} bytes, where its beginning was expected", body.len()))),
        }
        Ok(live)
    }

    fn set_patience(&self) -> io::Result<()> {
        self.stream.set_read_timeout(Some(PATIENCE))?;
        self.stream.set_write_timeout(Some(CONNECTING))
    }

    /// To be called now and then while the file is copied.
    ///
    /// # Errors
    /// The program has gone.
    pub fn alive(&mut self) -> Result<()> {
        if self.signed.elapsed() < SIGN {
            return Ok(());
        }
        self.signed = Instant::now();
        self.send(b"p")
    }

    /// The file is copied: lays what changed since over `copy`, which is then of one moment. `progress` is told how many bytes came.
    ///
    /// # Errors
    /// The program has gone or refuses, or the copy cannot be written.
    pub fn finish(mut self, copy: &File, progress: &mut dyn FnMut(u64)) -> Result<Followed> {
        self.send(b"f")?;
        let (mut pages, mut buffer) = (0, Vec::new());
        loop {
            let (kind, body) = self.message(&mut buffer)?;
            match kind {
                PAGES => pages += self.lay(copy, &body)?,
                END if body.len() == 24 && u64_of(&body, 0) == pages => {
                    let pause = Duration::from_nanos(u64_of(&body, 16));
                    return Ok(Followed { pages, rounds: u64_of(&body, 8), pause });
                }
                END => return Err(self.babble(format!("{pages} pages, and an end that does not say so"))),
                kind => return Err(self.babble(format!("message {kind} among pages"))),
            }
            if pages > ROUNDS * (self.capacity / PAGE) {
                return Err(self.babble("pages without end".into()));
            }
            progress(pages * PAGE);
            buffer = body;
        }
    }

    /// Writes the pages of a message; neighbours in one go.
    fn lay(&self, copy: &File, body: &[u8]) -> Result<u64> {
        let count = body.len() / NUMBERED;
        if !(1..=TOGETHER).contains(&count) || !body.len().is_multiple_of(NUMBERED) {
            return Err(self.babble(format!("pages in {} bytes", body.len())));
        }
        let (numbers, pages) = body.split_at(4 * count);
        let number = |at: usize| u64::from(u32_of(numbers, 4 * at));
        let mut from = 0;
        while from < count {
            let mut to = from + 1;
            while to < count && number(to) == number(to - 1) + 1 {
                to += 1;
            }
            if number(from) < FIRST_PAGE || (number(to - 1) + 1) * PAGE > self.capacity {
                return Err(self.babble(format!("pages {} to {}, which are not of the pool", number(from), number(to - 1))));
            }
            let content = &pages[from * PAGE as usize..to * PAGE as usize];
            let written = copy.write_all_at(content, number(from) * PAGE);
            written.map_err(|source| Error::Io { pool: self.pool.clone(), doing: "writing what changed to the copy", source })?;
            from = to;
        }
        Ok(count as u64)
    }

    fn babble(&self, what: String) -> Error {
        Error::Babble { pool: self.pool.clone(), what }
    }

    fn lost(&self, source: io::Error) -> Error {
        let pool = self.pool.clone();
        match source.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Error::Silent { pool },
            _ => Error::Gone { pool, closed: false },
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let sent = self.stream.write_all(bytes);
        sent.or_else(|e| {
            // What it said before it went is why.
            self.message(&mut Vec::new())
                .map_err(|said| if matches!(said, Error::Gone { closed: false, .. }) { self.lost(e) } else { said })?;
            Err(self.babble("an answer to no question".into()))
        })
    }

    /// Fills `into`; however slowly it comes, not for longer than until then.
    fn read_until(&mut self, mut into: &mut [u8], until: Instant) -> Result<()> {
        while !into.is_empty() {
            let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            let read = self.stream.set_read_timeout(Some(left)).and_then(|()| self.stream.read(into));
            match read {
                Ok(0) => return Err(self.lost(ErrorKind::UnexpectedEof.into())),
                Ok(count) => into = &mut into[count..],
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(self.lost(e)),
            }
            if !into.is_empty() && Instant::now() >= until {
                return Err(self.lost(ErrorKind::TimedOut.into()));
            }
        }
        Ok(())
    }

    /// The next message; a refusal is an error.
    fn message(&mut self, buffer: &mut Vec<u8>) -> Result<(u32, Vec<u8>)> {
        let mut head = [0; 8];
        let until = Instant::now() + PATIENCE;
        self.read_until(&mut head, until)?;
        let (kind, len) = (u32_of(&head, 0), u32_of(&head, 4) as usize);
        let most = match kind {
            PAGES => TOGETHER * NUMBERED,
            REFUSED => TEXT_MAX,
            _ => 64,
        };
        if len > most {
            return Err(self.babble(format!("message {kind} of {len} bytes")));
        }
        let mut body = std::mem::take(buffer);
        body.resize(len, 0);
        self.read_until(&mut body, until)?;
        if kind != REFUSED {
            return Ok((kind, body));
        }
        if len < 4 {
            return Err(self.babble("a refusal without a reason".into()));
        }
        let what = String::from_utf8_lossy(&body[4..]).into_owned();
        Err(match u32_of(&body, 0) {
            CLOSING => Error::Gone { pool: self.pool.clone(), closed: true },
            reason => Error::Refused { what, busy: reason == BUSY },
        })
    }
}

fn me() -> u32 {
    // SAFETY: a call without arguments.
    unsafe { libc::geteuid() }
}

/// Connects to the socket at `path` if one of `owners` made it and listens there. An error says why not, in words, and whether that may be otherwise in a moment.
///
/// The file is opened first, and connected to by its descriptor: so it is the one that was looked at, and its path may be longer than
/// the 107 bytes of an address.
fn connect(path: &Path, owners: &[u32]) -> std::result::Result<UnixStream, (String, bool)> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW;
    let never = |why: String| (why, false);
    let socket = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(|e| match e.kind() {
        ErrorKind::NotFound => {
            let why =
                "is not there (the program is opening or closing the pool, has an older towa.jar, or can make no socket there)";
            (why.into(), true)
        }
        _ => never(e.to_string()),
    })?;
    let status = socket.metadata().map_err(|e| never(e.to_string()))?;
    if !status.file_type().is_socket() {
        return Err(never("is no socket, and in the way of one".into()));
    }
    if !owners.contains(&status.uid()) {
        return Err(never(format!("belongs to user {}, who is neither the pool's owner nor this user", status.uid())));
    }
    let stream = connect_to(&format!("/proc/self/fd/{}", socket.as_raw_fd())).map_err(|e| match e.raw_os_error() {
        Some(libc::ECONNREFUSED) => {
            let why =
                "was left by an earlier program (the one that has the pool open is still opening it, or could not replace it)";
            (why.into(), true)
        }
        Some(libc::EACCES | libc::EPERM) => {
            never(format!("user {} alone may connect to it: make the backup as that user", status.uid()))
        }
        Some(libc::EAGAIN) => never("the program does not answer".into()),
        _ => never(e.to_string()),
    })?;
    match peer(&stream) {
        Ok(uid) if owners.contains(&uid) => Ok(stream),
        Ok(uid) => Err(never(format!("user {uid} listens there, who is neither the pool's owner nor this user"))),
        Err(e) => Err(never(e.to_string())),
    }
}

fn connect_to(path: &str) -> io::Result<UnixStream> {
    // SAFETY: numbers only; the descriptor is ours alone.
    let stream = unsafe {
        match libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) {
            -1 => return Err(io::Error::last_os_error()),
            fd => UnixStream::from(OwnedFd::from_raw_fd(fd)),
        }
    };
    // A program that was stopped takes no connections; its queue may be full.
    stream.set_write_timeout(Some(CONNECTING))?;
    // SAFETY: a plain structure of numbers, for which zeros are values.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, byte) in address.sun_path.iter_mut().zip(Path::new(path).as_os_str().as_bytes()) {
        *to = *byte as libc::c_char;
    }
    let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the address is as long as is said.
    match unsafe { libc::connect(stream.as_raw_fd(), std::ptr::from_ref(&address).cast(), len) } {
        0 => Ok(stream),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Who listens at the other end.
fn peer(stream: &UnixStream) -> io::Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let to = std::ptr::from_mut(&mut peer).cast();
    // SAFETY: the kernel writes to the structure, at most as much as it is long.
    match unsafe { libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, to, &mut len) } {
        0 => Ok(peer.uid),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
#[path = "live/tests.rs"]
mod tests;
