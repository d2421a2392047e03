//! The programs that are measured: where they are, what they are to do, and which libraries they need.
//!
//! What must hold: each is the machine's own, unchanged, and does the same in every run; one that is not there is left out and told.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::ground::quietly;

/// Modules that python is told to import.
const MODULES: &str = "argparse, ast, collections, csv, datetime, decimal, difflib, email.message, fractions, functools, inspect, json, \
                       logging, os, pickle, random, re, statistics, string, subprocess, tempfile, textwrap, threading, typing, unittest, uuid";

/// A program.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its short name, which is that of its file, too.
    pub name: &'static str,
    /// Where the machine has it.
    pub path: PathBuf,
    /// What it is to do.
    pub args: Vec<OsString>,
    /// The same at length, where the speed of a long run is to be compared.
    pub long: Option<Vec<OsString>>,
    /// What it is to find in its environment.
    pub env: Vec<(&'static str, &'static str)>,
    /// Its libraries, without ld.so.
    pub libraries: Vec<PathBuf>,
    /// The machine's ld.so.
    pub interpreter: Option<PathBuf>,
    /// The directory whose `lib` and `conf` it looks for beside itself.
    pub home: Option<PathBuf>,
}

/// Names of all.
pub const NAMES: [&str; 4] = ["cc1", "python", "gzip", "java"];

impl Program {
    /// The program `name`, which finds its input in `work`.
    ///
    /// # Errors
    /// It is not on this machine.
    pub fn find(name: &'static str, work: &Path) -> Result<Program> {
        let mut program = match name {
            "cc1" => cc1(work)?,
            "python" => Program {
                args: ["-s", "-c"].map(OsString::from).into_iter().chain([format!("import {MODULES}").into()]).collect(),
                env: vec![("PYTHONHOME", "/usr"), ("PYTHONDONTWRITEBYTECODE", "1")],
                ..Program::of(name, Path::new("/usr/bin/python3"))?
            },
            "gzip" => gzip(work)?,
            _ => java()?,
        };
        let needed = towa_xip::needed::libraries(&program.path)?;
        let more = program.libraries.iter().cloned();
        let (interpreters, mut libraries): (Vec<_>, Vec<_>) = needed.into_iter().chain(more).partition(|path| is_interpreter(path));
        libraries.sort();
        libraries.dedup();
        (program.interpreter, program.libraries) = (interpreters.into_iter().next(), libraries);
        Ok(program)
    }

    fn of(name: &'static str, path: &Path) -> Result<Program> {
        let path = std::fs::canonicalize(path).with_context(|| format!("{} is not on this machine", path.display()))?;
        let (args, env, libraries) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Program { name, path, args, long: None, env, libraries, interpreter: None, home: None })
    }
}

fn is_interpreter(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld-"))
}

fn words(words: &[&str], last: &Path) -> Vec<OsString> {
    words.iter().map(OsString::from).chain([last.into()]).collect()
}

fn cc1(work: &Path) -> Result<Program> {
    let told = Command::new("gcc").arg("-print-prog-name=cc1").stdin(Stdio::null()).output().context("gcc cannot be started")?;
    let path = PathBuf::from(String::from_utf8_lossy(&told.stdout).trim());
    ensure!(path.is_absolute(), "gcc has no cc1");
    let input = |name: &str, text: &str| -> Result<PathBuf> {
        let (source, done) = (work.join(name).with_extension("c"), work.join(name).with_extension("i"));
        std::fs::write(&source, text)?;
        quietly(Command::new("gcc").arg("-E").arg(&source).arg("-o").arg(&done))?;
        Ok(done)
    };
    let args = |input: PathBuf| words(&["-quiet", "-O2", "-o", "/dev/null"], &input);
    let short = args(input("short", HELLO)?);
    let long = Some(args(input("long", &source_of(100))?));
    Ok(Program { args: short, long, ..Program::of("cc1", &path)? })
}

/// What cc1 compiles in a short run: it is hardly started when it is done.
const HELLO: &str = "#include <stdio.h>\nint main(void) { return puts(\"hello\") < 0; }\n";

/// A program in C with so many functions, no two alike.
fn source_of(functions: usize) -> String {
    let mut source = String::from(
        "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <math.h>\n#include <time.h>\n#include <signal.h>\n",
    );
    for n in 0..functions {
        source += &format!(
            "struct s{n} {{ int a[{}]; double d; struct s{n} *next; }};\n\
             static double f{n}(struct s{n} *s, int k) {{\n  double sum = 0;\n  for (int i = 0; i < {} && s; i++, s = s->next) {{\n    \
             switch (s->a[i % {}] & {}) {{ case 0: sum += s->d * k; break; case 1: sum -= strlen(\"x{n}\") + s->a[i / 2]; break; \
             case 2: sum *= 1.5 + i; break; default: printf(\"%f {n}\\n\", sum); }}\n  }}\n  return sum + k / (s ? s->a[0] | 1 : 3);\n}}\n\
             double g{n}(int k) {{ struct s{n} s; memset(&s, k, sizeof s); s.next = 0; return f{n}(&s, k) + f{n}(0, k + 1); }}\n",
            n % 7 + 3,
            n % 11 + 2,
            n % 7 + 3,
            n % 3 + 3,
        );
    }
    source
}

fn gzip(work: &Path) -> Result<Program> {
    let input = work.join("input");
    std::fs::write(&input, source_of(1200))?;
    Ok(Program { args: words(&["-c"], &input), ..Program::of("gzip", Path::new("/usr/bin/gzip"))? })
}

fn java() -> Result<Program> {
    let mut program = Program::of("java", Path::new("/usr/bin/java"))?;
    let home = program.path.parent().and_then(Path::parent).context("java is in no JDK")?.to_owned();
    let jvm = home.join("lib/server/libjvm.so");
    ensure!(jvm.is_file(), "{} is not there", jvm.display());
    // Opened while it runs, so the program itself does not name what it needs.
    let told = Command::new("ldd").arg(&jvm).stdin(Stdio::null()).output().context("ldd cannot be started")?;
    let told = String::from_utf8_lossy(&told.stdout);
    let named =
        told.lines().filter_map(|line| std::fs::canonicalize(line.split_whitespace().find(|word| word.starts_with('/'))?).ok());
    program.libraries = named.filter(|path| !path.starts_with(&home)).collect();
    program.args = vec!["-version".into()];
    program.home = Some(home);
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_found_with_its_libraries() {
        let dir = tempfile::tempdir().unwrap();
        let gzip = Program::find("gzip", dir.path()).unwrap();
        assert!(gzip.libraries.iter().any(|path| path.to_string_lossy().contains("libc.so")), "{gzip:?}");
        assert!(gzip.libraries.iter().all(|path| !is_interpreter(path)) && gzip.interpreter.is_some());
        assert!(std::fs::metadata(dir.path().join("input")).unwrap().len() > 100_000);
    }

    #[test]
    fn functions_differ() {
        let source = source_of(2);
        assert!(source.contains("f0(") && source.contains("f1(") && source.contains("a[4]"));
    }
}
