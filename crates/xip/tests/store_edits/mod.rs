//! A small store whose files are edited; of `any_store.rs`, and of the fuzz target `xip_store`.
//!
//! The first byte of an input says which file, the second whether sums are made to fit; then edits of six bytes: what, which of the places
//! where something is, and two numbers. Numbers are mostly those that mean something in a record: a range's end, the file's length.
//!
//! What must hold, whatever is edited: looking at the store ends, soon, and without a panic; `join` gives the program or nothing; and where
//! `verify` finds nothing wrong, the program is joined.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use towa_xip::install::{self, How};
use towa_xip::store::{Collect, Store};
use xxhash_rust::xxh3::xxh3_64;

const PAGE: usize = 4096;

/// A store with a program and a library, each file as it was made.
pub struct Scene {
    _dir: TempDir,
    store: PathBuf,
    program: PathBuf,
    original: Vec<u8>,
    files: Vec<(PathBuf, Vec<u8>, u32)>,
}

impl Scene {
    /// A new one.
    pub fn new() -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let (store, program) = (dir.path().join("store"), dir.path().join("true"));
        fs::copy("/usr/bin/true", &program).unwrap();
        let original = fs::read(&program).unwrap();
        let opened = Store::open_or_create(&store).unwrap();
        let done = install::split(&opened, &program, None, How::default()).unwrap();
        let entry = fs::read_dir(store.join("files")).unwrap().next().unwrap().unwrap().path();
        let all = [done.text, program.clone(), entry, store.join("store.json"), store.join("ld-towa-xip.so")];
        let files = all.map(|path| (path.clone(), fs::read(&path).unwrap(), fs::metadata(&path).unwrap().permissions().mode()));
        Scene { _dir: dir, store, program, original, files: files.to_vec() }
    }

    /// Edits a file, looks at everything, and puts it back.
    pub fn run(&self, input: &[u8]) {
        let [which, sums, edits @ ..] = input else { return };
        let (path, sound, mode) = &self.files[usize::from(*which) % self.files.len()];
        let mut bytes = sound.clone();
        for edit in edits.chunks_exact(6) {
            self.edit(&mut bytes, edit);
        }
        if sums % 4 != 0 {
            seal(&mut bytes);
        }
        put(path, &bytes, *mode);
        self.look();
        put(path, sound, *mode);
    }

    fn edit(&self, bytes: &mut Vec<u8>, edit: &[u8]) {
        let [what, low, high, first, second, third] = *edit else { return };
        let place = usize::from(u16::from_le_bytes([low, high]));
        let number = u64::from(u16::from_le_bytes([first, second]));
        let record = record_at(bytes);
        match what % 8 {
            0 if !bytes.is_empty() => {
                let at = place % bytes.len();
                bytes[at] ^= first;
            }
            1 => bytes.truncate(bytes.len() * place / 65536),
            2 => bytes.extend_from_slice(&vec![first; place % (3 * PAGE)]),
            // A word of the record, or of the file's first page: headers, numbers of an entry.
            kind => {
                let base = if kind < 6 { record.unwrap_or(0) } else { 0 };
                let at = base + place % 1664 / 8 * 8;
                let len = bytes.len() as u64;
                let Some(word) = bytes.get_mut(at..at + 8) else { return };
                let old = u64::from_le_bytes(word.try_into().unwrap());
                let new = match first % 8 {
                    0 => len,
                    1 => len - len % PAGE as u64,
                    2 => u64::MAX >> (second % 64),
                    3 => old.wrapping_add(PAGE as u64),
                    4 => old.wrapping_sub(PAGE as u64),
                    5 => old ^ 1 << (second % 64),
                    6 => number * PAGE as u64,
                    _ => u64::from(third),
                };
                word.copy_from_slice(&new.to_le_bytes());
            }
        }
    }

    fn look(&self) {
        let is_sound = Store::open(&self.store).is_ok_and(|store| {
            let _ = store.write().unwrap().collect(Collect { dry: true, force: true });
            let _ = towa_xip::stat::stat(&self.program, Some(&store));
            store.verify(false, |_, _| {}).is_ok_and(|found| found.problems.is_empty() && found.programs == 1)
        });
        let out = self.program.with_file_name("out");
        match install::join(&self.program, Some(&out), Some(&self.store)) {
            Ok(_) => assert!(fs::read(&out).unwrap() == self.original, "joined to another file"),
            Err(why) => assert!(!is_sound, "it was called sound, and is not joined: {why}"),
        }
        let _ = fs::remove_file(&out);
    }
}

/// Where the record of a text is, or that of a program.
fn record_at(bytes: &[u8]) -> Option<usize> {
    let magic = |at: &usize| bytes[*at..].starts_with(b"TOWAXYZ1") || bytes[*at..].starts_with(b"TOWAABC1");
    (0..bytes.len()).step_by(PAGE).find(magic)
}

/// Gives a record the sum that fits.
fn seal(bytes: &mut [u8]) {
    let Some(record) = record_at(bytes) else { return };
    if bytes[record..].starts_with(b"TOWAXYZ1") && bytes.len() >= record + PAGE {
        let sum = xxh3_64(&bytes[record..record + PAGE - 8]);
        bytes[record + PAGE - 8..record + PAGE].copy_from_slice(&sum.to_le_bytes());
    } else if bytes.len() >= record + PAGE {
        let path: Vec<u8> = bytes[record + 256..record + PAGE].iter().copied().take_while(|byte| *byte != 0).collect();
        let sum = xxh3_64(&[&bytes[record..record + 240], &path].concat());
        bytes[record + 240..record + 248].copy_from_slice(&sum.to_le_bytes());
    }
}

fn put(path: &Path, bytes: &[u8], mode: u32) {
    // Another file, as an attacker would put there.
    let new = path.with_file_name("new");
    fs::write(&new, bytes).unwrap();
    fs::set_permissions(&new, Permissions::from_mode(mode & 0o7777)).unwrap();
    fs::rename(&new, path).unwrap();
}
