//! What the kernel tells of a unix socket by its inode (sock_diag(7)): above all which other one it is connected to.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const SHOW_PEER: u32 = 4;
const ATTRIBUTE_PEER: u16 = 2;
const ATTRIBUTE_SHUTDOWN: u16 = 6;
/// Of a message's head, and of what follows in an answer before its attributes.
const HEAD: usize = 16;
const ANSWER: usize = 16;

/// What was told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// Inode of the socket at the other end; 0: none.
    pub peer: u32,
    /// What was shut down: 1 reading, 2 writing.
    pub shutdown: u8,
}

/// A way to ask the kernel.
pub(crate) struct Diag(OwnedFd);

impl Diag {
    /// For the sockets of this network namespace.
    pub fn open() -> io::Result<Diag> {
        // SAFETY: numbers only.
        match unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, libc::NETLINK_SOCK_DIAG) } {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: the kernel made this descriptor for us, nobody else has it.
            fd => Ok(Diag(unsafe { OwnedFd::from_raw_fd(fd) })),
        }
    }

    /// Asks for one socket.
    pub fn ask(&self, inode: u32) -> io::Result<Told> {
        let mut request = Vec::with_capacity(40);
        request.extend(40u32.to_ne_bytes());
        request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        request.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
        request.extend([0; 8]);
        request.extend([libc::AF_UNIX as u8, 0, 0, 0]);
        // In any state, this inode, its peer, whatever its cookie.
        [u32::MAX, inode, SHOW_PEER, u32::MAX, u32::MAX].iter().for_each(|word| request.extend(word.to_ne_bytes()));
        let mut answer = [0u8; 4096];
        // SAFETY: bytes and their number, twice; an answer comes at once.
        let got = unsafe {
            if libc::send(self.0.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) < 0 {
                return Err(io::Error::last_os_error());
            }
            libc::recv(self.0.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0)
        };
        match got {
            -1 => Err(io::Error::last_os_error()),
            got => told(&answer[..got as usize]),
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// What an answer says.
fn told(answer: &[u8]) -> io::Result<Told> {
    let cut_off = || io::Error::other("an answer of sock_diag that is not understood");
    if half(answer, 4).ok_or_else(cut_off)? == NLMSG_ERROR {
        let error = word(answer, HEAD).ok_or_else(cut_off)? as i32;
        return Err(io::Error::from_raw_os_error(-error));
    }
    let mut told = Told::default();
    let mut rest = answer.get(HEAD + ANSWER..).ok_or_else(cut_off)?;
    while let (Some(len), Some(kind)) = (half(rest, 0), half(rest, 2)) {
        if len < 4 || usize::from(len) > rest.len() {
            return Err(cut_off());
        }
        match kind {
            ATTRIBUTE_PEER => told.peer = word(rest, 4).ok_or_else(cut_off)?,
            ATTRIBUTE_SHUTDOWN => told.shutdown = *rest.get(4).ok_or_else(cut_off)?,
            _ => {}
        }
        rest = rest.get(usize::from(len).next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(told)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_ends_of_a_pair_know_each_other() {
        let (here, there) = UnixStream::pair().unwrap();
        let inode =
            |end: &UnixStream| std::fs::File::from(end.as_fd().try_clone_to_owned().unwrap()).metadata().unwrap().ino() as u32;
        let Ok(diag) = Diag::open().and_then(|diag| diag.ask(inode(&here)).map(|_| diag)) else {
            eprintln!("SKIPPED: this kernel does not tell (unix_diag)");
            return;
        };
        assert_eq!(diag.ask(inode(&here)).unwrap(), Told { peer: inode(&there), shutdown: 0 });
        here.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(diag.ask(inode(&here)).unwrap().shutdown, 2);
        assert_eq!(diag.ask(inode(&there)).unwrap().shutdown, 1);
        let gone = inode(&here);
        drop((here, there));
        assert!(diag.ask(gone).is_err());
    }

    #[test]
    fn cut_answers_are_errors() {
        assert!(told(&[]).is_err());
        assert!(told(&[0; 20]).is_err());
        let mut answer = vec![0; HEAD + ANSWER];
        answer.extend([12, 0, 2, 0, 1]);
        assert!(told(&answer).is_err());
    }
}
