//! Programs for the tests: compiled from `programs/`, started, waited for.
#![allow(dead_code)] // each test uses some of it

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

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
