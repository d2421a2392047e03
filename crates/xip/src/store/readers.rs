//! Who can read a text.
//!
//! What must hold: a text belongs to the owner of its store, whatever user owns the program: an owner can change permissions, and so content.
//! All who may run the program can read its text; where not every user may, no other can: a group gets a text by the file's group,
//! several groups and users by an access list (ACL).

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};

use super::safety;
use crate::elf::Reason;
use crate::error::{Error, Result};

const ACL: &str = "system.posix_acl_access";
const ACL_VERSION: u32 = 2;
/// Tags of the entries of a list, in the order that the kernel wants.
const USER_OBJ: u16 = 1;
const USER: u16 = 2;
const GROUP_OBJ: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHER: u16 = 32;
const READ: u16 = 4;
const NO_ID: u32 = u32::MAX;

/// Who must be able to read a text, or can.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Readers {
    /// Everybody can.
    all: bool,
    /// These users.
    users: BTreeSet<u32>,
    /// These groups.
    groups: BTreeSet<u32>,
}

impl Readers {
    /// Who can run a program with `metadata`, and so must be able to read its text.
    ///
    /// # Errors
    /// It may be run by some who may not read it, or by some whom only a list names.
    pub fn of_program(path: &Path, file: &File, metadata: &fs::Metadata) -> Result<Readers> {
        let mode = metadata.permissions().mode();
        let run = (mode & 0o111) << 2;
        let unfit = |why: &str| Err(Error::Unfit { path: path.to_owned(), why: why.into() });
        if run & !mode & 0o044 != 0 {
            return unfit("some may run it and not read it, but its text has to be read by who runs it; chmod +r");
        }
        if mode & 0o004 != 0 {
            return Ok(Readers { all: true, ..Readers::default() });
        }
        if fgetxattr(file, ACL, &mut [0u8; 4096]).is_ok() {
            return unfit("an access list (ACL) says who may run it; setfacl -b, or chmod o+r");
        }
        let groups = if mode & 0o040 != 0 { [metadata.gid()].into() } else { BTreeSet::new() };
        Ok(Readers { all: false, users: [metadata.uid()].into(), groups })
    }

    /// Who can read the text `file`.
    pub fn of_text(file: &File, metadata: &fs::Metadata) -> Readers {
        let mode = metadata.mode();
        let mut readers = Readers { all: mode & 0o004 != 0, users: [metadata.uid()].into(), groups: BTreeSet::new() };
        let mut list = [0u8; 4096];
        match fgetxattr(file, ACL, &mut list) {
            Ok(len) => readers.add_list(&list[..len], metadata.gid(), u32::from(READ) & (mode >> 3) != 0),
            Err(_) if mode & 0o040 != 0 => drop(readers.groups.insert(metadata.gid())),
            Err(_) => {}
        }
        readers
    }

    fn add_list(&mut self, list: &[u8], own_group: u32, mask_reads: bool) {
        for entry in list.get(4..).unwrap_or_default().chunks_exact(8).filter(|_| mask_reads) {
            let tag = u16::from_le_bytes([entry[0], entry[1]]);
            let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
            match tag {
                _ if u16::from_le_bytes([entry[2], entry[3]]) & READ == 0 => {}
                USER => drop(self.users.insert(id)),
                GROUP => drop(self.groups.insert(id)),
                GROUP_OBJ => drop(self.groups.insert(own_group)),
                _ => {}
            }
        }
    }

    /// Both these and those.
    pub fn and(mut self, others: &Readers) -> Readers {
        self.all |= others.all;
        self.users.extend(&others.users);
        self.groups.extend(&others.groups);
        if self.all { Readers { all: true, ..Readers::default() } } else { self }
    }

    /// Whether all of `others` are among these. Root can read everything.
    pub fn include(&self, others: &Readers) -> bool {
        let users = others.users.iter().all(|user| *user == 0 || self.users.contains(user));
        self.all || !others.all && users && others.groups.is_subset(&self.groups)
    }

    /// Why not all of these get to a text in the directory `store`, though they may run the program in `folder`, and get to that.
    pub fn check_reach(&self, folder: &Path, store: &Path) -> std::result::Result<(), Reason> {
        let is_other = |id: &u32| ![0, safety::me()].contains(id);
        let others = self.users.iter().any(is_other);
        let groups = self.groups.iter().any(|group| *group != 0);
        if !(others || (self.all || groups) && safety::others_reach(folder)) || safety::others_reach(store) {
            return Ok(());
        }
        Err("others may run it, but would not get to the store: chmod o+x the store's directories, or take another place".into())
    }

    /// Lets exactly these read the file, which is to become the text `path`, and belongs to this user; gives its permission bits.
    ///
    /// # Errors
    /// Its file system has no access lists, or this user may not give it to that group.
    pub fn grant(&self, file: &File, path: &Path) -> Result<u32> {
        let owner = file.metadata().map_err(Error::io(path, "looking at"))?.uid();
        let users: Vec<u32> = self.users.iter().copied().filter(|user| ![0, owner, safety::me()].contains(user)).collect();
        let groups: Vec<u32> = self.groups.iter().copied().collect();
        match (self.all, &users[..], &groups[..]) {
            (true, ..) => return Ok(0o444),
            (_, [], []) => return Ok(0o400),
            // A user may give a file to groups of its own only; a list may name any.
            (_, [], [group]) if std::os::unix::fs::fchown(file, None, Some(*group)).is_ok() => return Ok(0o440),
            _ => {}
        }
        let list = list_of(&users, &groups);
        fsetxattr(file, ACL, &list, XattrFlags::empty()).map(|()| 0o440).map_err(|e| {
            let what = format!(
                "some of those who may run the program (users {users:?}, groups {groups:?}) could not read its text there, for it belongs to \
                 the owner of the store, and an access list (ACL) cannot be set ({e}); chmod go+rx the program, or split it as its owner into \
                 a store of that user"
            );
            Error::Unsupported { what: format!("{}: {what}", path.display()) }
        })
    }
}

fn list_of(users: &[u32], groups: &[u32]) -> Vec<u8> {
    let named = |tag: u16, ids: &[u32]| ids.iter().map(|id| (tag, READ, *id)).collect::<Vec<_>>();
    let entries = [
        vec![(USER_OBJ, READ, NO_ID)],
        named(USER, users),
        vec![(GROUP_OBJ, 0, NO_ID)],
        named(GROUP, groups),
        vec![(MASK, READ, NO_ID), (OTHER, 0, NO_ID)],
    ];
    let mut list = ACL_VERSION.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries.concat() {
        list.extend(tag.to_le_bytes());
        list.extend(permissions.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_granted_is_what_can_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("text");
        let file = File::create(&path).unwrap();
        let of = |users: &[u32], groups: &[u32]| Readers {
            all: false,
            users: users.iter().copied().collect(),
            groups: groups.iter().copied().collect(),
        };
        let wanted = of(&[safety::me(), 4711, 4712], &[4711]);
        let mode = match wanted.grant(&file, &path) {
            Ok(mode) => mode,
            Err(why) => return eprintln!("SKIP: no access lists here: {why}"),
        };
        file.set_permissions(fs::Permissions::from_mode(mode)).unwrap();
        let granted = Readers::of_text(&file, &file.metadata().unwrap());
        assert_eq!(granted, wanted);
        assert!(
            granted.include(&of(&[0, 4711], &[])) && !granted.include(&of(&[4713], &[])) && !granted.include(&of(&[], &[4712]))
        );
        let all = Readers { all: true, ..Readers::default() };
        assert!(all.include(&wanted) && !granted.include(&all) && granted.clone().and(&all) == all);
        assert!(granted.clone().and(&of(&[4713], &[])).include(&of(&[4713, 4712], &[4711])));
    }
}
