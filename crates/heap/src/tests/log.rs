//! What the log holds and this version does not know, or does not believe.

use towa_media::Allocation;

use super::*;
use crate::checksum::checksum;
use crate::log::COMMIT_SLOT;
use crate::names;

const FRAME: usize = 64 + 64 + 64; // header, a line, its run
const RING: u64 = 256 * COMMIT_SLOT;

/// Changes the header of the first frame of the log, and gives the frame, and the record that speaks of it, the checksums that fit.
fn change_frame(medium: &SimMedium, epoch: u64, change: impl Fn(&mut [u8])) {
    let mut sum = 0;
    let frame = |bytes: &mut [u8]| {
        change(bytes);
        sum = checksum(checksum(1, &bytes[..48]), &bytes[64..]);
        bytes[48..56].copy_from_slice(&sum.to_le_bytes());
    };
    tamper(medium, names::LOG, RING, frame, FRAME);
    change_record(medium, epoch, |bytes| {
        let digest = checksum(0, &sum.to_le_bytes());
        bytes[88..96].copy_from_slice(&digest.to_le_bytes());
    });
}

fn change_record(medium: &SimMedium, epoch: u64, change: impl Fn(&mut [u8])) {
    let record = |bytes: &mut [u8]| {
        change(bytes);
        let sum = checksum(u64::from_le_bytes(*b"TCOMMIT1"), &bytes[..248]);
        bytes[248..].copy_from_slice(&sum.to_le_bytes());
    };
    tamper(medium, names::LOG, epoch * COMMIT_SLOT, record, 256);
}

fn pool_with_an_epoch(medium: &SimMedium) {
    let heap = create(medium);
    commit(&heap, heap.recovered(), &[(DATA, 7)]);
}

#[test]
fn what_is_put_together_by_hand_is_accepted() {
    for medium in both_models() {
        pool_with_an_epoch(&medium);
        change_frame(&medium, 1, |_| ());
        assert_eq!(line_of(&open(&medium).unwrap(), DATA), [7; 64]);
    }
}

#[test]
fn frames_and_records_of_a_kind_to_come_are_refused() {
    for medium in both_models() {
        pool_with_an_epoch(&medium);
        change_frame(&medium, 1, |frame| frame[4] = 1);
        let said = refusal(&medium);
        assert!(said.contains("does not know"), "{said}");
    }
    for medium in both_models() {
        pool_with_an_epoch(&medium);
        change_record(&medium, 1, |record| record[68] |= 2);
        let said = refusal(&medium);
        assert!(said.contains("does not know"), "{said}");
    }
}

/// An epoch that was being written when the process died is written again, under the same number, by the next generation: on sync
/// media its record may be there and the old frames still.
#[test]
fn frames_of_another_generation_are_not_this_epochs() {
    for medium in both_models() {
        pool_with_an_epoch(&medium);
        change_frame(&medium, 1, |frame| frame[8] += 1);
        if medium.durability() == towa_media::Durability::Line {
            assert!(refusal(&medium).contains("is not there"));
        } else {
            assert!(open(&medium).unwrap().recovery().dropped_incomplete);
        }
    }
}

/// The files of a pool, on a medium of the other kind.
fn moved(from: &SimMedium, model: Model) -> SimMedium {
    let to = SimMedium::new(model);
    for name in [names::SUPERBLOCK, names::IMAGE, names::LOG] {
        let source = from.open(name, Access::ReadOnly).unwrap();
        let copy = to.create(name, source.len(), Allocation::Full).unwrap();
        let mut bytes = vec![0; source.len() as usize];
        source.read(0, &mut bytes).unwrap();
        copy.stream(0, &bytes).unwrap();
        copy.fence().unwrap();
    }
    to.sync_names().unwrap();
    to
}

/// An epoch of line media has its frames before it has its record: a frame that is missing was acknowledged, and is damage, also where
/// the pool was moved to a sync medium. And the other way round.
#[test]
fn where_an_epoch_was_written_says_whether_it_may_lack_frames() {
    for (written_on, opened_on) in [(Model::Line, Model::File), (Model::File, Model::Line)] {
        let medium = SimMedium::new(written_on);
        pool_with_an_epoch(&medium);
        tamper(&medium, names::LOG, RING, |frame| frame[100] ^= 1, FRAME);
        let medium = moved(&medium, opened_on);
        if written_on == Model::Line {
            assert!(refusal(&medium).contains("wrong checksum"));
        } else {
            assert!(open(&medium).unwrap().recovery().dropped_incomplete);
        }
    }
}
