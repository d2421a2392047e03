//! Tidy: the rules of the house that a program can check, as tests.
//!
//! Each rule is a pure function from texts to findings. It is run twice: over the repository, where it must find nothing, and over
//! a planted offence, which it must find - a rule that cannot fail is no rule.
//!
//! ```text
//!   sources   what every file must be: documented, of readable size, reachable, finished, free of this machine's paths
//!   layers    crates depend downwards only; only `media` touches the instructions and calls that make bytes durable
//!   abi       include/towa.h declares exactly what crates/capi exports
//!   docs      guarantees name tests that exist; commands, make targets and links in the documentation exist
//! ```

mod abi;
mod docs;
mod layers;
mod sources;

use std::path::{Path, PathBuf};
use std::process::Command;

/// A file of the repository.
pub struct Source {
    /// From the root.
    pub path: String,
    /// Its content.
    pub text: String,
}

/// What a rule holds against the repository: `path[:line]: what, and what to do`.
pub type Findings = Vec<String>;

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the crate lies in the repository")
}

/// Every text file that is ours: what git tracks or would track; without git (an unpacked archive), all but build output.
pub fn sources() -> Vec<Source> {
    let root = root();
    let listed =
        Command::new("git").args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(&root).output();
    let paths: Vec<String> = match listed {
        Ok(out) if out.status.success() => {
            String::from_utf8_lossy(&out.stdout).split('\0').filter(|p| !p.is_empty()).map(str::to_owned).collect()
        }
        _ => {
            let mut found = Vec::new();
            walk(&root, "", &mut found);
            found
        }
    };
    assert!(paths.len() > 50, "only {} files found under {}: the tidy test looks at nothing", paths.len(), root.display());
    let read = |path: String| std::fs::read_to_string(root.join(&path)).ok().map(|text| Source { path, text });
    paths.into_iter().filter_map(read).collect()
}

fn walk(dir: &Path, prefix: &str, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{prefix}{name}");
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && !["target", ".git", ".cache", "__pycache__"].contains(&name.as_str()) => {
                walk(&entry.path(), &format!("{path}/"), found);
            }
            Ok(kind) if kind.is_file() => found.push(path),
            _ => {}
        }
    }
}

/// Fails with all findings at once.
pub fn must_be_empty(findings: Findings) {
    assert!(findings.is_empty(), "{} finding(s):\n  {}\n", findings.len(), findings.join("\n  "));
}

/// Whether `word` stands in `line` as a word of its own.
pub fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].chars().next_back().is_some_and(is_part) && !line[at + word.len()..].chars().next().is_some_and(is_part)
    })
}
