//! What was found, for programs and people.

use serde::Serialize;

use crate::superblock::Durability;

/// So many problems are told; the others are counted.
pub const PROBLEMS_SHOWN: usize = 100;

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Offset in the file.
    pub at: u64,
    /// What is wrong there.
    pub what: String,
}

/// A durable root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RootDescription {
    /// Class and static field.
    pub name: String,
    /// The field's type, as in Java.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether it holds nothing.
    pub is_null: bool,
}

/// A pool's facts at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Description {
    /// Always `java`.
    pub door: &'static str,
    /// Version of the format.
    pub version: u32,
    /// Identity.
    pub uuid: String,
    /// When it was made, seconds since 1970.
    pub created_unix_s: u64,
    /// What its programs asked for.
    pub durability: Durability,
    /// Most bytes the file may get.
    pub capacity: u64,
    /// Bytes that the file has.
    pub len: u64,
    /// Bytes ever used, superblock and words included.
    pub used: u64,
    /// Whether it was closed cleanly: `false` while it is open, and after a crash.
    pub clean: bool,
    /// Whether an `atomically` was interrupted, which the next opening undoes. True also while one runs.
    pub atomically_interrupted: bool,
    /// Classes that are described.
    pub classes: usize,
    /// Roots, by name.
    pub roots: Vec<RootDescription>,
}

/// The replicas of a class that can be reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClassCount {
    /// Number of the class.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// `object`, `array`, `enum constant`, `class constant`, `named constant`.
    pub form: &'static str,
    /// How many.
    pub replicas: u64,
    /// Bytes of their headers and data.
    pub bytes: u64,
    /// Bytes of the blocks that they are in.
    pub block_bytes: u64,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The facts.
    #[serde(flatten)]
    pub description: Description,
    /// Replicas that can be reached from the roots.
    pub replicas: u64,
    /// Bytes of their headers and data.
    pub bytes: u64,
    /// Bytes of the blocks that they are in.
    pub block_bytes: u64,
    /// The same for each class, most bytes first.
    pub by_class: Vec<ClassCount>,
    /// How many problems there are.
    pub problems_found: u64,
    /// The first [`PROBLEMS_SHOWN`] of them.
    pub problems: Vec<Problem>,
}

/// Problems on their way into a report.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    pub(crate) shown: Vec<Problem>,
    pub(crate) found: u64,
}

impl Problems {
    pub(crate) fn add(&mut self, at: u64, what: impl FnOnce() -> String) {
        self.found += 1;
        if self.shown.len() < PROBLEMS_SHOWN {
            self.shown.push(Problem { at, what: what() });
        }
    }
}
