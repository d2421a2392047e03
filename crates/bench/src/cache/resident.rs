//! Memory that a server takes: its process, and the files of its pool where these are memory, too.
//!
//! What must hold: a page of the pool that the process maps is counted once, as the file's.

use std::path::Path;

use anyhow::Result;

use crate::files::allocated;

/// Memory of process `pid` in MiB, without its mappings of files within `dir`.
pub(super) fn process_mb(pid: u32, dir: &Path) -> Option<f64> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).ok()?;
    Some(outside_kb(&maps, &dir.to_string_lossy()) as f64 / 1024.0)
}

/// Resident KiB of the mappings in `maps` whose file is not within `dir`.
fn outside_kb(maps: &str, dir: &str) -> u64 {
    let (mut sum, mut counts) = (0, false);
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("Rss:") if counts => sum += words.next().and_then(|kb| kb.parse().ok()).unwrap_or(0),
            // The first line of a mapping opens with its addresses, other lines with a field's name.
            Some(first) if !first.ends_with(':') => counts = !line.contains(dir),
            _ => {}
        }
    }
    sum
}

/// What the files within `dir` take, in MiB.
pub(super) fn files_mb(dir: &Path) -> Result<f64> {
    Ok(allocated(dir)? as f64 / (1 << 20) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cleanup::Scratch;

    #[test]
    fn mappings_of_the_pool_are_left_to_its_files() {
        let maps = "\
7f0000000000-7f0000100000 rw-s 00000000 00:1b 77   /dev/shm/towa-bench-a/towa/pool/image
Size:               1024 kB
Rss:                 900 kB
7f0000200000-7f0000300000 rw-p 00000000 00:00 0
Size:               1024 kB
Rss:                 300 kB
Pss:                 300 kB
7f0000400000-7f0000500000 r-xp 00000000 08:01 42   /usr/bin/towa
Rss:                  40 kB
VmFlags: rd ex mr mw me
";
        assert_eq!(outside_kb(maps, "/dev/shm/towa-bench-a/towa"), 340);
        assert_eq!(outside_kb(maps, "/elsewhere"), 1240);
    }

    #[test]
    fn this_process_and_its_files_are_measured() {
        let scratch = Scratch::within(&std::env::temp_dir()).unwrap();
        let dir = scratch.fresh("pool").unwrap();
        std::fs::write(dir.join("image"), vec![7; 3 << 20]).unwrap();
        std::fs::File::create(dir.join("log")).unwrap().set_len(1 << 30).unwrap();
        let files = files_mb(scratch.path()).unwrap();
        assert!((2.9..4.0).contains(&files), "{files} MiB");
        assert!(process_mb(std::process::id(), scratch.path()).unwrap() > 1.0);
    }
}
