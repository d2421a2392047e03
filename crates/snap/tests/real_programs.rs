//! Programs that nobody here wrote, killed and started again from checkpoints taken at random moments: their output must be what it is
//! without that, to the byte.
//!
//! TOWA_SNAP_MOMENTS sets the number of moments (7), TOWA_SEED repeats one run of them.

mod places;
mod support;

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rand::prelude::*;
use towa_snap::store::Store;
use towa_snap::take::Target;

fn given(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Restarts in a process of its own, as the tool does; `TOWA_TEST_RESTART` names the store.
#[test]
fn restarter() {
    support::restart_as_asked();
}

/// A command line in a directory; its standard output goes to `out` there.
fn command(dir: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    let out = std::fs::File::create(dir.join("out")).unwrap();
    command.args(&words[1..]).current_dir(dir).stdin(Stdio::null()).stdout(out).stderr(Stdio::null());
    // SAFETY: one call of the system, with numbers.
    unsafe {
        command.pre_exec(|| {
            libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC as i32);
            Ok(())
        });
    }
    command
}

/// [`survives_in`] the directory for temporary files.
fn survives(words: &[&str], results: &[&str], prepare: impl Fn(&Path)) {
    survives_in(&std::env::temp_dir(), words, results, prepare);
}

/// Runs it once undisturbed, then kills and restarts it at random moments; `results` are the files it makes.
fn survives_in(root: &Path, words: &[&str], results: &[&str], prepare: impl Fn(&Path)) {
    if Command::new(words[0]).arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        eprintln!("SKIPPED: no {}", words[0]);
        return;
    }
    let whole = tempfile::tempdir_in(root).unwrap();
    prepare(whole.path());
    let began = Instant::now();
    assert!(command(whole.path(), words).status().unwrap().success());
    let takes = began.elapsed();
    let expected: Vec<Vec<u8>> = results.iter().map(|name| std::fs::read(whole.path().join(name)).unwrap()).collect();

    let seed = given("TOWA_SEED", 1);
    let mut rng = SmallRng::seed_from_u64(seed);
    let (mut restarted, mut ended) = (0, 0);
    for moment in 0..given("TOWA_SNAP_MOMENTS", 7) {
        let dir = tempfile::tempdir_in(root).unwrap();
        prepare(dir.path());
        let store = Store::open_or_create(dir.path().join("store")).unwrap();
        let mut child = command(dir.path(), words).spawn().unwrap();
        std::thread::sleep(takes.mul_f64(rng.random_range(0.02..0.9)));
        // A checkpoint or several, the last of which counts.
        let taken = Target::open(child.id() as i32, None).and_then(|mut target| {
            for _ in 0..rng.random_range(1..4) {
                target.take(&store)?;
                std::thread::sleep(Duration::from_micros(rng.random_range(0..5000)));
            }
            Ok(())
        });
        // It may be ending when its parent does not hear of it yet.
        if matches!(taken, Err(towa_snap::Error::Gone { .. })) {
            child.wait().unwrap();
        }
        if child.try_wait().unwrap().is_some() {
            ended += 1;
            continue;
        }
        taken.unwrap_or_else(|e| panic!("{words:?}, TOWA_SEED={seed}, moment {moment}: {e}"));
        // It works on for a while after its checkpoint.
        std::thread::sleep(Duration::from_micros(rng.random_range(0..20_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "restarter", "--nocapture", "--test-threads", "1"]).env("TOWA_TEST_RESTART", store.dir());
        let status = again.stdout(Stdio::null()).status().unwrap();
        assert!(status.success(), "{words:?}, TOWA_SEED={seed}, moment {moment}: {status}");
        for (name, expected) in results.iter().zip(&expected) {
            let found = std::fs::read(dir.path().join(name)).unwrap();
            assert!(found == *expected, "{words:?}, TOWA_SEED={seed}, moment {moment}: {name} is another than without a restart");
        }
        restarted += 1;
    }
    println!("{words:?}: {restarted} restarts, {ended} ended before; {takes:?} undisturbed");
    assert!(restarted > ended, "{words:?}: only {restarted} restarts, {ended} ended too soon");
}

/// Something to compress, always the same.
fn text(dir: &Path) {
    let mut rng = SmallRng::seed_from_u64(7);
    let words: Vec<String> =
        (0..2000).map(|_| (0..rng.random_range(2..9)).map(|_| rng.random_range(b'a'..b'k') as char).collect()).collect();
    let mut text = String::new();
    while text.len() < 12 << 20 {
        text += words.choose(&mut rng).unwrap();
        text.push(' ');
    }
    std::fs::write(dir.join("text"), text).unwrap();
}

#[test]
fn gzip() {
    survives(&["gzip", "-n", "-c", "text"], &["out"], text);
}

#[test]
fn xz() {
    survives(&["xz", "-1", "-k", "text"], &["text.xz"], text);
}

#[test]
fn awk() {
    survives(
        &["awk", "BEGIN { for (i = 1; i < 3000000; i++) { x = (x * 31 + i) % 1000003; if (i % 1000 == 0) print x } }"],
        &["out"],
        |_| (),
    );
}

#[test]
fn python() {
    let program = "import random\nrandom.seed(1)\nd = {}\nfor i in range(600000):\n  k = random.randrange(50000)\n  d[k] = d.get(k, 0) + i\n  \
                   if i % 1000 == 0: print(i, len(d), sum(list(d.values())[:100]), flush=True)\n";
    survives(&["/usr/bin/python3", "-c", program], &["out"], |_| ());
}

#[test]
fn bc() {
    survives(&["bc", "-ql", "digits"], &["out"], |dir| std::fs::write(dir.join("digits"), "scale=2200\n4*a(1)\nquit\n").unwrap());
}

/// It writes its file in place: that takes a file system that clones files.
#[test]
fn sqlite() {
    let Some(place) = places::Place::xfs() else { return };
    let sql = "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT); \
               WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 150000) INSERT INTO t SELECT x, hex(x * 7919 % 1000003) FROM c; \
               CREATE INDEX i ON t (b); UPDATE t SET b = b || a WHERE a % 3 = 0; SELECT count(*), sum(length(b)), max(b) FROM t;";
    survives_in(&place.mount_point(), &["sqlite3", "-batch", "data", sql], &["out", "data"], |_| ());
}
