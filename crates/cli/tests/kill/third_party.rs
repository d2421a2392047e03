//! A client that is not ours: pymemcache, in a process of its own, where it is installed.
//!
//! What it was told and what it answered is kept as for our own clients, and judged as theirs after each kill. It sends one command
//! at a time, as such clients do.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rand::Rng;
use rand::rngs::SmallRng;

use crate::client::{COUNTERS, Client, ITEMS, read, value};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kill/third_party.py");

/// Interpreters to try: the one asked for; the first on the path; Debian's own, which Debian's package of pymemcache is for.
const PYTHONS: [&str; 2] = ["python3", "/usr/bin/python3"];

/// The first interpreter that has pymemcache.
fn interpreter() -> Option<&'static OsString> {
    static FOUND: OnceLock<Option<OsString>> = OnceLock::new();
    let has_it = |python: &OsString| {
        let asked = python_of(python).args(["-c", "import pymemcache"]).stderr(Stdio::null()).output();
        asked.is_ok_and(|out| out.status.success())
    };
    let find = || std::env::var_os("TOWA_PYTHON").into_iter().chain(PYTHONS.map(Into::into)).find(has_it);
    FOUND.get_or_init(find).as_ref()
}

fn python_of(program: &OsStr) -> Command {
    let mut command = Command::new(program);
    // Where tests/memcached/clients installs what the machine lacks.
    let ours = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap_or(Path::new(".")).join("clients/python");
    let theirs = std::env::var_os("PYTHONPATH").unwrap_or_default();
    let both = std::env::join_paths(std::env::split_paths(&theirs).chain([ours])).expect("paths without a colon");
    command.env("PYTHONPATH", both).stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// Whether there is one on this machine.
pub fn is_installed() -> bool {
    interpreter().is_some()
}

/// One process with one connection.
struct Running {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    has_barriers: bool,
}

impl Running {
    fn start(address: &str) -> io::Result<Running> {
        let mut child = python_of(interpreter().expect("asked for before")).args([SCRIPT, address]).spawn()?;
        let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let mut running = Running { child, stdin, stdout: BufReader::new(stdout), has_barriers: false };
        running.has_barriers = running.hear()? == "ready";
        Ok(running)
    }

    fn ask(&mut self, line: &str) -> io::Result<String> {
        writeln!(self.stdin, "{line}")?;
        self.stdin.flush()?;
        self.hear()
    }

    fn hear(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        match line.trim_end() {
            "gone" | "" => Err(io::ErrorKind::UnexpectedEof.into()),
            line => {
                assert!(!line.starts_with("failed"), "pymemcache: {line}");
                Ok(line.to_owned())
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Client {
    /// [`work`](Client::work) by way of pymemcache.
    pub fn work_through_pymemcache(&mut self, address: &str, rng: &mut SmallRng, stop: &AtomicBool) {
        let Ok(mut python) = Running::start(address) else { return };
        while !stop.load(Relaxed) {
            if self.command_through(&mut python, rng).is_err() {
                break;
            }
        }
    }

    fn command_through(&mut self, python: &mut Running, rng: &mut SmallRng) -> io::Result<()> {
        let (item, counter) = (rng.random_range(0..ITEMS), ITEMS + rng.random_range(0..COUNTERS));
        match rng.random_range(0..100) {
            0..50 => {
                let (name, version) = (self.key(item), self.new_version());
                let op = self.record(Some((item, Some(version))), false);
                self.expect(python, &format!("set {name} {}", hex(&value(&name, version))), "stored", op)
            }
            50..65 => {
                let wanted = if self.state(item).is_some() { "deleted" } else { "absent" };
                let op = self.record(Some((item, None)), false);
                self.expect(python, &format!("delete {}", self.key(item)), wanted, op)
            }
            65..80 => {
                let (name, by) = (self.key(counter), rng.random_range(1..1000));
                let after = self.state(counter).unwrap_or(0) + by;
                let known = self.state(counter).is_some();
                let op = self.record(Some((counter, Some(after))), false);
                match known {
                    true => self.expect(python, &format!("incr {name} {by}"), &after.to_string(), op),
                    false => self.expect(python, &format!("set {name} {}", hex(by.to_string().as_bytes())), "stored", op),
                }
            }
            80..95 => {
                let name = self.key(item);
                let answer = python.ask(&format!("get {name}"))?;
                let found = (answer != "absent").then(|| read(&name, item, &unhex(&answer)));
                assert_eq!(found, self.state(item), "{name}: the server forgot or invented something while it ran");
                Ok(())
            }
            _ if !python.has_barriers => Ok(()),
            n => {
                let done = self.history.ops.len();
                let answer = python.ask(if n % 2 == 0 { "barrier durable now" } else { "barrier durable" })?;
                assert!(answer.starts_with("DURABLE "), "a barrier was answered {answer:?}");
                self.history.durable = self.history.durable.max(done);
                Ok(())
            }
        }
    }

    fn expect(&mut self, python: &mut Running, line: &str, wanted: &str, op: usize) -> io::Result<()> {
        let answer = python.ask(line)?;
        assert_eq!(answer, wanted, "{}: operation {op}", self.name);
        self.answered(Some(op));
        Ok(())
    }
}

/// At least one digit pair in words that `split` keeps together.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = if text == "empty" { "" } else { text };
    (0..digits.len() / 2).map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).expect("hexadecimal digits")).collect()
}
