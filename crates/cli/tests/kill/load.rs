//! Rounds of `vm-load`, SIGKILL, `vm-check`.

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;

use crate::process::{self, Running};

/// One pool, killed again and again.
pub struct Rounds {
    pool: PathBuf,
    complaints: PathBuf,
    medium: &'static str,
    acked: u64,
    /// Kills while transactions ran, while it started, and of recoveries.
    kills: [u64; 3],
}

impl Rounds {
    pub fn new(dir: &Path, medium: &'static str) -> Rounds {
        Rounds { pool: dir.join("pool"), complaints: dir.join("complaints"), medium, acked: 0, kills: [0; 3] }
    }

    pub fn round(&mut self, rng: &mut SmallRng, round: usize) {
        let pool = self.pool.display().to_string();
        let interval = [1, 5, 20, 100][rng.random_range(0..4)].to_string();
        let args = ["vm-load", &pool, "--medium", self.medium, "--interval-ms", &interval];
        let mut running = Running::start(&args, &self.complaints);
        if rng.random_bool(0.2) {
            self.kills[1] += 1;
            running.kill_after(Duration::from_micros(rng.random_range(0..30_000)));
        } else {
            self.kills[0] += 1;
            let stdout = running.stdout.take().expect("piped");
            let reader = std::thread::spawn(move || last_ack(stdout));
            std::thread::sleep(Duration::from_micros(rng.random_range(20_000..350_000)));
            running.kill();
            self.acked = self.acked.max(reader.join().expect("reading does not panic"));
        }
        if rng.random_bool(0.25) {
            self.kills[2] += 1;
            let args = ["recover", &pool, "--medium", self.medium];
            if self.pool.join("superblock").exists() {
                Running::start(&args, &self.complaints).kill_after(Duration::from_micros(rng.random_range(0..15_000)));
            }
        }
        if self.acked == 0 && !self.pool.join("superblock").exists() {
            return; // killed before the pool was made
        }
        process::verify(&self.pool, self.medium);
        let acked = self.acked.to_string();
        let checked = process::run(&["vm-check", &pool, "--medium", self.medium, "--acked", &acked]);
        let nothing_yet = self.acked == 0 && String::from_utf8_lossy(&checked.stderr).contains("the structure is not in it");
        let said = String::from_utf8_lossy(&checked.stderr);
        assert!(checked.status.success() || nothing_yet, "round {round}, {}: {}: {said}", self.medium, checked.status);
    }

    /// Whether any kill came late enough to test something.
    pub fn has_acknowledged(&self) -> bool {
        self.acked > 0
    }

    pub fn summary(&self) -> String {
        assert!(self.acked > 0, "nothing was ever acknowledged, so nothing was tested");
        let [running, starting, recovering] = self.kills;
        format!(
            "{} transactions acknowledged; {running} kills under load, {starting} at start, {recovering} in recovery",
            self.acked
        )
    }
}

/// The number of the last whole "ACK n" line.
fn last_ack(mut stdout: impl BufRead) -> u64 {
    let (mut acked, mut line) = (0, String::new());
    while stdout.read_line(&mut line).is_ok_and(|n| n > 0) && line.ends_with('\n') {
        let number = line.trim_end().strip_prefix("ACK ").and_then(|n| n.parse().ok());
        acked = number.unwrap_or_else(|| panic!("vm-load said {line:?}"));
        line.clear();
    }
    acked
}
