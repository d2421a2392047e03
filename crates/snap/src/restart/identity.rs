//! Who the process is: user, groups, capabilities, and what it may never gain again. Each thread has them for itself.
//!
//! What must always hold: the new process never has more than the old one had. Who may not give it what it had is refused before there
//! is a new process. In a user namespace made for the restart, whoever restarts it is mapped alone: the process must have been that
//! user, with that group; supplementary groups can neither be named nor changed there, and are inherited: they must be the same before;
//! and there is no capability to give, for all there are would count in the namespace only, and not where they did.

use crate::error::{Error, Result};
use crate::remote::{Call, Stub};
use crate::state::process::{Process, Who};
use crate::state::thread::Thread;
use crate::sys::memory;
use crate::sys::ptrace::Tid;

const CAPABILITY_VERSION_3: u32 = 0x2008_0522;
const PR_SET_SECUREBITS_KEEP_CAPS: u64 = 8; // PR_SET_KEEPCAPS
const PR_CAPBSET_DROP: u64 = 24;
const PR_CAP_AMBIENT: u64 = 47;
const PR_CAP_AMBIENT_RAISE: u64 = 2;
const CAPABILITIES: u64 = 64;
const CAP_SETPCAP: u64 = 1 << 8;
/// What a group without a name reads as in a user namespace (`/proc/sys/kernel/overflowgid`).
const UNNAMED_GROUP: u32 = 65534;

/// Where the new process is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Within {
    /// In the user namespace of whoever asks for it.
    Here,
    /// In one made for it.
    UserNamespace,
}

/// Whether `ours` has the supplementary groups that the process had. Those that had no name where its checkpoint was taken are the ones of
/// whoever made that namespace: as many as are left.
fn same_groups(was: &Who, unnamed_groups: bool, ours: &Who) -> bool {
    let was = &was.supplementary;
    if *was == ours.supplementary {
        return true;
    }
    let named = |group: &&u32| **group != UNNAMED_GROUP;
    unnamed_groups
        && was.len() == ours.supplementary.len()
        && was.iter().filter(named).all(|group| ours.supplementary.contains(group))
}

/// Whether a process like `ours` can make one of that identity.
pub fn check(process: &Process, ours: &Who, within: Within) -> Result<()> {
    let verdict = may_make(&process.who, process.unnamed_groups, ours, within);
    verdict.map_err(|(what, remedy)| Error::NotPermitted { pid: process.pid, what, remedy })
}

/// What it is that is not permitted, and what to do.
type Verdict = std::result::Result<(), (&'static str, &'static str)>;

fn may_make(was: &Who, unnamed_groups: bool, ours: &Who, within: Within) -> Verdict {
    let is_root = ours.users[1] == 0 && within == Within::Here;
    let same = ours.users == was.users && ours.groups == was.groups && same_groups(was, unnamed_groups, ours);
    let [inheritable, permitted, effective, bounding, ambient] = was.capabilities;
    let powers = inheritable | permitted | effective | ambient;
    let fits = match within {
        // Without the right to drop some of them, the possible ones must be the same.
        Within::Here => {
            let [_, our_permitted, our_effective, our_bounding, _] = ours.capabilities;
            let may_drop = our_effective & CAP_SETPCAP != 0 && bounding & !our_bounding == 0;
            powers & !our_permitted == 0 && (bounding == our_bounding || may_drop)
        }
        Within::UserNamespace => powers == 0 && was.users == [ours.users[1]; 4] && was.groups == [ours.groups[1]; 4],
    };
    let unknown = unnamed_groups && was.supplementary.contains(&UNNAMED_GROUP) && !same_groups(was, unnamed_groups, ours);
    if (same && fits || is_root) && !unknown {
        return Ok(());
    }
    Err(match (same, within) {
        (true, Within::UserNamespace) => (
            "restarting, in a user namespace, a process with capabilities or with more than one user or group",
            "do it as root, or with CAP_CHECKPOINT_RESTORE (setcap cap_checkpoint_restore+ep on the tool)",
        ),
        _ if is_root => {
            ("restarting a process some of whose groups had no name in its user namespace", "do it as the user that made it")
        }
        _ => ("restarting a process of another user, or with other groups or capabilities", "do it as that user, or as root"),
    })
}

/// Gives a thread of the new process the identity of the old one, and what the kernel takes away when that changes.
pub fn give(thread: &Thread, process: &Process, within: Within, stub: &Stub) -> Result<()> {
    let tid = thread.tid;
    let now = Who::of(tid)?;
    // What cannot be changed was compared before.
    let was = match within == Within::UserNamespace || same_groups(&process.who, process.unnamed_groups, &now) {
        true => Who { supplementary: now.supplementary.clone(), ..process.who.clone() },
        false => process.who.clone(),
    };
    let mut calls = Vec::new();
    if process.no_new_privileges {
        calls.push(Call::new(libc::SYS_prctl, &[libc::PR_SET_NO_NEW_PRIVS as u64, 1]));
    }
    let bits_now = stub.call(tid, libc::SYS_prctl, &[libc::PR_GET_SECUREBITS as u64])?;
    if now != was || bits_now != thread.settings.secure_bits {
        calls.extend(become_again(tid, &now, &was, (bits_now, thread.settings.secure_bits), stub)?);
    }
    calls.push(Call::new(libc::SYS_prctl, &[libc::PR_SET_DUMPABLE as u64, process.dumpable.min(1)]));
    calls.push(Call::new(libc::SYS_prctl, &[libc::PR_SET_PDEATHSIG as u64, thread.death_signal as u64]));
    for (call, result) in calls.iter().zip(stub.run(tid, &calls)?) {
        stub.checked(call.number, result)?;
    }
    match Who::of(tid)? {
        now if now == was => Ok(()),
        now => Err(Error::Target { pid: tid, what: format!("could not be made what it was: {now:?} instead of {was:?}") }),
    }
}

/// The calls that make a thread who it was.
fn become_again(tid: Tid, now: &Who, was: &Who, secure_bits: (u64, u64), stub: &Stub) -> Result<Vec<Call>> {
    let scratch = stub.scratch();
    let [inheritable, permitted, effective, bounding, ambient] = was.capabilities;
    // First as many as there are, then those that it had.
    let last = scratch + 64;
    memory::write(tid, scratch, &capabilities([now.capabilities[1], now.capabilities[1], now.capabilities[0]]))?;
    memory::write(tid, last, &capabilities([effective, permitted, inheritable]))?;
    let groups: Vec<u8> = was.supplementary.iter().flat_map(|group| group.to_le_bytes()).collect();
    memory::write(tid, scratch + 128, &groups)?;
    let prctl = |args: &[u64]| Call::new(libc::SYS_prctl, args);
    let bits = |mask: u64| (0..CAPABILITIES).filter(move |bit| mask & 1 << bit != 0);
    let three = |ids: [u32; 4]| [u64::from(ids[0]), u64::from(ids[1]), u64::from(ids[2])];
    let mut calls: Vec<Call> = bits(now.capabilities[3] & !bounding).map(|bit| prctl(&[PR_CAPBSET_DROP, bit])).collect();
    calls.push(prctl(&[PR_SET_SECUREBITS_KEEP_CAPS, 1]));
    if now.supplementary != was.supplementary {
        calls.push(Call::new(libc::SYS_setgroups, &[was.supplementary.len() as u64, scratch + 128]));
    }
    calls.push(Call::new(libc::SYS_setresgid, &three(was.groups)));
    calls.push(Call::new(libc::SYS_setresuid, &three(was.users)));
    calls.push(prctl(&[PR_SET_SECUREBITS_KEEP_CAPS, 0]));
    if secure_bits.0 != secure_bits.1 {
        // Another user has none that count until it takes them up again.
        calls.push(Call::new(libc::SYS_capset, &[scratch, scratch + 8]));
        calls.push(prctl(&[libc::PR_SET_SECUREBITS as u64, secure_bits.1]));
    }
    calls.push(Call::new(libc::SYS_capset, &[last, last + 8]));
    calls.extend(bits(ambient).map(|bit| prctl(&[PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, bit, 0, 0])));
    Ok(calls)
}

/// Header and data of capset(2): effective, permitted, inheritable.
fn capabilities(sets: [u64; 3]) -> Vec<u8> {
    let half = |word: u64, n: u32| (word >> (32 * n)) as u32;
    let header = [CAPABILITY_VERSION_3, 0];
    let data = (0..2).flat_map(|n| sets.map(|set| half(set, n)));
    header.into_iter().chain(data).flat_map(|word| word.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = (1 << 41) - 1;

    fn who(user: u32, groups: &[u32], powers: u64, bounding: u64) -> Who {
        Who { users: [user; 4], groups: [user; 4], supplementary: groups.to_vec(), capabilities: [0, powers, powers, bounding, 0] }
    }

    /// What `check` says of a process that was `was`, restarted by `ours`: here, and in a user namespace.
    fn allowed(was: Who, unnamed_groups: bool, ours: &Who) -> (bool, bool) {
        let may = |within| may_make(&was, unnamed_groups, ours, within).is_ok();
        (may(Within::Here), may(Within::UserNamespace))
    }

    #[test]
    fn nobody_gives_more_than_there_was_or_than_he_has() {
        let user = who(1000, &[4, 27], 0, ALL);
        assert_eq!(allowed(user.clone(), false, &user), (true, true));
        // With a capability more, which is dropped.
        assert_eq!(allowed(user.clone(), false, &who(1000, &[4, 27], 1 << 40, ALL)), (true, true));
        // Other users, groups, capabilities; fewer possible ones than here, which cannot be dropped.
        assert_eq!(allowed(who(1001, &[4, 27], 0, ALL), false, &user), (false, false));
        assert_eq!(allowed(who(1000, &[4], 0, ALL), false, &user), (false, false));
        assert_eq!(allowed(who(1000, &[4, 27], 1, ALL), false, &user), (false, false));
        assert_eq!(allowed(who(1000, &[4, 27], 0, ALL >> 1), false, &user), (false, true));
        // Groups without names.
        assert_eq!(allowed(who(1000, &[27, 65534], 0, ALL), true, &user), (true, true));
        assert_eq!(allowed(who(1000, &[27, 65534], 0, ALL), false, &user), (false, false));
        assert_eq!(allowed(who(1000, &[65534], 0, ALL), true, &user), (false, false));
        // Root gives everything here, but for groups that it does not know.
        let root = who(0, &[], ALL, ALL);
        assert_eq!(allowed(who(1000, &[27], 5, ALL), false, &root), (true, false));
        assert_eq!(allowed(who(1000, &[65534], 0, ALL), true, &root), (false, false));
        assert_eq!(allowed(root.clone(), false, &root), (true, false));
    }
}
