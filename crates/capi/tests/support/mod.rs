//! Compiling C and C++ against the headers and this build's library, and running the result.

#![allow(dead_code, reason = "every test file uses its own part")]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What a program is linked with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// `libtowa.so`, found by rpath.
    Shared,
    /// `libtowa.a`.
    Static,
}

/// Address (leaks, too) and undefined-behaviour sanitizers; the first finding ends the program.
pub const SANITIZE: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

/// A directory for one test's programs and pools; on tmpfs if there is one, so that the tests do not wait for a disk.
pub fn scratch() -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    let at = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("towa-capi-").tempdir_in(at).expect("a temporary directory")
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/capi lies in the repository").to_owned()
}

/// Where cargo put the libraries of this very build: beside this test's own program. (`target/PROFILE/libtowa.*` is what `cargo build`
/// made last, which need not be this.)
pub fn lib_dir() -> PathBuf {
    let exe = std::env::current_exe().expect("the test's own path");
    let dir = exe.parent().expect("target/PROFILE/deps/TEST").to_owned();
    for lib in ["libtowa.so", "libtowa.a"] {
        assert!(dir.join(lib).is_file(), "{} is not there: cargo builds it with this crate's tests", dir.join(lib).display());
    }
    dir
}

/// The compiler of `source`'s language, or None after saying so.
pub fn compiler(source: &Path) -> Option<String> {
    let (variable, usual) = if source.extension() == Some(OsStr::new("c")) { ("CC", "cc") } else { ("CXX", "c++") };
    let name = std::env::var(variable).unwrap_or_else(|_| usual.into());
    match Command::new(&name).arg("--version").output() {
        Ok(out) if out.status.success() => Some(name),
        _ => {
            eprintln!("SKIP: no compiler `{name}` for {}; install one or set {variable}", source.display());
            None
        }
    }
}

/// Compiles `source` (a path in the repository) with all warnings as errors; None if there is no compiler.
pub fn compile(source: &str, into: &Path, link: Link, flags: &[&str]) -> Option<PathBuf> {
    let source = root().join(source);
    let compiler = compiler(&source)?;
    let standard = if source.extension() == Some(OsStr::new("c")) { "-std=gnu11" } else { "-std=c++17" };
    let tag: String = flags.concat().chars().filter(char::is_ascii_alphanumeric).collect();
    let program = into.join(format!("{}-{link:?}{tag}", source.file_stem().expect("a file").to_string_lossy()));
    let lib = lib_dir();
    let mut command = Command::new(compiler);
    command.args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O2", "-g"]).args(flags);
    command.arg("-I").arg(root().join("include")).arg(&source).arg("-o").arg(&program);
    match link {
        Link::Shared => {
            // The program asks for the soname; in an installation that is a link, so it is here.
            let soname = into.join(concat!("libtowa.so.", env!("CARGO_PKG_VERSION_MAJOR")));
            if !soname.exists() {
                // Another test of this directory may have just done it.
                let _ = std::os::unix::fs::symlink(lib.join("libtowa.so"), &soname);
            }
            command.arg(lib.join("libtowa.so")).arg(format!("-Wl,-rpath,{}", into.display()));
        }
        Link::Static => {
            command.arg(lib.join("libtowa.a"));
        }
    }
    command.args(["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"]);
    let out = command.output().expect("the compiler starts");
    assert!(out.status.success(), "{command:?} failed:\n{}", String::from_utf8_lossy(&out.stderr));
    Some(program)
}

/// Runs to the end; fails the test unless it exits with 0, showing what it said.
pub fn run(program: &Path, args: &[&OsStr]) -> Output {
    let out = Command::new(program).args(args).output().expect("the program starts");
    assert!(
        out.status.success(),
        "{} {args:?}: {}\n--- stdout\n{}\n--- stderr\n{}",
        program.display(),
        out.status,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    out
}

/// Whether programs built with these sanitizers run here; says so if not.
pub fn sanitizers_work(into: &Path, flags: &[&str]) -> bool {
    let source = into.join("empty.c");
    std::fs::write(&source, "int main(void) { return 0; }\n").expect("a file");
    let Some(compiler) = compiler(&source) else { return false };
    let program = into.join("empty");
    let built = Command::new(compiler).args(flags).arg(&source).arg("-o").arg(&program).output().is_ok_and(|o| o.status.success());
    let works = built && Command::new(&program).status().is_ok_and(|s| s.success());
    if !works {
        eprintln!("SKIP: programs built with {flags:?} do not run here; install the compiler's sanitizer libraries");
    }
    works
}
