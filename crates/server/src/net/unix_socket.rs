//! A Unix socket to listen on: its name, its permissions, and the socket of a dead server that has the name.
//!
//! What must always hold: the socket has its permissions from its first moment on; only a socket of this server's, or one of a dead server
//! of the same user, is changed or removed, whatever the path of its directory leads to by then.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use mio::net::UnixListener;

use crate::error::{Error, Result, io};

/// A socket that is listened on. Its file goes with it.
pub struct UnixSocket {
    pub listener: UnixListener,
    place: Place,
    /// Device and number of its file.
    made: (u64, u64),
}

impl UnixSocket {
    /// A socket at `path` with these permissions.
    pub fn bind(path: &Path, mode: u32) -> Result<UnixSocket> {
        let name = path.display();
        let place = Place::of(path).map_err(io(format!("look at the directory of {name}")))?;
        if let Ok(old) = place.open() {
            remove_dead(&place, &old)?;
        }
        let listener = listen_at(path, mode).map_err(io(format!("listen on {name}")))?;
        let made = place.complete(mode).map_err(io(format!("set the permissions of {name}")))?;
        Ok(UnixSocket { listener, place, made })
    }

    /// As the configuration gives it.
    pub fn path(&self) -> &Path {
        &self.place.path
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        // Another server's may have the name by now.
        if self.place.status().is_ok_and(|status| (status.dev(), status.ino()) == self.made) {
            let _ = std::fs::remove_file(self.place.there());
        }
    }
}

/// The name of a socket in its directory, which stays the same directory whatever its path leads to later.
struct Place {
    directory: File,
    name: OsString,
    /// As the configuration gives it.
    path: PathBuf,
}

impl Place {
    fn of(path: &Path) -> io::Result<Place> {
        let name = path.file_name().ok_or(ErrorKind::InvalidInput)?.to_owned();
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let directory = File::options().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(parent)?;
        Ok(Place { directory, name, path: path.to_owned() })
    }

    /// Where this name is now, also if the directory was moved.
    fn there(&self) -> PathBuf {
        self.beside(&self.name)
    }

    /// Another name in the directory.
    fn beside(&self, name: &OsStr) -> PathBuf {
        Path::new(&format!("/proc/self/fd/{}", self.directory.as_raw_fd())).join(name)
    }

    fn status(&self) -> io::Result<Metadata> {
        std::fs::symlink_metadata(self.there())
    }

    /// The file there, whatever its type, and not what a link leads to. While it is open no other file gets its number.
    fn open(&self) -> io::Result<File> {
        File::options().read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW).open(self.there())
    }

    /// Gives the socket the permissions that the umask took away; gives its device and number. A link there is not followed.
    fn complete(&self, mode: u32) -> io::Result<(u64, u64)> {
        let file = self.open()?;
        let status = file.metadata()?;
        if !status.file_type().is_socket() {
            return Err(io::Error::other("another process has replaced it"));
        }
        if status.permissions().mode() & 0o7777 != mode {
            let name = format!("/proc/self/fd/{}", file.as_raw_fd());
            std::fs::set_permissions(name, std::fs::Permissions::from_mode(mode))?;
        }
        Ok((status.dev(), status.ino()))
    }

    /// Connects to the socket, without waiting for one that takes no more clients. One that is bound and not yet
    /// listened on refuses as a dead one does: so a server that is just starting gets a little time.
    fn connect_to_listener(&self) -> io::Result<()> {
        // A path can fit into an address that the way by the descriptor does not fit into.
        let there = self.there();
        let there = if address_of(&there).is_ok() { &there } else { &self.path };
        for _ in 0..LOOKS {
            match connect_now(there) {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => std::thread::sleep(BETWEEN_LOOKS),
                other => return other,
            }
        }
        connect_now(there)
    }

    /// Renames what is there to a name that no other process can know; gives that name.
    fn move_aside(&self) -> io::Result<PathBuf> {
        loop {
            let aside = self.beside(format!(".towa-dead-{:016x}", RandomState::new().build_hasher().finish()).as_ref());
            match rename_to_new(&self.there(), &aside) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                // A file system that knows no such renaming. No other file has a name that was just drawn.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    return std::fs::rename(self.there(), &aside).map(|()| aside);
                }
                done => return done.map(|()| aside),
            }
        }
    }
}

/// Removes `old`, the socket that a dead server of this user left at this place; anything else is not ours.
fn remove_dead(place: &Place, old: &File) -> Result<()> {
    let name = place.path.display();
    let old = old.metadata().map_err(io(format!("look at {name}")))?;
    let refuse = |what: &str| Err(Error::Config(format!("{name} {what}, or give -s another path")));
    if !old.file_type().is_socket() {
        return refuse("is there and is no socket; remove it");
    }
    // SAFETY: asks, and changes nothing.
    if old.uid() != unsafe { libc::geteuid() } {
        return refuse(&format!("is a socket of user {}; remove it", old.uid()));
    }
    // Only a refusal says that nothing listens: a socket of another type, or one that this user may not use, is somebody's.
    match place.connect_to_listener() {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() != ErrorKind::WouldBlock => {
            return refuse(&format!("is a socket that something else may use ({error}); remove it"));
        }
        _ => return refuse("has another server that listens there; stop it"),
    }
    // Another server may have put its own there since: what is removed is looked at once more, under a name that no other process uses.
    let aside = match place.move_aside() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        other => other.map_err(io(format!("remove the stale socket {name}")))?,
    };
    if std::fs::symlink_metadata(&aside).is_ok_and(|now| (now.dev(), now.ino()) == (old.dev(), old.ino())) {
        return std::fs::remove_file(&aside).map_err(io(format!("remove the stale socket {name}")));
    }
    // It has its name again, unless something else has that by now.
    let _ = rename_to_new(&aside, &place.there());
    refuse("has another server that has just begun to listen there; stop it")
}

/// Renames a file to a name that no other file has.
fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    let c_string = |path: &Path| std::ffi::CString::new(path.as_os_str().as_bytes());
    let (from, to) = (c_string(from)?, c_string(to)?);
    // SAFETY: both names are NUL-terminated.
    checked(unsafe { libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), libc::RENAME_NOREPLACE) })
        .map(drop)
}

fn connect_now(path: &Path) -> io::Result<()> {
    let (socket, name) = (new_socket()?, address_of(path)?);
    // SAFETY: the descriptor is ours; `name` is a whole address, and lives through the call.
    checked(unsafe { libc::connect(socket.as_raw_fd(), (&raw const name).cast(), ADDRESS_LEN) }).map(drop)
}

/// A server listens some microseconds after it has bound its socket.
const LOOKS: u32 = 10;
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

const ADDRESS_LEN: libc::socklen_t = size_of::<libc::sockaddr_un>() as libc::socklen_t;

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn new_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: the descriptor is new and owned from here on.
    unsafe { checked(libc::socket(libc::AF_UNIX, kind, 0)).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

/// The address of the socket at `path`, NUL-terminated: longer ones are refused.
fn address_of(path: &Path) -> io::Result<libc::sockaddr_un> {
    let address = std::os::unix::net::SocketAddr::from_pathname(path)?;
    let mut name = libc::sockaddr_un { sun_family: libc::AF_UNIX as libc::sa_family_t, sun_path: [0; 108] };
    let bytes = address.as_pathname().unwrap_or(path).as_os_str().as_bytes();
    name.sun_path.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from as libc::c_char);
    Ok(name)
}

/// Makes the socket with permissions `mode`, less the umask, from the first moment on: the kernel gives the file those of the descriptor
/// that is bound. Permissions that are set on the file later leave a moment in which others can connect, and stay connected.
fn listen_at(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let (socket, name) = (new_socket()?, address_of(path)?);
    // SAFETY: the descriptor is ours; `name` is a whole address, and lives through the call.
    unsafe {
        checked(libc::fchmod(socket.as_raw_fd(), mode as libc::mode_t))?;
        checked(libc::bind(socket.as_raw_fd(), (&raw const name).cast(), ADDRESS_LEN))?;
        checked(libc::listen(socket.as_raw_fd(), 1))?;
    }
    Ok(UnixListener::from_std(socket.into()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    fn bind(path: &Path, mode: u32) -> Result<UnixSocket> {
        UnixSocket::bind(path, mode)
    }

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
        let listener = bind(&path, 0o777).unwrap();
        assert_eq!(mode(&path), 0o777, "the umask takes nothing away");
        drop(listener);
        assert!(listen_at(&dir.path().join("x".repeat(200)), 0o700).is_err());
    }

    #[test]
    fn a_socket_that_something_else_uses_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        // Connecting to a file is refused, too, as if a server had died.
        std::fs::write(&path, "notes").unwrap();
        refused(&path, "is no socket");
        std::fs::remove_file(&path).unwrap();
        let datagram = UnixDatagram::bind(&path).unwrap();
        assert!(bind(&path, 0o700).err().is_some_and(|error| error.to_string().contains("give -s another path")));
        assert!(path.exists());
        drop((datagram, std::fs::remove_file(&path)));
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(bind(&path, 0o700).is_ok(), "a stale socket is replaced");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "it goes with its server");
        // Bound, and listened on a moment later: until then connecting is refused as where nothing is.
        let (socket, name) = (new_socket().unwrap(), address_of(&path).unwrap());
        // SAFETY: as in `listen_at`.
        checked(unsafe { libc::bind(socket.as_raw_fd(), (&raw const name).cast(), ADDRESS_LEN) }).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(2 * BETWEEN_LOOKS);
                // SAFETY: a descriptor of ours.
                checked(unsafe { libc::listen(socket.as_raw_fd(), 1) }).unwrap();
            });
            refused(&path, "another server that listens there");
        });
        drop(socket);
        // It listens, and has no room for one more that connects.
        std::fs::remove_file(&path).unwrap();
        let listener = listen_at(&path, 0o700).unwrap();
        let crowd: Vec<_> = (0..8).map(|_| (new_socket().unwrap(), address_of(&path).unwrap())).collect();
        for (socket, name) in &crowd {
            // SAFETY: as in `connect_now`. Sooner or later there is no room.
            unsafe { libc::connect(socket.as_raw_fd(), (&raw const *name).cast(), ADDRESS_LEN) };
        }
        refused(&path, "another server that listens there");
        drop((crowd, listener));
        // SAFETY: asks, and changes nothing.
        if unsafe { libc::geteuid() } != 0 {
            return eprintln!("SKIP in part: giving a socket to another user takes root");
        }
        std::os::unix::fs::chown(&path, Some(4711), None).unwrap();
        refused(&path, "of user 4711");
    }

    fn refused(path: &Path, why: &str) {
        let said = bind(path, 0o700).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(said.contains(why) && said.contains("give -s another path") && path.exists(), "{said}");
    }

    #[test]
    fn a_server_changes_and_removes_its_own_socket_only() {
        let dir = tempfile::tempdir().unwrap();
        let (path, victim) = (dir.path().join("socket"), dir.path().join("victim"));
        std::fs::write(&victim, "").unwrap();
        std::fs::set_permissions(&victim, std::fs::Permissions::from_mode(0o600)).unwrap();
        let listener = bind(&path, 0o700).unwrap();
        // Another process puts a link in its place before its permissions are set, and another server its socket before it ends.
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        assert!(Place::of(&path).unwrap().complete(0o777).is_err());
        assert_eq!(std::fs::metadata(&victim).unwrap().permissions().mode() & 0o777, 0o600);
        // Nor does a link lead to a socket of another server.
        let (victim, _others) = (dir.path().join("other"), listen_at(&dir.path().join("other"), 0o600).unwrap());
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        assert!(Place::of(&path).unwrap().complete(0o777).is_err());
        assert_eq!(std::fs::metadata(&victim).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::remove_file(&path).unwrap();
        let next = std::os::unix::net::UnixListener::bind(&path).unwrap();
        drop(listener);
        assert!(path.exists(), "the socket of the next server");
        drop(next);
    }

    /// Two servers find the same dead socket: the second finds the first one's in its place.
    #[test]
    fn a_socket_that_took_a_dead_ones_place_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let place = Place::of(&path).unwrap();
        let old = place.open().unwrap();
        std::fs::remove_file(&path).unwrap();
        // Dead, too, so that only its number tells.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(remove_dead(&place, &old).is_err_and(|error| error.to_string().contains("has just begun")));
        assert!(path.exists() && std::fs::read_dir(dir.path()).unwrap().count() == 1);
    }

    /// The directory's path leads to another user's directory by the time that the server sets permissions, and when it ends.
    #[test]
    fn a_directory_that_is_exchanged_leads_to_no_other_socket() {
        let dir = tempfile::tempdir().unwrap();
        let (own, other) = (dir.path().join("own"), dir.path().join("other"));
        [&own, &other].into_iter().for_each(|path| std::fs::create_dir(path).unwrap());
        let victim = std::os::unix::net::UnixListener::bind(other.join("s")).unwrap();
        std::fs::set_permissions(other.join("s"), std::fs::Permissions::from_mode(0o600)).unwrap();
        let listener = bind(&own.join("s"), 0o700).unwrap();
        let place = Place::of(&own.join("s")).unwrap();
        std::fs::rename(&own, dir.path().join("moved")).unwrap();
        std::os::unix::fs::symlink(&other, &own).unwrap();
        place.complete(0o777).unwrap();
        assert_eq!(std::fs::metadata(other.join("s")).unwrap().permissions().mode() & 0o777, 0o600);
        drop(listener);
        assert!(other.join("s").exists() && !dir.path().join("moved/s").exists());
        drop(victim);
    }

    #[test]
    fn a_stale_socket_with_a_long_name_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let left = 107 - dir.path().as_os_str().len() - 1;
        let path = dir.path().join("x".repeat(left));
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        bind(&path, 0o700).unwrap();
    }
}
