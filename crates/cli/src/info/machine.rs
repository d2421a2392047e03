//! The kernel's side: what of it Towa uses, and what slows it down.

use std::fs;

use serde::Serialize;

use crate::report::{Lines, bytes};

/// Oldest kernel that we test on.
const OLDEST: (u32, u32) = (6, 1);

/// What the running kernel offers.
#[derive(Debug, Serialize)]
pub struct Kernel {
    /// As `uname -r` says.
    pub release: String,
    /// Whether it is as new as those we test on.
    pub supported: bool,
    /// Whether the cheap barrier at the start of transactions is there (`membarrier`, private expedited).
    pub membarrier: bool,
    /// `always`, `madvise` or `never`: huge pages for ordinary memory.
    pub huge_pages: Option<String>,
    /// The same for files in memory, which are what a pool on `ram` is mapped from.
    pub huge_pages_shmem: Option<String>,
    /// 2 means that memory is promised only as far as there is some: large heaps may be refused.
    pub overcommit_memory: Option<u8>,
    /// Memory that could be had now, in bytes.
    pub memory_available: Option<u64>,
    /// Processors this process may use.
    pub cpus: usize,
}

impl Kernel {
    /// The running one.
    pub fn running() -> Kernel {
        let word = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
        let release = word("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".into());
        let huge = |name: &str| word(&format!("/sys/kernel/mm/transparent_hugepage/{name}")).and_then(|text| chosen(&text));
        Kernel {
            supported: version(&release).is_some_and(|v| v >= OLDEST),
            release,
            membarrier: has_membarrier(),
            huge_pages: huge("enabled"),
            huge_pages_shmem: huge("shmem_enabled"),
            overcommit_memory: word("/proc/sys/vm/overcommit_memory").and_then(|text| text.parse().ok()),
            memory_available: word("/proc/meminfo").and_then(|text| available(&text)),
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get()),
        }
    }

    /// Adds it to a report.
    pub fn print(&self, lines: &mut Lines) {
        lines.heading("kernel");
        let old = format!(" (older than {}.{}, which we test on)", OLDEST.0, OLDEST.1);
        lines.line("release", format!("{}{}", self.release, if self.supported { "" } else { &old }));
        lines.line(
            "membarrier",
            if self.membarrier {
                "there: starting a transaction needs no fence"
            } else {
                "absent: transactions start with a fence"
            },
        );
        let said = |word: &Option<String>| word.clone().unwrap_or_else(|| "unknown".into());
        lines.line("huge pages", format!("{}; for files in memory: {}", said(&self.huge_pages), said(&self.huge_pages_shmem)));
        if self.overcommit_memory == Some(2) {
            lines.line("warning", "vm.overcommit_memory is 2: large heaps may be refused");
        }
        if self.huge_pages.as_deref() == Some("never") {
            lines.line(
                "warning",
                "huge pages are off: large heaps are slower; echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
            );
        }
        let memory = self.memory_available.map_or("unknown".into(), bytes);
        lines.line("resources", format!("{} processors, {memory} of memory available", self.cpus));
    }
}

/// `6.1` of `6.1.0-18-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The word in brackets: `always [madvise] never`.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

/// Bytes of memory that could be had now, where the kernel says.
pub fn available_memory() -> Option<u64> {
    available(&fs::read_to_string("/proc/meminfo").ok()?)
}

fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

fn has_membarrier() -> bool {
    const QUERY: i32 = 0;
    const PRIVATE_EXPEDITED: libc::c_long = 1 << 3;
    // SAFETY: membarrier takes numbers only, and a query changes nothing.
    let offered = unsafe { libc::syscall(libc::SYS_membarrier, QUERY, 0, 0) };
    offered >= 0 && offered & PRIVATE_EXPEDITED != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_understood() {
        assert_eq!(version("6.1.0-18-amd64"), Some((6, 1)));
        assert_eq!(version("6.12-rc3"), Some((6, 12)));
        assert_eq!(version("unknown"), None);
        assert_eq!(chosen("always [madvise] never").as_deref(), Some("madvise"));
        assert_eq!(chosen("nothing"), None);
        assert_eq!(available("MemTotal: 9 kB\nMemAvailable:   20 kB\n"), Some(20480));
    }
}
