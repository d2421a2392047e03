//! A client's side of memcached's `stats` command.
//!
//! What must always hold: whoever answers, however strangely, costs bounded memory and time, and ends in a message.

use std::ffi::OsStr;
use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Error, Result, anyhow, bail};
use serde_json::{Map, Number, Value};

use crate::failure::{NO_ANSWER, USAGE, coded};
use crate::report;

const PORT: u16 = 11211;
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest line and most lines taken of one answer.
const LINE_MAX: u64 = 16 << 10;
const LINES_MAX: usize = 100_000;
/// What a server says, unasked, to one connection more than it allows.
const FULL: &str = "ERROR Too many open connections";

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Host and port.
    Tcp(String, u16),
    /// A Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp(host, port) => write!(f, "{host}:{port}"),
            Address::Unix(path) => f.write_str(&report::path(path)),
        }
    }
}

impl Address {
    /// `HOST`, `HOST:PORT`, `:PORT`, `[IPv6]`, `[IPv6]:PORT`, or a path.
    pub fn parse(text: &OsStr) -> Result<Address> {
        let is_socket = Path::new(text).metadata().is_ok_and(|m| m.file_type().is_socket());
        let Some(text) = text.to_str().filter(|text| !text.contains('/') && !is_socket) else {
            return Ok(Address::Unix(text.into()));
        };
        let plain_ipv6 = text.parse::<std::net::Ipv6Addr>().is_ok();
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !plain_ipv6 && !port.ends_with(']') => match port.parse() {
                Ok(port) => (host, port),
                Err(_) => {
                    let what = format!("{text}: {port:?} is no port; write HOST:PORT, with a port between 1 and 65535");
                    return Err(coded(USAGE, what));
                }
            },
            _ => (text, PORT),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Ok(Address::Tcp(if host.is_empty() { "127.0.0.1" } else { host }.to_owned(), port))
    }
}

/// A connection to a server.
pub struct Connection {
    address: Address,
    reader: BufReader<Box<dyn Read>>,
    writer: Box<dyn Write>,
}

impl Connection {
    /// Connects.
    pub fn open(address: Address) -> Result<Connection> {
        let nobody =
            |e: std::io::Error| coded(NO_ANSWER, format!("{address}: no server answers there: {e}; start one with `towa serve`"));
        let (reader, writer): (Box<dyn Read>, Box<dyn Write>) = match &address {
            Address::Tcp(host, port) => {
                let stream = connect(host, *port).map_err(nobody)?;
                let patience = stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
                patience.map_err(nobody)?;
                (Box::new(stream.try_clone().map_err(nobody)?), Box::new(stream))
            }
            Address::Unix(path) => {
                let stream = UnixStream::connect(path).map_err(nobody)?;
                let patience = stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
                patience.map_err(nobody)?;
                (Box::new(stream.try_clone().map_err(nobody)?), Box::new(stream))
            }
        };
        Ok(Connection { address, reader: BufReader::new(reader), writer })
    }

    /// Whom it is to.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// `stats SECTION`; `None` if the server has no such section.
    pub fn stats(&mut self, section: &str) -> Result<Option<Map<String, Value>>> {
        let command = if section.is_empty() { "stats\r\n".to_owned() } else { format!("stats {section}\r\n") };
        if let Err(e) = self.writer.write_all(command.as_bytes()) {
            // Whoever does not want us has said so before it closed.
            return if self.line().is_ok_and(|line| line == FULL) { Err(self.full()) } else { Err(self.gone(e)) };
        }
        let mut found = Map::new();
        for _ in 0..LINES_MAX {
            let line = self.line()?;
            let mut words = line.splitn(3, ' ');
            match (words.next().unwrap_or(""), words.next(), words.next()) {
                ("STAT", Some(name), value) => drop(found.insert(name.to_owned(), parse(value.unwrap_or("")))),
                // memcached answers an unknown section with an empty one.
                ("END", ..) => return Ok((section.is_empty() || !found.is_empty()).then_some(found)),
                _ if line == FULL => return Err(self.full()),
                ("ERROR" | "CLIENT_ERROR" | "RESET", ..) => return Ok(None),
                ("SERVER_ERROR", ..) => bail!("{}: the server says: {line}", self.address),
                _ => bail!(
                    "{}: not a memcached: it answered {:?} to `stats`",
                    self.address,
                    line.chars().take(60).collect::<String>()
                ),
            }
        }
        bail!("{}: not a memcached: its answer to `stats` does not end", self.address)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = Vec::new();
        match self.reader.by_ref().take(LINE_MAX).read_until(b'\n', &mut line) {
            Ok(_) if line.ends_with(b"\n") => Ok(String::from_utf8_lossy(line.trim_ascii_end()).into_owned()),
            Ok(n) if n as u64 == LINE_MAX => bail!("{}: not a memcached: it sends a line without end", self.address),
            Ok(_) => Err(coded(NO_ANSWER, format!("{}: the server closed the connection", self.address))),
            Err(e) => Err(self.gone(e)),
        }
    }

    fn full(&self) -> Error {
        anyhow!("{}: all connections that the server allows (-c) are in use; close one, or try again later", self.address)
    }

    fn gone(&self, e: std::io::Error) -> Error {
        let late = matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut);
        let why = if late { format!("no answer within {} seconds", PATIENCE.as_secs()) } else { e.to_string() };
        coded(NO_ANSWER, format!("{}: the server stopped answering: {why}", self.address))
    }
}

/// Connects to the first of the host's addresses that accepts.
fn connect(host: &str, port: u16) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// A number where it is one.
fn parse(text: &str) -> Value {
    if let Ok(n) = text.parse::<u64>() {
        return n.into();
    }
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.' || b == b'-') && text.bytes().any(|b| b.is_ascii_digit());
    let number = if plain { text.parse().ok().and_then(Number::from_f64) } else { None };
    number.map_or_else(|| Value::String(text.to_owned()), Value::Number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_understood() {
        let tcp = |host: &str, port| Address::Tcp(host.into(), port);
        for (text, wanted) in [
            ("cache", tcp("cache", 11211)),
            ("cache:7", tcp("cache", 7)),
            (":7", tcp("127.0.0.1", 7)),
            ("[::1]:7", tcp("::1", 7)),
            ("[::1]", tcp("::1", 11211)),
            ("::1", tcp("::1", 11211)),
            ("/run/t.sock", Address::Unix("/run/t.sock".into())),
        ] {
            assert_eq!(Address::parse(OsStr::new(text)).unwrap(), wanted, "{text}");
        }
        assert!(Address::parse(OsStr::new("cache:x")).is_err());
        assert!(Address::parse(OsStr::new("cache:70000")).is_err());
        assert_eq!(tcp("::1", 7).to_string(), "[::1]:7");
    }

    #[test]
    fn figures_become_numbers() {
        assert_eq!(parse("12"), Value::from(12));
        assert_eq!(parse("0.25"), Value::from(0.25));
        assert_eq!(parse("-1"), Value::from(-1.0));
        assert_eq!(parse("1.6.18-towa"), Value::from("1.6.18-towa"));
        assert_eq!(parse("127.0.0.1"), Value::from("127.0.0.1"));
        assert_eq!(parse(""), Value::from(""));
    }
}
