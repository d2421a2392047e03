//! Checkpoints of running programs: what is in them, and that the program does not notice.

mod support;

use std::time::{Duration, Instant};

use support::{Running, compile};
use towa_snap::Error;
use towa_snap::state::State;
use towa_snap::store::{Store, Which};
use towa_snap::take::Target;

#[test]
fn checkpoints_of_a_program_that_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compile("busy", dir.path(), &[]) else { return };
    let store = Store::open_or_create(dir.path().join("store")).unwrap();
    let target = Running::start(&program, &["2.5"]);
    let mut taker = Target::open(target.pid(), None).unwrap();
    let began = Instant::now();
    let mut count = 0;
    // Longer, where a checkpoint takes long.
    while began.elapsed() < Duration::from_millis(1500) || count <= 3 {
        match taker.take(&store) {
            Ok(taken) => {
                count += 1;
                assert_eq!(taken.number, count);
                println!("{taken:?}");
            }
            // On a slow machine the last may come too late.
            Err(Error::Gone { .. }) if began.elapsed() > Duration::from_millis(2400) => break,
            Err(e) => panic!("{e}"),
        }
    }
    target.must_succeed();
    assert!(count > 3, "{count}");
    let newest = store.open_checkpoint(Which::Newest).unwrap();
    newest.verify(|_, _| ()).unwrap();
    let state = State::decode(newest.manifest()).unwrap();
    assert_eq!(state.threads.len(), 8);
    assert!(state.regions.iter().any(|region| region.prot & libc::PROT_EXEC != 0), "{state:?}");
}

#[test]
fn a_refused_program_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compile("opens", dir.path(), &[]) else { return };
    let mut command = std::process::Command::new(&program);
    command.args([dir.path().as_os_str(), "udp".as_ref()]);
    let mut target = Running::spawn(command);
    while target.line() != "ready" {}
    let store = Store::open_or_create(dir.path().join("store")).unwrap();
    let maps = || std::fs::read_to_string(format!("/proc/{}/maps", target.pid())).unwrap();
    let before = maps();
    let refused = Target::open(target.pid(), None).unwrap().take(&store).map(|taken| taken.number).unwrap_err();
    assert!(matches!(&refused, Error::Refused { what, .. } if what.len() == 1), "{refused}");
    assert!(refused.to_string().contains("UDP socket"), "{refused}");
    assert_eq!(maps(), before);
    assert!(store.numbers().unwrap().is_empty());
}
