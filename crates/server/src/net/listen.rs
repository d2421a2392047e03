//! Sockets to listen on, and descriptors for those who come.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsRawFd, RawFd};

use mio::event::Source;
use mio::net::TcpListener;

use super::stream::Stream;
use super::unix_socket::UnixSocket;
use crate::config::Config;
use crate::error::{Error, Result, io};

/// One listening socket.
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// Unix.
    Unix(UnixSocket),
}

impl Listener {
    /// For registration.
    pub fn source(&mut self) -> &mut dyn Source {
        match self {
            Listener::Tcp(listener) => listener,
            Listener::Unix(socket) => &mut socket.listener,
        }
    }

    /// The next client, if one waits.
    pub fn accept(&self) -> io::Result<Stream> {
        match self {
            Listener::Tcp(listener) => listener.accept().map(|(stream, _)| Stream::Tcp(stream)),
            Listener::Unix(socket) => socket.listener.accept().map(|(stream, _)| Stream::Unix(stream)),
        }
    }

    fn fd(&self) -> RawFd {
        match self {
            Listener::Tcp(listener) => listener.as_raw_fd(),
            Listener::Unix(socket) => socket.listener.as_raw_fd(),
        }
    }
}

/// All listening sockets of a server.
pub struct Listeners(pub Vec<Listener>);

impl Listeners {
    /// Opens the sockets that `config` asks for; all or none.
    pub fn bind(config: &Config) -> Result<Listeners> {
        let mut listeners = Vec::new();
        if let Some(path) = &config.unix_socket {
            listeners.push(Listener::Unix(UnixSocket::bind(path, config.unix_socket_mode)?));
        } else {
            let mut port = config.port;
            for host in &config.listen {
                for address in resolve(host, port)? {
                    let listener = TcpListener::bind(address).map_err(io(format!("listen on {address}")))?;
                    // Further addresses share the port that the first one was given.
                    port = listener.local_addr().map_or(port, |bound| bound.port());
                    listeners.push(Listener::Tcp(listener));
                }
            }
        }
        for listener in &listeners {
            // SAFETY: the descriptor is a listening socket; listening again sets the backlog.
            if unsafe { libc::listen(listener.fd(), config.backlog) } != 0 {
                return Err(io("set the listen backlog")(io::Error::last_os_error()));
            }
        }
        Ok(Listeners(listeners))
    }

    /// The first TCP address.
    pub fn address(&self) -> Option<SocketAddr> {
        self.0.iter().find_map(|listener| match listener {
            Listener::Tcp(listener) => listener.local_addr().ok(),
            Listener::Unix(_) => None,
        })
    }

    /// How `stats conns` shows them.
    pub fn names(&self) -> Vec<String> {
        let name = |listener: &Listener| match listener {
            Listener::Tcp(listener) => listener.local_addr().map_or("?".into(), |address| match address {
                SocketAddr::V4(_) => format!("tcp:{address}"),
                SocketAddr::V6(_) => format!("tcp6:{address}"),
            }),
            Listener::Unix(socket) => format!("unix:{}", socket.path().display()),
        };
        self.0.iter().map(name).collect()
    }
}

fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>> {
    let found = match host.parse::<SocketAddr>() {
        Ok(address) => Ok(vec![address]),
        // A bare IPv6 address has colons too; anything else with one colon is host:port.
        Err(_) if host.parse::<std::net::IpAddr>().is_err() && host.contains(':') => host.to_socket_addrs().map(Iterator::collect),
        Err(_) => (host, port).to_socket_addrs().map(Iterator::collect::<Vec<_>>),
    };
    let mut addresses = found.map_err(io(format!("resolve the address {host:?} (-l)")))?;
    addresses.dedup();
    match addresses.is_empty() {
        true => Err(Error::Config(format!("the address {host:?} (-l) resolves to nothing"))),
        false => Ok(addresses),
    }
}

/// Raises the limit of open files, so that `connections` clients fit beside the server's own files.
pub fn raise_descriptor_limit(connections: usize) {
    let wanted = connections as u64 + 256;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for the answer, and a valid request below.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) != 0 || limit.rlim_cur >= wanted {
            return;
        }
        let raised = libc::rlimit { rlim_cur: wanted, rlim_max: limit.rlim_max.max(wanted) };
        if libc::setrlimit(libc::RLIMIT_NOFILE, &raised) == 0 {
            return;
        }
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
    }
    log::warn!(
        "{connections} connections (-c) need {wanted} open files, the system allows {}; raise the limit (ulimit -n) or lower -c",
        limit.rlim_max
    );
}
