//! Opening a map whose process was killed under load, by size.
//!
//! ```text
//!   child    make, insert n keys, drain ── "writing" ── upserts at full speed ... SIGKILL
//!   here     reopen, first look-up: the time told ── every key of a sample has one of its values
//! ```
//!
//! What must hold: the map was made by another process, which was killed while it wrote; time runs from the call that opens to the first
//! answered look-up; the median of several kills is told.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use towa_media::RamMedium;

use super::contenders::{Contender, Site, contenders};
use super::load::{goes_with, value_of};
use super::report::RecoveryPoint;
use super::sides::{median, site};
use crate::child::TellingChild;
use crate::cleanup::Scratch;
use crate::progress::Progress;

/// First word of the child's arguments.
pub const CHILD: &str = "tx";
/// Kills and openings of each size.
const KILLS: usize = 3;
/// Keys looked at after each opening.
const CHECKED: u64 = 1000;

/// What the child is told to do.
#[derive(Clone, Debug, Parser)]
#[command(name = "bench-child tx", no_binary_name = true)]
struct ChildArgs {
    #[arg(long)]
    tree: String,
    #[arg(long)]
    tm: String,
    #[arg(long)]
    dir: PathBuf,
    #[arg(long)]
    keys: u64,
}

/// The child: makes a map in a directory that is there, fills it, and writes until it is killed.
pub fn child_main(args: &[String]) -> Result<()> {
    let args = ChildArgs::try_parse_from(args)?;
    let all = contenders();
    let contender = all.iter().find(|c| c.tree() == args.tree && c.tm() == args.tm);
    let contender = contender.with_context(|| format!("no tree {} ({})", args.tree, args.tm))?;
    let medium = RamMedium::open(&args.dir, false, None)?;
    let instance = contender.make(&Site { dir: args.dir, medium, keys: args.keys, threads: 1 })?;
    let mut session = instance.map().session()?;
    for key in 1..=args.keys {
        session.insert(&key, value_of(key, 0))?;
    }
    instance.drain()?;
    println!("writing");
    let mut rng = SmallRng::seed_from_u64(1);
    for version in 1.. {
        let key = rng.random_range(1..=args.keys);
        session.upsert(&key, value_of(key, version))?;
    }
    Ok(())
}

fn measure(contender: &dyn Contender, scratch: &Scratch, keys: u64, rng: &mut SmallRng) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..KILLS {
        let site = site(scratch, "recovery", keys, 1, None)?;
        let mut command = Command::new(std::env::current_exe().context("finding this program")?);
        command.args(["bench-child", CHILD, "--tree", contender.tree(), "--tm", contender.tm()]);
        command.arg("--dir").arg(&site.dir).args(["--keys", &keys.to_string()]);
        let child = TellingChild::start(&mut command)?;
        let said = child.line()?;
        ensure!(said == "writing", "the child said {said:?} instead of writing");
        std::thread::sleep(Duration::from_millis(rng.random_range(50..250)));
        child.process.kill()?;
        let began = Instant::now();
        let instance = contender.reopen(&site).context("opening after SIGKILL")?;
        let mut session = instance.map().session()?;
        let first = session.get(&1)?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
        ensure!(goes_with(1, first), "after SIGKILL the first key has the value {first:?}");
        for key in (1..=keys).step_by((keys / CHECKED).max(1) as usize) {
            let found = session.get(&key)?;
            ensure!(goes_with(key, found), "after SIGKILL key {key} has the value {found:?}");
        }
        drop(session);
        drop(instance);
        std::fs::remove_dir_all(&site.dir).with_context(|| format!("{}: removing", site.dir.display()))?;
    }
    median(times).context("no opening")
}

/// Every contender that recovers, every size.
pub fn run(
    all: &[Box<dyn Contender>],
    scratch: &Scratch,
    sizes: &[u64],
    progress: &mut Progress,
    broken: &mut Vec<String>,
) -> Vec<RecoveryPoint> {
    progress.section("recovery");
    let mut rng = SmallRng::seed_from_u64(1);
    let mut points = Vec::new();
    for contender in all.iter().filter(|c| c.recovers() && c.missing().is_none()) {
        for keys in sizes {
            let (tree, tm) = (contender.tree(), contender.tm());
            progress.step(&format!("{tree} ({tm}), {keys} keys"));
            match measure(&**contender, scratch, *keys, &mut rng) {
                Ok(first_answer_ms) => {
                    points.push(RecoveryPoint { tree: tree.into(), tm: tm.into(), keys: *keys, first_answer_ms });
                }
                Err(e) => {
                    eprintln!("recovery of {tree} ({tm}), {keys} keys: {e:#}");
                    broken.push(format!("recovery of {tree} ({tm}), {keys} keys: {e:#}"));
                }
            }
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_child_refuses_what_it_does_not_know() {
        let args = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        assert!(child_main(&args(&["--tree", "oak"])).is_err());
        let why = child_main(&args(&["--tree", "oak", "--tm", "stm", "--dir", "/proc/nonexistent", "--keys", "1"])).unwrap_err();
        assert!(why.to_string().contains("oak"), "{why}");
    }
}
