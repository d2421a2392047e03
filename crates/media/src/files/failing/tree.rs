//! What is seen below a directory, to be shown again later.
//!
//! What must always hold: files of one inode are one file with several names again; what is there already, and the same, stays.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::{Inode, bytes_of};

#[derive(PartialEq, Eq)]
pub(super) enum Content {
    Folder,
    File(Vec<u8>),
    Link(PathBuf),
}

pub(super) struct Node {
    pub(super) inode: Inode,
    pub(super) content: Content,
    pub(super) mode: u32,
}

/// Everything by its path below the root; folders come before what lies in them.
#[derive(Default)]
pub(super) struct Tree {
    pub(super) nodes: BTreeMap<PathBuf, Node>,
}

impl Tree {
    pub(super) fn of(root: &Path) -> Tree {
        let mut tree = Tree::default();
        let mut folders = vec![root.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).expect("a directory").map(|entry| entry.expect("a name")) {
                let (path, status) = (entry.path(), entry.metadata().expect("a status"));
                let content = if status.is_dir() {
                    folders.push(path.clone());
                    Content::Folder
                } else if status.is_symlink() {
                    Content::Link(fs::read_link(&path).expect("a link"))
                } else {
                    Content::File(File::open(&path).and_then(|file| bytes_of(&file)).expect("a file"))
                };
                let path = path.strip_prefix(root).expect("it is below").to_owned();
                tree.add(path, status.ino(), content, status.mode() & 0o7777);
            }
        }
        tree
    }

    pub(super) fn add(&mut self, path: PathBuf, inode: Inode, content: Content, mode: u32) {
        self.nodes.insert(path, Node { inode, content, mode });
    }

    /// Makes this what is seen below `root`. Gives what is another inode than it was, open.
    pub(super) fn show(&self, root: &Path) -> HashMap<Inode, (Inode, File)> {
        let there = Tree::of(root);
        let mut staying: BTreeSet<&Path> = [Path::new("")].into();
        for (path, node) in &self.nodes {
            let is_there = there.nodes.get(path).is_some_and(|other| other.inode == node.inode && other.content == node.content);
            // A file goes with its folder.
            if is_there && path.parent().is_some_and(|above| staying.contains(above)) {
                staying.insert(path);
            }
        }
        for (path, node) in there.nodes.iter().rev() {
            if !staying.contains(&**path) {
                let path = root.join(path);
                let removed = if node.content == Content::Folder { fs::remove_dir_all(path) } else { fs::remove_file(path) };
                removed.expect("it can be removed");
            }
        }
        let (mut made, mut moved): (HashMap<Inode, PathBuf>, HashMap<Inode, (Inode, File)>) = Default::default();
        let (stays, is_new): (Vec<_>, Vec<_>) = self.nodes.iter().partition(|(path, _)| staying.contains(&***path));
        made.extend(stays.into_iter().map(|(path, node)| (node.inode, root.join(path))));
        for (path, node) in is_new {
            let path = root.join(path);
            match (&node.content, made.get(&node.inode)) {
                (Content::File(_), Some(other)) => fs::hard_link(other, &path).expect("a second name"),
                (Content::File(bytes), None) => {
                    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
                    file.and_then(|mut file| file.write_all(bytes)).expect("a file");
                    fs::set_permissions(&path, fs::Permissions::from_mode(node.mode)).expect("permissions");
                }
                (Content::Folder, _) => {
                    fs::create_dir(&path).expect("a directory");
                    fs::set_permissions(&path, fs::Permissions::from_mode(node.mode)).expect("permissions");
                }
                (Content::Link(target), _) => symlink(target, &path).expect("a link"),
            }
            made.entry(node.inode).or_insert_with(|| path.clone());
            let inode = fs::symlink_metadata(&path).expect("it was just made").ino();
            if inode != node.inode && !matches!(node.content, Content::Link(_)) {
                moved.insert(node.inode, (inode, File::open(&path).expect("it was just made")));
            }
        }
        moved
    }
}
