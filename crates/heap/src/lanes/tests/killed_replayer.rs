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

use towa_media::sim::{EventInfo, EventKind, Explorer, Trace};

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
