//! What a power cut may leave of `split`, `join` and `gc`, at each of their steps: the program's name leads to a whole file, or to a half
//! whose text is there.
//!
//! The steps are the system calls of a child, as strace tells them. The model is a kernel that writes nothing before it must: what was
//! written to a file, or changed in a directory, may be on the medium or not until that file or directory is synced, each apart from the
//! others, for they may lie on different file systems. (One that keeps an order by itself is kinder than this.)

mod sweep_support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sweep_support::{Place, TEXT, program};
use towa_xip::install;
use towa_xip::store::{Collect, Store};

/// In the environment of the child: what it does, and the directory in which it does it.
const CHILD: &str = "TOWA_XIP_POWER";
const CALLS: &str = "trace=openat,write,pwrite64,ftruncate,fallocate,fsync,fdatasync,syncfs,rename,renameat,renameat2,unlink,unlinkat,\
                     symlink,symlinkat,mkdir,mkdirat,rmdir";

#[test]
fn child_that_does_one_thing() {
    let Some(what) = std::env::var_os(CHILD).map(|what| what.into_string().unwrap()) else { return };
    let (what, dir) = what.split_once(' ').unwrap();
    let (store, path) = (Path::new(dir).join("store"), Path::new(dir).join("programs/sort"));
    match what {
        "split" => {
            let store = Store::open_or_create(&store).unwrap();
            install::split(&store, &path, None, TEXT).unwrap();
        }
        "join" => drop(install::join(&path, None, None).unwrap()),
        "collect" => {
            Store::open(&store).unwrap().write().unwrap().collect(Collect { force: true, dry: false }).unwrap();
        }
        // As a package manager that leaves the rest to the kernel.
        "replace-and-collect" => {
            let new = path.with_file_name("new");
            fs::copy("/usr/bin/cat", &new).unwrap();
            fs::rename(&new, &path).unwrap();
            Store::open(&store).unwrap().write().unwrap().collect(Collect { force: true, dry: false }).unwrap();
        }
        other => panic!("{other}"),
    }
}

/// A file, or a link, by the order in which they came up.
type Inode = usize;

/// What is seen, and what of it is on the medium.
#[derive(Default)]
struct Model {
    names: BTreeMap<PathBuf, Inode>,
    /// Of each name: all that the medium may have there. `None` is nothing.
    durable: BTreeMap<PathBuf, BTreeSet<Option<Inode>>>,
    /// Files with bytes that may not be on the medium.
    unsynced: BTreeSet<Inode>,
    count: Inode,
}

impl Model {
    /// Everything below `dir`, as it is on the medium.
    fn of(dir: &Path) -> Model {
        let mut model = Model::default();
        let mut folders = vec![dir.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()) {
                if entry.file_type().unwrap().is_dir() {
                    folders.push(entry.path());
                }
                let inode = model.new_inode();
                model.names.insert(entry.path(), inode);
                model.durable.insert(entry.path(), [Some(inode)].into());
            }
        }
        model
    }

    fn new_inode(&mut self) -> Inode {
        self.count += 1;
        self.count
    }

    /// A name leads to another file from now on, or to none.
    fn set(&mut self, path: &Path, inode: Option<Inode>) {
        let old = self.names.get(path).copied();
        self.durable.entry(path.to_owned()).or_insert_with(|| [old].into()).insert(inode);
        match inode {
            Some(inode) => drop(self.names.insert(path.to_owned(), inode)),
            None => drop(self.names.remove(path)),
        }
    }

    fn sync_dir(&mut self, dir: &Path) {
        for (path, may_be) in self.durable.iter_mut().filter(|(path, _)| path.parent() == Some(dir)) {
            *may_be = [self.names.get(path).copied()].into();
        }
    }

    /// One call, as strace writes it: its name, and its arguments.
    fn call(&mut self, name: &str, arguments: &str) {
        let strings: Vec<PathBuf> = arguments.split('"').skip(1).step_by(2).map(PathBuf::from).collect();
        let of_descriptor = || PathBuf::from(arguments.split(['<', '>']).nth(1).unwrap_or_default());
        match name {
            "openat" if arguments.contains("O_CREAT") && !self.names.contains_key(&strings[0]) => {
                let inode = self.new_inode();
                self.set(&strings[0], Some(inode));
            }
            "write" | "pwrite64" | "ftruncate" | "fallocate" => {
                if let Some(inode) = self.names.get(&of_descriptor()) {
                    self.unsynced.insert(*inode);
                }
            }
            "fsync" | "fdatasync" => {
                let path = of_descriptor();
                if let Some(inode) = self.names.get(&path) {
                    self.unsynced.remove(inode);
                }
                self.sync_dir(&path);
            }
            // All of one file system: the directories below the parent of this one stand for it.
            "syncfs" => {
                let path = of_descriptor();
                let is_below = |dir: &Path| dir.starts_with(&path);
                let dirs: BTreeSet<PathBuf> = self.durable.keys().filter_map(|name| name.parent()).map(Path::to_owned).collect();
                let files = self.names.iter().filter(|(name, _)| is_below(name)).map(|(_, inode)| inode);
                self.unsynced = self.unsynced.difference(&files.copied().collect()).copied().collect();
                dirs.iter().filter(|dir| is_below(dir)).for_each(|dir| self.sync_dir(dir));
            }
            "rename" | "renameat" | "renameat2" => {
                let inode = self.names[&strings[0]];
                self.set(&strings[1], Some(inode));
                self.set(&strings[0], None);
            }
            "unlink" | "unlinkat" | "rmdir" => self.set(&strings[0], None),
            "symlink" | "symlinkat" | "mkdir" | "mkdirat" => {
                let inode = self.new_inode();
                self.set(strings.last().unwrap(), Some(inode));
            }
            _ => {}
        }
    }

    /// All files that a name may lead to after a power cut.
    fn may_be(&self, path: &Path) -> BTreeSet<Option<Inode>> {
        self.durable.get(path).cloned().unwrap_or_else(|| [self.names.get(path).copied()].into())
    }

    /// Whether a name leads to a file for certain, with all that was written to it.
    fn is_there(&self, path: &Path, root: &Path) -> bool {
        let named = |path: &Path| !self.may_be(path).contains(&None);
        let whole = |inode: &Option<Inode>| inode.is_some_and(|inode| !self.unsynced.contains(&inode));
        path.ancestors().take_while(|above| *above != root).all(named) && self.may_be(path).iter().all(whole)
    }
}

/// The calls of a child that does `what`, in order, of those that succeeded; none, if strace is not here.
fn calls_of(place: &Place, what: &str) -> Option<Vec<(String, String)>> {
    let log = place.at("strace");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-y", "-s", "4096", "-e", CALLS, "-o"]).arg(&log).arg(std::env::current_exe().unwrap());
    strace.args(["--exact", "child_that_does_one_thing", "--nocapture", "--test-threads=1"]);
    strace.env(CHILD, format!("{what} {}", place.dir.path().display()));
    let done = match strace.output() {
        Err(why) => {
            eprintln!("SKIP: no strace: {why}");
            return None;
        }
        Ok(done) => done,
    };
    if String::from_utf8_lossy(&done.stderr).contains("ptrace") {
        eprintln!("SKIP: no tracing here");
        return None;
    }
    assert!(done.status.success(), "{what}: {}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    let text = fs::read_to_string(&log).unwrap();
    assert!(!text.contains("unfinished ..."), "{what}: threads that work at once are not in the model");
    let parse = |line: &str| {
        let (_, call) = line.split_once(' ')?;
        let (name, rest) = call.trim_start().split_once('(')?;
        let (arguments, result) = rest.rsplit_once(" = ")?;
        (!result.starts_with('-')).then(|| (name.to_owned(), arguments.to_owned()))
    };
    Some(text.lines().filter_map(parse).collect())
}

/// Replays what the child does, and looks after each step. Which of the files that the program's name may lead to need the text, `is_half`
/// says: of that which was there at first (`true`), and of those that came later.
fn check(place: &Place, what: &str, text: Option<PathBuf>, is_half: impl Fn(bool) -> bool) -> Option<PathBuf> {
    let root = place.dir.path();
    let path = root.join("programs/sort");
    let mut model = Model::of(root);
    let first = model.names[&path];
    let calls = calls_of(place, what)?;
    let text = text.unwrap_or_else(|| Store::open(&root.join("store")).unwrap().text_paths().unwrap().remove(0));
    let needed = [root.join("store/ld-towa-xip.so"), text.clone()];
    let (mut renamed, mut removed) = (false, false);
    for (name, arguments) in &calls {
        model.call(name, arguments);
        renamed |= name.starts_with("rename") && arguments.contains(&*path.to_string_lossy());
        removed |= name.starts_with("unlink") && arguments.contains(&*text.to_string_lossy());
        for inode in model.may_be(&path).into_iter().flatten() {
            let step = format!("{what}: after {name}({arguments}");
            if is_half(inode == first) {
                let missing: Vec<_> = needed.iter().filter(|path| !model.is_there(path, root)).collect();
                assert!(missing.is_empty(), "{step}: the half may be there without {missing:?}");
            }
            let is_ours = inode == first || what == "split" || what == "join";
            assert!(!is_ours || !model.unsynced.contains(&inode), "{step}: the program may be there without its bytes");
        }
    }
    assert!(renamed || !["split", "join"].contains(&what), "{what}: {calls:?}");
    assert!(removed || !what.ends_with("collect"), "{what}: {calls:?}");
    Some(text)
}

#[test]
fn at_each_step_a_power_cut_leaves_a_program_that_runs() {
    if std::env::var_os(CHILD).is_some() {
        return;
    }
    // The store is made, too.
    let place = Place::new();
    fs::remove_dir_all(place.store.path()).unwrap();
    let path = place.copy(&program("sort").expect("sort is everywhere"), "programs");
    let Some(text) = check(&place, "split", None, |is_first| !is_first) else { return };
    check(&place, "join", Some(text.clone()), |is_first| is_first).unwrap();
    check(&place, "collect", Some(text.clone()), |_| false).unwrap();
    assert!(!text.exists());
    for what in ["replace-and-collect", "split"] {
        fs::remove_file(&path).unwrap();
        place.copy(&program("sort").unwrap(), "programs");
        install::split(&Store::open_or_create(place.store.path()).unwrap(), &path, None, TEXT).unwrap();
        if what == "split" {
            // By a tool that was stopped after its rename: what is synced for a half that is there?
            install::join(&path, None, None).unwrap();
            check(&place, "split", Some(text.clone()), |is_first| !is_first).unwrap();
        } else {
            check(&place, what, Some(text.clone()), |is_first| is_first).unwrap();
        }
    }
}
