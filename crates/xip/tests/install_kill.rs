//! Stopped at any moment, by SIGKILL: a program's name leads to the whole program, or to a split one that runs; and what was left goes.
//!
//! A child (this test's own binary) splits, joins and collects for ever; it is killed at random moments, in `TOWA_KILL_ROUNDS` rounds;
//! `TOWA_SEED` repeats a run as far as the moments go. Where a moment falls is the machine's doing: what was seen is printed.

mod sweep_support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sweep_support::{LIBS, Outcome, Place, TEXT, command, program, run, setting};
use towa_xip::install;
use towa_xip::needed;
use towa_xip::split::{AbcHead, key_of};
use towa_xip::store::{Collect, Store};

/// In the environment of the child: the directory that it works in.
const WORK: &str = "TOWA_XIP_KILL_WORK";
/// What programs are worked on, and what they are asked: small ones, for many rounds.
const PROGRAMS: [(&str, &[&str]); 4] =
    [("sort", &["--version"]), ("sed", &["s/a/b/", "/dev/null"]), ("factor", &["42", "43"]), ("seq", &["5"])];
const LIMIT: Duration = Duration::from_secs(10);

/// The child: never ends by itself.
#[test]
fn child_that_splits_and_joins_for_ever() {
    let Some(work) = std::env::var_os(WORK).map(PathBuf::from) else { return };
    let store = Store::open(&work.join("store")).unwrap();
    let mut rng = SmallRng::seed_from_u64(u64::from(std::process::id()));
    let programs = whole_programs(&work);
    let libraries = needed::libraries(&programs[0].1).unwrap();
    loop {
        let (path, _) = &programs[rng.random_range(0..programs.len())];
        let is_split = AbcHead::find(&fs::read(path).unwrap()).is_ok();
        // None of these may fail: this is the only one that works here.
        match rng.random_range(0..8) {
            0 => drop(store.write().unwrap().collect(Collect::default()).unwrap()),
            1 => {
                let library = libraries[rng.random_range(0..libraries.len())].clone();
                sweep_support::patiently(|| install::split(&store, &library, None, LIBS)).unwrap();
            }
            2 => drop(Store::open_or_create(&work.join("store")).unwrap()),
            _ if is_split => drop(install::join(path, None, None).unwrap()),
            choice => {
                let mut how = if choice % 2 == 0 { LIBS } else { TEXT };
                how.split.with_rodata = choice % 3 == 0;
                install::split(&store, path, None, how).unwrap();
            }
        }
    }
}

/// Programs that are worked on, each with its whole copy.
fn whole_programs(work: &Path) -> Vec<(PathBuf, PathBuf)> {
    let all = fs::read_dir(work.join("whole")).unwrap().map(|entry| entry.unwrap().path());
    let mut pairs: Vec<_> = all.map(|whole| (work.join("programs").join(whole.file_name().unwrap()), whole)).collect();
    pairs.sort();
    pairs
}

/// Ended with the test, whatever becomes of that.
struct Killed(Child);

impl Killed {
    fn start(work: &Path) -> Killed {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", "child_that_splits_and_joins_for_ever", "--nocapture", "--test-threads=1"])
            .env(WORK, work)
            .env("HOME", work);
        Killed(child.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// Kills it; what it has said, if it ended by itself.
    fn kill(mut self) -> Option<String> {
        let ended = self.0.try_wait().unwrap();
        let _ = self.0.kill();
        self.0.wait().unwrap();
        ended.map(|status| {
            let mut said = String::new();
            let _ = std::io::Read::read_to_string(self.0.stderr.as_mut().unwrap(), &mut said);
            format!("{status}: {said}")
        })
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Unfinished files below `folder`.
fn leftovers(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap()) {
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(".towa-xip-")) {
            found.push(entry.path());
        } else if entry.file_type().unwrap().is_dir() {
            found.extend(leftovers(&entry.path()));
        }
    }
    found
}

/// What a whole program, or its split half, was before the round, and is after it.
struct Subject {
    path: PathBuf,
    original: Vec<u8>,
    arguments: &'static [&'static str],
    expected: Outcome,
}

/// Checks what a kill has left; what state the programs are in.
fn check(subjects: &[Subject], place: &Place, seen: &mut BTreeMap<&str, usize>, round: u64) {
    let home = place.at("home");
    for subject in subjects {
        let path = &subject.path;
        let bytes = fs::read(path).unwrap();
        let state = if bytes == subject.original { "whole" } else { "split" };
        if state == "split" {
            let head = AbcHead::find(&bytes).unwrap_or_else(|why| panic!("round {round}: {} is neither: {why}", path.display()));
            assert_eq!(head.record.key, key_of(&subject.original), "round {round}: {}", path.display());
        }
        let does = run(command(path, subject.arguments, &home), LIMIT).replacing(path, "@program");
        assert_eq!(does, subject.expected, "round {round}: {} {state}: {}", path.display(), does.brief());
        *seen.entry(state).or_default() += 1;
    }
    let beside = leftovers(&place.at("programs")).len();
    let in_store = leftovers(place.store.path()).len();
    *seen.entry("unfinished beside a program").or_default() += usize::from(beside > 0);
    *seen.entry("unfinished in the store").or_default() += usize::from(in_store > 0);
    let found = place.store.verify(true, |_, _| {}).unwrap();
    assert!(found.problems.is_empty(), "round {round}: {:?}", found.problems);
    *seen.entry("an entry too many").or_default() += usize::from(!found.stale.is_empty());
    *seen.entry("a text too many").or_default() += usize::from(found.texts > found.programs + found.libraries);
}

/// Collects, and nothing is too much any more; all that is split stays right.
fn check_collected(subjects: &[Subject], place: &Place, round: u64) {
    place.store.write().unwrap().collect(Collect { force: true, dry: false }).unwrap();
    let left = [leftovers(&place.at("programs")), leftovers(place.store.path())].concat();
    assert!(left.is_empty(), "round {round}: gc leaves {left:?}");
    let found = place.store.verify(true, |_, _| {}).unwrap();
    assert!(found.problems.is_empty() && found.stale.is_empty(), "round {round}: {found:?}");
    assert_eq!(found.texts, found.programs + found.libraries, "round {round}: {found:?}");
    let split = subjects.iter().filter(|subject| fs::read(&subject.path).unwrap() != subject.original).count();
    assert_eq!(found.programs, split, "round {round}");
}

/// The next writer goes on, as if nothing had been.
fn check_usable(subject: &Subject, place: &Place) {
    let is_split = fs::read(&subject.path).unwrap() != subject.original;
    if is_split {
        install::join(&subject.path, None, None).unwrap();
        assert!(fs::read(&subject.path).unwrap() == subject.original);
    }
    install::split(&place.store, &subject.path, None, LIBS).unwrap();
    let does = run(command(&subject.path, subject.arguments, &place.at("home")), LIMIT);
    assert_eq!(does.replacing(&subject.path, "@program"), subject.expected);
}

#[test]
fn whenever_it_is_killed_programs_run_and_nothing_stays() {
    if std::env::var_os(WORK).is_some() {
        return;
    }
    let (rounds, seed) = (setting("TOWA_KILL_ROUNDS", 160), setting("TOWA_SEED", 20_250_131));
    println!("TOWA_SEED={seed} TOWA_KILL_ROUNDS={rounds}");
    let mut rng = SmallRng::seed_from_u64(seed);
    let place = Place::new();
    let home = place.folder("home", true);
    let mut subjects = Vec::new();
    for (name, arguments) in PROGRAMS {
        let Some(original) = program(name) else {
            eprintln!("SKIP: no program {name}");
            continue;
        };
        let (path, _) = (place.copy(&original, "programs"), place.copy(&original, "whole"));
        let expected = run(command(&path, arguments, &home), LIMIT).replacing(&path, "@program");
        subjects.push(Subject { original: fs::read(&path).unwrap(), path, arguments, expected });
    }
    assert!(!subjects.is_empty(), "none of the programs is here");
    let mut seen = BTreeMap::<&str, usize>::new();
    for round in 0..rounds {
        let child = Killed::start(place.dir.path());
        // It takes some milliseconds to get to work; a step takes about one.
        std::thread::sleep(Duration::from_micros(rng.random_range(3_000..60_000)));
        if let Some(said) = child.kill() {
            panic!("round {round}: it ended by itself, with {said}");
        }
        check(&subjects, &place, &mut seen, round);
        match round % 3 {
            0 => check_collected(&subjects, &place, round),
            1 => check_usable(&subjects[rng.random_range(0..subjects.len())], &place),
            // What one kill has left is there for the next.
            _ => {}
        }
    }
    println!("after {rounds} kills: {seen:?}");
    check_collected(&subjects, &place, rounds);
    let least = rounds as usize / 8;
    for state in ["whole", "split"] {
        assert!(seen.get(state).copied().unwrap_or(0) > least, "{state} was hardly seen: {seen:?}");
    }
}
