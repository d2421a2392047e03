//! A simulated device under plain files: syncs fail, processes are killed, the power is cut.
//!
//! ```text
//!   what is seen   the real files and directories below the root (page cache)     reads and writes go there, as always
//!   what is kept   of each inode the bytes, of each directory the names           moves at a sync, by accident at a failed one
//!   power cut      what is kept, and any part of what was changed since           becomes what is seen
//! ```
//!
//! What a failed sync of a file leaves is what Linux leaves: any of its pages may be on the device. The others are *lost*: they are
//! shown until memory is short, and no later sync writes them, unless they are written again. A failed sync of a directory either did
//! nothing, so that a later one makes up for it; or the journal ends, and takes no change until the next mount.
//!
//! What must always hold: a sync that returns an error promises nothing; one that returns none has kept all that is seen of what it
//! was asked for, but for lost pages. An inode of a table is held open, so that its number goes to no other file.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::panic::Location;
use std::path::{Path, PathBuf};

use rand::prelude::*;

mod names;
mod tree;

use names::Names;
use tree::{Content, Tree};

const PAGE: usize = 4096;
/// Written whole or not at all.
const SECTOR: usize = 512;

/// What is longer is a sparse file that no copy is held of: its syncs may fail, and a power cut is not for it.
const LARGE: u64 = 1 << 32;

type Inode = u64;

/// What of a file is on the device.
struct Kept {
    held: File,
    bytes: Vec<u8>,
    /// Pages that a failed sync took for written, and did not write; as they were then.
    lost: BTreeMap<usize, Vec<u8>>,
}

/// What is asked to be made durable.
pub(super) enum What<'a> {
    File(&'a File),
    Names(&'a Path),
    NamesAndAbove(&'a Path),
    Everything(&'a File),
}

struct Device {
    root: PathBuf,
    rng: SmallRng,
    files: HashMap<Inode, Kept>,
    dirs: HashMap<Inode, Names>,
    /// Syncs since the last plan.
    count: u64,
    fails_at: Option<u64>,
    killed_at: Option<u64>,
    /// What was seen at the moment at which the process was killed. What it cleans up afterwards it does not do.
    killed: Option<Tree>,
    /// The journal has ended.
    ended: bool,
    failures: u64,
    left_out: Option<String>,
    /// A sync was left out, and the process is killed soon for that.
    hurries: bool,
    sites: BTreeSet<String>,
}

thread_local! {
    static DEVICE: RefCell<Option<Device>> = const { RefCell::new(None) };
}

/// The answer of the device of this thread, if there is one and the file lies on it.
#[track_caller]
pub(super) fn answer(what: &What<'_>) -> Option<io::Result<()>> {
    let caller = Location::caller();
    DEVICE.with_borrow_mut(|device| {
        let device = device.as_mut()?;
        let path = match what {
            What::Names(path) | What::NamesAndAbove(path) => fs::canonicalize(path).ok()?,
            What::File(file) | What::Everything(file) => fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?,
        };
        path.starts_with(&device.root).then(|| device.sync(what, &path, caller))
    })
}

/// The device of this thread; it goes with this.
#[derive(Debug)]
pub struct Handle(());

impl Drop for Handle {
    fn drop(&mut self) {
        DEVICE.set(None);
    }
}

/// Makes what lies below `root` lie on a device that fails, for this thread. All that is there is durable.
///
/// # Panics
/// If `root` cannot be read.
pub fn install(root: &Path, seed: u64) -> Handle {
    let root = fs::canonicalize(root).expect("a directory");
    let mut device = Device {
        root,
        rng: SmallRng::seed_from_u64(seed),
        files: HashMap::new(),
        dirs: HashMap::new(),
        count: 0,
        fails_at: None,
        killed_at: None,
        killed: None,
        ended: false,
        failures: 0,
        left_out: None,
        hurries: false,
        sites: BTreeSet::new(),
    };
    device.keep_what_is_seen();
    DEVICE.set(Some(device));
    Handle(())
}

impl Handle {
    fn with<T>(&self, of: impl FnOnce(&mut Device) -> T) -> T {
        DEVICE.with_borrow_mut(|device| of(device.as_mut().expect("it is installed")))
    }

    /// Of the syncs that come, one fails and at another one the process is killed; counted from 1.
    pub fn plan(&self, fails_at: Option<u64>, killed_at: Option<u64>) {
        self.with(|device| (device.count, device.fails_at, device.killed_at) = (0, fails_at, killed_at));
    }

    /// Syncs of this place return at once, and do nothing. Gives which one was left out until now.
    pub fn leave_out(&self, site: Option<String>) -> Option<String> {
        self.with(|device| std::mem::replace(&mut device.left_out, site))
    }

    /// Whether the power should be cut before anything else is done: a sync was left out just before the process was killed.
    pub fn hurries(&self) -> bool {
        self.with(|device| device.hurries)
    }

    /// All places that have synced something: `file:line what`.
    pub fn sites(&self) -> BTreeSet<String> {
        self.with(|device| device.sites.clone())
    }

    /// Whether the process was killed: what it does from then on counts for nothing.
    pub fn is_killed(&self) -> bool {
        self.with(|device| device.killed.is_some())
    }

    /// Whether nothing can be made durable before the next [`cut`](Self::cut).
    pub fn has_ended(&self) -> bool {
        self.with(|device| device.ended)
    }

    /// Syncs that have failed.
    pub fn failures(&self) -> u64 {
        self.with(|device| device.failures)
    }

    /// Another process begins: it sees what the last one left, if that was killed, at that moment.
    pub fn restart(&self) {
        self.with(|device| {
            if let Some(seen) = device.killed.take() {
                let moved = seen.show(&device.root);
                device.rename_inodes(&moved);
            }
            device.evict();
        });
        self.plan(None, None);
    }

    /// The power is cut, and comes back.
    pub fn cut(&self) {
        self.restart();
        self.with(|device| {
            let left = device.after_a_cut();
            left.show(&device.root);
            (device.ended, device.hurries) = (false, false);
            device.keep_what_is_seen();
        });
    }
}

impl Device {
    fn sync(&mut self, what: &What<'_>, path: &Path, caller: &Location<'_>) -> io::Result<()> {
        let site = site_of(path, caller);
        let left_out = self.left_out.as_ref() == Some(&site);
        self.sites.insert(site);
        if self.killed.is_some() {
            return Err(io::Error::other("the process was killed"));
        }
        if left_out {
            // What it would have been good for shows if little comes after it.
            if !self.hurries && self.rng.random_bool(0.5) {
                self.hurries = true;
                self.killed_at = Some(self.count + self.rng.random_range(1..4));
            }
            return Ok(());
        }
        self.count += 1;
        // What comes to pass between two syncs may be several changes: two names that are made and exchanged are to be seen in between.
        let root = self.root.clone();
        for above in path.ancestors().skip(1).take_while(|above| above.starts_with(&root)) {
            self.look_at(&File::open(above)?)?;
        }
        let fails = self.fails_at == Some(self.count);
        let (dies, first) = (self.killed_at == Some(self.count), self.rng.random());
        if self.ended {
            if dies {
                self.kill();
            }
            return Err(io::Error::from_raw_os_error(libc::EROFS));
        }
        if !dies || fails || first {
            self.reach(what, path, fails)?;
        }
        if dies {
            self.kill();
        }
        if fails {
            self.failures += 1;
            self.evict();
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        if dies { Err(io::Error::other("the process was killed")) } else { Ok(()) }
    }

    fn kill(&mut self) {
        self.look_at_everything();
        self.killed = Some(Tree::of(&self.root));
    }

    /// The device does it, or a part of it.
    fn reach(&mut self, what: &What<'_>, path: &Path, fails: bool) -> io::Result<()> {
        match what {
            What::File(file) if !file.metadata()?.is_dir() => self.sync_file(file, fails),
            What::File(_) | What::Names(_) => self.sync_names(&File::open(path)?, fails),
            What::NamesAndAbove(_) => {
                let above = path.ancestors().take_while(|above| above.starts_with(&self.root));
                let above: Vec<PathBuf> = above.map(Path::to_owned).collect();
                above.iter().try_for_each(|dir| self.sync_names(&File::open(dir)?, fails))
            }
            What::Everything(_) => {
                let Tree { nodes, .. } = Tree::of(&self.root);
                for (path, node) in nodes {
                    let path = self.root.join(path);
                    match node.content {
                        Content::Folder => self.sync_names(&File::open(path)?, fails)?,
                        Content::File(_) => self.sync_file(&File::open(path)?, fails)?,
                        Content::Link(_) => {}
                    }
                }
                self.sync_names(&File::open(self.root.clone())?, fails)
            }
        }
    }

    fn file(&mut self, file: &File) -> io::Result<&mut Kept> {
        let held = || Ok::<_, io::Error>(Kept { held: reopened(file)?, bytes: Vec::new(), lost: BTreeMap::new() });
        Ok(match self.files.entry(file.metadata()?.ino()) {
            std::collections::hash_map::Entry::Occupied(there) => there.into_mut(),
            std::collections::hash_map::Entry::Vacant(none) => none.insert(held()?),
        })
    }

    fn sync_file(&mut self, file: &File, fails: bool) -> io::Result<()> {
        let mut rng = SmallRng::from_rng(&mut self.rng);
        let kept = self.file(file)?;
        let seen = bytes_of(&kept.held)?;
        if !fails || rng.random() {
            kept.bytes.resize(seen.len(), 0);
        }
        for (n, page) in seen.chunks(PAGE).enumerate() {
            let at = n * PAGE;
            let Some(end) = kept.bytes.len().checked_sub(at).map(|left| at + left.min(page.len())) else { break };
            let is_dirty = kept.lost.get(&n).is_none_or(|lost| lost != page);
            if is_dirty && fails && kept.bytes[at..end] != page[..end - at] && rng.random() {
                kept.lost.insert(n, page.to_owned());
            } else if is_dirty {
                kept.lost.remove(&n);
                kept.bytes[at..end].copy_from_slice(&page[..end - at]);
            }
        }
        Ok(())
    }

    fn sync_names(&mut self, dir: &File, fails: bool) -> io::Result<()> {
        let mut rng = SmallRng::from_rng(&mut self.rng);
        let names = self.look_at(dir)?;
        if !fails {
            names.keep_all();
        } else if rng.random() {
            self.ended = true;
            // Those of the other directories that the journal still took are any, too.
            self.dirs.values_mut().for_each(|names| names.keep_some(&mut rng));
        }
        Ok(())
    }

    /// The names of a directory as they are seen now, and the files that they lead to held.
    fn look_at(&mut self, dir: &File) -> io::Result<&mut Names> {
        let inode = dir.metadata()?.ino();
        let mut names = match self.dirs.remove(&inode) {
            Some(names) => names,
            None => Names::of(reopened(dir)?),
        };
        for (path, status) in names.look()? {
            if status.is_file() && !self.files.contains_key(&status.ino()) {
                self.file(&File::open(path)?)?;
            } else if status.is_dir() && !self.dirs.contains_key(&status.ino()) {
                let folder = File::open(path)?;
                self.dirs.insert(status.ino(), Names::of(folder));
            }
        }
        Ok(self.dirs.entry(inode).or_insert(names))
    }

    /// Memory is short: some lost pages are no longer in the cache.
    fn evict(&mut self) {
        for kept in self.files.values_mut().filter(|kept| !kept.lost.is_empty()) {
            // The file may be one that this user does not write to.
            let Ok(file) = File::options().write(true).open(fd_path(&kept.held)) else { continue };
            let Ok(seen) = bytes_of(&kept.held) else { continue };
            for (n, lost) in std::mem::take(&mut kept.lost) {
                let at = n * PAGE;
                let is_as_it_was = seen.get(at..at + lost.len()) == Some(&lost[..]);
                if !is_as_it_was || self.rng.random() {
                    kept.lost.insert(n, lost);
                    continue;
                }
                let mut old = kept.bytes.get(at..).unwrap_or(&[]).to_vec();
                old.resize(lost.len(), 0);
                file.write_all_at(&old, at as u64).expect("a page of the simulated device");
            }
        }
    }

    /// What is seen after the power was cut.
    fn after_a_cut(&mut self) -> Tree {
        self.look_at_everything();
        let (mut tree, mut rng) = (Tree::default(), SmallRng::from_rng(&mut self.rng));
        let root = fs::metadata(&self.root).expect("the root").ino();
        let mut bytes: HashMap<Inode, Vec<u8>> = HashMap::new();
        let mut folders = vec![(PathBuf::new(), root)];
        while let Some((path, inode)) = folders.pop() {
            let Some(names) = self.dirs.get_mut(&inode) else { continue };
            if !self.ended {
                names.keep_some(&mut rng);
            }
            let entries: Vec<_> = names.kept().map(|(name, inode)| (path.join(name), *inode, names.link(*inode))).collect();
            for (path, inode, link) in entries {
                if let Some(kept) = self.files.get(&inode) {
                    let content = bytes.entry(inode).or_insert_with(|| left_of(kept, &mut rng)).clone();
                    let mode = kept.held.metadata().expect("an open file").mode() & 0o7777;
                    tree.add(path, inode, Content::File(content), mode);
                } else if let Some(names) = self.dirs.get(&inode) {
                    tree.add(path.clone(), inode, Content::Folder, names.mode());
                    folders.push((path, inode));
                } else if let Some(target) = link {
                    tree.add(path, inode, Content::Link(target), 0);
                }
            }
        }
        tree
    }

    fn look_at_everything(&mut self) {
        let mut looked = BTreeSet::new();
        let mut folders = vec![self.root.clone()];
        while let Some(folder) = folders.pop() {
            let dir = File::open(&folder).expect("a directory");
            looked.insert(dir.metadata().expect("an open directory").ino());
            self.look_at(&dir).expect("a directory");
            let entries = fs::read_dir(&folder).expect("a directory").map(|entry| entry.expect("a name"));
            folders.extend(entries.filter(|entry| entry.file_type().expect("a kind").is_dir()).map(|entry| entry.path()));
        }
        // What was removed, and may come back.
        for (_, names) in self.dirs.iter_mut().filter(|(inode, _)| !looked.contains(inode)) {
            names.is_removed();
        }
    }

    /// All that is seen is on the device, as after a mount.
    fn keep_what_is_seen(&mut self) {
        self.files.clear();
        self.dirs.clear();
        self.look_at_everything();
        self.dirs.values_mut().for_each(Names::keep_all);
        for kept in self.files.values_mut() {
            kept.bytes = bytes_of(&kept.held).expect("a file");
        }
    }

    /// The same files have other inodes now.
    fn rename_inodes(&mut self, moved: &HashMap<Inode, (Inode, File)>) {
        for (old, (new, held)) in moved {
            let held = held.try_clone().expect("a descriptor");
            if let Some(kept) = self.files.remove(old) {
                self.files.insert(*new, Kept { held, ..kept });
            } else if let Some(names) = self.dirs.remove(old) {
                self.dirs.insert(*new, names.of_folder(held));
            }
        }
        self.dirs.values_mut().for_each(|names| names.rename_inodes(moved));
    }
}

/// What a power cut leaves of a file: of what was not synced, any sectors.
fn left_of(kept: &Kept, rng: &mut SmallRng) -> Vec<u8> {
    let seen = bytes_of(&kept.held).expect("an open file");
    let mut left = kept.bytes.clone();
    if rng.random() {
        left.resize(seen.len(), 0);
    }
    for (n, sector) in seen.chunks(SECTOR).enumerate() {
        let at = n * SECTOR;
        let page = kept.lost.get(&(at / PAGE));
        let is_lost = page.is_some_and(|page| page.get(at % PAGE..at % PAGE + sector.len()) == Some(sector));
        if at + sector.len() <= left.len() && !is_lost && rng.random() {
            left[at..at + sector.len()].copy_from_slice(sector);
        }
    }
    left
}

/// `file:line`, and what kind of file it is: its name, without what is another one each time.
fn site_of(path: &Path, caller: &Location<'_>) -> String {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let is_number = !name.is_empty() && name.chars().all(|c| c.is_ascii_hexdigit());
    let kind = if is_number { "N" } else { name.split(['-', ' ']).next().unwrap_or_default() };
    let kind = kind.trim_start_matches(|c: char| c.is_ascii_digit());
    let file = Path::new(caller.file()).file_name().unwrap_or_default().to_string_lossy();
    format!("{file}:{} {kind}", caller.line())
}

fn fd_path(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Another descriptor of the same file, to read.
fn reopened(file: &File) -> io::Result<File> {
    File::open(fd_path(file))
}

fn bytes_of(file: &File) -> io::Result<Vec<u8>> {
    let len = file.metadata()?.len();
    let mut bytes = vec![0; if len > LARGE { 0 } else { len as usize }];
    let mut at = 0;
    while at < bytes.len() {
        match file.read_at(&mut bytes[at..], at as u64)? {
            0 => break,
            n => at += n,
        }
    }
    bytes.truncate(at);
    Ok(bytes)
}
