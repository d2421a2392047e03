//! The servers that are measured beside each other, each a child process on a free loopback port with its own directory.
//!
//! What must hold: a server that is not installed is skipped with the reason and the package to install, never silently; all
//! that are started are given the same client, the same keys and as many worker threads (Redis has one).

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::cleanup::Running;
use crate::wire::Protocol;

/// A server to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// `towa serve` on the run's medium.
    Towa,
    /// `towa serve` keeping nothing: its own baseline.
    TowaVolatile,
    /// memcached, which keeps nothing.
    Memcached,
    /// Redis with an append-only file, synced every second.
    RedisAof,
    /// Redis with snapshots (fork) as often as every two seconds.
    RedisRdb,
}

/// How servers are started.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The `towa` program.
    pub towa: PathBuf,
    /// The medium `towa` is told to use.
    pub medium: String,
    /// Time between checkpoints that `towa` is told.
    pub interval: Duration,
    /// Worker threads (`-t`).
    pub threads: usize,
    /// Memory limit in MiB (`-m`).
    pub memory_mb: u64,
}

impl Peer {
    /// All of them, in the order of a round.
    pub const ALL: [Peer; 5] = [Peer::TowaVolatile, Peer::Towa, Peer::Memcached, Peer::RedisAof, Peer::RedisRdb];

    /// Name in the report.
    pub fn name(self) -> &'static str {
        match self {
            Peer::Towa => "towa",
            Peer::TowaVolatile => "towa_volatile",
            Peer::Memcached => "memcached",
            Peer::RedisAof => "redis_aof",
            Peer::RedisRdb => "redis_rdb",
        }
    }

    /// What it speaks.
    pub fn protocol(self) -> Protocol {
        match self {
            Peer::RedisAof | Peer::RedisRdb => Protocol::Resp,
            _ => Protocol::Memcached,
        }
    }

    /// Why it cannot be started here, if so.
    pub fn missing(self, setup: &Setup) -> Option<String> {
        let program = match self {
            Peer::Towa | Peer::TowaVolatile => {
                let towa = setup.towa.display();
                return (!setup.towa.is_file()).then(|| format!("skipped: {towa} not found (name the program with --towa-bin)"));
            }
            Peer::Memcached => "memcached",
            Peer::RedisAof | Peer::RedisRdb => "redis-server",
        };
        find_program(program).is_none().then(|| format!("skipped: {program} not installed (apt-get install {program})"))
    }

    fn command(self, setup: &Setup, port: u16, dir: &Path) -> Command {
        let port = port.to_string();
        match self {
            Peer::Towa | Peer::TowaVolatile => {
                let mut command = Command::new(&setup.towa);
                command.args(["serve", "-l", "127.0.0.1", "-p", &port]);
                match self {
                    Peer::Towa => command.arg("--pool").arg(dir.join("pool")).args([
                        "--medium",
                        &setup.medium,
                        "--interval-ms",
                        &setup.interval.as_millis().to_string(),
                    ]),
                    _ => command.arg("--volatile"),
                };
                limits(&mut command, setup);
                command
            }
            Peer::Memcached => {
                let mut command = Command::new(find_program("memcached").unwrap_or_default());
                command.args(["-l", "127.0.0.1", "-U", "0", "-c", "1024", "-p", &port]);
                // SAFETY: geteuid has no arguments, touches no memory and cannot fail.
                if unsafe { libc::geteuid() } == 0 {
                    command.args(["-u", "root"]);
                }
                limits(&mut command, setup);
                command
            }
            Peer::RedisAof | Peer::RedisRdb => {
                let mut command = Command::new(find_program("redis-server").unwrap_or_default());
                command.args(["--bind", "127.0.0.1", "--port", &port, "--daemonize", "no"]).arg("--dir").arg(dir);
                match self {
                    Peer::RedisAof => command.args(["--save", "", "--appendonly", "yes", "--appendfsync", "everysec"]),
                    _ => command.args(["--save", "2 1", "--appendonly", "no"]),
                };
                command
            }
        }
    }

    /// Starts it over `dir`, which it finds as an earlier start left it, and waits until it answers a read; also gives the
    /// time from the start of the process to that answer.
    pub fn start(self, setup: &Setup, dir: &Path) -> Result<(Server, Duration)> {
        let mut last = None;
        // A free port may be taken by somebody else before the server binds it: another is tried.
        for _ in 0..3 {
            let port = free_port()?;
            let log = dir.join(format!("{}.log", self.name()));
            let sink = std::fs::File::create(&log).with_context(|| format!("{}: creating", log.display()))?;
            let mut command = self.command(setup, port, dir);
            command.current_dir(dir).stdin(Stdio::null()).stdout(sink.try_clone()?).stderr(sink);
            let began = Instant::now();
            let mut process = Running::spawn(&mut command)?;
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            match wait_for_answer(self.protocol(), address, &mut process) {
                Ok(()) => {
                    return Ok((Server { peer: self, process, address }, began.elapsed()));
                }
                Err(e) => {
                    let said = std::fs::read_to_string(&log).unwrap_or_default();
                    last = Some(e.context(format!("{} did not start; it said: {}", self.name(), said.trim())));
                }
            }
        }
        Err(last.expect("a failed start leaves its reason"))
    }
}

fn limits(command: &mut Command, setup: &Setup) {
    command.args(["-t", &setup.threads.to_string(), "-m", &setup.memory_mb.to_string()]);
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    /// Which.
    pub peer: Peer,
    /// Its process.
    pub process: Running,
    /// Where it listens.
    pub address: SocketAddr,
}

/// Looks a program up along `PATH`, and where Debian puts servers.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/bin", "/usr/sbin", "/usr/local/bin"].map(PathBuf::from));
    places.map(|dir| dir.join(name)).find(|p| p.is_file())
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("looking for a free port")?;
    Ok(listener.local_addr()?.port())
}

/// Asks until the server answers a read of an absent key, by its protocol.
fn wait_for_answer(protocol: Protocol, address: SocketAddr, process: &mut Running) -> Result<()> {
    let give_up = Instant::now() + Duration::from_secs(120);
    let question = if protocol == Protocol::Resp { "GET none\r\n" } else { "get none\r\n" };
    loop {
        if let Some(status) = process.ended()? {
            bail!("it ended with {status}");
        }
        let reply = ask(address, question, b"\r\n");
        match (protocol, reply.as_deref()) {
            (Protocol::Memcached, Ok("END\r\n")) | (Protocol::Resp, Ok("$-1\r\n")) => return Ok(()),
            // Redis accepts connections while it loads, and says so.
            (Protocol::Resp, Ok(text)) if text.starts_with("-LOADING") => {}
            (_, Ok(other)) => bail!("asked for an absent key, it answered {other:?}"),
            (_, Err(_)) => {}
        }
        if Instant::now() > give_up {
            bail!("it does not answer on {address} after 120 s");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// One request on a connection of its own; reads until the answer ends with `end`.
pub fn ask(address: SocketAddr, request: &str, end: &[u8]) -> Result<String> {
    let mut stream = connect(address, request)?;
    let (mut answer, mut chunk) = (Vec::new(), [0; 4096]);
    while !answer.ends_with(end) {
        let n = stream.read(&mut chunk)?;
        if n == 0 {
            bail!("the connection was closed");
        }
        answer.extend_from_slice(&chunk[..n]);
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn connect(address: SocketAddr, request: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(request.as_bytes())?;
    Ok(stream)
}

impl Server {
    /// The server's own statistics as name-value pairs (`stats`, or `INFO`).
    pub fn stats(&self) -> Result<Vec<(String, String)>> {
        let split = |line: &str, by: char| line.split_once(by).map(|(k, v)| (k.to_owned(), v.trim().to_owned()));
        if self.peer.protocol() == Protocol::Memcached {
            let text = ask(self.address, "stats\r\n", b"END\r\n")?;
            return Ok(text.lines().filter_map(|line| split(line.strip_prefix("STAT ")?, ' ')).collect());
        }
        let mut all = Vec::new();
        for section in ["memory", "persistence", "stats"] {
            all.extend(self.info(section)?.lines().filter_map(|line| split(line, ':')));
        }
        Ok(all)
    }

    /// One section of Redis' `INFO`: a bulk string, its length first.
    fn info(&self, section: &str) -> Result<String> {
        let mut reader = BufReader::new(connect(self.address, &format!("INFO {section}\r\n"))?);
        let mut head = String::new();
        reader.read_line(&mut head)?;
        let len = head.trim().strip_prefix('$').and_then(|n| n.parse().ok());
        let mut body = vec![0; len.with_context(|| format!("INFO answered {head:?}"))?];
        reader.read_exact(&mut body)?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// A number among [`stats`](Self::stats).
    pub fn stat(&self, name: &str) -> Option<u64> {
        self.stats().ok()?.into_iter().find(|(k, _)| k == name)?.1.parse().ok()
    }

    /// Resident memory in MiB: anonymous, shared and file pages of the process.
    pub fn rss_mb(&self) -> Option<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.pid())).ok()?;
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
        Some(line.split_whitespace().next()?.parse::<f64>().ok()? / 1024.0)
    }

    /// Waits (a few seconds at most) until it does no background work, so that the next server's round is not disturbed.
    pub fn settle(&self) {
        let give_up = Instant::now() + Duration::from_secs(5);
        // A checkpoint of towa's is over after one interval and its own length.
        std::thread::sleep(Duration::from_millis(if self.peer == Peer::Towa { 250 } else { 20 }));
        if self.peer.protocol() == Protocol::Resp {
            let busy = |name| self.stat(name) == Some(1);
            while (busy("rdb_bgsave_in_progress") || busy("aof_rewrite_in_progress")) && Instant::now() < give_up {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cleanup::Scratch;
    use crate::client::{Client, Use};
    use crate::record::Recorder;
    use crate::workload::{Keys, OpTable, Workload};

    fn setup() -> Setup {
        Setup {
            towa: "/proc/nonexistent/towa".into(),
            medium: "ram".into(),
            interval: Duration::from_millis(100),
            threads: 1,
            memory_mb: 64,
        }
    }

    #[test]
    fn an_absent_program_is_skipped_with_advice() {
        let why = Peer::Towa.missing(&setup()).expect("it is absent");
        assert!(why.contains("/proc/nonexistent/towa") && why.contains("--towa-bin"), "{why}");
    }

    #[test]
    fn real_peers_start_answer_and_die() {
        for peer in [Peer::Memcached, Peer::RedisAof, Peer::RedisRdb] {
            if let Some(why) = peer.missing(&setup()) {
                println!("SKIP: {}: {why}", peer.name());
                continue;
            }
            let scratch = Scratch::within(&std::env::temp_dir()).unwrap();
            let (server, took) = peer.start(&setup(), scratch.path()).unwrap();
            assert!(took < Duration::from_secs(30));
            let mut client = Client::connect(server.address, peer.protocol(), 4, Use::Store).unwrap();
            client.load((0..200).map(|k| 2 * k)).unwrap();
            assert_eq!(client.count_present(0..500).unwrap(), 200, "{peer:?}");
            let table = OpTable::new(Workload::YcsbA, &Keys::of(Workload::YcsbA, 200), 1, 1000);
            let mut record = Recorder::new();
            client.run(&table, 0, Duration::from_millis(100), &mut record).unwrap();
            assert!(record.hits > 0 && record.misses == 0, "{peer:?}: {} hits, {} misses", record.hits, record.misses);
            assert!(server.rss_mb().unwrap() > 0.5);
            assert!(!server.stats().unwrap().is_empty());
            server.settle();
            let pid = server.process.pid();
            drop(server);
            assert!(!Path::new(&format!("/proc/{pid}")).exists());
        }
    }
}
