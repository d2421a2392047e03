//! The load generator: closed loop, one thread, many connections, one request in flight on each.
//!
//! ```text
//!   for each ready connection:  read ─► parse ─► whole response? ─► record its latency ─► next operation ─► write
//! ```
//!
//! What must hold:
//! - every server gets the same bytes' worth of work from the same loop; only the wire format differs;
//! - a latency runs from just before the request's write to the parse of the response's last byte;
//! - a response that is wrong (an error, a foreign value) ends the run with its text: throughput of failures is not counted.
//!
//! A closed loop waits with the server: while it stalls, no new requests arrive, so a stall shows as one slow request per
//! connection (coordinated omission). The report says so; the windows of [`crate::windows`] show stalls by time instead.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use crate::windows::WINDOW_NS;
use crate::wire::{KEY_DIGITS, Protocol, Reply, VALUE_LEN, encode, key_stamp, parse, value_len};
use crate::workload::{Op, OpTable};

/// A server that answers nothing for so long is given up.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Latencies and completions of one or many rounds.
#[derive(Clone, Debug)]
pub struct Recorder {
    /// Latencies in nanoseconds.
    pub latency_ns: Histogram<u64>,
    /// Completions per 100-us window, all rounds after each other.
    pub counts: Vec<u32>,
    /// Reads that found no value.
    pub misses: u64,
    /// Reads that found one.
    pub hits: u64,
}

impl Recorder {
    /// Empty; keeps three digits, up to a minute.
    pub fn new() -> Self {
        let latency_ns = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds are valid");
        Self { latency_ns, counts: Vec::new(), misses: 0, hits: 0 }
    }
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
    output: Vec<u8>,
    written: usize,
    op: Op,
    key: u64,
    sent: Instant,
    idle: bool,
}

/// A load generator with its connections.
pub struct Client {
    poll: Poll,
    events: Events,
    connections: Vec<Connection>,
    protocol: Protocol,
    filler: Vec<u8>,
    writes: u64,
}

impl Client {
    /// Opens `connections` connections to `server`.
    pub fn connect(server: SocketAddr, protocol: Protocol, connections: usize) -> Result<Self> {
        let poll = Poll::new()?;
        let mut open = Vec::new();
        for n in 0..connections {
            let std_stream = std::net::TcpStream::connect(server).with_context(|| format!("connecting to {server}"))?;
            std_stream.set_nonblocking(true)?;
            std_stream.set_nodelay(true)?;
            let mut stream = TcpStream::from_std(std_stream);
            poll.registry().register(&mut stream, Token(n), Interest::READABLE | Interest::WRITABLE)?;
            let (input, output) = (Vec::with_capacity(8192), Vec::with_capacity(8192));
            open.push(Connection { stream, input, output, written: 0, op: Op::Get, key: 0, sent: Instant::now(), idle: true });
        }
        let filler = (0..VALUE_LEN.1).map(|i| b'a' + (i % 26) as u8).collect();
        Ok(Self { poll, events: Events::with_capacity(1024), connections: open, protocol, filler, writes: 0 })
    }

    /// Writes every key once.
    pub fn load(&mut self, keys: impl Iterator<Item = u64>) -> Result<()> {
        let mut keys = keys.map(|key| (Op::Put, key));
        let mut record = Recorder::new();
        self.drive(&mut record, Instant::now(), || keys.next())
    }

    /// How many of `keys` the server still has.
    pub fn count_present(&mut self, keys: impl Iterator<Item = u64>) -> Result<u64> {
        let mut keys = keys.map(|key| (Op::Get, key));
        let mut record = Recorder::new();
        self.drive(&mut record, Instant::now(), || keys.next())?;
        Ok(record.hits)
    }

    /// Runs `table` from operation `first` on for `duration`; returns the operation after the last one.
    pub fn run(&mut self, table: &OpTable, first: usize, duration: Duration, record: &mut Recorder) -> Result<usize> {
        let start = Instant::now();
        let before = record.counts.len();
        let mut next = first;
        self.drive(record, start, || {
            (start.elapsed() < duration).then(|| {
                next += 1;
                table.at(next - 1)
            })
        })?;
        // The run's own windows only: the tail while the last requests come back is no full window of load.
        record.counts.resize(before + (duration.as_nanos() as u64 / WINDOW_NS) as usize, 0);
        Ok(next)
    }

    /// Keeps every connection busy until `source` is dry and every answer is in.
    fn drive(&mut self, record: &mut Recorder, start: Instant, mut source: impl FnMut() -> Option<(Op, u64)>) -> Result<()> {
        let before = record.counts.len();
        for n in 0..self.connections.len() {
            let Some((op, key)) = source() else { break };
            self.send(n, op, key)?;
        }
        while self.connections.iter().any(|c| !c.idle) {
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
                if readable && self.receive(n, record)? {
                    let c = &self.connections[n];
                    let now = Instant::now();
                    record.latency_ns.saturating_record((now - c.sent).as_nanos() as u64);
                    let window = before + ((now - start).as_nanos() as u64 / WINDOW_NS) as usize;
                    if record.counts.len() <= window {
                        record.counts.resize(window + 1, 0);
                    }
                    record.counts[window] += 1;
                    if let Some((op, key)) = source() {
                        self.send(n, op, key)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes a request as far as the socket takes it.
    fn send(&mut self, n: usize, op: Op, key: u64) -> Result<()> {
        let c = &mut self.connections[n];
        debug_assert!(c.idle, "one request in flight on a connection");
        c.output.clear();
        let value = match op {
            Op::Put => {
                self.writes += 1;
                &self.filler[..value_len(key, self.writes) - KEY_DIGITS]
            }
            _ => &[],
        };
        encode(self.protocol, op, key, value, &mut c.output);
        (c.written, c.op, c.key, c.idle, c.sent) = (0, op, key, false, Instant::now());
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

    /// Reads what is there; true when the outstanding request has been answered.
    fn receive(&mut self, n: usize, record: &mut Recorder) -> Result<bool> {
        let c = &mut self.connections[n];
        let mut chunk = [0u8; 4096];
        loop {
            match c.stream.read(&mut chunk) {
                Ok(0) => bail!("the server closed the connection"),
                Ok(len) => c.input.extend_from_slice(&chunk[..len]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(e).context("receiving a response"),
            }
            ensure!(!c.idle, "the server sent something nobody asked for");
            let len = match parse(self.protocol, &c.input)? {
                Reply::Partial => continue,
                Reply::Value { value, len } => {
                    let stamp = key_stamp(c.key);
                    ensure!(
                        c.op == Op::Get && c.input[value.clone()].starts_with(&stamp),
                        "wrong answer to {:?} of key {}: {:?}",
                        c.op,
                        c.key,
                        String::from_utf8_lossy(&c.input[value])
                    );
                    record.hits += 1;
                    len
                }
                Reply::Missing { len } => {
                    record.misses += u64::from(c.op == Op::Get);
                    len
                }
                Reply::Done { len } => {
                    ensure!(c.op != Op::Get, "answer to a read carries no value");
                    len
                }
            };
            ensure!(len == c.input.len(), "{} bytes after the answer", c.input.len() - len);
            c.input.clear();
            c.idle = true;
            return Ok(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Keys, Workload};
    use std::collections::HashMap;
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;

    /// A memcached in thirty lines, one thread per connection, answering in two halves to exercise partial reads.
    fn tiny_memcached(lie: bool) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let map = std::sync::Arc::new(std::sync::Mutex::new(HashMap::<String, Vec<u8>>::new()));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let map = map.clone();
                std::thread::spawn(move || tiny_session(stream, &map, lie));
            }
        });
        address
    }

    fn tiny_session(
        stream: std::net::TcpStream,
        map: &std::sync::Mutex<HashMap<String, Vec<u8>>>,
        lie: bool,
    ) -> std::io::Result<()> {
        // Without it the second half of an answer waits for a delayed acknowledgement, 40 ms.
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut stream = stream;
        let mut line = String::new();
        while reader.read_line(&mut line)? > 0 {
            let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            let reply = if words[0] == "set" {
                let mut value = vec![0; words[4].parse::<usize>().unwrap() + 2];
                reader.read_exact(&mut value)?;
                map.lock().unwrap().insert(words[1].clone(), value);
                b"STORED\r\n".to_vec()
            } else {
                match map.lock().unwrap().get(&words[1]) {
                    None => b"END\r\n".to_vec(),
                    Some(value) => {
                        let mut value = value.clone();
                        value[0] = if lie { b'!' } else { value[0] };
                        [format!("VALUE {} 0 {}\r\n", words[1], value.len() - 2).as_bytes(), &value, b"END\r\n"].concat()
                    }
                }
            };
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
        let mut client = Client::connect(tiny_memcached(false), Protocol::Memcached, 4).unwrap();
        client.load((0..500).map(|k| 2 * k)).unwrap();
        assert_eq!(client.count_present(0..1000).unwrap(), 500);
        let table = OpTable::new(Workload::YcsbA, &Keys::of(Workload::YcsbA, 500), 1, 4096);
        let mut record = Recorder::new();
        let next = client.run(&table, 0, Duration::from_millis(100), &mut record).unwrap();
        let next = client.run(&table, next, Duration::from_millis(100), &mut record).unwrap();
        assert_eq!(record.latency_ns.len(), next as u64, "every operation has its latency");
        assert_eq!(record.counts.len(), 2000, "two runs of 1000 windows");
        assert_eq!(record.misses, 0);
        assert!(record.hits > 0 && next > 10);
    }

    #[test]
    fn a_foreign_value_ends_the_run() {
        let mut client = Client::connect(tiny_memcached(true), Protocol::Memcached, 1).unwrap();
        client.load(0..1).unwrap();
        let why = client.count_present(0..1).unwrap_err().to_string();
        assert!(why.contains("wrong answer"), "{why}");
    }
}
