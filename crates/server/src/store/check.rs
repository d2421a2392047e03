//! Verifying a whole store, without trusting a pointer or a length in it.
//!
//! What must always hold: every address is checked to lie in the heap before it is followed, so a damaged store is a message and not
//! a crash; nothing is written.

use towa_epoch::Pool;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::item::{HEAD_LEN, Item};
use super::root::{self, Roots};
use super::table::{BITS_MIN, BUCKETS, SEGMENT_BLOCK, STRIPES, Shape, Table, bucket_of};
use crate::error::{Error, Result};

/// What a sound store holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreReport {
    /// Items. Expired, flushed and lost ones count until they are removed.
    pub items: u64,
    /// Those of them that were evicted and came back without key and value, as a crash undid that. A server removes them.
    pub lost: u64,
    /// Bytes of their blocks.
    pub bytes: u64,
    /// Bucket lines of the table.
    pub lines: u64,
}

/// Verifies the store in `pool`, which nobody uses meanwhile: every segment of the table is there, every line is of the level
/// that the table's shape allows, every item hangs in the line and the bucket that the hash of its key says, once, and each stripe
/// holds the items, bytes and expiring items that it counts. `None` if the pool holds no store.
///
/// # Errors
/// [`Error::Damaged`] says what and where; [`Error::Foreign`] for a store of another version.
pub fn check(pool: &Pool) -> Result<Option<StoreReport>> {
    let Some(roots) = Roots::find(pool)? else { return Ok(None) };
    let checker = Checker { pool, table: Table::new(pool, roots.shape()), shape: roots.shape(), seed: roots.seed(), roots };
    checker.publish_segments()?;
    let mut report = StoreReport { lines: checker.shape.lines(), ..StoreReport::default() };
    for stripe in 0..STRIPES {
        let Found { counts: (items, bytes, _), lost } = checker.stripe(stripe)?;
        report.items += items;
        report.bytes += bytes;
        report.lost += lost;
    }
    Ok(Some(report))
}

struct Checker<'p> {
    pool: &'p Pool,
    roots: Roots,
    table: Table,
    shape: Shape,
    seed: u64,
}

/// What was found in a stripe.
#[derive(Default)]
struct Found {
    /// Items, bytes, expiring items.
    counts: (u64, u64, u64),
    lost: u64,
}

impl Checker<'_> {
    fn holds(&self, address: u64, len: usize) -> bool {
        let (base, heap_len) = self.pool.heap_range();
        let (base, len) = (base as u64, len as u64);
        address.is_multiple_of(8) && address >= base && len <= heap_len && address - base <= heap_len - len
    }

    /// Tells the table where its segments are, after a look at each address.
    fn publish_segments(&self) -> Result<()> {
        for level in 0..=self.shape.bits - BITS_MIN {
            let count = root::segments_of(level);
            if !self.holds(self.roots.list(level), count * 8) {
                return damaged(format!("the list of segments of level {level} is at {:#x}", self.roots.list(level)));
            }
            for index in 0..count {
                let segment = self.roots.segment(level, index);
                match segment.filter(|block| self.holds(block.as_ptr().addr() as u64, SEGMENT_BLOCK)) {
                    Some(block) => self.table.set_segment(root::first_segment(level) + index, block),
                    None => return damaged(format!("segment {index} of level {level} is at {segment:?}")),
                }
            }
        }
        Ok(())
    }

    /// What a stripe holds, which is what it counts.
    fn stripe(&self, stripe: usize) -> Result<Found> {
        let counted = self.roots.stripe(stripe);
        // No more than there is room for, whatever is counted: a chain may lead back to itself.
        let most = counted.0.min(self.pool.heap_range().1 / HEAD_LEN as u64);
        let mut found = Found::default();
        for index in (stripe as u64..self.shape.lines()).step_by(STRIPES) {
            if let Some(bits) = self.bits_of(index)? {
                self.line(index, bits, most, &mut found)?;
            }
        }
        if found.counts != counted {
            let counts = found.counts;
            return damaged(format!("stripe {stripe} has {counts:?} items, bytes and expiring items, and counts {counted:?}"));
        }
        Ok(found)
    }

    /// How many bits of a hash lead to line `index`; `None` for one of the upper half that was not split off yet.
    fn bits_of(&self, index: u64) -> Result<Option<u32>> {
        let Shape { bits, splitting } = self.shape;
        let half = self.shape.lines() / 2;
        // SAFETY: the line lies in a segment that was looked at and published.
        let level = |index| unsafe { (*self.table.line(index)).level };
        let waits = |lower| splitting && level(lower) == u64::from(bits) - 1;
        if index >= half && waits(index - half) {
            return Ok(None);
        }
        match level(index) {
            found if found == u64::from(bits) => Ok(Some(bits)),
            _ if index < half && waits(index) => Ok(Some(bits - 1)),
            found => damaged(format!("line {index} of a table of 2^{bits} is of level {found}")),
        }
    }

    fn line(&self, index: u64, bits: u32, most: u64, found: &mut Found) -> Result<()> {
        for bucket in 0..BUCKETS {
            // SAFETY: as in `bits_of`.
            let mut next = unsafe { (*self.table.line(index)).heads[bucket] };
            let mut keys: Vec<&[u8]> = Vec::new();
            while next != 0 {
                let item = self.item(next).map_err(|why| broken(index, bucket, next, &why))?;
                // SAFETY: `item` looked at the lengths, and nobody changes the pool meanwhile.
                let key: &[u8] = unsafe { std::slice::from_raw_parts(item.key().as_ptr(), item.key().len()) };
                // Of a lost item only the head is defined.
                if !item.is_lost() {
                    let hash = xxh3_64_with_seed(key, self.seed);
                    if hash != item.hash() {
                        return Err(broken(index, bucket, next, &format!("has not the hash {hash:#x} of its key")));
                    }
                    if keys.contains(&key) {
                        return Err(broken(index, bucket, next, "has the key of another one"));
                    }
                    keys.push(key);
                }
                let hash = item.hash();
                if hash & ((1 << bits) - 1) != index || bucket_of(hash) != bucket {
                    return Err(broken(index, bucket, next, &format!("is not where its hash {hash:#x} belongs")));
                }
                if found.counts.0 == most {
                    return Err(broken(index, bucket, next, &format!("is one more than the {most} that its stripe counts")));
                }
                let (items, bytes, expiring) = found.counts;
                found.counts = (items + 1, bytes + item.room() as u64, expiring + u64::from(item.expires() != 0));
                found.lost += u64::from(item.is_lost());
                next = item.next();
            }
        }
        Ok(())
    }

    /// The item at `address`, if there can be one.
    fn item(&self, address: u64) -> std::result::Result<Item, String> {
        if !self.holds(address, HEAD_LEN) {
            return Err("lies outside the heap".into());
        }
        // SAFETY: a head's bytes lie in the heap there; any bytes are a head, and its lengths are looked at before they are used.
        let item = unsafe { Item::any_at(address) }.ok_or("is at an address where no item can be")?;
        let (size, room) = (item.size(), item.room());
        if !item.is_sized() || !self.holds(address, room) {
            return Err(format!("says it has {size} bytes in a block of {room}"));
        }
        if !item.is_lost() && !item.data().ends_with(b"\r\n") {
            return Err("has a value without its end".into());
        }
        if item.cas() >= self.roots.cas_limit() {
            return Err(format!("has CAS id {}, beyond those given out", item.cas()));
        }
        Ok(item)
    }
}

fn broken(line: u64, bucket: usize, address: u64, why: &str) -> Error {
    Error::Damaged(format!("the item at {address:#x}, in bucket {bucket} of line {line}, {why}"))
}

fn damaged<T>(what: String) -> Result<T> {
    Err(Error::Damaged(what))
}
