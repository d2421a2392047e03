//! A server as a test has it: started, talked to, ended.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::{command, is_root, s};

/// A running server; killed when dropped.
pub struct Server {
    pub child: Child,
    pub ready: String,
    stderr: PathBuf,
}

impl Server {
    pub fn start(args: &[&str], stderr: &Path) -> Server {
        Self::start_with(args, stderr, |_| ())
    }

    pub fn start_with(args: &[&str], stderr: &Path, prepare: impl FnOnce(&mut Command)) -> Server {
        let mut command = command(&[&["serve"], args].concat());
        command.stdout(Stdio::piped()).stderr(fs::File::create(stderr).unwrap());
        prepare(&mut command);
        let mut child = command.spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
        assert!(ready.starts_with("ready: "), "{ready:?}: {}", fs::read_to_string(stderr).unwrap());
        Server { child, ready: ready.trim_end().to_owned(), stderr: stderr.to_owned() }
    }

    /// From now on, writes beyond `len` bytes of a file are refused.
    pub fn limit_files(&self, len: u64) {
        let limit = libc::rlimit { rlim_cur: len, rlim_max: len };
        // SAFETY: the structure lives through the call; the child has not been waited for, so its number is its own.
        let done = unsafe { libc::prlimit(self.child.id() as i32, libc::RLIMIT_FSIZE, &raw const limit, std::ptr::null_mut()) };
        assert_eq!(done, 0);
    }

    pub fn address(&self) -> &str {
        self.ready["ready: ".len()..].split(',').next().unwrap()
    }

    pub fn said(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap()
    }

    /// Sends `signal` and gives the exit status.
    pub fn end(mut self, signal: i32) -> Option<i32> {
        // SAFETY: the child has not been waited for, so its number is its own.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
        let status = self.child.wait().unwrap();
        status.code().or(status.signal().map(|s| -s))
    }

    pub fn client(&self) -> Client {
        let stream = TcpStream::connect(self.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Client(BufReader::new(stream))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub struct Client(pub BufReader<TcpStream>);

impl Client {
    /// Sends a command and gives the first line of its answer.
    pub fn ask(&mut self, bytes: &[u8]) -> String {
        self.0.get_mut().write_all(bytes).unwrap();
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub fn set(&mut self, key: &str, len: usize) -> String {
        let mut bytes = format!("set {key} 0 0 {len}\r\n").into_bytes();
        bytes.resize(bytes.len() + len, b'v');
        bytes.extend_from_slice(b"\r\n");
        self.ask(&bytes)
    }

    pub fn get(&mut self, key: &str) -> bool {
        let line = self.ask(format!("get {key}\r\n").as_bytes());
        let Some(len) = line.strip_prefix("VALUE ").and_then(|rest| rest.rsplit(' ').next()) else {
            assert_eq!(line, "END", "get {key}");
            return false;
        };
        let mut rest = vec![0; len.parse::<usize>().unwrap() + "\r\nEND\r\n".len()];
        self.0.read_exact(&mut rest).unwrap();
        true
    }
}

pub const SMALL: [&str; 8] = ["-p", "0", "-t", "1", "-m", "32", "-I", "256k"];

pub fn small<'a>(pool: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    [&["--pool", s(pool), "--log-mb", "4"], &SMALL[..], more].concat()
}

/// A tmpfs of this size, unmounted when dropped; `None` where that is not allowed.
pub struct Mount(tempfile::TempDir);

impl Mount {
    pub fn of(size: &str) -> Option<Mount> {
        let dir = tempfile::tempdir().unwrap();
        let options = format!("size={size}");
        let mounted = is_root()
            && Command::new("mount")
                .args(["-t", "tmpfs", "-o", &options, "towa-test", s(dir.path())])
                .status()
                .is_ok_and(|s| s.success());
        if !mounted {
            eprintln!("SKIP: a small disk needs root and mount(8)");
            return None;
        }
        Some(Mount(dir))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}
