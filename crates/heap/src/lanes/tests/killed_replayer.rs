//! A replayer that is killed between storing a cut and its fence, beside an owner that lives on: the next replayer goes on from a cut that a
//! power cut would take back.
//!
//! ```text
//!   owner       r1 ─ fence ─ r2 ─ fence
//!   replayer 1                      r1 into the image ─ fence ─ cut (stored) ✝
//!   replayer 2                                                         reads it ─ write-back, fence ─ r2 ─ cut ─ fence
//! ```
//!
//! The second cut takes the place of the one before the first. What must always hold: one of the cuts on the medium is whole, and the image
//! is as it says.
//!
//! That is one point. The sweep kills a replayer after every event of a round, and lets each of its syncs fail; the next one attaches, or the
//! owner takes over.

use towa_media::sim::{Effect, EventInfo, EventKind, Explorer, ForgetsRewrite, PageFate, Point, Trace};

use super::*;

/// The trace of it, the event after which the first replayer is killed, and the two records.
fn record(model: Model) -> (Trace, usize, [Written; 2]) {
    let medium = SimMedium::new(model);
    let heap = create(medium.clone());
    let lanes = heap.lanes();
    lanes.provide(0).unwrap();
    let written = [1, 2].map(|ts| Written { ts, lane: 0, words: (0..20).map(|n| (DATA + n * 8 * ts, ts << 32 | n)).collect() });
    let mut heads = vec![0; LANES as usize];
    for record in &written {
        heads[0] = lanes.append(0, heads[0], &record.builder()).unwrap();
        lanes.fence().unwrap();
    }
    let apply = |replayer: &(dyn Fn() -> Replayer + Sync), upto| {
        // Each has a thread of its own, as a process has: no fence covers what another wrote back.
        std::thread::scope(|scope| scope.spawn(|| replayer().apply(&heads, upto, &mut || ()).unwrap()).join()).unwrap();
    };
    apply(&|| Replayer::of(&heap).unwrap(), 1);
    let events = medium.trace();
    let killed = events.events().filter(|e| e.kind() == EventKind::Store && e.region() == Some("log")).last().unwrap();
    assert_eq!(killed.range().map(|(off, len)| (off < 8192, len)), Some((true, 640)), "a cut is stored last");
    let (killed, until) = (killed.index(), medium.events());
    apply(&|| Replayer::attach(&medium).unwrap(), u64::MAX);
    // What the first did not come to.
    let trace = medium.trace().without(|event| (killed + 1..until).contains(&event.index()));
    (trace, killed + 1, written)
}

/// Whether every image of a crash from the kill on recovers to both records.
fn is_sound(trace: Trace, killed: usize, written: &[Written]) -> bool {
    let check = |medium: &SimMedium| {
        let heap = open(medium).map_err(|e| e.to_string())?;
        let found = Words::read(&heap, written);
        if found == Words::of(written) { Ok(()) } else { Err(format!("{found:?}")) }
    };
    Explorer::new(trace, 1).starting_at(killed).check(3000, |image| check(&image.to_medium())).is_ok()
}

#[test]
fn what_a_replayer_reads_when_it_attaches_is_durable_before_it_goes_on() {
    for model in [Model::Line, Model::File] {
        let (trace, killed, written) = record(model);
        assert!(is_sound(trace.clone(), killed, &written), "{model:?}");
        let first = |is: &dyn Fn(&EventInfo<'_>) -> bool| {
            trace.events().find(|e| e.index() >= killed && e.region() == Some("log") && is(e)).map(|e| e.index())
        };
        let write_back =
            first(&|e| e.kind() == EventKind::WriteBack && e.range().is_some_and(|(off, len)| off < 8192 && len == 640));
        let fence = first(&|e| e.kind() == EventKind::Fence);
        assert_eq!(write_back.is_some(), model == Model::Line);
        for doomed in write_back.into_iter().chain(fence) {
            let less = trace.without(|event| event.index() == doomed);
            assert!(!is_sound(less, killed, &written), "{model:?}: nobody misses event {doomed}");
        }
    }
}

/// Which event of the next replayer's attaching is left out.
type LeftOut<'a> = &'a dyn Fn(&EventInfo<'_>) -> bool;

/// A heap with two durable records, of which the first is about to be applied; and the heads of its lanes.
fn before_the_round(model: Model) -> (SimMedium, Heap, Vec<u64>, Vec<Written>) {
    let medium = SimMedium::new(model);
    let heap = create(medium.clone());
    let lanes = heap.lanes();
    lanes.provide(0).unwrap();
    let written: Vec<Written> =
        (1..=3).map(|ts| Written { ts, lane: 0, words: (0..10).map(|n| (DATA + n * 8 * ts, ts << 32 | n)).collect() }).collect();
    let mut heads = vec![0; LANES as usize];
    for record in &written {
        heads[0] = lanes.append(0, heads[0], &record.builder()).unwrap();
        lanes.fence().unwrap();
    }
    // Both slots of the cut, and of the stamp, hold something.
    in_its_own_thread(|| Replayer::of(&heap).unwrap().apply(&heads, 1, &mut || ()).map(drop)).unwrap();
    (medium, heap, heads, written)
}

/// Each replayer has a thread of its own, as a process has: no fence covers what another wrote back.
fn in_its_own_thread<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(run).join()).unwrap()
}

/// A replayer goes on behind one that was killed after `killed` events. Whether nothing is lost by a power cut then.
fn goes_on(
    medium: &SimMedium,
    killed: usize,
    heads: &[u64],
    written: &[Written],
    attach: impl FnOnce() -> Replayer + Send,
    (left_out, images): (LeftOut<'_>, usize),
) -> bool {
    let attached = in_its_own_thread(|| {
        let mut replayer = attach();
        let attached = medium.events();
        replayer.apply(heads, u64::MAX, &mut || ()).unwrap();
        attached
    });
    let trace = medium.trace().without(|event| (killed..attached).contains(&event.index()) && left_out(event));
    let check = |image: &towa_media::sim::CrashImage<'_, '_>| {
        let heap = open(&image.to_medium()).map_err(|e| e.to_string())?;
        let found = Words::read(&heap, written);
        if found == Words::of(written) { Ok(()) } else { Err(format!("{found:?}")) }
    };
    Explorer::new(trace, killed as u64).starting_at(killed).check(images, check).is_ok()
}

/// Kills a replayer after every event of its round; the next one attaches. Gives after which events something is lost.
fn killed_everywhere(model: Model, left_out: LeftOut<'_>) -> Vec<usize> {
    let (medium, heap, heads, written) = before_the_round(model);
    let begins = medium.events();
    in_its_own_thread(|| Replayer::of(&heap).unwrap().apply(&heads, 2, &mut || ()).map(drop)).unwrap();
    let trace = medium.trace();
    // Its addresses are those of the heaps that are opened from now on.
    drop(heap);
    assert!(trace.len() - begins > 4, "{} events", trace.len() - begins);
    let is_lost = |killed: &usize| {
        let medium = trace.killed_after(*killed);
        !goes_on(&medium, *killed, &heads, &written, || Replayer::attach(&medium).unwrap(), (left_out, 150))
    };
    (begins..=trace.len()).filter(is_lost).collect()
}

/// A replayer stops before every write of its round, and the owner takes over. Gives before which writes something is lost.
fn taken_over_everywhere(model: Model, left_out: LeftOut<'_>) -> Vec<u64> {
    let is_lost = |write: &u64| {
        let (medium, heap, heads, written) = before_the_round(model);
        medium.inject(Point::Write, *write, Effect::Io);
        let stopped = in_its_own_thread(|| Replayer::of(&heap).unwrap().apply(&heads, 2, &mut || ()).map(drop));
        // It never comes to a write that it does not make.
        stopped.err().map(|_| {
            let killed = medium.events();
            let take_over = move || Replayer::take_over(&heap).unwrap();
            !goes_on(&medium, killed, &heads, &written, take_over, (left_out, 150))
        })
    };
    let lost: Vec<(u64, bool)> = (0..).map_while(|write| is_lost(&write).map(|lost| (write, lost))).collect();
    assert!(lost.len() > 2, "{model:?}: {} writes", lost.len());
    lost.into_iter().filter(|(_, lost)| *lost).map(|(write, _)| write).collect()
}

/// Each sync of a replayer's round fails in turn, which ends it; memory is short; the next one attaches. Gives which failures lose something.
fn failed_everywhere(forgets: ForgetsRewrite) -> Vec<(u64, usize)> {
    let mut lost = Vec::new();
    for fence in 0.. {
        let (medium, heap, heads, written) = before_the_round(Model::File);
        medium.inject(Point::Fence, fence, Effect::Io);
        if in_its_own_thread(|| Replayer::of(&heap).unwrap().apply(&heads, 2, &mut || ()).map(drop)).is_ok() {
            assert!(fence > 1, "{fence} syncs");
            return lost;
        }
        let (trace, killed) = (medium.trace(), medium.events());
        drop(heap);
        for first in 0..3 {
            // What becomes of its pages: of the first one each that there is.
            let mut fates = [PageFate::Stays, PageFate::Evicted, PageFate::Reached].into_iter().cycle().skip(first);
            let medium = trace.killed_and_evicted(killed, || fates.next().expect("without an end"));
            medium.forget_rewrites(forgets);
            if !goes_on(&medium, medium.events(), &heads, &written, || Replayer::attach(&medium).unwrap(), (&|_| false, 1000)) {
                lost.push((fence, first));
            }
        }
    }
    unreachable!("there are not so many syncs")
}

#[test]
fn wherever_a_replayer_is_killed_the_next_one_goes_on() {
    for model in [Model::Line, Model::File] {
        assert_eq!(killed_everywhere(model, &|_| false), [0; 0], "{model:?}");
        assert_eq!(taken_over_everywhere(model, &|_| false), [0; 0], "{model:?}");
    }
    assert_eq!(failed_everywhere(|_, _| false), []);
}

/// What the next replayer does before it begins is needed, each for itself.
#[test]
fn each_step_of_attaching_is_needed() {
    for model in [Model::Line, Model::File] {
        for (kind, region) in
            [(EventKind::WriteBack, "log"), (EventKind::Fence, "log"), (EventKind::WriteBack, "image"), (EventKind::Fence, "image")]
        {
            if model == Model::File && kind == EventKind::WriteBack {
                continue;
            }
            let left_out = |event: &EventInfo<'_>| event.kind() == kind && event.region() == Some(region);
            assert_ne!(killed_everywhere(model, &left_out), [0; 0], "{model:?}: nothing misses the {kind:?} of {region}");
        }
    }
    for forgotten in [(|region, _| region == "log") as ForgetsRewrite, |region, _| region == "image"] {
        assert_ne!(failed_everywhere(forgotten), []);
    }
}
