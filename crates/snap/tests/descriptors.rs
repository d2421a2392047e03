//! What the descriptors of a program are: each kind is recognised, and each that cannot be kept is refused by name.

mod support;

use std::collections::HashMap;
use std::process::{Command, Stdio};

use support::{Running, compile};
use towa_snap::state::descriptors::{Descriptor, Found, Kind, Lock, OpenFile, Watch, look};
use towa_snap::sys::fd::Process;

/// The program's descriptors, and its word for each number.
struct Looked {
    found: Found,
    numbers: HashMap<String, i32>,
}

impl Looked {
    fn descriptor(&self, word: &str) -> &Descriptor {
        let fd = self.numbers[word];
        self.found.descriptors.table.iter().find(|one| one.fd == fd).unwrap_or_else(|| panic!("{word}: {:?}", self.found))
    }

    fn file(&self, word: &str) -> &OpenFile {
        &self.found.descriptors.files[self.descriptor(word).file]
    }
}

fn looked(extra: &[&str]) -> Option<(tempfile::TempDir, Looked)> {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("opens", dir.path(), &[])?;
    let args: Vec<_> = [dir.path().as_os_str()].into_iter().chain(extra.iter().map(AsRef::as_ref)).collect();
    let mut command = Command::new(&program);
    command.args(args).stdin(Stdio::null()).stderr(Stdio::null());
    let mut running = Running::spawn(command);
    let mut numbers = HashMap::new();
    loop {
        let line = running.line();
        let Some((word, fd)) = line.split_once('=') else {
            assert_eq!(line, "ready");
            break;
        };
        numbers.insert(word.to_owned(), fd.parse().unwrap());
    }
    let found = look(&Process::open(running.pid()).unwrap()).unwrap();
    Some((dir, Looked { found, numbers }))
}

#[test]
fn each_kind_is_recognised() {
    let Some((dir, looked)) = looked(&[]) else { return };
    let dir = dir.path().canonicalize().unwrap();
    assert_eq!(looked.found.refused, []);
    let file = |word| looked.file(word);
    let kind = |word| &looked.file(word).kind;

    let Kind::Regular { path, identity, position, locks } = kind("appends") else { panic!("{:?}", kind("appends")) };
    assert_eq!((path, identity.len, *position, &locks[..]), (&dir.join("appended"), 6, 4, &[][..]));
    assert_eq!(file("appends").flags & (libc::O_ACCMODE | libc::O_APPEND), libc::O_RDWR | libc::O_APPEND);
    assert_eq!(looked.descriptor("appends").file, looked.descriptor("duplicate").file);
    assert_ne!(looked.descriptor("appends").file, looked.descriptor("again").file);
    assert!(looked.descriptor("again").close_on_exec && !looked.descriptor("appends").close_on_exec);

    let Kind::Regular { locks, .. } = kind("locked") else { panic!("{:?}", kind("locked")) };
    let held = |lock| assert!(locks.contains(&lock), "{locks:?}");
    held(Lock { whole: false, exclusive: true, start: 10, last: Some(14) });
    held(Lock { whole: true, exclusive: false, start: 0, last: None });
    assert!(matches!(kind("nameless"), Kind::Nameless { memfd: false, .. }));
    assert!(matches!(kind("memfd"), Kind::Nameless { memfd: true, name, .. } if name == "here"));
    assert!(matches!(kind("directory"), Kind::Directory { path, .. } if *path == dir));
    assert!(matches!(kind("null"), Kind::Device { path } if path.as_os_str() == "/dev/null"));

    let (Kind::PipeEnd { pipe, writes: false }, Kind::PipeEnd { pipe: same, writes: true }) = (kind("reads"), kind("writes"))
    else {
        panic!("{:?}", looked.found)
    };
    let (pipes, pipe, same) = (&looked.found.descriptors.pipes, *pipe, *same);
    assert_eq!((pipe, pipes[pipe].content.as_slice(), pipes[pipe].capacity), (same, &b"hello"[..], 1 << 17));
    assert_eq!(file("reads").flags & libc::O_NONBLOCK, libc::O_NONBLOCK);

    assert_eq!(*kind("event"), Kind::Event { count: 5, semaphore: true });
    let Kind::Timer { clock, value_ns, interval_ns, ticks, .. } = kind("timer") else { panic!("{:?}", kind("timer")) };
    assert_eq!((*clock, *interval_ns, *ticks), (libc::CLOCK_MONOTONIC, 500, 0));
    assert!((3_500_000_000_000..=3_600_000_000_000).contains(value_ns), "{value_ns}");
    assert_eq!(*kind("signal"), Kind::Signal { mask: 1 << (libc::SIGUSR2 - 1) });
    let events = (libc::EPOLLIN | libc::EPOLLET) as u32;
    let Kind::Epoll { watches } = kind("epoll") else { panic!("{:?}", kind("epoll")) };
    let [Watch { fd, events: seen, data: 0x1234_5678_9abc_def0 }] = watches[..] else { panic!("{watches:x?}") };
    assert_eq!((fd, seen & events), (looked.numbers["reads"], events));

    let Kind::Listening { domain: libc::AF_INET, kind: libc::SOCK_STREAM, backlog, options, .. } = kind("tcp") else {
        panic!("{:?}", kind("tcp"))
    };
    assert_eq!(*backlog, 7);
    assert!(options.contains(&(libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)), "{options:?}");
    assert!(options.iter().all(|(level, name, _)| *level == libc::SOL_SOCKET && *name != libc::SO_REUSEPORT), "{options:?}");
    assert!(matches!(kind("unix"), Kind::Listening { domain: libc::AF_UNIX, .. }));
    // Standard output is this test's pipe, standard input and error are /dev/null.
    let stream = |fd: usize| &looked.found.descriptors.files[looked.found.descriptors.table[fd].file].kind;
    assert_eq!(*stream(1), Kind::Standard { stream: 1, terminal: String::new() });
    assert!(matches!(stream(0), Kind::Device { .. }));
}

#[test]
fn a_pipe_may_have_lost_its_other_end() {
    let Some((_dir, looked)) = looked(&["half"]) else { return };
    assert_eq!(looked.found.refused, []);
    assert!(matches!(looked.file("extra").kind, Kind::PipeEnd { writes: false, .. }));
}

#[test]
fn what_cannot_be_kept_is_refused_by_name() {
    for (extra, words) in [
        ("udp", "UDP socket"),
        ("connected", "connected TCP 127.0.0.1:"),
        ("inotify", "inotify"),
        ("fifo", "named pipe"),
        ("packets", "packets"),
        ("thread", "of a thread"),
    ] {
        let Some((_dir, looked)) = looked(&[extra]) else { return };
        let place = format!("fd {}", looked.numbers["extra"]);
        let refused = &looked.found.refused;
        assert!(refused.iter().any(|one| one.place == place && one.what.contains(words)), "{extra}: {refused:?}");
    }
}
