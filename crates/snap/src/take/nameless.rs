//! Files without a name (memfds, removed files): there is no other copy of their content, so a checkpoint keeps it.
//!
//! ```text
//!   runs           much: copied aside, with a stamp (length, times)       little, all together: not yet
//!   stands still   the same stamp, and no other process has it            read, whatever it is
//!                    └─► the copy counts     otherwise ─► read again
//! ```
//!
//! What must always hold: how long the process stands still for it does not depend on how large it makes such files, nor on how it lays them
//! out: so much is read, for so long, and what takes more is refused by name. Of a hole nothing is ever read.
//!
//! A stamp tells what was written by calls. Stores through a mapping may change a file without changing its times; a process that has such
//! a file mapped is refused, and one that shares it with another process has it read again. What is not seen is a mapping of a process that
//! this user may not look at, and one that is made, written through and gone again between the copy and the pause.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use crate::error::{Error, Refusal, Result};
use crate::state::descriptors::{Found, Identity, Kind, look};
use crate::state::process::clock_ns;
use crate::store::{Aside, Draft, Limit, Pieces, catch};
use crate::sys::fd::{self, Process};

/// Bytes that are read while the process stands still even if nothing seems to have changed.
const LITTLE: u64 = 1 << 20;
/// Bytes that are read then at most, and for how long.
const MOST: u64 = 16 << 20;
const LONGEST: Duration = Duration::from_millis(100);
/// A file in more pieces than this is not cloned while the process stands still: each takes some 10 us.
const FEW_PIECES: usize = 256;
/// How often a file is copied again that was changed while it was copied.
const ROUNDS: u32 = 3;

/// A copy that was made while the process ran.
struct Ahead {
    stamp: Identity,
    aside: Aside,
    /// Whether another process has the file, too.
    shared: bool,
}

/// What was read while the process stood still.
struct Caught {
    name: String,
    len: u64,
    pieces: Pieces,
}

/// What is kept of such files, from before the pause until after it. By the name that a checkpoint has for them.
#[derive(Default)]
pub(super) struct Nameless {
    ahead: HashMap<String, Ahead>,
    caught: Vec<Caught>,
    unchanged: Vec<String>,
}

/// A file of the process without a name, each once.
struct One {
    name: String,
    /// As a message has it.
    words: String,
    place: String,
    stamp: Identity,
    /// With a position of its own, which looking for holes moves.
    file: std::io::Result<File>,
}

fn each(found: &Found) -> Vec<One> {
    let mut all: Vec<One> = Vec::new();
    for (n, (open, taken)) in found.descriptors.files.iter().zip(&found.taken).enumerate() {
        let Kind::Nameless { name: was, memfd, identity, .. } = &open.kind else { continue };
        let name = identity.name();
        if all.iter().any(|other| other.name == name) {
            continue;
        }
        let words = if *memfd { format!("memfd {was}") } else { format!("{was}, a file that was removed") };
        let fd = found.descriptors.table.iter().find(|descriptor| descriptor.file == n).map_or(-1, |descriptor| descriptor.fd);
        all.push(One { name, words, place: format!("fd {fd}"), stamp: identity.clone(), file: fd::reopened(taken) });
    }
    all
}

impl Nameless {
    /// Copies, while the process runs, what is too much for the pause. What was copied before and is as it was is not copied again; whether
    /// anything was.
    pub(super) fn copy_ahead(&mut self, process: &Process, draft: &mut Draft) -> Result<bool> {
        let (mut files, mut little, mut copied) = (each(&look(process)?), LITTLE, false);
        let too_long = too_long(&files, draft)?;
        if !too_long.is_empty() {
            return Err(Error::Refused { pid: process.pid(), what: too_long });
        }
        files.retain(|one| one.file.is_ok());
        files.sort_by_key(bytes);
        for one in files {
            match little.checked_sub(bytes(&one)) {
                Some(left) => little = left,
                None => copied |= self.copy_one(&one, draft)?,
            }
        }
        let shared = if self.ahead.is_empty() { HashSet::new() } else { others_have(process.pid(), &self.inodes()) };
        for ahead in self.ahead.values_mut() {
            ahead.shared = shared.contains(&ahead.stamp.inode);
        }
        Ok(copied)
    }

    fn inodes(&self) -> HashSet<u64> {
        self.ahead.values().map(|ahead| ahead.stamp.inode).collect()
    }

    fn copy_one(&mut self, one: &One, draft: &mut Draft) -> Result<bool> {
        let Ok(file) = &one.file else { return Ok(false) };
        let mut copied = false;
        for _ in 0..ROUNDS {
            let Some(stamp) = settled(file) else { break };
            if self.ahead.get(&one.name).is_some_and(|ahead| ahead.stamp == stamp) {
                break;
            }
            let Some(aside) = draft.set_aside(file)? else { break };
            self.ahead.insert(one.name.clone(), Ahead { stamp, aside, shared: false });
            copied = true;
        }
        Ok(copied)
    }

    /// Sees to it, while the process stands still, that the content as it is now is known; says what would take too long.
    pub(super) fn catch(&mut self, draft: &mut Draft, found: &Found) -> Result<Vec<Refusal>> {
        let mut limit = Limit { bytes: MOST, until: Some(Instant::now() + LONGEST) };
        let mut refused = Vec::new();
        for one in each(found) {
            let ahead = self.ahead.get(&one.name);
            if ahead.is_some_and(|ahead| ahead.stamp == one.stamp && !ahead.shared) {
                self.unchanged.push(one.name);
                continue;
            }
            let shared = ahead.is_some_and(|ahead| ahead.shared);
            let file = match &one.file {
                Ok(file) => file,
                Err(e) => {
                    refused.push(Refusal { place: one.place, what: format!("{}: cannot be opened to read: {e}", one.words) });
                    continue;
                }
            };
            if is_in_few_pieces(file) && draft.attach_clone(file, &one.name)? {
                continue;
            }
            match catch(file, &mut limit) {
                Ok(Some((len, pieces))) => self.caught.push(Caught { name: one.name, len, pieces }),
                Ok(None) => refused.push(Refusal { place: one.place.clone(), what: too_much(&one, shared) }),
                Err(e) => refused.push(Refusal { place: one.place, what: format!("{}: cannot be read: {e}", one.words) }),
            }
        }
        Ok(refused)
    }

    /// Has the draft keep all of it; the process may run again.
    pub(super) fn hand_over(mut self, draft: &mut Draft) -> Result<()> {
        for name in &self.unchanged {
            let ahead = self.ahead.remove(name).expect("it was looked up");
            draft.attach_aside(ahead.aside, name)?;
        }
        self.caught.iter().try_for_each(|caught| draft.attach_caught(caught.len, &caught.pieces, &caught.name))
    }
}

/// Files that the file system of the checkpoints takes no copy of, of whatever it consists.
fn too_long(files: &[One], draft: &mut Draft) -> Result<Vec<Refusal>> {
    /// Every file system takes files of this length.
    const SURE: u64 = 1 << 40;
    let mut refused = Vec::new();
    for one in files.iter().filter(|one| one.stamp.len > SURE) {
        if !draft.can_hold(one.stamp.len)? {
            let what = format!(
                "{} ({} bytes, mostly holes): the file system that the checkpoints are on takes no file so long; let the program make it \
                 shorter, or keep the checkpoints on another one (XFS)",
                one.words, one.stamp.len
            );
            refused.push(Refusal { place: one.place.clone(), what });
        }
    }
    Ok(refused)
}

fn too_much(one: &One, shared: bool) -> String {
    let why = match shared {
        true => "another process has it, too, so it must be read",
        false => "it is being written, so it must be read",
    };
    format!(
        "{} ({} bytes, of which {} are data): {why} while the program stands still, which is done for {} bytes in all at most; take the \
         checkpoint when it is left alone, or keep the content in a file with a name or in memory of the program's own",
        one.words,
        one.stamp.len,
        bytes(one),
        MOST
    )
}

/// Bytes of data that it has.
fn bytes(one: &One) -> u64 {
    one.file.as_ref().ok().and_then(|file| file.metadata().ok()).map_or(0, |status| status.blocks() * 512)
}

/// The state of a file such that any later write shows; nothing if it does not come to rest. The clock that the kernel takes such times from
/// stands still for some milliseconds: what was written just now looks like what is written next.
fn settled(file: &File) -> Option<Identity> {
    for _ in 0..10 {
        let now = clock_ns(libc::CLOCK_REALTIME_COARSE);
        let stamp = Identity::of(&file.metadata().ok()?);
        if i64::try_from(now).is_ok_and(|now| now > stamp.changed_ns) {
            return Some(stamp);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    None
}

fn is_in_few_pieces(file: &File) -> bool {
    // Where the file system does not tell (tmpfs) nothing can be cloned either.
    towa_media::extents::of(file).is_ok_and(|extents| extents.len() <= FEW_PIECES)
}

/// Which of these inodes of files without a name other processes have open or mapped, as far as this user may look.
fn others_have(pid: i32, inodes: &HashSet<u64>) -> HashSet<u64> {
    let own = std::process::id() as i32;
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut found = HashSet::new();
    for other in numbers.filter(|other| ![pid, own].contains(other)) {
        for entry in std::fs::read_dir(format!("/proc/{other}/fd")).into_iter().flatten().flatten() {
            let is_nameless = std::fs::read_link(entry.path()).is_ok_and(|name| name.to_string_lossy().ends_with(" (deleted)"));
            if is_nameless && let Ok(status) = std::fs::metadata(entry.path()) {
                found.extend(inodes.get(&status.ino()));
            }
        }
        let maps = std::fs::read(format!("/proc/{other}/maps")).unwrap_or_default();
        for line in String::from_utf8_lossy(&maps).lines().filter(|line| line.ends_with(" (deleted)")) {
            let inode = line.split_ascii_whitespace().nth(4).and_then(|inode| inode.parse().ok());
            found.extend(inode.and_then(|inode: u64| inodes.get(&inode)));
        }
    }
    found
}
