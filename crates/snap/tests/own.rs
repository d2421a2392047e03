//! A program that has itself checkpointed with the rights of another user.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

const STORE: &str = "TOWA_TEST_OWN";

/// Not a test: the set-user-id program.
#[test]
fn victim() {
    let Ok(store) = std::env::var(STORE) else { return };
    match towa_snap::own::take(Path::new(&store)) {
        Ok(outcome) => println!("\nit said {outcome:?}"),
        Err(e) => println!("\nit said {e}"),
    }
}

/// The user who starts it does not choose what is executed with its owner's rights.
#[test]
fn a_set_user_id_program_does_not_start_what_the_environment_names() {
    // SAFETY: it asks for a number.
    if unsafe { libc::geteuid() } != 0 {
        return println!("SKIP a_set_user_id_program_does_not_start_what_the_environment_names: only root can make one of its own");
    }
    let dir = tempfile::tempdir().unwrap();
    let mode = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(dir.path(), 0o755);
    let victim = dir.path().join("victim");
    std::fs::copy(std::env::current_exe().unwrap(), &victim).unwrap();
    let seen = dir.path().join("seen");
    let theirs = dir.path().join("theirs");
    std::fs::create_dir(&theirs).unwrap();
    let program = theirs.join("towa");
    std::fs::write(&program, format!("#!/bin/sh -p\nid -u >>{}\n", seen.display())).unwrap();
    mode(&program, 0o755);
    for (name, value) in
        [("TOWA", program.clone().into_os_string()), ("PATH", format!("{}:/usr/bin:/bin", theirs.display()).into())]
    {
        let start = |set_id: bool| {
            let _ = std::fs::remove_file(&seen);
            chown(&victim, Some(0), Some(0)).unwrap();
            mode(&victim, if set_id { 0o4755 } else { 0o755 });
            let mut command = Command::new(&victim);
            command.args(["--exact", "victim", "--nocapture", "--test-threads=1"]).env(STORE, "/nonexistent/store");
            command.env(name, &value);
            if set_id {
                command.uid(65534).gid(65534);
            }
            let out = command.output().unwrap();
            (std::fs::read_to_string(&seen).unwrap_or_default(), String::from_utf8_lossy(&out.stdout).into_owned())
        };
        assert_eq!(start(false).0, "0\n", "{name} is asked where the program has no more rights than its user");
        let (started, said) = start(true);
        assert_eq!(started, "", "{name}: it was started, with that user: {said}");
        let is_set_id = said.contains(towa_snap::own::INSTALLED) || Path::new(towa_snap::own::INSTALLED).exists();
        if !is_set_id {
            println!("SKIP {name}: set-user-id programs are none on this file system: {said}");
        }
    }
}
