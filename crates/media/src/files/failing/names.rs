//! The names in one directory: which are seen, and which are on the device.
//!
//! What must always hold: a rename is one change, which is on the device or not; so is an exchange. Two changes are apart from each
//! other, whatever their order was.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rand::prelude::*;

use super::{Inode, fd_path};

enum Change {
    /// Of this file: another one that had the name before is not meant.
    Rename(String, String, Inode),
    Exchange([(String, Inode); 2]),
    Set(String, Inode),
    Remove(String),
}

pub(super) struct Names {
    held: File,
    seen: BTreeMap<String, Inode>,
    kept: BTreeMap<String, Inode>,
    /// Since the last sync.
    changes: Vec<Change>,
    /// Where symbolic links lead to. Such a file is never changed.
    links: HashMap<Inode, PathBuf>,
}

impl Names {
    /// Of a directory that is new: none is on the device.
    pub(super) fn of(held: File) -> Names {
        Names { held, seen: BTreeMap::new(), kept: BTreeMap::new(), changes: Vec::new(), links: HashMap::new() }
    }

    pub(super) fn of_folder(self, held: File) -> Names {
        Names { held, ..self }
    }

    pub(super) fn mode(&self) -> u32 {
        self.held.metadata().expect("an open directory").mode() & 0o7777
    }

    pub(super) fn kept(&self) -> impl Iterator<Item = (&String, &Inode)> {
        self.kept.iter()
    }

    pub(super) fn link(&self, inode: Inode) -> Option<PathBuf> {
        self.links.get(&inode).cloned()
    }

    /// Finds what has changed; gives the files whose names are new here.
    pub(super) fn look(&mut self) -> io::Result<Vec<(PathBuf, Metadata)>> {
        let (mut now, mut found) = (BTreeMap::new(), Vec::new());
        for entry in fs::read_dir(fd_path(&self.held))? {
            let entry = entry?;
            let status = entry.metadata()?;
            let name = entry.file_name().into_string().map_err(|_| io::Error::other("a name that is no text"))?;
            now.insert(name, status.ino());
            if status.is_symlink() {
                self.links.insert(status.ino(), fs::read_link(entry.path())?);
            } else {
                found.push((entry.path(), status));
            }
        }
        self.change_to(now);
        Ok(found)
    }

    /// It was removed, and all names in it.
    pub(super) fn is_removed(&mut self) {
        self.change_to(BTreeMap::new());
    }

    fn change_to(&mut self, now: BTreeMap<String, Inode>) {
        let mut gone: Vec<&String> = self.seen.keys().filter(|name| !now.contains_key(*name)).collect();
        for (name, inode) in now.iter().filter(|(name, inode)| self.seen.get(*name) != Some(*inode)) {
            let from = self.seen.iter().find(|(from, there)| *there == inode && now.get(*from) != Some(inode));
            let change = match from.map(|(from, _)| from) {
                Some(from) if self.seen.contains_key(name) && now.get(from) == self.seen.get(name) => {
                    let mut pair = [from, name].map(|name| (name.clone(), self.seen[name]));
                    pair.sort();
                    Change::Exchange(pair)
                }
                Some(from) => {
                    gone.retain(|other| *other != from);
                    Change::Rename(from.clone(), name.clone(), *inode)
                }
                None => Change::Set(name.clone(), *inode),
            };
            let is_told = |other: &Change| matches!((other, &change), (Change::Exchange(a), Change::Exchange(b)) if a == b);
            // Each of the two names of an exchange shows it.
            if !self.changes.last().is_some_and(is_told) {
                self.changes.push(change);
            }
        }
        self.changes.extend(gone.into_iter().map(|name| Change::Remove(name.clone())));
        self.seen = now;
    }

    pub(super) fn keep_all(&mut self) {
        self.kept = self.seen.clone();
        self.changes.clear();
    }

    /// The device comes to hold any of the changes.
    pub(super) fn keep_some(&mut self, rng: &mut SmallRng) {
        for change in self.changes.drain(..).filter(|_| rng.random()) {
            let kept = &mut self.kept;
            match change {
                Change::Rename(from, to, inode) => {
                    kept.retain(|name, there| *name != from || *there != inode);
                    kept.insert(to, inode);
                }
                Change::Exchange([(one, a), (other, b)]) => {
                    if (kept.get(&one), kept.get(&other)) == (Some(&a), Some(&b)) {
                        kept.extend([(one, b), (other, a)]);
                    }
                }
                Change::Set(name, inode) => drop(kept.insert(name, inode)),
                Change::Remove(name) => drop(kept.remove(&name)),
            }
        }
    }

    pub(super) fn rename_inodes(&mut self, moved: &HashMap<Inode, (Inode, File)>) {
        let new = |inode: &mut Inode| {
            if let Some((new, _)) = moved.get(inode) {
                *inode = *new;
            }
        };
        self.seen.values_mut().chain(self.kept.values_mut()).for_each(new);
        for change in &mut self.changes {
            match change {
                Change::Set(_, inode) | Change::Rename(_, _, inode) => new(inode),
                Change::Exchange(pair) => pair.iter_mut().for_each(|(_, inode)| new(inode)),
                Change::Remove(_) => {}
            }
        }
        for (inode, target) in std::mem::take(&mut self.links) {
            self.links.insert(moved.get(&inode).map_or(inode, |(new, _)| *new), target);
        }
    }
}
