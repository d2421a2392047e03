//! The mappings of a process (`/proc/PID/maps`), and which of them hold memory that belongs to a checkpoint.
//!
//! ```text
//!   7f10a0000000-7f10a0021000 rw-p 00002000 08:01 1310749    /usr/lib/libc.so.6
//!   pages                     prot |  offset  device inode    name
//!                                  p private, s shared
//! ```
//!
//! The list of a running process is true of each mapping at the moment its line was made, and of no moment as a whole. Only that of a
//! process that stands still is exact. It is read inside the pause: hence a parser that makes nothing but the list.

use std::io::ErrorKind;

use crate::error::{Error, Result};
use crate::pages::{PAGE, Pages};
use crate::sys::proc;

/// One mapping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// Its pages.
    pub pages: Pages,
    /// PROT_READ, PROT_WRITE and PROT_EXEC.
    pub prot: i32,
    /// Whether writes reach the object itself (MAP_SHARED), and not a copy.
    pub shared: bool,
    /// Where in the file it starts, in bytes.
    pub offset: u64,
    /// Device of the file: major and minor number.
    pub device: (u32, u32),
    /// Inode of the file; 0 if there is none.
    pub inode: u64,
    /// Path of the file, with a newline as `\012` and ` (deleted)` behind it if it is gone; or a name like `[heap]`; or nothing.
    pub name: String,
}

/// Which pages of a mapping are part of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Those that have content: it is private memory without a file.
    Anonymous,
    /// Those that the process has a copy of its own of; the others are the file's.
    OwnCopies,
    /// Those of the shared object that have content: it is shared memory without a name, which only this process and its children have.
    SharedAnonymous,
}

impl Mapping {
    /// Whether its file has been removed.
    pub fn deleted(&self) -> bool {
        self.inode != 0 && self.name.ends_with(" (deleted)")
    }

    /// What of it belongs to a checkpoint; `None` for what the kernel provides (vdso, vvar, vsyscall) and for shared files.
    ///
    /// Permissions do not matter: what may not be written now may have been writable before (relocated data, compiled code).
    pub fn kept(&self) -> Option<Kept> {
        let of_kernel = ["[vdso]", "[vvar]", "[vvar_vclock]", "[vsyscall]", "[uprobes]"].contains(&self.name.as_str());
        match (self.shared, self.inode) {
            _ if of_kernel => None,
            (false, 0) => Some(Kept::Anonymous),
            (false, _) => Some(Kept::OwnCopies),
            (true, _) if self.name == "/dev/zero (deleted)" && self.device.0 == 0 => Some(Kept::SharedAnonymous),
            (true, _) => None,
        }
    }

    /// From a line of `maps`; `None` if it is not one.
    fn parse(line: &str) -> Option<Mapping> {
        let mut rest = line;
        let mut field = |until: char| {
            let (head, tail) = rest.split_once(until)?;
            rest = tail;
            Some(head)
        };
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (start, end) = (hex(field('-')?)?, hex(field(' ')?)?);
        let permissions = field(' ')?.as_bytes();
        let offset = hex(field(' ')?)?;
        let device = (hex(field(':')?)? as u32, hex(field(' ')?)? as u32);
        let (inode, name) = rest.split_once(' ').unwrap_or((rest, ""));
        if permissions.len() != 4 || start % PAGE != 0 || end % PAGE != 0 || start >= end {
            return None;
        }
        let bit = |at: usize, letter: u8, value: i32| if permissions[at] == letter { value } else { 0 };
        Some(Mapping {
            pages: start / PAGE..end / PAGE,
            prot: bit(0, b'r', libc::PROT_READ) | bit(1, b'w', libc::PROT_WRITE) | bit(2, b'x', libc::PROT_EXEC),
            shared: permissions[3] == b's',
            offset,
            device,
            inode: inode.parse().ok()?,
            name: name.trim_start_matches(' ').to_owned(),
        })
    }
}

/// All mappings of a process, by address.
pub fn read(pid: i32) -> Result<Vec<Mapping>> {
    // A process without memory has ended, though its number is still there; or has called exec since the file was opened.
    for _ in 0..2 {
        let text = text(pid, "maps")?;
        let all: Result<Vec<Mapping>> =
            text.lines().map(|line| Mapping::parse(line).ok_or_else(|| not_understood(pid, line))).collect();
        match all {
            Ok(none) if none.is_empty() => {}
            other => return other,
        }
    }
    Err(Error::Gone { pid })
}

/// The kernel's flags of a mapping (`VmFlags` of smaps), by their two letters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VmFlags {
    words: String,
    key: u32,
}

impl VmFlags {
    /// Whether it has `flag`: `gd` grows downwards, `lo` locked, `ht` hugetlb, `dd` not in core dumps, `wf` wiped in children,
    /// `dc` not in children, `hg`/`nh` huge pages or none, `mg` may be merged, `io`/`pf` a device's, `ss` shadow stack, ...
    pub fn has(&self, flag: &str) -> bool {
        self.words.split(' ').any(|each| each == flag)
    }

    /// The key of pkey_mprotect(2); 0: none.
    pub fn protection_key(&self) -> u32 {
        self.key
    }
}

/// All mappings of a process with their flags. The kernel walks the whole memory for it: never in the pause.
pub fn read_with_flags(pid: i32) -> Result<Vec<(Mapping, VmFlags)>> {
    let mut all: Vec<(Mapping, VmFlags)> = Vec::new();
    for line in text(pid, "smaps")?.lines() {
        // A line of figures opens with a word and a colon: an address with a dash comes before any of those.
        if let Some(flags) = line.strip_prefix("VmFlags: ") {
            let last = all.last_mut().ok_or_else(|| not_understood(pid, line))?;
            last.1.words = flags.trim_end().to_owned();
        } else if let Some(key) = line.strip_prefix("ProtectionKey:") {
            let last = all.last_mut().ok_or_else(|| not_understood(pid, line))?;
            last.1.key = key.trim().parse().map_err(|_| not_understood(pid, line))?;
        } else if let Some(mapping) = Mapping::parse(line) {
            all.push((mapping, VmFlags::default()));
        }
    }
    match all.is_empty() {
        true => Err(Error::Gone { pid }),
        false => Ok(all),
    }
}

fn text(pid: i32, name: &str) -> Result<String> {
    let path = format!("/proc/{pid}/{name}");
    // Paths need not be UTF-8; what is compared of a name is ASCII.
    proc::text(&path).map_err(|err| match err.kind() {
        _ if proc::is_gone(&err) => Error::Gone { pid },
        ErrorKind::PermissionDenied => {
            Error::NotPermitted { pid, what: "reading its mappings", remedy: "be the same user, or root" }
        }
        _ => Error::io(path, err),
    })
}

fn not_understood(pid: i32, line: &str) -> Error {
    Error::Target { pid, what: format!("this line about its memory is not understood: {line}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_understood() {
        let line = "7f10a0000000-7f10a0021000 rw-p 00002000 08:1f 1310749                    /usr/lib/a b (deleted)";
        let mapping = Mapping::parse(line).unwrap();
        assert_eq!(mapping.pages, 0x7f10a0000..0x7f10a0021);
        assert_eq!((mapping.prot, mapping.shared), (libc::PROT_READ | libc::PROT_WRITE, false));
        assert_eq!((mapping.offset, mapping.device, mapping.inode), (0x2000, (8, 0x1f), 1310749));
        assert_eq!(mapping.name, "/usr/lib/a b (deleted)");
        assert!(mapping.deleted());
        assert_eq!(mapping.kept(), Some(Kept::OwnCopies));
        for (line, kept) in [
            ("1000-2000 ---p 00000000 00:00 0 ", Some(Kept::Anonymous)),
            ("1000-2000 rw-p 00000000 00:00 0                          [heap]", Some(Kept::Anonymous)),
            ("1000-2000 r-xp 00000000 00:00 0                          [vdso]", None),
            ("1000-2000 r--p 00000000 00:00 0                          [vvar]", None),
            ("ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]", None),
            ("1000-2000 rw-s 00000000 00:01 77                         /dev/zero (deleted)", Some(Kept::SharedAnonymous)),
            ("1000-2000 rw-s 00000000 08:01 77                         /dev/zero (deleted)", None),
            ("1000-2000 rw-s 00000000 00:01 77                         /memfd:x (deleted)", None),
            ("1000-2000 r--s 00000000 08:01 77                         /etc/passwd", None),
        ] {
            assert_eq!(Mapping::parse(line).unwrap().kept(), kept, "{line}");
        }
        for wrong in ["", "1000-2000", "2000-1000 rw-p 00000000 00:00 0 ", "1001-2000 rw-p 00000000 00:00 0 ", "Rss: 4 kB"] {
            assert_eq!(Mapping::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn own_mappings_are_read() {
        let pid = std::process::id() as i32;
        let all = read(pid).unwrap();
        assert!(all.windows(2).all(|pair| pair[0].pages.end <= pair[1].pages.start));
        let local = 7;
        let page = std::ptr::from_ref(&local) as u64 / PAGE;
        assert!(all.iter().any(|mapping| mapping.pages.contains(&page) && mapping.kept() == Some(Kept::Anonymous)));
        let flagged = read_with_flags(pid).unwrap();
        let (_, flags) = flagged.iter().find(|(mapping, _)| mapping.name == "[stack]").unwrap();
        assert!(flags.has("gd") && flags.has("wr") && !flags.has("ht"));
        assert!(matches!(read(0x3fff_ffff), Err(Error::Gone { .. })));
    }
}
