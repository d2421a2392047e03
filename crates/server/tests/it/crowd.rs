//! Connections of one worker over wires that break where they are told to, each compared with itself alone.
//!
//! ```text
//!   send ──┬──► Wire ──► Clients: one worker, one store; wires break ──► what it got        is at any time the beginning,
//!          └──► Wire ──► Clients: on another store, nothing breaks ────► what it gets alone   and in the end all of this
//! ```
//!
//! Each connection has keys of its own, so that its answers depend on its requests alone. The fuzz target uses this file, too.

use std::cell::RefCell;
use std::io::{self, ErrorKind, Read, Write};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use towa_epoch::{Options, Pool};
use towa_server::{Clients, Config, Key, Shared, Transport};

/// Both ends of a connection without a network.
#[derive(Default)]
struct Ends {
    /// What the client sent, and how far the server has read.
    input: Vec<u8>,
    read: usize,
    /// How often it has read.
    reads: usize,
    /// The client has closed its side.
    closed: bool,
    /// What the server has sent.
    output: Vec<u8>,
    /// Bytes that the server may send before it has to wait.
    room: usize,
    /// The connection breaks when the server has read, or sent, so many bytes more.
    breaks_reading: Option<usize>,
    breaks_writing: Option<usize>,
}

/// The server's side.
pub struct Wire(Rc<RefCell<Ends>>);

fn reset<T>() -> io::Result<T> {
    Err(ErrorKind::ConnectionReset.into())
}

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut ends = self.0.borrow_mut();
        ends.reads += 1;
        let there = ends.input.len() - ends.read;
        let count = there.min(into.len()).min(ends.breaks_reading.unwrap_or(usize::MAX));
        match (ends.breaks_reading, count, ends.closed) {
            (Some(0), ..) => return reset(),
            (_, 0, true) => return Ok(0),
            (_, 0, false) => return Err(ErrorKind::WouldBlock.into()),
            _ => {}
        }
        into[..count].copy_from_slice(&ends.input[ends.read..ends.read + count]);
        ends.read += count;
        ends.breaks_reading = ends.breaks_reading.map(|left| left - count);
        Ok(count)
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut ends = self.0.borrow_mut();
        let count = bytes.len().min(ends.room).min(ends.breaks_writing.unwrap_or(usize::MAX));
        match (ends.breaks_writing, count) {
            (Some(0), _) => return reset(),
            (_, 0) => return Err(ErrorKind::WouldBlock.into()),
            _ => {}
        }
        ends.output.extend_from_slice(&bytes[..count]);
        ends.room -= count;
        ends.breaks_writing = ends.breaks_writing.map(|left| left - count);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Transport for Wire {}

/// A worker with its connections.
pub struct Served {
    pub clients: Clients<Wire>,
}

/// A connection of a worker.
pub struct Link {
    key: Key,
    ends: Rc<RefCell<Ends>>,
}

impl Served {
    /// No connection yet, on the store in `pool`.
    pub fn on(pool: &Pool) -> Served {
        Served::with(pool, 300_000)
    }

    /// The same, for items of so many bytes.
    pub fn with(pool: &Pool, item_size_max: u64) -> Served {
        let config = Config { debug_commands: true, item_size_max, threads: 1, ..Config::default() };
        Served { clients: Clients::new(0, &Arc::new(Shared::new(config, pool).unwrap())).unwrap() }
    }

    /// Sends `bytes` and gives the connection one turn; all that it has got since it last sent.
    pub fn say_for_one_turn(&mut self, link: &Link, bytes: &[u8]) -> String {
        link.ends.borrow_mut().output.clear();
        link.ends.borrow_mut().input.extend_from_slice(bytes);
        self.clients.event(link.key, false);
        link.got()
    }

    /// A turn for all that have more to do; all that this one has got since it last sent.
    pub fn say_again(&mut self, link: &Link) -> String {
        self.clients.take_again().into_iter().for_each(|key| self.clients.turn(key));
        link.got()
    }

    /// The client goes.
    pub fn hang_up(&mut self, link: &Link) {
        link.ends.borrow_mut().closed = true;
        self.serve(link);
    }

    /// Two workers of one server on the store in `pool`.
    pub fn two_on(pool: &Pool) -> (Served, Served) {
        let config = Config { debug_commands: true, item_size_max: 300_000, ..Config::default() };
        let shared = Arc::new(Shared::new(config, pool).unwrap());
        (Served { clients: Clients::new(0, &shared).unwrap() }, Served { clients: Clients::new(1, &shared).unwrap() })
    }

    /// A new connection whose socket takes any number of bytes.
    pub fn connect(&mut self) -> Link {
        let ends = Rc::new(RefCell::new(Ends { room: usize::MAX, ..Ends::default() }));
        Link { key: self.clients.admit(|_| Ok(Wire(Rc::clone(&ends)))).unwrap(), ends }
    }

    /// Sends `bytes` and serves the connection; all that it has got since it last sent.
    pub fn say(&mut self, link: &Link, bytes: &[u8]) -> String {
        link.ends.borrow_mut().output.clear();
        link.ends.borrow_mut().input.extend_from_slice(bytes);
        self.serve(link);
        link.got()
    }

    /// Serves a connection after an event, and all that have more to do.
    fn serve(&mut self, link: &Link) {
        let closed = link.ends.borrow().closed;
        self.clients.event(link.key, closed);
        while self.clients.have_more() {
            self.clients.take_again().into_iter().for_each(|key| self.clients.turn(key));
        }
    }

    /// A number of a server's statistics.
    pub fn stat(&mut self, link: &Link, name: &str) -> u64 {
        let stats = self.say(link, b"stats\r\n");
        let found = stats.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        found.unwrap_or_else(|| panic!("no {name} in {stats:?}")).parse().unwrap()
    }
}

impl Link {
    /// The socket takes `room` bytes more, and then no more.
    pub fn set_room(&self, room: usize) {
        self.ends.borrow_mut().room = room;
    }

    /// How often the server has read from it.
    pub fn reads(&self) -> usize {
        self.ends.borrow().reads
    }

    /// What it has got since it last [said](Served::say) something.
    pub fn got(&self) -> String {
        String::from_utf8(self.ends.borrow().output.clone()).unwrap()
    }
}

/// One connection, in the crowd and alone.
pub struct Life {
    /// What its keys begin with.
    pub name: String,
    here: Link,
    alone: Link,
}

/// Connections that one worker serves, and the same where nothing breaks.
pub struct Crowd {
    here: Served,
    elsewhere: Served,
    lives: Vec<Life>,
}

impl Crowd {
    /// Nobody yet, on a store that keeps nothing.
    pub fn new() -> Crowd {
        Self::on(&volatile())
    }

    /// Nobody yet, on the store in `pool`.
    pub fn on(pool: &Pool) -> Crowd {
        Crowd { here: Served::on(pool), elsewhere: Served::on(&volatile()), lives: Vec::new() }
    }

    /// A new connection whose socket takes any number of bytes; its number.
    pub fn connect(&mut self) -> usize {
        static NAMES: AtomicU32 = AtomicU32::new(0);
        let name = format!("{:08x}.", NAMES.fetch_add(1, Ordering::Relaxed));
        self.lives.push(Life { name, here: self.here.connect(), alone: self.elsewhere.connect() });
        self.lives.len() - 1
    }

    /// What the keys of a connection begin with.
    pub fn name(&self, life: usize) -> String {
        self.lives[life].name.clone()
    }

    /// Sends `bytes`; the server is told of it when it next serves.
    pub fn send(&mut self, life: usize, bytes: &[u8]) {
        let Life { here, alone, .. } = &self.lives[life];
        for link in [here, alone] {
            link.ends.borrow_mut().input.extend_from_slice(bytes);
        }
        self.elsewhere.serve(alone);
    }

    /// Lets the server serve a connection after an event.
    pub fn serve(&mut self, life: usize) {
        self.here.serve(&self.lives[life].here);
    }

    /// Sends, serves and compares.
    pub fn say(&mut self, life: usize, bytes: &[u8]) {
        self.send(life, bytes);
        self.serve(life);
        self.compare(life);
    }

    /// The socket takes `room` bytes more, and then no more.
    pub fn set_room(&mut self, life: usize, room: usize) {
        self.lives[life].here.set_room(room);
    }

    /// The connection breaks when the server has read so many bytes more of it.
    pub fn break_reading(&mut self, life: usize, after: usize) {
        self.lives[life].here.ends.borrow_mut().breaks_reading = Some(after);
    }

    /// The connection breaks when the server has sent so many bytes more to it.
    pub fn break_writing(&mut self, life: usize, after: usize) {
        self.lives[life].here.ends.borrow_mut().breaks_writing = Some(after);
    }

    /// The client closes its side.
    pub fn close(&mut self, life: usize) {
        self.lives[life].here.ends.borrow_mut().closed = true;
    }

    /// The connections from number `life` on end, and are forgotten.
    pub fn forget_from(&mut self, life: usize) {
        for Life { here, alone, .. } in self.lives.drain(life..) {
            for (served, link) in [(&mut self.here, here), (&mut self.elsewhere, alone)] {
                let mut ends = link.ends.borrow_mut();
                (ends.breaks_reading, ends.breaks_writing) = (Some(0), Some(0));
                drop(ends);
                served.serve(&link);
            }
        }
        let counts = (self.here.clients.count(), self.elsewhere.clients.count());
        assert_eq!(counts, (life, life), "connections that ended are still there");
    }

    /// Lets parked connections go on.
    pub fn look_at_parked(&mut self) {
        self.here.clients.look_at_parked();
    }

    /// All that a connection has got.
    pub fn output(&self, life: usize) -> Vec<u8> {
        self.lives[life].here.ends.borrow().output.clone()
    }

    /// What a connection has got so far must be the beginning of what it gets alone.
    pub fn compare(&self, life: usize) {
        let Life { name, here, alone } = &self.lives[life];
        let (got, wanted) = (&here.ends.borrow().output, &alone.ends.borrow().output);
        let same = got.iter().zip(wanted).take_while(|(got, wanted)| got == wanted).count();
        let rest = |bytes: &[u8]| String::from_utf8_lossy(&bytes[same..bytes.len().min(same + 100)]).into_owned();
        assert_eq!(same, got.len(), "{name} got {:?} after {same} bytes, and alone {:?}", rest(got), rest(wanted));
    }

    /// What a connection has got must be all that it gets alone.
    pub fn compare_all(&self, life: usize) {
        self.compare(life);
        let Life { name, here, alone } = &self.lives[life];
        let (got, wanted) = (here.ends.borrow().output.len(), alone.ends.borrow().output.len());
        assert_eq!(got, wanted, "bytes that {name} got, and gets alone");
    }

    /// Compares all that a connection has got, and forgets it.
    pub fn settle(&mut self, life: usize) {
        self.compare_all(life);
        let Life { here, alone, .. } = &self.lives[life];
        for link in [here, alone] {
            let mut ends = link.ends.borrow_mut();
            ends.output.clear();
            let read = std::mem::take(&mut ends.read);
            ends.input.drain(..read);
        }
    }
}

fn volatile() -> Pool {
    Pool::volatile(&Options { heap_len: 32 << 20, ..Options::default() }).unwrap()
}

/// A request of `kind`, any number, of the connection whose keys begin with `name`; `size` is that of its value. Its answer is the
/// same whoever else is served.
pub fn request(name: &str, kind: u8, size: usize) -> Vec<u8> {
    let (a, b) = (format!("{name}a"), format!("{name}b"));
    let value: String = name.chars().cycle().take(size).collect();
    let text = match kind % 32 {
        0 => format!("set {a} 7 0 {size}\r\n{value}\r\n"),
        1 => format!("set {b} 0 0 {size} noreply\r\n{value}\r\n"),
        2 => format!("get {a}\r\n"),
        3 => format!("get {a} {b} {a} {b}\r\n"),
        4 => format!("gat 0 {a} {b}\r\n"),
        5 => format!("add {b} 1 0 {size}\r\n{value}\r\n"),
        6 => format!("replace {a} 2 0 {size}\r\n{value}\r\n"),
        7 => format!("append {a} 0 0 {size}\r\n{value}\r\n"),
        8 => format!("prepend {b} 0 0 {size}\r\n{value}\r\n"),
        // A token that no store ever gives: tokens count what all connections store.
        9 => format!("cas {a} 0 0 {size} 9000000000000000000\r\n{value}\r\n"),
        10 => format!("delete {b}\r\n"),
        11 => format!("delete {a} noreply\r\n"),
        12 => format!("set {name}n 0 0 2\r\n{}\r\n", 10 + size % 90),
        13 => format!("incr {name}n {size}\r\n"),
        14 => format!("decr {name}n 3\r\n"),
        15 => format!("incr {a} 1\r\n"),
        16 => format!("touch {a} 0\r\n"),
        17 => format!("ms {a} {size} F5 k Oset\r\n{value}\r\n"),
        18 => format!("ms {b} {size} q\r\n{value}\r\n"),
        19 => format!("mg {a} s v f k Oget\r\n"),
        20 => format!("mg {b} v q\r\nmn\r\n"),
        21 => format!("mg {name}new N0 s v k\r\n"),
        22 => format!("md {b} k Odel q\r\n"),
        23 => format!("ma {name}n N0 J{size} v k\r\n"),
        24 => "version\r\n".to_owned(),
        25 => format!("nonsense {name}\r\n"),
        26 => format!("get {name}{}\r\n", "k".repeat(250)),
        27 => format!("set {a} 0 0 400000\r\n{}\r\n", "z".repeat(400_000)),
        28 => format!("set {a} 0 0 {size}\r\n{value}bad\r\n"),
        29 => "durable\r\n".to_owned(),
        30 => format!("get{}\r\n", format!(" {a} {b}").repeat(50)),
        _ => format!("verbosity 1\r\nmg {a} v k\r\n"),
    };
    text.into_bytes()
}

/// Connections that `run` has at a time.
const CONNECTIONS: usize = 4;

/// Runs steps of three bytes: which connection, what it does, and how much of it. Connections that are broken are replaced by new ones.
/// In the end each that was not has got all that it gets alone.
pub fn run(crowd: &mut Crowd, steps: &[u8]) {
    let mut lives = [(); CONNECTIONS].map(|()| Some(crowd.connect()));
    for step in steps.chunks_exact(3) {
        let place = &mut lives[step[0] as usize % CONNECTIONS];
        let life = *place.get_or_insert_with(|| crowd.connect());
        let much = usize::from(step[2]) * usize::from(step[2]) / 8;
        match step[1] {
            kind @ 0..128 => crowd.send(life, &request(&crowd.name(life), kind, much)),
            // A request in two pieces.
            kind @ 128..160 => {
                let bytes = request(&crowd.name(life), kind, 50);
                let (head, tail) = bytes.split_at(usize::from(step[2]) * bytes.len() / 256);
                crowd.say(life, head);
                crowd.send(life, tail);
            }
            160..176 => crowd.set_room(life, much),
            176..192 => crowd.set_room(life, usize::MAX),
            192..208 => crowd.break_reading(life, much),
            208..224 => crowd.break_writing(life, much),
            224..228 => crowd.send(life, b"debugtime panic\r\n"),
            228..232 => crowd.close(life),
            _ => crowd.serve(life),
        }
        if (192..232).contains(&step[1]) {
            crowd.serve(life);
            crowd.compare(life);
            *place = None;
        } else if step[0] & 128 != 0 {
            crowd.serve(life);
            crowd.compare(life);
        }
    }
    for life in lives.into_iter().flatten() {
        crowd.set_room(life, usize::MAX);
        crowd.serve(life);
        crowd.compare_all(life);
    }
    crowd.forget_from(0);
}
