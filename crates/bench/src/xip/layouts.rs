//! The ways in which a program and its libraries are laid out on storage and on NVM, and how it is started from each.
//!
//! ```text
//!   ground/cc1/lib/            copies of its libraries: whole, and the same files in all layouts but `whole`
//!   ground/cc1/block/bin/cc1   a copy
//!   ground/cc1/off2f/bin/cc1   ABC; its text and that of the libraries in nvm/cc1-off2f
//!   nvm/cc1-whole/             bin/cc1 and lib/, all there
//! ```
//!
//! What must hold: all are started with the same arguments, environment and library path, but for its place. Without a DAX mount, memory
//! (tmpfs) stands for NVM, and layouts are named so. ld.so is the machine's own, whole and warm, in all of them; OFF2F with libraries maps its text
//! from the store as well.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use towa_xip::Error;
use towa_xip::install::{self, Done, How};
use towa_xip::split::Options;
use towa_xip::store::Store;

use super::programs::Program;
use crate::files::allocated;

/// A way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layout {
    /// Whole, on a block device.
    Block,
    /// The same, and read into memory before it is started.
    BlockRa,
    /// Whole, on NVM.
    Whole,
    /// Text on NVM, that of the libraries too.
    Off2f,
    /// Only the program's own text.
    Off2fMain,
    /// Read-only data, too.
    Off2fRodata,
    /// As `Off2f`, aligned for huge pages.
    Off2fHuge,
}

impl Layout {
    /// All that can be measured; huge pages need DAX.
    pub fn all(dax: bool) -> Vec<Layout> {
        use Layout::*;
        let mut all = vec![Block, BlockRa, Whole, Off2f, Off2fMain, Off2fRodata];
        all.extend(dax.then_some(Off2fHuge));
        all
    }

    /// Its name in reports.
    pub fn name(self, dax: bool) -> &'static str {
        match self {
            Layout::Block => "block",
            Layout::BlockRa => "block_ra",
            Layout::Whole if dax => "dax_whole",
            Layout::Whole => "tmpfs_whole",
            Layout::Off2f => "off2f",
            Layout::Off2fMain => "off2f_main",
            Layout::Off2fRodata => "off2f_rodata",
            Layout::Off2fHuge => "off2f_huge",
        }
    }

    fn how(self) -> Option<How> {
        let split = match self {
            Layout::Block | Layout::BlockRa | Layout::Whole => return None,
            Layout::Off2f => Options { libs: true, ..Options::default() },
            Layout::Off2fMain => Options::default(),
            Layout::Off2fRodata => Options { libs: true, with_rodata: true, ..Options::default() },
            Layout::Off2fHuge => Options { libs: true, huge: true, ..Options::default() },
        };
        Some(How { split, sealed: false })
    }
}

/// A program in one layout.
#[derive(Clone, Debug)]
pub struct Laid {
    /// Which.
    pub layout: Layout,
    /// What is started.
    pub program: PathBuf,
    /// The program and its libraries, as far as they are on the block device.
    pub on_block: Vec<PathBuf>,
    /// Bytes that it takes on NVM.
    pub nvm_bytes: u64,
    /// Whether the program itself is in two files.
    pub is_split: bool,
    /// What could not be split, and why.
    pub notes: Vec<String>,
    libraries: PathBuf,
    env: Vec<(&'static str, OsString)>,
}

impl Laid {
    /// Starts it with `args`.
    pub fn command(&self, args: &[OsString]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).env_clear().env("PATH", "/usr/bin:/bin").env("LC_ALL", "C");
        command.env("LD_LIBRARY_PATH", &self.libraries).envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// Lays `program` out on `ground`, and on `nvm`, in all of `layouts` that it can have; what it cannot is in the notes of the first.
pub fn lay_out(program: &Program, ground: &Path, nvm: &Path, layouts: &[Layout]) -> Result<Vec<Laid>> {
    let home = ground.join(program.name);
    let block = home.join("block/bin").join(program.name);
    place(&program.path, &block)?;
    let libraries = put_libraries(program, &home)?;
    beside(&block, &home.join("lib"))?;
    let on_block: Vec<_> = [block].into_iter().chain(libraries).collect();
    let (mut all, mut notes) = (Vec::new(), Vec::new());
    for layout in layouts {
        let laid = Laid {
            layout: *layout,
            program: on_block[0].clone(),
            on_block: on_block.clone(),
            nvm_bytes: 0,
            is_split: false,
            notes: Vec::new(),
            libraries: home.join("lib"),
            env: program.env.iter().map(|(name, value)| (*name, value.into())).collect(),
        };
        let laid = match layout.how() {
            Some(how) => split(laid, program, &home, nvm, how),
            None if *layout == Layout::Whole => whole(laid, program, nvm),
            None => Ok(laid),
        };
        match laid {
            Ok(laid) => all.push(laid),
            Err(error) => match error.downcast() {
                Ok(Error::Unfit { why, .. }) => notes.push(format!("{} in {}: {why}", program.name, layout.name(false))),
                Ok(other) => return Err(other.into()),
                Err(other) => return Err(other),
            },
        }
    }
    all[0].notes.extend(notes);
    Ok(all)
}

/// In two files. A program without text to split still gets its libraries' text from the store, by LD_AUDIT.
fn split(mut laid: Laid, program: &Program, home: &Path, nvm: &Path, how: How) -> Result<Laid> {
    let name = laid.layout.name(false);
    let store = Store::open_or_create(&nvm.join(format!("{}-{name}", program.name)))?;
    if how.split.libs {
        for library in program.interpreter.iter().chain(&laid.on_block[1..]) {
            laid.notes.extend(split_file(&store, library, None, how).err().map(|e| format!("{} in {name}: {e}", program.name)));
        }
    }
    let half = home.join(name).join("bin").join(program.name);
    fs::create_dir_all(half.parent().context("no directory")?)?;
    match split_file(&store, &laid.program, Some(&half), how) {
        Err(Error::Unfit { why, .. }) if how.split.libs => {
            laid.notes.push(format!("{} in {name}: only the text of its libraries, by LD_AUDIT; of itself, {why}", program.name));
            laid.env.push(("LD_AUDIT", store.audit_path().into()));
        }
        done => {
            laid.notes.extend(done?.notes.into_iter().map(|note| format!("{} in {name}: {note}", program.name)));
            beside(&half, &home.join("lib"))?;
            (laid.program, laid.on_block[0], laid.is_split) = (half.clone(), half, true);
        }
    }
    laid.nvm_bytes = allocated(&store.path().join("xyz"))?;
    Ok(laid)
}

fn whole(mut laid: Laid, program: &Program, nvm: &Path) -> Result<Laid> {
    let there = nvm.join(format!("{}-whole", program.name));
    laid.program = there.join("bin").join(program.name);
    place(&program.path, &laid.program)?;
    put_libraries(program, &there)?;
    laid.libraries = there.join("lib");
    laid.on_block.clear();
    laid.nvm_bytes = allocated(&there)?;
    Ok(laid)
}

/// Splits a file, and waits a while for those who have it open: another split, or a child of ours that is just being started.
pub fn split_file(store: &Store, path: &Path, out: Option<&Path>, how: How) -> towa_xip::Result<Done> {
    for _ in 0..100 {
        match install::split(store, path, out, how) {
            Err(Error::Busy { .. }) => {}
            Err(Error::Io { source, .. }) if source.raw_os_error() == Some(libc::ETXTBSY) => {}
            done => return done,
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    install::split(store, path, out, how)
}

fn place(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().context("no directory")?)?;
    fs::copy(from, to).with_context(|| format!("{}: copying to {}", from.display(), to.display()))?;
    Ok(())
}

/// A program that looks for its libraries beside its own directory finds them there.
fn beside(program: &Path, libraries: &Path) -> Result<()> {
    let link = program.parent().and_then(Path::parent).context("no directory")?.join("lib");
    if !link.exists() {
        symlink(libraries, link)?;
    }
    Ok(())
}

/// Copies of the libraries in `home/lib`, under all names by which they are asked for.
fn put_libraries(program: &Program, home: &Path) -> Result<Vec<PathBuf>> {
    let dir = home.join("lib");
    fs::create_dir_all(&dir)?;
    let mut copies = Vec::new();
    for library in &program.libraries {
        let name = library.file_name().context("a library without a name")?.to_string_lossy().into_owned();
        let copy = dir.join(&name);
        if program.home.as_ref().is_some_and(|home| library.starts_with(home)) {
            continue;
        }
        place(library, &copy)?;
        for shorter in shorter_names(&name).filter(|shorter| !dir.join(shorter).exists()) {
            symlink(&name, dir.join(shorter))?;
        }
        copies.push(copy);
    }
    if let Some(theirs) = &program.home {
        mirror(&theirs.join("lib"), &dir, &mut copies)?;
        if theirs.join("conf").exists() {
            symlink(theirs.join("conf"), home.join("conf"))?;
        }
    }
    Ok(copies)
}

/// `libz.so.1.2` is asked for as `libz.so.1`, too.
fn shorter_names(name: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(name), |name| name.rsplit_once('.').map(|(shorter, _)| shorter))
        .skip(1)
        .filter(|name| name.contains(".so"))
}

/// The directory `from` in `to`: libraries are copied, the rest are links.
fn mirror(from: &Path, to: &Path, copies: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("{}: reading", from.display()))? {
        let path = entry?.path();
        let at = to.join(path.file_name().context("no name")?);
        if path.is_dir() && !path.is_symlink() {
            fs::create_dir_all(&at)?;
            mirror(&path, &at, copies)?;
        } else if path.extension().is_some_and(|extension| extension == "so") && !at.exists() {
            place(&path, &at)?;
            copies.push(at);
        } else if !at.exists() {
            symlink(&path, at)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_have_all_their_names() {
        assert_eq!(shorter_names("libz.so.1.2").collect::<Vec<_>>(), ["libz.so.1", "libz.so"]);
        assert_eq!(shorter_names("libc.so").count(), 0);
    }

    #[test]
    fn gzip_runs_in_every_layout() {
        let dir = tempfile::tempdir().unwrap();
        let [ground, nvm] = ["ground", "nvm"].map(|name| dir.path().join(name));
        fs::create_dir(&nvm).unwrap();
        let gzip = Program::find("gzip", dir.path()).unwrap();
        let all = lay_out(&gzip, &ground, &nvm, &Layout::all(true)).unwrap();
        let expected = gzip_output(Command::new("/usr/bin/gzip").args(&gzip.args));
        for laid in &all {
            assert_eq!(gzip_output(&mut laid.command(&gzip.args)), expected, "{:?}", laid.layout);
            assert!(laid.notes.is_empty(), "{:?}", laid.notes);
        }
        let bytes = |layout| all.iter().find(|laid| laid.layout == layout).unwrap().nvm_bytes;
        assert_eq!(bytes(Layout::Block), 0);
        assert!(bytes(Layout::Off2fMain) < bytes(Layout::Off2f) && bytes(Layout::Off2f) < bytes(Layout::Whole));
        assert!(bytes(Layout::Off2f) < bytes(Layout::Off2fRodata));
    }

    fn gzip_output(command: &mut Command) -> Vec<u8> {
        let ended = command.output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        ended.stdout
    }
}
