//! Rounds of `towa serve` under load, SIGKILL, restart, and reading everything back.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::age::{self, Watched};
use crate::client::{Client, Connection, Observed, SHARED};
use crate::process::{self, Running};
use crate::third_party;

const CLIENTS: usize = 4;
/// What a busy machine may keep a persister waiting, now and then, longer than what was measured of it.
const LATE: Duration = Duration::from_millis(500);

/// One server's pool, killed again and again, and its clients.
pub struct Rounds {
    pool: PathBuf,
    complaints: PathBuf,
    medium: &'static str,
    clients: Vec<Client>,
    observer: Client,
    shared: u64,
    server: Option<Server>,
    /// The first client works through pymemcache.
    has_pymemcache: bool,
    seen: Seen,
}

/// A running server.
struct Server {
    process: Running,
    address: String,
    interval: Duration,
}

/// How a round of load ended.
struct Ended {
    /// When it was killed.
    at: Instant,
    gracefully: bool,
    observed: Observed,
    watched: Watched,
    interval: Duration,
}

/// For the summary.
#[derive(Default)]
struct Seen {
    kills: u64,
    kills_at_start: u64,
    terminated: u64,
    ops: u64,
    durable: u64,
    lost: u64,
    oldest_lost: Duration,
    longest_barrier: Duration,
    /// Age of what was lost, as a part of what it may be.
    nearest_to_bound: f64,
    longest_bound: Duration,
    /// Kills that lost something older than that.
    too_old: Vec<String>,
}

impl Rounds {
    pub fn new(dir: &Path, medium: &'static str, rng: &mut SmallRng) -> Rounds {
        let mut rounds = Rounds {
            pool: dir.join("pool"),
            complaints: dir.join("complaints"),
            medium,
            clients: (0..CLIENTS).map(|n| Client::new(format!("client{n}"))).collect(),
            observer: Client::new("observer".into()),
            shared: 0,
            server: None,
            has_pymemcache: third_party::is_installed(),
            seen: Seen::default(),
        };
        if !rounds.has_pymemcache {
            eprintln!("SKIP: python3 has no pymemcache, so all clients are ours");
        }
        let server = rounds.start(rng);
        let mut connection = Connection::open(&server.address).expect("the server answers");
        connection.send(format!("set {SHARED} 0 0 1\r\n0\r\ndurable now\r\n").as_bytes()).expect("the server answers");
        assert_eq!(connection.line().expect("the server answers"), "STORED");
        assert!(connection.line().expect("the server answers").starts_with("DURABLE "));
        rounds.server = Some(server);
        rounds
    }

    /// Loads the server, kills it, restarts it, and checks everything.
    pub fn round(&mut self, seed: u64, round: usize) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let server = self.server.take().expect("left running by the round before");
        let gracefully = rng.random_bool(0.1);
        let load = Duration::from_micros(match rng.random_range(0..10) {
            0..2 => rng.random_range(0..30_000),
            2..9 => rng.random_range(30_000..350_000),
            _ => rng.random_range(500_000..1_200_000),
        });
        let ended = self.load(server, load, gracefully, seed);
        process::verify(&self.pool, self.medium);
        while rng.random_bool(0.3) {
            let args = self.args(&mut rng).0;
            let start = Running::start(&as_str(&args), &self.complaints);
            start.kill_after(Duration::from_micros(rng.random_range(0..50_000)));
            process::verify(&self.pool, self.medium);
            self.seen.kills_at_start += 1;
        }
        let server = self.start(&mut rng);
        self.check(&server.address, &ended, round);
        self.server = Some(server);
    }

    fn args(&self, rng: &mut SmallRng) -> (Vec<String>, Duration) {
        let interval_ms = [5, 20, 100][rng.random_range(0..3)];
        let interval = interval_ms.to_string();
        let pool = self.pool.display().to_string();
        let mut args: Vec<&str> = vec!["serve", "--pool", &pool, "--medium", self.medium, "--interval-ms", &interval];
        args.extend(["-p", "0", "-t", "2", "-m", "32", "--log-mb", "4", "-I", "256k"]);
        if rng.random_bool(0.2) {
            args.push("--eager");
        }
        (args.into_iter().map(str::to_owned).collect(), Duration::from_millis(interval_ms))
    }

    fn start(&self, rng: &mut SmallRng) -> Server {
        let (args, interval) = self.args(rng);
        let mut process = Running::start(&as_str(&args), &self.complaints);
        let line = process.first_line();
        let address = line.strip_prefix("ready: ").and_then(|rest| rest.split_once(',')).map(|(address, _)| address.to_owned());
        Server { process, address: address.unwrap_or_else(|| panic!("not a ready line: {line:?}")), interval }
    }

    /// Lets the clients loose and ends the server after `load`.
    fn load(&mut self, server: Server, load: Duration, gracefully: bool, seed: u64) -> Ended {
        let stop = AtomicBool::new(false);
        let (clients, observer, address) = (&mut self.clients, &mut self.observer, &*server.address);
        let has_pymemcache = self.has_pymemcache;
        let (at, observed, watched) = std::thread::scope(|scope| {
            for (number, client) in clients.iter_mut().enumerate() {
                let stop = &stop;
                let mut rng = SmallRng::seed_from_u64(seed.wrapping_add(1 + number as u64));
                scope.spawn(move || match number {
                    0 if has_pymemcache => client.work_through_pymemcache(address, &mut rng, stop),
                    _ => client.work(address, &mut rng, stop),
                });
            }
            let observing = scope.spawn(|| observer.observe(address, &stop));
            let watching = scope.spawn(|| age::watch(address, &stop));
            std::thread::sleep(load);
            if gracefully {
                server.process.terminate();
            } else {
                server.process.kill();
            }
            let at = Instant::now();
            stop.store(true, Relaxed);
            let observed = observing.join().expect("the observer found nothing wrong");
            (at, observed, watching.join().expect("the watcher found nothing wrong"))
        });
        *(if gracefully { &mut self.seen.terminated } else { &mut self.seen.kills }) += 1;
        Ended { at, gracefully, observed, watched, interval: server.interval }
    }

    fn check(&mut self, address: &str, ended: &Ended, round: usize) {
        let Ended { at: killed, gracefully, observed, watched, interval } = *ended;
        let bound = watched.bound(interval, killed);
        let at = format!("round {round}, {}", self.medium);
        let mut connection = Connection::open(address).expect("the restarted server answers");
        let (mut items, mut shared, mut too_old) = (0, [self.shared; 2], None);
        for client in self.clients.iter_mut().chain([&mut self.observer]) {
            let found = client.read_back(&mut connection);
            let (history, name) = (&client.history, &client.name);
            let Some((low, high)) = history.cuts(&found) else {
                panic!("{at}: {name}: what is found is no prefix of what was done:\n{}", history.misfits(&found));
            };
            let answered = history.answered_before(killed + Duration::from_secs(60));
            assert!(
                high >= history.durable,
                "{at}: {name}: operation {} was acknowledged as durable, {high} are there",
                history.durable
            );
            if gracefully {
                assert!(high >= answered, "{at}: {name}: SIGTERM lost operations {high}..{answered}, which were answered");
            }
            if let Some(moment) = observed.last_durable {
                let must = history.answered_before(moment);
                assert!(high >= must, "{at}: {name}: {must} operations came before a write that is durable, {high} are there");
            }
            let lost =
                history.ops.get(high).and_then(|op| op.answered).map_or(Duration::ZERO, |t| killed.saturating_duration_since(t));
            if let Some(bound) = bound {
                let explained = format!(
                    "{at}: {name}: an operation answered {lost:?} before the kill is lost; an interval of {interval:?} and a checkpoint \
                     took {bound:?} at most: {watched:?}"
                );
                assert!(lost <= bound + LATE, "{explained}");
                if lost > bound {
                    too_old.get_or_insert(explained);
                }
                self.seen.nearest_to_bound = self.seen.nearest_to_bound.max(lost.as_secs_f64() / bound.as_secs_f64());
                self.seen.longest_bound = self.seen.longest_bound.max(bound);
            }
            if let Some(moment) = watched.durable_until.and_then(|moment| moment.checked_sub(watched.slack())) {
                let must = history.answered_before(moment);
                assert!(
                    high >= must,
                    "{at}: {name}: the server called {must} operations durable (durable_age_us), {high} are there"
                );
            }
            shared[0] += history.shared_in(low);
            shared[1] += history.shared_in(high);
            items += found.iter().flatten().count() as u64;
            self.seen.ops += answered as u64;
            self.seen.durable += history.durable as u64;
            self.seen.lost += answered.saturating_sub(high) as u64;
            self.seen.oldest_lost = self.seen.oldest_lost.max(lost);
            client.restart(found);
        }
        self.seen.too_old.extend(too_old);
        self.seen.longest_barrier = self.seen.longest_barrier.max(observed.longest);
        self.check_shared(&mut connection, shared, &at);
        check_count(&mut connection, items + 1, &at);
    }

    /// The counter that all clients add to is of the same moment as their own keys.
    fn check_shared(&mut self, connection: &mut Connection, [low, high]: [u64; 2], at: &str) {
        connection.send(format!("get {SHARED}\r\n").as_bytes()).expect("the server answers");
        let found = connection.items().expect("the server answers");
        let text = found.first().map_or_else(String::new, |(_, bytes, _)| String::from_utf8_lossy(bytes).into_owned());
        let value: u64 = text.trim_end().parse().unwrap_or_else(|_| panic!("{at}: the shared counter holds {text:?}"));
        assert!(
            (low..=high).contains(&value),
            "{at}: the shared counter holds {value}; the clients' keys are as after {low} to {high}"
        );
        self.shared = value;
    }

    /// Whether any barrier was answered before a kill.
    pub fn has_acknowledged(&self) -> bool {
        self.seen.durable > 0
    }

    pub fn summary(&mut self) -> String {
        if let Some(server) = self.server.take() {
            server.process.terminate();
        }
        process::verify(&self.pool, self.medium);
        // The persister waits for a processor, too, and longer than a thread that does nothing but sleep: it has used its share.
        let too_old = &self.seen.too_old;
        assert!(
            too_old.len() as u64 <= 1 + self.seen.kills / 20,
            "{} of {} kills:\n{}",
            too_old.len(),
            self.seen.kills,
            too_old.join("\n")
        );
        let Seen { kills, kills_at_start, terminated, ops, durable, lost, oldest_lost, longest_barrier, .. } = &self.seen;
        let (percent, bound) = (100.0 * self.seen.nearest_to_bound, self.seen.longest_bound);
        assert!(*durable > 0, "no barrier was ever answered, so nothing was tested");
        format!(
            "{kills} kills under load, {kills_at_start} at start, {terminated} graceful ends; {ops} operations answered, {durable} acknowledged \
             as durable, {lost} others lost, the oldest {oldest_lost:.1?} old, at most {percent:.0} % of what it might be (up to \
             {bound:.1?}; {} times more); longest barrier {longest_barrier:.1?}",
            too_old.len()
        )
    }
}

/// The count of items is exact, without having been counted.
fn check_count(connection: &mut Connection, wanted: u64, at: &str) {
    connection.send(b"stats\r\n").expect("the server answers");
    let mut found = None;
    loop {
        let line = connection.line().expect("the server answers");
        if line == "END" {
            break;
        }
        if let Some(count) = line.strip_prefix("STAT curr_items ") {
            found = count.parse().ok();
        }
    }
    assert_eq!(found, Some(wanted), "{at}: curr_items");
}

fn as_str(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}
