//! Pools in place whose process is killed between any two of its stores, and one page of which is damaged.

use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use towa_crash_test::epoch::{History, Shape, World, check_medium, kill_round};
use towa_crash_test::kill::{Event, Files, KillMedium};
use towa_media::PAGE;

/// Whether this machine's single stores can be recorded.
fn is_supported() -> bool {
    if !KillMedium::is_supported() {
        println!("SKIP: single stores are recorded on x86-64 alone");
    }
    KillMedium::is_supported()
}

#[test]
fn a_kill_at_any_store_leaves_the_durable_epoch() {
    if !is_supported() {
        return;
    }
    let mut sum = [0; 5];
    for seed in 0..3 {
        let killed = kill_round(seed, 100).unwrap_or_else(|failure| panic!("{failure}"));
        println!("{killed:?}");
        let these = [killed.images, killed.in_recovery, killed.undone, killed.epochs as usize, killed.lost];
        sum.iter_mut().zip(these).for_each(|(sum, this)| *sum += this);
    }
    assert!(sum[0] > 400 && sum[1] > 50 && sum[2] > 2 && sum[3] > 20 && sum[4] > 10, "{sum:?}");
}

/// A kill comes between the head and its copy. The epoch that the next process recovers must stay, even if its recovery is killed at any store.
#[test]
fn a_killed_recovery_keeps_the_recovered_epoch() {
    if !is_supported() {
        return;
    }
    let mut rng = SmallRng::seed_from_u64(30);
    let shape = Shape { close: false, ..Shape::in_place(&mut rng) };
    let medium = KillMedium::new(Files::default());
    let history = World::run_shaped(medium.clone(), &mut rng, History::default(), &shape).unwrap().history;
    let trace = medium.trace();
    drop(medium);
    let log = trace.events.iter().find_map(|event| match event {
        Event::Create { name, file, .. } if name.ends_with("log") => Some(*file),
        _ => None,
    });
    // The checksum is the last word of the head.
    let is_head = |event: &Event| matches!(event, Event::Store { file, off: 16, .. } if Some(*file) == log);
    let published: Vec<usize> = (0..trace.events.len()).filter(|at| is_head(&trace.events[*at])).map(|at| at + 1).collect();
    assert!(published.len() > 3, "{published:?}");
    let mut looked = 0;
    trace
        .visit(published, |_, files| {
            let medium = KillMedium::new(files.clone());
            let Some(epoch) = check_medium(Arc::new(medium.clone()), files.notes(), &history)? else { return Ok(()) };
            let recovery = medium.trace();
            let mut recovered = history.clone();
            recovered.truncate(epoch);
            // A recovery passes over the epochs that it undoes.
            recovered.pass_over(epoch + 4);
            recovery.visit(0..=recovery.events.len(), |_, files| {
                looked += 1;
                check_medium(files.to_medium(), &[epoch], &recovered).map(|_| ())
            })
        })
        .unwrap();
    assert!(looked > 100, "{looked}");
}

/// What a killed process left: with lines that are to be undone. And the same files some epochs before.
fn killed(seed: u64) -> (Files, Files, History) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let shape = Shape { close: false, ..Shape::in_place(&mut rng) };
    let medium = KillMedium::new(Files::default());
    let world = World::run_shaped(medium.clone(), &mut rng, History::default(), &shape).unwrap();
    let trace = medium.trace();
    // Where the last transactions of the epoch that is not durable are.
    let last = trace.events.iter().rposition(|event| matches!(event, Event::Store { .. })).unwrap();
    let notes = trace.events.iter().enumerate().filter(|(_, event)| matches!(event, Event::Note(_)));
    let before = notes.rev().nth(2).unwrap().0;
    let mut files = Vec::new();
    trace
        .visit([before, last + 1], |_, found| {
            files.push(found.clone());
            Ok(())
        })
        .unwrap();
    let [older, newest] = files.try_into().unwrap();
    (newest, older, world.history)
}

/// How an opening of damaged files ended: refused, or whole.
#[derive(Debug, PartialEq)]
enum Ended {
    Refused,
    Whole,
}

/// Never anything else.
fn open(files: &Files, history: &History, what: &str) -> Ended {
    match check_medium(files.to_medium(), files.notes(), history) {
        Ok(Some(_)) => Ended::Whole,
        Err(why) if why.starts_with("recovery refused") => Ended::Refused,
        other => panic!("{what}: {other:?}"),
    }
}

/// A page of the log or the superblock that is zeroed, older than it should be, or has a wrong byte, is noticed, or nothing hangs on it: no
/// line that is to be undone is forgotten, and no epoch that was acknowledged.
#[test]
fn one_damaged_page_is_refused_or_does_no_harm() {
    if !is_supported() {
        return;
    }
    let mut refused = [0; 4];
    for seed in 10..12 {
        let (files, older, history) = killed(seed);
        assert_eq!(open(&files, &history, "undamaged"), Ended::Whole);
        for name in ["log", "superblock"] {
            for page in files.pages(name) {
                let place = format!("seed {seed}, {name}, page {page}");
                let off = page * PAGE as u64;
                let mut zeroed = files.clone();
                zeroed.change(name, off, PAGE, |bytes| bytes.fill(0));
                refused[0] += usize::from(open(&zeroed, &history, &format!("{place} zeroed")) == Ended::Refused);
                let mut rng = SmallRng::seed_from_u64(seed ^ page);
                let bytes = files.bytes(name, off, PAGE);
                let used: Vec<usize> = (0..PAGE).filter(|at| bytes[*at] != 0).collect();
                if used.is_empty() {
                    continue;
                }
                for _ in 0..6 {
                    let (at, bit) = (used[rng.random_range(0..used.len())], rng.random_range(0..8));
                    let mut flipped = files.clone();
                    flipped.change(name, off + at as u64, 1, |byte| byte[0] ^= 1 << bit);
                    refused[1] +=
                        usize::from(open(&flipped, &history, &format!("{place}, bit {bit} of byte {at}")) == Ended::Refused);
                }
                let then = older.bytes(name, off, PAGE);
                if then != bytes {
                    let mut stale = files.clone();
                    stale.change(name, off, PAGE, |bytes| bytes.copy_from_slice(&then));
                    refused[3] += usize::from(open(&stale, &history, &format!("{place}, older")) == Ended::Refused);
                }
                // A block that lost its newest stores, as it was some entries ago.
                let mut short = files.clone();
                short.change(name, off + 8, 8, |count| count[0] = count[0].saturating_sub(1));
                refused[2] += usize::from(open(&short, &history, &format!("{place}, one entry less")) == Ended::Refused);
            }
        }
    }
    println!("refused: {refused:?} of those zeroed, with a bit flipped, with a count that is wrong, of an earlier moment");
    assert!(refused.iter().all(|count| *count > 0), "{refused:?}");
}

/// The head of the undo log is there twice: each alone names the epoch that was acknowledged last.
#[test]
fn a_damaged_head_takes_no_epoch_with_it() {
    if !is_supported() {
        return;
    }
    let (files, _, history) = killed(20);
    for page in [0, 1] {
        for at in [0, 8, 16] {
            let mut damaged = files.clone();
            damaged.change("log", page * PAGE as u64 + at, 8, |bytes| bytes[0] ^= 1);
            // Notes hold what was acknowledged: an older epoch would be an error.
            assert_eq!(open(&damaged, &history, &format!("page {page}, byte {at}")), Ended::Whole);
        }
    }
    let mut both = files;
    both.change("log", 0, 1, |bytes| bytes[0] ^= 1);
    both.change("log", PAGE as u64, 1, |bytes| bytes[0] ^= 1);
    assert_eq!(open(&both, &history, "both heads"), Ended::Refused);
}
