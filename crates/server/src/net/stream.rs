//! A client's socket, TCP or Unix.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};

use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};

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

    /// Registers for everything, edge-triggered, once for its life.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(self.source(), token, Interest::READABLE | Interest::WRITABLE)
    }

    /// Ends the registration.
    pub fn deregister(&mut self, registry: &Registry) {
        let _ = registry.deregister(self.source());
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

    /// Appends to `buffer` what can be read into `room` bytes more.
    pub fn read_more(&mut self, buffer: &mut Vec<u8>, room: usize) -> io::Result<usize> {
        buffer.reserve(room);
        let spare = buffer.spare_capacity_mut();
        let room = room.min(spare.len());
        // SAFETY: recv writes at most `room` bytes into the spare capacity; what it says it wrote is initialised.
        unsafe {
            let got = libc::recv(self.as_raw_fd(), spare.as_mut_ptr().cast(), room, 0);
            if got < 0 {
                return Err(io::Error::last_os_error());
            }
            buffer.set_len(buffer.len() + got as usize);
            Ok(got as usize)
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
