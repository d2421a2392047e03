//! Servers that take turns under one client's load.
//!
//! ```text
//!   start and load all ── round 1: A, then B, then C ── round 2: C, then B, then A ── ...
//! ```
//!
//! What must hold: a round starts when the last server's background work is over; the order turns round from round to round, so that a
//! drift of the machine cancels out; a server that fails leaves with its reason, and the others go on.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::cleanup::Scratch;
use crate::client::{Client, Use};
use crate::peers::{Peer, Server, Setup};
use crate::progress::Progress;
use crate::record::Recorder;
use crate::windows::median;

/// A server under measurement.
pub(crate) struct Contender {
    /// The server.
    pub server: Server,
    /// The load generator's end.
    pub client: Client,
    /// The server's directory.
    pub dir: PathBuf,
    /// All rounds so far.
    pub record: Recorder,
    /// Operations a second in each round.
    pub rates: Vec<f64>,
    /// Its loading, before all rounds.
    pub loading: Recorder,
}

impl Contender {
    /// Starts `peer` in a directory of its own, and writes `keys` to it.
    pub fn start(
        peer: Peer,
        setup: &Setup,
        connections: usize,
        usage: Use,
        keys: impl Iterator<Item = u64>,
        scratch: &Scratch,
    ) -> Result<Self> {
        let dir = scratch.fresh(peer.name())?;
        let (server, _) = peer.start(setup, &dir)?;
        let mut client = Client::connect(server.address, peer.protocol(), connections, usage)?;
        let loading = client.load(keys).context("loading the keys")?;
        server.settle();
        Ok(Self { server, client, dir, record: Recorder::new(), rates: Vec::new(), loading })
    }

    /// A round: `load` runs, and says how many operations it did.
    pub fn round(&mut self, load: impl FnOnce(&mut Client, &mut Recorder) -> Result<u64>) -> Result<()> {
        let start = Instant::now();
        let done = load(&mut self.client, &mut self.record)?;
        self.rates.push(done as f64 / start.elapsed().as_secs_f64());
        self.server.settle();
        Ok(())
    }
}

/// Starts `peers` with `start`; those that are not installed or do not start are told to `skip`.
pub(crate) fn start_all(
    peers: &[Peer],
    setup: &Setup,
    progress: &Progress,
    skip: &mut dyn FnMut(Peer, String),
    mut start: impl FnMut(Peer) -> Result<Contender>,
) -> Vec<Contender> {
    let mut contenders = Vec::new();
    for peer in peers {
        progress.step(&format!("starting and loading {}", peer.name()));
        match peer.missing(setup) {
            Some(why) => skip(*peer, why),
            None => match start(*peer) {
                Ok(contender) => contenders.push(contender),
                Err(e) => skip(*peer, format!("{e:#}")),
            },
        }
    }
    contenders
}

/// One round of each; those that remain.
pub(crate) fn take_turns(
    contenders: Vec<Contender>,
    (round, rounds): (usize, usize),
    progress: &Progress,
    skip: &mut dyn FnMut(Peer, String),
    mut turn: impl FnMut(&mut Contender) -> Result<()>,
) -> Vec<Contender> {
    let mut remain = Vec::new();
    for mut contender in contenders {
        let peer = contender.server.peer;
        progress.step(&format!("{}, round {} of {rounds}", peer.name(), round + 1));
        match turn(&mut contender) {
            Ok(()) => remain.push(contender),
            Err(e) => skip(peer, format!("{e:#}")),
        }
    }
    remain.reverse();
    remain
}

/// Rates of `peer`, if it took part to the end.
pub(crate) fn rates_of(contenders: &[Contender], peer: Peer) -> Option<Vec<f64>> {
    contenders.iter().find(|c| c.server.peer == peer).map(|c| c.rates.clone())
}

/// `rates` over those of `base`, round by round.
pub(crate) fn ratios(rates: &[f64], base: &[f64]) -> Vec<f64> {
    rates.iter().zip(base).map(|(rate, base)| rate / base).collect()
}

/// The median of the [`ratios`].
pub(crate) fn ratio(rates: &[f64], base: &[f64]) -> f64 {
    median(&ratios(rates, base))
}
