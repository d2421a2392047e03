//! Splitting a file in two, and joining the two again: bytes to bytes, no files.
//!
//! What must hold: `join(split(x)) == x`, to the byte, or else an error and nothing; whatever the bytes.

use bytemuck::Zeroable;
use object::elf;
use sha2::{Digest, Sha256};

use crate::elf::{Elf, Kind, Reason, stretch};
use crate::format::{
    ABC_LIBS, ABC_MAGIC, AbcRecord, LOADER_NAME, PAGE, PATH_AT, RANGES_MAX, Range, SPLIT_MARK, STORE_PATH_MAX, VERSION,
    XYZ_LIBRARY, XYZ_MAGIC, XyzRecord,
};
use crate::layout::{HUGE_PAGE, Layout, can_be_huge};

/// SHA-256 of an original file: the name of its text.
pub type Key = [u8; 32];

/// The key of a file with these bytes.
pub fn key_of(original: &[u8]) -> Key {
    Sha256::digest(original).into()
}

/// How a program is to be split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Read-only data is mapped from the store, too.
    pub with_rodata: bool,
    /// Text of the program's libraries is mapped from the store, where the store has it.
    pub libs: bool,
    /// Addresses are chosen so that DAX can map text with huge pages.
    pub huge: bool,
}

/// Both halves.
#[derive(Clone, Debug)]
pub struct Halves {
    /// What it was.
    pub kind: Kind,
    /// Its key.
    pub key: Key,
    /// The linker's build-id.
    pub build_id: Option<Vec<u8>>,
    /// What goes where.
    pub layout: Layout,
    /// ABC, to stand in the program's place; `None` for a library, which stays as it is.
    pub abc: Option<Vec<u8>>,
    /// XYZ; zero where it holds nothing.
    pub xyz: Vec<u8>,
}

/// Splits `original`, whose text is to lie in the store with the absolute path `store`.
///
/// # Errors
/// It cannot be split; the reason says why.
pub fn split(original: &[u8], store: &[u8], options: Options) -> Result<Halves, Reason> {
    let elf = Elf::read(original)?;
    if XyzRecord::read(original).is_ok() {
        return Err("it is the text of a program, in a store".into());
    }
    let layout = Layout::of(&elf, options.with_rodata)?;
    let key = key_of(original);
    let abc = match layout.record_at {
        Some(at) => Some(abc(original, &elf, &layout, at, &AbcName { key, store, options })?),
        None => None,
    };
    let xyz = xyz(original, &elf, &layout, key);
    Ok(Halves { kind: elf.kind, key, build_id: elf.build_id, layout, abc, xyz })
}

struct AbcName<'a> {
    key: Key,
    store: &'a [u8],
    options: Options,
}

fn abc(original: &[u8], elf: &Elf, layout: &Layout, record_at: u64, name: &AbcName<'_>) -> Result<Vec<u8>, Reason> {
    let mut abc = original.to_vec();
    for (at, len) in &layout.holes {
        abc[*at as usize..(at + len) as usize].fill(0);
    }
    let mut path = name.store.to_vec();
    path.push(b'/');
    path.extend_from_slice(LOADER_NAME.as_bytes());
    if name.store.len() > STORE_PATH_MAX || !path.starts_with(b"/") || path.contains(&0) {
        return Err(format!("the path of the store must be absolute and at most {STORE_PATH_MAX} bytes long"));
    }
    let record = AbcRecord {
        magic: ABC_MAGIC,
        version: VERSION,
        flags: if name.options.libs { ABC_LIBS } else { 0 },
        key: name.key,
        original_len: original.len() as u64,
        store_len: name.store.len() as u32,
        ..AbcRecord::zeroed()
    };
    let record = AbcRecord { checksum: record.sum(&path), ..record };
    let page = record_at as usize;
    abc[page..page + size_of::<AbcRecord>()].copy_from_slice(bytemuck::bytes_of(&record));
    abc[page + PATH_AT as usize..][..path.len()].copy_from_slice(&path);
    mark_headers(&mut abc, elf, layout, record_at + PATH_AT, path.len() as u64 + 1, name.options.huge);
    // A table of headers that describes itself, or what else no linker makes, is not to be found out when the program is started.
    AbcHead::find(&abc).map(|_| abc).map_err(|why| format!("its headers cannot be changed as they must be: {why}"))
}

/// Text segments get the mark; the interpreter's path is read from `path_at`, and ld.so's stays where it is in memory.
fn mark_headers(abc: &mut [u8], elf: &Elf, layout: &Layout, path_at: u64, path_len: u64, huge: bool) {
    let mut put = |index: usize, at: usize, bytes: &[u8]| {
        let from = elf.headers_at as usize + index * 56 + at;
        abc[from..from + bytes.len()].copy_from_slice(bytes);
    };
    for index in &layout.texts {
        let segment = &elf.segments[*index];
        put(*index, 4, &(segment.flags | SPLIT_MARK).to_le_bytes());
        if huge && can_be_huge(segment) {
            put(*index, 48, &HUGE_PAGE.to_le_bytes());
        }
    }
    let Some(index) = layout.interpreter else { return };
    if elf.segments[index].kind != elf::PT_INTERP {
        put(index, 0, &elf::PT_INTERP.to_le_bytes());
        put(index, 4, &elf::PF_R.to_le_bytes());
        // No address: this is how the loader knows that there is no ld.so to go on to.
        put(index, 16, &[0; 16]);
        put(index, 40, &0u64.to_le_bytes());
        put(index, 48, &1u64.to_le_bytes());
    }
    put(index, 8, &path_at.to_le_bytes());
    put(index, 32, &path_len.to_le_bytes());
}

fn xyz(original: &[u8], elf: &Elf, layout: &Layout, key: Key) -> Vec<u8> {
    let record_at = original.len().next_multiple_of(PAGE as usize);
    let mut xyz = vec![0; record_at + PAGE as usize];
    for range in &layout.ranges {
        let (from, to) = held(range, original.len());
        xyz[from..to].copy_from_slice(&original[from..to]);
    }
    let mut record =
        XyzRecord { magic: XYZ_MAGIC, version: VERSION, range_count: layout.ranges.len() as u32, key, ..XyzRecord::zeroed() };
    record.original_len = original.len() as u64;
    record.flags = if elf.kind == Kind::Library { XYZ_LIBRARY } else { 0 };
    record.ranges[..layout.ranges.len()].copy_from_slice(&layout.ranges);
    if let Some(id) = &elf.build_id {
        record.build_id_len = id.len() as u32;
        record.build_id[..id.len()].copy_from_slice(id);
    }
    record.content = record.content_sum(&xyz);
    record.checksum = record.sum();
    xyz[record_at..].copy_from_slice(bytemuck::bytes_of(&record));
    xyz
}

/// What `range` holds of a file of `len` bytes: its last page may end beyond the file.
fn held(range: &Range, len: usize) -> (usize, usize) {
    ((range.offset as usize).min(len), (range.offset.saturating_add(range.len)).min(len as u64) as usize)
}

/// The original, from both halves.
///
/// # Errors
/// They do not belong together, or one of them was changed: the result is not the file that was split.
pub fn join(abc: &[u8], xyz: &[u8]) -> Result<Vec<u8>, Reason> {
    let of_abc = AbcHead::find(abc)?.record;
    let of_xyz = XyzRecord::read(xyz)?;
    if of_abc.key != of_xyz.key {
        return Err("it belongs to another text than this one".into());
    }
    join_as(abc, &of_xyz, xyz)
}

/// Checks that `abc` is what splitting `original` gives, into the store that it should name: nothing else was changed
/// in it that the kernel or the loader would listen to.
///
/// # Errors
/// It is not.
pub fn check_abc(abc: &[u8], original: &[u8], store: &[u8]) -> Result<(), Reason> {
    let libs = AbcHead::find(abc)?.record.flags & ABC_LIBS != 0;
    for (with_rodata, huge) in [(false, false), (false, true), (true, false), (true, true)] {
        let halves = split(original, store, Options { with_rodata, libs, huge })?;
        if halves.abc.as_deref() == Some(abc) {
            return Ok(());
        }
    }
    Err("it was changed after it was split, in what names its loader or in its headers".into())
}

fn join_as(abc: &[u8], record: &XyzRecord, xyz: &[u8]) -> Result<Vec<u8>, Reason> {
    if record.original_len != abc.len() as u64 {
        return Err(format!("it is {} bytes long, and was {} when it was split", abc.len(), record.original_len));
    }
    let mut original = abc.to_vec();
    for range in record.ranges() {
        let (from, to) = held(range, original.len());
        original[from..to].copy_from_slice(&xyz[from..to]);
    }
    if key_of(&original) != record.key {
        return Err("it, or its text in the store, was changed after it was split: they make another file than the original".into());
    }
    Ok(original)
}

impl AbcRecord {
    fn sum(&self, path: &[u8]) -> u64 {
        let mut bytes = bytemuck::bytes_of(self)[..std::mem::offset_of!(AbcRecord, checksum)].to_vec();
        bytes.extend_from_slice(path);
        xxhash_rust::xxh3::xxh3_64(&bytes)
    }
}

/// What ABC says of itself.
#[derive(Clone, Debug)]
pub struct AbcHead {
    /// Its record.
    pub record: AbcRecord,
    /// The path of its store, as bytes.
    pub store: Vec<u8>,
}

impl AbcHead {
    /// That of the file whose bytes `abc` are.
    ///
    /// # Errors
    /// It is no ABC, or not a whole one.
    pub fn find(abc: &[u8]) -> Result<AbcHead, Reason> {
        let elf = Elf::read(abc)?;
        if !elf.is_split() {
            return Err("no segment has the mark of a text that lies elsewhere".into());
        }
        let interpreter = elf.segments.iter().find(|segment| segment.kind == elf::PT_INTERP).ok_or("it has no interpreter")?;
        let at = interpreter.offset.checked_sub(PATH_AT).ok_or("its interpreter is not our loader")?;
        let path_len = interpreter.file_len.saturating_sub(1);
        let record = stretch(abc, at, PATH_AT).ok_or("its record lies beyond its end")?;
        let record: AbcRecord = bytemuck::pod_read_unaligned(record);
        if record.magic != ABC_MAGIC {
            return Err("its interpreter is not our loader, or its record was overwritten".into());
        }
        check_version(record.version)?;
        let path = stretch(abc, interpreter.offset, path_len).ok_or("the path of its loader lies beyond its end")?;
        if record.checksum != record.sum(path) || record.original_len != abc.len() as u64 {
            return Err("its record is damaged".into());
        }
        let store = path.get(..record.store_len as usize).ok_or("its record is damaged")?;
        if path[store.len()..] != *[b"/", LOADER_NAME.as_bytes()].concat() {
            return Err("the loader that it names is not that of its store".into());
        }
        Ok(AbcHead { record, store: store.to_vec() })
    }
}

impl XyzRecord {
    fn sum(&self) -> u64 {
        xxhash_rust::xxh3::xxh3_64(&bytemuck::bytes_of(self)[..std::mem::offset_of!(XyzRecord, checksum)])
    }

    /// The record of XYZ, whose bytes `xyz` are.
    ///
    /// # Errors
    /// It is no XYZ, or not a whole one.
    pub fn read(xyz: &[u8]) -> Result<XyzRecord, Reason> {
        let at = xyz.len().checked_sub(PAGE as usize).ok_or("too short for a text of a store")?;
        let record: XyzRecord = bytemuck::pod_read_unaligned(&xyz[at..]);
        record.check(xyz.len() as u64)?;
        Ok(record)
    }

    /// Checks a record that was read from the end of a file of `len` bytes.
    ///
    /// # Errors
    /// It is none, or damaged.
    pub fn check(&self, len: u64) -> Result<(), Reason> {
        if self.magic != XYZ_MAGIC {
            return Err("no text of a store: it does not end with the record of one".into());
        }
        check_version(self.version)?;
        let sound = self.checksum == self.sum()
            && self.range_count as usize <= RANGES_MAX
            && self.build_id_len as usize <= self.build_id.len()
            && self.original_len.checked_next_multiple_of(PAGE).and_then(|end| end.checked_add(PAGE)) == Some(len)
            && self.ranges().iter().all(|range| range.offset.checked_add(range.len).is_some_and(|end| end <= len - PAGE));
        if sound { Ok(()) } else { Err("its record is damaged, or it was cut off".into()) }
    }

    fn content_sum(&self, xyz: &[u8]) -> [u8; 32] {
        let mut hasher = Sha256::new();
        hasher.update(bytemuck::cast_slice(self.ranges()));
        for range in self.ranges() {
            let (from, to) = held(range, xyz.len());
            hasher.update(&xyz[from..to]);
        }
        hasher.finalize().into()
    }

    /// Checks what `xyz`, all of a file with this record, holds.
    ///
    /// # Errors
    /// It was changed.
    pub fn check_content(&self, xyz: &[u8]) -> Result<(), Reason> {
        if self.content_sum(xyz) == self.content {
            Ok(())
        } else {
            Err("damaged: it does not hold what it was written with".into())
        }
    }

    /// What it holds.
    pub fn ranges(&self) -> &[Range] {
        &self.ranges[..(self.range_count as usize).min(RANGES_MAX)]
    }

    /// The linker's build-id.
    pub fn build_id(&self) -> Option<&[u8]> {
        self.build_id.get(..self.build_id_len as usize).filter(|id| !id.is_empty())
    }
}

fn check_version(version: u32) -> Result<(), Reason> {
    if version == VERSION { Ok(()) } else { Err(format!("of version {version}; this tool knows version {VERSION}")) }
}
