//! Where pools are: the default directory, the options that several commands share, and who uses a pool now.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use towa_media::Kind;

/// File in a pool's directory that says where its server listens. A hint for people and `towa stats`: nothing depends on it.
const ADDRESS: &str = "serve.address";

/// A medium as named on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MediumArg {
    /// Durable memory: a file system mounted with DAX.
    Dax,
    /// Any file system; durable by fdatasync.
    File,
    /// Memory (tmpfs): survives the process, not the machine.
    Ram,
}

impl From<MediumArg> for Kind {
    fn from(arg: MediumArg) -> Kind {
        match arg {
            MediumArg::Dax => Kind::Dax,
            MediumArg::File => Kind::File,
            MediumArg::Ram => Kind::Ram,
        }
    }
}

/// The name of a medium.
pub fn medium_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Dax => "dax",
        Kind::File => "file",
        Kind::Ram => "ram",
        Kind::Sim => "sim",
    }
}

/// `towa serve`'s pool when none is named: `$XDG_STATE_HOME/towa/serve`, or `~/.local/state/towa/serve`.
pub fn default_dir() -> Result<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let Some(state) = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state"))) else {
        bail!("no directory for the pool: neither XDG_STATE_HOME nor HOME is set; name one with --pool DIR");
    };
    Ok(state.join("towa/serve"))
}

/// Makes the directories above `dir`, as a state directory's may be missing on a fresh account.
pub fn make_parents(dir: &Path) -> Result<()> {
    match dir.parent() {
        Some(parent) => fs::create_dir_all(parent).with_context(|| format!("{}: cannot be made", parent.display())),
        None => Ok(()),
    }
}

/// Whether some of a pool's files are in `dir`.
pub fn looks_like_pool(dir: &Path) -> bool {
    use towa_heap::names::{IMAGE, LOG, SUPERBLOCK};
    [SUPERBLOCK, IMAGE, LOG].iter().any(|name| dir.join(name).exists())
}

/// The process that has the pool in `dir` open, as the kernel's table of locks says: asking for the lock would disturb somebody
/// who opens it at the same moment.
pub fn owner(dir: &Path) -> Option<u32> {
    let lock = fs::metadata(dir.join("lock")).ok()?;
    let said = fs::read_to_string(dir.join("lock")).ok().and_then(|text| text.trim().parse::<u32>().ok());
    holder(&fs::read_to_string("/proc/locks").ok()?, lock.ino(), lock.dev(), said)
}

/// The holder of the flock on an inode, in the text of `/proc/locks`: `1: FLOCK  ADVISORY  WRITE 4711 fe:00:131090 0 EOF`.
///
/// Some file systems show another device there than in `stat`; then the process must be the one that the lock file names.
fn holder(table: &str, inode: u64, device: u64, said: Option<u32>) -> Option<u32> {
    let device = format!("{:02x}:{:02x}", libc::major(device), libc::minor(device));
    table.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", "ADVISORY", "WRITE", pid, place, ..] = words[..] else { return None };
        let (on, number) = place.rsplit_once(':')?;
        let pid = pid.parse::<u32>().ok()?;
        (number.parse() == Ok(inode) && (on == device || Some(pid) == said)).then_some(pid)
    })
}

/// Says in the pool's directory where its server listens.
pub fn note_address(dir: &Path, address: &str) {
    if let Err(e) = fs::write(dir.join(ADDRESS), format!("{address}\n")) {
        log::info!("{}: not written: {e}", dir.join(ADDRESS).display());
    }
}

/// Takes the note back.
pub fn remove_address(dir: &Path) {
    let _ = fs::remove_file(dir.join(ADDRESS));
}

/// Where the server of the pool in `dir` listens, or last did.
pub fn noted_address(dir: &Path) -> Option<String> {
    let text = fs::read_to_string(dir.join(ADDRESS)).ok()?;
    let line = text.lines().next()?.trim();
    (!line.is_empty() && line.len() < 4096).then(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_found_by_inode_and_device() {
        let table = "1: POSIX  ADVISORY  WRITE 99 fe:00:77 0 EOF\n2: FLOCK  ADVISORY  WRITE 4711 fe:00:77 0 EOF\n2: -> FLOCK  ADVISORY  WRITE 5 fe:00:77 0 EOF\n";
        let device = libc::makedev(0xfe, 0);
        assert_eq!(holder(table, 77, device, None), Some(4711));
        assert_eq!(holder(table, 78, device, None), None);
        assert_eq!(holder(table, 77, libc::makedev(0, 33), None), None, "another file system's inode of the same number");
        assert_eq!(holder(table, 77, libc::makedev(0, 33), Some(4711)), Some(4711));
        assert_eq!(holder("rubbish\n\n1:", 77, device, None), None);
    }
}
