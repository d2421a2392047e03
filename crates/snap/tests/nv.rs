//! Programs in mode `nv`: what their memory is, whatever is done to them; and what a restart makes of it.
//!
//! TOWA_SNAP_MOMENTS sets the number of random moments (4), TOWA_SEED repeats one run of them.

mod places;
mod support;

use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use places::Place;
use rand::prelude::*;
use support::compile;
use towa_snap::Error;
use towa_snap::nv;
use towa_snap::restart::Options;
use towa_snap::store::{Store, Which};
use towa_snap::take::Target;

fn given(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// XFS, or a loud word that there is none.
fn xfs(megabytes: u64) -> Option<Place> {
    let place = Place::xfs_of(megabytes);
    if place.is_none() {
        eprintln!("SKIPPED: no XFS could be mounted, and mode nv needs one");
    }
    place
}

/// Restarts in a process of its own, as the tool does; `TOWA_TEST_RESTART` names the store, `TOWA_TEST_NV` says whether in mode nv.
#[test]
fn restarter() {
    let Ok(dir) = std::env::var("TOWA_TEST_RESTART") else { return };
    let which = std::env::var("TOWA_TEST_NUMBER").map_or(Which::Newest, |number| Which::Number(number.parse().unwrap()));
    let checkpoint = Store::open(dir).unwrap().open_checkpoint(which).unwrap();
    let began = Instant::now();
    let options = Options { files: towa_snap::restart::Files::Rewind, nv: given("TOWA_TEST_NV", 0) == 1, ..Options::default() };
    let restarted = towa_snap::restart::restart(&checkpoint, &options).unwrap_or_else(|e| panic!("{e}"));
    eprintln!("restarted in {:.2} ms", began.elapsed().as_secs_f64() * 1e3);
    let mut status = 0;
    // SAFETY: our own child.
    unsafe { libc::waitpid(restarted.pid, &raw mut status, 0) };
    let status = ExitStatus::from_raw(status);
    std::process::exit(status.code().unwrap_or_else(|| 100 + status.signal().unwrap_or(0)));
}

fn restart_command(store: &Store, nv: bool) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "restarter", "--nocapture", "--test-threads", "1"]);
    command.env("TOWA_TEST_RESTART", store.dir()).env("TOWA_TEST_NV", u8::from(nv).to_string()).stdin(Stdio::null());
    command
}

/// The tool in a process of its own, to be killed: `TOWA_TEST_TOOL` names the store, `TOWA_TEST_WORDS` the program.
#[test]
fn tool() {
    let (Ok(dir), Ok(words)) = (std::env::var("TOWA_TEST_TOOL"), std::env::var("TOWA_TEST_WORDS")) else { return };
    let store = Store::open_or_create(dir).unwrap();
    let words: Vec<&str> = words.split(' ').collect();
    let mut command = command(&words);
    let (mut child, nv) = nv::spawn(&mut command, &store).unwrap();
    println!("child {}", child.id());
    let mut target = Target::open_nv(child.id() as i32, nv).unwrap();
    let mut ended = || known(child.try_wait()).is_none_or(|status| status.is_some());
    while !ended() {
        // Of one that has just ended there is none.
        let taken = target.take(&store);
        assert!(taken.is_ok() || ended(), "{}", taken.unwrap_err());
        store.keep(3).unwrap();
    }
    std::process::exit(known(child.wait()).unwrap_or_default().code().unwrap_or(99));
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null());
    // SAFETY: one call of the system, with numbers.
    unsafe {
        command.pre_exec(|| {
            libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC as i32);
            Ok(())
        });
    }
    command
}

/// A program in mode nv; killed when dropped.
struct Running {
    child: Child,
    target: Target,
    out: BufReader<std::io::PipeReader>,
}

impl Running {
    fn start(words: &[&str], store: &Store) -> Running {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut command = command(words);
        command.stdout(OwnedFd::from(writer));
        let (child, nv) = nv::spawn(&mut command, store).unwrap();
        drop(command);
        let target = Target::open_nv(child.id() as i32, nv).unwrap();
        Running { child, target, out: BufReader::new(reader) }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// What it says until it ends, and how it ends if that is known.
    fn end(&mut self) -> (String, ExitStatus) {
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).unwrap();
        (rest, known(self.child.wait()).unwrap_or_default())
    }

    fn ended(&mut self) -> bool {
        known(self.child.try_wait()).is_none_or(|status| status.is_some())
    }
}

/// How a child ended; `None` if it did while it was being stopped, when this process, which is its parent, too, was told as its tracer.
fn known<T>(waited: std::io::Result<T>) -> Option<T> {
    match waited {
        Err(e) if e.raw_os_error() == Some(libc::ECHILD) => None,
        other => Some(other.unwrap()),
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the program says at the end, undisturbed, and how long it takes.
fn undisturbed(words: &[&str]) -> (String, Duration) {
    let began = Instant::now();
    let output = command(words).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}");
    (said.lines().last().unwrap().to_owned(), began.elapsed())
}

fn program(name: &str) -> Option<(tempfile::TempDir, PathBuf)> {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(name, dir.path(), &[])?;
    Some((dir, program))
}

#[test]
fn memory_of_every_kind_is_what_it_was() {
    let (Some(place), Some((_dir, program))) = (xfs(320), program("nv")) else { return };
    let words = [program.to_str().unwrap(), "5000", "4"];
    let (expected, _) = undisturbed(&words);
    let store = Store::open_or_create(place.dir()).unwrap();
    let mut running = Running::start(&words, &store);
    assert_eq!(running.line(), "ready");
    let mut count = 0;
    while !running.ended() {
        match running.target.take(&store) {
            Ok(taken) => {
                count += 1;
                if count % 10 == 1 {
                    println!("{taken:?}");
                }
                store.keep(2).unwrap();
            }
            // Its first thread has; the others may take a moment.
            Err(Error::Gone { .. }) => break,
            Err(_) if running.ended() => {}
            Err(e) => panic!("checkpoint {}: {e}", count + 1),
        }
    }
    let (said, status) = running.end();
    assert!(status.success() && said.trim_end() == expected, "{status}: {said}");
    assert!(count > 5, "only {count} checkpoints");
    println!("{count} checkpoints");
    let newest = store.open_checkpoint(Which::Newest).unwrap();
    newest.verify(|_, _| ()).unwrap();
    assert!(newest.pages_without_sums() > 1000 && newest.pages().count() - newest.pages_without_sums() < 1000);
    let listed = store.list().unwrap();
    assert!(listed.iter().all(|line| line.damaged.is_none() && line.bytes_own + line.bytes_shared > 4 << 20), "{listed:?}");
    store.merge_beyond(towa_snap::store::Limits { packs: 2, extents: 1 }).unwrap();
    for number in store.numbers().unwrap() {
        store.remove(number).unwrap();
    }
}

/// Kills and restarts at random moments; `results` compares what the run made in its directory, or what it said.
fn survives(place: &Place, words: &[&str], takes: Duration, prepare: impl Fn(&Path), right: impl Fn(&Path, &str)) {
    let seed = given("TOWA_SEED", 1);
    let mut rng = SmallRng::seed_from_u64(seed);
    let (mut restarted, mut too_late) = (0, 0);
    let moments = given("TOWA_SNAP_MOMENTS", 4);
    while restarted < moments {
        assert!(too_late < 5 * moments, "it ends before it can be checkpointed");
        let dir = tempfile::tempdir_in(place.mount_point()).unwrap();
        prepare(dir.path());
        let store = Store::open_or_create(dir.path().join("store")).unwrap();
        let mut running = Running::start(words, &store);
        // Earlier each time that it was too late: a busy machine takes longer for the checkpoint, too.
        std::thread::sleep(takes.mul_f64(rng.random_range(0.05..0.8) * 0.8f64.powi(too_late as i32)));
        let taken = (0..rng.random_range(1..4)).try_for_each(|_| {
            running.target.take(&store)?;
            std::thread::sleep(Duration::from_micros(rng.random_range(0..5000)));
            Ok::<_, Error>(())
        });
        if matches!(taken, Err(Error::Gone { .. })) || running.ended() {
            too_late += 1;
            continue;
        }
        taken.unwrap_or_else(|e| panic!("{words:?}, TOWA_SEED={seed}, moment {restarted}: {e}"));
        std::thread::sleep(Duration::from_micros(rng.random_range(0..20_000)));
        drop(running);
        // In turn: mapped, and read.
        let nv = restarted % 2 == 0;
        let number = *store.numbers().unwrap().choose(&mut rng).unwrap();
        let again = restart_command(&store, nv).env("TOWA_TEST_NUMBER", number.to_string()).output().unwrap();
        let (said, told) = (String::from_utf8_lossy(&again.stdout), String::from_utf8_lossy(&again.stderr));
        assert!(again.status.success(), "{words:?}, TOWA_SEED={seed}, moment {restarted}, nv {nv}: {}: {said}{told}", again.status);
        right(dir.path(), &said);
        restarted += 1;
    }
}

#[test]
fn it_goes_on_from_any_moment() {
    let (Some(place), Some((_dir, program))) = (xfs(320), program("nv")) else { return };
    let words = [program.to_str().unwrap(), "1200", "4"];
    let (expected, takes) = undisturbed(&words);
    survives(
        &place,
        &words,
        takes,
        |_| (),
        |_, said| assert!(said.lines().any(|line| line.ends_with(&expected)), "{expected}: {said}"),
    );
}

#[test]
fn python_goes_on() {
    let Some(place) = xfs(320) else { return };
    let code = "import os,random,hashlib\nrandom.seed(1)\nd={}\nh=hashlib.sha256()\nfor i in range(300000):\n  k=random.randrange(50000)\n  \
                d[k]=d.get(k,0)+i\n  if i%1000==0: h.update(repr((i,len(d),sum(list(d.values())[:100]))).encode())\nprint(h.hexdigest(),flush=True)\nos._exit(0)";
    let words = ["/usr/bin/python3", "-c", code];
    if command(&words[..1]).arg("--version").output().is_err() {
        eprintln!("SKIPPED: no python3");
        return;
    }
    let (expected, takes) = undisturbed(&words);
    survives(
        &place,
        &words,
        takes,
        |_| (),
        |_, said| assert!(said.lines().any(|line| line.ends_with(&expected)), "{expected}: {said}"),
    );
}

#[test]
fn sqlite_goes_on() {
    let Some(place) = xfs(320) else { return };
    if Command::new("sqlite3").arg("--version").output().is_err() {
        eprintln!("SKIPPED: no sqlite3");
        return;
    }
    let sql = "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT); \
               WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 150000) INSERT INTO t SELECT x, hex(x * 7919 % 1000003) FROM c; \
               CREATE INDEX i ON t (b); UPDATE t SET b = b || a WHERE a % 3 = 0; SELECT count(*), sum(length(b)), max(b) FROM t;";
    let data = place.mount_point().join("data");
    let words = ["sqlite3", "-batch", data.to_str().unwrap(), sql];
    let (expected, takes) = undisturbed(&words);
    let content = std::fs::read(&data).unwrap();
    let prepare = |_: &Path| {
        for name in ["data", "data-journal"] {
            let _ = std::fs::remove_file(place.mount_point().join(name));
        }
    };
    prepare(&data);
    survives(&place, &words, takes, prepare, |_, said| {
        assert!(said.lines().any(|line| line.ends_with(&expected)), "{expected}: {said}");
        assert!(std::fs::read(&data).unwrap() == content, "the file is another");
    });
}

#[test]
fn calls_are_as_described() {
    let (Some(place), Some((dir, program))) = (xfs(320), program("nvcalls")) else { return };
    let file = dir.path().join("go-on");
    let store = Store::open_or_create(place.dir()).unwrap();
    let mut running = Running::start(&[program.to_str().unwrap(), file.to_str().unwrap()], &store);
    assert_eq!(running.line(), "ready");
    running.target.take(&store).unwrap();
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", running.child.id())).unwrap().count();
    assert_eq!(descriptors, 3, "it has more descriptors than before");
    std::fs::write(&file, "").unwrap();
    let (said, status) = running.end();
    assert!(status.success() && said.ends_with("as described\n"), "{status}: {said}");
    // The same of a process that was restarted in that mode.
    let again = restart_command(&store, true).output().unwrap();
    let said = String::from_utf8_lossy(&again.stdout).into_owned() + &String::from_utf8_lossy(&again.stderr);
    assert!(again.status.success() && said.contains("as described"), "{}: {said}", again.status);
}

#[test]
fn other_file_systems_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open_or_create(dir.path().join("store")).unwrap();
    if store.mode() == towa_snap::store::Mode::Reflink {
        eprintln!("SKIPPED: files can be cloned in the directory for temporary files");
        return;
    }
    let refused = nv::spawn(&mut Command::new("true"), &store).map(|_| ()).unwrap_err();
    assert!(refused.to_string().contains("does not clone files"), "{refused}");
}

#[test]
fn a_full_file_system_stops_checkpoints_and_not_the_program() {
    let Some((_dir, program)) = program("nv") else { return };
    // On a slow machine it may end before all has been tried: it works longer, then.
    let seen = ["1500", "12000"].into_iter().any(|rounds| {
        let Some(place) = xfs(320) else { return true };
        a_full_file_system(&place, &[program.to_str().unwrap(), rounds, "8"])
    });
    assert!(seen, "it ends before it can be checkpointed");
}

/// Whether it ran long enough to see that.
fn a_full_file_system(place: &Place, words: &[&str]) -> bool {
    let (expected, _) = undisturbed(words);
    let store = Store::open_or_create(place.dir()).unwrap();
    let filler = place.mount_point().join("filler");
    let file = std::fs::File::create(&filler).unwrap();
    let fill = |leave: u64| {
        // Not removed: the space of a file without a name comes back some time later.
        file.set_len(0).unwrap();
        let wanted = free_in(&place.mount_point()).saturating_sub(leave);
        // SAFETY: numbers only.
        assert_eq!(unsafe { libc::posix_fallocate(std::os::fd::AsRawFd::as_raw_fd(&file), 0, wanted as i64) }, 0);
    };
    fill(12 << 20);
    let mut running = Running::start(words, &store);
    assert_eq!(running.line(), "ready");
    // Its threads have filled their memory: more than there is room for.
    while !running.ended() && resident(running.child.id()) < 20 << 20 {
        std::thread::sleep(Duration::from_millis(1));
    }
    // While memory is adopted, and (with room for the pool, but not for writing it anew) before a checkpoint.
    let mut refused = 0;
    for leave in [12u64, 30, 20] {
        fill(leave << 20);
        match running.target.take(&store) {
            Err(Error::Full { .. }) => refused += 1,
            Err(Error::Gone { .. }) => return false,
            other => panic!("{leave} MB: {other:?}"),
        }
    }
    assert_eq!((refused, store.numbers().unwrap().len()), (3, 0));
    file.set_len(0).unwrap();
    match running.target.take(&store) {
        Err(Error::Gone { .. }) => return false,
        taken => drop(taken.unwrap()),
    }
    let (said, status) = running.end();
    assert!(status.success() && said.trim_end() == expected, "{status}: {said}");
    store.open_checkpoint(Which::Newest).unwrap().verify(|_, _| ()).unwrap();
    true
}

/// What a failed sync has lost of its memory, a later clone would not have either, and would not say so.
#[test]
fn a_program_whose_memory_was_not_written_has_no_later_checkpoint() {
    let (Some(place), Some((_dir, program))) = (xfs(320), program("nv")) else { return };
    let words = [program.to_str().unwrap(), "3000", "2"];
    let (expected, _) = undisturbed(&words);
    let store = Store::open_or_create(place.dir()).unwrap();
    let mut running = Running::start(&words, &store);
    assert_eq!(running.line(), "ready");
    running.target.take(&store).unwrap();
    // One sync after the other, until it is that of the memory: the first ones are of the directory of checkpoints.
    let is_of_memory = |n| {
        let device = towa_media::files::failing::install(&place.mount_point(), 1);
        device.plan(Some(n), None);
        let failed = running.target.take(&store).unwrap_err();
        assert!(matches!(failed, Error::Io { .. }) && device.failures() == 1, "{failed}");
        failed.to_string().contains("the memory of the process")
    };
    assert!((1..4).any(is_of_memory));
    let refused = running.target.take(&store).unwrap_err().to_string();
    assert!(refused.contains("failed before") && refused.contains("newest checkpoint"), "{refused}");
    let (said, status) = running.end();
    assert!(status.success() && said.trim_end() == expected, "{status}: {said}");
    assert_eq!(store.numbers().unwrap(), [1]);
}

/// Bytes of a process that are in memory.
fn resident(pid: u32) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).map_or(0, |pages| pages * 4096)
}

fn free_in(path: &Path) -> u64 {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a live struct and a NUL-terminated name.
    unsafe {
        let mut status: libc::statvfs = std::mem::zeroed();
        assert_eq!(libc::statvfs(path.as_ptr(), &raw mut status), 0);
        status.f_bavail * status.f_frsize
    }
}

#[test]
fn the_program_goes_on_when_the_tool_is_killed() {
    let (Some(place), Some((_dir, program))) = (xfs(640), program("nv")) else { return };
    let words = format!("{} 900 4", program.display());
    let (expected, takes) = undisturbed(&words.split(' ').collect::<Vec<_>>());
    let seed = given("TOWA_SEED", 1);
    let mut rng = SmallRng::seed_from_u64(seed);
    let (mut killed, mut restarted) = (0, 0);
    // A program whose tool was killed becomes a child of this process, so that its end can be waited for.
    // SAFETY: numbers only.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
    let (mut moment, moments) = (0, given("TOWA_SNAP_MOMENTS", 4));
    // More of them, should no checkpoint have been made in time.
    while moment < moments || restarted == 0 && moment < 6 * moments {
        let store = place.mount_point().join(format!("store-{moment}"));
        let (reader, writer) = std::io::pipe().unwrap();
        let mut tool = Command::new(std::env::current_exe().unwrap());
        tool.args(["--exact", "tool", "--nocapture", "--test-threads", "1"]);
        tool.env("TOWA_TEST_TOOL", &store).env("TOWA_TEST_WORDS", &words).stdin(Stdio::null()).stdout(OwnedFd::from(writer));
        let mut child = tool.spawn().unwrap();
        drop(tool);
        let mut out = BufReader::new(reader);
        let mut lines = String::new();
        while !lines.contains("ready") {
            assert!(out.read_line(&mut lines).unwrap() > 0, "{lines}");
        }
        // Much happens at the beginning: half of the moments are there.
        let most = if moment % 2 == 0 { 0.1 } else { 1.0 };
        std::thread::sleep(takes.mul_f64(rng.random_range(0.0..most)));
        child.kill().unwrap();
        child.wait().unwrap();
        // The program has the other end of the pipe until it ends, of itself.
        out.read_to_string(&mut lines).unwrap();
        assert!(lines.lines().any(|line| line == expected), "TOWA_SEED={seed}, moment {moment}: {lines}");
        killed += 1;
        let pid: i32 = lines.split("child ").nth(1).unwrap().lines().next().unwrap().parse().unwrap();
        // SAFETY: a child, and no status.
        let waited = unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
        // None any more where it ended before its tool, which heard of that.
        let heard = waited == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD);
        assert!(waited == pid || heard, "{waited}");
        let store = Store::open(&store).unwrap();
        if !store.numbers().unwrap().is_empty() {
            let again = restart_command(&store, moment % 2 == 1).output().unwrap();
            let said = String::from_utf8_lossy(&again.stdout).into_owned() + &String::from_utf8_lossy(&again.stderr);
            assert!(
                again.status.success() && said.contains(&expected),
                "TOWA_SEED={seed}, moment {moment}: {}: {said}",
                again.status
            );
            restarted += 1;
        }
        std::fs::remove_dir_all(store.dir()).unwrap();
        moment += 1;
    }
    println!("the tool was killed {killed} times, {restarted} times there was a checkpoint to restart from");
    assert!(restarted > 0);
}

/// Prints how long programs stand still in either mode, and how long restarts take.
#[test]
fn pauses() {
    if given("TOWA_MEASURE", 0) == 0 {
        eprintln!("SKIPPED: a measurement of a minute (TOWA_MEASURE=1 cargo test -p towa-snap --test nv pauses -- --nocapture)");
        return;
    }
    let (Some(place), Some((_dir, program))) = (xfs(4096), program("nv")) else { return };
    for (megabytes, rest) in [(64u64, "20000"), (256, "20000"), (64, "0")] {
        let words = [program.to_str().unwrap(), "1000000", &(megabytes / 3).to_string(), rest];
        for in_pool in [true, false] {
            let store = Store::open_or_create(place.mount_point().join(format!("{megabytes}-{rest}-{in_pool}"))).unwrap();
            let mut pauses = Vec::new();
            let mut take = |target: &mut Target| {
                for _ in 0..12 {
                    pauses.push(target.take(&store).unwrap().pause.as_secs_f64() * 1e3);
                    store.keep(1).unwrap();
                    std::thread::sleep(Duration::from_millis(20));
                }
            };
            let mode = if in_pool { "nv" } else { "dram" };
            let pid = if in_pool {
                let mut running = Running::start(&words, &store);
                assert_eq!(running.line(), "ready");
                std::thread::sleep(Duration::from_millis(500));
                take(&mut running.target);
                running.child.id()
            } else {
                let running = support::Running::start(&program, &words[1..]);
                std::thread::sleep(Duration::from_millis(500));
                take(&mut Target::open(running.pid(), None).unwrap());
                running.pid() as u32
            };
            let first = pauses.remove(0);
            pauses.sort_by(f64::total_cmp);
            let (median, longest) = (pauses[pauses.len() / 2], pauses[pauses.len() - 1]);
            let changing = if rest == "0" { "all of it changing" } else { "1 % changing each 20 ms" };
            println!(
                "{megabytes} MB, {changing}, {mode}: first pause {first:.2} ms, then median {median:.2}, longest {longest:.2} ms"
            );
            let mut again = restart_command(&store, in_pool).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
            let mut line = String::new();
            BufReader::new(again.stderr.take().unwrap()).read_line(&mut line).unwrap();
            println!("{megabytes} MB, {mode}: {}", line.trim_end());
            // SAFETY: a number; the program that was started again.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
            again.wait().unwrap();
        }
    }
}
