//! Sockets to listen on, and descriptors for those who come.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

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
        // Only a refusal says that nothing listens: a socket of another type, or one that this user may not use, is somebody's.
        match std::os::unix::net::UnixStream::connect(path) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
            Ok(_) => return Err(Error::Config(format!("another server listens on {name}; stop it, or give -s another path"))),
            Err(error) => {
                let what = format!("{name} is a socket that something else may use ({error}); remove it, or give -s another path");
                return Err(Error::Config(what));
            }
        }
        std::fs::remove_file(path).map_err(io(format!("remove the stale socket {name}")))?;
    }
    let listener = listen_at(path, mode).map_err(io(format!("listen on {name}")))?;
    // The umask may have taken bits away that were asked for.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(io(format!("set the permissions of {name}")))?;
    Ok(Listener::Unix(listener, path.clone()))
}

/// Makes the socket with permissions `mode`, less the umask, from the first moment on: the kernel gives the file those of the descriptor
/// that is bound. Permissions that are set on the file later leave a moment in which others can connect, and stay connected.
fn listen_at(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let address = std::os::unix::net::SocketAddr::from_pathname(path)?;
    let checked = |result: libc::c_int| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) };
    let mut name = libc::sockaddr_un { sun_family: libc::AF_UNIX as libc::sa_family_t, sun_path: [0; 108] };
    let bytes = address.as_pathname().unwrap_or(path).as_os_str().as_bytes();
    name.sun_path.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from as libc::c_char);
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: the descriptor is new and owned from here on; `name` is a whole address, NUL-terminated (`from_pathname` refuses longer
    // ones), and lives through the call.
    let socket = unsafe {
        let socket = OwnedFd::from_raw_fd(checked(libc::socket(libc::AF_UNIX, kind, 0))?);
        checked(libc::fchmod(socket.as_raw_fd(), mode as libc::mode_t))?;
        let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        checked(libc::bind(socket.as_raw_fd(), (&raw const name).cast(), len))?;
        checked(libc::listen(socket.as_raw_fd(), 1))?;
        socket
    };
    Ok(UnixListener::from_std(socket.into()))
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

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn a_socket_has_its_permissions_from_the_first_moment_on() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path| std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
        for wanted in [0o700, 0o600, 0o000] {
            let path = dir.path().join(format!("{wanted:o}"));
            // Not yet set on the file.
            let listener = listen_at(&path, wanted).unwrap();
            assert_eq!(mode(&path), wanted);
            drop(listener);
        }
        let path = dir.path().join("open");
        let listener = bind_unix(&path, 0o777).unwrap();
        assert_eq!(mode(&path), 0o777, "the umask takes nothing away");
        drop(listener);
        assert!(listen_at(&dir.path().join("x".repeat(200)), 0o700).is_err());
    }

    #[test]
    fn a_socket_that_something_else_uses_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let datagram = UnixDatagram::bind(&path).unwrap();
        assert!(bind_unix(&path, 0o700).err().is_some_and(|error| error.to_string().contains("give -s another path")));
        assert!(path.exists());
        drop((datagram, std::fs::remove_file(&path)));
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(bind_unix(&path, 0o700).is_ok(), "a stale socket is replaced");
    }
}
