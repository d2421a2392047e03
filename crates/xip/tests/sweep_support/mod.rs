//! What the tests of whole programs share: a place with a store, a run with a time limit, and how two runs are compared.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal};
use tempfile::TempDir;
use towa_xip::install::{self, Done, How};
use towa_xip::needed;
use towa_xip::split::Options;
use towa_xip::store::Store;
use towa_xip::{Error, Result};

/// The user that programs run as when the test is run by root: what they do by mistake does no harm.
const NOBODY: u32 = 65534;
/// Bytes that a program may write to a file.
const OUTPUT_MAX: u64 = 64 << 20;

/// Program and libraries.
pub const LIBS: How = How { split: Options { with_rodata: false, libs: true, huge: false }, sealed: false };
/// The program's text alone.
pub const TEXT: How = How { split: Options { with_rodata: false, libs: false, huge: false }, sealed: false };

/// A directory, in memory where programs can be started from there, with a store.
pub struct Place {
    /// Removed at the end, and with it what programs have left running there.
    pub dir: TempDir,
    /// The store.
    pub store: Store,
    known: HashMap<PathBuf, Option<String>>,
}

impl Place {
    /// A new one.
    pub fn new() -> Place {
        let dir = temp_dir();
        let store = Store::open_or_create(&dir.path().join("store")).unwrap();
        Place { dir, store, known: HashMap::new() }
    }

    /// A path in it.
    pub fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A new directory in it, which anybody may write to if `open`.
    pub fn folder(&self, name: &str, open: bool) -> PathBuf {
        let path = self.at(name);
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(if open { 0o777 } else { 0o755 })).unwrap();
        path
    }

    /// A copy of a program, with the same name, in a directory of its own.
    pub fn copy(&self, program: &Path, folder: &str) -> PathBuf {
        let to = self.folder(folder, false).join(program.file_name().unwrap());
        fs::copy(program, &to).unwrap();
        to
    }

    /// Puts the text of the program's libraries into the store, each once; why not, for those that cannot be.
    pub fn add_libraries(&mut self, program: &Path) -> Vec<String> {
        let libraries = match needed::libraries(program) {
            Ok(libraries) => libraries,
            Err(why) => return vec![why.to_string()],
        };
        let mut why_not = Vec::new();
        for library in libraries {
            let store = &self.store;
            let why = self
                .known
                .entry(library)
                .or_insert_with_key(|path| patiently(|| install::split(store, path, None, LIBS)).err().map(|why| why.to_string()));
            why_not.extend(why.clone());
        }
        why_not
    }

    /// How many libraries' texts were put into the store.
    pub fn library_count(&self) -> usize {
        self.known.values().filter(|why| why.is_none()).count()
    }

    /// Splits a program in place, with its libraries.
    pub fn split_in_place(&mut self, program: &Path) -> Done {
        self.add_libraries(program);
        install::split(&self.store, program, None, LIBS).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        end_all_of(self.dir.path());
    }
}

/// A new directory, in memory where programs can be started from there; anybody may look into it.
pub fn temp_dir() -> TempDir {
    let in_memory = tempfile::tempdir_in("/dev/shm").ok().filter(|dir| towa_executes(dir.path()));
    let dir = in_memory.unwrap_or_else(|| tempfile::tempdir().unwrap());
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

fn towa_executes(dir: &Path) -> bool {
    rustix::fs::statvfs(dir).is_ok_and(|of| !of.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC))
}

/// Tries again while another test, or another run of this one, is at the same library.
pub fn patiently(mut act: impl FnMut() -> Result<Done>) -> Result<Done> {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match act() {
            Err(Error::Busy { .. }) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
            other => return other,
        }
    }
}

/// Ends processes whose home is in `dir`: those which a program that was run there has left behind.
fn end_all_of(dir: &Path) {
    let home = [b"HOME=", dir.as_os_str().as_encoded_bytes()].concat();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw) else { continue };
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment.split(|byte| *byte == 0).any(|variable| variable.starts_with(&home)) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}

/// Whether this is root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// What a program did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// `exit 0`, `signal 11`, `timed out`, or why it could not be started.
    pub status: String,
    /// Standard output.
    pub out: Vec<u8>,
    /// Standard error.
    pub err: Vec<u8>,
}

impl Outcome {
    /// Whether it ended with 0.
    pub fn is_success(&self) -> bool {
        self.status == "exit 0"
    }

    /// With `from` replaced by `to`, wherever it says it.
    pub fn replacing(&self, from: &Path, to: &str) -> Outcome {
        let replaced = |text: &[u8]| replace(text, from.as_os_str().as_encoded_bytes(), to.as_bytes());
        Outcome { status: self.status.clone(), out: replaced(&self.out), err: replaced(&self.err) }
    }

    /// The beginning of what it did, for people.
    pub fn brief(&self) -> String {
        let start = |text: &[u8]| String::from_utf8_lossy(&text[..text.len().min(300)]).into_owned();
        format!("{}; out {:?} ({} bytes); err {:?}", self.status, start(&self.out), self.out.len(), start(&self.err))
    }
}

fn replace(text: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let (mut replaced, mut at) = (Vec::with_capacity(text.len()), 0);
    while at < text.len() {
        if text[at..].starts_with(from) {
            replaced.extend_from_slice(to);
            at += from.len();
        } else {
            replaced.push(text[at]);
            at += 1;
        }
    }
    replaced
}

/// A command with nothing of this process's environment, in the directory `home`.
pub fn command(program: &Path, arguments: &[impl AsRef<std::ffi::OsStr>], home: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).env_clear().current_dir(home).stdin(Stdio::null());
    command.env("PATH", "/usr/bin:/usr/sbin:/bin:/sbin").env("HOME", home).env("TMPDIR", home).env("LANG", "C").env("LC_ALL", "C");
    command.env("TERM", "dumb").env("COLUMNS", "80");
    command
}

/// The same, as nobody where this is root.
pub fn harmless(mut command: Command) -> Command {
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

/// Runs it to its end, or for as long as `limit`; what it has started in its process group ends with it.
pub fn run(mut command: Command, limit: Duration) -> Outcome {
    // Files, not pipes: a process that it leaves in the background keeps a pipe open.
    let (mut out, mut err) = (output_file(), output_file());
    command.stdout(out.try_clone().unwrap()).stderr(err.try_clone().unwrap()).process_group(0);
    // SAFETY: two system calls, which is what may be done between fork and exec.
    unsafe {
        command.pre_exec(|| {
            let limit = |max| Rlimit { current: Some(max), maximum: Some(max) };
            rustix::process::setrlimit(Resource::Core, limit(0))?;
            rustix::process::setrlimit(Resource::Fsize, limit(OUTPUT_MAX))?;
            Ok(())
        });
    }
    let mut child = match start(&mut command) {
        Ok(child) => child,
        Err(why) => return Outcome { status: format!("not started: {why}"), out: Vec::new(), err: Vec::new() },
    };
    let group = Pid::from_raw(child.id() as i32).expect("the id of a process");
    let end = Instant::now() + limit;
    let mut nap = Duration::from_micros(200);
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => {
                break status.code().map_or_else(|| format!("signal {}", status.signal().unwrap()), |code| format!("exit {code}"));
            }
            None if Instant::now() > end => break "timed out".into(),
            None => std::thread::sleep(nap),
        }
        nap = (nap * 2).min(Duration::from_millis(10));
    };
    let _ = rustix::process::kill_process_group(group, Signal::KILL);
    let _ = child.wait();
    Outcome { status, out: content(&mut out), err: content(&mut err) }
}

/// Another thread that starts something keeps a file that was just written open until it is through with `execve`.
fn start(command: &mut Command) -> std::io::Result<std::process::Child> {
    for _ in 0..15_000 {
        match command.spawn() {
            Err(e) if e.raw_os_error() == Some(libc::ETXTBSY) => std::thread::sleep(Duration::from_millis(2)),
            other => return other,
        }
    }
    command.spawn()
}

fn output_file() -> File {
    tempfile::tempfile_in("/dev/shm").or_else(|_| tempfile::tempfile()).unwrap()
}

fn content(file: &mut File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

/// The program of this name as a file, if it is an ELF file.
pub fn program(name: &str) -> Option<PathBuf> {
    let folders = ["/usr/bin", "/usr/sbin", "/bin", "/usr/local/bin"];
    let found = folders.iter().filter_map(|folder| Path::new(folder).join(name).canonicalize().ok());
    found.into_iter().find(|path| begins_like_elf(path))
}

/// Whether a file begins as ELF files do.
pub fn begins_like_elf(path: &Path) -> bool {
    let mut first = [0; 4];
    File::open(path).and_then(|mut file| file.read_exact(&mut first)).is_ok() && first == *b"\x7fELF"
}

/// Whether a file runs with more rights than those of who starts it.
pub fn is_privileged(path: &Path) -> bool {
    let set_id = fs::metadata(path).is_ok_and(|about| about.mode() & 0o6000 != 0);
    set_id || rustix::fs::getxattr(path, "security.capability", &mut [0u8; 256]).is_ok()
}

/// A number of the environment, or `default`.
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: no number")))
}
