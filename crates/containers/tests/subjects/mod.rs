//! The containers as test subjects: each makes one random step, tells its content, and checks itself.

use rand::Rng;
use rand::rngs::SmallRng;
use towa_containers::{Change, Error, HashMap, HashMapOptions, OrderedMap, Queue, Vector};
use towa_epoch::{Pool, Thread};

/// Keys and values in a canonical order.
pub type Content = Vec<(Vec<u8>, Vec<u8>)>;

pub trait Subject {
    fn step(&mut self, thread: &mut Thread, rng: &mut SmallRng);
    fn content(&self) -> Content;
    fn check(&self) -> u64;
}

/// The subjects by name.
pub const NAMES: [&str; 4] = ["hash", "ordered", "vector", "queue"];

pub fn open(which: &str, pool: &Pool) -> Box<dyn Subject> {
    match which {
        "hash" => Box::new(HashMap::open(pool, "subject", &HashMapOptions::default()).expect("open")),
        "ordered" => Box::new(OrderedMap::open(pool, "subject").expect("open")),
        "vector" => Box::new(Vector::<[u8; 24]>::open(pool, "subject").expect("open")),
        "queue" => Box::new(Queue::open(pool, "subject").expect("open")),
        _ => panic!("no subject {which:?}"),
    }
}

fn key(rng: &mut SmallRng) -> Vec<u8> {
    // Of several lengths, many sharing their first eight bytes.
    let n: u16 = rng.random_range(0..300);
    match n % 3 {
        0 => n.to_be_bytes().to_vec(),
        1 => format!("a key with a long prefix {n}").into_bytes(),
        _ => vec![b'k'; n as usize % 20],
    }
}

fn value(rng: &mut SmallRng) -> Vec<u8> {
    let len = if rng.random_bool(0.1) { rng.random_range(0..3000) } else { rng.random_range(0..60) };
    vec![rng.random(); len]
}

impl Subject for HashMap {
    fn step(&mut self, thread: &mut Thread, rng: &mut SmallRng) {
        let (key, value) = (key(rng), value(rng));
        match rng.random_range(0..100) {
            0..50 => _ = self.insert(thread, &key, &value).expect("insert"),
            50..75 => _ = self.remove(thread, &key).expect("remove"),
            75..80 => _ = self.update(thread, &key, |v| v.fill(7)).expect("update"),
            80..85 => {
                self.modify(thread, &key, |old| if old.is_some() { Change::Remove } else { Change::Set(value) }).expect("modify")
            }
            85..99 => {
                let other = self::key(rng);
                let fails = rng.random_bool(0.3);
                let result = self.transact(thread, &[&key, &other], |view| {
                    view.insert(&key, &value)?;
                    view.remove(&other)?;
                    if fails { Err(Error::Full("on purpose".into())) } else { Ok(()) }
                });
                assert_eq!(result.is_err(), fails);
            }
            _ => self.clear(thread).expect("clear"),
        }
    }

    fn content(&self) -> Content {
        let mut content: Content = self.iter().collect();
        content.sort();
        content
    }

    fn check(&self) -> u64 {
        let checked = HashMap::check(self).expect("sound");
        assert_eq!(checked, self.len().expect("len"));
        checked
    }
}

impl Subject for OrderedMap {
    fn step(&mut self, thread: &mut Thread, rng: &mut SmallRng) {
        let (key, value) = (key(rng), value(rng));
        match rng.random_range(0..100) {
            0..50 => _ = self.insert(thread, &key, &value).expect("insert"),
            50..80 => _ = self.remove(thread, &key).expect("remove"),
            80..85 => _ = self.update(thread, &key, |v| v.fill(7)).expect("update"),
            85..99 => {
                let keys: Vec<Vec<u8>> = (0..rng.random_range(1..40)).map(|_| self::key(rng)).collect();
                let fails = rng.random_bool(0.3);
                let result = self.transact(thread, |view| {
                    for (i, key) in keys.iter().enumerate() {
                        if i % 3 == 0 {
                            view.remove(key);
                        } else {
                            view.insert(key, &value)?;
                        }
                    }
                    if fails { Err(Error::Full("on purpose".into())) } else { Ok(()) }
                });
                assert_eq!(result.is_err(), fails);
            }
            _ => self.clear(thread).expect("clear"),
        }
    }

    fn content(&self) -> Content {
        self.iter().collect()
    }

    fn check(&self) -> u64 {
        let checked = OrderedMap::check(self).expect("sound");
        assert_eq!(checked, self.len().expect("len"));
        checked
    }
}

impl Subject for Vector<[u8; 24]> {
    fn step(&mut self, thread: &mut Thread, rng: &mut SmallRng) {
        let value = [rng.random(); 24];
        match rng.random_range(0..300) {
            0..160 => _ = self.push(thread, &value).expect("push"),
            160..220 => _ = self.pop(thread).expect("pop"),
            220..299 => _ = self.set(thread, rng.random_range(0..200), &value).expect("set"),
            _ => self.clear(thread).expect("clear"),
        }
    }

    fn content(&self) -> Content {
        self.iter().map(|value| (Vec::new(), value.to_vec())).collect()
    }

    fn check(&self) -> u64 {
        Vector::check(self).expect("sound")
    }
}

impl Subject for Queue {
    fn step(&mut self, thread: &mut Thread, rng: &mut SmallRng) {
        match rng.random_range(0..100) {
            0..51 => self.push(thread, &value(rng)).expect("push"),
            51..99 => _ = self.pop(thread).expect("pop"),
            _ => self.clear(thread).expect("clear"),
        }
    }

    /// Taken from a queue that nobody else uses, so that it can be put back.
    fn content(&self) -> Content {
        let mut thread = self.pool().register().expect("register");
        let items: Vec<Vec<u8>> = std::iter::from_fn(|| self.pop(&mut thread).expect("pop")).collect();
        items.iter().for_each(|item| self.push(&mut thread, item).expect("push"));
        items.into_iter().map(|item| (Vec::new(), item)).collect()
    }

    fn check(&self) -> u64 {
        let checked = Queue::check(self).expect("sound");
        assert_eq!(checked, self.len());
        checked
    }
}
