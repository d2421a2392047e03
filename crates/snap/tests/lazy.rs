//! Programs that are restarted before their memory is there: they see what was in it and nothing else, whoever is killed meanwhile.
//!
//! TOWA_SNAP_KILLS sets how often the restarter is killed (12), TOWA_SEED repeats one run of that.

mod support;

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rand::prelude::*;
use support::{Running, compile};
use towa_snap::Error;
use towa_snap::restart::{How, Options};
use towa_snap::store::{Store, Which};
use towa_snap::take::Target;

const PAGE: u64 = 4096;
const PATIENCE: Duration = Duration::from_secs(30);

/// Restarts lazily in a process of its own, as the tool does; `TOWA_TEST_RESTART` names the store. Fills the rest of the memory when the
/// file of `TOWA_TEST_FILL` is there.
#[test]
fn restarter() {
    let Ok(dir) = std::env::var("TOWA_TEST_RESTART") else { return };
    let checkpoint = Store::open(dir).unwrap().open_checkpoint(Which::Newest).unwrap();
    let options = Options { files: towa_snap::restart::Files::Rewind, memory: How::Lazy, ..Options::default() };
    let restarted = towa_snap::restart::restart(&checkpoint, &options).unwrap_or_else(|e| panic!("{e}"));
    drop(checkpoint);
    println!("\ntowa: {:?} {}", restarted.memory, restarted.first_instruction.as_micros());
    if let Some(paging) = restarted.paging {
        let fill = std::env::var("TOWA_TEST_FILL").map(PathBuf::from);
        while fill.as_ref().is_ok_and(|fill| !fill.exists()) && !has_ended(restarted.pid) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let filled = paging.wait().unwrap_or_else(|e| panic!("{e}"));
        println!("\ntowa: filled {} {} {}", filled.took.as_micros(), filled.report.faults, filled.report.poisoned_pages);
    }
    let mut status = 0;
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::waitpid(restarted.pid, &raw mut status, 0) }, restarted.pid, "its status is ours");
    std::process::exit(if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 100 + libc::WTERMSIG(status) });
}

fn has_ended(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
}

/// A lazy restart takes root.
fn can() -> bool {
    // SAFETY: it asks for a number.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        eprintln!("SKIPPED: a lazy restart takes root");
    }
    root
}

/// A restarter and what it prints.
struct Again {
    child: Child,
    out: BufReader<std::io::PipeReader>,
    seen: Vec<String>,
}

impl Again {
    /// `fill`: the file that lets the rest be filled; without it, that is done at once.
    fn start(store: &Store, fill: Option<&Path>) -> Again {
        Again::start_under(&[], store, fill)
    }

    fn start_under(before: &[&str], store: &Store, fill: Option<&Path>) -> Again {
        let (reader, writer) = std::io::pipe().unwrap();
        let me = std::env::current_exe().unwrap();
        let mut words: Vec<&std::ffi::OsStr> = before.iter().map(|word| word.as_ref()).collect();
        words.push(me.as_os_str());
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args(["--exact", "restarter", "--nocapture", "--test-threads", "1"]);
        command.env("TOWA_TEST_RESTART", store.dir()).stdin(Stdio::null()).stdout(OwnedFd::from(writer));
        if let Some(fill) = fill {
            command.env("TOWA_TEST_FILL", fill);
        }
        Again { child: command.spawn().unwrap(), out: BufReader::new(reader), seen: Vec::new() }
    }

    /// The next line that begins with `what`.
    fn line(&mut self, what: &str) -> String {
        loop {
            let mut line = String::new();
            if self.out.read_line(&mut line).unwrap() == 0 {
                panic!("no {what:?}: {:?} {:?}", self.seen, self.child.wait());
            }
            let line = line.trim_end().to_owned();
            self.seen.push(line.clone());
            if line.starts_with(what) {
                return line;
            }
        }
    }

    /// Microseconds until the program could run.
    fn is_lazy(&mut self) -> u64 {
        let line = self.line("towa: ");
        let micros = line.strip_prefix("towa: Lazy ").unwrap_or_else(|| panic!("{line}"));
        micros.parse().unwrap()
    }

    /// All that it says, and how it ends.
    fn end(mut self) -> (ExitStatus, Vec<String>) {
        self.seen.extend(self.out.lines().map(|line| line.unwrap()));
        (self.child.wait().unwrap(), self.seen)
    }

    fn must_be_kept(self) {
        let (status, seen) = self.end();
        assert!(status.success() && seen.iter().any(|line| line.ends_with("kept")), "{status}: {seen:?}");
    }
}

/// A checkpoint of `lazily`, which was killed since.
struct Kept {
    dir: tempfile::TempDir,
    store: Store,
    pid: i32,
    /// Where its memory is.
    memory: u64,
}

impl Kept {
    fn of(megabytes: u64, mode: &str) -> Option<Kept> {
        Kept::under(&[], megabytes, mode)
    }

    fn under(before: &[&str], megabytes: u64, mode: &str) -> Option<Kept> {
        if !can() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let program = compile("lazily", dir.path(), &[])?;
        let store = Store::open_or_create(dir.path().join("store")).unwrap();
        let mut words: Vec<&std::ffi::OsStr> = before.iter().map(|word| word.as_ref()).collect();
        words.push(program.as_os_str());
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args([&megabytes.to_string(), mode]).arg(dir.path());
        let mut target = Running::spawn(command);
        let ready = target.line();
        let memory = u64::from_str_radix(ready.strip_prefix("ready ").unwrap(), 16).unwrap();
        Target::open(target.pid(), None).unwrap().take(&store).unwrap();
        let pid = target.pid();
        Some(Kept { dir, store, pid, memory })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn go_on(&self) {
        std::fs::write(self.file("go-on"), "").unwrap();
    }

    /// Restarts it; nothing is filled but what is touched before [`Kept::fill`].
    fn held(&self) -> Again {
        Again::start(&self.store, Some(&self.file("fill")))
    }

    fn fill(&self) {
        std::fs::write(self.file("fill"), "").unwrap();
    }
}

/// Orphans come to this process, which can wait for them.
fn adopt() {
    // SAFETY: numbers only.
    unsafe { assert_eq!(libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1), 0) };
}

/// Waits for a process that came to us.
fn wait_for(pid: i32) -> i32 {
    let (mut status, began) = (0, Instant::now());
    loop {
        // SAFETY: a live status.
        match unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG | libc::__WALL) } {
            got if got == pid => return status,
            // Not ours yet, or it runs.
            _ if began.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(1)),
            other => panic!("process {pid} does not end ({other})"),
        }
    }
}

/// The keepers whose parent is `restarter`.
fn keeper_of(restarter: u32) -> Option<i32> {
    let children = std::fs::read_to_string(format!("/proc/{restarter}/task/{restarter}/children")).ok();
    let threads = std::fs::read_dir(format!("/proc/{restarter}/task")).ok()?;
    let children = threads.flatten().fold(children.unwrap_or_default(), |all, thread| {
        all + " " + &std::fs::read_to_string(thread.path().join("children")).unwrap_or_default()
    });
    children.split_whitespace().filter_map(|word| word.parse().ok()).find(|pid: &i32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "towa-keeper\n") && !has_ended(*pid)
    })
}

fn until<T>(what: &str, mut try_it: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = try_it() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn kill(pid: i32) {
    // SAFETY: numbers only.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// The word of page `page` at `at`, as the program has it.
fn word(page: u64, at: u64) -> u64 {
    page.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(at.wrapping_mul(0xbf58_476d_1ce4_e5b9)) | 1
}

#[test]
fn whatever_it_does_with_memory_that_is_not_there() {
    let Some(kept) = Kept::of(64, "all") else { return };
    kept.go_on();
    // Nothing but what it touches.
    let mut held = kept.held();
    held.is_lazy();
    held.line("kept");
    held.must_be_kept();
    // And while the rest is filled.
    for _ in 0..3 {
        let mut again = Again::start(&kept.store, None);
        again.is_lazy();
        again.must_be_kept();
    }
}

#[test]
fn programs_go_on() {
    if !can() {
        return;
    }
    for (name, args) in [("busy", "1.5"), ("keeps", "DIR/go-on"), ("uses", "DIR")] {
        for hold in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let Some(program) = compile(name, dir.path(), &[]) else { return };
            let store = Store::open_or_create(dir.path().join("store")).unwrap();
            {
                let target = Running::start(&program, &[&args.replace("DIR", dir.path().to_str().unwrap())]);
                std::thread::sleep(Duration::from_millis(300));
                Target::open(target.pid(), None).unwrap().take(&store).unwrap();
            }
            let fill = dir.path().join("fill");
            let mut again = Again::start(&store, hold.then_some(&fill));
            again.is_lazy();
            std::thread::sleep(Duration::from_millis(100));
            std::fs::write(dir.path().join("go-on"), "").unwrap();
            let (status, seen) = again.end();
            let good = |line: &String| line.ends_with("kept") || line.ends_with("undisturbed");
            assert!(status.success() && seen.iter().any(good), "{name}: {status}: {seen:?}");
        }
    }
}

/// Programs that nobody here wrote: their output is what it is without a restart.
#[test]
fn real_programs_go_on() {
    let python = "import random\nrandom.seed(1)\nd = {}\nfor i in range(300000):\n  k = random.randrange(50000)\n  d[k] = d.get(k, 0) + i\n  \
                  if i % 1000 == 0: print(i, len(d), sum(list(d.values())[:100]), flush=True)\n";
    let text: String = (0..900_000u32).map(|n| format!("{} ", n.wrapping_mul(2_654_435_761) >> 12)).collect();
    for words in [&["/usr/bin/python3", "-c", python][..], &["gzip", "-n", "-c", "text"]] {
        if !can() || Command::new(words[0]).arg("--version").stdout(Stdio::null()).status().is_err() {
            eprintln!("SKIPPED: no {}", words[0]);
            continue;
        }
        let run = |dir: &Path| {
            std::fs::write(dir.join("text"), &text).unwrap();
            let out = std::fs::File::create(dir.join("out")).unwrap();
            let mut command = Command::new(words[0]);
            command.args(&words[1..]).current_dir(dir).stdin(Stdio::null()).stdout(out).stderr(Stdio::null());
            // SAFETY: one call of the system, with numbers.
            unsafe {
                std::os::unix::process::CommandExt::pre_exec(&mut command, || {
                    libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC as i32);
                    Ok(())
                });
            }
            command.spawn().unwrap()
        };
        let whole = tempfile::tempdir().unwrap();
        let began = Instant::now();
        assert!(run(whole.path()).wait().unwrap().success());
        let takes = began.elapsed();
        let mut restarts = 0;
        // On a busy machine it may end before it is looked at: again, then.
        for attempt in 0..20 {
            if restarts == 3 {
                break;
            }
            let part = [0.1, 0.4, 0.6][attempt % 3];
            let dir = tempfile::tempdir().unwrap();
            let store = Store::open_or_create(dir.path().join("store")).unwrap();
            let mut child = run(dir.path());
            std::thread::sleep(takes.mul_f64(part));
            let taken = Target::open(child.id() as i32, None).and_then(|mut target| target.take(&store));
            // It may be ending when its parent does not hear of it yet.
            if matches!(taken, Err(towa_snap::Error::Gone { .. })) {
                child.wait().unwrap();
            }
            if child.try_wait().unwrap().is_some() {
                continue;
            }
            taken.unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
            let fill = dir.path().join("fill");
            let mut again = Again::start(&store, (restarts % 2 == 0).then_some(&fill));
            again.is_lazy();
            let (status, seen) = again.end();
            assert!(status.success(), "{}: {status} {seen:?}", words[0]);
            let out = |dir: &Path| std::fs::read(dir.join("out")).unwrap();
            assert!(out(dir.path()) == out(whole.path()), "{}: another output than without a restart", words[0]);
            restarts += 1;
        }
        assert!(restarts == 3, "{}: {restarts}", words[0]);
    }
}

/// What the program logged and wrote is right, however far it came.
fn nothing_wrong(kept: &Kept, pages: u64, how: &str) -> bool {
    let log = std::fs::read_to_string(kept.file("log")).unwrap();
    assert!(!log.contains("WRONG"), "{how}: {log}");
    let raw = std::fs::read(kept.file("raw")).unwrap();
    for (n, bytes) in raw.chunks(PAGE as usize).enumerate() {
        let page = n as u64 * 4 * 7919 % pages;
        for (at, eight) in bytes.chunks_exact(8).enumerate() {
            let there = u64::from_ne_bytes(eight.try_into().unwrap());
            assert!(there == word(page, at as u64), "{how}: step {n}, page {page}: {there:x}");
        }
    }
    log.ends_with("kept\n")
}

/// Nobody who has the program's memory is left.
fn nobody_runs(kept: &Kept, how: &str) {
    let program = kept.file("lazily");
    let runs = |pid: &i32| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program);
    until(how, || {
        let all = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        (!all.into_iter().any(|pid: i32| runs(&pid) && !has_ended(pid))).then_some(())
    });
}

#[test]
fn the_restarter_is_killed_at_any_moment() {
    const MEGABYTES: u64 = 64;
    let Some(kept) = Kept::of(MEGABYTES, "steps") else { return };
    adopt();
    kept.go_on();
    let given = |name: &str, otherwise: u64| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise);
    let seed = given("TOWA_SEED", 1);
    let mut rng = SmallRng::seed_from_u64(seed);
    let (mut cut_off, mut survived, mut progress) = (0, 0, 0);
    for round in 0..given("TOWA_SNAP_KILLS", 12) {
        let held = round % 3 != 0;
        let mut again = if held { kept.held() } else { Again::start(&kept.store, None) };
        again.is_lazy();
        std::thread::sleep(Duration::from_micros(rng.random_range(0..if held { 60_000 } else { 25_000 })));
        let how = format!("TOWA_SEED={seed}, round {round}");
        kill(again.child.id() as i32);
        again.child.wait().unwrap();
        let status = wait_for(kept.pid);
        if libc::WIFSIGNALED(status) {
            assert_eq!(libc::WTERMSIG(status), libc::SIGKILL, "{how}");
            nothing_wrong(&kept, MEGABYTES * 256, &how);
            // Children die with it; those of one that had everything go on to their end.
            nobody_runs(&kept, &how);
            cut_off += 1;
        } else {
            assert_eq!(status, 0, "{how}: {:?}", again.end().1);
            nobody_runs(&kept, &how);
            assert!(nothing_wrong(&kept, MEGABYTES * 256, &how), "{how}");
            survived += 1;
        }
        progress += std::fs::metadata(kept.file("raw")).unwrap().len() / PAGE;
    }
    println!("{cut_off} times it was killed with its restarter, {survived} times it had everything; {progress} pages written");
    assert!(cut_off >= 5 && progress > 0);
}

#[test]
fn another_keeper_takes_the_place_of_one_that_is_killed() {
    let Some(kept) = Kept::of(64, "steps") else { return };
    adopt();
    let replaced = (0..5).any(|_| {
        let mut again = kept.held();
        again.is_lazy();
        let first = until("a keeper", || keeper_of(again.child.id()));
        kill(first);
        kept.fill();
        // The next one is there for as long as it takes to fill the rest.
        let restarter = again.child.id();
        let mut next = None;
        while next.is_none() && !has_ended(restarter as i32) {
            next = keeper_of(restarter).filter(|keeper| *keeper != first);
            let filled = std::fs::read_to_string(format!("/proc/{}/smaps", kept.pid)).is_ok_and(|smaps| !smaps.contains(" um"));
            if filled && next.is_none() {
                break;
            }
        }
        kept.go_on();
        again.must_be_kept();
        assert!(nothing_wrong(&kept, 64 * 256, "keeper killed"));
        std::fs::remove_file(kept.file("go-on")).unwrap();
        std::fs::remove_file(kept.file("fill")).unwrap();
        next.is_some()
    });
    assert!(replaced);
}

/// What kept it dependent is gone when all is filled: neither the stub nor the death signal is left.
#[test]
fn it_depends_on_nobody_when_all_is_filled() {
    let Some(kept) = Kept::of(16, "steps") else { return };
    adopt();
    let mut again = Again::start(&kept.store, None);
    again.is_lazy();
    again.line("towa: filled");
    assert!(keeper_of(again.child.id()).is_none());
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", kept.pid)).unwrap();
    assert!(!maps.lines().any(|line| line.contains("r-xp 00000000 00:00 0") && !line.contains('[')), "{maps}");
    kill(again.child.id() as i32);
    again.child.wait().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert!(!has_ended(kept.pid));
    kept.go_on();
    assert_eq!(wait_for(kept.pid), 0);
    assert!(nothing_wrong(&kept, 16 * 256, "on its own"));
}

#[test]
fn a_damaged_page_is_no_page_of_zeros() {
    let Some(kept) = Kept::of(16, "bus") else { return };
    let page = kept.memory / PAGE + 1234;
    {
        let checkpoint = kept.store.open_checkpoint(Which::Newest).unwrap();
        let stretch = checkpoint.runs(page..page + 1).next().unwrap();
        let file = OpenOptions::new().write(true).open(format!("/proc/self/fd/{}", stretch.file.as_raw_fd())).unwrap();
        file.write_all_at(&[0; 100], stretch.offset + 500).unwrap();
    }
    kept.go_on();
    for held in [true, false] {
        let mut again = if held { kept.held() } else { Again::start(&kept.store, None) };
        again.is_lazy();
        assert_eq!(again.line("bus"), "bus 1");
        again.must_be_kept();
    }
}

#[test]
fn a_checkpoint_that_is_used_up_or_removed_meanwhile() {
    let Some(kept) = Kept::of(16, "look") else { return };
    let number = kept.store.open_checkpoint(Which::Newest).unwrap().number();
    let mut again = kept.held();
    again.is_lazy();
    kept.store.consume(number).unwrap();
    kept.store.merge().unwrap();
    kept.store.remove(number).unwrap();
    assert!(kept.store.numbers().unwrap().is_empty());
    kept.go_on();
    again.line("kept");
    again.must_be_kept();
}

#[test]
fn no_checkpoint_while_it_is_filled_and_no_second_restart() {
    let Some(kept) = Kept::of(16, "look") else { return };
    let mut again = kept.held();
    again.is_lazy();
    // Refused by name, and not touched.
    let refused = Target::open(kept.pid, None).unwrap().take(&kept.store).map(|taken| taken.number).unwrap_err();
    assert!(matches!(refused, Error::Refused { .. }), "{refused}");
    assert!(refused.to_string().contains("still being filled after a lazy restart"), "{refused}");

    let me = std::env::current_exe().unwrap();
    let mut second = Command::new(me);
    second.args(["--exact", "restarter", "--nocapture"]).env("TOWA_TEST_RESTART", kept.store.dir());
    let second = second.output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success() && said.contains("is a process that runs"), "{said}");

    kept.fill();
    again.line("towa: filled");
    // While another program tracks it, too, it is refused by name.
    let mut tracking = Target::open(kept.pid, None).unwrap();
    tracking.take(&kept.store).unwrap();
    tracking.take(&kept.store).unwrap();
    let refused = Target::open(kept.pid, None).unwrap().take(&kept.store).map(|taken| taken.number).unwrap_err();
    assert!(refused.to_string().contains("another program tracks its memory"), "{refused}");
    drop(tracking);
    // What was taken is whole.
    kill(kept.pid);
    let (status, seen) = again.end();
    assert_eq!(status.code(), Some(100 + libc::SIGKILL), "{seen:?}");
    kept.go_on();
    let mut again = Again::start(&kept.store, None);
    again.is_lazy();
    again.must_be_kept();
}

/// Without CAP_SYS_PTRACE the kernel gives no userfaultfd for system calls: then all is read before.
#[test]
fn who_may_not_restart_lazily_restarts_eagerly() {
    let without = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"];
    let works = Command::new(without[0]).args(&without[1..]).arg("true").status().is_ok_and(|status| status.success());
    let may_anyway = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").is_ok_and(|value| value.trim() == "1");
    if !works || may_anyway {
        eprintln!("SKIPPED: no setpriv, or everybody may");
        return;
    }
    let Some(kept) = Kept::under(&without, 16, "all") else { return };
    kept.go_on();
    let mut again = Again::start_under(&without, &kept.store, None);
    again.line("towa: Eager");
    again.must_be_kept();
}

/// How soon a program runs again does not depend on how much memory it has.
#[test]
fn the_first_instruction_comes_at_once() {
    let sizes = [16, 512];
    let kept = sizes.map(|megabytes| Kept::of(megabytes, "look").inspect(Kept::go_on));
    let [Some(small), Some(large)] = kept else { return };
    let (mut first, mut total) = ([u64::MAX; 2], [u64::MAX; 2]);
    for _ in 0..8 {
        for (at, kept) in [&small, &large].into_iter().enumerate() {
            let mut again = Again::start(&kept.store, None);
            first[at] = first[at].min(again.is_lazy());
            let filled = again.line("towa: filled ");
            total[at] = total[at].min(filled.split(' ').nth(2).unwrap().parse().unwrap());
            again.must_be_kept();
        }
        if first[1] <= 25_000 {
            break;
        }
    }
    for at in 0..2 {
        println!("{} MB: it runs after {} ms, all is there after {} ms", sizes[at], first[at] as f64 / 1e3, total[at] as f64 / 1e3);
    }
    // Other work on the machine holds up both alike.
    assert!(first[1] <= 50_000 || first[1] <= 4 * first[0], "{first:?} us");
}
