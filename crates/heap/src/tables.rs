//! The checksum of what opening believes of an image: its root table and the headers of its runs. A clean close
//! records it, so that a page of zeros, or an older version of a page, in the image of a closed pool is damage.
//!
//! What must always hold: a superblock that says "clean" has the sum of the image as it is.

use towa_media::Region;

use crate::alloc::{self, CHUNK};
use crate::checksum::checksum;
use crate::roots::TABLE_LEN;
use crate::superblock::Superblock;
use crate::{Result, roots};

/// Bytes read at a time.
const STEP: u64 = 1 << 20;

/// The sum of an image with this frontier.
pub(crate) fn sum(image: &dyn Region, sb: &Superblock, frontier: u64) -> Result<u64> {
    let mut table = vec![0; TABLE_LEN as usize];
    image.read(0, &mut table)?;
    let mut sum = sum_of_roots(&table);
    let end = alloc::headers_in_use_end(sb.heap_len, CHUNK, frontier);
    for off in (CHUNK..end).step_by(STEP as usize) {
        table.resize((end - off).min(STEP) as usize, 0);
        image.read(off, &mut table)?;
        sum = checksum(sum, &table);
    }
    Ok(sum)
}

/// The sum of an image whose frontier is that of an empty heap.
pub(crate) fn sum_of_roots(table: &[u8]) -> u64 {
    checksum(0, table)
}

const _: () = assert!(roots::TABLE_LEN == CHUNK);

/// Checks the image of a pool that was closed cleanly.
pub(crate) fn check(image: &dyn Region, sb: &Superblock, frontier: u64) -> Result<std::result::Result<(), String>> {
    if sb.clean == 0 || sum(image, sb, frontier)? == sb.tables {
        return Ok(Ok(()));
    }
    Ok(Err("the root table and the run headers of the image are not those of the clean close".into()))
}
