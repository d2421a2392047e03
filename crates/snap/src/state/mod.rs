//! What a process is made of besides the content of its memory, as a checkpoint keeps it, and how it is found out.
//!
//! What must always hold: whatever the process has that is not described here is refused, by name, before it is touched.

pub mod cpu;
pub mod descriptors;
pub mod mapped;
pub mod process;
pub mod region;
pub mod settings;
pub mod thread;
pub mod told;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::pages::{PAGE, Pages};
use descriptors::{Descriptors, Kind};

/// A checkpoint's description of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Of this description: [`State::VERSION`].
    pub version: u32,
    /// The kernel that it ran on: its vdso is part of the process.
    pub kernel: String,
    /// What its threads share.
    pub process: process::Process,
    /// Its threads, the leader first.
    pub threads: Vec<thread::Thread>,
    /// Its descriptors.
    pub descriptors: descriptors::Descriptors,
    /// Files that are mapped, and the program.
    pub mapped: Vec<mapped::MappedFile>,
    /// Its mappings, by address.
    pub regions: Vec<region::Region>,
}

impl State {
    /// What this program writes and understands. Any change of meaning takes another number.
    pub const VERSION: u32 = 1;

    /// As a checkpoint's manifest has it.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings and numbers")
    }

    /// From a checkpoint's manifest.
    pub fn decode(manifest: &[u8]) -> Result<State> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let damaged = |e: serde_json::Error| Error::Io { what: "the description of the process".into(), source: e.into() };
        let Versioned { version } = serde_json::from_slice(manifest).map_err(damaged)?;
        if version != State::VERSION {
            return Err(Error::Unsupported {
                what: format!("the checkpoint describes its process in version {version}, this program knows {}", State::VERSION),
                remedy: "use the version of Towa that took it",
            });
        }
        let state: State = serde_json::from_slice(manifest).map_err(damaged)?;
        if state.is_sound() {
            return Ok(state);
        }
        let source = std::io::Error::new(std::io::ErrorKind::InvalidData, "it contradicts itself");
        Err(Error::io("the description of the process", source))
    }

    /// A description that matches its checksum was written so; this holds it against a writer with a fault. A reader may rely on
    /// it: what it refers to is there, regions ascend and do not overlap.
    fn is_sound(&self) -> bool {
        let Descriptors { table, files, pipes, pairs } = &self.descriptors;
        let refers = |file: &descriptors::OpenFile| match &file.kind {
            Kind::PipeEnd { pipe, .. } => *pipe < pipes.len(),
            Kind::PairEnd { pair, .. } => *pair < pairs.len(),
            Kind::Standard { stream, .. } => (0..=2).contains(stream),
            _ => true,
        };
        let mut end = 0;
        let ascends = self.regions.iter().all(|region| {
            let Pages { start, end: its_end } = region.pages;
            let follows = end <= start && start < its_end && its_end <= ADDRESSES_END / PAGE;
            end = its_end;
            follows
        });
        let numbers = table.windows(2).all(|pair| pair[0].fd < pair[1].fd) && table.iter().all(|one| one.fd >= 0);
        !self.threads.is_empty()
            && ascends
            && numbers
            && table.iter().all(|one| one.file < files.len())
            && files.iter().all(refers)
            && self.process.pid > 0
            && self.threads.iter().all(|thread| thread.tid > 0)
    }
}

/// No address of a process is as great.
const ADDRESSES_END: u64 = 1 << 56;

/// Name, release and build of the running kernel.
pub fn kernel() -> String {
    let word = |name: &str| std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default().trim().to_owned();
    format!("{} {} {}", word("ostype"), word("osrelease"), word("version"))
}
