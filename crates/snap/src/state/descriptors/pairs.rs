//! Pairs of unix sockets (socketpair(2)) with both ends in the process: event loops use them to wake themselves.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};

use super::Pair;
use crate::sys::fd::{self, Waiting};
use crate::sys::unix_diag::{Diag, Told};

/// Options that are kept of an end.
const OPTIONS: [i32; 3] = [libc::SO_SNDBUF, libc::SO_RCVBUF, libc::SO_PASSCRED];

/// Which unix sockets of a process are connected to which, by inode.
#[derive(Debug, Default)]
pub struct Ends(HashMap<u32, Told>);

impl Ends {
    /// Of these inodes. A kernel that does not tell leaves them unknown: then they are refused as any connection.
    pub fn of(inodes: &[u32]) -> Ends {
        if inodes.is_empty() {
            return Ends::default();
        }
        let Ok(diag) = Diag::open() else { return Ends::default() };
        Ends(inodes.iter().filter_map(|inode| Some((*inode, diag.ask(*inode).ok()?))).collect())
    }

    /// The other end of the socket with this inode, if the process has that, too.
    pub fn other(&self, inode: u32) -> Option<u32> {
        let peer = self.0.get(&inode)?.peer;
        self.0.contains_key(&peer).then_some(peer)
    }

    /// Index of the pair that the end `inode` belongs to, and whether it is its second one. `one`: the socket.
    pub fn pair(&self, inode: u32, one: BorrowedFd<'_>, pairs: &mut Vec<Pair>) -> Result<(usize, bool), String> {
        let other = self.other(inode).ok_or("a unix socket whose other end is in another process, or closed")?;
        let (index, second) = match pairs.iter().position(|pair| pair.inodes.contains(&inode)) {
            Some(index) => (index, pairs[index].inodes[1] == inode),
            None => {
                let option = |name| fd::socket_option(one, libc::SOL_SOCKET, name).map_err(|e| format!("a unix socket: {e}"));
                let (kind, protocol) = (option(libc::SO_TYPE)?, option(libc::SO_PROTOCOL)?);
                pairs.push(Pair { inodes: [inode, other], kind, protocol, ends: Default::default() });
                (pairs.len() - 1, false)
            }
        };
        let shutdown = self.0[&inode].shutdown;
        let content = waiting(one.as_fd(), pairs[index].kind, shutdown)?;
        let end = &mut pairs[index].ends[usize::from(second)];
        end.content = content;
        end.shutdown = shutdown;
        end.options =
            OPTIONS.iter().filter_map(|name| Some((*name, fd::socket_option(one, libc::SOL_SOCKET, *name).ok()?))).collect();
        Ok((index, second))
    }
}

/// What waits to be read at an end, which stays there.
fn waiting(end: BorrowedFd<'_>, kind: i32, shutdown: u8) -> Result<Vec<u8>, String> {
    let failed = |e: std::io::Error| format!("a pair of unix sockets: {e}");
    if fd::socket_option(end, libc::SOL_SOCKET, libc::SO_PEEK_OFF).map_err(failed)? != -1 {
        return Err("a unix socket that looks ahead at an offset (SO_PEEK_OFF)".into());
    }
    match fd::peek_socket(end).map_err(failed)? {
        Waiting::Nothing => Ok(Vec::new()),
        Waiting::Bytes(bytes) if kind == libc::SOCK_STREAM || bytes.is_empty() && shutdown & 1 != 0 => Ok(bytes),
        Waiting::Bytes(_) => Err("a pair of unix sockets, in which messages are under way (not a stream); try again".into()),
        Waiting::Descriptor => Err("a pair of unix sockets, in which a descriptor is under way; try again".into()),
    }
}
