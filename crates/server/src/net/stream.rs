//! A client's socket, TCP or Unix, and what a connection needs of it.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};

use crate::server::Seat;

/// What carries a connection's bytes: a socket, or in tests something that breaks where it is told to. Never blocks: it says
/// [`WouldBlock`](io::ErrorKind::WouldBlock) instead.
pub trait Transport: Read + Write {
    /// Appends to `buffer` what can be read into `room` bytes more.
    fn read_more(&mut self, buffer: &mut Vec<u8>, room: usize) -> io::Result<usize> {
        let start = buffer.len();
        buffer.reserve_exact(room);
        buffer.resize(start + room, 0);
        let got = self.read(&mut buffer[start..]);
        buffer.truncate(start + *got.as_ref().unwrap_or(&0));
        got
    }
}

/// A non-blocking connected socket.
#[derive(Debug)]
pub enum Stream {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a Unix socket.
    Unix(UnixStream),
}

impl Stream {
    fn source(&mut self) -> &mut dyn Source {
        match self {
            Stream::Tcp(stream) => stream,
            Stream::Unix(stream) => stream,
        }
    }

    /// Small answers at once, and dead peers found in time.
    pub fn tune(&self) {
        if let Stream::Tcp(stream) = self {
            let _ = stream.set_nodelay(true);
            let on: libc::c_int = 1;
            // SAFETY: the descriptor is open and the option's value is a C int that lives through the call.
            unsafe {
                libc::setsockopt(
                    self.as_raw_fd(),
                    libc::SOL_SOCKET,
                    libc::SO_KEEPALIVE,
                    (&raw const on).cast(),
                    size_of::<libc::c_int>() as libc::socklen_t,
                );
            }
        }
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Stream::Tcp(stream) => stream.as_raw_fd(),
            Stream::Unix(stream) => stream.as_raw_fd(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(into),
            Stream::Unix(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A client's socket in a worker's poll. Leaves the poll, and frees its seat, when it is dropped.
pub struct Registered {
    stream: Stream,
    registry: Arc<Registry>,
    _seat: Seat,
}

impl Registered {
    /// Registers for everything, edge-triggered, once for its life.
    pub fn new(mut stream: Stream, seat: Seat, registry: &Arc<Registry>, token: Token) -> io::Result<Registered> {
        registry.register(stream.source(), token, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Registered { stream, registry: Arc::clone(registry), _seat: seat })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let _ = self.registry.deregister(self.stream.source());
    }
}

impl Read for Registered {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.read(into)
    }
}

impl Write for Registered {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Transport for Registered {
    fn read_more(&mut self, buffer: &mut Vec<u8>, room: usize) -> io::Result<usize> {
        // `room` is what it may grow by; the caller doubles it.
        buffer.reserve_exact(room);
        let spare = buffer.spare_capacity_mut();
        let room = room.min(spare.len());
        // SAFETY: recv writes at most `room` bytes into the spare capacity; what it says it wrote is initialised.
        unsafe {
            let got = libc::recv(self.stream.as_raw_fd(), spare.as_mut_ptr().cast(), room, 0);
            if got < 0 {
                return Err(io::Error::last_os_error());
            }
            buffer.set_len(buffer.len() + got as usize);
            Ok(got as usize)
        }
    }
}
