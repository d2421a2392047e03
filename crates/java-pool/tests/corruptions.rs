//! One thing wrong at a time: each is refused or found, by a message of its own that says where.

mod builder;

use builder::{HEAP, Made, WORDS, graphs};
use towa_java_pool::Pool;

/// What must come of it.
enum Found {
    /// An error whose text holds this.
    Refused(&'static str),
    /// A problem at the place of this name and so many bytes on, whose text holds this; perhaps others.
    Problem(&'static str, u64, &'static str),
}
use Found::*;

type Case = (&'static str, fn(&mut Made), Found);

fn check(make: fn() -> Made, cases: &[Case]) {
    for (name, edit, found) in cases {
        let mut made = make();
        made.name("file", 0);
        edit(&mut made);
        let pool = Pool::of_bytes("orders.towa", made.bytes.clone());
        let result = pool.verify(&mut |_, _| {});
        match found {
            Refused(text) => {
                let said = result.err().unwrap_or_else(|| panic!("{name}: not refused")).to_string();
                assert!(said.contains(text) && said.starts_with("orders.towa: "), "{name}: {said}");
                assert_eq!(pool.describe().unwrap_err().to_string(), said, "{name}");
            }
            Problem(place, offset, text) => {
                let report = result.unwrap_or_else(|e| panic!("{name}: {e}"));
                let at = made.at(place) + offset;
                let is_it = |p: &&towa_java_pool::Problem| p.at == at && p.what.contains(text);
                assert!(report.problems.iter().any(|p| is_it(&p)), "{name}, at {at:#x}: {:#x?}", report.problems);
                assert_eq!(report.problems_found as usize, report.problems.len(), "{name}");
            }
        }
    }
}

/// Sets a number in both superblock slots.
fn slots(made: &mut Made, at: u64, value: u32) {
    made.set32(at, value);
    made.set32(4096 + at, value);
    made.seal();
}

fn swap_slots(made: &mut Made) {
    let newest = made.bytes[4096..4352].to_vec();
    let older = made.bytes[..256].to_vec();
    made.put(0, &newest);
    made.put(4096, &older);
}

/// Changes a record's payload, and gives it the sum that fits.
fn record(made: &mut Made, name: &str, at: u64, value: u32) {
    let place = made.at(name);
    made.set32(place + 24 + at, value);
    made.seal_record(place);
}

/// Where the `number`th field of a class is described, from the payload's beginning.
fn field(made: &Made, class: &str, number: usize) -> u64 {
    let record = made.at(&format!("class {class}"));
    let mut at = 16;
    let skip = |at: u64| at + 4 + u64::from(made.get32(record + 24 + at)).next_multiple_of(4);
    at = skip(at);
    for _ in 0..number {
        at = skip(skip(skip(at + 8)));
    }
    at
}

const MAP: &str = "java.util.HashMap";

#[test]
fn what_is_no_pool_of_this_version_is_refused() {
    let cases: &[Case] = &[
        ("empty", |m| m.bytes.clear(), Refused("not a Towa pool: it is empty")),
        ("zeros of a stopped creation", |m| m.bytes = vec![0; HEAP as usize], Refused("being made, or its making was interrupted")),
        ("more zeros than a creation leaves", |m| m.bytes = vec![0; HEAP as usize + 1], Refused("it does not begin with TOWAJAVA")),
        ("short", |m| m.bytes.truncate(100), Refused("not a Towa pool: it is too short")),
        ("foreign", |m| (m.put(0, b"PK\x03\x04"), m.put(4096, b"PK\x03\x04")).0, Refused("not a Towa pool: it does not begin")),
        ("zeros", |m| m.bytes.fill(0), Refused("not a Towa pool: it does not begin")),
        ("newer", |m| slots(m, 8, 2), Refused("format version 2, this program knows version 1; use a newer Towa")),
        ("newer, summed otherwise", |m| (m.set32(8, 7), m.set32(4096 + 8, 7)).0, Refused("format version 7")),
        ("older than the first", |m| slots(m, 8, 0), Refused("damaged at 0x1008: superblock: version 0")),
        ("flags", |m| slots(m, 12, 4), Refused("flags 0x4, of which none is known")),
        ("reserved", |m| slots(m, 200, 1), Refused("a superblock with something at 0x10c8")),
        ("being made", |m| (slots(m, 64, 0), m.set(WORDS, HEAP)).1, Refused("being made, or its making was interrupted")),
        ("both slots torn", |m| (m.set32(40, 1), m.set32(4096 + 40, 1)).0, Refused("damaged at 0x0: no superblock slot")),
        ("state", |m| slots(m, 64, 2), Refused("damaged at 0x1040: superblock: state 2")),
        ("heap's start", |m| slots(m, 56, 8192), Refused("damaged at 0x1038: superblock: the heap begins at 0x2000")),
        ("capacity", |m| slots(m, 40, 4096), Refused("damaged at 0x1028: superblock: a capacity of 4096")),
        ("clean", |m| slots(m, 68, 9), Refused("damaged at 0x1044: superblock: clean is 9")),
        ("durability", |m| slots(m, 72, 3), Refused("damaged at 0x1048: superblock: durability 3")),
        ("one slot alone is left", |m| (m.bytes.truncate(300), m.set32(40, 1)).1, Refused("truncated: it has 300 bytes")),
        ("no words", |m| m.bytes.truncate(8000), Refused("truncated: it has 8000 bytes, 65536 are needed for the superblock")),
        ("no end", |m| m.bytes.truncate(70000), Refused("truncated: it has 70000 bytes, 106496 are needed for what is in use")),
        ("frontier below the heap", |m| m.set(WORDS, HEAP - 4096), Refused("damaged at 0x2000: frontier 0xf000")),
        ("frontier in a segment", |m| m.set(WORDS, HEAP + 8), Refused("damaged at 0x2000: frontier 0x10008")),
        ("frontier above the capacity", |m| m.set(WORDS, 2 << 30), Refused("damaged at 0x2000: frontier 0x80000000")),
        ("no head of classes", |m| m.set(WORDS + 24, 0), Refused("damaged at 0x2018: head of classes: zeros")),
        ("no head of roots", |m| m.set(WORDS + 32, 0), Refused("damaged at 0x2020: head of roots: zeros")),
        ("no head of the undo log", |m| m.set(WORDS + 40, 0), Refused("damaged at 0x2028: head of the undo log: zeros")),
        (
            "made, and being made",
            |m| slots(m, 64, 0),
            Refused("damaged at 0x1040: superblock: it says that the pool is being made"),
        ),
        ("head of classes", |m| m.set(WORDS + 24, 8), Refused("damaged at 0x2018: head of classes: 0x8 is no place")),
        ("head of roots", |m| m.set(WORDS + 32, HEAP + 8), Refused("damaged at 0x2020: head of roots: 0x10008")),
        ("head of the undo log", |m| m.set(WORDS + 40, 1 << 40), Refused("damaged at 0x2028: head of the undo log: 0x1000")),
    ];
    check(graphs::graph, cases);
}

#[test]
fn slots_and_words_that_contradict_are_found() {
    let cases: &[Case] = &[
        ("of two pools", |m| (m.put(16, b"X"), m.seal()).1, Problem("file", 16, "of another pool")),
        ("when", |m| (m.set(48, 5), m.seal()).1, Problem("file", 48, "differ in when")),
        ("same seq", |m| (m.set(32, 5), m.seal()).1, Problem("file", 32, "both superblock slots have seq 5")),
        ("longer than it may be", |m| slots(m, 40, 106_496 - 4096), Refused("frontier 0x1a000 is no end")),
        ("mark number", |m| m.set(WORDS + 8, 0), Problem("file", WORDS + 8, "mark number of recovery is 0")),
        ("cycle", |m| m.set(WORDS + 16, 1 << 28), Problem("file", WORDS + 16, "collector cycle is 268435456")),
        ("stale tables", |m| m.set(WORDS + 48, 3), Problem("file", WORDS + 48, "mark of stale tables is 3")),
        ("no stale tables", |m| m.set(WORDS + 48, 0), Problem("file", WORDS + 48, "mark of stale tables is 0")),
        ("section numbers", |m| m.set(WORDS + 64, 0), Problem("file", WORDS + 64, "limit of section numbers is 0")),
        ("slot gone", |m| m.put(0, &[0; 256]), Problem("file", 0, "superblock slot is gone")),
        ("newest slot gone", |m| m.put(4096, &[0; 256]), Problem("file", 4096, "superblock slot is gone")),
        ("slots swapped", swap_slots, Problem("file", 32, "belongs into the other")),
        ("slot of long ago", |m| (m.set(32, 2), m.seal()).1, Problem("file", 32, "not one update apart")),
        ("clean, with a log", |m| m.set(WORDS + 40, HEAP + 4080), Problem("file", WORDS + 40, "closed cleanly, yet")),
        ("log in the map", |m| m.set(WORDS + 40, m.at("map")), Problem("file", WORDS + 40, "lies in a block in use")),
    ];
    check(graphs::graph, cases);
    let mut longer = graphs::graph();
    slots(&mut longer, 40, 106_496);
    longer.bytes.resize(200_000, 0);
    let report = Pool::of_bytes("x", longer.bytes).verify(&mut |_, _| {}).unwrap();
    assert!(report.problems[0].what.contains("more than its capacity of 106496"), "{:?}", report.problems);
}

#[test]
fn damaged_records_are_found() {
    const STRING: &str = "class java.lang.String";
    let cases: &[Case] = &[
        ("sum of a class", |m| m.set32(m.at(STRING) + 40, 0), Problem(STRING, 16, "the checksum of the class record")),
        (
            "sum of a root",
            |m| m.set32(m.at("root demo.Shop.codes") + 36, 1),
            Problem("root demo.Shop.codes", 16, "of the root record"),
        ),
        ("mark of the last", |m| m.set32(m.at(STRING) + 20, 2), Problem(STRING, 20, "a mark that is neither 0 nor 1")),
        ("cut off", |m| m.set(m.at(STRING), 0), Problem(STRING, 0, "which is not marked as the last")),
        ("next nowhere", |m| m.set(m.at(STRING), HEAP + 4), Problem(STRING, 0, "leads to 0x10004, which is no place")),
        ("a ring", |m| m.set(m.at(STRING), m.at("class java.lang.Class")), Problem(STRING, 0, "comes back to the record at")),
        ("its own next", |m| m.set(m.at(STRING), m.at(STRING)), Problem(STRING, 0, "comes back to the record at")),
        ("kind", |m| m.set32(m.at(STRING) + 8, 2), Problem(STRING, 8, "a record of kind 2 in the chain of class records")),
        ("a root among classes", |m| m.set(WORDS + 24, m.at("root demo.Shop.codes")), Problem("root demo.Shop.codes", 8, "kind 2")),
        ("no bytes", |m| m.set32(m.at(STRING) + 12, 24), Problem(STRING, 12, "a class record of 24 bytes")),
        ("bytes beyond all", |m| m.set32(m.at(STRING) + 12, u32::MAX), Problem(STRING, 12, "a class record of 4294967295 bytes")),
        (
            "in another block",
            |m| m.set32(m.at(STRING) + 12, 5000),
            Problem("class java.lang.Integer", 0, "overlaps the small blocks"),
        ),
        ("class 0", |m| record(m, STRING, 0, 0), Problem(STRING, 0, "class 0 does not exist")),
        ("same index", |m| record(m, "class [B", 0, 2), Problem("class [B", 0, "class 2 ([B) is described at")),
        ("form", |m| record(m, STRING, 4, 5), Problem(STRING, 0, "java.lang.String has form 5")),
        ("no array", |m| record(m, STRING, 4, 1), Problem(STRING, 0, "is said to be an array")),
        ("fields of an array", |m| record(m, "class [B", 12, 1), Problem("class [B", 0, "[B has fields, and its form is array")),
        ("small", |m| record(m, STRING, 8, 16), Problem(STRING, 0, "have 16 bytes, less than a header")),
        ("fields missing", |m| record(m, STRING, 12, 9), Problem(STRING, 0, "it ends before its last field does")),
        ("fields too many", |m| record(m, STRING, 12, 2), Problem(STRING, 0, "has the origin")),
        ("text too long", |m| record(m, STRING, 16, 1 << 20), Problem(STRING, 0, "a string of 1048576 bytes")),
        ("text", |m| record(m, STRING, 20, u32::MAX), Problem(STRING, 0, "a string that is not UTF-8")),
        ("nameless", |m| record(m, "class [B", 16, 0), Problem("class [B", 0, "class 1 has no name")),
    ];
    check(graphs::graph, cases);
    let mut twice = graphs::graph();
    twice.root("demo.Shop", "codes", "[I", 0);
    twice.root("demo.Shop", "odd", "I", 0);
    twice.root("demo.Shop", "", "[I", 0);
    let report = Pool::of_bytes("x", twice.bytes).verify(&mut |_, _| {}).unwrap();
    let said: Vec<&str> = report.problems.iter().map(|p| p.what.as_str()).collect();
    assert!(said[0].contains("without its class or field") && said[1].contains("which is none of a reference"), "{said:?}");
    assert!(said[2].contains("root demo.Shop.codes is there twice") && said.len() == 3, "{said:?}");
}

#[test]
fn fields_that_cannot_be_are_found() {
    let at = "class java.util.HashMap";
    // keySet, values, table, entrySet, size, ...
    let edits: [(usize, u64, u32, &str); 8] = [
        (0, 0, 16, "field java.util.AbstractMap.keySet of java.util.HashMap lies at 16, outside"),
        (4, 0, 72, "field java.util.HashMap.size of java.util.HashMap lies at 72, outside"),
        (4, 0, 58, "size of java.util.HashMap of 4 bytes lies at 58, which is not aligned"),
        (2, 0, 24, "fields of java.util.HashMap overlap, at 24 and 24"),
        (4, 0, 28, "fields of java.util.HashMap overlap, at 24 and 28"),
        (4, 4, 0x51, "size of java.util.HashMap has type 0x51, which does not exist"),
        (4, 4, b'J' as u32, "has the descriptor I, which does not go with its type"),
        (2, 4, b'I' as u32, "has the descriptor [Ljava/util/HashMap$Node;, which does not go with its type"),
    ];
    for (number, offset, value, text) in edits {
        let mut made = graphs::graph();
        let place = field(&made, MAP, number) + offset;
        record(&mut made, at, place, value);
        let report = Pool::of_bytes("x", made.bytes.clone()).verify(&mut |_, _| {}).unwrap();
        assert!(report.problems.iter().any(|p| p.at == made.at(at) && p.what.contains(text)), "{text}: {:#?}", report.problems);
    }
}

#[test]
fn damaged_replicas_are_found() {
    const KEY: &str = "node unit";
    let cases: &[Case] = &[
        ("not aligned", |m| m.set(m.at(KEY) + 24, m.at("key unit") + 8), Problem(KEY, 24, "HashMap$Node.key of the replica at")),
        ("before the heap", |m| m.set(m.at(KEY) + 24, 4096), Problem(KEY, 24, "leads to 0x1000, outside the heap")),
        ("behind it", |m| m.set(m.at(KEY) + 24, 0x1a000), Problem(KEY, 24, "leads to 0x1a000, outside the heap")),
        ("far behind it", |m| m.set(m.at(KEY) + 24, !15), Problem(KEY, 24, "leads to 0xfffffffffffffff0, outside the heap")),
        ("class 0", |m| m.set(m.at(KEY) + 24, m.get(WORDS) - 32), Problem(KEY, 24, "whose class is 0: there is none")),
        ("unknown class", |m| m.set32(m.at("key unit"), 77), Problem(KEY, 24, "whose class is 77: there is none")),
        ("a record", |m| m.set(m.at(KEY) + 32, m.at("class [B")), Problem(KEY, 32, "which is a record")),
        (
            "root nowhere",
            |m| m.set(m.at("root demo.Shop.codes") + 24, 3),
            Problem("root demo.Shop.codes", 24, "root demo.Shop.codes leads"),
        ),
        ("element nowhere", |m| m.set(m.at("table") + 24 + 8 * 9, 5), Problem("table", 24 + 8 * 9, "element 9 of the array at")),
        (
            "other size",
            |m| m.set32(m.at("codes") + 20, 20),
            Problem("root demo.Shop.codes", 24, "the [I there needs a block of 112"),
        ),
        ("sizes in a segment", |m| m.set32(m.at("unit") + 20, 0), Problem("unit", 24, "the enum constant at")),
        ("mixed", |m| m.set32(m.at("codes"), 6), Problem("root demo.Shop.codes", 24, "its segment has blocks of 48")),
        ("length", |m| m.set32(m.at("codes") + 20, 1 << 31), Problem("codes", 20, "has a length of 2147483648")),
        (
            "large",
            |m| m.set32(m.at("codes") + 20, 1 << 20),
            Problem("root demo.Shop.codes", 24, "more than a segment, and does not"),
        ),
        ("long constant", |m| m.set32(m.at("unit") + 20, 1 << 24), Problem("unit", 20, "enum constant at")),
        ("enum constant", |m| m.put(m.at("unit") + 24, b"\xff"), Problem("unit", 24, "is not UTF-8")),
        ("class constant", |m| m.put(m.at("class") + 24, b"X"), Problem("class", 24, "\"Xjava/lang/String;\", which is none")),
        (
            "named constant",
            |m| m.put(m.at("list") + 24 + 21, b"."),
            Problem("list", 24, "(java.util.Collections$EmptyList) is \"java"),
        ),
        ("stamp", |m| m.set32(m.at("map") + 4, 2), Problem("map", 4, "collector cycle 2, which is yet to come: the pool is in 1")),
        ("mark", |m| m.set(m.at("map") + 8, 2 << 36), Problem("map", 8, "mark number 2, which is yet to come: the pool is at 1")),
        ("hash", |m| m.set32(m.at("map") + 16, 1 << 31), Problem("map", 16, "identity hash 0x80000000")),
    ];
    check(graphs::graph, cases);
}

#[test]
fn damaged_large_blocks_are_found() {
    let cases: &[Case] = &[
        (
            "behind the end",
            |m| m.set32(m.at("primes") + 20, 1 << 30),
            Problem("root demo.Shop.primes", 24, "ends behind the frontier"),
        ),
        ("over others", |m| m.set32(m.at("primes") + 20, 2000), Problem("root demo.Shop.primes", 24, "overlaps the large block")),
        (
            "one in the other",
            |m| {
                let (primes, events) = (m.at("primes"), m.at("events"));
                m.set(m.at("root demo.Shop.first") + 24, primes);
                m.set(events + 32, primes + 4096);
                m.set(primes + 4096, m.get(primes));
                m.set(primes + 4096 + 16, 40 << 32);
            },
            Problem("events", 32, "lies in the large block at"),
        ),
    ];
    check(graphs::crashed, cases);
}

/// A slot that is not whole is an update cut short: the other one counts.
#[test]
fn a_torn_slot_is_no_damage() {
    for slot in [0, 4096] {
        let mut made = graphs::graph();
        made.put(slot + 24, b"torn");
        let report = Pool::of_bytes("x", made.bytes).verify(&mut |_, _| {}).unwrap();
        assert_eq!((report.problems_found, report.description.clean), (0, slot == 0));
    }
}

#[test]
fn an_interrupted_atomically_is_told() {
    let mut made = graphs::crashed();
    assert!(!Pool::of_bytes("x", made.bytes.clone()).describe().unwrap().atomically_interrupted);
    let log = made.block(4096);
    made.set(WORDS + 40, log);
    let found = |made: &Made| {
        let report = Pool::of_bytes("x", made.bytes.clone()).verify(&mut |_, _| {}).unwrap();
        assert!(report.description.atomically_interrupted);
        report.problems
    };
    assert!(found(&made)[0].what.contains("where no block of it lies"));
    made.set(log, 1);
    made.set(log + 8, 77);
    made.put(log + 16, b"TOWAUNDO");
    assert_eq!(found(&made), []);
    let more = made.block(4096);
    made.set(log, more);
    made.set(log + 8, 77);
    (0..127).for_each(|n| made.undo_entry(log + 32 + n * 32, HEAP + n * 8));
    assert!(found(&made)[0].what.contains("where no block of it lies"));
    made.set(log, log);
    assert!(found(&made)[0].what.contains("a block of it that came before"));
    made.set(log, 0);
    assert!(found(&made)[0].what.contains("leads to 0, where 1 stands for none"));
    made.set(log, 1);
    assert_eq!(found(&made), []);
    made.undo_entry(log + 64, 8);
    assert!(found(&made)[0].what.contains("is of 8 bytes at 0x8"));
}

/// However many there are: the first are told, all are counted.
#[test]
fn problems_are_counted_beyond_those_told() {
    let mut made = graphs::crashed();
    let events = made.at("events");
    (0..600).for_each(|n| made.set(events + 24 + n * 8, 1));
    let report = Pool::of_bytes("x", made.bytes).verify(&mut |_, _| {}).unwrap();
    assert_eq!((report.problems_found, report.problems.len()), (600, towa_java_pool::PROBLEMS_SHOWN));
}
