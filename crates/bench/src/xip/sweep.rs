//! Programs of this machine, split and asked for their version: a light form of the tests' sweep.
//!
//! What must hold: nothing that could do harm is started: no program with more rights than its user's, none of a list of names; each only with
//! `--version`, in an empty directory, without input and for a few seconds. The programs themselves are not changed.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use towa_xip::install::How;
use towa_xip::needed;
use towa_xip::split::Options;
use towa_xip::store::Store;

use super::layouts::split_file;
use super::report::Sweep;
use crate::cleanup::Running;

/// Longest a program may take to tell its version.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most of what it says that is compared.
const OUTPUT: u64 = 1 << 20;
/// Not started, whatever they make of `--version`.
const NEVER: [&str; 22] = [
    "reboot",
    "halt",
    "poweroff",
    "shutdown",
    "init",
    "runlevel",
    "mkfs",
    "fdisk",
    "mount",
    "umount",
    "kill",
    "pkill",
    "killall",
    "dd",
    "passwd",
    "su",
    "sudo",
    "chsh",
    "systemctl",
    "swapoff",
    "X",
    "dpkg",
];

/// What a program said, and how it ended.
type Answer = (Option<i32>, Vec<u8>, Vec<u8>);

/// Tries `count` programs of `dir`, chosen by `rng`, with halves in `work` and texts in a store in `nvm`, until `spent`.
pub fn measure(dir: &Path, work: &Path, nvm: &Path, count: usize, rng: &mut SmallRng, spent: impl Fn() -> bool) -> Result<Sweep> {
    let mut programs = candidates(dir)?;
    programs.shuffle(rng);
    let store = Store::open_or_create(&nvm.join("sweep"))?;
    let mut sweep = Sweep::default();
    let mut libraries = BTreeSet::new();
    for path in programs.iter().take(count) {
        if spent() {
            break;
        }
        sweep.programs += 1;
        match compare(path, work, &store, &mut libraries) {
            Ok(why) => {
                sweep.split += 1;
                sweep.identical += usize::from(why.is_none());
                sweep.exceptions.extend(why.map(|why| format!("{}: {why}", path.display())));
            }
            Err(why) => sweep.exceptions.push(format!("{why:#}")),
        }
    }
    Ok(sweep)
}

/// Programs that can be started without harm.
fn candidates(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(dir).with_context(|| format!("{}: reading", dir.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let harmful = NEVER.iter().any(|never| name == *never || name.starts_with(&format!("{never}.")));
        let Ok(about) = std::fs::symlink_metadata(&path) else { continue };
        if !harmful && about.is_file() && about.mode() & 0o6000 == 0 && about.mode() & 0o111 != 0 && is_elf(&path) {
            found.insert(path);
        }
    }
    Ok(found.into_iter().collect())
}

fn is_elf(path: &Path) -> bool {
    let mut start = [0; 4];
    File::open(path).and_then(|mut file| file.read_exact(&mut start)).is_ok() && start == *b"\x7fELF"
}

/// Why the split program is not as the whole one; an error if it could not be split.
fn compare(path: &Path, work: &Path, store: &Store, libraries: &mut BTreeSet<PathBuf>) -> Result<Option<String>> {
    let how = How { split: Options { libs: true, ..Options::default() }, sealed: false };
    for library in needed::libraries(path).unwrap_or_default() {
        if !libraries.contains(&library) {
            // One that cannot be split keeps its own text.
            let _ = split_file(store, &library, None, how);
            libraries.insert(library);
        }
    }
    let half = work.join(path.file_name().context("no name")?);
    split_file(store, path, Some(&half), how)?;
    let whole = ask(path, path, work);
    let split = ask(&half, path, work);
    let _ = std::fs::remove_file(&half);
    let (whole, split) = (whole?, split?);
    if whole == split || ask(path, path, work)? != whole {
        return Ok(None);
    }
    let text =
        |bytes: &[u8]| String::from_utf8_lossy(bytes).lines().next().unwrap_or_default().chars().take(240).collect::<String>();
    Ok(Some(format!(
        "whole: {:?} {:?}{:?}, split: {:?} {:?}{:?}",
        whole.0,
        text(&whole.1),
        text(&whole.2),
        split.0,
        text(&split.1),
        text(&split.2)
    )))
}

fn ask(path: &Path, name: &Path, work: &Path) -> Result<Answer> {
    let mut command = Command::new(path);
    command.arg0(name).arg("--version").env_clear().env("PATH", "/usr/bin:/bin").env("LC_ALL", "C").env("HOME", work);
    command.current_dir(work).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = Running::spawn(&mut command)?;
    let child = process.child();
    let (out, err) = (reading(child.stdout.take()), reading(child.stderr.take()));
    let start = Instant::now();
    let status = loop {
        match process.ended()? {
            Some(status) => break Some(status),
            None if start.elapsed() > PATIENCE => break None,
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    drop(process);
    // What it started may hold its output open: what is there by then is enough.
    let said = |from: std::sync::mpsc::Receiver<Vec<u8>>| from.recv_timeout(PATIENCE).unwrap_or_default();
    Ok((status.and_then(|status| status.code()), said(out), said(err)))
}

fn reading(from: Option<impl Read + Send + 'static>) -> std::sync::mpsc::Receiver<Vec<u8>> {
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut said = Vec::new();
        if let Some(from) = from {
            let _ = from.take(OUTPUT).read_to_end(&mut said);
        }
        let _ = send.send(said);
    });
    receive
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn programs_are_split_and_say_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let [programs, work, nvm] = ["programs", "work", "nvm"].map(|name| dir.path().join(name));
        [&programs, &work, &nvm].iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
        for name in ["gzip", "cat"] {
            let from = std::fs::canonicalize(Path::new("/usr/bin").join(name)).unwrap();
            std::fs::copy(from, programs.join(name)).unwrap();
        }
        std::fs::write(programs.join("script"), "#!/bin/sh\n").unwrap();
        std::fs::copy("/usr/bin/gzip", programs.join("mkfs.none")).unwrap();
        let sweep = measure(&programs, &work, &nvm, 9, &mut SmallRng::seed_from_u64(1), || false).unwrap();
        assert_eq!((sweep.programs, sweep.identical, sweep.exceptions.len()), (2, 2, 0), "{sweep:?}");
        let none = measure(&programs, &work, &nvm, 9, &mut SmallRng::seed_from_u64(1), || true).unwrap();
        assert_eq!(none.programs, 0, "no time left");
    }
}
