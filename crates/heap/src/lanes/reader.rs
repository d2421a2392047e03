//! Reading lanes beside their writers: what is whole is given, up to the first place where nothing is.

use towa_media::Region;

use super::Geometry;
use super::cursor::Cursor;
use super::record::{self, Words};
use super::recover::says;
use crate::Result;
use crate::superblock::Superblock;

/// What is done with a record: its timestamp, words, and frontier.
pub(crate) type Each<'e> = dyn FnMut(u64, &[u64], Option<u64>) + 'e;

/// Reads records of one generation; copies them before it looks at them.
pub(crate) struct Reader<'r> {
    log: &'r dyn Region,
    geometry: Geometry,
    generation: u64,
}

impl<'r> Reader<'r> {
    pub fn new(log: &'r dyn Region, sb: &Superblock, generation: u64) -> Reader<'r> {
        Reader { log, geometry: Geometry::of(sb), generation }
    }

    /// Calls `each` with timestamp, words, and frontier of every record of `lane` from `position` on. Gives the
    /// position after the last; what is wrong with a record that has a right checksum is said.
    pub fn read(&self, lane: usize, position: u64, each: &mut Each<'_>) -> Result<std::result::Result<u64, String>> {
        let seed = record::lane_seed(&self.geometry.uuid, self.generation, lane);
        let span = (position, position + self.geometry.lane_len);
        let mut cursor = Cursor::new(self.log, &self.geometry, lane, seed, span, false);
        loop {
            match cursor.find()? {
                Ok(true) => {}
                Ok(false) => return Ok(Ok(cursor.position)),
                Err(fault) => return Ok(Err(says(&fault))),
            }
            let ts = cursor.ts();
            let words = cursor.record()?;
            each(ts, words, record::frontier(words));
        }
    }

    /// Calls `each` with the number of the first word and the values of each run of a record.
    pub fn each_run(words: &[u64], mut each: impl FnMut(u64, &[u64])) {
        let done: std::result::Result<(), ()> = record::each_run(words, |Words { first, values }| {
            each(first, values);
            Ok(())
        });
        debug_assert!(done.is_ok());
    }
}
