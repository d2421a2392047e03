//! One owner at a time, tried with real processes: each is this test's own program, started anew with a role.
//!
//! What a process is told on its standard input it answers on its standard output, a line each, marked, since the
//! test harness prints there, too.

use std::io::{BufRead, BufReader, Lines, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use towa_tx::{Addr, Checkpointer, Ended, Options, Pool, Root, SeparateCheckpointer};

const MARK: &str = "towa> ";

/// A process with a role.
struct Actor {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Actor {
    fn start(role: &str, pool: &Path) -> Actor {
        Self::start_in(&[], role, pool)
    }

    /// Starts it by way of `wrapper`, a program that runs another.
    fn start_in(wrapper: &[&str], role: &str, pool: &Path) -> Actor {
        let own = std::env::current_exe().unwrap();
        let mut words: Vec<String> = wrapper.iter().map(|word| (*word).to_owned()).collect();
        words.push(own.display().to_string());
        words.extend(["--exact", "role", "--nocapture", "--test-threads=1"].map(String::from));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env("TOWA_ROLE", role).env("TOWA_POOL", pool);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (stdin, lines) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()).lines());
        Actor { child, stdin, lines }
    }

    /// The next line that it says; empty if it ends without one.
    fn says(&mut self) -> String {
        let marked = |line: String| line.split_once(MARK).map(|(_, said)| said.to_owned());
        self.lines.by_ref().map_while(Result::ok).find_map(marked).unwrap_or_default()
    }

    fn ask(&mut self, what: &str) -> String {
        writeln!(self.stdin, "{what}").unwrap();
        self.says()
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, signal: i32) {
        kill(self.pid(), signal);
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn kill(pid: u32, signal: i32) {
    // SAFETY: a process that a test started.
    assert_eq!(unsafe { libc::kill(pid as libc::pid_t, signal) }, 0);
}

/// A pool's directory in memory, and the one that it lies in.
fn place() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let pool = dir.path().join("pool");
    (dir, pool)
}

/// What a process says that opens the pool, and how long it took.
fn open(pool: &Path) -> (String, Duration) {
    let began = Instant::now();
    let said = Actor::start("open", pool).says();
    (said, began.elapsed())
}

/// An owner with a separate checkpointer that has worked for it.
fn owner_and_checkpointer(pool: &Path) -> (Actor, Actor) {
    let mut owner = Actor::start("owner of two", pool);
    assert_eq!(owner.says(), "opened");
    let mut checkpointer = Actor::start("checkpointer", pool);
    assert_eq!(checkpointer.says(), "attached");
    assert_eq!(owner.ask("add"), "added 1");
    (owner, checkpointer)
}

/// The stopped checkpointer of an owner that is gone: refused at once, by name; let go on, it ends, and nothing is
/// lost.
fn refused_until_the_checkpointer_ends(pool: &Path, checkpointer: &mut Actor, value: u64) {
    let (said, took) = open(pool);
    assert!(said.contains("the checkpointer of its former owner") && said.contains("which is stopped"), "{said}");
    assert!(said.contains(&checkpointer.pid().to_string()) && took < Duration::from_secs(8), "{said}, after {took:?}");
    checkpointer.signal(libc::SIGCONT);
    assert_eq!(checkpointer.says(), "ended OwnerDied");
    assert_eq!(open(pool).0, format!("opened with {value}"));
}

#[test]
fn a_checkpointer_that_stands_still_is_never_beside_the_next_owner() {
    let (_dir, pool) = place();
    let (mut owner, mut checkpointer) = owner_and_checkpointer(&pool);
    checkpointer.signal(libc::SIGSTOP);
    assert_eq!(owner.ask("add"), "added 2");
    let said = open(&pool).0;
    assert!(said.contains(&format!("in use by process {}", owner.pid())), "{said}");
    owner.signal(libc::SIGKILL);
    owner.child.wait().unwrap();
    refused_until_the_checkpointer_ends(&pool, &mut checkpointer, 2);
}

/// Its process number and start time stay the same, and its lock is gone.
#[test]
fn an_owner_that_executes_another_program_is_gone() {
    let (_dir, pool) = place();
    let (mut owner, mut checkpointer) = owner_and_checkpointer(&pool);
    checkpointer.signal(libc::SIGSTOP);
    assert_eq!(owner.ask("add"), "added 2");
    let said = owner.ask("execute");
    assert!(said.contains("the checkpointer of its former owner") && said.contains("which is stopped"), "{said}");
    refused_until_the_checkpointer_ends(&pool, &mut checkpointer, 2);
}

#[test]
fn a_checkpointer_that_is_killed_leaves_its_place_to_the_owner() {
    let (_dir, pool) = place();
    let (mut owner, checkpointer) = owner_and_checkpointer(&pool);
    checkpointer.signal(libc::SIGSTOP);
    drop(checkpointer);
    assert_eq!(owner.ask("checkpoint"), "checkpointed");
    let mut next = Actor::start("checkpointer", &pool);
    assert_eq!(next.says(), "attached");
    let mut third = Actor::start("checkpointer", &pool);
    let said = third.says();
    assert!(said.contains("another checkpointer") && said.contains(&next.pid().to_string()), "{said}");
    assert_eq!(owner.ask("close"), "closed");
    assert_eq!(next.says(), "ended Closed");
    assert!(!pool.join("checkpointer").exists(), "the socket was left");
    assert_eq!(open(&pool).0, "opened with 1");
}

/// A process is stopped where it has the image's lock and has told nobody: the owner goes on as long as it has room, and its end is not put off
/// for ever. Nothing is lost.
#[test]
fn a_checkpointer_that_is_stopped_while_it_attaches_does_not_keep_the_owner_from_closing() {
    let (_dir, pool) = place();
    let mut owner = Actor::start("owner of two", &pool);
    assert_eq!(owner.says(), "opened");
    let mut attaching = Actor::start("half a checkpointer", &pool);
    assert_eq!(attaching.says(), "has the lock");
    attaching.signal(libc::SIGSTOP);
    assert_eq!(owner.ask("add"), "added 1");
    let began = Instant::now();
    let said = owner.ask("close");
    let pid = attaching.pid();
    assert!(said.contains(&format!("its checkpointer (process {pid}) is stopped")) && said.contains("is safe"), "{said}");
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    let said = open(&pool).0;
    assert!(said.contains(&format!("process {pid}, which is stopped")), "{said}");
    drop(attaching);
    assert_eq!(open(&pool).0, "opened with 1");
}

/// As becoming a daemon by the book does; then the numbers are other files'.
#[test]
fn closing_every_descriptor_loses_neither_the_lock_nor_the_files_of_others() {
    let (dir, pool) = place();
    let mut owner = Actor::start("owner", &pool);
    assert_eq!(owner.says(), "opened");
    assert_eq!(owner.ask("add"), "added 1");
    assert_eq!(owner.ask(&format!("close descriptors, open {}", dir.path().join("other").display())), "done");
    assert_eq!(owner.ask("add"), "added 2");
    assert_eq!(owner.ask("checkpoint"), "checkpointed");
    let said = open(&pool).0;
    assert!(said.contains(&format!("in use by process {}", owner.pid())), "{said}");
    assert_eq!(owner.ask("close"), "closed");
    assert_eq!(std::fs::read(dir.path().join("other")).unwrap(), b"mine");
    assert_eq!(open(&pool).0, "opened with 2");
}

#[test]
fn a_forked_child_has_no_share_of_the_lock() {
    let (_dir, pool) = place();
    let mut owner = Actor::start("owner", &pool);
    assert_eq!(owner.says(), "opened");
    assert_eq!(owner.ask("add"), "added 1");
    let child: u32 = owner.ask("fork").parse().unwrap();
    owner.signal(libc::SIGKILL);
    owner.child.wait().unwrap();
    let said = open(&pool).0;
    kill(child, libc::SIGKILL);
    assert_eq!(said, "opened with 1");
}

#[test]
fn a_forked_child_that_drops_what_it_has_ends_well() {
    let (_dir, pool) = place();
    let mut owner = Actor::start("owner of two", &pool);
    assert_eq!(owner.says(), "opened");
    assert_eq!(owner.ask("fork and drop"), "the child ended with 0");
    assert_eq!(owner.ask("add"), "added 1");
    assert_eq!(owner.ask("close"), "closed");
}

/// It died at its first access to the heap, which no child has.
#[test]
fn a_forked_child_that_goes_on_is_refused_by_name() {
    let (_dir, pool) = place();
    let mut owner = Actor::start("owner", &pool);
    assert_eq!(owner.says(), "opened");
    assert_eq!(owner.ask("fork and go on"), "the child ended with 0");
    assert_eq!(owner.ask("add"), "added 1");
    assert_eq!(owner.ask("close"), "closed");
    assert_eq!(open(&pool).0, "opened with 1");
}

#[test]
fn a_pool_whose_directory_is_removed_says_so() {
    let (_dir, pool) = place();
    let mut owner = Actor::start("owner", &pool);
    assert_eq!(owner.says(), "opened");
    assert_eq!(owner.ask("add"), "added 1");
    std::fs::remove_dir_all(&pool).unwrap();
    let said = owner.ask("sync");
    assert!(said.contains("was removed, or leads to another file"), "{said}");
    let said = owner.ask("add");
    assert!(said.contains("was removed"), "{said}");
    // Another pool in its place is another pool.
    assert_eq!(open(&pool).0, "opened with 0");
}

/// Without being asked: a strict transaction that returns is durable.
#[test]
fn a_pool_whose_file_is_replaced_fails_soon() {
    let (_dir, pool) = place();
    let mut owner = Actor::start("owner", &pool);
    assert_eq!(owner.says(), "opened");
    let (image, copy) = (pool.join("image"), pool.join("copy"));
    std::fs::copy(&image, &copy).unwrap();
    std::fs::rename(&copy, &image).unwrap();
    let began = Instant::now();
    let said = loop {
        let said = owner.ask("add");
        if !said.starts_with("added") || began.elapsed() > Duration::from_secs(10) {
            break said;
        }
    };
    assert!(said.contains("leads to another file"), "{said}");
}

#[test]
fn a_renamed_directory_is_the_same_pool() {
    let (dir, pool) = place();
    let (mut owner, mut checkpointer) = owner_and_checkpointer(&pool);
    let renamed = dir.path().join("renamed");
    std::fs::rename(&pool, &renamed).unwrap();
    assert_eq!(owner.ask("sync"), "synced");
    assert_eq!(owner.ask("add"), "added 2");
    let said = open(&renamed).0;
    assert!(said.contains(&format!("in use by process {}", owner.pid())), "{said}");
    assert_eq!(owner.ask("close"), "closed");
    assert_eq!(checkpointer.says(), "ended Closed");
    assert_eq!(open(&renamed).0, "opened with 2");
}

#[test]
fn many_that_open_or_create_at_once_open_it_or_find_it_in_use() {
    for _ in 0..5 {
        let (_dir, pool) = place();
        let mut openers: Vec<Actor> = (0..6).map(|_| Actor::start("open", &pool)).collect();
        let said: Vec<String> = openers.iter_mut().map(Actor::says).collect();
        let is_good = |said: &String| said == "opened with 0" || said.contains("in use by");
        assert!(said.iter().all(is_good) && said.iter().any(|said| said.starts_with("opened")), "{said:?}");
    }
}

/// Hard links make another directory with the same files.
#[test]
fn a_directory_with_the_same_files_is_the_same_pool() {
    for role in ["owner", "owner of two"] {
        let (dir, pool) = place();
        let mut owner = Actor::start(role, &pool);
        assert_eq!(owner.says(), "opened");
        let links = dir.path().join("links");
        std::fs::create_dir(&links).unwrap();
        for name in ["superblock", "image", "log"] {
            std::fs::hard_link(pool.join(name), links.join(name)).unwrap();
        }
        let refused = format!("in use by the owner of another directory with the same files (process {})", owner.pid());
        for value in 1..3 {
            let said = open(&links).0;
            assert!(said.contains(&refused), "{role}: {said}");
            assert_eq!(owner.ask("add"), format!("added {value}"), "the owner goes on");
        }
        assert_eq!(owner.ask("close"), "closed");
        assert_eq!(open(&links).0, "opened with 2");
    }
}

/// Whoever wrote a pool may run code as its opener: root, for one, opens no pool of another user unasked. Looking at it takes no trust.
#[test]
fn a_pool_of_another_user_is_opened_if_that_user_is_trusted() {
    let (_dir, pool) = place();
    assert_eq!(open(&pool).0, "opened with 0");
    let medium = || towa_media::open_dir(&pool, Some(towa_media::Kind::Ram), false).unwrap();
    for of_user in [pool.clone(), pool.join("superblock"), pool.join("image"), pool.join("log")] {
        if std::os::unix::fs::chown(&of_user, Some(4711), None).is_err() {
            println!("SKIP: giving a pool to another user takes root");
            return;
        }
        let before: Vec<_> = ["superblock", "image", "log"].map(|name| std::fs::read(pool.join(name)).unwrap()).into();
        let said = open(&pool).0;
        assert!(said.contains("belongs to user 4711") && said.contains("TOWA_TRUST_OWNER=4711"), "{}: {said}", of_user.display());
        assert!(SeparateCheckpointer::attach(&*medium()).is_err());
        towa_heap::verify(&*medium(), towa_heap::superblock::Door::Tx, &mut |_, _| ()).unwrap();
        let after: Vec<_> = ["superblock", "image", "log"].map(|name| std::fs::read(pool.join(name)).unwrap()).into();
        assert!(before == after, "a refused pool was written");
        for (trusted, opens) in [("4710,4711", true), ("471", false)] {
            let said = Actor::start_in(&["env", &format!("TOWA_TRUST_OWNER={trusted}")], "open", &pool).says();
            assert_eq!(said == "opened with 0", opens, "{said}");
        }
        std::os::unix::fs::chown(&of_user, Some(0), None).unwrap();
    }
    assert_eq!(open(&pool).0, "opened with 0");
}

/// Whoever can read a directory can lock it, in either way: that keeps the pool's user neither from the pool nor from
/// looking at it, and lets no second owner in.
#[test]
fn a_lock_of_the_directory_alone_keeps_no_owner_out() {
    for (how, role) in [(libc::LOCK_SH, "owner"), (libc::LOCK_EX, "owner of two")] {
        let (_dir, pool) = place();
        assert_eq!(open(&pool).0, "opened with 0");
        let stranger = std::fs::File::open(&pool).unwrap();
        // SAFETY: a call on a descriptor that we own.
        assert_eq!(unsafe { libc::flock(stranger.as_raw_fd(), how) }, 0);
        let mut owner = Actor::start(role, &pool);
        assert_eq!(owner.says(), "opened");
        assert_eq!(owner.ask("add"), "added 1");
        let in_use = format!("in use by process {}", owner.pid());
        let said = [open(&pool).0, std::fs::remove_file(pool.join("lock")).map_or_else(|e| e.to_string(), |()| open(&pool).0)];
        assert!(said.iter().all(|said| said.contains(&in_use)), "{said:?}");
        assert_eq!(owner.ask("add"), "added 2");
        assert_eq!(owner.ask("close"), "closed");
        let medium = towa_media::open_dir(&pool, Some(towa_media::Kind::Ram), false).unwrap();
        towa_heap::verify(&*medium, towa_heap::superblock::Door::Tx, &mut |_, _| ()).unwrap();
        assert_eq!(open(&pool).0, "opened with 2");
    }
}

/// Process numbers of one container mean nothing in another.
#[test]
fn containers_with_one_volume_have_one_owner() {
    let container = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    if !Command::new(container[0]).args(&container[1..]).arg("true").status().is_ok_and(|status| status.success()) {
        println!("SKIP: no new PID namespace can be made here (root may)");
        return;
    }
    let (_dir, pool) = place();
    let mut owner = Actor::start_in(&container, "owner of two", &pool);
    assert_eq!(owner.says(), "opened");
    assert_eq!(owner.ask("add"), "added 1");
    let said = Actor::start_in(&container, "open", &pool).says();
    assert!(said.contains("in use by process") && said.contains("of another container"), "{said}");
    let mut checkpointer = Actor::start_in(&container, "checkpointer", &pool);
    assert_eq!(checkpointer.says(), "attached");
    let inside: u32 =
        std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", checkpointer.pid())).unwrap().trim().parse().unwrap();
    kill(inside, libc::SIGSTOP);
    assert_eq!(owner.ask("add"), "added 2");
    // The container's end is its processes' end.
    drop(owner);
    let opening = std::thread::scope(|scope| {
        let opening = scope.spawn(|| Actor::start_in(&container, "open", &pool).says());
        std::thread::sleep(Duration::from_secs(1));
        assert!(!opening.is_finished(), "the former owner's checkpointer was not waited for");
        kill(inside, libc::SIGCONT);
        opening.join().unwrap()
    });
    assert_eq!(opening, "opened with 2");
}

/// Not a test of its own: what the processes above do.
#[test]
fn role() {
    let (Ok(role), Some(pool)) = (std::env::var("TOWA_ROLE"), std::env::var_os("TOWA_POOL")) else { return };
    let pool = PathBuf::from(pool);
    match role.as_str() {
        "open" => say(&opened(&pool)),
        "checkpointer" => checkpoint(&pool),
        "half a checkpointer" => {
            let medium = towa_media::open_dir(&pool, Some(towa_media::Kind::Ram), false).unwrap();
            let _lock = medium.lock_file("image", Duration::from_secs(10), "").unwrap();
            say("has the lock");
            std::thread::sleep(Duration::from_secs(600));
        }
        "owner" => own(&pool, Checkpointer::Thread),
        _ => own(&pool, Checkpointer::Process),
    }
}

fn say(what: &str) {
    println!("{MARK}{}", what.replace('\n', " "));
}

fn options(checkpointer: Checkpointer) -> Options {
    let medium = Some(towa_media::Kind::Ram);
    Options { heap_len: 4 << 20, lanes: 2, lane_len: 64 << 10, medium, checkpointer, ..Options::default() }
}

fn address(root: Root) -> Addr {
    root.ptr.as_ptr().addr() as Addr
}

fn opened(path: &Path) -> String {
    match Pool::open_or_create(path, &options(Checkpointer::Thread)) {
        Err(e) => e.to_string(),
        Ok(pool) => {
            let thread = pool.register().unwrap();
            let value = pool.root("word").map_or(0, |root| thread.load(address(root)));
            drop(thread);
            pool.close().unwrap();
            format!("opened with {value}")
        }
    }
}

fn checkpoint(path: &Path) {
    let attach = || SeparateCheckpointer::attach(&*towa_media::open_dir(path, Some(towa_media::Kind::Ram), false).unwrap());
    match attach() {
        Err(e) => say(&e.to_string()),
        Ok(checkpointer) => {
            say("attached");
            let ended: Ended = checkpointer.run(&|| false, &mut |_| ()).unwrap();
            say(&format!("ended {ended:?}"));
        }
    }
}

fn own(path: &Path, checkpointer: Checkpointer) {
    let pool = match Pool::open_or_create(path, &options(checkpointer)) {
        Ok(pool) => pool,
        Err(e) => return say(&e.to_string()),
    };
    let mut thread = pool.register().unwrap();
    let word = pool.root("word").map(address).unwrap_or_else(|| {
        thread
            .transaction_software(|tx| {
                let block = tx.alloc(64)?;
                tx.init(block, &[0; 8])?;
                let ptr = NonNull::new(block as *mut u8).expect("an address");
                tx.set_root("word", Some(Root { ptr, type_tag: 1, size: 64 }))?;
                Ok(block)
            })
            .unwrap()
    });
    say("opened");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let done = |result: towa_tx::Result<()>, what: &str| say(&result.map_or_else(|e| e.to_string(), |()| what.into()));
        match line.split(' ').next().unwrap() {
            "add" => {
                let added = thread.transaction_software(|tx| {
                    let value = tx.read(word)? + 1;
                    tx.write(word, value)?;
                    Ok(value)
                });
                say(&added.map_or_else(|e| e.to_string(), |value| format!("added {value}")));
            }
            "sync" => done(pool.sync(), "synced"),
            "checkpoint" => done(pool.checkpoint(), "checkpointed"),
            "execute" => execute(),
            "fork" => fork(&line, (&thread, &pool)),
            "close" if line == "close" => {
                drop(thread);
                return done(pool.close(), "closed");
            }
            _ => close_descriptors(line.rsplit(' ').next().unwrap()),
        }
    }
}

/// Starts this program anew, which opens the pool.
fn execute() {
    use std::os::unix::process::CommandExt;
    let args: Vec<_> = std::env::args_os().collect();
    let failed = Command::new("/proc/self/exe").args(&args[1..]).env("TOWA_ROLE", "open").exec();
    say(&failed.to_string());
}

fn fork(line: &str, has: (&towa_tx::Thread, &Pool)) {
    // SAFETY: the child waits to be killed, or drops its copies of what the parent has and ends.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            if line.ends_with("go on") {
                libc::_exit(go_on(std::ptr::read(has.0), std::ptr::read(has.1)));
            }
            if line.ends_with("drop") {
                drop((std::ptr::read(has.0), std::ptr::read(has.1)));
                libc::_exit(0);
            }
            loop {
                libc::pause();
            }
        }
        if line == "fork" {
            return say(&child.to_string());
        }
        let mut status = 0;
        libc::waitpid(child, &raw mut status, 0);
        say(&format!("the child ended with {status}"));
    }
}

/// In a child: 0 if all that would need the pool is refused, and a pool of its own is not.
fn go_on(mut thread: towa_tx::Thread, pool: Pool) -> i32 {
    let own = Pool::volatile(&Options { heap_len: 4 << 20, ..Options::default() }).unwrap();
    let made = own.register().unwrap().transaction(|tx| tx.alloc(64));
    // Whatever lane that names: a child has no lane to look at.
    let version_of_lane = |lane: u64| 1 << 60 | lane << 1;
    let awaited = (0..4).map(|lane| thread.wait_durable(version_of_lane(lane))).filter_map(Result::err).next();
    let asked = [
        Err(awaited.expect("versions of other lanes")),
        thread.transaction(|tx| tx.alloc(64)).map(drop),
        thread.transaction_software(|tx| tx.alloc(64)).map(drop),
        thread.transaction_guarded(|tx| tx.touch(0)),
        pool.register().map(drop),
        pool.sync(),
        pool.checkpoint(),
        pool.close(),
    ];
    let is_refused = |asked: &towa_tx::Result<()>| asked.as_ref().is_err_and(|e| e.to_string().contains("a child of the process"));
    i32::from(made.is_err() || !asked.iter().all(is_refused))
}

/// Closes all descriptors that a program does not know, and opens files that get their numbers.
fn close_descriptors(other: &str) {
    (3..1024).for_each(|fd| {
        // SAFETY: a number only. What owned it must notice.
        unsafe { libc::close(fd) };
    });
    std::fs::write(other, "mine").unwrap();
    let opened = || std::fs::OpenOptions::new().read(true).write(true).open(other).unwrap();
    std::mem::forget((0..16).map(|_| opened()).collect::<Vec<_>>());
    say("done");
}
