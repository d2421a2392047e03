//! Which pages of which files a process has, from `/proc/PID/smaps`: what is counted where perf is not permitted.
//!
//! What must hold: these are pages that are mapped when a process ends, neighbours that the kernel mapped along included; what an exec threw
//! away is not seen. They go to `pages`, never to the numbers of faults.

use std::path::Path;

use super::objects::Objects;
use super::sys::Pid;

/// Adds the pages of `pid`, which is about to end. `is_fork`: it is a fork, and has executed no program since.
pub fn add(objects: &mut Objects, pid: Pid, is_fork: bool) {
    let Ok(text) = std::fs::read(format!("/proc/{pid}/smaps")) else { return };
    let (mut object, mut is_text, mut met) = (None, false, Vec::new());
    for line in String::from_utf8_lossy(&text).lines() {
        if let Some((rights, path)) = mapping(line) {
            is_text = rights.as_bytes().get(2) == Some(&b'x');
            object = path.map(|path| objects.find(pid, path)).filter(|&index| objects.at(index).elf.is_some());
            if let Some(index) = object {
                objects.at(index).is_executed |= is_text;
                met.push(index);
            }
        } else if let Some(size) = line.strip_prefix("Rss:") {
            let kib: u64 = size.trim().trim_end_matches(" kB").parse().unwrap_or(0);
            objects.counters(object, is_text).pages += kib / 4;
        }
    }
    met.sort_unstable();
    met.dedup();
    for index in met {
        objects.at(index).mapped_by += 1;
        objects.at(index).forks += u64::from(is_fork);
    }
}

/// "55d0c0000000-55d0c0001000 r-xp 00001000 fd:00 1234   /usr/bin/ls": its rights and its file.
fn mapping(line: &str) -> Option<(&str, Option<&Path>)> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    u64::from_str_radix(start, 16).ok()?;
    u64::from_str_radix(end, 16).ok()?;
    let mut fields = rest.splitn(5, ' ');
    let (rights, inode) = (fields.next()?, fields.nth(2)?);
    let name = fields.next().unwrap_or_default().trim_start();
    Some((rights, (inode != "0" && name.starts_with('/')).then(|| Path::new(name))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mappings_are_told_from_others() {
        let line = "55d0c0000000-55d0c0001000 r-xp 00001000 fd:00 1234                       /usr/bin/a b";
        assert_eq!(mapping(line), Some(("r-xp", Some(Path::new("/usr/bin/a b")))));
        assert_eq!(mapping("7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                  [stack]"), Some(("rw-p", None)));
        assert_eq!(mapping("7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0 "), Some(("rw-p", None)));
        assert_eq!(mapping("Rss:                  12 kB"), None);
        assert_eq!(mapping("VmFlags: rd ex mr mw me"), None);
    }

    #[test]
    fn our_own_pages_are_found() {
        let mut objects = Objects::default();
        add(&mut objects, std::process::id() as Pid, false);
        let (found, other) = objects.report(Vec::new());
        let own = std::env::current_exe().unwrap();
        let own = found.iter().find(|object| object.path == own).unwrap();
        assert!(own.text.pages > 10 && own.data.pages > 0 && own.mapped_by == 1, "{own:?}");
        assert!(other.pages > 10, "{other:?}");
    }
}
