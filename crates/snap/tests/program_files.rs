//! Files that a program writes, when their device fails or loses power: its checkpoints and restarts take nothing from it.

mod places;
mod support;

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use places::Place;
use support::Running;
use towa_snap::store::Store;
use towa_snap::take::Target;

/// Restarts in a process of its own, as the tool does; `TOWA_TEST_RESTART` names the store.
#[test]
fn restarter() {
    support::restart_as_asked();
}

fn open(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// A program that has these two files open to write.
fn program(first: &Path, second: &Path) -> Running {
    let mut command = Command::new("sleep");
    command.arg("600").stdin(Stdio::null()).stderr(open(first));
    let second = open(second);
    // SAFETY: one call of the system, with numbers, on a descriptor that is open until the program starts.
    unsafe {
        use std::os::fd::AsRawFd;
        use std::os::unix::process::CommandExt;
        command
            .pre_exec(move || if libc::dup2(second.as_raw_fd(), 0) == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) });
    }
    Running::spawn(command)
}

/// An error of the write-back is told to the program that asks first: a checkpoint must not be that one.
#[test]
fn an_error_of_its_files_is_left_to_the_program() {
    let Some(memory) = Place::tmpfs(300) else { return };
    let Some(place) = Place::xfs_on(&memory) else { return };
    let path = place.mount_point().join("data");
    std::fs::write(&path, vec![1; 16 << 20]).unwrap();
    let preallocated = Command::new("fallocate").args(["-l", "64m"]).arg(&path).status().unwrap();
    assert!(preallocated.success());
    File::open(&path).unwrap().sync_all().unwrap();
    let store = Store::open_or_create(place.dir()).unwrap();
    let target = program(&path, &place.mount_point().join("other"));
    Target::open(target.pid(), None).unwrap().take(&store).unwrap();
    // Through a descriptor that is closed again; then the device has no room for it.
    open(&path).write_all_at(&[b'A'; 65_536], 40 << 20).unwrap();
    let mut filler = File::create(memory.mount_point().join("filler")).unwrap();
    while filler.write_all(&[0; 65_536]).is_ok() {}
    std::thread::sleep(Duration::from_millis(100));
    let taken = Target::open(target.pid(), None).unwrap().take(&store).map(|taken| taken.number);
    println!("the checkpoint: {taken:?}");
    let synced = open(&path).sync_data();
    drop(filler);
    std::fs::remove_file(memory.mount_point().join("filler")).unwrap();
    assert!(synced.is_err(), "its own fsync says that lost data is durable");
}

/// What `--rewind-files` has put in the place of what the program had made durable is durable when the program goes on.
#[test]
fn files_that_were_rewound_survive_a_power_cut() {
    let Some(place) = Place::xfs() else { return };
    let folder = place.mount_point().join("folder");
    std::fs::create_dir(&folder).unwrap();
    let paths: [PathBuf; 2] = ["changed", "removed"].map(|name| folder.join(name));
    let was = vec![b'A'; 1 << 20];
    for path in &paths {
        std::fs::write(path, &was).unwrap();
        File::open(path).unwrap().sync_all().unwrap();
    }
    let store = Store::open_or_create(place.dir()).unwrap();
    let target = program(&paths[0], &paths[1]);
    let pid = target.pid();
    Target::open(pid, None).unwrap().take(&store).unwrap();
    drop(target);
    open(&paths[0]).write_all_at(&vec![b'B'; 1 << 20], 0).unwrap();
    File::open(&paths[0]).unwrap().sync_all().unwrap();
    std::fs::remove_file(&paths[1]).unwrap();
    File::open(&folder).unwrap().sync_all().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "restarter", "--nocapture", "--test-threads", "1"]).env("TOWA_TEST_RESTART", store.dir());
    let mut restarter = command.spawn().unwrap();
    let began = Instant::now();
    let name = || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    while name() != "sleep\n" {
        assert!(restarter.try_wait().unwrap().is_none() && began.elapsed() < Duration::from_secs(30), "{}", name());
        std::thread::sleep(Duration::from_millis(5));
    }
    // That name is one of the last things that it is given.
    std::thread::sleep(Duration::from_millis(200));
    place.cut();
    // SAFETY: numbers only.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    restarter.wait().unwrap();
    place.back();
    for path in &paths {
        let now = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert!(now == was, "{}: {} bytes, {:?}", path.display(), now.len(), now.first());
    }
}
