//! Files of procfs: their length is not known before they are read.

use std::fs::File;
use std::io::{self, Read};

use super::ptrace::Tid;
use crate::error::Error;

/// Longer than most of them are; what is longer takes more calls.
const ROOM: usize = 16 << 10;

/// All of it, by as few calls as there can be: `std::fs::read` begins with pieces of 32 bytes where a file has no length, and a process may be
/// standing still meanwhile.
pub fn read(path: &str) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let (mut bytes, mut len) = (vec![0; ROOM], 0);
    loop {
        match file.read(&mut bytes[len..]) {
            Ok(0) => break,
            Ok(got) => len += got,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        if bytes.len() - len < ROOM / 2 {
            bytes.resize(bytes.len() * 2, 0);
        }
    }
    bytes.truncate(len);
    Ok(bytes)
}

/// The same, of what is text but for names that a program chose.
pub fn text(path: &str) -> io::Result<String> {
    let bytes = read(path)?;
    Ok(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
}

/// Whether an error of such a file says that its process has ended.
pub fn is_gone(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

/// What such an error means to whoever looks at process `pid`.
pub fn failed(pid: Tid, path: &str) -> impl FnOnce(io::Error) -> Error {
    move |e| if is_gone(&e) { Error::Gone { pid } } else { Error::io(format!("reading {path}"), e) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_it_is_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for len in [0, 1, ROOM / 2, ROOM - 1, ROOM, 3 * ROOM + 5] {
            let bytes: Vec<u8> = (0..len).map(|n| n as u8).collect();
            std::fs::write(&file, &bytes).unwrap();
            assert_eq!(read(file.path().to_str().unwrap()).unwrap(), bytes);
        }
        assert!(text("/proc/self/status").unwrap().starts_with("Name:"));
        assert_eq!(read("/proc/self/none").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
