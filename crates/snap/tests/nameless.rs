//! Files without a name: their content is kept as it is when the process stands still, and how large they are does not make it stand
//! still for longer.

mod support;

use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use support::{Running, compile};
use towa_snap::store::{Checkpoint, Store, Which};
use towa_snap::take::Target;
use towa_snap::{Error, Refusal, Result};

const PAGE: u64 = 4096;
/// A hundred times what it takes on an idle machine.
const SHORT: Duration = Duration::from_secs(1);

/// A checkpoint of `nameless WORDS`; what it refuses.
fn take(words: &[&str], check: impl FnOnce(&Checkpoint)) -> Result<Vec<Refusal>> {
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compile("nameless", dir.path(), &[]) else { return Ok(Vec::new()) };
    let store = Store::open_or_create(dir.path().join("store")).unwrap();
    let target = Running::start(&program, words);
    let began = Instant::now();
    let mut taker = Target::open(target.pid(), None).unwrap();
    let taken = taker.take(&store);
    println!("{words:?}: {:?}, {taken:?}", began.elapsed());
    match taken {
        Ok(taken) => {
            assert!(taken.pause < SHORT, "{words:?}: {:?}", taken.pause);
            let checkpoint = store.open_checkpoint(Which::Newest).unwrap();
            checkpoint.verify(|_, _| ()).unwrap();
            check(&checkpoint);
            // The next one, of a process that is known.
            assert!(taker.take(&store).map_or(true, |taken| taken.pause < SHORT));
            Ok(Vec::new())
        }
        Err(Error::Refused { what, .. }) => {
            assert!(store.numbers().unwrap().is_empty());
            assert!(std::path::Path::new(&format!("/proc/{}", target.pid())).exists(), "it goes on");
            Ok(what)
        }
        Err(e) => Err(e),
    }
}

fn has_page(checkpoint: &Checkpoint, of: usize, at: u64) {
    let file = checkpoint.attached(&checkpoint.attachments()[of].name).unwrap();
    let mut page = [0; PAGE as usize];
    file.read_exact_at(&mut page, at).unwrap();
    assert_eq!(page[..8], at.to_le_bytes());
    assert!(page[8..].iter().all(|byte| *byte == 7), "at {at}");
}

#[test]
fn holes_are_neither_read_nor_waited_for() {
    let refused = take(&["hole"], |checkpoint| {
        let ends: Vec<u64> = checkpoint.attachments().iter().map(|file| file.len).collect();
        assert_eq!(ends, [1 << 42; 2]);
        (0..2).for_each(|of| has_page(checkpoint, of, (1 << 42) - PAGE));
    });
    assert_eq!(refused.unwrap(), []);
    // XFS takes a file of any length, ext4 does not.
    let end = i64::MAX as u64 / PAGE * PAGE;
    let refused = take(&["endless"], |checkpoint| has_page(checkpoint, 0, end - PAGE)).unwrap();
    assert!(refused.iter().all(|refusal| refusal.what.contains("takes no file so long")), "{refused:?}");
}

#[test]
fn what_rests_is_copied_before_the_pause() {
    for (words, pages) in [(["rests", "64"], 64 * 256), (["pieces", "5000"], 5000), (["rests", "1"], 256)] {
        let apart = if words[0] == "pieces" { 16 } else { 1 };
        let refused = take(&words, |checkpoint| {
            (0..pages).step_by(97).for_each(|n| has_page(checkpoint, 0, n * apart * PAGE));
            assert_eq!(checkpoint.attachments()[0].len, ((pages - 1) * apart + 1) * PAGE);
        });
        assert_eq!(refused.unwrap(), [], "{words:?}");
    }
}

#[test]
fn what_would_take_long_is_refused_by_name() {
    for (words, why) in [(["written", "64"], "it is being written"), (["shared", "64"], "another process has it")] {
        let refused = take(&words, |_| panic!("{words:?}: a checkpoint")).unwrap();
        if let [Refusal { place, what }] = &refused[..] {
            assert!(place.starts_with("fd ") && what.starts_with("memfd content (67108864 bytes"), "{place}: {what}");
            assert!(what.contains(why), "{what}");
        } else {
            assert!(refused.is_empty() && std::process::Command::new("cc").output().is_err(), "{refused:?}");
        }
    }
    // What is little is read as it is at that moment.
    for words in [["written", "4"], ["shared", "4"]] {
        assert_eq!(take(&words, |checkpoint| assert_eq!(checkpoint.attachments()[0].len, 4 << 20)).unwrap(), [], "{words:?}");
    }
}

/// One that grows faster than it is copied ends neither the copy nor the pause for ever.
#[test]
fn what_grows_is_given_up_in_time() {
    let began = Instant::now();
    let refused = take(&["grows", "600"], |_| ()).unwrap();
    assert!(refused.iter().all(|refusal| refusal.what.starts_with("memfd content")), "{refused:?}");
    assert!(began.elapsed() < Duration::from_secs(60));
}
