//! The lists by which threads hand their lines to the persister, on real threads and under miri (`make miri`): the loom models of the
//! same files try every order, but know nothing of pointers and lifetimes. The files are taken in as they are, for a pool needs mapped
//! memory, which miri has not.

#![allow(dead_code, missing_docs)]

#[path = "../../epoch/src/clock.rs"]
mod clock;
#[path = "../../epoch/src/lists.rs"]
mod lists;
#[path = "../../epoch/src/slot.rs"]
mod slot;
#[path = "../../epoch/src/sync.rs"]
mod sync;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};

use lists::SavedLines;
use slot::Slots;

#[repr(align(64))]
struct Line([AtomicU64; 8]);

fn lines(count: usize) -> Arc<Vec<Line>> {
    Arc::new(
        (0..count)
            .map(|i| {
                Line([const { AtomicU64::new(0) }; 8].map(|w: AtomicU64| {
                    w.store(i as u64, Relaxed);
                    w
                }))
            })
            .collect(),
    )
}

/// A user saves lines while the persister reads: whatever it read of an overwrite, it finds the saved line. More lines than a block of
/// the list holds, over several epochs.
#[test]
fn saved_lines_win_over_what_was_overwritten() {
    // A block of the list holds 512. Miri takes its time.
    const LINES: usize = if cfg!(miri) { 520 } else { 2000 };
    const EPOCHS: u64 = if cfg!(miri) { 3 } else { 50 };
    let saved = Arc::new(SavedLines::new());
    for epoch in 1..=EPOCHS {
        let memory = lines(LINES);
        let user = {
            let (memory, saved) = (Arc::clone(&memory), Arc::clone(&saved));
            std::thread::spawn(move || {
                for (i, line) in memory.iter().enumerate() {
                    let old: [u64; 8] = std::array::from_fn(|w| line.0[w].load(Relaxed));
                    // SAFETY: this thread owns the list now; the copy is a line of its own.
                    unsafe { saved.save(epoch, i as u64, old.as_ptr().cast()) };
                    line.0.iter().for_each(|word| word.store(u64::MAX, Relaxed));
                }
            })
        };
        let mut replayed: Vec<[u64; 8]> = memory.iter().map(|line| std::array::from_fn(|w| line.0[w].load(Relaxed))).collect();
        sync::fence(Acquire);
        saved
            .for_each(epoch, |i, bytes| {
                replayed[i as usize] = std::array::from_fn(|w| u64::from_ne_bytes(bytes[w * 8..w * 8 + 8].try_into().expect("8")));
                Ok::<(), ()>(())
            })
            .expect("the visitor does not fail");
        user.join().expect("the user does not panic");
        assert!(replayed.iter().enumerate().all(|(i, line)| *line == [i as u64; 8]), "epoch {epoch}");
    }
}

/// Slots are taken, given back and taken again while the persister empties their lists.
#[test]
fn slots_change_hands() {
    let (slots, clock) = (Arc::new(Slots::new()), Arc::new(clock::Clock::new(1)));
    let users: Vec<_> = (0..3u64)
        .map(|user| {
            let (slots, clock) = (Arc::clone(&slots), Arc::clone(&clock));
            std::thread::spawn(move || {
                let mut pushed = 0;
                for round in 0..20 {
                    let index = slots.take().expect("a free slot");
                    let slot = slots.get(index);
                    let epoch = clock.enter(&slot.announcement).expect("the gate is open");
                    // SAFETY: the slot's thread, inside a transaction of `epoch`.
                    unsafe { slot.list(epoch) }.push(user * 1000 + round * 10, 1 + round % 3);
                    pushed += 1 + round % 3;
                    slot.dirty_epoch.store(epoch, Release);
                    slot.announcement.leave();
                    slots.give_back(index);
                }
                pushed
            })
        })
        .collect();
    let mut seen = 0;
    let mut empty = || {
        let epoch = clock.advance();
        for slot in slots.iter() {
            while slot.announcement.is_in(epoch) {
                std::thread::yield_now();
            }
            // SAFETY: after every transaction of `epoch`, before `epoch + 2`.
            let list = unsafe { slot.list(epoch) };
            seen += list.lines;
            assert_eq!(list.lines, list.runs.iter().map(|run| towa_heap::log::frame::unpack_run(*run).1).sum::<u64>());
            list.clear();
        }
    };
    (0..10).for_each(|_| empty());
    let pushed: u64 = users.into_iter().map(|user| user.join().expect("a user does not panic")).sum();
    (0..2).for_each(|_| empty());
    assert_eq!(seen, pushed);
}
