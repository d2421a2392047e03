//! Rounds of a `towa serve` that is full: values of sizes that drift, evictions, SIGKILL, restart, and reading back all that is left.
//!
//! What must always hold, of each key that one client alone writes: it holds nothing, or a whole value that was sent for it, and none
//! that is older than what a barrier had acknowledged. A value that was overwritten or deleted durably never comes back.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::client::{Connection, made, version_of};
use crate::process::{self, Running};

const CLIENTS: usize = 3;
const KEYS: usize = 300;
/// Requests that are sent together.
const BATCH: usize = 12;
/// Bytes of values, about: what a cache is full of, and what comes after it.
const SIZES: [u64; 4] = [100, 4_000, 40_000, 200_000];

/// The value of `key` at `version`, whose last digit says of which size it is.
fn value(key: &str, version: u64) -> Vec<u8> {
    made(key, version, |random| SIZES[version as usize % SIZES.len()] / 2 + random % SIZES[version as usize % SIZES.len()])
}

/// What one client did to a key.
#[derive(Clone, Copy, Default)]
struct Key {
    /// Number of the newest operation that was sent.
    sent: u64,
    /// Number of the newest that is durable, and the version it stored.
    durable: (u64, Option<u64>),
    /// The same of the newest that was answered.
    answered: (u64, Option<u64>),
}

/// A client and its keys.
struct Client {
    name: String,
    keys: Vec<Key>,
    operations: u64,
}

impl Client {
    fn key(&self, key: usize) -> String {
        format!("{}-{key}", self.name)
    }

    /// Stores and deletes until the server is gone. Values are of about one size, which changes now and then.
    fn work(&mut self, address: &str, rng: &mut SmallRng) {
        let Ok(mut connection) = Connection::open(address) else { return };
        while self.batch(&mut connection, rng).is_ok() {}
    }

    fn batch(&mut self, connection: &mut Connection, rng: &mut SmallRng) -> std::io::Result<()> {
        let usual = rng.random_range(0..SIZES.len() as u64);
        let (mut bytes, mut sent) = (Vec::new(), Vec::new());
        for _ in 0..BATCH {
            let (key, size) = (rng.random_range(0..KEYS), if rng.random_bool(0.8) { usual } else { rng.random_range(0..4) });
            self.operations += 1;
            let name = self.key(key);
            let stored = rng.random_bool(0.9).then_some(self.operations * SIZES.len() as u64 + size);
            match stored {
                Some(version) => {
                    let value = value(&name, version);
                    bytes.extend_from_slice(format!("set {name} 0 0 {}\r\n", value.len()).as_bytes());
                    bytes.extend_from_slice(&value);
                    bytes.extend_from_slice(b"\r\n");
                }
                None => bytes.extend_from_slice(format!("delete {name}\r\n").as_bytes()),
            }
            self.keys[key].sent = self.operations;
            sent.push((key, self.operations, stored));
        }
        let barrier = rng.random_bool(0.2);
        if barrier {
            bytes.extend_from_slice(b"durable now\r\n");
        }
        connection.send(&bytes)?;
        for (key, operation, stored) in sent {
            let line = connection.line()?;
            match stored {
                Some(_) => assert_eq!(line, "STORED", "{}: a set in a full cache", self.name),
                None => assert!(["DELETED", "NOT_FOUND"].contains(&&*line), "{}: {line:?}", self.name),
            }
            self.keys[key].answered = (operation, stored);
        }
        if barrier {
            assert!(connection.line()?.starts_with("DURABLE "));
            self.keys.iter_mut().for_each(|key| key.durable = key.answered);
        }
        Ok(())
    }

    /// Reads everything back; how many keys hold something.
    fn check(&mut self, connection: &mut Connection, at: &str) -> usize {
        let mut held = 0;
        for key in 0..KEYS {
            let name = self.key(key);
            connection.send(format!("get {name}\r\n").as_bytes()).expect("the server answers");
            let found = connection.items().expect("the server answers").pop();
            let Key { sent, durable: (durable, stored), .. } = self.keys[key];
            let version = found.map(|(_, bytes, _)| version_of(&name, &bytes, value));
            if let Some(version) = version {
                let operation = version / SIZES.len() as u64;
                let is_durable_one = stored == Some(version);
                let is_later = operation > durable && operation <= sent;
                assert!(
                    is_durable_one || is_later,
                    "{at}: {name} holds operation {operation}; {durable} is durable ({stored:?}), {sent} were sent"
                );
                held += 1;
            }
            // What a start finds is durable; what it does not find was evicted, and does not come back.
            let now = version.map_or((self.operations, None), |version| (version / SIZES.len() as u64, Some(version)));
            (self.keys[key].durable, self.keys[key].answered) = (now, now);
        }
        held
    }
}

/// One server's pool, killed again and again.
pub struct Rounds {
    pool: PathBuf,
    complaints: PathBuf,
    medium: &'static str,
    clients: Vec<Client>,
    kills: u64,
    held: usize,
    evictions: u64,
}

impl Rounds {
    pub fn new(dir: &Path, medium: &'static str) -> Rounds {
        let client = |n| Client { name: format!("client{n}"), keys: vec![Key::default(); KEYS], operations: 0 };
        let clients = (0..CLIENTS).map(client).collect();
        Rounds { pool: dir.join("pool"), complaints: dir.join("complaints"), medium, clients, kills: 0, held: 0, evictions: 0 }
    }

    /// Fills the server, kills it, and checks what the next one has.
    pub fn round(&mut self, rng: &mut SmallRng, round: usize) {
        let pool = self.pool.display().to_string();
        let args = [
            "serve",
            "--pool",
            &pool,
            "--medium",
            self.medium,
            "--interval-ms",
            "10",
            "-p",
            "0",
            "-t",
            "2",
            "-m",
            "24",
            "--log-mb",
            "8",
        ];
        let mut server = Running::start(&args, &self.complaints);
        let line = server.first_line();
        let address = line["ready: ".len()..].split(',').next().expect("an address").to_owned();
        let mut connection = Connection::open(&address).expect("the server answers");
        for client in &mut self.clients {
            self.held += client.check(&mut connection, &format!("round {round}, {}", self.medium));
        }
        let load = Duration::from_millis(rng.random_range(100..700));
        std::thread::scope(|scope| {
            for client in &mut self.clients {
                let (address, mut rng) = (&address, SmallRng::seed_from_u64(rng.random()));
                scope.spawn(move || client.work(address, &mut rng));
            }
            std::thread::sleep(load);
            self.evictions += evictions(&mut connection);
            server.kill();
        });
        self.kills += 1;
        process::verify(&self.pool, self.medium);
    }

    pub fn summary(&self) -> String {
        assert!(self.evictions > 0 && self.held > 0, "{} evictions, {} values: nothing was tested", self.evictions, self.held);
        format!("{} kills of a full server; {} evictions, {} values read back", self.kills, self.evictions, self.held)
    }
}

fn evictions(connection: &mut Connection) -> u64 {
    connection.send(b"stats\r\n").expect("the server answers");
    let mut evictions = 0;
    loop {
        let line = connection.line().expect("the server answers");
        if line == "END" {
            return evictions;
        }
        if let Some(count) = line.strip_prefix("STAT evictions ") {
            evictions = count.parse().expect("a number");
        }
    }
}
