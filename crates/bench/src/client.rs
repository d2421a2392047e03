//! The load generator: closed loop, one thread, many connections, one request in flight on each (loading: some).
//!
//! ```text
//!   for each ready connection:  read ─► parse ─► whole response? ─► record its latency ─► next operation ─► write
//! ```
//!
//! What must hold:
//! - every server gets the same bytes' worth of work from the same loop; only the wire format differs;
//! - a latency runs from just before the request's write to the parse of the response's last byte;
//! - a response that is wrong (an error, a foreign value) ends the run with its text: throughput of failures is not counted. To a
//!   cache that refuses a set the application goes on, so there refusals are counted, and told.
//!
//! A closed loop waits with the server: while it stalls, no new requests arrive, so a stall shows as one slow request per
//! connection (coordinated omission). The report says so; the windows of [`crate::windows`] show stalls by time instead.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use crate::cache::laws::{ItemLaws, VALUE_MAX};
use crate::record::{Answer, Recorder, windows_in};
use crate::wire::{ItemLen, KEY_DIGITS, Protocol, Reply, encode, item_len, key_stamp, parse};
use crate::workload::{Op, OpTable};

/// A server that answers nothing for so long is given up.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Writes sent together while a server is loaded.
const LOAD_BATCH: usize = 16;
/// Most bytes read at once.
const CHUNK: usize = 64 << 10;

/// How the servers are used.
#[derive(Clone, Debug)]
pub enum Use {
    /// As a store: a value has another length at each write, and a refusal is an error.
    Store,
    /// As a look-aside cache: lengths are a function of the key, a read that misses is followed by a write of that key, and refusals
    /// are counted.
    Cache(Arc<ItemLaws>),
}

struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
    output: Vec<u8>,
    written: usize,
    op: Op,
    key: u64,
    len: ItemLen,
    sent: Instant,
    /// Requests without their answers so far.
    awaited: usize,
}

/// A load generator with its connections.
pub struct Client {
    poll: Poll,
    events: Events,
    connections: Vec<Connection>,
    protocol: Protocol,
    usage: Use,
    filler: Vec<u8>,
    chunk: Vec<u8>,
    writes: u64,
}

impl Client {
    /// Opens `connections` connections to `server`.
    pub fn connect(server: SocketAddr, protocol: Protocol, connections: usize, usage: Use) -> Result<Self> {
        let poll = Poll::new()?;
        let mut open = Vec::new();
        for n in 0..connections {
            let std_stream = std::net::TcpStream::connect(server).with_context(|| format!("connecting to {server}"))?;
            std_stream.set_nonblocking(true)?;
            std_stream.set_nodelay(true)?;
            let mut stream = TcpStream::from_std(std_stream);
            poll.registry().register(&mut stream, Token(n), Interest::READABLE | Interest::WRITABLE)?;
            let (input, output) = (Vec::with_capacity(8192), Vec::with_capacity(8192));
            let len = ItemLen { key: 0, value: 0 };
            open.push(Connection { stream, input, output, written: 0, op: Op::Get, key: 0, len, sent: Instant::now(), awaited: 0 });
        }
        let filler = (0..VALUE_MAX).map(|i| b'a' + (i % 26) as u8).collect();
        let events = Events::with_capacity(1024);
        Ok(Self { poll, events, connections: open, protocol, usage, filler, chunk: vec![0; CHUNK], writes: 0 })
    }

    /// Writes every key once, several requests at a time on each connection.
    pub fn load(&mut self, keys: impl Iterator<Item = u64>) -> Result<Recorder> {
        let mut keys = keys.map(|key| (Op::Put, key));
        let mut record = Recorder::new();
        self.drive(&mut record, Instant::now(), LOAD_BATCH, || keys.next())?;
        Ok(record)
    }

    /// How many of `keys` the server still has.
    pub fn count_present(&mut self, keys: impl Iterator<Item = u64>) -> Result<u64> {
        let mut keys = keys.map(|key| (Op::Get, key));
        let mut record = Recorder::new();
        self.drive(&mut record, Instant::now(), 1, || keys.next())?;
        Ok(record.hits)
    }

    /// Runs the operations `part` of `table`, or as many of them as begin within `limit`; returns how many they were.
    pub fn run_part(&mut self, table: &OpTable, part: Range<usize>, limit: Duration, record: &mut Recorder) -> Result<usize> {
        let start = Instant::now();
        let mut next = part.start;
        self.drive(record, start, 1, || {
            (next < part.end && start.elapsed() < limit).then(|| {
                next += 1;
                table.at(next - 1)
            })
        })?;
        Ok(next - part.start)
    }

    /// Runs `table` from operation `first` on for `duration`; returns the operation after the last one.
    pub fn run(&mut self, table: &OpTable, first: usize, duration: Duration, record: &mut Recorder) -> Result<usize> {
        let start = Instant::now();
        let before = record.counts.len();
        let mut next = first;
        self.drive(record, start, 1, || {
            (start.elapsed() < duration).then(|| {
                next += 1;
                table.at(next - 1)
            })
        })?;
        // The run's own windows only: the tail while the last requests come back is no full window of load.
        record.counts.resize(before + windows_in(duration), 0);
        Ok(next)
    }

    /// Keeps every connection busy, with `batch` requests at a time, until `source` is dry and every answer is in. More than one at a time
    /// are all writes: an answer does not say whose it is.
    fn drive(
        &mut self,
        record: &mut Recorder,
        start: Instant,
        batch: usize,
        mut source: impl FnMut() -> Option<(Op, u64)>,
    ) -> Result<()> {
        let before = record.counts.len();
        for n in 0..self.connections.len() {
            self.send(n, (0..batch).map_while(|_| source()))?;
        }
        while self.connections.iter().any(|c| c.awaited > 0) {
            if let Err(e) = self.poll.poll(&mut self.events, Some(SILENCE_MAX)) {
                ensure!(e.kind() == ErrorKind::Interrupted, e);
                continue;
            }
            ensure!(!self.events.is_empty(), "the server has been silent for {SILENCE_MAX:?}");
            let ready: Vec<_> = self.events.iter().map(|e| (e.token().0, e.is_readable(), e.is_writable())).collect();
            for (n, readable, writable) in ready {
                if writable {
                    self.flush(n)?;
                }
                // A refusal may have come while the value was still being sent: its turn is when all of that is out.
                if !readable && self.connections[n].input.is_empty() {
                    continue;
                }
                while let Some(answer) = self.receive(n)? {
                    let c = &self.connections[n];
                    record.note(c.op, answer, c.sent, before, start);
                    if c.awaited > 0 {
                        continue;
                    }
                    if answer == Answer::Missing && matches!(self.usage, Use::Cache(_)) {
                        record.refills += 1;
                        self.send(n, [(Op::Put, c.key)])?;
                    } else {
                        self.send(n, (0..batch).map_while(|_| source()))?;
                    }
                    break;
                }
            }
        }
        Ok(())
    }

    /// Writes requests as far as the socket takes them.
    fn send(&mut self, n: usize, requests: impl IntoIterator<Item = (Op, u64)>) -> Result<()> {
        let c = &mut self.connections[n];
        debug_assert!(c.awaited == 0, "answers are in before more is asked");
        c.written = 0;
        c.output.clear();
        for (op, key) in requests {
            self.writes += u64::from(op == Op::Put);
            c.len = match &self.usage {
                Use::Store => item_len(key, self.writes),
                Use::Cache(laws) => laws.item(key),
            };
            encode(self.protocol, op, key, c.len, &self.filler, &mut c.output);
            (c.op, c.key, c.sent) = (op, key, Instant::now());
            c.awaited += 1;
        }
        self.flush(n)
    }

    fn flush(&mut self, n: usize) -> Result<()> {
        let c = &mut self.connections[n];
        while c.written < c.output.len() {
            match c.stream.write(&c.output[c.written..]) {
                Ok(0) => bail!("the server closed the connection"),
                Ok(done) => c.written += done,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e).context("sending a request"),
            }
        }
        Ok(())
    }

    /// Reads what is there; gives an answer when it is all there and the requests are all sent.
    fn receive(&mut self, n: usize) -> Result<Option<Answer>> {
        let c = &mut self.connections[n];
        loop {
            let all_sent = c.written == c.output.len();
            let reply = if all_sent && !c.input.is_empty() { parse(self.protocol, &c.input)? } else { Reply::Partial };
            let (answer, len) = match reply {
                Reply::Partial => {
                    match c.stream.read(&mut self.chunk) {
                        Ok(0) => bail!("the server closed the connection"),
                        Ok(len) => c.input.extend_from_slice(&self.chunk[..len]),
                        Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                        Err(e) if e.kind() == ErrorKind::Interrupted => {}
                        Err(e) => return Err(e).context("receiving a response"),
                    }
                    ensure!(c.awaited > 0 || c.input.is_empty(), "the server sent something that was not asked for");
                    continue;
                }
                Reply::Value { value, len } => {
                    let value = &c.input[value];
                    let right = c.op == Op::Get && is_of(c.key, c.len, value, &self.usage);
                    ensure!(right, "wrong answer to {:?} of key {}: {}", c.op, c.key, beginning(value));
                    (Answer::Hit, len)
                }
                Reply::Missing { len } => (if c.op == Op::Get { Answer::Missing } else { Answer::Done }, len),
                Reply::Done { len } => {
                    ensure!(c.op != Op::Get, "answer to a read carries no value");
                    (Answer::Done, len)
                }
                Reply::Refused { len } => {
                    let counted = c.op == Op::Put && matches!(self.usage, Use::Cache(_));
                    ensure!(counted, "the server answered {}", beginning(&c.input));
                    (Answer::Refused, len)
                }
            };
            c.input.drain(..len);
            c.awaited -= 1;
            ensure!(c.awaited > 0 || c.input.is_empty(), "{} bytes after the answer", c.input.len());
            return Ok(Some(answer));
        }
    }
}

/// Whether `value` is one that this client wrote for `key`; where lengths are a function of the key, of that length.
fn is_of(key: u64, len: ItemLen, value: &[u8], usage: &Use) -> bool {
    let head = &key_stamp(key)[..value.len().min(KEY_DIGITS)];
    value.starts_with(head) && (matches!(usage, Use::Store) || value.len() == len.value)
}

/// Bytes from a server, shortened for a message.
fn beginning(bytes: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(100)]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::sequence::CacheLoad;
    use crate::workload::{Keys, Workload};
    use std::collections::HashMap;
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;
    use std::sync::Mutex;

    /// A memcached in thirty lines, one thread per connection, answering in two halves to exercise partial reads.
    #[derive(Default)]
    struct Tiny {
        /// It answers with another value than it was given.
        lies: bool,
        /// It refuses values longer than this, before it has read them.
        longest: Option<usize>,
        map: Mutex<HashMap<String, Vec<u8>>>,
        /// First lines of all requests.
        asked: Mutex<Vec<String>>,
    }

    fn tiny_memcached(tiny: Tiny) -> (SocketAddr, Arc<Tiny>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, tiny) = (listener.local_addr().unwrap(), Arc::new(tiny));
        let served = tiny.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let tiny = served.clone();
                std::thread::spawn(move || tiny_session(stream, &tiny));
            }
        });
        (address, tiny)
    }

    fn tiny_session(stream: std::net::TcpStream, tiny: &Tiny) -> std::io::Result<()> {
        // Without it the second half of an answer waits for a delayed acknowledgement, 40 ms.
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut stream = stream;
        let mut line = String::new();
        while reader.read_line(&mut line)? > 0 {
            tiny.asked.lock().unwrap().push(line.trim_end().to_owned());
            let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            let mut map = tiny.map.lock().unwrap();
            let reply = if words[0] == "set" {
                let mut value = vec![0; words[4].parse::<usize>().unwrap() + 2];
                let refused = tiny.longest.is_some_and(|longest| value.len() - 2 > longest);
                if refused {
                    stream.write_all(b"SERVER_ERROR out of memory storing object\r\n")?;
                }
                reader.read_exact(&mut value)?;
                if refused {
                    line.clear();
                    continue;
                }
                map.insert(words[1].clone(), value);
                b"STORED\r\n".to_vec()
            } else {
                match map.get(&words[1]) {
                    None => b"END\r\n".to_vec(),
                    Some(value) => {
                        let mut value = value.clone();
                        value[0] = if tiny.lies { b'!' } else { value[0] };
                        [format!("VALUE {} 0 {}\r\n", words[1], value.len() - 2).as_bytes(), &value, b"END\r\n"].concat()
                    }
                }
            };
            drop(map);
            let half = reply.len() / 2;
            stream.write_all(&reply[..half])?;
            stream.flush()?;
            stream.write_all(&reply[half..])?;
            line.clear();
        }
        Ok(())
    }

    #[test]
    fn loads_runs_and_counts() {
        let (address, _) = tiny_memcached(Tiny::default());
        let mut client = Client::connect(address, Protocol::Memcached, 4, Use::Store).unwrap();
        client.load((0..500).map(|k| 2 * k)).unwrap();
        assert_eq!(client.count_present(0..1000).unwrap(), 500);
        let table = OpTable::new(Workload::YcsbA, &Keys::of(Workload::YcsbA, 500), 1, 4096);
        let mut record = Recorder::new();
        let next = client.run(&table, 0, Duration::from_millis(100), &mut record).unwrap();
        let next = client.run(&table, next, Duration::from_millis(100), &mut record).unwrap();
        assert_eq!(record.completed(), next as u64, "every operation has its latency");
        assert_eq!(record.latency_ns().len(), next as u64);
        assert_eq!(record.counts.len(), 2000, "two runs of 1000 windows");
        assert_eq!(record.misses, 0);
        assert!(record.hits > 0 && next > 10);
    }

    #[test]
    fn a_foreign_value_ends_the_run() {
        let (address, _) = tiny_memcached(Tiny { lies: true, ..Tiny::default() });
        let mut client = Client::connect(address, Protocol::Memcached, 1, Use::Store).unwrap();
        client.load(0..1).unwrap();
        let why = client.count_present(0..1).unwrap_err().to_string();
        assert!(why.contains("wrong answer"), "{why}");
    }

    /// A cache load whose values are some hundred kilobytes at most.
    fn cache() -> (Use, OpTable) {
        let sequence = CacheLoad::MixedRead.sequence(4 << 20, 2, 400, 7);
        (Use::Cache(sequence.laws), sequence.table)
    }

    #[test]
    fn a_miss_is_followed_by_a_write_of_its_key_and_two_servers_see_the_same_requests() {
        let asked = || {
            let (address, tiny) = tiny_memcached(Tiny::default());
            let (usage, table) = cache();
            let mut client = Client::connect(address, Protocol::Memcached, 1, usage).unwrap();
            let mut record = Recorder::new();
            let done = client.run_part(&table, 0..table.len(), Duration::from_secs(60), &mut record).unwrap();
            assert_eq!(done, table.len());
            assert!(record.misses > 0 && record.hits > 0 && record.refused == 0, "{} misses", record.misses);
            assert_eq!(record.refills, record.misses);
            assert_eq!(record.completed(), done as u64 + record.refills);
            let asked = tiny.asked.lock().unwrap().clone();
            let gets = (0..table.len()).filter(|i| table.at(*i).0 == Op::Get).count();
            assert_eq!(asked.iter().filter(|line| line.starts_with("get ")).count(), gets);
            asked
        };
        assert_eq!(asked(), asked());
    }

    #[test]
    fn refusals_are_counted_by_a_cache_and_end_the_run_of_a_store() {
        let (address, _) = tiny_memcached(Tiny { longest: Some(10_000), ..Tiny::default() });
        let (usage, table) = cache();
        let mut client = Client::connect(address, Protocol::Memcached, 3, usage).unwrap();
        let mut record = Recorder::new();
        client.run_part(&table, 0..table.len(), Duration::from_secs(60), &mut record).unwrap();
        assert!(record.refused > 0 && record.refused < record.write_ns.len(), "{} refused", record.refused);
        let (address, _) = tiny_memcached(Tiny { longest: Some(10), ..Tiny::default() });
        let mut client = Client::connect(address, Protocol::Memcached, 1, Use::Store).unwrap();
        let why = client.load(0..1).unwrap_err().to_string();
        assert!(why.contains("SERVER_ERROR out of memory"), "{why}");
    }

    #[test]
    fn a_value_is_known_by_its_key_and_in_a_cache_by_its_length() {
        let (usage, _) = cache();
        let len = ItemLen { key: 16, value: 19 };
        let value = b"0000000000000007abc";
        assert!(is_of(7, len, value, &usage) && is_of(7, len, value, &Use::Store));
        assert!(!is_of(8, len, value, &usage) && !is_of(8, len, value, &Use::Store));
        assert!(!is_of(7, len, &value[..18], &usage) && is_of(7, len, &value[..18], &Use::Store));
        assert!(is_of(7, ItemLen { key: 16, value: 0 }, b"", &usage));
    }

    #[test]
    fn a_refusal_waits_until_its_value_is_sent() {
        let (address, _) = tiny_memcached(Tiny::default());
        let mut client = Client::connect(address, Protocol::Memcached, 1, cache().0).unwrap();
        let c = &mut client.connections[0];
        (c.op, c.awaited, c.output, c.input) = (Op::Put, 1, vec![b'a'; 9], b"SERVER_ERROR out of memory\r\n".to_vec());
        assert_eq!(client.receive(0).unwrap(), None);
        client.connections[0].written = 9;
        assert_eq!(client.receive(0).unwrap(), Some(Answer::Refused));
    }

    #[test]
    fn a_part_ends_at_its_limit() {
        let (address, _) = tiny_memcached(Tiny::default());
        let (usage, table) = cache();
        let mut client = Client::connect(address, Protocol::Memcached, 1, usage).unwrap();
        let done = client.run_part(&table, 0..table.len(), Duration::ZERO, &mut Recorder::new()).unwrap();
        assert_eq!(done, 0);
    }
}
