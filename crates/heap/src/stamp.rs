//! The stamp of a file: which pool it belongs to, and of which moment it is.
//!
//! ```text
//!   file `image` or `log`:   | its bytes ... | slot 0 (4096 bytes) | slot 1 (4096 bytes) |      a record is 128 bytes at the start of a slot
//! ```
//!
//! Three files are a pool only together, and only as they were at one moment. Each opening and each clean close draws
//! a number at random, the *stamp*, which the superblock and both files get. A file of another opening, of another
//! pool, or of a copy that went its own way has another one, and is refused. Within an opening, the stamp of the
//! image says too how far the image goes; a log or a superblock that says otherwise is of another moment.
//!
//! A new stamp comes in these steps; stopping after any of them is safe:
//! 1. both files get the new stamp, with that of the superblock as the one before it; fence: the superblock still has
//!    the old stamp, and accepts both files, because each names it;
//! 2. the superblock gets the new stamp; fence: it accepts both files by their newest stamp;
//! 3. before the image is next written, it forgets the stamp before ([`settle`]): from here on the old superblock is
//!    refused beside it.
//!
//! A record is updated as the superblock's are: it overwrites the older slot, and the other one is overwritten only
//! after a fence. So one valid record is always there.

use bytemuck::{Pod, Zeroable};
use towa_media::{Medium, Region};

use crate::checksum::checksum;
use crate::superblock::Superblock;
use crate::{Error, Result, names};

/// First bytes of every record.
const MAGIC: [u8; 8] = *b"TOWASTMP";
/// Bytes between slots.
const SLOT: u64 = 4096;
/// Bytes of both slots, at the end of a file.
pub(crate) const LEN: u64 = 2 * SLOT;

/// How far an image goes: the generation of lanes (0 in pools of the epoch door), and in it the epoch or timestamp.
pub(crate) type Reach = (u64, u64);

/// A record, as stored (little endian).
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Stamp {
    magic: [u8; 8],
    /// The pool's.
    uuid: [u8; 16],
    /// Name of the file, zero-padded.
    file: [u8; 8],
    /// Grows by one with each update; the greater wins.
    seq: u64,
    /// The newest stamp.
    pub stamp: u64,
    /// The stamp before, while the superblock may still have that; else 0.
    pub previous: u64,
    /// The image holds everything up to this, and perhaps more. Of a log: zeros.
    pub generation: u64,
    /// See `generation`.
    pub reach: u64,
    reserved: [u64; 6],
    /// Of all bytes before, seeded with the magic.
    checksum: u64,
}

const _: () = assert!(size_of::<Stamp>() == 128);

impl Stamp {
    /// The record of a new file `name`.
    pub fn of_new_file(sb: &Superblock, name: &str) -> Stamp {
        Stamp { magic: MAGIC, uuid: sb.uuid, file: file_name(name), stamp: sb.stamp, ..Stamp::zeroed() }
    }

    /// This, for an image that goes so far.
    pub fn reaching(self, (generation, reach): Reach) -> Stamp {
        Stamp { generation, reach, ..self }
    }

    fn sum(&self) -> u64 {
        checksum(u64::from_le_bytes(MAGIC), &bytemuck::bytes_of(self)[..120])
    }

    fn is_whole(&self) -> bool {
        self.magic == MAGIC && self.checksum == self.sum()
    }

    /// How far the image goes.
    pub fn reach(&self) -> Reach {
        (self.generation, self.reach)
    }

    /// Writes this with the next `seq` over the older slot of `region`. Durable behind the next fence of the region
    /// by this thread, which comes before the next write of its stamp.
    pub fn write(&mut self, region: &dyn Region) -> Result<()> {
        self.seq += 1;
        self.store(region)
    }

    fn off(&self, region: &dyn Region) -> u64 {
        region.len() - LEN + self.seq % 2 * SLOT
    }

    fn store(&mut self, region: &dyn Region) -> Result<()> {
        self.checksum = self.sum();
        let off = self.off(region);
        region.store(off, bytemuck::bytes_of(self))?;
        region.write_back(off, size_of::<Stamp>() as u64);
        Ok(())
    }
}

fn file_name(name: &str) -> [u8; 8] {
    let mut file = [0; 8];
    file[..name.len()].copy_from_slice(name.as_bytes());
    file
}

/// A number that no other opening has.
pub(crate) fn draw() -> u64 {
    let bits = uuid::Uuid::new_v4().as_u128();
    // Six bits of a UUID say which kind it is; all others are random.
    (bits as u64 ^ (bits >> 64) as u64).max(1)
}

/// The newest whole record of `region`, unchecked.
pub(crate) fn newest(region: &dyn Region) -> Result<Option<Stamp>> {
    let mut slots = [Stamp::zeroed(); 2];
    for (i, slot) in slots.iter_mut().enumerate() {
        region.read(region.len() - LEN + i as u64 * SLOT, bytemuck::bytes_of_mut(slot))?;
    }
    Ok(slots.into_iter().filter(Stamp::is_whole).max_by_key(|slot| slot.seq))
}

/// The newest record of a file that this process, or the owner beside it, has open: it was there when the pool was
/// opened.
fn of_open(region: &dyn Region) -> Result<Stamp> {
    let lost = || Error::Damaged { pool: "an open pool".into(), what: "the stamp of `image` or `log` was overwritten".into() };
    newest(region)?.ok_or_else(lost)
}

/// The stamp of file `name`, which must belong to `sb`.
pub(crate) fn read(medium: &dyn Medium, region: &dyn Region, name: &str, sb: &Superblock) -> Result<Stamp> {
    let damaged = |what: String| Error::Damaged { pool: medium.location(), what };
    let Some(found) = newest(region)? else {
        return Err(damaged(format!("file `{name}` has no valid stamp at its end")));
    };
    if found.uuid != sb.uuid {
        let why = format!("file `{name}` belongs to another pool than file `superblock`");
        return Err(Error::Foreign { pool: medium.location(), why });
    }
    if found.file != file_name(name) || found.reserved != [0; 6] {
        return Err(damaged(format!("file `{name}` has the stamp of another file, or one that this program does not know")));
    }
    if found.stamp == sb.stamp || (found.previous == sb.stamp && sb.stamp != 0) {
        return Ok(found);
    }
    Err(damaged(format!("file `{name}` {OTHER_MOMENT} `superblock`")))
}

/// How a message about a file that does not fit goes on.
const OTHER_MOMENT: &str = "is of another moment than file";

/// The stamps of `image` and `log`, which must belong to `sb`.
pub(crate) fn read_both(medium: &dyn Medium, (image, log): (&dyn Region, &dyn Region), sb: &Superblock) -> Result<(Stamp, Stamp)> {
    Ok((read(medium, image, names::IMAGE, sb)?, read(medium, log, names::LOG, sb)?))
}

/// Checks how far the image goes against the log: from `least`, where the log begins, to `most`, the newest that the
/// log holds.
pub(crate) fn check_reach(image: &Stamp, sb: &Superblock, least: Reach, most: Reach) -> std::result::Result<(), String> {
    // An opening that was interrupted has stamped the image for lanes that are yet to come.
    let is_opening = image.stamp != sb.stamp && image.reach() == (least.0 + 1, 0);
    if is_opening || (least..=most).contains(&image.reach()) {
        return Ok(());
    }
    Err(format!("file `{}` {OTHER_MOMENT} `{}`", names::IMAGE, names::LOG))
}

/// Writes the newest record again: an earlier process may have left it visible and not durable, and the next update takes
/// the place of the record before it. Durable behind the next fence of the region by this thread.
pub(crate) fn write_again(region: &dyn Region, found: &Stamp) -> Result<()> {
    Ok(region.rewrite(found.off(region), bytemuck::bytes_of(found))?)
}

/// Step 1 for one of the files: stamp `new`, with `old`, the superblock's, before it; and the image this reach, if
/// one is given. The newest record is durable, and so is what this thread stored in the file before.
pub(crate) fn renew(region: &dyn Region, (old, new): (u64, u64), reach: Option<Reach>) -> Result<()> {
    renew_unfenced(region, (old, new), reach)?;
    Ok(region.fence()?)
}

/// [`renew`], durable behind the next fence of the region by this thread.
pub(crate) fn renew_unfenced(region: &dyn Region, (old, new): (u64, u64), reach: Option<Reach>) -> Result<()> {
    let mut found = of_open(region)?;
    (found.stamp, found.previous) = (new, old);
    (found.generation, found.reach) = reach.unwrap_or(found.reach());
    found.write(region)
}

/// Step 3, if it was not done yet.
pub(crate) fn settle(region: &dyn Region) -> Result<()> {
    let mut found = of_open(region)?;
    if found.previous != 0 {
        found.previous = 0;
        found.write(region)?;
        region.fence()?;
    }
    Ok(())
}

/// Has the image say that it goes as far as `reach`. Durable behind the fence that makes the image's bytes durable.
pub(crate) fn advance(image: &dyn Region, reach: Reach) -> Result<()> {
    let mut found = of_open(image)?;
    (found.generation, found.reach) = reach;
    found.write(image)
}
