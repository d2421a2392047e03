//! The mappings of a process, as a checkpoint keeps them.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::Refusal;
use crate::memory::maps::{Mapping, VmFlags};
use crate::pages::{PAGE, Pages};

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// Its pages.
    pub pages: Pages,
    /// PROT_READ, PROT_WRITE and PROT_EXEC.
    pub prot: i32,
    /// MAP_SHARED
    pub shared: bool,
    /// What is mapped.
    pub backing: Backing,
    /// The kernel's flags that can be given again, by their two letters (smaps): those of [`KEPT_FLAGS`].
    pub flags: Vec<String>,
}

/// What a region maps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backing {
    /// Nothing but memory. The name is one that the program gave it, or empty.
    Anonymous {
        /// Its name.
        name: String,
    },
    /// Shared memory without a name: of one object, by its inode, from this byte of it on.
    SharedAnonymous {
        /// Which object.
        inode: u64,
        /// First byte.
        offset: u64,
    },
    /// A file.
    File {
        /// Its name.
        #[serde(with = "towa_media::paths::one")]
        path: PathBuf,
        /// Device: major and minor number.
        device: (u32, u32),
        /// Inode.
        inode: u64,
        /// First byte.
        offset: u64,
    },
    /// Private memory that lies in the pool of mode `nv`.
    Pool {
        /// First byte of it in the pool.
        offset: u64,
    },
    /// The main stack, which grows downwards.
    Stack,
    /// Code and data that the kernel provides, by name: `[vdso]`, `[vvar]`, `[vvar_vclock]`.
    Kernel {
        /// Its name.
        name: String,
    },
}

/// What madvise(2), mlock(2) and mmap(2) can give again: memory that is locked, huge pages wished for or not, not in children, wiped in
/// children, not in core dumps, may be merged, no space reserved, grows downwards.
pub const KEPT_FLAGS: [&str; 9] = ["lo", "hg", "nh", "dc", "wf", "dd", "mg", "nr", "gd"];

impl Region {
    /// From a line of `maps`; `flags` of the last look at it, if there was one. `None`: the kernel gives it to every process.
    ///
    /// What cannot be kept is an error.
    pub fn of(mapping: &Mapping, flags: Option<&VmFlags>) -> Option<std::result::Result<Region, Refusal>> {
        if mapping.name == "[vsyscall]" {
            return None;
        }
        let refuse = |what: String| {
            let place = format!("memory at {:x}", mapping.pages.start * PAGE);
            Some(Err(Refusal { place, what }))
        };
        let of_kernel = matches!(mapping.name.as_str(), "[vdso]" | "[vvar]" | "[vvar_vclock]");
        if let Some(flags) = flags.filter(|_| !of_kernel) {
            for (flag, what) in [
                ("ht", "huge pages of hugetlbfs"),
                ("io", "memory of a device"),
                ("pf", "memory of a device"),
                ("ss", "a shadow stack"),
                ("um", "its memory is still being filled after a lazy restart; try again when that is done, or restart eagerly"),
            ] {
                if flags.has(flag) {
                    return refuse(if mapping.name.is_empty() { what.to_owned() } else { format!("{}: {what}", mapping.name) });
                }
            }
        }
        if let Some(key) = flags.map(VmFlags::protection_key).filter(|key| *key != 0) {
            return refuse(format!("{}: under protection key {key} (pkey_mprotect), which cannot be kept", mapping.name));
        }
        let backing = match backing(mapping) {
            Ok(backing) => backing,
            Err(what) => return refuse(what),
        };
        let kept = |flag: &str| flags.is_some_and(|flags| flags.has(flag));
        let flags = KEPT_FLAGS.iter().filter(|flag| kept(flag)).map(|flag| (*flag).to_owned()).collect();
        Some(Ok(Region { pages: mapping.pages.clone(), prot: mapping.prot, shared: mapping.shared, backing, flags }))
    }

    /// The same of memory that lies in the pool: to the program it is private memory.
    pub fn of_pool(mapping: &Mapping, flags: Option<&VmFlags>) -> Region {
        let has = |flag: &&&str| flags.is_some_and(|flags| flags.has(flag));
        let flags = KEPT_FLAGS.iter().filter(has).map(|flag| (*flag).to_owned()).collect();
        let backing = Backing::Pool { offset: mapping.offset };
        Region { pages: mapping.pages.clone(), prot: mapping.prot, shared: false, backing, flags }
    }

    /// Whether it has that flag.
    pub fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|each| each == flag)
    }

    /// First address.
    pub fn start(&self) -> u64 {
        self.pages.start * PAGE
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        (self.pages.end - self.pages.start) * PAGE
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        false
    }
}

fn backing(mapping: &Mapping) -> std::result::Result<Backing, String> {
    let name = mapping.name.clone();
    match name.as_str() {
        "[vdso]" | "[vvar]" | "[vvar_vclock]" => return Ok(Backing::Kernel { name }),
        "[stack]" => return Ok(Backing::Stack),
        "[uprobes]" => return Err("it is probed (uprobes)".into()),
        _ => {}
    }
    if mapping.inode == 0 && !mapping.shared {
        // The heap's name follows from its address.
        let given = name.strip_prefix("[anon:").and_then(|rest| rest.strip_suffix(']')).unwrap_or("");
        return Ok(Backing::Anonymous { name: given.to_owned() });
    }
    if mapping.shared && name == "/dev/zero (deleted)" && mapping.device.0 == 0 {
        return Ok(Backing::SharedAnonymous { inode: mapping.inode, offset: mapping.offset });
    }
    if name.starts_with("/SYSV") {
        return Err(format!("{name}: shared memory of System V"));
    }
    if mapping.deleted() {
        return Err(format!("{name}: a file that has been removed is mapped"));
    }
    if !name.starts_with('/') || !Path::new(&name).is_absolute() {
        return Err(format!("{name}: a mapping of a kind that is not known here"));
    }
    Ok(Backing::File { path: name.into(), device: mapping.device, inode: mapping.inode, offset: mapping.offset })
}
