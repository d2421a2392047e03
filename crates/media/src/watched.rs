//! The bytes of a file, read while another process writes them.

use std::fs::File;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::{Error, Mapping, Region, Result};

/// Bytes of a word, which is read in one.
const WORD: usize = 8;

/// A file's bytes to look at while another process writes them: word by word, without calls.
///
/// What must always hold: nothing here writes, and no reference to the bytes leaves; each word is read as it was at one moment. Words that are
/// read one after the other may be of different moments.
///
/// Reading a hole of a file on tmpfs takes memory for it. If the file becomes shorter, reading beyond its end ends this process with
/// SIGBUS, as it does with every mapping.
#[derive(Debug)]
pub struct Watched {
    mapping: Mapping,
}

impl Watched {
    /// The bytes of a region; `None` if it is no file.
    pub fn of(region: &dyn Region) -> Result<Option<Watched>> {
        let Some(file) = region.file() else { return Ok(None) };
        let failed = |e| Error::from_io("the file of a region", "duplicating a descriptor", 0, e);
        let file = File::from(file.try_clone_to_owned().map_err(failed)?);
        let mapping = Mapping::shared(&file, region.len() as usize, false, false, "the file of a region")?;
        Ok(Some(Watched { mapping }))
    }

    /// Reads whole words from `off` on: `off` and the length are multiples of 8.
    ///
    /// # Panics
    /// If they are not, or the words are not all in the region.
    pub fn read(&self, off: u64, into: &mut [u8]) {
        let words = self.words(off, into.len());
        for (word, into) in words.zip(into.chunks_exact_mut(WORD)) {
            into.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        // What is read after this was there after what was read before.
        fence(Ordering::Acquire);
    }

    fn words(&self, off: u64, len: usize) -> impl Iterator<Item = &AtomicU64> {
        let range: Range<usize> = off as usize..off as usize + len;
        assert!(range.start.is_multiple_of(WORD) && len.is_multiple_of(WORD), "{off}, {len}: no whole words");
        assert!(range.end <= self.mapping.len(), "{off}, {len}: beyond the {} bytes of the region", self.mapping.len());
        let first = self.mapping.as_ptr();
        // SAFETY: the word is in the mapping, which begins with a page, and is as long as `self`. Others may write it, this only reads it: a
        // relaxed load of a word may be of memory that is mapped for reading alone.
        range.step_by(WORD).map(move |at| unsafe { AtomicU64::from_ptr(first.add(at).cast()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, Allocation, Medium, RamMedium};

    #[test]
    fn it_shows_what_is_written_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let medium = RamMedium::open(dir.path(), true, None).unwrap();
        let region = medium.create("r", 8192, Allocation::Full).unwrap();
        let reader = medium.open("r", Access::ReadOnly).unwrap();
        let watched = Watched::of(&*reader).unwrap().expect("a file");
        let mut found = [1; 24];
        watched.read(4088, &mut found);
        assert_eq!(found, [0; 24]);
        region.store(4096, &[7; 8]).unwrap();
        region.write_back(4096, 8);
        region.fence().unwrap();
        watched.read(4088, &mut found);
        assert_eq!((&found[..8], &found[8..16], &found[16..]), (&[0; 8][..], &[7; 8][..], &[0; 8][..]));
        let beyond = std::panic::catch_unwind(|| watched.read(8184, &mut [0; 16]));
        assert!(beyond.is_err(), "beyond the end");
        let anonymous = RamMedium::anonymous().create("r", 4096, Allocation::Full).unwrap();
        assert!(Watched::of(&*anonymous).is_ok());
    }
}
