//! Programs that are started again from a checkpoint, and go on as if nothing had been.

mod support;

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use support::compile;
use towa_snap::restart::{Files, Options};
use towa_snap::store::{Store, Which};
use towa_snap::take::Target;

/// Restarts in a process of its own, as the tool does; `TOWA_TEST_RESTART` names the store.
#[test]
fn restarter() {
    support::restart_as_asked();
}

fn restart(store: &Store) -> (std::process::Child, BufReader<OwnedFdReader>) {
    let (reader, writer) = std::io::pipe().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "restarter", "--nocapture", "--test-threads", "1"]);
    command.env("TOWA_TEST_RESTART", store.dir()).stdin(Stdio::null()).stdout(OwnedFd::from(writer));
    (command.spawn().unwrap(), BufReader::new(reader))
}

type OwnedFdReader = std::io::PipeReader;

/// Takes a checkpoint of a program that has said "ready", kills it, restarts it, makes `file` appear; it must say that it was kept.
fn is_kept(name: &str, args: &[&str], dir: &std::path::Path, file: &str, user: Option<u32>) {
    let Some(program) = compile(name, dir, &[]) else { return };
    let store = Store::open_or_create(dir.join("store")).unwrap();
    {
        let mut command = Command::new(&program);
        command.args(args);
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        let mut target = support::Running::spawn(command);
        let ready = target.line();
        assert!(ready == "ready" || name == "lazily" && ready.starts_with("ready "), "{ready}");
        let mut taker = Target::open(target.pid(), None).unwrap();
        println!("{:?}", taker.take(&store).unwrap());
        // It ends here, by SIGKILL.
    }
    let (mut child, out) = restart(&store);
    std::thread::sleep(Duration::from_millis(300));
    std::fs::write(dir.join(file), "").unwrap();
    let lines: Vec<String> = out.lines().map(|line| line.unwrap()).collect();
    let status = child.wait().unwrap();
    assert!(lines.iter().any(|line| line.ends_with("kept")), "{status}: {lines:?}");
    assert!(status.success(), "{status}: {lines:?}");
}

#[test]
fn a_process_keeps_what_the_kernel_had_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("go-on");
    is_kept("keeps", &[file.to_str().unwrap()], dir.path(), "go-on", None);
}

/// A program whose code is another now, and a checkpoint that was to be used once only.
#[test]
fn what_was_exchanged_or_used_up_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compile("busy", dir.path(), &[]) else { return };
    let store = Store::open_or_create(dir.path().join("store")).unwrap();
    let target = support::Running::start(&program, &["60"]);
    let number = Target::open(target.pid(), None).unwrap().take_and_end(&store).unwrap().number;
    drop(target);
    let refused = || {
        let checkpoint = store.open_checkpoint(Which::Newest).unwrap();
        towa_snap::restart::restart(&checkpoint, &towa_snap::restart::Options::default()).unwrap_err().to_string()
    };
    let code = std::fs::read(&program).unwrap();
    std::fs::write(&program, [&code[..], b" "].concat()).unwrap();
    assert!(refused().contains("busy: has changed since the checkpoint"), "{}", refused());
    store.consume(number).unwrap();
    assert!(refused().contains("was used up"), "{}", refused());
}

/// Root restarts what was another user's, as that user.
#[test]
fn a_process_keeps_its_user() {
    // SAFETY: it asks for a number.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIPPED: only root can be another user");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let file = dir.path().join("go-on");
    is_kept("keeps", &[file.to_str().unwrap()], dir.path(), "go-on", Some(65534));
    let store = Store::open(dir.path().join("store")).unwrap();
    let state = towa_snap::state::State::decode(store.open_checkpoint(Which::Newest).unwrap().manifest()).unwrap();
    assert_eq!((state.process.who.users, state.process.who.capabilities[2]), ([65534; 4], 0));
}

#[test]
fn a_process_keeps_its_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    is_kept("uses", &[dir.path().to_str().unwrap()], dir.path(), "go-on", None);
}

/// Threads of the restarter fill it beside the process itself.
#[test]
fn much_memory_is_there_before_it_runs() {
    let dir = tempfile::tempdir().unwrap();
    is_kept("lazily", &["100", "look", dir.path().to_str().unwrap()], dir.path(), "go-on", None);
}

/// Everything that a stop could disturb, a restart could, too; also one stop shortly after another, before threads were back in their sleep.
#[test]
fn threads_in_everything_go_on() {
    for moment in [100, 300, 700] {
        let dir = tempfile::tempdir().unwrap();
        let Some(program) = compile("busy", dir.path(), &[]) else { return };
        let store = Store::open_or_create(dir.path().join("store")).unwrap();
        {
            let target = support::Running::start(&program, &["1.5"]);
            std::thread::sleep(Duration::from_millis(moment));
            let mut taker = Target::open(target.pid(), None).unwrap();
            for taken in 0..4 {
                match taker.take(&store) {
                    // On a slow machine it may end before the last of them.
                    Err(towa_snap::Error::Gone { .. }) if taken > 0 => break,
                    took => drop(took.unwrap()),
                }
            }
        }
        let (mut child, out) = restart(&store);
        let lines: Vec<String> = out.lines().map(|line| line.unwrap()).collect();
        let status = child.wait().unwrap();
        assert!(lines.iter().any(|line| line.ends_with("undisturbed")), "{status}: {lines:?}");
        assert!(status.success(), "{status}: {lines:?}");
    }
}

/// Between checkpoint and restart the user of a program puts links to files of root's in the place of its own. Root restarts the program, and
/// gives it none of them.
#[test]
fn root_gives_a_users_program_no_file_that_the_user_may_not_open() {
    // SAFETY: it asks for a number.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIPPED: only root can be another user");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let [theirs, roots] = ["theirs", "roots"].map(|name| dir.path().join(name));
    std::fs::create_dir(&theirs).unwrap();
    std::fs::create_dir(&roots).unwrap();
    std::fs::write(theirs.join("file"), "mine").unwrap();
    std::fs::write(roots.join("file"), "root's").unwrap();
    std::fs::create_dir(theirs.join("folder")).unwrap();
    for mine in [&theirs, &theirs.join("file"), &theirs.join("folder")] {
        std::os::unix::fs::chown(mine, Some(65534), Some(65534)).unwrap();
    }
    let mode =
        |path: &std::path::Path, mode| std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    mode(dir.path(), 0o755);
    mode(&roots, 0o700);
    let store = Store::open_or_create(dir.path().join("store")).unwrap();
    let mut program = Command::new("bash");
    program.args(["-c", "exec 3<>$0/file 4<$0/folder; echo ready; exec sleep 600"]).arg(&theirs).uid(65534).gid(65534);
    // Not the errors of this test: a file that others write to has another length by the restart.
    program.current_dir("/").stdin(Stdio::null()).stderr(Stdio::null());
    let mut target = support::Running::spawn(program);
    assert_eq!(target.line(), "ready");
    // Not while it becomes another program.
    while std::fs::read_to_string(format!("/proc/{}/comm", target.pid())).unwrap() != "sleep\n" {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    Target::open(target.pid(), None).unwrap().take_and_end(&store).unwrap();
    drop(target);
    let refused = |files| {
        let checkpoint = store.open_checkpoint(Which::Newest).unwrap();
        let options = Options { files, ..Options::default() };
        towa_snap::restart::restart(&checkpoint, &options).expect_err("it is given root's file").to_string()
    };
    let exchange = |name: &str, to: &std::path::Path| {
        std::fs::rename(theirs.join(name), theirs.join("away")).unwrap();
        std::os::unix::fs::symlink(to, theirs.join(name)).unwrap();
    };
    let back = |name: &str| {
        std::fs::remove_file(theirs.join(name)).unwrap();
        std::fs::rename(theirs.join("away"), theirs.join(name)).unwrap();
    };
    exchange("file", &roots.join("file"));
    assert!(refused(Files::Keep).contains("the process's user may not open it"), "{}", refused(Files::Keep));
    assert!(refused(Files::Refuse).contains("another file"), "{}", refused(Files::Refuse));
    back("file");
    exchange("folder", &roots);
    assert!(refused(Files::Keep).contains("the process's user may not open it"), "{}", refused(Files::Keep));
    back("folder");
    assert_eq!(std::fs::read_to_string(roots.join("file")).unwrap(), "root's");
}
