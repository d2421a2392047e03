//! Which process holds a lock, for messages: as the kernel's table of locks says, which is asked without disturbing
//! anything.
//!
//! What must always hold: nothing is decided by a process number. A number means something in one PID namespace only,
//! and a process can have the lock that another one is asked about. The kernel's lock decides; a number tells a
//! person where to look.

/// The process that holds a flock on the file or directory with this device and inode, where that process can be seen
/// from here.
///
/// Some file systems show another device in that table than in `stat`; then only process `said` is believed.
pub fn of(device: u64, inode: u64, said: Option<u32>) -> Option<u32> {
    find(&std::fs::read_to_string("/proc/locks").ok()?, inode, device, said)
}

/// The holder of the flock on an inode, in the text of `/proc/locks`: `1: FLOCK  ADVISORY  WRITE 4711 fe:00:131090 0
/// EOF`. A writer before readers; processes that wait (`->`) are none.
fn find(table: &str, inode: u64, device: u64, said: Option<u32>) -> Option<u32> {
    let device = format!("{:02x}:{:02x}", libc::major(device), libc::minor(device));
    let holders = |wanted: &'static str| {
        let device = &device;
        table.lines().find_map(move |line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [_, "FLOCK", "ADVISORY", how, pid, place, ..] = words[..] else { return None };
            let (on, number) = place.rsplit_once(':')?;
            let pid = pid.parse::<u32>().ok().filter(|pid| *pid != 0)?;
            (how == wanted && number.parse() == Ok(inode) && (on == device || Some(pid) == said)).then_some(pid)
        })
    };
    holders("WRITE").or_else(|| holders("READ"))
}

/// The state of process `pid`, as the letter that the kernel gives it, and when it started, in clock ticks since boot.
pub fn state(pid: u32) -> Option<(char, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// Whether process `pid` does nothing until it is let go on: after SIGSTOP, or in a debugger.
pub fn is_stopped(pid: u32) -> bool {
    state(pid).is_some_and(|(state, _)| matches!(state, 'T' | 't'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_found_by_inode_and_device() {
        let table = "1: POSIX  ADVISORY  WRITE 99 fe:00:77 0 EOF\n1: FLOCK  ADVISORY  READ 12 fe:00:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 4711 fe:00:77 0 EOF\n2: -> FLOCK  ADVISORY  WRITE 5 fe:00:77 0 EOF\n\
                     3: FLOCK  ADVISORY  READ 6 fe:00:79 0 EOF\n4: FLOCK  ADVISORY  WRITE 0 fe:00:80 0 EOF\n";
        let device = libc::makedev(0xfe, 0);
        assert_eq!(find(table, 77, device, None), Some(4711));
        assert_eq!(find(table, 78, device, None), None);
        assert_eq!(find(table, 79, device, None), Some(6), "a reader");
        assert_eq!(find(table, 80, device, None), None, "a process of another PID namespace");
        assert_eq!(find(table, 77, libc::makedev(0, 33), None), None, "another file system's inode of the same number");
        assert_eq!(find(table, 77, libc::makedev(0, 33), Some(4711)), Some(4711));
        assert_eq!(find("rubbish\n\n1:", 77, device, None), None);
    }
}
