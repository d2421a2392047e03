//! What a program consists of, and where each part lies.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::elf::{Elf, Kind};
use crate::error::{Error, Result};
use crate::file;
use crate::format::{ABC_LIBS, PAGE, RANGE_RODATA, RANGE_TEXT};
use crate::install::store_of;
use crate::split::AbcHead;
use crate::store::{Identity, Store, Text, hex};

/// Pages of a program, by what they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pages {
    /// Code.
    pub text: u64,
    /// Data that nobody writes to.
    pub rodata: u64,
    /// Data that is written to, as far as it lies in the file.
    pub data: u64,
}

impl Pages {
    /// The paper's S: text as a share of text and data.
    pub fn text_share(&self) -> f64 {
        let all = self.text + self.rodata + self.data;
        if all == 0 { 0.0 } else { self.text as f64 / all as f64 }
    }
}

/// What is known of a split program's text, or of a library's.
#[derive(Clone, Debug, Serialize)]
pub struct TextStat {
    /// Where it is looked for.
    #[serde(with = "towa_media::paths::one")]
    pub path: PathBuf,
    /// The store.
    #[serde(with = "towa_media::paths::one")]
    pub store: PathBuf,
    /// Pages mapped from there, text.
    pub text_pages: u64,
    /// Pages mapped from there, read-only data.
    pub rodata_pages: u64,
    /// Bytes that it takes there.
    pub allocated: u64,
    /// Whether it is immutable.
    pub sealed: bool,
    /// Why it could not be used, if so.
    pub problem: Option<String>,
}

/// What is known of a program or library.
#[derive(Clone, Debug, Serialize)]
pub struct Stat {
    /// Its path, without links.
    #[serde(with = "towa_media::paths::one")]
    pub path: PathBuf,
    /// `program`, `static program` or `library`.
    pub kind: &'static str,
    /// Length in bytes.
    pub len: u64,
    /// Bytes that it takes.
    pub allocated: u64,
    /// Pages, by what they are.
    pub pages: Pages,
    /// [`Pages::text_share`].
    pub text_share: f64,
    /// The linker's build-id.
    pub build_id: Option<String>,
    /// Whether text of its libraries may be mapped from the store as well.
    pub libs: bool,
    /// Its text elsewhere; `None`: it is not split.
    pub text: Option<TextStat>,
}

/// Looks at the program or library at `path`; whether a library has its text in a store, only that store can tell.
///
/// # Errors
/// It is none.
pub fn stat(path: &Path, store: Option<&Store>) -> Result<Stat> {
    let path = fs::canonicalize(path).map_err(Error::io(path, "finding"))?;
    let (file, about) = file::open(&path)?;
    let bytes = file::rest_of(&file, &path)?;
    let elf = Elf::read(&bytes).map_err(|why| Error::Unfit { path: path.clone(), why })?;
    let pages = pages(&elf);
    let head = AbcHead::find(&bytes).ok();
    let text = match (&head, store) {
        (Some(head), _) => Some(text_of_program(&path, &bytes, head)?),
        (None, Some(store)) => {
            let text = store.library_text(&Identity::of(&about));
            text.map(|text| text_stat(store.path().to_owned(), &text))
        }
        (None, None) => None,
    };
    let kind = match elf.kind {
        Kind::Library => "library",
        // A static program has had an interpreter since it was split, with no name in memory.
        Kind::Program if elf.segments.iter().any(|segment| segment.kind == object::elf::PT_INTERP && segment.address != 0) => {
            "program"
        }
        _ => "static program",
    };
    Ok(Stat {
        kind,
        len: about.len(),
        allocated: about.blocks() * 512,
        text_share: pages.text_share(),
        pages,
        build_id: elf.build_id.as_deref().map(hex),
        libs: head.is_some_and(|head| head.record.flags & ABC_LIBS != 0),
        text,
        path,
    })
}

/// Pages of each kind that the kernel maps.
pub fn pages(elf: &Elf) -> Pages {
    let mut pages = Pages::default();
    for segment in elf.loaded() {
        let (from, to) = segment.pages();
        let count = (to - from) / PAGE;
        match (segment.is_text(), segment.is_rodata()) {
            (true, _) => pages.text += count,
            (_, true) => pages.rodata += count,
            _ => pages.data += count,
        }
    }
    pages
}

fn text_of_program(path: &Path, bytes: &[u8], head: &AbcHead) -> Result<TextStat> {
    let (_, store_path) = store_of(path, bytes)?;
    let found = Store::open(&store_path).and_then(|store| store.text(&head.record.key));
    Ok(match found {
        Ok(text) => text_stat(store_path, &text),
        Err(problem) => TextStat {
            path: store_path.join("xyz").join(hex(&head.record.key[..1])).join(hex(&head.record.key[1..16]) + ".xyz"),
            store: store_path,
            text_pages: 0,
            rodata_pages: 0,
            allocated: 0,
            sealed: false,
            problem: Some(problem.to_string()),
        },
    })
}

fn text_stat(store: PathBuf, text: &Text) -> TextStat {
    let pages = |kind: u32| text.record.ranges().iter().filter(|range| range.kind == kind).map(|range| range.len / PAGE).sum();
    TextStat {
        path: text.path.clone(),
        store,
        text_pages: pages(RANGE_TEXT),
        rodata_pages: pages(RANGE_RODATA),
        allocated: text.allocated,
        sealed: text.is_sealed(),
        problem: None,
    }
}
