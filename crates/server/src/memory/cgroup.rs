//! How much memory the control groups of this process allow it.
//!
//! Both kinds are looked at, and all groups above: v2 has `memory.max` in each, v1 `memory.limit_in_bytes`. A container
//! sees its group as the root of the mount; `/proc/self/cgroup` then names a path that is not beneath it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A limit, and the file that says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// Bytes.
    pub bytes: u64,
    /// Where it stands.
    pub file: PathBuf,
}

/// The least limit of the control groups that this process is in; `None` where none is set, or seen.
pub fn allowed() -> Option<Allowed> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let limits = hierarchies(&mounts).into_iter().flat_map(|hierarchy| hierarchy.files(&groups));
    limits
        .filter_map(|file| Some(Allowed { bytes: limit_in(&std::fs::read_to_string(&file).ok()?)?, file }))
        .min_by_key(|it| it.bytes)
}

/// Where control groups with limits of memory are mounted.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    is_v2: bool,
    mount: PathBuf,
    /// The group that is the root of the mount.
    root: PathBuf,
}

impl Hierarchy {
    /// The files of limits from our group up to the root of the mount.
    fn files(&self, groups: &str) -> Vec<PathBuf> {
        let group = groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, group) = (parts.next()?, parts.next()?);
            let is_ours = if self.is_v2 { controllers.is_empty() } else { controllers.split(',').any(|name| name == "memory") };
            is_ours.then(|| Path::new(group))
        });
        let name = if self.is_v2 { "memory.max" } else { "memory.limit_in_bytes" };
        // A group that is not beneath the mount's root is seen as that root.
        let beneath = group.and_then(|group| group.strip_prefix(&self.root).ok()).unwrap_or(Path::new(""));
        let inside = !beneath.components().any(|part| part.as_os_str() == "..");
        beneath.ancestors().filter(|_| inside).map(|group| self.mount.join(group).join(name)).collect()
    }
}

/// Those in the text of a mountinfo file: `36 35 0:30 /root /mount/point rw - cgroup cgroup rw,memory`.
fn hierarchies(mounts: &str) -> Vec<Hierarchy> {
    let parse = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let left: Vec<&str> = left.split(' ').collect();
        let right: Vec<&str> = right.split(' ').collect();
        let is_v2 = match *right.first()? {
            "cgroup2" => true,
            "cgroup" if right.get(2)?.split(',').any(|option| option == "memory") => false,
            _ => return None,
        };
        Some(Hierarchy { is_v2, mount: unescaped(left.get(4)?), root: unescaped(left.get(3)?) })
    };
    mounts.lines().filter_map(parse).collect()
}

/// A path in such a file, where a space is `\040`: a backslash and three octal digits for each byte that would end a word or a line.
fn unescaped(word: &str) -> PathBuf {
    let (mut bytes, mut rest) = (Vec::new(), word.as_bytes());
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|digits| first == b'\\' && digits.iter().all(|digit| (b'0'..b'8').contains(digit)));
        let byte = digits.map(|digits| digits.iter().fold(0, |byte: u8, digit| byte.wrapping_mul(8).wrapping_add(digit - b'0')));
        bytes.push(byte.unwrap_or(first));
        rest = &rest[if byte.is_some() { 4 } else { 1 }..];
    }
    OsString::from_vec(bytes).into()
}

/// The limit that the text of such a file says. v1 says that there is none by a number near the greatest.
fn limit_in(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|bytes| *bytes < 1 << 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1: &str = "40 30 0:33 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n\
                      41 30 0:34 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n";

    fn files(mounts: &str, groups: &str) -> Vec<String> {
        let found = hierarchies(mounts).into_iter().flat_map(|it| it.files(groups));
        found.map(|file| file.display().to_string()).collect()
    }

    #[test]
    fn all_groups_above_are_looked_at() {
        let slice =
            ["/sys/fs/cgroup/a.slice/b.service/memory.max", "/sys/fs/cgroup/a.slice/memory.max", "/sys/fs/cgroup/memory.max"];
        assert_eq!(files(V2, "0::/a.slice/b.service\n"), slice);
        let v1 = ["/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
        assert_eq!(files(V1, "4:cpu,cpuacct:/other\n3:memory:/a\n0::/\n"), v1);
    }

    #[test]
    fn a_container_sees_its_group_as_the_root() {
        let docker = V1.replace("/ /sys/fs/cgroup/memory", "/docker/1234 /sys/fs/cgroup/memory");
        assert_eq!(files(&docker, "3:memory:/docker/1234\n"), ["/sys/fs/cgroup/memory/memory.limit_in_bytes"]);
        assert_eq!(files(V2, "0::/\n"), ["/sys/fs/cgroup/memory.max"]);
        assert_eq!(files(&docker, "3:memory:/elsewhere\n"), ["/sys/fs/cgroup/memory/memory.limit_in_bytes"]);
        assert!(files(V2, "0::/../other\n").is_empty());
    }

    #[test]
    fn paths_may_have_spaces_and_backslashes() {
        let odd = "30 23 0:26 /a\\040b /mnt/c\\134d\\011e\\04 rw - cgroup2 cgroup2 rw\n";
        assert_eq!(files(odd, "0::/a b/f\n"), ["/mnt/c\\d\te\\04/f/memory.max", "/mnt/c\\d\te\\04/memory.max"]);
    }

    #[test]
    fn no_limit_is_none() {
        assert_eq!(
            (limit_in("max\n"), limit_in("9223372036854771712\n"), limit_in("629145600\n")),
            (None, None, Some(629_145_600))
        );
    }
}
