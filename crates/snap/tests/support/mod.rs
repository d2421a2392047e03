//! Programs for the tests: compiled from `programs/`, started, waited for.
#![allow(dead_code)] // each test uses some of it

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use towa_snap::restart::{Files, Options};
use towa_snap::store::{Store, Which};

/// Compiles `programs/NAME.c` into `dir`; `None`, said loudly, without a compiler.
pub fn compile(name: &str, dir: &Path, flags: &[&str]) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.c"));
    let program = dir.join(name);
    let built = Command::new("cc")
        .args(["-O2", "-g", "-Wall", "-Wextra", "-Werror"])
        .args(flags)
        .arg("-o")
        .arg(&program)
        .arg(&source)
        .args(["-lpthread", "-lrt", "-lm"])
        .output();
    match built {
        Ok(out) if out.status.success() => Some(program),
        Ok(out) => panic!("{}: {}", source.display(), String::from_utf8_lossy(&out.stderr)),
        Err(e) => {
            eprintln!("SKIPPED: no C compiler ({e})");
            None
        }
    }
}

/// A program that was started; ended when dropped.
pub struct Running {
    pub child: Child,
    pub out: BufReader<ChildStdout>,
}

impl Running {
    pub fn start(program: &Path, args: &[&str]) -> Running {
        let mut command = Command::new(program);
        command.args(args);
        let mut running = Running::spawn(command);
        assert_eq!(running.line(), "ready");
        running
    }

    pub fn spawn(mut command: Command) -> Running {
        // Nothing that whoever runs the tests has left open.
        // SAFETY: one call of the system, with numbers.
        unsafe {
            command.pre_exec(|| {
                libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC as i32);
                Ok(())
            });
        }
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        Running { child, out }
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("UTF-8");
        line.trim_end().to_owned()
    }

    /// Waits for its end, which must be a good one.
    pub fn must_succeed(mut self) {
        let mut rest = String::new();
        while self.out.read_line(&mut rest).expect("UTF-8") > 0 {}
        let status = self.child.wait().expect("a child");
        assert!(status.success(), "{status}: {rest}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In a process of its own, as the tool does: restarts from the newest checkpoint of the store that `TOWA_TEST_RESTART` names, if that is set,
/// and ends as the program does.
pub fn restart_as_asked() {
    let Ok(dir) = std::env::var("TOWA_TEST_RESTART") else { return };
    let checkpoint = Store::open(dir).unwrap().open_checkpoint(Which::Newest).unwrap();
    let options = Options { files: Files::Rewind, ..Options::default() };
    let restarted = towa_snap::restart::restart(&checkpoint, &options).unwrap_or_else(|e| panic!("{e}"));
    let mut status = 0;
    // SAFETY: our own child.
    unsafe { libc::waitpid(restarted.pid, &raw mut status, 0) };
    std::process::exit(if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 100 + libc::WTERMSIG(status) });
}
