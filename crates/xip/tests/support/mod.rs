//! A splitter for the loader's tests, written from the format alone: what it makes is what `src/format.rs` says, so a mistake of the
//! real splitter and one of the loader do not hide each other.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::RwLock;

use bytemuck::Zeroable;
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use towa_xip::format::*;
use xxhash_rust::xxh3::xxh3_64;

const PAGE_USIZE: usize = PAGE as usize;
const PT_LOAD: u64 = 1;
const PT_DYNAMIC_OR_LESS: u64 = 4;
const PT_INTERP: u64 = 3;
const PT_NOTE: u64 = 4;
const PT_GNU_PROPERTY: u64 = 0x6474_e553;

/// How to split.
#[derive(Clone, Copy, Debug, Default)]
pub struct How {
    /// Libraries from the store as well.
    pub libs: bool,
    /// Read-only data as well.
    pub rodata: bool,
}

/// A store with loader and audit object, and a directory beside it for programs.
pub struct Place {
    /// Removed at the end.
    pub dir: TempDir,
    /// The store.
    pub store: PathBuf,
}

/// A split program.
pub struct Split {
    /// The program.
    pub abc: PathBuf,
    /// Its text.
    pub xyz: PathBuf,
}

/// What a program did.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Exit status, or minus the signal.
    pub status: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

/// A program header.
#[derive(Clone, Copy, Debug)]
struct Header {
    at: usize,
    kind: u64,
    flags: u64,
    offset: usize,
    len: usize,
}

impl Header {
    fn is_text(&self) -> bool {
        self.kind == PT_LOAD && self.flags & 3 == 1
    }

    fn pages(&self) -> (usize, usize) {
        (self.offset / PAGE_USIZE * PAGE_USIZE, (self.offset + self.len).next_multiple_of(PAGE_USIZE))
    }
}

fn get(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..at + len].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn put(bytes: &mut [u8], at: usize, len: usize, number: u64) {
    bytes[at..at + len].copy_from_slice(&number.to_le_bytes()[..len]);
}

fn headers(bytes: &[u8]) -> Vec<Header> {
    let (start, count) = (get(bytes, 32, 8) as usize, get(bytes, 56, 2) as usize);
    let header = |at| Header {
        at,
        kind: get(bytes, at, 4),
        flags: get(bytes, at + 4, 4),
        offset: get(bytes, at + 8, 8) as usize,
        len: get(bytes, at + 32, 8) as usize,
    };
    (0..count).map(|i| header(start + i * 56)).collect()
}

/// The build-id, from the notes.
pub fn build_id(bytes: &[u8]) -> Option<Vec<u8>> {
    for header in headers(bytes).iter().filter(|header| header.kind == PT_NOTE) {
        let (mut at, end) = (header.offset, header.offset + header.len);
        let align = if get(bytes, header.at + 48, 8) == 8 { 8 } else { 4 };
        while at + 12 <= end {
            let [name, content, kind] = [0, 4, 8].map(|field| get(bytes, at + field, 4) as usize);
            let start = (at + 12 + name).next_multiple_of(align);
            if kind == 3 && &bytes[at + 12..][..4] == b"GNU\0" {
                return Some(bytes[start..start + content].to_vec());
            }
            at = (start + content).next_multiple_of(align);
        }
    }
    None
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// While a file that will be executed is open for writing here, no child may be started: it would have it open too, and the kernel
/// does not execute what somebody can write.
static WRITING: RwLock<()> = RwLock::new(());

fn write(path: &Path, bytes: &[u8], mode: u32) {
    let _alone = WRITING.write().unwrap();
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// Changes bytes of a file.
pub fn edit(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    let _alone = WRITING.write().unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// Does the kernel execute files of this directory?
fn executes(dir: &Path) -> bool {
    let probe = dir.join("probe");
    write(&probe, b"#!/bin/sh\nexit 0\n", 0o755);
    let ran = start(&mut Command::new(&probe)).is_ok_and(|mut child| child.wait().unwrap().success());
    std::fs::remove_file(&probe).unwrap();
    ran
}

impl Place {
    /// A new store, in memory where that can be.
    pub fn new() -> Place {
        let in_memory = tempfile::tempdir_in("/dev/shm").ok().filter(|dir| executes(dir.path()));
        let dir = in_memory.unwrap_or_else(|| tempfile::tempdir().unwrap());
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let store = dir.path().join("store");
        write(&store.join(LOADER_NAME), towa_xip::loader::loader().unwrap(), 0o755);
        write(&store.join(AUDIT_NAME), &towa_xip::loader::audit(&store).unwrap(), 0o755);
        for name in ["whole", "split"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        Place { dir, store }
    }

    /// Where a whole program of this name is.
    pub fn whole(&self, name: &str) -> PathBuf {
        self.dir.path().join("whole").join(name)
    }

    /// Compiles C or C++ into a whole program, or a library.
    pub fn compile(&self, name: &str, compiler: &str, source: &str, flags: &[&str]) -> PathBuf {
        let language = if compiler == "c++" { "c++" } else { "c" };
        let program = self.whole(name);
        let input = self.whole(&format!("{name}.source"));
        std::fs::write(&input, source).unwrap();
        let mut command = Command::new(compiler);
        command.args(["-O1", "-w", "-Wl,--build-id=sha1", "-x", language]).arg(&input).args(["-x", "none", "-o"]).arg(&program);
        let done = run(command.args(flags));
        assert_eq!(done.status, 0, "{command:?}: {}", done.err);
        program
    }

    /// Splits a program; ABC gets the same name in another directory.
    pub fn split(&self, program: &Path, how: How) -> Split {
        let mut abc = std::fs::read(program).unwrap();
        let (key, xyz) = self.write_xyz(&abc, how.rodata, 0);
        let (hole, end) = hole(&abc).unwrap_or_else(|| panic!("{}: no whole page of text", program.display()));
        abc[hole..end].fill(0);
        let path = self.store.join(LOADER_NAME).into_os_string().into_encoded_bytes();
        for header in headers(&abc).iter().filter(|header| header.is_text()) {
            put(&mut abc, header.at + 4, 4, header.flags | u64::from(SPLIT_MARK));
            let (start, end) = (header.pages().0.max(hole_start(&abc, header)), header.offset + header.len);
            if start < end {
                abc[start..end].fill(0);
            }
        }
        self.write_record(&mut abc, hole, &key, how.libs, &path);
        name_loader(&mut abc, hole + PATH_AT as usize, path.len() + 1);
        let to = self.dir.path().join("split").join(program.file_name().unwrap());
        write(&to, &abc, 0o755);
        Split { abc: to, xyz }
    }

    fn write_record(&self, abc: &mut [u8], hole: usize, key: &[u8; 32], libs: bool, path: &[u8]) {
        let mut record = AbcRecord::zeroed();
        record.magic = ABC_MAGIC;
        record.version = VERSION;
        record.flags = if libs { ABC_LIBS } else { 0 };
        record.key = *key;
        record.original_len = abc.len() as u64;
        record.store_len = self.store.as_os_str().len() as u32;
        let mut summed = bytemuck::bytes_of(&record)[..240].to_vec();
        summed.extend_from_slice(path);
        record.checksum = xxh3_64(&summed);
        abc[hole..][..PATH_AT as usize].copy_from_slice(bytemuck::bytes_of(&record));
        abc[hole + PATH_AT as usize..][..path.len()].copy_from_slice(path);
    }

    /// Puts the text of a library into the store, with the link by the state of its file.
    pub fn add_library(&self, library: &Path, rodata: bool) -> PathBuf {
        let bytes = std::fs::read(library).unwrap();
        let (_, xyz) = self.write_xyz(&bytes, rodata, XYZ_LIBRARY);
        let state = hex(&state_of(library));
        let link = self.store.join("lib").join(&state[..2]).join(format!("{}.xyz", &state[2..]));
        std::fs::create_dir_all(link.parent().unwrap()).unwrap();
        let _ = std::fs::remove_file(&link);
        symlink(&xyz, &link).unwrap();
        xyz
    }

    fn write_xyz(&self, original: &[u8], rodata: bool, flags: u32) -> ([u8; 32], PathBuf) {
        let key: [u8; 32] = Sha256::digest(original).into();
        let mut padded = original.to_vec();
        padded.resize(original.len().next_multiple_of(PAGE_USIZE), 0);
        let mut bytes = vec![0; padded.len() + PAGE_USIZE];
        let mut record = XyzRecord::zeroed();
        let mut hold = |start: usize, end: usize, kind| {
            bytes[start..end].copy_from_slice(&padded[start..end]);
            let (offset, len) = (start as u64, (end - start) as u64);
            record.ranges[record.range_count as usize] = Range { offset, len, kind, reserved: 0 };
            record.range_count += 1;
        };
        hold(0, headers_end(original).next_multiple_of(PAGE_USIZE), RANGE_HEADER);
        for header in headers(original).iter().filter(|header| header.kind == PT_LOAD) {
            let (start, end) = header.pages();
            match header.flags & 7 {
                flags if flags & 3 == 1 => hold(start, end, RANGE_TEXT),
                4 if rodata => hold(start, end, RANGE_RODATA),
                _ => {}
            }
        }
        record.magic = XYZ_MAGIC;
        record.version = VERSION;
        record.key = key;
        record.original_len = original.len() as u64;
        record.flags = flags;
        let id = build_id(original).unwrap_or_default();
        record.build_id_len = id.len() as u32;
        record.build_id[..id.len()].copy_from_slice(&id);
        record.checksum = xxh3_64(&bytemuck::bytes_of(&record)[..PAGE_USIZE - 8]);
        let last = bytes.len() - PAGE_USIZE;
        bytes[last..].copy_from_slice(bytemuck::bytes_of(&record));
        let name = hex(&key[..16]);
        let path = self.store.join("xyz").join(&name[..2]).join(format!("{}.xyz", &name[2..]));
        write(&path, &bytes, 0o444);
        (key, path)
    }
}

/// Inode, size, and both times in seconds, each of eight bytes; and what is left of the times, of four bytes each.
pub fn state_of(file: &Path) -> Vec<u8> {
    use std::os::unix::fs::MetadataExt;
    let about = std::fs::metadata(file).unwrap();
    let long = [about.ino(), about.size(), about.mtime() as u64, about.ctime() as u64];
    let short = [about.mtime_nsec() as u32, about.ctime_nsec() as u32];
    [
        long.iter().flat_map(|field| field.to_le_bytes()).collect(),
        short.iter().flat_map(|field| field.to_le_bytes()).collect::<Vec<u8>>(),
    ]
    .concat()
}

fn headers_end(bytes: &[u8]) -> usize {
    get(bytes, 32, 8) as usize + get(bytes, 56, 2) as usize * 56
}

/// Where in a text segment the hole begins: behind what the kernel reads of the file, and at a page.
fn hole_start(bytes: &[u8], text: &Header) -> usize {
    let small = |header: &&Header| (2..=PT_DYNAMIC_OR_LESS).contains(&header.kind) || header.kind == PT_GNU_PROPERTY;
    let of_kernel = headers(bytes).iter().filter(small).map(|header| header.offset + header.len).collect::<Vec<_>>();
    let kept = of_kernel.into_iter().chain([headers_end(bytes)]).filter(|end| (text.offset..text.offset + text.len).contains(end));
    kept.fold(text.offset, usize::max).next_multiple_of(PAGE_USIZE)
}

fn hole(bytes: &[u8]) -> Option<(usize, usize)> {
    let found = headers(bytes).into_iter().filter(Header::is_text).map(|text| (hole_start(bytes, &text), text.offset + text.len));
    found.into_iter().find(|(start, end)| start + PAGE_USIZE <= *end)
}

/// Points PT_INTERP at the loader's path; a static program has a header to spare.
fn name_loader(abc: &mut [u8], at: usize, len: usize) {
    let all = headers(abc);
    let of_kind = |kind| all.iter().find(|header| header.kind == kind);
    if let Some(interp) = of_kind(PT_INTERP) {
        put(abc, interp.at + 8, 8, at as u64);
        put(abc, interp.at + 32, 8, len as u64);
        return;
    }
    let spare = of_kind(PT_GNU_PROPERTY).or_else(|| of_kind(PT_NOTE)).expect("a header to spare");
    abc[spare.at..spare.at + 56].fill(0);
    let fields = [(0, 4, PT_INTERP), (4, 4, 4), (8, 8, at as u64), (32, 8, len as u64), (48, 8, 1)];
    for (field, width, value) in fields {
        put(abc, spare.at + field, width, value);
    }
}

/// Does what starts a child.
pub fn starting<T>(what: impl FnOnce() -> T) -> T {
    let _writing_ended = WRITING.read().unwrap();
    what()
}

/// Starts a command.
pub fn start(command: &mut Command) -> std::io::Result<Child> {
    starting(|| command.stdin(Stdio::null()).spawn())
}

/// Runs a command, with nothing on its input.
pub fn run(command: &mut Command) -> Outcome {
    use std::os::unix::process::ExitStatusExt;
    let child = start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let done = child.unwrap_or_else(|why| panic!("{command:?}: {why}")).wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let status = done.status.code().unwrap_or_else(|| -done.status.signal().unwrap());
    Outcome { status, out: text(done.stdout), err: text(done.stderr) }
}

/// Is this program there?
pub fn has(program: &str) -> bool {
    std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).any(|dir| dir.join(program).is_file())
}
