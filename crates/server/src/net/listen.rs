//! Sockets to listen on, and descriptors for those who come.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::PathBuf;

use mio::event::Source;
use mio::net::{TcpListener, UnixListener};

use super::stream::Stream;
use crate::config::Config;
use crate::error::{Error, Result, io};

/// One listening socket.
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// Unix; the file goes with it.
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// For registration.
    pub fn source(&mut self) -> &mut dyn Source {
        match self {
            Listener::Tcp(listener) => listener,
            Listener::Unix(listener, _) => listener,
        }
    }

    /// The next client, if one waits.
    pub fn accept(&self) -> io::Result<Stream> {
        match self {
            Listener::Tcp(listener) => listener.accept().map(|(stream, _)| Stream::Tcp(stream)),
            Listener::Unix(listener, _) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
        }
    }

    fn fd(&self) -> RawFd {
        match self {
            Listener::Tcp(listener) => listener.as_raw_fd(),
            Listener::Unix(listener, _) => listener.as_raw_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
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
            listeners.push(bind_unix(path, config.unix_socket_mode)?);
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
            Listener::Unix(..) => None,
        })
    }

    /// How `stats conns` shows them.
    pub fn names(&self) -> Vec<String> {
        let name = |listener: &Listener| match listener {
            Listener::Tcp(listener) => listener.local_addr().map_or("?".into(), |address| match address {
                SocketAddr::V4(_) => format!("tcp:{address}"),
                SocketAddr::V6(_) => format!("tcp6:{address}"),
            }),
            Listener::Unix(_, path) => format!("unix:{}", path.display()),
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

fn bind_unix(path: &PathBuf, mode: u32) -> Result<Listener> {
    let name = path.display();
    // A socket that a dead server left behind is removed; anything else is not ours.
    if let Ok(old) = std::fs::symlink_metadata(path) {
        if !old.file_type().is_socket() {
            return Err(Error::Config(format!("{name} is there and is no socket; remove it, or give -s another path")));
        }
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(Error::Config(format!("another server listens on {name}; stop it, or give -s another path")));
        }
        std::fs::remove_file(path).map_err(io(format!("remove the stale socket {name}")))?;
    }
    let listener = UnixListener::bind(path).map_err(io(format!("listen on {name}")))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(io(format!("set the permissions of {name}")))?;
    Ok(Listener::Unix(listener, path.clone()))
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
