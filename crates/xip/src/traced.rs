//! What a traced run did: forks, execs and page faults, by program and library (the counts of the OFF2F paper's tables 1 and 2, measured).
//!
//! What must hold: the file says which schema it is of, and a file of another one is refused, never guessed at; every count is of the whole
//! traced tree of processes, from its first exec to its last exit.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// [`Trace::schema`] of the files that are written and read here.
pub const SCHEMA: u32 = 1;

/// A traced command and all its descendants.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// [`SCHEMA`].
    pub schema: u32,
    /// What was run, with its arguments.
    pub command: Vec<String>,
    /// From its exec to its exit, in milliseconds; it includes what tracing cost.
    pub wall_ms: f64,
    /// Its exit status; 128 and the signal's number if one ended it.
    pub exit_status: i32,
    /// Processes that there were.
    pub processes: u64,
    /// Calls of fork and its kin that made a process.
    pub forks: u64,
    /// Calls of exec that succeeded.
    pub execs: u64,
    /// Programs and libraries, those with the most faults first.
    pub objects: Vec<TracedObject>,
    /// Faults that belong to no object: stack, heap, other files.
    pub other: Faults,
    /// Whether every fault was seen and attributed; if not, `notes` says what is estimated.
    pub exact: bool,
    /// What a reader has to know of these numbers.
    pub notes: Vec<String>,
}

/// A program or library of a trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TracedObject {
    /// Where it lies; absolute, links resolved.
    #[serde(with = "towa_media::paths::one")]
    pub path: PathBuf,
    /// Program or library.
    pub kind: ObjectKind,
    /// Times it was started by exec; zero for a library.
    pub execs: u64,
    /// Forks of processes that had it mapped; those followed at once by an exec are not counted (as in table 1).
    pub forks: u64,
    /// Processes that had it mapped; each exec counts as one.
    pub mapped_by: u64,
    /// Bytes of its segments that are executed.
    pub text_bytes: u64,
    /// Bytes of its other loaded segments: what stays in ABC.
    pub data_bytes: u64,
    /// Faults in its text.
    pub text: Faults,
    /// Faults in its other segments.
    pub data: Faults,
}

/// What an object is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ObjectKind {
    /// Started by exec.
    #[default]
    Program,
    /// Mapped by a program or by the dynamic linker; the dynamic linker itself is one.
    Library,
}

/// Page faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    /// Those that had to wait for storage.
    pub major: u64,
    /// Those that had not.
    pub minor: u64,
    /// Pages of 4 KiB that were faulted, each counted once in every run (exec) of a process. Where faults are not seen one by one
    /// ([`Trace::exact`] is false) they are pages that were mapped at the end: more, for the kernel maps a faulted page's neighbours as well.
    pub pages: u64,
}

impl TracedObject {
    /// All faults in it.
    pub fn faults(&self) -> u64 {
        self.text.total() + self.data.total()
    }
}

impl Faults {
    /// Those that had to wait, and the others.
    pub fn total(&self) -> u64 {
        self.major + self.minor
    }
}

impl std::ops::AddAssign for Faults {
    fn add_assign(&mut self, more: Faults) {
        self.major += more.major;
        self.minor += more.minor;
        self.pages += more.pages;
    }
}

impl Trace {
    /// The trace in the file `path`.
    pub fn read(path: &Path) -> Result<Trace> {
        let text = std::fs::read(path).map_err(Error::io(path, "reading"))?;
        let unusable = |what: String| Error::NotUsable { path: path.to_owned(), what };
        let foreign = |why: &dyn std::fmt::Display| unusable(format!("not a trace of `towa xip trace --json`: {why}"));
        let value: serde_json::Value = serde_json::from_slice(&text).map_err(|e| foreign(&e))?;
        let schema = value.get("schema").and_then(serde_json::Value::as_u64).ok_or_else(|| foreign(&"it names no schema"))?;
        if schema != u64::from(SCHEMA) {
            let what = format!("a trace of schema {schema}, and this `towa` reads schema {SCHEMA}; trace again with this one");
            return Err(unusable(what));
        }
        serde_json::from_value(value).map_err(|e| foreign(&e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(text: &str) -> Result<Trace> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.json");
        std::fs::write(&path, text).unwrap();
        Trace::read(&path)
    }

    #[test]
    fn a_trace_is_read_as_it_was_written() {
        let object = TracedObject { path: "/lib/libc.so".into(), kind: ObjectKind::Library, mapped_by: 3, ..Default::default() };
        let trace =
            Trace { schema: SCHEMA, command: vec!["make".into()], wall_ms: 1.5, objects: vec![object], ..Default::default() };
        let text = serde_json::to_string(&trace).unwrap();
        assert!(text.contains("\"library\""), "{text}");
        assert_eq!(reading(&text).unwrap(), trace);
    }

    #[test]
    fn other_files_are_refused_with_a_reason() {
        let newer = serde_json::to_string(&Trace { schema: 2, ..Default::default() }).unwrap();
        let said = |text: &str| reading(text).unwrap_err().to_string();
        assert!(said(&newer).contains("schema 2"), "{}", said(&newer));
        assert!(said("[]").contains("names no schema"));
        assert!(said("{\"schema\": 1}").contains("missing field"));
        assert!(said("\x7fELF").contains("not a trace"));
        assert!(matches!(Trace::read(Path::new("/proc/nonexistent/trace")), Err(Error::Io { .. })));
    }
}
