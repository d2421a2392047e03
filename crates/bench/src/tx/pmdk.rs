//! The peer: libpmemobj's example `btree_map`, from the Debian package `libpmemobj-dev`, as a program of its own.
//!
//! ```text
//!   package     /usr/share/doc/libpmemobj-dev/examples/tree_map/btree_map.c     read there, never copied
//!   ours        pmdk_driver.c                                                    built by gcc when the benchmark runs
//!   one run     keys as a file ──► driver, pool on the same tmpfs ──► seconds of each phase as JSON
//! ```
//!
//! What must hold: where the package or gcc is absent the peer is absent, with its reason, and nothing fails; it flushes by CLWB as on
//! durable memory (`PMEM_IS_PMEM_FORCE=1`), as the `ram` medium does; its pool is touched before the clock starts.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use towa_media::NvmModel;

use super::contenders::PMDK_BTREE;
use super::load::{Measured, Phase, Work};
use super::sides::Side;
use crate::cleanup::{Running, Scratch};

/// Where the package puts the example.
const SOURCE: &str = "/usr/share/doc/libpmemobj-dev/examples/tree_map/btree_map.c";
/// What programs with libpmemobj include.
const HEADER: &str = "/usr/include/libpmemobj.h";
/// How to get it.
const ADVICE: &str = "apt-get install gcc libpmemobj-dev";
/// Pool bytes set aside for a key: a node of the example has 304 bytes for 3 to 7 keys, in classes of the allocator.
const BYTES_PER_KEY: u64 = 160;
/// Pool bytes for everything else.
const FLOOR: u64 = 256 << 20;

/// The built driver.
#[derive(Debug)]
pub struct Pmdk {
    program: PathBuf,
}

impl Pmdk {
    /// Builds the driver in `scratch`, or says why there is none.
    pub fn build(scratch: &Scratch) -> Result<Self, String> {
        for needed in [SOURCE, HEADER] {
            if !Path::new(needed).is_file() {
                return Err(format!("skipped: {needed} not found ({ADVICE})"));
            }
        }
        let dir = scratch.path();
        let (source, program) = (dir.join("pmdk_driver.c"), dir.join("pmdk_driver"));
        std::fs::write(&source, include_str!("pmdk_driver.c")).map_err(|e| format!("skipped: {}: {e}", source.display()))?;
        let include = Path::new(SOURCE).parent().unwrap_or(Path::new("/"));
        let built = Command::new("gcc")
            .args(["-std=gnu11", "-O2", "-w"])
            .arg(format!("-DBTREE_MAP_SOURCE=\"{SOURCE}\""))
            .arg("-I")
            .arg(include)
            .arg(&source)
            .arg("-o")
            .arg(&program)
            .args(["-lpmemobj", "-lpthread"])
            .stdin(Stdio::null())
            .output();
        match built {
            Ok(out) if out.status.success() => Ok(Self { program }),
            Ok(out) => Err(format!("skipped: gcc could not build the driver: {}", String::from_utf8_lossy(&out.stderr).trim())),
            Err(e) => Err(format!("skipped: gcc cannot be started: {e} ({ADVICE})")),
        }
    }
}

/// Kind, operations and keys of a phase as the driver reads them; `None`: the example cannot do it (no upsert, no bounded scan).
fn phase_keys(phase: Phase, work: &Work) -> Option<(u64, Vec<u64>)> {
    Some(match phase {
        Phase::Insert => (0, work.first.clone()),
        Phase::InsertMore => (0, work.more.clone()),
        Phase::Lookup => (1, work.uniform.clone()),
        Phase::LookupZipfian => (1, work.zipfian.clone()),
        Phase::Mixed => (2, work.fresh.iter().zip(&work.uniform).flat_map(|(new, there)| [*new, *there]).collect()),
        Phase::Scan | Phase::MixedZipfian => return None,
    })
}

fn write_keys(file: &Path, phases: &[(Phase, u64, Vec<u64>)]) -> Result<()> {
    let out = std::fs::File::create(file)?;
    let mut out = std::io::BufWriter::new(out);
    out.write_all(&(phases.len() as u64).to_ne_bytes())?;
    for (_, kind, keys) in phases {
        for word in [*kind, keys.len() as u64].iter().chain(keys) {
            out.write_all(&word.to_ne_bytes())?;
        }
    }
    out.flush()?;
    Ok(())
}

impl Side for Pmdk {
    fn label(&self) -> (&'static str, &'static str) {
        (PMDK_BTREE, "lock")
    }

    fn fits(&self, _threads: usize) -> bool {
        true
    }

    fn run(
        &self,
        scratch: &Scratch,
        work: &Work,
        phases: &[Phase],
        threads: usize,
        model: Option<NvmModel>,
    ) -> Result<Vec<Measured>> {
        ensure!(model.is_none(), "a program of its own cannot be slowed down like our media");
        let dir = scratch.fresh("pmdk")?;
        let keys = dir.join("keys");
        let known: Vec<_> = phases.iter().filter_map(|p| phase_keys(*p, work).map(|(kind, keys)| (*p, kind, keys))).collect();
        write_keys(&keys, &known).with_context(|| format!("{}: writing", keys.display()))?;
        let bytes = FLOOR + work.keys() * BYTES_PER_KEY;
        let mut command = Command::new(&self.program);
        command.arg(dir.join("pool")).arg(bytes.to_string()).arg(&keys).arg(threads.to_string());
        command.env("PMEM_IS_PMEM_FORCE", "1").env("PMEMOBJ_CONF", "prefault.at_create=1");
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = Running::spawn(&mut command)?;
        let mut said = String::new();
        let mut stdout = process.child().stdout.take().context("the driver has no output")?;
        std::io::Read::read_to_string(&mut stdout, &mut said)?;
        let status = process.child().wait()?;
        let _ = std::fs::remove_dir_all(&dir);
        if !status.success() {
            bail!("its driver ended with {status}; see its message above");
        }
        let seconds: Vec<f64> = serde_json::from_str(&said).with_context(|| format!("its driver said {said:?}"))?;
        ensure!(seconds.len() == known.len(), "its driver told {} of {} phases", seconds.len(), known.len());
        let measured = |((phase, _, keys), seconds): (&(Phase, u64, Vec<u64>), &f64)| Measured {
            phase: *phase,
            ops: keys.len() as u64,
            elapsed: Duration::from_secs_f64(*seconds),
            used: None,
            lost: None,
        };
        Ok(known.iter().zip(&seconds).map(measured).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_built_and_run_where_it_is_installed() {
        let scratch = Scratch::within(&std::env::temp_dir()).unwrap();
        let pmdk = match Pmdk::build(&scratch) {
            Ok(pmdk) => pmdk,
            Err(why) => {
                assert!(why.contains("apt-get install") || why.contains("gcc"), "{why}");
                println!("SKIP: {PMDK_BTREE}: {why}");
                return;
            }
        };
        let work = Work::new(1001, 3);
        for threads in [1, 3] {
            let measured = pmdk.run(&scratch, &work, &Phase::ALL, threads, None).unwrap();
            assert_eq!(measured.len(), 5);
            assert!(measured.iter().all(|m| m.ops >= 1000 && m.mops() > 0.001), "{measured:?}");
        }
        // A key that was never inserted is missed.
        let mut work = Work::new(100, 3);
        work.uniform[7] = 999_999;
        pmdk.run(&scratch, &work, &Phase::ALL, 1, None).unwrap_err();
    }
}
