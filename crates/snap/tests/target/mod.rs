//! A process that does with its memory what a test tells it (`target.c`).
#![allow(dead_code)] // each test file uses some of it

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

pub const PAGE: u64 = 4096;
pub const RW: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;
pub const PRIVATE: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;

pub struct Target {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

/// The program, compiled once for each test binary.
fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-target", env!("CARGO_CRATE_NAME")));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/target/target.c");
        let status = Command::new("cc").args(["-O1", "-pthread", "-Wall", "-o"]).arg(&path).arg(source).status().expect("cc");
        assert!(status.success());
        path
    })
}

impl Target {
    pub fn start() -> Target {
        let mut child = Command::new(program()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut target = Target { child, to, from };
        target.ask("r 0"); // it runs
        target
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Gives a command without waiting for the answer.
    pub fn tell(&mut self, command: &str) {
        writeln!(self.to, "{command}").unwrap();
    }

    pub fn answer(&mut self) -> i64 {
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        line.trim().parse().unwrap_or_else(|_| panic!("the target has ended: {:?}", self.child.try_wait()))
    }

    pub fn ask(&mut self, command: &str) -> i64 {
        self.tell(command);
        self.answer()
    }

    /// A system call of the target.
    pub fn call<const N: usize>(&mut self, number: i64, arguments: [u64; N]) -> i64 {
        let arguments: Vec<String> = arguments.iter().map(|each| (*each as i64).to_string()).collect();
        self.ask(&format!("s {number} {}", arguments.join(" ")))
    }

    /// The same, where it must succeed.
    pub fn ok<const N: usize>(&mut self, number: i64, arguments: [u64; N]) -> u64 {
        let result = self.call(number, arguments);
        assert!(result >= 0, "system call {number} {arguments:x?}: {result}");
        result as u64
    }

    pub fn map(&mut self, pages: u64, prot: u64, flags: u64) -> u64 {
        self.ok(libc::SYS_mmap, [0, pages * PAGE, prot, flags, u64::MAX, 0])
    }

    pub fn madvise(&mut self, at: u64, pages: u64, advice: i32) {
        self.ok(libc::SYS_madvise, [at, pages * PAGE, advice as u64]);
    }

    /// Writes one byte of each page: `value`, `value + 1`, ...
    pub fn write(&mut self, at: u64, pages: u64, value: u8) {
        self.ask(&format!("w {at} {} {PAGE} {value}", pages * PAGE));
    }

    /// The byte at an address; -1 if touching it is a signal.
    pub fn byte(&mut self, at: u64) -> i64 {
        self.ask(&format!("r {at}"))
    }

    /// A userfaultfd of the target's memory, made by it, taken from it and closed there.
    pub fn userfaultfd(&mut self, flags: u64) -> OwnedFd {
        let theirs = self.ok(libc::SYS_userfaultfd, [flags | libc::O_CLOEXEC as u64]);
        // SAFETY: no memory is involved, and each descriptor that the kernel makes is ours alone.
        let ours = unsafe {
            let process = libc::syscall(libc::SYS_pidfd_open, self.pid(), 0);
            let process = OwnedFd::from_raw_fd(i32::try_from(process).unwrap());
            let ours = libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), theirs, 0);
            assert!(ours >= 0, "{}", std::io::Error::last_os_error());
            OwnedFd::from_raw_fd(ours as i32)
        };
        self.ok(libc::SYS_close, [theirs]);
        ours
    }

    /// Stops it, wherever it is.
    pub fn stop(&self) {
        let mut status = 0;
        // SAFETY: the process is our child, `status` is there.
        unsafe {
            assert_eq!(libc::kill(self.pid(), libc::SIGSTOP), 0);
            assert_eq!(libc::waitpid(self.pid(), &mut status, libc::WUNTRACED), self.pid());
        }
        assert!(libc::WIFSTOPPED(status), "it ended: {status:x}");
    }

    pub fn resume(&self) {
        // SAFETY: the process is our child.
        unsafe { assert_eq!(libc::kill(self.pid(), libc::SIGCONT), 0) };
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
