//! A process that takes, removes and merges checkpoints is killed with SIGKILL at a random moment, again and again: each checkpoint
//! that is listed is whole and holds exactly what was written, and none is gone whose number was told.
//!
//! The test starts itself again as the victim (`victim` below, with a directory in the environment). What a checkpoint is to hold
//! stands in its manifest.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rand::prelude::*;
use towa_snap::pages::PageSet;
use towa_snap::store::{Base, Limits, Store, Which};

mod places;
use places::Place;

const DIRECTORY: &str = "TOWA_TEST_VICTIM";
const PAGE: usize = 4096;
const REACH: u64 = 2000;
/// For each place.
const ROUNDS: u64 = 40;

type Memory = BTreeMap<u64, u64>;

fn page(number: u64, tag: u64) -> Vec<u8> {
    let words = (0..PAGE as u64 / 8).flat_map(|n| (tag ^ number.rotate_left(n as u32)).max(1).to_le_bytes());
    words.collect()
}

fn take(store: &Store, rng: &mut SmallRng) {
    let numbers = store.numbers().expect("listed");
    let base = if rng.random_ratio(4, 5) { numbers.last() } else { numbers.choose(rng) };
    let base = base.map(|&base| store.open_checkpoint(Which::Number(base)).expect("opened"));
    let mut memory = base.as_ref().map_or(Memory::new(), |base| serde_json::from_slice(base.manifest()).expect("parsed"));
    let mut draft = store.begin(base.map_or(Base::Empty, |base| Base::On(base.id()))).expect("begun");
    for _ in 0..rng.random_range(0..20) {
        let first = rng.random_range(0..REACH);
        let end = first + rng.random_range(1..20);
        if rng.random_ratio(1, 5) {
            draft.forget(first..end);
            memory.retain(|page, _| !(first..end).contains(page));
        } else {
            let tag = rng.random();
            draft.write(first, &(first..end).flat_map(|number| page(number, tag)).collect::<Vec<_>>()).expect("written");
            memory.extend((first..end).map(|number| (number, tag)));
        }
    }
    if rng.random_ratio(1, 4) {
        let file = tempfile::tempfile_in(store.dir().parent().expect("a parent")).expect("a file");
        std::os::unix::fs::FileExt::write_all_at(&file, &vec![3; 20_000], 0).expect("written");
        draft.attach(&file, "file").expect("attached");
    }
    let number = draft.finish(&serde_json::to_vec(&memory).expect("text")).expect("finished").number;
    println!("\nfinished {number}.");
}

/// Not a test: the process that is killed.
#[test]
fn victim() {
    let Ok(dir) = std::env::var(DIRECTORY) else { return };
    let mut rng = SmallRng::from_os_rng();
    let store = Store::open_or_create(dir).expect("opened");
    loop {
        let numbers = store.numbers().expect("listed");
        match rng.random_range(0..10) {
            0..2 if !numbers.is_empty() => {
                let number = *numbers.choose(&mut rng).expect("some");
                println!("\nremoving {number}.");
                store.remove(number).expect("removed");
            }
            2 => {
                numbers.iter().rev().skip(6).for_each(|number| println!("\nremoving {number}."));
                store.keep(6).expect("kept");
            }
            3..5 => drop(store.merge_beyond(Limits { packs: 5, extents: 60 }).expect("merged")),
            _ => take(&store, &mut rng),
        }
    }
}

struct Victim(Child);

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a victim, kills it `time` after its first checkpoint, and makes of `told` what it said.
fn one_life(dir: &Path, time: Duration, told: &mut BTreeSet<u64>) {
    let child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "victim", "--nocapture", "--test-threads=1"])
        .env(DIRECTORY, dir)
        .stdout(Stdio::piped())
        .spawn();
    let mut victim = Victim(child.expect("started"));
    let lines = BufReader::new(victim.0.stdout.take().expect("piped")).lines();
    let (first_told, first) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let first_told = first_told; // dropped when the victim's output ends
            for line in lines.map_while(Result::ok) {
                // The last line may have been cut off by the kill.
                let Some((what, number)) = line.strip_suffix('.').and_then(|line| line.split_once(' ')) else { continue };
                let Ok(number) = number.parse() else { continue };
                match what {
                    "finished" => told.insert(number),
                    "removing" => told.remove(&number),
                    _ => continue,
                };
                let _ = first_told.send(());
            }
        });
        first.recv().expect("a checkpoint before the victim ends");
        std::thread::sleep(time);
        assert!(victim.0.try_wait().expect("a status").is_none(), "the victim ended by itself");
        victim.0.kill().expect("killed");
    });
}

fn check(store: &Store, told: &BTreeSet<u64>) {
    let list = store.list().expect("listed");
    let numbers: BTreeSet<u64> = list.iter().map(|item| item.number).collect();
    assert!(numbers.is_superset(told), "told {told:?}, and there are {numbers:?}");
    for item in list {
        assert_eq!(item.damaged, None);
        let checkpoint = store.open_checkpoint(Which::Number(item.number)).expect("opened");
        checkpoint.verify(|_, _| {}).expect("whole");
        let memory: Memory = serde_json::from_slice(checkpoint.manifest()).expect("parsed");
        assert_eq!(*checkpoint.pages(), memory.keys().map(|&page| page..page + 1).collect::<PageSet>());
        let mut bytes = vec![0; PAGE];
        for (&number, &tag) in &memory {
            checkpoint.read(number, &mut bytes).expect("read");
            assert!(bytes == page(number, tag), "page {number} of checkpoint {}", item.number);
        }
    }
}

#[test]
fn whoever_is_killed_leaves_whole_checkpoints_and_all_that_were_told() {
    let mut rng = SmallRng::from_os_rng();
    for place in Place::both() {
        let mut told = BTreeSet::new();
        let (mut seen, mut unfinished) = (0, 0);
        for _ in 0..ROUNDS {
            one_life(&place.dir(), Duration::from_micros(rng.random_range(0..60_000)), &mut told);
            let store = Store::open(place.dir()).expect("opened");
            let left = || {
                let names = std::fs::read_dir(store.dir()).expect("listed").map(|entry| entry.expect("an entry").file_name());
                names.filter(|name| name.to_str().expect("a name").ends_with(".tmp")).count()
            };
            unfinished += left();
            check(&store, &told);
            seen = seen.max(store.numbers().expect("listed").last().copied().unwrap_or(0));
            drop(store.begin(Base::Empty).expect("begun"));
            assert_eq!(left(), 0, "the next writer removes what was left unfinished");
        }
        println!("{:?}: {seen} checkpoints, {unfinished} directories were left unfinished", place.mode);
        assert!(unfinished > 0, "no kill came in the middle of anything: this test looks at nothing");
    }
}
