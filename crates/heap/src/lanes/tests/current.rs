//! Bringing the image up from a working copy: words that records name are as they are there, those written in place as they were logged,
//! and nothing else gets into the image.

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};

use towa_media::RamMedium;
use towa_media::sim::Explorer;

use super::super::current::{Current, HELD_MAX, Working};
use super::super::dirty::DirtyLines;
use super::super::record::Words as Run;
use super::super::replay::Sink;
use super::*;

const WORDS: u64 = (8 << 20) / 8;
const LINES: u64 = WORDS / 8;

/// A working copy whose answers the test gives.
struct Fake {
    words: Vec<u64>,
    begins: HashSet<u64>,
    layout: Cell<u64>,
    /// So many lines are read before the layout changes; and so many times it does.
    changes_after: Cell<u64>,
    changes: Cell<u64>,
    settles: bool,
    settled: u64,
    /// Lines that cease to begin a block with the first change.
    cease: HashSet<u64>,
}

impl Fake {
    fn new() -> Fake {
        Fake {
            words: vec![0; WORDS as usize],
            begins: HashSet::new(),
            layout: Cell::new(7),
            changes_after: Cell::new(0),
            changes: Cell::new(0),
            settles: true,
            settled: 0,
            cease: HashSet::new(),
        }
    }
}

impl Working for Fake {
    fn line(&self, line: u64) -> [u64; 8] {
        self.changes_after.set(self.changes_after.get().saturating_sub(1));
        self.words[line as usize * 8..][..8].try_into().unwrap()
    }

    fn prefetch(&self, line: u64) {
        assert!(line < LINES);
    }

    fn settle(&mut self) -> bool {
        self.settled += 1;
        if self.changes.get() > 0 && self.changes_after.get() == 0 {
            self.changes.set(self.changes.get() - 1);
            self.layout.set(self.layout.get() + 1);
            for line in self.cease.drain() {
                self.begins.remove(&line);
                // What was its header is something else.
                self.words[line as usize * 8] = 77;
            }
        }
        self.settles
    }

    fn begins_block(&self, line: u64) -> bool {
        self.begins.contains(&line)
    }

    fn layout(&self) -> u64 {
        self.layout.get()
    }
}

/// Words in a row, and whether they were written in place.
#[derive(Clone, Debug)]
struct Wrote {
    first: u64,
    values: Vec<u64>,
    in_place: bool,
}

/// What one record says: mostly few words, near or far, at times many, at times in place. Neighbourhoods are small, so that records meet.
fn draw(random: &mut Random, ts: u64) -> Vec<Wrote> {
    let near = DATA / 8 + [0, 40, 250_000, 262_100][random.next(4) as usize];
    let run = |random: &mut Random, count: u64, in_place: bool| {
        let (first, salt) = (near + random.next(60), random.next(1 << 30));
        Wrote { first, values: (0..count).map(|n| (ts << 40) | (salt + n)).collect(), in_place }
    };
    match random.next(8) {
        0..4 => (0..1 + random.next(4)).map(|_| run(random, 1, false)).collect(),
        4 => (0..5 + random.next(9)).map(|_| run(random, 1, false)).collect(),
        5 => vec![{
            let n = 5 + random.next(70);
            run(random, n, false)
        }],
        6 => vec![{
            let n = 1 + random.next(3);
            run(random, n, true)
        }],
        // A new block and its header, in place, and words of others.
        _ => {
            let n = 2 + random.next(40);
            let in_place = run(random, n, true);
            let (before, behind) = (run(random, 1, false), run(random, 1, false));
            if random.next(2) == 0 { vec![in_place, behind] } else { vec![before, in_place, behind] }
        }
    }
}

fn builder(ts: u64, wrote: &[Wrote]) -> RecordBuilder {
    let mut builder = RecordBuilder::new();
    builder.set_ts(ts);
    for Wrote { first, values, in_place } in wrote {
        match in_place {
            true => builder.words_in_place(first * 8, values),
            false if values.len() == 1 => builder.word(first * 8, values[0]),
            false => builder.words(first * 8, values),
        }
    }
    builder
}

/// Records and what the image must come to.
struct Model {
    image: BTreeMap<u64, u64>,
    records: Vec<(u64, Vec<Wrote>)>,
    applied: usize,
}

impl Model {
    fn new() -> Model {
        Model { image: BTreeMap::new(), records: Vec::new(), applied: 0 }
    }

    /// Takes the records up to `upto`, with the help of the working copy or without.
    fn apply(&mut self, upto: u64, working: Option<&Fake>) {
        let mut newest: BTreeMap<u64, (bool, u64)> = BTreeMap::new();
        while let Some((_, wrote)) = self.records.get(self.applied).filter(|(ts, _)| *ts <= upto) {
            for Wrote { first, values, in_place } in wrote {
                newest.extend((*first..).zip(values.iter().map(|value| (*in_place, *value))));
            }
            self.applied += 1;
        }
        for (word, (in_place, value)) in newest {
            match working {
                Some(working) if !in_place => {
                    if word % 8 >= 2 || !working.begins.contains(&(word / 8)) {
                        self.image.insert(word, working.words[word as usize]);
                    }
                }
                _ => {
                    self.image.insert(word, value);
                }
            }
        }
        self.image.retain(|_, value| *value != 0);
    }
}

fn image_of(heap: &Heap) -> BTreeMap<u64, u64> {
    let mut words = vec![0u64; (WORDS - DATA / 8) as usize];
    heap.image().read(DATA, bytemuck::cast_slice_mut(&mut words)).unwrap();
    (DATA / 8..).zip(words).filter(|(_, value)| *value != 0).collect()
}

/// A pool with records, and a working copy that they and others wrote.
struct Pool {
    heap: Heap,
    replayer: Replayer,
    heads: Vec<u64>,
    model: Model,
    fake: Fake,
    random: Random,
    ts: u64,
}

impl Pool {
    fn on(medium: Arc<dyn Medium>, seed: u64) -> Pool {
        let heap = Heap::create(medium, &options()).unwrap();
        (0..LANES as usize).for_each(|lane| heap.lanes().provide(lane).unwrap());
        let replayer = Replayer::of(&heap).unwrap();
        Pool { heap, replayer, heads: vec![0; 3], model: Model::new(), fake: Fake::new(), random: Random(seed), ts: 0 }
    }

    fn append(&mut self, wrote: Vec<Wrote>) {
        self.ts += 1;
        let lane = self.random.next(3) as usize;
        self.heads[lane] = self.heap.lanes().append(lane, self.heads[lane], &builder(self.ts, &wrote)).unwrap();
        self.heap.lanes().fence().unwrap();
        for Wrote { first, values, in_place } in &wrote {
            // What is written in place need not be there any more, or not yet.
            let there = values.iter().map(|value| if *in_place { value ^ 1 << 62 } else { *value });
            (*first..).zip(there).for_each(|(word, value)| self.fake.words[word as usize] = value);
        }
        self.model.records.push((self.ts, wrote));
    }

    fn append_some(&mut self, count: u64) {
        for _ in 0..count {
            let wrote = draw(&mut self.random, self.ts + 1);
            self.append(wrote);
        }
    }

    /// Words that no record names, and newer values of words that some name.
    fn disturb(&mut self) {
        for _ in 0..40 {
            let word = DATA / 8 + [0, 40, 250_000, 262_100, 400_000][self.random.next(5) as usize] + self.random.next(130);
            self.fake.words[word as usize] = 1 << 61 | self.random.next(1 << 30);
        }
    }

    fn apply(&mut self, upto: u64, current: bool) {
        self.replayer.apply_current(&self.heads, upto, &mut self.fake).unwrap();
        self.model.apply(upto, current.then_some(&self.fake));
        assert!(image_of(&self.heap) == self.model.image, "image and model differ at {:x?}", self.difference());
    }

    fn difference(&self) -> Vec<(u64, Option<u64>, Option<u64>)> {
        difference(&image_of(&self.heap), &self.model.image)
    }
}

/// Words in which they differ, the first of them.
fn difference(image: &BTreeMap<u64, u64>, model: &BTreeMap<u64, u64>) -> Vec<(u64, Option<u64>, Option<u64>)> {
    let words: std::collections::BTreeSet<_> = image.keys().chain(model.keys()).copied().collect();
    let differ = words.into_iter().map(|word| (word, image.get(&word).copied(), model.get(&word).copied()));
    differ.filter(|(_, is, should)| is != should).take(8).collect()
}

#[test]
fn the_image_is_what_the_working_copy_and_the_newest_logged_values_say() {
    for seed in 0..30 {
        let mut pool = Pool::on(RamMedium::anonymous(), seed);
        for round in 0..6 {
            pool.append_some(60);
            let half = pool.ts - 30;
            pool.disturb();
            let line = |random: &mut Random| DATA / 64 + [0, 5, 31_250, 32_762][random.next(4) as usize] + random.next(16);
            pool.fake.begins = (0..round * 4).map(|_| line(&mut pool.random)).collect();
            pool.apply(half, true);
            if round % 2 == 0 {
                pool.disturb();
                pool.apply(u64::MAX, true);
            }
            // Sometimes it does not settle: then it is what the records say.
            if round == 3 {
                pool.append_some(20);
                pool.fake.settles = false;
                pool.apply(u64::MAX, false);
                pool.fake.settles = true;
            }
        }
    }
}

/// Which of the two counts is decided by the newest record of the word alone.
#[test]
fn a_word_is_taken_from_where_its_newest_record_says() {
    let word = DATA / 8 + 3;
    let wrote = |value: u64, in_place: bool| vec![Wrote { first: word, values: vec![value], in_place }];
    for (kinds, expected) in [
        (&[true][..], 1),
        (&[true, true], 2),
        (&[false], 99),
        (&[true, false], 99),
        (&[false, true], 2),
        (&[true, false, true], 3),
        (&[false, true, false], 99),
        (&[true, false, true, true, false], 99),
    ] {
        let mut pool = Pool::on(RamMedium::anonymous(), 1);
        (1..).zip(kinds).for_each(|(value, in_place)| pool.append(wrote(value, *in_place)));
        pool.fake.words[word as usize] = 99;
        pool.apply(u64::MAX, true);
        assert_eq!(image_of(&pool.heap).get(&word), Some(&expected), "{kinds:?}");
    }
}

/// The rest of the line is stored; so are the first two words where records of this round say that they were written in place.
#[test]
fn headers_in_the_working_copy_stay_out_of_the_image() {
    let mut pool = Pool::on(RamMedium::anonymous(), 1);
    let line = |n: u64| DATA / 8 + n * 8;
    pool.append(vec![Wrote { first: line(0), values: (10..34).collect(), in_place: false }]);
    pool.append(vec![Wrote { first: line(2), values: vec![50, 51], in_place: true }]);
    pool.fake.begins = HashSet::from([line(1) / 8, line(2) / 8]);
    pool.apply(u64::MAX, true);
    let image = image_of(&pool.heap);
    let at = |n: u64, word: u64| image.get(&(line(n) + word)).copied();
    assert_eq!([at(0, 0), at(0, 1), at(0, 2)], [Some(10), Some(11), Some(12)]);
    assert_eq!([at(1, 0), at(1, 1), at(1, 2)], [None, None, Some(20)]);
    assert_eq!([at(2, 0), at(2, 1), at(2, 2)], [Some(50), Some(51), Some(28)]);
}

/// A block that was there when its header was copied, and is gone when that is looked for.
#[test]
fn lines_are_copied_again_when_blocks_ceased_to_be() {
    let first = DATA / 8;
    for (changes, settles) in [(0, 1), (1, 2), (3, 4), (4, 4), (1000, 4)] {
        let mut pool = Pool::on(RamMedium::anonymous(), 1);
        pool.append(vec![Wrote { first, values: (10..26).collect(), in_place: false }]);
        pool.fake.words[first as usize] = 1 << 50;
        pool.fake.words[first as usize + 9] = 5;
        pool.fake.begins = HashSet::from([first / 8]);
        pool.fake.cease = HashSet::from([first / 8]);
        pool.fake.changes.set(changes);
        // After four times, what the records say.
        pool.apply(u64::MAX, changes < 4);
        let image = image_of(&pool.heap);
        assert_eq!(pool.fake.settled, settles, "{changes} changes");
        let header = if changes == 0 {
            None
        } else if changes < 4 {
            Some(77)
        } else {
            Some(10)
        };
        assert_eq!(image.get(&first).copied(), header, "{changes} changes");
        assert_eq!(image.get(&(first + 9)).copied(), Some(if changes < 4 { 5 } else { 19 }));
    }
}

/// Nothing is stored of lines that did not settle; a later round takes none of their marks for its own.
#[test]
fn what_does_not_settle_is_left_out() {
    let mut pool = Pool::on(RamMedium::anonymous(), 1);
    let first = DATA / 8;
    pool.append(vec![Wrote { first, values: vec![1; 100], in_place: false }]);
    pool.append(vec![Wrote { first: first + 50, values: vec![2; 10], in_place: true }]);
    pool.fake.words.fill(9);
    pool.fake.settles = false;
    pool.apply(u64::MAX, false);
    assert_eq!(pool.fake.settled, 1, "one who does not settle is not asked again");
    pool.fake.settles = true;
    pool.append(vec![Wrote { first: first + 20, values: vec![3], in_place: false }]);
    pool.fake.words.fill(9);
    pool.apply(u64::MAX, true);
    assert_eq!(image_of(&pool.heap).values().filter(|value| **value == 9).count(), 1);
}

/// More lines than are held back together: each is stored once, and the lines of each batch settle before they are.
#[test]
fn many_lines_are_brought_up_in_batches() {
    let heap = Heap::create(RamMedium::anonymous(), &options()).unwrap();
    let (mut current, mut dirty, mut fake) = (Current::new(WORDS), DirtyLines::new(WORDS), Fake::new());
    fake.words = (0..WORDS).map(|word| word | 1 << 40).collect();
    let (first, count) = (DATA / 8, (WORDS - DATA / 8) as usize);
    let zeros = vec![0; count];
    for _ in 0..2 {
        fake.settled = 0;
        current.words(Run { first, values: &zeros, in_place: false }).unwrap();
        current.words(Run { first: first + 8, values: &[3; 8], in_place: true }).unwrap();
        let lines = current.store(&**heap.image(), &mut fake, &mut dirty).unwrap();
        assert_eq!(lines, Some(count as u64 / 8));
        assert_eq!(fake.settled as usize, count / 8 / HELD_MAX);
        let image = image_of(&heap);
        assert!((first..WORDS).all(|word| image[&word] == if (8..16).contains(&(word - first)) { 3 } else { word | 1 << 40 }));
    }
}

/// Whatever the crash, recovery gives what all durable records say: what is stored early is stored again, and what the cut passes over is
/// durable.
#[test]
fn a_crash_while_the_image_is_brought_up_loses_nothing() {
    for seed in 0..3 {
        let medium = SimMedium::new(towa_media::sim::Model::Line);
        let mut pool = Pool::on(Arc::new(medium.clone()), seed);
        let mut from = 0;
        for round in 0..3 {
            pool.append_some(14);
            from = if round == 2 { medium.events() } else { from };
            let half = pool.ts - 4;
            pool.replayer.apply_current(&pool.heads, half, &mut pool.fake).unwrap();
        }
        // Nobody is in flight: the working copy's words are those of the newest records, but for what is written in place.
        pool.model.apply(u64::MAX, None);
        let all = std::mem::take(&mut pool.model.image);
        drop(pool);
        Explorer::new(medium.trace(), seed)
            .starting_at(from)
            .check(1500, |image| {
                let heap = open(&image.to_medium()).map_err(|e| e.to_string())?;
                let differ = difference(&image_of(&heap), &all);
                if differ.is_empty() { Ok(()) } else { Err(format!("the image is not what the records say at {differ:x?}")) }
            })
            .unwrap_or_else(|counterexample| panic!("seed {seed}: {counterexample}"));
    }
}
