//! One connection's dialogue.

use super::{NO_MEMORY, failure, line, storing, text};
use crate::budget::Share;
use crate::counters::Counter;
use crate::protocol::{self, Limits, Request, Step, parse};
use crate::server::Shared;
use crate::store::{Client, Failure, Store, TURN, Worker};

/// Output at which a session lets the network drain it before it goes on; less while much is unsent (`unsent`).
pub const OUTPUT_HIGH: usize = 256 * 1024;
/// First byte of memcached's binary protocol, which is not offered.
const BINARY_MAGIC: u8 = 0x80;
/// The answer to a line that there is no room to receive.
const NO_MEMORY_TO_READ: &[u8] = b"SERVER_ERROR out of memory reading request";
/// What a value is parsed by that there is no room to receive.
const NOTHING_FITS: Limits = Limits { item_size_max: 0, multiget_max: 0 };

/// Why a session stopped taking input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It needs at least this many bytes more.
    More(usize),
    /// Enough output for now; call again with the rest when it is sent.
    Full,
    /// A client waits until this epoch is durable; then [`Session::resume`].
    Parked(u64),
    /// The next request needs so many bytes of log, and there are none now. It was not taken: call again when the log has space.
    WantsLog(usize),
    /// The request that arrives lacks so many bytes of memory to be received in. None of it was taken: call again when there are as many, or
    /// after [`Session::lose_patience`].
    WantsMemory(u64),
    /// What was done takes long, or what comes next does, which was not taken: call again after others have had their turns.
    Pause,
    /// Send what there is, then close.
    Close,
}

/// A retrieval of many keys, interrupted because its output was enough for now.
#[derive(Clone, Copy, Debug)]
struct Retrieval {
    /// Bytes of its line.
    used: usize,
    /// Where in the input its remaining keys are.
    keys: (usize, usize),
    with_cas: bool,
    /// The expiry time that each key gets, as the client gave it: it counts from when the key is served.
    touch: Option<i32>,
}

/// One connection's state between batches of input.
#[derive(Debug, Default)]
pub struct Session {
    started: bool,
    /// Output that is enough, in this batch.
    enough: usize,
    /// Bytes of an unwanted value still to come.
    swallow: u64,
    retrieval: Option<Retrieval>,
    /// What the store knows of this connection.
    client: Client,
    /// Its part of the memory for large values that are arriving.
    share: Share,
    /// The request that arrives has waited long enough for memory.
    has_no_patience: bool,
}

impl Session {
    /// Refuses the request that arrives, unless there is memory for it now.
    pub fn lose_patience(&mut self) {
        self.has_no_patience = true;
    }

    /// Bytes of memory that it holds for a request that is arriving.
    pub fn held(&self) -> u64 {
        self.share.bytes()
    }

    /// Takes `input`, appends replies to `out` until there are `enough` bytes of them. Gives how many bytes of the input are done with, and
    /// why it stopped; the rest comes again, with more behind it, at the next call.
    pub fn feed(
        &mut self,
        shared: &Shared,
        worker: &mut Worker,
        input: &[u8],
        enough: usize,
        out: &mut Vec<u8>,
    ) -> (usize, Progress) {
        let mut client = std::mem::take(&mut self.client);
        self.enough = enough;
        let result = worker.serve(&mut client, |worker| self.dialogue(shared, worker, input, out));
        self.client = client;
        result
    }

    fn dialogue(&mut self, shared: &Shared, worker: &mut Worker, input: &[u8], out: &mut Vec<u8>) -> (usize, Progress) {
        let mut done = 0;
        let progress = loop {
            if let Some(bytes) = worker.take_wanted_log() {
                break Progress::WantsLog(bytes);
            }
            if out.len() >= self.enough {
                break Progress::Full;
            }
            if worker.has_worked_enough() {
                break Progress::Pause;
            }
            if self.swallow > 0 {
                let skipped = self.swallow.min((input.len() - done) as u64);
                self.swallow -= skipped;
                done += skipped as usize;
                if self.swallow > 0 {
                    break Progress::More(1);
                }
            }
            let rest = &input[done..];
            if let Some(retrieval) = self.retrieval {
                done += self.go_on(shared, worker, rest, retrieval, out);
                continue;
            }
            match (rest.first(), self.started) {
                (None, _) => break Progress::More(1),
                (Some(&BINARY_MAGIC), false) => {
                    line(out, b"ERROR");
                    break Progress::Close;
                }
                _ => self.started = true,
            }
            match parse(rest, &shared.limits) {
                Step::Incomplete(need) => {
                    let there = rest.len() as u64;
                    match shared.receiving.hold(&mut self.share, there, there + need as u64) {
                        Ok(()) => {
                            self.has_no_patience = false;
                            break Progress::More(need);
                        }
                        Err(lacking) if !self.has_no_patience => break Progress::WantsMemory(lacking),
                        Err(_) => {}
                    }
                    let (skipped, progress) = self.refuse(shared, worker, rest, need, out);
                    done += skipped;
                    if let Some(progress) = progress {
                        break progress;
                    }
                }
                Step::Close => break Progress::Close,
                Step::Reply { used, swallow, line: reply, quiet } => {
                    self.share.release();
                    if !quiet {
                        line(out, reply);
                    }
                    self.swallow = swallow;
                    done += used;
                }
                Step::Request { used, request: Request::Get { keys, with_cas, touch } } => {
                    self.share.release();
                    let keys = match keys.is_empty() {
                        true => (0, 0),
                        false => {
                            let start = keys.as_ptr() as usize - rest.as_ptr() as usize;
                            (start, start + keys.len())
                        }
                    };
                    done += self.go_on(shared, worker, rest, Retrieval { used, keys, with_cas, touch }, out);
                }
                Step::Request { used, request } => {
                    let progress = self.execute(shared, worker, request, out);
                    if let Some(bytes) = worker.take_wanted_log() {
                        break Progress::WantsLog(bytes);
                    }
                    if worker.take_pause() {
                        break Progress::Pause;
                    }
                    self.share.release();
                    done += used;
                    if let Some(progress) = progress {
                        break progress;
                    }
                }
            }
        };
        (done, progress)
    }

    /// Answers an unfinished request, `there` and `need` bytes, for which there is no memory. Gives the bytes done with, and why the session
    /// stops, if it does.
    fn refuse(
        &mut self,
        shared: &Shared,
        worker: &mut Worker,
        there: &[u8],
        need: usize,
        out: &mut Vec<u8>,
    ) -> (usize, Option<Progress>) {
        // A value is refused as one beyond `-I` is, but for the reason: answered at once, and skipped as it comes.
        let Step::Request { used, request: request @ Request::TooLarge { swallow, .. } } = parse(there, &NOTHING_FITS) else {
            // Where a line ends that has only begun is not known: it cannot be skipped.
            line(out, NO_MEMORY_TO_READ);
            worker.counters.inc(Counter::RequestKicks);
            return (0, Some(Progress::Close));
        };
        // Values that wait for log space may hold all there is to receive others in. It stays without patience until it is answered.
        let size = there.len() + need;
        if !worker.thread.has_log_space(size) {
            return (0, Some(Progress::WantsLog(size)));
        }
        if !storing::too_large(shared, worker, &request, false, out) {
            return (0, None);
        }
        self.has_no_patience = false;
        self.share.release();
        self.swallow = swallow;
        (used, None)
    }

    /// Serves keys until the line is done or the output enough. Gives the bytes done with: none before the line is.
    fn go_on(&mut self, shared: &Shared, worker: &mut Worker, input: &[u8], mut retrieval: Retrieval, out: &mut Vec<u8>) -> usize {
        let (start, end) = retrieval.keys;
        let expires = retrieval.touch.map(|given| shared.clock.expiry(given, worker.now));
        for key in protocol::keys(&input[start..end]) {
            worker.works(0);
            if out.len() >= self.enough || worker.has_worked_enough() {
                retrieval.keys.0 = key.as_ptr() as usize - input.as_ptr() as usize;
                self.retrieval = Some(retrieval);
                return 0;
            }
            if let Err(why) = text::get(&shared.store, worker, key, retrieval.with_cas, expires, out) {
                if let Failure::NoLogSpace = why {
                    retrieval.keys.0 = key.as_ptr() as usize - input.as_ptr() as usize;
                    self.retrieval = Some(retrieval);
                    return 0;
                }
                self.retrieval = None;
                failure(out, &why, NO_MEMORY);
                return retrieval.used;
            }
        }
        self.retrieval = None;
        line(out, b"END");
        retrieval.used
    }

    /// Carries out a request. `Some` when the session has to pause or end.
    fn execute(&mut self, shared: &Shared, worker: &mut Worker, request: Request<'_>, out: &mut Vec<u8>) -> Option<Progress> {
        worker.works(if takes_long(&request) { TURN } else { 0 });
        match request {
            Request::TooLarge { swallow, .. } => {
                if storing::too_large(shared, worker, &request, true, out) {
                    self.swallow = swallow;
                }
            }
            Request::Quit => return Some(Progress::Close),
            Request::Shutdown { .. } if !shared.config.shutdown_command => line(out, b"ERROR: shutdown not enabled"),
            Request::Shutdown { invalid: true } => line(out, b"CLIENT_ERROR invalid shutdown mode"),
            Request::Shutdown { invalid: false } => {
                shared.shutdown.trigger();
                return Some(Progress::Close);
            }
            Request::Durable { now } => return self.durable(&shared.store, worker, now, out),
            other => text::execute(shared, worker, other, out),
        }
        None
    }

    /// `durable`: answers at once if it can, else parks the connection.
    fn durable(&mut self, store: &Store, worker: &mut Worker, now: bool, out: &mut Vec<u8>) -> Option<Progress> {
        worker.counters.inc(Counter::Barriers);
        let pool = store.pool();
        if pool.mode() == towa_epoch::Mode::Volatile {
            line(out, b"SERVER_ERROR not durable: the server runs without a pool (--volatile); nothing will survive it");
            return None;
        }
        // A store that was refused began a transaction, too, but changed nothing: an epoch without a change never becomes durable by itself.
        let epoch = worker.written().min(pool.completed_epoch());
        if pool.durable_epoch() >= epoch {
            match pool.look_at_files() {
                Ok(()) => acknowledge(store, out),
                Err(why) => not_durable(&why.to_string(), out),
            }
            return None;
        }
        if now {
            pool.request_checkpoint();
        }
        Some(Progress::Parked(epoch))
    }

    /// Ends a wait for durability: with what the pool says, or with the reason why it will never be.
    pub fn resume(&mut self, shared: &Shared, failed: Option<&str>, out: &mut Vec<u8>) {
        match failed {
            None => acknowledge(&shared.store, out),
            Some(why) => not_durable(why, out),
        }
    }

    /// Whether it is skipping an unwanted value.
    pub fn is_swallowing(&self) -> bool {
        self.swallow > 0
    }

    /// Whether a request has begun to arrive that is not complete, given the bytes left over.
    pub fn is_mid_request(&self, left_over: usize) -> bool {
        left_over > 0 || self.swallow > 0
    }
}

/// Whether a request may take as long as a whole turn does: it looks through tables or files, or takes all locks.
fn takes_long(request: &Request<'_>) -> bool {
    use Request::{Crawl, DebugTime, Durable, FlushAll, MemoryLimit, Stats};
    matches!(request, Stats { .. } | FlushAll { .. } | MemoryLimit { .. } | Durable { .. } | Crawl | DebugTime { .. })
}

fn not_durable(why: &str, out: &mut Vec<u8>) {
    failure(out, &Failure::Engine(format!("not durable: {why}")), NO_MEMORY);
}

fn acknowledge(store: &Store, out: &mut Vec<u8>) {
    out.extend_from_slice(b"DURABLE ");
    crate::protocol::number::push_u64(out, store.pool().durable_epoch());
    out.extend_from_slice(b"\r\n");
}
