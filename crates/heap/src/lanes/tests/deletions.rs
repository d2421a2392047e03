//! Every write-back and fence of the protocol is needed: one deleted from the trace must be missed.
//!
//! Of each kind some events are deleted, one at a time, and each must be noticed. Some cuts are not needed, when nothing is written into
//! the space that they free before the next; of these kinds one in those drawn has to be.
//!
//! Truly redundant, and therefore no kinds here: the write-back of a line that is written back once more before the fence; the superblock's
//! update at opening (it counts openings, and the cut is what recovery goes by), and recovery's write-back of records that were fenced before
//! the crash.

use towa_media::sim::{CrashImage, EventInfo, EventKind, Explorer, Trace};

use super::crash::{FENCED, History, notes_before};
use super::*;

/// Events of a kind that are deleted.
const SINGLES: usize = 6;

/// Bytes of the heap, after which the image has its stamp.
const HEAP: u64 = 8 << 20;

/// A kind: its name, whether each that is drawn must be noticed, and which events are of it (with whether the event before in the log
/// was that of a cut; of events of the image, whether its heap was written since its last fence).
type Kind = (&'static str, bool, fn(&EventInfo<'_>, bool) -> bool);

type Is = fn(&EventInfo<'_>) -> bool;

fn is(event: &EventInfo<'_>, kind: EventKind, region: &str) -> bool {
    event.kind() == kind && event.region() == Some(region)
}

fn is_cut(event: &EventInfo<'_>) -> bool {
    event.range().is_some_and(|(off, len)| off < 8192 && len == 640)
}

fn is_word(event: &EventInfo<'_>) -> bool {
    event.range().is_some_and(|(off, _)| off < HEAP)
}

fn is_stamp(event: &EventInfo<'_>) -> bool {
    let end = if event.region() == Some("image") { HEAP } else { 8192 + 3 * (64 << 10) };
    event.range().is_some_and(|(off, _)| off >= end)
}

/// Events of a kind, and the one before each of the same region, from event `from` up to `to`.
fn events_of(trace: &Trace, (from, to): (usize, usize), is: impl Fn(&EventInfo<'_>, bool) -> bool) -> Vec<usize> {
    let (mut after_cut, mut after_words) = (false, false);
    let mut found = Vec::new();
    for event in trace.events() {
        let after = if event.region() == Some("image") { after_words } else { after_cut };
        if (from..to).contains(&event.index()) && is(&event, after) {
            found.push(event.index());
        }
        if event.region() == Some("image") {
            after_words |= is_word(&event);
            after_words &= event.kind() != EventKind::Fence;
        }
        if event.region() == Some("log") {
            after_cut =
                event.kind() == EventKind::WriteBack && is_cut(&event) || event.kind() == EventKind::Store && is_cut(&event);
        }
    }
    found.retain(|event| !comes_again(trace, *event));
    found
}

/// Whether the same lines of the region are written back once more before its next fence.
fn comes_again(trace: &Trace, event: usize) -> bool {
    let mut later = trace.events().skip(event);
    let this = later.next().expect("an event of the trace");
    let mut later = later.filter(|other| other.region() == this.region());
    let again = |other: &EventInfo<'_>| other.kind() == EventKind::WriteBack && other.range() == this.range();
    this.kind() == EventKind::WriteBack
        && later.find(|other| other.kind() == EventKind::Fence || again(other)).is_some_and(|it| again(&it))
}

type Check<'c> = dyn FnMut(&CrashImage<'_, '_>) -> std::result::Result<(), String> + 'c;

/// Whether a check of the recovered pool fails when `doomed` is gone: after a crash soon after it, soon before the region's next fence (when most
/// is in flight), soon after that fence, or at any time later.
fn is_noticed(trace: &Trace, doomed: usize, check: &mut Check<'_>) -> bool {
    let this = trace.events().nth(doomed).expect("an event of the trace");
    let is_its_fence = |other: &EventInfo<'_>| other.kind() == EventKind::Fence && other.region() == this.region();
    let fence = trace.events().skip(doomed + 1).find(is_its_fence).map_or(doomed, |fence| fence.index());
    let without = trace.without(|event| event.index() == doomed);
    let mut between = |from: usize, to: usize, budget| {
        Explorer::new(without.clone(), 1).starting_at(from).ending_at(to).check(budget, |image| check(image)).is_err()
    };
    let mut soon_after = |event: usize| between(event, event + 12, 60) || between(event, event + 120, 300);
    let soon = soon_after(doomed) || (fence > doomed + 12 && (soon_after(fence) || between(fence - 12, fence, 300)));
    soon || between(doomed, usize::MAX, 500)
}

/// Fails unless all that are drawn (or one of them) are noticed.
fn assert_needed(name: &str, all: bool, candidates: &[(usize, usize)], mut is_noticed: impl FnMut(usize, usize) -> bool) {
    assert!(!candidates.is_empty(), "{name}: the protocol has no such event");
    let mut random = Random(candidates.len() as u64);
    let mut draw = || candidates[random.next(candidates.len() as u64) as usize];
    if all {
        let missed: Vec<_> = (0..SINGLES).map(|_| draw()).filter(|(world, event)| !is_noticed(*world, *event)).collect();
        assert!(missed.is_empty(), "{name}: nobody notices when it is deleted (world and event {missed:?})");
    } else {
        let found = (0..4 * SINGLES).map(|_| draw()).any(|(world, event)| is_noticed(world, event));
        assert!(found, "{name}: nobody notices when it is deleted (worlds and events {candidates:?})");
    }
}

fn assert_work_needs(model: Model, kinds: &[Kind]) {
    let worlds: Vec<History> = (0..4).map(|seed| History::begin(model, seed)).collect();
    for (name, all, is) in kinds {
        let in_world = |(i, world): (usize, &History)| -> Vec<(usize, usize)> {
            let span = (world.opened, world.closing);
            events_of(&world.trace(), span, is).into_iter().map(|event| (i, event)).collect()
        };
        let candidates: Vec<_> = worlds.iter().enumerate().flat_map(in_world).collect();
        assert_needed(name, *all, &candidates, |world, event| {
            is_noticed(&worlds[world].trace(), event, &mut |image| worlds[world].check_image(image))
        });
    }
}

/// What was fenced before a crash is to be applied by recovery.
fn assert_recovery_needs(model: Model, kinds: &[Kind]) {
    let worlds: Vec<History> = (0..4)
        .map(|seed| {
            let history = History::begin(model, 2 * seed + 1);
            let mut left = None;
            Explorer::new(history.trace(), seed).only_at(history.closing).for_each_image(20, |image| {
                left = Some((image.to_medium(), image.notes().to_vec()));
            });
            let (left, notes) = left.unwrap();
            let found = history.check(&left.trace().killed_after(0), &notes).unwrap();
            History::go_on(left, found, seed)
        })
        .collect();
    for (name, all, is) in kinds {
        let in_world = |(i, world): (usize, &History)| -> Vec<(usize, usize)> {
            events_of(&world.trace(), (0, world.opened), is).into_iter().map(|event| (i, event)).collect()
        };
        let candidates: Vec<_> = worlds.iter().enumerate().flat_map(in_world).collect();
        assert_needed(name, *all, &candidates, |world, event| {
            is_noticed(&worlds[world].trace(), event, &mut |image| worlds[world].check_image(image))
        });
    }
}

/// A process was killed after a store into the log that `killed_at` picks, and the next one recovers.
fn assert_needed_after_kill(model: Model, name: &str, killed_at: Is, is: Is) {
    let mut worlds = Vec::new();
    let mut candidates = Vec::new();
    for seed in 0..3 {
        let history = History::begin(model, 2 * seed + 1);
        let trace = history.trace();
        let kills = trace.events().filter(|e| e.index() > history.opened && killed_at(e)).map(|e| e.index() + 1);
        for at in kills.collect::<Vec<_>>().into_iter().step_by(3) {
            let notes: Vec<u64> = notes_before(&trace, at).into_iter().collect();
            let killed = trace.killed_after(at);
            let found = history.check(&killed, &notes).unwrap().len();
            if found == notes.iter().filter(|note| **note >= FENCED).count() && !is_cut(&trace.events().nth(at - 1).unwrap()) {
                continue; // torn: recovery does not go by it
            }
            let after = killed.trace();
            candidates.extend(events_of(&after, (at, after.len()), |e, _| is(e)).into_iter().take(1).map(|e| (worlds.len(), e)));
            worlds.push((after, notes, seed));
        }
    }
    let histories: Vec<History> = (0..3).map(|seed| History::begin(model, 2 * seed + 1)).collect();
    assert_needed(name, false, &candidates, |world, event| {
        let (trace, notes, seed) = &worlds[world];
        is_noticed(trace, event, &mut |image| histories[*seed as usize].check(&image.to_medium(), notes).map(|_| ()))
    });
}

#[test]
fn every_write_back_and_fence_is_needed_on_line_media() {
    assert_work_needs(
        Model::Line,
        &[
            ("write-back of a record", true, |e, _| is(e, EventKind::WriteBack, "log") && !is_cut(e)),
            ("fence after records", true, |e, after_cut| is(e, EventKind::Fence, "log") && !after_cut),
            ("write-back of the image", false, |e, _| is(e, EventKind::WriteBack, "image") && is_word(e)),
            ("write-back of the image's stamp", false, |e, _| is(e, EventKind::WriteBack, "image") && is_stamp(e)),
            ("fence of the image", false, |e, after_words| is(e, EventKind::Fence, "image") && after_words),
            ("fence of the image's stamp", false, |e, after_words| is(e, EventKind::Fence, "image") && !after_words),
            ("write-back of the cut", false, |e, _| is(e, EventKind::WriteBack, "log") && is_cut(e)),
            ("fence of the cut", false, |e, after_cut| is(e, EventKind::Fence, "log") && after_cut),
        ],
    );
    assert_recovery_needs(
        Model::Line,
        &[
            ("write-back of the recovered image", true, |e, _| is(e, EventKind::WriteBack, "image") && is_word(e)),
            ("write-back of the image's new stamp", false, |e, _| is(e, EventKind::WriteBack, "image") && is_stamp(e)),
            ("fence of the recovered image", true, |e, after_words| is(e, EventKind::Fence, "image") && after_words),
            ("write-back of recovery's cut", false, |e, _| is(e, EventKind::WriteBack, "log") && is_cut(e)),
            ("fence of recovery's cut", false, |e, after_cut| is(e, EventKind::Fence, "log") && after_cut),
        ],
    );
}

#[test]
fn every_sync_is_needed_on_files() {
    assert_work_needs(
        Model::File,
        &[
            ("sync after records", true, |e, after_cut| is(e, EventKind::Fence, "log") && !after_cut),
            ("sync of the image", false, |e, _| is(e, EventKind::Fence, "image")),
            ("sync of the cut", false, |e, after_cut| is(e, EventKind::Fence, "log") && after_cut),
        ],
    );
    let recovered: Kind = ("sync of the recovered image", true, |e, after_words| is(e, EventKind::Fence, "image") && after_words);
    assert_recovery_needs(Model::File, &[recovered]);
}

#[test]
fn what_a_killed_process_left_needs_its_write_backs_and_fences() {
    let record: Is = |e| is(e, EventKind::Store, "log") && !is_cut(e) && !is_stamp(e);
    let cut: Is = |e| is(e, EventKind::Store, "log") && is_cut(e);
    let fence: Is = |e| is(e, EventKind::Fence, "log");
    let lanes: Is = |e| is(e, EventKind::WriteBack, "log") && e.range().is_some_and(|(off, _)| off >= 8192) && !is_stamp(e);
    let cuts: Is = |e| is(e, EventKind::WriteBack, "log") && is_cut(e);
    assert_needed_after_kill(Model::Line, "fence of records that recovery read", record, fence);
    assert_needed_after_kill(Model::Line, "write-back of records that recovery read", record, lanes);
    assert_needed_after_kill(Model::Line, "write-back of the cut that recovery read", cut, cuts);
    assert_needed_after_kill(Model::Line, "fence of the cut that recovery read", cut, fence);
    assert_needed_after_kill(Model::File, "sync of records that recovery read", record, fence);
}
