//! `towa snap` with processes, directories and programs that will not do; what passes through `run`; and Ctrl-C.
//!
//! What must always hold: whatever is wrong, the program runs on, and checkpoints that were there are complete.

use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{assert_is_message, command, copy_program, fails, is_root, json, passes, s, text, towa};

/// A program that sleeps for ever, with nothing that could not be kept; ended when dropped.
struct Sleeper(Child);

impl Sleeper {
    fn start(program: &Path) -> Sleeper {
        let mut command = Command::new(program);
        command.arg("1000").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: one call of the system, with numbers.
        unsafe {
            command.pre_exec(|| {
                libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC as i32);
                Ok(())
            });
        }
        Sleeper(command.spawn().unwrap())
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// It is there, and nobody holds it or blocks its signals; at once, or when it gets a processor.
    fn must_run(&mut self) {
        let began = Instant::now();
        loop {
            assert!(self.0.try_wait().unwrap().is_none(), "the program has ended");
            let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
            if ["TracerPid:\t0\n", "SigBlk:\t0000000000000000\n"].iter().all(|line| status.contains(line)) {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(30), "it is held: {status}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program sleep, as a file of its own.
fn sleep_in(dir: &Path) -> PathBuf {
    let program = dir.join("sleep");
    let path = ["/usr/bin/sleep", "/bin/sleep"].into_iter().find(|path| Path::new(path).exists()).expect("sleep is everywhere");
    assert!(copy_program(Path::new(path), &program));
    program
}

/// A program of which checkpoints can be taken, and the directory for them; `None`, said loudly, where none can be.
fn scene() -> Option<(tempfile::TempDir, Sleeper, String)> {
    if !is_root() {
        eprintln!("SKIPPED: tracing and restarting other programs takes root here");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let sleeper = Sleeper::start(&sleep_in(dir.path()));
    let store = s(&dir.path().join("snaps")).to_owned();
    Some((dir, sleeper, store))
}

/// Something mounted for a test.
struct Mounted(PathBuf);

impl Mounted {
    fn tmpfs(at: PathBuf, options: &str) -> Option<Mounted> {
        std::fs::create_dir(&at).unwrap();
        let done = Command::new("mount").args(["-t", "tmpfs", "-o", options, "towa-test"]).arg(&at).output();
        if done.is_ok_and(|out| out.status.success()) {
            return Some(Mounted(at));
        }
        eprintln!("SKIPPED: no tmpfs of its own can be mounted here");
        None
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Lazily, since another test may be starting a process that has a file of it for a moment.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn processes_that_will_not_do() {
    let Some((dir, mut sleeper, store)) = scene() else { return };
    assert!(fails(5, &["snap", "take", &store, "4194304"]).contains("has ended, or there is none"));
    fails_of_usage(&["snap", "take", &store, "0"]);
    fails_of_usage(&["snap", "take", &store, "--", "-3"]);
    fails_of_usage(&["snap", "take", &store]);
    fails_of_usage(&["snap", "take", &store, &sleeper.pid(), "--self"]);
    // Whoever is 1 here: it is not harmed, and it is said why not.
    fails(1, &["snap", "take", &store, "1"]);
    let kernels = std::fs::read_to_string("/proc/2/maps").is_ok_and(|maps| maps.is_empty());
    if kernels {
        assert!(fails(1, &["snap", "take", &store, "2"]).contains("kernel thread"));
    } else {
        eprintln!("SKIPPED: no kernel thread is to be seen here");
    }
    let own = format!("exec {} snap take {store} $$", env!("CARGO_BIN_EXE_towa"));
    let out = Command::new("sh").args(["-c", &own]).output().unwrap();
    assert!(out.status.code() == Some(1) && text(&out.stderr).contains("is this command itself"), "{}", text(&out.stderr));

    // Somebody else's, without a right to it.
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
    let mut other = command(&["snap", "take", &store, &sleeper.pid()]);
    // SAFETY: calls of the system, with numbers.
    unsafe {
        other.pre_exec(|| {
            (libc::setgroups(0, std::ptr::null()) == 0 && libc::setgid(65534) == 0 && libc::setuid(65534) == 0)
                .then_some(())
                .ok_or_else(std::io::Error::last_os_error)
        });
    }
    match other.output() {
        Ok(out) => {
            assert!(out.status.code() == Some(1) && text(&out.stderr).contains("not permitted"), "{}", text(&out.stderr));
            assert_is_message(&text(&out.stderr));
        }
        Err(e) => eprintln!("SKIPPED: {} cannot be run by another user ({e})", env!("CARGO_BIN_EXE_towa")),
    }

    // Stopped, or with a child: it is said, and it is as it was.
    // SAFETY: our own child, which was not waited for.
    unsafe { libc::kill(sleeper.0.id() as i32, libc::SIGSTOP) };
    await_state(&sleeper, 'T');
    assert!(fails(1, &["snap", "take", &store, &sleeper.pid()]).contains("stopped"));
    // SAFETY: as above.
    unsafe { libc::kill(sleeper.0.id() as i32, libc::SIGCONT) };
    await_state(&sleeper, 'S');
    sleeper.must_run();
    let said = json(&text(&towa(&["snap", "take", "--json", &store, &std::process::id().to_string()]).stdout));
    assert_eq!(said["exit_status"], 1, "this process has threads and children and whatnot: {said}");
    passes(&["snap", "take", &store, &sleeper.pid()]);
    sleeper.must_run();
}

fn await_state(sleeper: &Sleeper, wanted: char) {
    let state = || std::fs::read_to_string(format!("/proc/{}/stat", sleeper.0.id())).unwrap().split(' ').nth(2).map(str::to_owned);
    let began = Instant::now();
    while state().is_none_or(|state| !state.starts_with(wanted)) {
        assert!(began.elapsed() < Duration::from_secs(30), "never {wanted}: {:?}", state());
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn fails_of_usage(args: &[&str]) {
    assert_eq!(towa(args).status.code(), Some(2), "{args:?}");
}

#[test]
fn a_process_that_ends_while_it_is_taken() {
    let Some((dir, _, store)) = scene() else { return };
    let program = dir.path().join("sleep");
    for after in 0..12 {
        let mut victim = Sleeper::start(&program);
        let mut take =
            command(&["snap", "take", &store, &victim.pid()]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(after));
        victim.0.kill().unwrap();
        victim.0.wait().unwrap();
        let status = take.wait().unwrap();
        let mut said = String::new();
        std::io::Read::read_to_string(&mut take.stderr.take().unwrap(), &mut said).unwrap();
        assert!(matches!(status.code(), Some(0 | 1 | 5)), "{status}: {said}");
        if !status.success() {
            assert_is_message(&said);
        }
    }
    if Path::new(&store).exists() {
        for line in json(&passes(&["snap", "list", "--json", &store])).as_array().unwrap() {
            passes(&["snap", "verify", &format!("{store}@{}", line["number"])]);
        }
    }
}

#[test]
fn directories_that_will_not_do() {
    let Some((dir, mut sleeper, store)) = scene() else { return };
    let (file, foreign) = (dir.path().join("file"), dir.path().join("foreign"));
    std::fs::write(&file, "a letter").unwrap();
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("letter"), "a letter").unwrap();
    for place in [&file, &foreign] {
        assert!(fails(3, &["snap", "take", s(place), &sleeper.pid()]).contains("is no directory"));
        fails(3, &["snap", "run", s(place), "--", "true"]);
    }
    for args in [&["snap", "list"][..], &["snap", "verify"], &["snap", "inspect"], &["snap", "restart"]] {
        fails(3, &[args, &[s(&foreign)]].concat());
        fails(5, &[args, &[&store]].concat());
    }
    fails(5, &["snap", "rm", &store, "1"]);
    fails(1, &["snap", "take", s(&dir.path().join("not/there")), &sleeper.pid()]);
    assert_eq!(std::fs::read_dir(&foreign).unwrap().count(), 1, "something was left in somebody's directory");
    if let Some(mounted) = Mounted::tmpfs(dir.path().join("ro"), "ro,size=1m") {
        assert!(fails(1, &["snap", "take", s(&mounted.0.join("snaps")), &sleeper.pid()]).contains("Read-only"));
    }

    // Damaged: said, left alone, and no checkpoint is offered in its place.
    passes(&["snap", "take", &store, &sleeper.pid()]);
    passes(&["snap", "take", &store, &sleeper.pid()]);
    let manifest = Path::new(&store).join("2/manifest");
    let mut bytes = std::fs::read(&manifest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&manifest, &bytes).unwrap();
    for what in ["verify", "inspect", "restart"] {
        fails(3, &["snap", what, &store]);
    }
    let list = json(&passes(&["snap", "list", "--json", &store]));
    assert!(list[0]["damaged"].is_null() && list[1]["damaged"].is_string(), "{list}");
    passes(&["snap", "verify", &format!("{store}@1")]);
    fails(5, &["snap", "rm", &store, "1", "7"]);
    passes(&["snap", "rm", &store, "2"]);
    sleeper.must_run();
}

#[test]
fn a_full_disk_costs_the_new_checkpoint_only() {
    let Some((dir, mut sleeper, _)) = scene() else { return };
    let Some(mounted) = Mounted::tmpfs(dir.path().join("small"), "size=2m") else { return };
    let store = mounted.0.join("snaps");
    passes(&["snap", "take", s(&store), &sleeper.pid()]);
    // By another process: what this one has open, those that other tests are just starting have, too.
    let rest = mounted.0.join("rest");
    let filled = Command::new("dd").args(["if=/dev/zero", "bs=4k"]).arg(format!("of={}", rest.display())).output().unwrap();
    assert!(!filled.status.success(), "it has no end");
    let said = fails(6, &["snap", "take", s(&store), &sleeper.pid()]);
    assert!(said.contains("no space left") && said.contains("complete"), "{said}");
    let report = json(&text(&towa(&["snap", "take", "--json", s(&store), &sleeper.pid()]).stdout));
    assert_eq!(report["exit_status"], 6);
    assert_eq!(json(&passes(&["snap", "list", "--json", s(&store)])).as_array().unwrap().len(), 1);
    passes(&["snap", "verify", s(&store)]);
    sleeper.must_run();
    std::fs::remove_file(rest).unwrap();
    passes(&["snap", "take", s(&store), &sleeper.pid()]);
    assert!(std::fs::read_dir(&store).unwrap().flatten().all(|entry| !s(&entry.path()).ends_with(".tmp")));
}

#[test]
fn what_is_kept_is_its_owners_alone() {
    let Some((dir, sleeper, _)) = scene() else { return };
    for umask in [0o000, 0o777, 0o022] {
        let store = dir.path().join(format!("snaps-{umask}"));
        let mut take = command(&["snap", "take", s(&store), &sleeper.pid()]);
        // SAFETY: one call of the system, with a number.
        unsafe {
            take.pre_exec(move || {
                libc::umask(umask);
                Ok(())
            });
        }
        assert!(take.output().unwrap().status.success());
        let mut folders = vec![store];
        while let Some(folder) = folders.pop() {
            assert_eq!(folder.metadata().unwrap().mode() & 0o7777, 0o700, "{}", folder.display());
            for entry in std::fs::read_dir(&folder).unwrap().flatten() {
                let status = entry.metadata().unwrap();
                match status.is_dir() {
                    true => folders.push(entry.path()),
                    false => assert_eq!(status.mode() & 0o7777, 0o600, "{}", entry.path().display()),
                }
            }
        }
    }
}

#[test]
fn run_is_as_if_the_program_ran_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = s(&dir.path().join("snaps")).to_owned();
    let run = |program: &[&str]| towa(&[&["snap", "run", "--every", "50ms", "--keep", "2", &store, "--"], program].concat());
    assert_eq!(run(&["sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(run(&["sh", "-c", "kill -9 $$"]).status.code(), Some(128 + 9));
    assert_eq!(run(&["sh", "-c", "kill -TERM $$"]).status.code(), Some(128 + 15));
    let said = run(&["no-such-program"]);
    assert_eq!(said.status.code(), Some(127));
    assert_is_message(&text(&said.stderr));
    assert_eq!(run(&[s(dir.path())]).status.code(), Some(126));
    // Its streams, its umask, its directory; and no descriptor of ours.
    let mut command =
        command(&["snap", "run", &store, "--", "sh", "-c", "cat; umask; pwd; ls -l /proc/self/fd | grep -c snaps >&2"]);
    command.current_dir(dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // SAFETY: one call of the system, with a number.
    unsafe {
        command.pre_exec(|| {
            libc::umask(0o027);
            Ok(())
        });
    }
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"through a pipe\n").unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!(text(&out.stdout), format!("through a pipe\n0027\n{}\n", s(&dir.path().canonicalize().unwrap())));
    assert_eq!(text(&out.stderr), "0\n");
}

#[test]
fn a_program_that_calls_exec_goes_on_being_checkpointed() {
    let Some((dir, _, store)) = scene() else { return };
    let script = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; exec $0 1000";
    let sleep = dir.path().join("sleep");
    let args = ["snap", "run", "--every", "50ms", "--keep", "2", &store, "--", "sh", "-c", script, s(&sleep)];
    let mut run = command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let began = Instant::now();
    let newest = || {
        let list = json(&text(&towa(&["snap", "list", "--json", &store]).stdout));
        list.as_array()
            .and_then(|list| list.last().map(|line| line["program"].as_str().unwrap_or("").to_owned()))
            .unwrap_or_default()
    };
    while !newest().starts_with(s(&sleep)) {
        assert!(began.elapsed() < Duration::from_secs(60) && run.try_wait().unwrap().is_none(), "the newest is of {:?}", newest());
        std::thread::sleep(Duration::from_millis(20));
    }
    // Asked to end, it asks the program.
    // SAFETY: our own child, which was not waited for.
    unsafe { libc::kill(run.id() as i32, libc::SIGTERM) };
    assert_eq!(run.wait().unwrap().code(), Some(128 + 15));
}

#[test]
fn ctrl_c() {
    let Some((dir, mut sleeper, store)) = scene() else { return };
    for after in [0, 2, 4, 6, 9, 13] {
        let mut take = command(&["snap", "take", &store, &sleeper.pid()]).stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(after));
        let began = Instant::now();
        // SAFETY: our own child, which was not waited for.
        unsafe { libc::kill(take.id() as i32, libc::SIGINT) };
        let status = take.wait().unwrap();
        assert!(status.success() || status.signal() == Some(libc::SIGINT), "{status}");
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        sleeper.must_run();
    }
    passes(&["snap", "take", &store, &sleeper.pid()]);
    sleeper.must_run();
    // To a group: the program decides, and this command ends as it does.
    let script = "trap 'exit 5' INT; echo ready; while :; do sleep 0.01; done";
    let mut run = command(&["snap", "run", s(&dir.path().join("other")), "--", "sh", "-c", script]);
    let mut run = run.stdout(Stdio::piped()).process_group(0).spawn().unwrap();
    let mut ready = [0; 6];
    std::io::Read::read_exact(run.stdout.as_mut().unwrap(), &mut ready).unwrap();
    // SAFETY: a group of our own children.
    unsafe { libc::kill(-(run.id() as i32), libc::SIGINT) };
    assert_eq!(run.wait().unwrap().code(), Some(5));
}

#[test]
fn two_of_run_in_one_directory() {
    let Some((dir, _, store)) = scene() else { return };
    let sleep = dir.path().join("sleep");
    let args = ["snap", "run", "--every", "50ms", &store, "--", s(&sleep), "1000"];
    let mut both = [0, 1].map(|_| command(&args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    let began = Instant::now();
    let of_both = |list: &serde_json::Value| {
        let processes = list.as_array().into_iter().flatten().filter_map(|line| line["process"].as_i64());
        processes.collect::<std::collections::BTreeSet<i64>>().len() == 2
    };
    // There is no store before the first checkpoint.
    while !serde_json::from_slice(&towa(&["snap", "list", "--json", &store]).stdout).is_ok_and(|list| of_both(&list)) {
        assert!(began.elapsed() < Duration::from_secs(60), "not both are there");
        std::thread::sleep(Duration::from_millis(20));
    }
    for run in &mut both {
        // SAFETY: our own child, which was not waited for.
        unsafe { libc::kill(run.id() as i32, libc::SIGTERM) };
        assert_eq!(run.wait().unwrap().code(), Some(128 + 15));
    }
    let list = json(&passes(&["snap", "list", "--json", &store]));
    assert!(of_both(&list), "{list}");
    for line in list.as_array().unwrap() {
        passes(&["snap", "verify", &format!("{store}@{}", line["number"])]);
    }
}

#[test]
fn restarts_that_will_not_do() {
    let Some((dir, mut sleeper, store)) = scene() else { return };
    passes(&["snap", "take", &store, &sleeper.pid()]);
    assert!(fails(1, &["snap", "restart", &store]).contains("is a process that runs"));
    fails(5, &["snap", "restart", &format!("{store}@9")]);
    sleeper.must_run();
    sleeper.0.kill().unwrap();
    // Ended, but its parent has not looked.
    await_state(&sleeper, 'Z');
    assert!(fails(1, &["snap", "restart", &store]).contains("parent has not waited"));
    sleeper.0.wait().unwrap();
    // Another program by the name of the old one, whatever is in it.
    let (program, kept) = (dir.path().join("sleep"), dir.path().join("kept"));
    std::fs::rename(&program, &kept).unwrap();
    fails(1, &["snap", "restart", &store]);
    std::fs::copy(&kept, &program).unwrap();
    assert!(fails(1, &["snap", "restart", &store]).contains("another file"));
    std::fs::rename(&kept, &program).unwrap();
    // As it was: it goes on, and can be used up only once.
    let mut restart = command(&["snap", "restart", "--once", &store]).stdout(Stdio::null()).spawn().unwrap();
    let began = Instant::now();
    let exe = format!("/proc/{}/exe", sleeper.0.id());
    while std::fs::read_link(&exe).map_or(true, |exe| !exe.ends_with("sleep")) {
        assert!(restart.try_wait().unwrap().is_none() && began.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(1));
    }
    // SAFETY: numbers only; it was seen to be the program.
    unsafe { libc::kill(sleeper.0.id() as i32, libc::SIGTERM) };
    assert_eq!(restart.wait().unwrap().code(), Some(128 + 15));
    assert!(fails(3, &["snap", "restart", "--once", &store]).contains("used up"));
}
