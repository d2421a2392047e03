//! Content of simulated regions: copy-on-write pages, so that a copy costs microseconds and a changed copy the changed pages.
//!
//! ```text
//!   Pages ─► [chunk][none][chunk] ...            none: all zero
//!               └─► [page][none] ... 64 of them
//!                      └─► 4096 bytes            shared until written
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::{LINE, PAGE};

const CHUNK_PAGES: usize = 64;
const CHUNK: usize = CHUNK_PAGES * PAGE;

type Page = [u8; PAGE];
type Chunk = [Option<Arc<Page>>; CHUNK_PAGES];

/// The bytes of one region.
#[derive(Clone)]
pub(super) struct Pages {
    len: u64,
    chunks: Vec<Option<Arc<Chunk>>>,
}

/// Names and contents at one moment.
#[derive(Clone, Default)]
pub(super) struct Snapshot {
    pub names: BTreeMap<Arc<str>, u32>,
    pub regions: BTreeMap<u32, Pages>,
}

impl Pages {
    pub fn zeroed(len: u64) -> Pages {
        Pages { len, chunks: vec![None; len.div_ceil(CHUNK as u64) as usize] }
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    /// `off..off + into.len()` must lie inside.
    pub fn read(&self, off: u64, into: &mut [u8]) {
        let mut done = 0;
        while done < into.len() {
            let at = off as usize + done;
            let n = (PAGE - at % PAGE).min(into.len() - done);
            let part = &mut into[done..done + n];
            let page = self.chunks[at / CHUNK].as_ref().and_then(|chunk| chunk[at % CHUNK / PAGE].as_ref());
            match page {
                Some(page) => part.copy_from_slice(&page[at % PAGE..][..n]),
                None => part.fill(0),
            }
            done += n;
        }
    }

    /// What does not lie inside is cut off: a region whose length did not survive keeps nothing beyond it.
    pub fn write(&mut self, off: u64, bytes: &[u8]) {
        let inside = self.len.saturating_sub(off).min(bytes.len() as u64) as usize;
        let mut done = 0;
        while done < inside {
            let at = off as usize + done;
            let n = (PAGE - at % PAGE).min(inside - done);
            self.page(at)[at % PAGE..][..n].copy_from_slice(&bytes[done..done + n]);
            done += n;
        }
    }

    /// Line `number`, to be written: what of it lies inside.
    pub fn line(&mut self, number: u64) -> &mut [u8] {
        let at = number * LINE as u64;
        let len = self.len.saturating_sub(at).min(LINE as u64) as usize;
        if len == 0 { &mut [] } else { &mut self.page(at as usize)[at as usize % PAGE..][..len] }
    }

    /// The page of an offset that lies inside.
    fn page(&mut self, at: usize) -> &mut Page {
        let chunk = self.chunks[at / CHUNK].get_or_insert_with(|| Arc::new([const { None }; CHUNK_PAGES]));
        Arc::make_mut(Arc::make_mut(chunk)[at % CHUNK / PAGE].get_or_insert_with(|| Arc::new([0; PAGE])))
    }

    /// Makes page `number` what it is in `from`.
    pub fn copy_page(&mut self, from: &Pages, number: u64) {
        let mut page = [0; PAGE];
        let off = number * PAGE as u64;
        let len = from.len.min(self.len).saturating_sub(off).min(PAGE as u64) as usize;
        from.read(off, &mut page[..len]);
        self.write(off, &page[..len]);
    }

    /// Shortens to `len`.
    pub fn truncate(&mut self, len: u64) {
        debug_assert!(len <= self.len);
        self.len = len;
        self.chunks.truncate(len.div_ceil(CHUNK as u64) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_not_changed_by_its_original() {
        let mut pages = Pages::zeroed(3 * CHUNK as u64 + 100);
        let text: Vec<u8> = (0..10_000u32).map(|i| i as u8).collect();
        let off = CHUNK as u64 - 5000;
        pages.write(off, &text);
        let copy = pages.clone();
        pages.write(off + 10, &[0xFF; 9000]);
        let mut read = vec![1; 10_000];
        copy.read(off, &mut read);
        assert_eq!(read, text);
        pages.read(off, &mut read);
        assert_eq!((read[9], read[10], read[9009], read[9010]), (9, 0xFF, 0xFF, text[9010]));
    }

    #[test]
    fn ends_are_respected() {
        let mut pages = Pages::zeroed(100);
        pages.write(90, &[1; 50]);
        let mut read = [9; 100];
        pages.read(0, &mut read);
        assert_eq!((read[89], read[90], read[99]), (0, 1, 1));
        pages.truncate(0);
        pages.write(0, &[1]);
        pages.read(0, &mut []);
        assert_eq!(pages.len(), 0);
    }
}
