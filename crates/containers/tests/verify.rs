//! Verification of whatever a pool holds: sound containers are counted, broken ones are named, and nothing broken is followed.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use towa_containers::{
    Checked, Error, HashMap, HashMapOptions, OrderedMap, Queue, TypedHashMap, TypedOrderedMap, Vector, check_all,
};
use towa_epoch::{Options, Pool};

fn filled() -> Pool {
    let pool = Pool::volatile(&Options { heap_len: 16 << 20, ..Options::default() }).expect("open");
    let mut thread = pool.register().expect("register");
    let hash = HashMap::open(&pool, "hash", &HashMapOptions::default()).expect("open");
    let ordered = OrderedMap::open(&pool, "ordered").expect("open");
    let queue = Queue::open(&pool, "queue").expect("open");
    let typed = TypedHashMap::<u64, u32>::open(&pool, "typed hash", &HashMapOptions::default()).expect("open");
    let typed_ordered = TypedOrderedMap::<i32, u32>::open(&pool, "typed ordered").expect("open");
    let vector = Vector::<[u8; 24]>::open(&pool, "vector").expect("open");
    for i in 0..300u32 {
        let key = format!("key {i}");
        hash.insert(&mut thread, key.as_bytes(), &vec![7; i as usize]).expect("insert");
        ordered.insert(&mut thread, key.as_bytes(), b"value").expect("insert");
        queue.push(&mut thread, key.as_bytes()).expect("push");
        typed.insert(&mut thread, &u64::from(i), &i).expect("insert");
        typed_ordered.insert(&mut thread, i as i32, &i).expect("insert");
        vector.push(&mut thread, &[1; 24]).expect("push");
    }
    queue.pop(&mut thread).expect("pop");
    pool.typed_root::<u64>("something else", &mut thread, |_| Ok(0)).expect("a root");
    pool
}

#[test]
fn every_container_is_checked_by_its_tag() {
    let found = check_all(&filled()).expect("sound");
    let wanted = [
        ("hash", "hash map", 300),
        ("ordered", "ordered map", 300),
        ("queue", "queue", 299),
        ("typed hash", "hash map", 300),
        ("typed ordered", "ordered map", 300),
        ("vector", "vector", 300),
    ];
    assert_eq!(found, wanted.map(|(name, kind, items)| Checked { name: name.into(), kind, items }));
}

/// A medium that loses a page gives zeros. One line of the heap after the other becomes that: bucket lines and nodes are noticed, with and without
/// items.
#[test]
fn zeros_do_not_pass_for_what_is_empty() {
    let pool = Pool::volatile(&Options { heap_len: 16 << 20, ..Options::default() }).expect("open");
    HashMap::open(&pool, "hash", &HashMapOptions::default()).expect("open");
    OrderedMap::open(&pool, "ordered").expect("open");
    for (pool, nodes) in [(pool, 1), (filled(), 20)] {
        check_all(&pool).expect("sound");
        let (base, _) = pool.heap_range();
        let (from, to) = (base + (256 << 10), base + (256 << 10) + pool.stats().heap_used as usize + (1 << 20));
        let mut noticed = 0;
        for at in (from..to).step_by(64) {
            let line = at as *mut [u64; 8];
            // SAFETY: in the heap, which is mapped; put back before anybody else uses the pool.
            unsafe {
                let was = line.read();
                if was == [0; 8] {
                    continue;
                }
                line.write([0; 8]);
                noticed += u32::from(check_all(&pool).is_err());
                line.write(was);
            }
        }
        assert!(noticed >= 1024 + nodes, "{noticed}");
        check_all(&pool).expect("sound again");
    }
}

/// One word of the heap after the other gets a value that it should not have. What matters is noticed or harmless, and never
/// followed: a hole in the checks ends this test by SIGSEGV.
#[test]
fn nothing_broken_is_followed() {
    let pool = filled();
    let sound = check_all(&pool).expect("sound");
    let (base, _) = pool.heap_range();
    // The heap begins with its roots and the allocator's headers, which the heap's own verification looks at.
    let (from, to) = (base + (256 << 10), base + (256 << 10) + pool.stats().heap_used as usize + (1 << 20));
    let seed = std::time::UNIX_EPOCH.elapsed().map_or(1, |t| t.as_nanos() as u64 % 1_000_000_000);
    println!("seed {seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    let (mut noticed, mut tried) = (0, 0);
    while tried < 20_000 {
        let at = (from + random.random_range(0..(to - from) / 8) * 8) as *mut u64;
        // SAFETY: in the heap, which is mapped; put back before anybody else uses the pool.
        unsafe {
            let was = at.read();
            if was == 0 && random.random_bool(0.99) {
                continue;
            }
            tried += 1;
            at.write(match random.random_range(0..5) {
                0 => was ^ 1 << random.random_range(0..64),
                1 => u64::MAX,
                2 => 0,
                3 => was.wrapping_add(base as u64),
                _ => (from + random.random_range(0..to - from)) as u64,
            });
            match check_all(&pool) {
                Err(Error::Damaged(_)) => noticed += 1,
                Err(other) => panic!("{other}"),
                Ok(_) => {}
            }
            at.write(was);
        }
    }
    assert!(noticed > 1000, "{noticed} of {tried} were noticed");
    assert_eq!(check_all(&pool).expect("sound again"), sound);
}
