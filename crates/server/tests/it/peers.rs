//! Servers in this process, and clients to talk to them.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use towa_epoch::{Options, Pool};
use towa_server::{Config, Handle, Server};

/// A small volatile pool's options.
pub fn small() -> Options {
    Options { heap_len: 128 << 20, ..Options::default() }
}

/// A configuration for tests: any free port, two workers.
pub fn config() -> Config {
    Config { port: 0, threads: 2, debug_commands: true, ..Config::default() }
}

/// A running server that ends with the test.
pub struct Running {
    handle: Option<Handle>,
    pub addr: SocketAddr,
}

impl Running {
    pub fn start(config: Config, pool: &Pool) -> Running {
        let handle = Server::start(config, pool).unwrap();
        Running { addr: handle.addr.unwrap(), handle: Some(handle) }
    }

    pub fn volatile(config: Config) -> Running {
        Self::start(config, &Pool::volatile(&small()).unwrap())
    }

    pub fn client(&self) -> Client {
        Client::connect(self.addr)
    }

    /// Ends it and says how that went.
    pub fn stop(mut self) -> towa_server::Result<()> {
        let handle = self.handle.take().unwrap();
        handle.shutdown();
        handle.join()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            handle.shutdown();
            let _ = handle.join();
        }
    }
}

/// A client that says what it gets.
pub struct Client {
    pub stream: TcpStream,
}

impl Client {
    pub fn connect(addr: SocketAddr) -> Client {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        Client { stream }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Reads until the answer ends with `end`, or the server hangs up.
    pub fn read_until(&mut self, end: &[u8]) -> Vec<u8> {
        let (mut answer, mut chunk) = (Vec::new(), [0; 65536]);
        while !answer.ends_with(end) {
            match self.stream.read(&mut chunk) {
                Ok(0) => {
                    answer.extend_from_slice(b"<closed>");
                    break;
                }
                Ok(count) => answer.extend_from_slice(&chunk[..count]),
                Err(e) if e.kind() == ErrorKind::ConnectionReset => {
                    answer.extend_from_slice(b"<closed>");
                    break;
                }
                Err(e) => panic!("after {:?}: {e}", String::from_utf8_lossy(&answer)),
            }
        }
        answer
    }

    /// Sends `request` and returns the whole answer, found by a question sent behind it whose answer is known.
    pub fn ask(&mut self, request: &[u8]) -> Vec<u8> {
        const END: &[u8] = b"EN Oend-of-step\r\n";
        let mut bytes = request.to_vec();
        bytes.extend_from_slice(b"mg no-such-key Oend-of-step\r\n");
        if self.stream.write_all(&bytes).is_err() {
            return b"<closed>".to_vec();
        }
        let mut answer = self.read_until(END);
        if answer.ends_with(END) {
            answer.truncate(answer.len() - END.len());
        }
        answer
    }

    /// [`ask`](Self::ask) in text.
    pub fn say(&mut self, request: &str) -> String {
        String::from_utf8_lossy(&self.ask(request.as_bytes())).into_owned()
    }

    /// A number from `stats`.
    pub fn stat(&mut self, name: &str) -> u64 {
        let stats = self.say("stats\r\n");
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        line.unwrap_or_else(|| panic!("no stat {name}")).parse().unwrap()
    }

    /// Whether the server has hung up.
    pub fn is_closed(&mut self) -> bool {
        self.stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut chunk = [0; 4096];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(e) => return e.kind() == ErrorKind::ConnectionReset,
            }
        }
    }
}
