//! A client of ours: its own socket, pipelined commands, values that prove themselves, and a model of what it did.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rand::Rng;
use rand::rngs::SmallRng;

use crate::history::{History, Op, State};

/// Items of a client; after them come its counters.
pub const ITEMS: usize = 150;
/// Counters of a client.
pub const COUNTERS: usize = 10;
/// The counter that all clients add to.
pub const SHARED: &str = "shared";
/// An answer that takes longer is none: the server hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// The value of `key` at `version`: all of it follows from the two, so half a value, or another's, shows.
pub fn value(key: &str, version: u64) -> Vec<u8> {
    made(key, version, |random| match random % 100 {
        0..70 => random / 100 % 200,
        70..97 => random / 100 % 4000,
        _ => random / 100 % 60_000,
    })
}

/// The same, of about as many bytes as `len` makes of a random number.
pub fn made(key: &str, version: u64, len: impl FnOnce(u64) -> u64) -> Vec<u8> {
    let mut x = version ^ key.bytes().fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    let len = len(next());
    let mut bytes = format!("{key} {version} ").into_bytes();
    while (bytes.len() as u64) < len {
        bytes.extend_from_slice(&next().to_le_bytes());
    }
    let sum = bytes.iter().fold(0u64, |sum, b| sum.rotate_left(5) ^ u64::from(*b));
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

/// The version of the value found under `key`, which must be whole.
pub fn version(key: &str, found: &[u8]) -> u64 {
    version_of(key, found, value)
}

/// The same of a value that `made` makes.
pub fn version_of(key: &str, found: &[u8], made: fn(&str, u64) -> Vec<u8>) -> u64 {
    let text = String::from_utf8_lossy(&found[..found.len().min(60)]);
    let mut words = text.splitn(3, ' ');
    let (named, version) = (words.next(), words.next().and_then(|v| v.parse().ok()));
    match (named, version) {
        (Some(named), Some(version)) if named == key && found == made(key, version) => version,
        _ => panic!("torn or foreign item: {key} holds {} bytes that begin {text:?}", found.len()),
    }
}

/// A connection.
pub struct Connection {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
}

impl Connection {
    pub fn open(address: &str) -> io::Result<Connection> {
        let writer = TcpStream::connect(address)?;
        writer.set_nodelay(true)?;
        writer.set_read_timeout(Some(PATIENCE))?;
        writer.set_write_timeout(Some(PATIENCE))?;
        Ok(Connection { reader: BufReader::new(writer.try_clone()?), writer })
    }

    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer.write_all(bytes)
    }

    /// A whole line without its end. Waiting in vain is a panic: the server hangs, which is not what a killed one does.
    pub fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        match self.reader.read_until(b'\n', &mut line) {
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                panic!("no answer within {PATIENCE:?}")
            }
            Err(e) => Err(e),
            Ok(_) if line.ends_with(b"\r\n") => Ok(String::from_utf8_lossy(&line[..line.len() - 2]).into_owned()),
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// The items of one answer to `get` or `gets`: key, value, CAS id.
    pub fn items(&mut self) -> io::Result<Vec<(String, Vec<u8>, u64)>> {
        let mut found = Vec::new();
        loop {
            let line = self.line()?;
            if line == "END" {
                return Ok(found);
            }
            let words: Vec<&str> = line.split(' ').collect();
            let ["VALUE", key, _, len, ..] = words[..] else { panic!("an answer to get: {line:?}") };
            let mut bytes = vec![0; len.parse::<usize>().expect("a length") + 2];
            self.reader.read_exact(&mut bytes)?;
            assert!(bytes.ends_with(b"\r\n"), "{key}: a value without its end");
            bytes.truncate(bytes.len() - 2);
            found.push((key.to_owned(), bytes, words.get(4).map_or(0, |cas| cas.parse().expect("a CAS id"))));
        }
    }
}

/// What must be answered.
enum Expect {
    /// This line, to operation number `.1` if it changed something.
    Line(String, Option<usize>),
    /// A number, whichever.
    Number(usize),
    /// This key in this state.
    Get(usize, State),
    /// The same, with its CAS id.
    Gets(usize, State),
    /// "DURABLE n": so many operations are durable.
    Durable(usize),
}

/// A client and what it knows. It lives through all rounds; only its connection is new in each.
pub struct Client {
    pub name: String,
    pub history: History,
    /// What its keys hold, as far as it has sent.
    state: Vec<State>,
    next_version: u64,
    /// A key and the CAS id of what it holds.
    cas: Option<(usize, u64)>,
    buffer: Vec<u8>,
    expected: Vec<Expect>,
}

/// What the observer saw: how long it takes until a write is durable without hurry.
#[derive(Clone, Copy, Debug, Default)]
pub struct Observed {
    /// When the last write that was acknowledged as durable had been sent.
    pub last_durable: Option<Instant>,
    /// Longest time from a write to its acknowledgement.
    pub longest: Duration,
}

impl Client {
    pub fn new(name: String) -> Client {
        let none = vec![None; ITEMS + COUNTERS];
        let history = History { base: none.clone(), ..History::default() };
        Client { name, history, state: none, next_version: 1, cas: None, buffer: Vec::new(), expected: Vec::new() }
    }

    /// What a key holds, as far as it has sent.
    pub fn state(&self, index: usize) -> State {
        self.state[index]
    }

    /// A version that no value had.
    pub fn new_version(&mut self) -> u64 {
        self.next_version += 1;
        self.next_version - 1
    }

    pub fn key(&self, index: usize) -> String {
        format!("{}-{index}", self.name)
    }

    /// Starts anew from what was found.
    pub fn restart(&mut self, found: Vec<State>) {
        self.state.clone_from(&found);
        self.history = History { base: found, ops: Vec::new(), durable: 0 };
        self.cas = None;
    }

    /// Batch after batch, until told to stop or the server is gone.
    pub fn work(&mut self, address: &str, rng: &mut SmallRng, stop: &AtomicBool) {
        let Ok(mut connection) = Connection::open(address) else { return };
        while !stop.load(Relaxed) {
            for _ in 0..rng.random_range(1..25) {
                self.add_command(rng);
            }
            match rng.random_range(0..6) {
                0 => self.add_barrier("durable now"),
                1 => self.add_barrier("durable"),
                _ => {}
            }
            if self.exchange(&mut connection).is_err() {
                break;
            }
        }
    }

    /// One write and a patient barrier at a time.
    pub fn observe(&mut self, address: &str, stop: &AtomicBool) -> Observed {
        let mut seen = Observed::default();
        let Ok(mut connection) = Connection::open(address) else { return seen };
        while !stop.load(Relaxed) {
            let sent = Instant::now();
            self.add_set("set", 0, None);
            self.add_barrier("durable");
            if self.exchange(&mut connection).is_err() {
                break;
            }
            seen = Observed { last_durable: Some(sent), longest: seen.longest.max(sent.elapsed()) };
        }
        seen
    }

    fn exchange(&mut self, connection: &mut Connection) -> io::Result<()> {
        let expected = std::mem::take(&mut self.expected);
        let sent = connection.send(&std::mem::take(&mut self.buffer));
        sent?;
        for expect in expected {
            self.hear(connection, expect)?;
        }
        Ok(())
    }

    fn hear(&mut self, connection: &mut Connection, expect: Expect) -> io::Result<()> {
        match expect {
            Expect::Line(wanted, op) => {
                let line = connection.line()?;
                assert_eq!(line, wanted, "{}: operation {op:?}", self.name);
                self.answered(op);
            }
            Expect::Number(op) => {
                let line = connection.line()?;
                assert!(line.parse::<u64>().is_ok(), "{}: {line:?} is no number", self.name);
                self.answered(Some(op));
            }
            Expect::Get(key, state) => drop(self.hear_item(connection, key, state)?),
            Expect::Gets(key, state) => {
                let cas = self.hear_item(connection, key, state)?;
                // Commands after it in the batch may have changed the key meanwhile.
                self.cas = cas.filter(|_| self.state[key] == state).map(|cas| (key, cas));
            }
            Expect::Durable(ops) => {
                let line = connection.line()?;
                assert!(line.starts_with("DURABLE "), "{}: a barrier was answered {line:?}", self.name);
                self.history.durable = self.history.durable.max(ops);
            }
        }
        Ok(())
    }

    fn hear_item(&self, connection: &mut Connection, key: usize, state: State) -> io::Result<Option<u64>> {
        let name = self.key(key);
        let mut items = connection.items()?;
        assert!(items.len() <= 1, "{name}: asked for one item, got {}", items.len());
        let (found, cas) = match items.pop() {
            Some((_, bytes, cas)) => (Some(read(&name, key, &bytes)), Some(cas)),
            None => (None, None),
        };
        assert_eq!(found, state, "{name}: the server forgot or invented something while it ran");
        Ok(cas)
    }

    pub fn answered(&mut self, op: Option<usize>) {
        if let Some(op) = op {
            self.history.ops[op].answered = Some(Instant::now());
        }
    }

    pub fn record(&mut self, effect: Option<(usize, State)>, shared: bool) -> usize {
        if let Some((key, state)) = effect {
            self.state[key] = state;
            self.cas = self.cas.filter(|(k, _)| *k != key);
        }
        self.history.ops.push(Op { effect, shared, answered: None });
        self.history.ops.len() - 1
    }

    fn add_command(&mut self, rng: &mut SmallRng) {
        let key = rng.random_range(0..ITEMS);
        let present = self.state[key].is_some();
        match rng.random_range(0..100) {
            0..40 => self.add_set("set", key, None),
            40..55 => self.add_delete(key),
            55..60 if !present => self.add_set("add", key, None),
            55..60 => self.add_refused("add", key),
            60..65 if present => self.add_set("replace", key, None),
            60..65 => self.add_refused("replace", key),
            65..80 => self.add_incr(ITEMS + rng.random_range(0..COUNTERS), rng.random_range(1..1000)),
            80..85 => self.add_shared(),
            85..90 => self.add_get("gets", key),
            90..95 => match self.cas {
                Some((key, cas)) => self.add_set("cas", key, Some(cas)),
                None => self.add_get("gets", key),
            },
            _ => self.add_get("get", key),
        }
    }

    fn add_set(&mut self, command: &str, key: usize, cas: Option<u64>) {
        let (name, version) = (self.key(key), self.new_version());
        let bytes = value(&name, version);
        let op = self.record(Some((key, Some(version))), false);
        self.storage(command, &name, &bytes, cas);
        self.expected.push(Expect::Line("STORED".into(), Some(op)));
    }

    /// A storage command whose condition does not hold.
    fn add_refused(&mut self, command: &str, key: usize) {
        let name = self.key(key);
        self.storage(command, &name, &value(&name, 0), None);
        self.expected.push(Expect::Line("NOT_STORED".into(), None));
    }

    fn storage(&mut self, command: &str, name: &str, bytes: &[u8], cas: Option<u64>) {
        let cas = cas.map_or(String::new(), |cas| format!(" {cas}"));
        self.buffer.extend_from_slice(format!("{command} {name} 0 0 {}{cas}\r\n", bytes.len()).as_bytes());
        self.buffer.extend_from_slice(bytes);
        self.buffer.extend_from_slice(b"\r\n");
    }

    fn add_delete(&mut self, key: usize) {
        let answer = if self.state[key].is_some() { "DELETED" } else { "NOT_FOUND" };
        let op = self.record(Some((key, None)), false);
        self.say(&format!("delete {}", self.key(key)));
        self.expected.push(Expect::Line(answer.into(), Some(op)));
    }

    fn add_incr(&mut self, key: usize, by: u64) {
        let name = self.key(key);
        let (after, answer) = match self.state[key] {
            Some(before) => (before + by, (before + by).to_string()),
            None => (by, "STORED".to_owned()),
        };
        match self.state[key] {
            Some(_) => self.say(&format!("incr {name} {by}")),
            None => self.storage("set", &name, by.to_string().as_bytes(), None),
        }
        let op = self.record(Some((key, Some(after))), false);
        self.expected.push(Expect::Line(answer, Some(op)));
    }

    fn add_shared(&mut self) {
        let op = self.record(None, true);
        self.say(&format!("incr {SHARED} 1"));
        self.expected.push(Expect::Number(op));
    }

    fn add_get(&mut self, command: &str, key: usize) {
        self.say(&format!("{command} {}", self.key(key)));
        let state = self.state[key];
        self.expected.push(if command == "gets" { Expect::Gets(key, state) } else { Expect::Get(key, state) });
    }

    fn add_barrier(&mut self, command: &str) {
        self.say(command);
        self.expected.push(Expect::Durable(self.history.ops.len()));
    }

    fn say(&mut self, command: &str) {
        self.buffer.extend_from_slice(command.as_bytes());
        self.buffer.extend_from_slice(b"\r\n");
    }

    /// Reads back all of its keys; every value must be whole.
    pub fn read_back(&self, connection: &mut Connection) -> Vec<State> {
        let mut found = vec![None; ITEMS + COUNTERS];
        for first in (0..found.len()).step_by(40) {
            let keys = first..(first + 40).min(found.len());
            let command = keys.clone().fold("get".to_owned(), |mut text, key| {
                let _ = write!(text, " {}", self.key(key));
                text
            });
            connection.send(format!("{command}\r\n").as_bytes()).expect("the server answers");
            for (name, bytes, _) in connection.items().expect("the server answers") {
                let key = keys.clone().find(|key| self.key(*key) == name).unwrap_or_else(|| panic!("{name} was not asked for"));
                found[key] = Some(read(&name, key, &bytes));
            }
        }
        found
    }
}

/// What the bytes under a key say: a version, or a counter's number.
pub fn read(name: &str, key: usize, bytes: &[u8]) -> u64 {
    if key < ITEMS {
        return version(name, bytes);
    }
    let text = String::from_utf8_lossy(bytes);
    text.trim_end().parse().unwrap_or_else(|_| panic!("{name}: a counter holds {text:?}"))
}

#[test]
#[should_panic(expected = "torn or foreign")]
fn half_a_value_is_found() {
    let (old, new) = (value("a-1", 7), value("a-1", 8));
    assert_eq!(version("a-1", &old), 7);
    let len = old.len().min(new.len());
    let torn: Vec<u8> = new[..len / 2].iter().chain(&old[len / 2..]).copied().collect();
    version("a-1", &torn);
}
