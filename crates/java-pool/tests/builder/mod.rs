//! Pools made by hand, from the text of docs/format.md alone: nothing here uses the reader.
//!
//! What must always hold: the same calls make the same bytes.

// Each test file uses another part of it.
#![allow(dead_code)]

pub mod graphs;

use std::collections::{BTreeMap, HashMap};

const SEGMENT: u64 = 4096;
pub const HEAP: u64 = 65536;
pub const WORDS: u64 = 8192;
const SIZES: [u64; 40] = [
    16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256, //
    272, 288, 304, 320, 336, 368, 384, 400, 448, 512, 576, 640, 672, 704, 768, 816, 832, 896, 960, 1024, 1344, 1360, 2048, 4096,
];

/// Value of a field.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    Byte(u8),
    Int(i32),
    Float(f32),
    Long(i64),
    Reference(u64),
}
use Value::*;

impl Value {
    fn bytes(self) -> Vec<u8> {
        match self {
            Byte(v) => vec![v],
            Int(v) => v.to_le_bytes().into(),
            Float(v) => v.to_le_bytes().into(),
            Long(v) => v.to_le_bytes().into(),
            Reference(v) => v.to_le_bytes().into(),
        }
    }
}

/// A class that has its record.
#[derive(Clone, Debug, Default)]
pub struct Class {
    pub index: u32,
    pub instance: u64,
    /// Offset of each field, by its name.
    pub fields: BTreeMap<&'static str, u64>,
}

/// A pool, and where things are in it.
#[derive(Clone, Debug)]
pub struct Made {
    pub bytes: Vec<u8>,
    /// By names that whoever made it gave, and `class NAME`, `root NAME`.
    pub places: HashMap<String, u64>,
    classes: HashMap<&'static str, Class>,
    /// For each size: where the next block is, of a segment that has room.
    next: [u64; 40],
}

pub fn width(descriptor: &str) -> u64 {
    match descriptor.as_bytes()[0] {
        b'B' | b'Z' => 1,
        b'C' | b'S' => 2,
        b'I' | b'F' => 4,
        _ => 8,
    }
}

fn text(into: &mut Vec<u8>, text: &str) {
    into.extend((text.len() as u32).to_le_bytes());
    into.extend(text.as_bytes());
    into.resize(into.len().next_multiple_of(4), 0);
}

impl Made {
    /// Superblock and words of a pool with nothing in it, closed cleanly.
    pub fn new(name: &str, durability: u32) -> Made {
        let mut made = Made { bytes: vec![0; HEAP as usize], places: HashMap::new(), classes: HashMap::new(), next: [0; 40] };
        for (slot, seq) in [(0, 4), (4096, 5)] {
            made.put(slot, b"TOWAJAVA");
            made.set32(slot + 8, 1);
            let mut uuid = [0xA5; 16];
            uuid[..name.len().min(16)].copy_from_slice(&name.as_bytes()[..name.len().min(16)]);
            made.put(slot + 16, &uuid);
            made.set(slot + 32, seq);
            made.set(slot + 40, 1 << 30);
            made.set(slot + 48, 1_750_000_000);
            made.set(slot + 56, HEAP);
            made.set32(slot + 64, 1);
            made.set32(slot + 68, (seq % 2) as u32);
            made.set32(slot + 72, durability);
        }
        for (word, value) in [(0, HEAP), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (8, 1)] {
            made.set(WORDS + word * 8, value);
        }
        made.seal();
        made
    }

    /// Gives both slots the sums that fit.
    pub fn seal(&mut self) {
        for slot in [0, 4096] {
            let sum = crc32c::crc32c(&self.bytes[slot..slot + 248]);
            self.set(slot as u64 + 248, u64::from(sum));
        }
    }

    /// Gives a record the sum that fits.
    pub fn seal_record(&mut self, at: u64) {
        let from = if self.get32(at + 8) == 2 { 32 } else { 24 };
        let len = u64::from(self.get32(at + 12));
        let sum = crc32c::crc32c(&self.bytes[(at + from) as usize..(at + len) as usize]);
        self.set32(at + 16, sum);
    }

    pub fn put(&mut self, at: u64, bytes: &[u8]) {
        self.bytes[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    }
    pub fn set(&mut self, at: u64, value: u64) {
        self.put(at, &value.to_le_bytes());
    }
    pub fn set32(&mut self, at: u64, value: u32) {
        self.put(at, &value.to_le_bytes());
    }
    pub fn get(&self, at: u64) -> u64 {
        u64::from_le_bytes(self.bytes[at as usize..at as usize + 8].try_into().unwrap())
    }
    pub fn get32(&self, at: u64) -> u32 {
        self.get(at) as u32
    }

    /// Where the thing of this name is.
    pub fn at(&self, name: &str) -> u64 {
        *self.places.get(name).unwrap_or_else(|| panic!("nothing has the name {name}"))
    }
    /// Remembers where something is; gives it back.
    pub fn name(&mut self, name: &str, at: u64) -> u64 {
        self.places.insert(name.into(), at);
        at
    }

    pub fn class(&self, name: &str) -> &Class {
        &self.classes[name]
    }

    fn segments(&mut self, count: u64) -> u64 {
        let at = self.get(WORDS);
        self.bytes.resize((at + count * SEGMENT) as usize, 0);
        self.set(WORDS, at + count * SEGMENT);
        at
    }

    /// A block for `size` bytes.
    pub fn block(&mut self, size: u64) -> u64 {
        let Some(class) = SIZES.iter().position(|block| *block >= size) else {
            return self.segments(size.div_ceil(SEGMENT));
        };
        let at = match self.next[class] {
            0 => self.segments(1),
            at => at,
        };
        let next = at + SIZES[class];
        self.next[class] = if next % SEGMENT + SIZES[class] <= SEGMENT && !next.is_multiple_of(SEGMENT) { next } else { 0 };
        at
    }

    /// A record, in front of the others of its kind. The sum leaves out the first bytes of the payload.
    fn record(&mut self, kind: u32, payload: &[u8]) -> u64 {
        let head = WORDS + if kind == 1 { 24 } else { 32 };
        let at = self.block(24 + payload.len() as u64);
        let next = self.get(head);
        self.set(at, if next == 1 { 0 } else { next });
        self.set32(at + 20, u32::from(next == 1));
        self.set32(at + 8, kind);
        self.set32(at + 12, 24 + payload.len() as u32);
        self.put(at + 24, payload);
        self.seal_record(at);
        self.set(head, at);
        at
    }

    /// An entry of the undo log of section 77: eight zeros lay at `place`.
    pub fn undo_entry(&mut self, at: u64, place: u64) {
        self.undo_old(at, place, 0, 8);
    }

    /// An entry that says what so many bytes were.
    pub fn undo_old(&mut self, at: u64, place: u64, old: u64, bytes: u64) {
        let mix = |mut z: u64| {
            z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ z >> 31
        };
        let words = [place, old, bytes];
        words.iter().zip([0, 8, 16]).for_each(|(word, offset)| self.set(at + offset, *word));
        self.set(at + 24, words.iter().fold(mix(77), |sum, word| mix(sum ^ word)));
    }

    /// A class of this form, with fields in the order given: class, name, descriptor.
    pub fn add_class(&mut self, name: &'static str, form: u32, fields: &[(&str, &'static str, &str)]) {
        let mut class = Class { index: self.classes.len() as u32 + 1, instance: 24, fields: BTreeMap::new() };
        let mut described = Vec::new();
        for (declaring, field, descriptor) in fields {
            let offset = class.instance.next_multiple_of(width(descriptor));
            class.instance = offset + width(descriptor);
            class.fields.insert(field, offset);
            described.extend((offset as u32).to_le_bytes());
            described.extend(u32::from(descriptor.as_bytes()[0]).to_le_bytes());
            [declaring, field, descriptor].iter().for_each(|it| text(&mut described, it));
        }
        class.instance = class.instance.next_multiple_of(8);
        let mut payload = Vec::new();
        for number in [class.index, form, class.instance as u32, fields.len() as u32] {
            payload.extend(number.to_le_bytes());
        }
        text(&mut payload, name);
        payload.extend(described);
        let at = self.record(1, &payload);
        self.name(&format!("class {name}"), at);
        self.classes.insert(name, class);
    }

    pub fn root(&mut self, class: &str, field: &str, descriptor: &str, value: u64) -> u64 {
        let mut payload = value.to_le_bytes().to_vec();
        [class, field, descriptor].iter().for_each(|it| text(&mut payload, it));
        let at = self.record(2, &payload);
        self.name(&format!("root {class}.{field}"), at)
    }

    fn replica(&mut self, class: &str, length: u32, size: u64) -> u64 {
        let (index, at) = (self.class(class).index, self.block(size));
        self.set32(at, index);
        self.set32(at + 4, self.get32(WORDS + 16));
        self.set32(at + 20, length);
        at
    }

    /// An object; fields that are not given are zeros.
    pub fn object(&mut self, class: &str, fields: &[(&str, Value)]) -> u64 {
        let known = self.class(class).clone();
        let at = self.replica(class, 0, known.instance);
        for (name, value) in fields {
            self.put(at + known.fields[name], &value.bytes());
        }
        at
    }

    /// An array.
    pub fn array(&mut self, class: &str, elements: &[Value]) -> u64 {
        let bytes: Vec<u8> = elements.iter().flat_map(|value| value.bytes()).collect();
        let at = self.replica(class, elements.len() as u32, 24 + bytes.len() as u64);
        self.put(at + 24, &bytes);
        at
    }

    /// A constant.
    pub fn constant(&mut self, class: &str, text: &str) -> u64 {
        let at = self.replica(class, text.len() as u32, 24 + text.len() as u64);
        self.put(at + 24, text.as_bytes());
        at
    }
}
