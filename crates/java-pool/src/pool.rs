//! A pool file, opened for a look.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::blocks::Blocks;
use crate::class;
use crate::error::{Error, Result};
use crate::lock::{self, Owner};
use crate::records::{self, Records};
use crate::redo::{self, Applied, CommitLog, CommitState, Redo};
use crate::report::{Description, Problems, Report, RootDescription};
use crate::source::{Source, View, Whole};
use crate::superblock::{self, Durability, HEAP_START, MAGIC, SLOT, Superblock, VERSION, Words};
use crate::undo;
use crate::walk::Walk;

/// A file of the Java door. Looking at it neither locks nor writes; [`verify`](Pool::verify) alone takes a shared lock.
pub struct Pool {
    name: String,
    file: Option<Whole>,
    bytes: Vec<u8>,
    /// `NAME.log`.
    log: PathBuf,
}

/// Options that open a file to be looked at: nothing is waited for, should it be a FIFO.
pub(crate) fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    options
}

/// Whether `path` is a regular file in which a superblock slot opens as one of the Java door.
///
/// # Errors
/// It is there, and may not be read.
pub fn is_pool(path: &Path) -> Result<bool> {
    let io = |doing| move |source| Error::Io { pool: path.display().to_string(), doing, source };
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => {}
        _ => return Ok(false),
    }
    let file = options().open(path).map_err(io("opening"))?;
    let mut start = [0; 8];
    for at in [0, SLOT] {
        match file.read_exact_at(&mut start, at) {
            Ok(()) if start == MAGIC => return Ok(true),
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(false),
            Err(e) => return Err(io("reading")(e)),
        }
    }
    Ok(false)
}

impl Pool {
    /// Opens the file at `path`, whatever is in it.
    ///
    /// # Errors
    /// There is none, it is no regular file, or may not be read.
    pub fn open(path: &Path) -> Result<Pool> {
        let name = path.display().to_string();
        let io = |doing| {
            let pool = name.clone();
            move |source: std::io::Error| match source.kind() {
                ErrorKind::NotFound => Error::Missing { pool },
                _ => Error::Io { pool, doing, source },
            }
        };
        let file = options().open(path).map_err(io("opening"))?;
        let metadata = file.metadata().map_err(io("looking at"))?;
        if !metadata.is_file() {
            return Err(Error::Foreign { pool: name, why: "it is not a regular file".into() });
        }
        // The log lies beside the file, not beside a link to it.
        let is_link = std::fs::symlink_metadata(path).is_ok_and(|it| it.is_symlink());
        let real = if is_link { std::fs::canonicalize(path).map_err(io("looking at"))? } else { path.to_owned() };
        let mut log = real.into_os_string();
        log.push(".log");
        Ok(Pool { name, file: Some(Whole { file, len: metadata.len() }), bytes: Vec::new(), log: log.into() })
    }

    /// The same of bytes that are no file. `name` stands for the path in messages.
    pub fn of_bytes(name: &str, bytes: Vec<u8>) -> Pool {
        Pool { name: name.into(), file: None, bytes, log: PathBuf::new() }
    }

    /// Its path, as it was given.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The same file under another name in messages.
    #[must_use]
    pub fn called(mut self, name: &str) -> Pool {
        self.name = name.into();
        self
    }

    /// The file.
    pub fn file(&self) -> Option<&File> {
        self.file.as_ref().map(|whole| &whole.file)
    }

    /// Where a program that has it open listens.
    pub(crate) fn socket(&self) -> PathBuf {
        self.log.with_extension("sock")
    }

    /// The user whom the file belongs to.
    pub(crate) fn owner_uid(&self) -> u32 {
        self.file().and_then(|file| file.metadata().ok()).map_or(u32::MAX, |metadata| metadata.uid())
    }

    /// What tells this opening of this pool from others: uuid, seq, stamp and capacity.
    pub(crate) fn identity(&self) -> Result<Vec<u8>> {
        let superblock = superblock::read(&mut self.view())?;
        let numbers = [superblock.seq, superblock.stamp, superblock.capacity].map(u64::to_le_bytes);
        Ok([&superblock.uuid[..], &numbers.concat()].concat())
    }

    /// What the programs that open it asked for.
    ///
    /// # Errors
    /// It is no pool, or a newer or unfinished one.
    pub fn durability(&self) -> Result<Durability> {
        Ok(superblock::read(&mut self.view())?.durability)
    }

    /// Keeps owners out until this is dropped.
    ///
    /// # Errors
    /// One has it open.
    pub fn keep_owners_out(&self) -> Result<()> {
        let busy = |owner: Owner| Error::Busy { pool: self.name.clone(), holder: self.named(owner).to_string() };
        self.file().map_or(Ok(()), |file| lock::keep_owners_out(file).map_err(busy))
    }

    /// Lays the commit that the log beside the pool has whole, and the pool may lack, over `copy`, a copy of its file. Gives the bytes written.
    ///
    /// # Errors
    /// The pool and its log are not of one moment, or cannot be read; or the copy cannot be written.
    pub fn lay_commit(&self, copy: &File) -> Result<u64> {
        match self.redo()?.filter(|redo| redo.found.state == CommitState::Whole) {
            Some(redo) if superblock::read(&mut self.view())?.needs_log() => {
                let io = |source| Error::Io { pool: self.name.clone(), doing: "copying its last commit", source };
                redo.each_page(&mut |at, page| copy.write_all_at(page, at)).map_err(io)
            }
            _ => Ok(0),
        }
    }

    /// Who has it open.
    pub fn owner(&self) -> Option<Owner> {
        lock::owner(&self.file.as_ref()?.file).map(|owner| self.named(owner))
    }

    /// The kernel does not say who has a lock of an open file; the superblock says who opened it last.
    fn named(&self, owner: Owner) -> Owner {
        let said = || superblock::read(&mut self.view()).ok().map(|superblock| superblock.pid).filter(|pid| *pid != 0);
        Owner { pid: owner.pid.or_else(said) }
    }

    fn view(&self) -> View<'_> {
        let source: &dyn Source = match &self.file {
            Some(file) => file,
            None => &self.bytes,
        };
        View::of(source, &self.name)
    }

    /// What it is, and which classes and roots it has; also while somebody works with it.
    ///
    /// # Errors
    /// It is no pool, a newer, unfinished or truncated one, or its records are damaged.
    pub fn describe(&self) -> Result<Description> {
        let mut view = self.view();
        let superblock = superblock::read(&mut view)?;
        let words = superblock::words(&mut view, &superblock)?;
        let mut problems = Problems::default();
        let records = records::read(&mut view, &words, &mut Blocks::new(words.frontier), &mut problems)?;
        match problems.shown.into_iter().next() {
            Some(first) => Err(Error::Damaged { pool: self.name.clone(), at: first.at, what: first.what }),
            None => Ok(description(&view, &superblock, &words, &records)),
        }
    }

    /// The log of commits beside it (durability power); `None`: there is none.
    ///
    /// # Errors
    /// It is no pool, a newer or unfinished one, not of one moment with its log, or the log cannot be read.
    pub fn commit_log(&self) -> Result<Option<CommitLog>> {
        Ok(self.redo()?.map(|redo| redo.found))
    }

    fn redo(&self) -> Result<Option<Redo>> {
        if self.file.is_none() {
            return Ok(None);
        }
        // A commit has no superblocks: which pool this is, the file says.
        let mut view = self.view();
        let superblock = superblock::read(&mut view)?;
        let commits = superblock::commits(&view, &superblock)?;
        let mut redo = redo::read(&self.log, &superblock.uuid)?;
        let fits = match &mut redo {
            Some(redo) => redo.fit(&superblock, commits),
            None if superblock.needs_log() => Err(redo::missing(&self.log.display().to_string())),
            None => redo::complete(commits),
        };
        fits.map_err(|what| Error::Apart { pool: self.name.clone(), what })?;
        Ok(redo)
    }

    /// Checks everything that can be checked, of the pool as the next opening finds it: a commit that its log holds whole is taken for
    /// applied. What is wrong is in the report; `progress` is told how many of how many bytes are done.
    ///
    /// # Errors
    /// Somebody has it open; it is no pool, a newer, unfinished or truncated one; it is not of one moment with its log; or it cannot be read.
    pub fn verify(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Report> {
        self.keep_owners_out()?;
        let redo = self.redo()?.filter(|redo| redo.found.state == CommitState::Whole);
        let applied = self.file.as_ref().zip(redo.as_ref()).map(|(file, redo)| Applied::of(file, redo));
        let mut view = applied.as_ref().map_or_else(|| self.view(), |applied| View::of(applied, &self.name));
        let superblock = superblock::read(&mut view)?;
        let words = superblock::words(&mut view, &superblock)?;
        let (mut problems, mut blocks) = (Problems::default(), Blocks::new(words.frontier));
        superblock::check(&mut view, &superblock, &words, &mut problems)?;
        undo::follow(&mut view, &words, &mut problems, &mut |_, _| Ok(()))?;
        let records = records::read(&mut view, &words, &mut blocks, &mut problems)?;
        let walk = Walk::new(&mut view, &mut blocks, &mut problems, &words, &records);
        let by_class = walk.run(&records, &mut |done| progress(done, words.frontier - HEAP_START))?;
        if words.undo != 0 && blocks.is_taken(words.undo) {
            problems.add(superblock::WORDS + 40, || format!("the undo log at {:#x} lies in a block in use", words.undo));
        }
        Ok(Report {
            description: description(&view, &superblock, &words, &records),
            replicas: by_class.iter().map(|class| class.replicas).sum(),
            bytes: by_class.iter().map(|class| class.bytes).sum(),
            block_bytes: by_class.iter().map(|class| class.block_bytes).sum(),
            by_class,
            problems_found: problems.found,
            problems: problems.shown,
        })
    }
}

fn description(view: &View, superblock: &Superblock, words: &Words, records: &Records) -> Description {
    let hex = |range: std::ops::Range<usize>| superblock.uuid[range].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let root = |root: &class::Root| RootDescription {
        name: root.name.clone(),
        kind: class::in_java(&root.descriptor),
        is_null: root.value == 0,
    };
    Description {
        door: "java",
        version: VERSION,
        uuid: [hex(0..4), hex(4..6), hex(6..8), hex(8..10), hex(10..16)].join("-"),
        created_unix_s: superblock.created_unix_s,
        durability: superblock.durability,
        capacity: superblock.capacity,
        len: view.len(),
        used: words.frontier,
        clean: superblock.clean,
        atomically_interrupted: words.undo != 0,
        classes: records.classes.len(),
        roots: records.roots.iter().map(root).collect(),
    }
}
