//! The pools of tests/java-pool: classes of the JDK as JDK 25 has them, and what programs would have put there.
//!
//! What must always hold: they are what Java would make of them: a map finds its keys, a list has its length.

use super::Value::*;
use super::{Made, WORDS};

/// Bytes that a pool may have in the repository.
pub const LEN_MAX: usize = 128 << 10;

/// Everything that is in tests/java-pool, by name.
pub fn all() -> [(&'static str, Made); 3] {
    [("empty", empty()), ("graph", graph()), ("crashed", crashed())]
}

/// Made, opened, closed.
pub fn empty() -> Made {
    Made::new("towa-java-empty", 2)
}

fn jdk(made: &mut Made) {
    made.add_class("[B", 1, &[]);
    let string = "java.lang.String";
    made.add_class(
        string,
        0,
        &[(string, "value", "[B"), (string, "hash", "I"), (string, "coder", "B"), (string, "hashIsZero", "Z")],
    );
    made.add_class("java.lang.Integer", 0, &[("java.lang.Integer", "value", "I")]);
    made.add_class("[Ljava.util.HashMap$Node;", 1, &[]);
    let (map, node, set) = ("java.util.HashMap", "java.util.HashMap$Node", "Ljava/util/Set;");
    let fields = [
        ("java.util.AbstractMap", "keySet", set),
        ("java.util.AbstractMap", "values", "Ljava/util/Collection;"),
        (map, "table", "[Ljava/util/HashMap$Node;"),
        (map, "entrySet", set),
        (map, "size", "I"),
        (map, "modCount", "I"),
        (map, "threshold", "I"),
        (map, "loadFactor", "F"),
    ];
    made.add_class(map, 0, &fields);
    let object = "Ljava/lang/Object;";
    let fields = [(node, "key", object), (node, "value", object), (node, "next", "Ljava/util/HashMap$Node;"), (node, "hash", "I")];
    made.add_class(node, 0, &fields);
}

fn hash_code(text: &str) -> i32 {
    text.bytes().fold(0i32, |hash, byte| hash.wrapping_mul(31).wrapping_add(i32::from(byte)))
}

pub fn string(made: &mut Made, text: &str) -> u64 {
    let bytes: Vec<_> = text.bytes().map(Byte).collect();
    let value = made.array("[B", &bytes);
    made.object("java.lang.String", &[("value", Reference(value))])
}

/// A `HashMap` with a table of 16.
fn hash_map(made: &mut Made, entries: &[(&str, u64)]) -> u64 {
    let mut table = [0; 16];
    for (key, value) in entries {
        let hash = hash_code(key) ^ (hash_code(key) as u32 >> 16) as i32;
        let bucket = &mut table[hash as usize & 15];
        let string = string(made, key);
        let of = [("hash", Int(hash)), ("key", Reference(string)), ("value", Reference(*value)), ("next", Reference(*bucket))];
        *bucket = made.object("java.util.HashMap$Node", &of);
        made.name(&format!("node {key}"), *bucket);
        made.name(&format!("key {key}"), string);
    }
    let table = made.array("[Ljava.util.HashMap$Node;", &table.map(Reference));
    made.name("table", table);
    let count = Int(entries.len() as i32);
    let of =
        [("table", Reference(table)), ("size", count), ("modCount", count), ("threshold", Int(12)), ("loadFactor", Float(0.75))];
    made.object("java.util.HashMap", &of)
}

/// A map of strings to one value of each form, an array, and a root that is null. Closed cleanly.
pub fn graph() -> Made {
    let mut made = Made::new("towa-java-graph", 1);
    jdk(&mut made);
    made.add_class("[I", 1, &[]);
    made.add_class("java.util.concurrent.TimeUnit", 2, &[]);
    made.add_class("java.lang.Class", 3, &[]);
    made.add_class("java.util.Collections$EmptyList", 4, &[]);
    let three = made.object("java.lang.Integer", &[("value", Int(3))]);
    let unit = made.constant("java.util.concurrent.TimeUnit", "SECONDS");
    let class = made.constant("java.lang.Class", "Ljava/lang/String;");
    let list = made.constant("java.util.Collections$EmptyList", "java.util.Collections#EMPTY_LIST");
    for (name, at) in [("three", three), ("unit", unit), ("class", class), ("list", list)] {
        made.name(name, at);
    }
    let map = hash_map(&mut made, &[("count", three), ("unit", unit), ("class", class), ("list", list), ("null", 0)]);
    made.name("map", map);
    // Its identity hash is known to somebody.
    made.set32(map + 16, 0x1234_5678);
    let codes = made.array("[I", &[2, 3, 5, 7, 11].map(Int));
    made.name("codes", codes);
    made.root("demo.Shop", "orders", "Ljava/util/Map;", map);
    made.root("demo.Shop", "codes", "[I", codes);
    made.root("demo.Shop", "nothing", "Ljava/lang/Object;", 0);
    made
}

/// Arrays larger than a segment, a list that is its own element, replicas that nobody reaches; of a pool that was recovered and
/// collected before. Killed: the older superblock is torn, and the newer one says that it was not closed.
pub fn crashed() -> Made {
    let mut made = Made::new("towa-java-crash", 1);
    // Recovery's third mark number, the collector's seventh cycle.
    made.set(WORDS + 8, 3);
    made.set(WORDS + 16, 7);
    jdk(&mut made);
    made.add_class("[J", 1, &[]);
    made.add_class("[Ljava.lang.Object;", 1, &[]);
    let list = "java.util.ArrayList";
    let fields = [("java.util.AbstractList", "modCount", "I"), (list, "elementData", "[Ljava/lang/Object;"), (list, "size", "I")];
    made.add_class(list, 0, &fields);
    let primes: Vec<i64> = (2i64..).filter(|n| (2..*n).take_while(|d| d * d <= *n).all(|d| n % d != 0)).take(1000).collect();
    let primes = made.array("[J", &primes.into_iter().map(Long).collect::<Vec<_>>());
    made.name("primes", primes);
    let shared: Vec<u64> = (0..20).map(|n| string(&mut made, &format!("event {n}"))).collect();
    made.name("event 0", shared[0]);
    let history = made.object(list, &[("size", Int(600)), ("modCount", Int(600))]);
    made.name("history", history);
    let mut events: Vec<_> = shared.iter().copied().cycle().take(700).map(Reference).collect();
    events[600..].fill(Reference(0));
    events[0] = Reference(history);
    let events = made.array("[Ljava.lang.Object;", &events);
    made.name("events", events);
    made.set(history + made.class(list).fields["elementData"], events);
    // Garbage: a string that was cut off, and a block that was reserved and never filled.
    string(&mut made, "never seen again");
    made.block(1000);
    // Marks of the recovery before the last one, and of the last one.
    made.set(history + 8, 2 << 36 | 17);
    made.set(primes + 8, 3 << 36 | 1);
    made.set32(shared[3] + 4, 2);
    made.root("demo.Shop", "primes", "[J", primes);
    made.root("demo.Shop", "history", "Ljava/util/List;", history);
    made.root("demo.Shop", "first", "Ljava/lang/Object;", shared[0]);
    for (slot, seq) in [(0, 6), (4096, 5)] {
        made.set(slot + 32, seq);
        made.set32(slot + 68, 0);
    }
    made.seal();
    made.set(4096 + 48, 0);
    made
}
