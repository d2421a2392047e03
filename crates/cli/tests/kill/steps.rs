//! The program of which checkpoints are taken, `steps.c`, and everything that can be seen of it from outside.
//!
//! What must always hold: what it wrote is, line by line, what an undisturbed one writes.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use super::process;

/// How long a busy machine may take for what takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// It blocks SIGUSR2.
pub const MASK: &str = "0000000000000800";

/// Compiles it; `None`, said loudly, without a compiler.
pub fn compile(dir: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kill/steps.c");
    let program = dir.join("steps");
    let built =
        Command::new("cc").args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).args([&program, &source]).arg("-lpthread").output();
    match built {
        Ok(out) if out.status.success() => Some(program),
        Ok(out) => panic!("{}: {}", source.display(), String::from_utf8_lossy(&out.stderr)),
        Err(e) => {
            eprintln!("SKIPPED: no C compiler ({e})");
            None
        }
    }
}

/// One that is not disturbed, and waits until it is asked.
struct Undisturbed {
    child: Child,
    lines: BufReader<ChildStdout>,
    said: Vec<String>,
}

impl Drop for Undisturbed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program: as a child of the test, of a tool, or of nobody.
pub struct Program {
    binary: PathBuf,
    megabytes: String,
    pub out: PathBuf,
    pub pid: i32,
    /// The tool whose child it is, or it itself.
    parent: Option<Child>,
    undisturbed: Undisturbed,
}

/// What there is of it beside its own memory; none of it may grow.
#[derive(Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Executable memory without a file.
    pub stubs: usize,
    /// KiB of address space.
    pub kilobytes: u64,
    pub mask: String,
    pub traced: bool,
}

impl Program {
    /// Started by `command`, to which its name and arguments are added; by itself if that is none.
    pub fn start(binary: &Path, megabytes: u32, out: PathBuf, tool: Option<Command>) -> Program {
        let megabytes = megabytes.to_string();
        let mut child = Command::new(binary).args(["-", &megabytes]).stdout(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        let by_tool = tool.is_some();
        let mut command = match tool {
            None => Command::new(binary),
            Some(mut tool) => {
                tool.arg("--").arg(binary);
                tool
            }
        };
        command.arg(&out).arg(&megabytes).stdin(Stdio::null()).stdout(Stdio::null());
        if !by_tool {
            // Nothing that whoever runs the tests has left open. SAFETY: one call of the system, with numbers.
            unsafe {
                command.pre_exec(|| {
                    libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC as i32);
                    Ok(())
                });
            }
        }
        let parent = command.spawn().expect("it starts");
        let pid = if by_tool { child_of(parent.id() as i32) } else { parent.id() as i32 };
        let undisturbed = Undisturbed { child, lines, said: Vec::new() };
        let program = Program { binary: binary.to_owned(), megabytes, out, pid, parent: Some(parent), undisturbed };
        program.must_go_on();
        program
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.out).unwrap_or_default()
    }

    pub fn lives(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    }

    /// Waits until it has said more than it has now.
    pub fn must_go_on(&self) {
        let (before, began) = (self.said().len(), Instant::now());
        while self.said().len() < before + 3 * "STEP 100 0123456789abcdef\n".len() {
            assert!(self.lives(), "the program has ended: {:?}", self.said().lines().last());
            assert!(began.elapsed() < PATIENCE, "the program stands still after {:?}", self.said().lines().last());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// All it said must be right. It may be in the middle of a line.
    pub fn must_be_right(&mut self) {
        let said = self.said();
        for (number, line) in said.split_inclusive('\n').enumerate() {
            while self.undisturbed.said.len() <= number {
                let mut right = String::new();
                self.undisturbed.lines.read_line(&mut right).expect("UTF-8");
                self.undisturbed.said.push(right);
            }
            let right = &self.undisturbed.said[number];
            let same = line == right || line.replace("END", "STEP") == *right || !line.ends_with('\n') && right.starts_with(line);
            assert!(same, "line {number} of {}: {line:?} instead of {right:?}", self.out.display());
        }
    }

    /// While it handles a signal that one is blocked, too: so it is looked at until it is in the middle of none.
    pub fn footprint(&self) -> Footprint {
        let began = Instant::now();
        loop {
            let now = self.footprint_now();
            if now.mask == MASK || began.elapsed() > Duration::from_secs(5) {
                return now;
            }
        }
    }

    fn footprint_now(&self) -> Footprint {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{}/{name}", self.pid)).expect("it lives");
        let (maps, status) = (read("maps"), read("status"));
        let field = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).expect("there").trim().to_owned();
        let is_stub = |line: &&str| line.split_whitespace().nth(1) == Some("r-xp") && line.split_whitespace().count() == 5;
        Footprint {
            stubs: maps.lines().filter(is_stub).count(),
            kilobytes: field("VmSize:").trim_end_matches(" kB").parse().expect("a number"),
            mask: field("SigBlk:"),
            traced: field("TracerPid:") != "0",
        }
    }

    /// The tool whose child it is.
    pub fn tool(&mut self) -> &mut Child {
        self.parent.as_mut().expect("it has one")
    }

    /// The tool was killed; this process takes its place (it is a subreaper).
    pub fn adopt(&mut self) {
        if let Some(mut tool) = self.parent.take() {
            tool.wait().expect("a child of ours");
        }
    }

    /// SIGKILL; its number is free afterwards.
    pub fn kill(&mut self) {
        // SAFETY: it was not waited for.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        self.reap();
    }

    fn reap(&mut self) {
        match self.parent.take() {
            Some(mut parent) => drop(parent.wait().expect("a child of ours")),
            // SAFETY: numbers only; it is ours since its parent was killed.
            None => drop(unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) }),
        }
    }

    /// Starts it again from the newest checkpoint of `dir`, in which no line is from later than that.
    pub fn restart(&mut self, dir: &Path) {
        let complaints = self.out.with_extension("complaints");
        let file = OpenOptions::new().create(true).append(true).open(&complaints).expect("a file");
        let mut command = process::towa();
        command.args(["snap", "restart", "--rewind-files"]).arg(dir).stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let before = self.said().len();
        self.parent = Some(command.spawn().expect("towa starts"));
        let began = Instant::now();
        // It has its number, and then runs without a tracer.
        while !self.lives() || self.footprint_is_traced() {
            let ended = self.parent.as_mut().expect("just started").try_wait().expect("a child");
            let said = || std::fs::read_to_string(&complaints).unwrap_or_default();
            assert!(ended.is_none() && began.elapsed() < PATIENCE, "no restart ({ended:?}) from {}: {}", dir.display(), said());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(before > 0, "nothing to compare with");
        self.must_go_on();
    }

    fn footprint_is_traced(&self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        !status.contains("TracerPid:\t0\n")
    }

    /// Lets it see all of its memory once more, and end; all it said must be right.
    pub fn end(mut self) {
        let all = self.megabytes.parse::<u64>().expect("a number") * 256 / 8;
        let last = |said: &str| said.lines().last().and_then(|line| line.split(' ').nth(1)?.parse::<u64>().ok()).unwrap_or(0);
        let (first, began) = (last(&self.said()), Instant::now());
        while last(&self.said()) < first + all {
            assert!(self.lives() && began.elapsed() < PATIENCE, "it does not go on: {:?}", self.said().lines().last());
            std::thread::sleep(Duration::from_millis(5));
        }
        // SAFETY: it was not waited for.
        unsafe { libc::kill(self.pid, libc::SIGUSR1) };
        self.reap();
        self.must_be_right();
        assert!(
            self.said().lines().last().is_some_and(|line| line.starts_with("END ")),
            "{} did not end well",
            self.binary.display()
        );
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.lives() {
            self.kill();
        }
    }
}

/// The only child of a process, once it has one that is no copy of it any more.
fn child_of(parent: i32) -> i32 {
    let began = Instant::now();
    loop {
        let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
        let child = children.split_whitespace().next().and_then(|word| word.parse().ok());
        if let Some(child) = child
            && std::fs::read_link(format!("/proc/{child}/exe")).is_ok_and(|exe| exe.ends_with("steps"))
        {
            return child;
        }
        assert!(began.elapsed() < PATIENCE, "process {parent} starts no program");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A file that what is said goes to; what there is of it is said when something fails.
pub fn complaints(path: &Path) -> File {
    OpenOptions::new().create(true).append(true).open(path).expect("a file")
}
