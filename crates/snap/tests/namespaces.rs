//! Restarts in namespaces: by somebody who is nobody, beside the process itself, after a reboot.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use support::compile;
use towa_snap::restart::Options;
use towa_snap::state::State;
use towa_snap::store::{Base, Store, Which};
use towa_snap::take::Target;

const NOBODY: u32 = 65534;

/// Restarts in a process of its own, as the tool does: the newest checkpoint of the store that `TOWA_TEST_RESTART` names.
#[test]
fn restarter() {
    let Ok(dir) = std::env::var("TOWA_TEST_RESTART") else { return };
    let checkpoint = Store::open(dir).unwrap().open_checkpoint(Which::Newest).unwrap();
    let options = Options { pid_namespace: std::env::var("TOWA_TEST_PID_NAMESPACE").is_ok(), ..Default::default() };
    match towa_snap::restart::run(checkpoint, &options, &mut || Ok(())) {
        Ok(status) => {
            use std::os::unix::process::ExitStatusExt;
            std::process::exit(status.code().unwrap_or_else(|| 128 + status.signal().unwrap()));
        }
        Err(e) => {
            eprintln!("{e}");
            std::process::exit(99);
        }
    }
}

/// Takes a checkpoint: of the process and into the store that `TOWA_TEST_TAKE` names.
#[test]
fn taker() {
    let Ok(what) = std::env::var("TOWA_TEST_TAKE") else { return };
    let (pid, dir) = what.split_once(' ').unwrap();
    let store = Store::open_or_create(dir).unwrap();
    let mut target = Target::open(pid.parse().unwrap(), None).unwrap();
    target.take(&store).unwrap_or_else(|e| panic!("{e}"));
    target.leave().unwrap();
}

fn is_root() -> bool {
    // SAFETY: it asks for a number.
    unsafe { libc::geteuid() == 0 }
}

/// A directory, and in it a program and this test, for everybody.
struct Place {
    dir: tempfile::TempDir,
    program: PathBuf,
    test: PathBuf,
    nobody: bool,
}

impl Place {
    /// `nobody`: what runs there is nobody's, if it is root who tests.
    fn new(program: &str, nobody: bool) -> Option<Place> {
        let dir = tempfile::tempdir().unwrap();
        let program = compile(program, dir.path(), &[])?;
        let test = dir.path().join("test");
        std::fs::copy(std::env::current_exe().unwrap(), &test).unwrap();
        let nobody = nobody && is_root();
        if nobody {
            std::os::unix::fs::chown(dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        for path in [dir.path(), &program, &test] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        Some(Place { dir, program, test, nobody })
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command.current_dir(self.dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if self.nobody {
            command.uid(NOBODY).gid(NOBODY);
        }
        // SAFETY: calls of the system, with numbers.
        unsafe {
            command.pre_exec(|| {
                libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC as i32);
                // What ignores whoever runs the tests (nohup, a job in the background of a script) would be ignored by the tool, too.
                for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGTSTP] {
                    libc::signal(signal, libc::SIG_DFL);
                }
                Ok(())
            });
        }
        command
    }

    fn start(&self, args: &[&str]) -> Talk {
        let mut command = self.command(&self.program);
        let mut talk = Talk::with(command.args(args).spawn().unwrap());
        assert_eq!(talk.line(), "ready");
        talk
    }

    fn itself(&self, test: &str) -> Command {
        let mut command = self.command(&self.test);
        command.args(["--exact", test, "--nocapture", "--test-threads", "1"]);
        command
    }

    fn take(&self, pid: i32) {
        let mut command = self.itself("taker");
        done(command.env("TOWA_TEST_TAKE", format!("{pid} {}", self.store().display())));
    }

    fn restarter(&self, pid_namespace: bool) -> Command {
        let mut command = self.itself("restarter");
        command.env("TOWA_TEST_RESTART", self.store());
        if pid_namespace {
            command.env("TOWA_TEST_PID_NAMESPACE", "1");
        }
        command
    }

    fn restart(&self, pid_namespace: bool) -> Talk {
        // A job of its own: one that nobody looks after could not be stopped.
        Talk::with(self.restarter(pid_namespace).process_group(0).spawn().unwrap())
    }

    /// What a restart that must fail says.
    fn fails(&self, command: &mut Command) -> String {
        // A program that was just copied may be open for writing yet, in a child that another test has begun to start.
        let output = loop {
            match command.stdin(Stdio::null()).output() {
                Err(e) if e.kind() == std::io::ErrorKind::ExecutableFileBusy => std::thread::sleep(Duration::from_millis(1)),
                output => break output.unwrap(),
            }
        };
        assert_eq!(output.status.code(), Some(99), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// A checkpoint like the newest one, but for what `change` does to its description.
    fn forge(&self, change: impl FnOnce(&mut State)) {
        let store = Store::open(self.store()).unwrap();
        let newest = store.open_checkpoint(Which::Newest).unwrap();
        let mut state = State::decode(newest.manifest()).unwrap();
        change(&mut state);
        store.begin(Base::On(newest.id())).unwrap().finish(&state.encode()).unwrap();
        if self.nobody {
            // What root has made is for nobody to read.
            done(Command::new("chown").args(["-R", "65534:65534"]).arg(self.store()));
        }
    }
}

fn done(command: &mut Command) {
    // A program that was just copied may be open for writing yet, in a child that another test has begun to start.
    let output = loop {
        match command.stdin(Stdio::null()).output() {
            Err(e) if e.kind() == std::io::ErrorKind::ExecutableFileBusy => std::thread::sleep(Duration::from_millis(1)),
            output => break output.unwrap(),
        }
    };
    assert!(output.status.success(), "{command:?}: {output:?}");
}

/// A program, or the tool that has restarted it, which is spoken to.
struct Talk {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Talk {
    fn with(mut child: Child) -> Talk {
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Talk { child, to, from }
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        if self.from.read_line(&mut line).unwrap() == 0 {
            let mut why = String::new();
            self.child.stderr.take().map(|mut e| e.read_to_string(&mut why));
            panic!("it has ended, {:?}: {why}", self.child.try_wait());
        }
        line.trim_end().to_owned()
    }

    fn tell(&mut self, what: &str) {
        writeln!(self.to, "{what}").unwrap();
    }

    fn answer(&mut self) -> String {
        loop {
            // The test that restarts has said something of its own before.
            if let Some((_, answer)) = self.line().split_once("= ") {
                return answer.strip_suffix('.').unwrap().to_owned();
            }
        }
    }

    fn ask(&mut self, what: &str) -> String {
        self.tell(what);
        self.answer()
    }

    fn signal(&self, signal: i32) {
        // SAFETY: our own child, which was not waited for.
        unsafe { libc::kill(self.pid(), signal) };
    }

    fn code(mut self) -> i32 {
        self.child.wait().unwrap().code().unwrap_or(-1)
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Children of a process, by their numbers here.
fn children(pid: i32) -> Vec<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let lists = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default());
    lists.flat_map(|list| list.split_whitespace().map(|word| word.parse().unwrap()).collect::<Vec<_>>()).collect()
}

/// The program that a tool has restarted in a pid namespace: the child of its only child.
fn program_of(tool: i32) -> i32 {
    let [first] = children(tool)[..] else { panic!("{:?}", children(tool)) };
    let [program] = children(first)[..] else { panic!("{:?}", children(first)) };
    program
}

/// Whether user namespaces can be made here by nobody, with a /proc of their own.
fn user_namespaces(place: &Place) -> bool {
    let made = place.command("unshare").args(["-U", "-m", "-p", "-f", "--mount-proc", "true"]).output();
    let can = made.is_ok_and(|output| output.status.success());
    if !can {
        eprintln!("SKIPPED: no user namespaces for nobody");
    }
    can
}

#[test]
fn nobody_restarts_a_program_of_his_own_and_again_from_in_there() {
    let Some(place) = Place::new("answers", true) else { return };
    if !user_namespaces(&place) {
        return;
    }
    let mut program = place.start(&[]);
    let pid = program.pid();
    assert_eq!((program.ask("count"), program.ask("count")), ("1".into(), "2".into()));
    let who = program.ask("who");
    place.take(pid);
    drop(program);

    let mut tool = place.restart(false);
    assert_eq!(tool.ask("count"), "3");
    assert_eq!(tool.ask("who"), who);
    assert!(who.starts_with(&format!("{pid} ")) && who.contains(" 0000000000000000 "), "{who}");

    // From outside it is refused, with the way to do it.
    let outer = program_of(tool.pid());
    let refused = Target::open(outer, None).unwrap().refusals().unwrap();
    assert_eq!(refused.len(), 1, "{refused:?}");
    let what = refused[0].what.split_once("nsenter ").unwrap().1;
    let words = what.split_once(" towa snap take DIR").unwrap();
    assert!(words.1.starts_with(&format!(" {pid} ")), "{refused:?}");
    assert_eq!(words.0, format!("-t {outer} -U --preserve-credentials -m -p"));
    let mut nsenter = place.command("nsenter");
    nsenter.args(words.0.split(' ')).arg(&place.test).args(["--exact", "taker", "--nocapture", "--test-threads", "1"]);
    done(nsenter.env("TOWA_TEST_TAKE", format!("{pid} {}", place.store().display())));
    assert_eq!(tool.ask("count"), "4");
    // SAFETY: a child of a child of our child, which is there.
    unsafe { libc::kill(outer, libc::SIGKILL) };
    assert_eq!(tool.code(), 128 + libc::SIGKILL);

    let mut again = place.restart(false);
    assert_eq!(again.ask("count"), "4");
    assert_eq!(again.ask("who"), who);
    again.tell("exit 7");
    assert_eq!(again.code(), 7);
}

#[test]
fn all_that_the_kernel_had_of_it_is_kept_in_a_user_namespace() {
    let Some(place) = Place::new("keeps", true) else { return };
    if !user_namespaces(&place) {
        return;
    }
    let file = place.dir.path().join("go-on");
    let program = place.start(&[file.to_str().unwrap()]);
    place.take(program.pid());
    drop(program);
    let mut tool = place.restart(false);
    std::fs::write(&file, "").unwrap();
    while !tool.line().ends_with("kept") {}
    assert_eq!(tool.code(), 0);
}

/// A capability of the tool's file is enough; it is not passed on.
#[test]
fn nobody_may_choose_numbers_with_the_capability() {
    let Some(place) = Place::new("answers", true) else { return };
    let given = Command::new("setcap").arg("cap_checkpoint_restore+ep").arg(&place.test).output();
    if !given.is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: files cannot be given capabilities here");
        return;
    }
    let mut program = place.start(&[]);
    let pid = program.pid();
    let who = program.ask("who");
    place.take(pid);
    drop(program);
    let mut tool = place.restart(false);
    assert_eq!(tool.ask("who"), who);
    assert_eq!(children(tool.pid()), [pid]);
    tool.tell("exit 3");
    assert_eq!(tool.code(), 3);
}

#[test]
fn beside_the_process_itself_in_a_pid_namespace() {
    if !is_root() {
        eprintln!("SKIPPED: that takes root");
        return;
    }
    let Some(place) = Place::new("answers", false) else { return };
    let mut program = place.start(&[]);
    let who = program.ask("who");
    program.ask("count");
    place.take(program.pid());

    let why = place.fails(&mut place.restarter(false));
    assert!(why.contains("is a process that runs") && why.contains("--pid-namespace"), "{why}");

    let mut copy = place.restart(true);
    assert_eq!((copy.ask("count"), copy.ask("count")), ("2".into(), "3".into()));
    assert_eq!((program.ask("count"), program.ask("who")), ("2".into(), who.clone()));
    assert_eq!(copy.ask("who"), who);
    // Who has lost its parent is waited for.
    copy.ask("orphan");
    let began = Instant::now();
    while copy.ask("orphan") != "0" || began.elapsed() < Duration::from_millis(100) {
        assert!(began.elapsed() < Duration::from_secs(30), "nobody waits for orphans");
    }
    // What it leaves in the background goes on when it ends.
    let left = place.dir.path().join("left");
    copy.ask(&format!("background {}", left.display()));
    copy.tell("exit 5");
    assert_eq!(copy.code(), 5);
    while !left.exists() {
        assert!(began.elapsed() < Duration::from_secs(60), "what was in the background is gone");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(program.ask("count"), "3");
}

#[test]
fn signals_to_the_tool_reach_the_program() {
    if !is_root() {
        eprintln!("SKIPPED: that takes root");
        return;
    }
    let Some(place) = Place::new("answers", false) else { return };
    let program = place.start(&[]);
    place.take(program.pid());
    let pid = program.pid();
    drop(program);
    for pid_namespace in [false, true] {
        for signal in [libc::SIGTERM, libc::SIGUSR1, libc::SIGINT] {
            let mut tool = place.restart(pid_namespace);
            assert_eq!(tool.ask("count"), "1");
            tool.signal(signal);
            assert_eq!(tool.code(), 128 + signal, "pid namespace: {pid_namespace}");
        }
        // Stopped with the tool, and let go on with it.
        let mut tool = place.restart(pid_namespace);
        assert_eq!(tool.ask("count"), "1");
        let program = if pid_namespace { program_of(tool.pid()) } else { pid };
        tool.signal(libc::SIGTSTP);
        wait_for_state(tool.pid(), 'T');
        wait_for_state(program, 'T');
        tool.signal(libc::SIGCONT);
        assert_eq!(tool.ask("count"), "2");
        // Without the tool it goes on.
        tool.signal(libc::SIGKILL);
        tool.child.wait().unwrap();
        assert_eq!(tool.ask("count"), "3");
        tool.tell("exit 0");
        while Path::new(&format!("/proc/{program}/stat")).exists() && state_of(program) != 'Z' {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn state_of(pid: i32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('Z')
}

fn wait_for_state(pid: i32, state: char) {
    let began = Instant::now();
    while state_of(pid) != state {
        assert!(began.elapsed() < Duration::from_secs(30), "process {pid} is {} and not {state}", state_of(pid));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A checkpoint of a machine that had run for longer than this one.
#[test]
fn clocks_do_not_go_backwards() {
    const AHEAD: u64 = 100_000_000_000_000;
    for nobody in [false, true] {
        let Some(place) = Place::new("answers", nobody) else { return };
        if nobody && !user_namespaces(&place) {
            continue;
        }
        let mut program = place.start(&[]);
        let before = clocks(&program.ask("clock"));
        place.take(program.pid());
        let pid = program.pid();
        drop(program);
        place.forge(|state| {
            assert!(state.process.clocks.0 >= before.0 && state.process.clocks.1 >= before.1);
            state.process.clocks.0 += AHEAD;
            state.process.clocks.1 += AHEAD + 5_000_000_000;
        });
        let mut tool = place.restart(false);
        let after = clocks(&tool.ask("clock"));
        assert!(after.0 >= before.0 + AHEAD && after.1 >= before.1 + AHEAD + 5_000_000_000, "{before:?} {after:?}");
        // And not much forward, either.
        assert!(after.0 < before.0 + AHEAD + 300_000_000_000, "{before:?} {after:?}");
        let slept: u64 = tool.ask("sleep").parse().unwrap();
        assert!((50..10_000).contains(&slept), "{slept}");
        if is_root() && !nobody {
            // No other namespace than one for time: it has its number here.
            let [first] = children(tool.pid())[..] else { panic!() };
            assert_eq!(children(first), [pid]);
        }
        tool.tell("exit 9");
        assert_eq!(tool.code(), 9);
    }
}

fn clocks(answer: &str) -> (u64, u64) {
    let (monotonic, boottime) = answer.split_once(' ').unwrap_or_else(|| panic!("the vdso and the kernel differ: {answer}"));
    (monotonic.parse().unwrap(), boottime.parse().unwrap())
}

#[test]
fn a_machine_that_lacks_something_is_refused() {
    let Some(place) = Place::new("answers", true) else { return };
    let program = place.start(&[]);
    place.take(program.pid());
    drop(program);
    place.forge(|state| {
        state.process.machine.flags.push("avx4096".into());
        state.process.machine.hwcap2 |= 1 << 40;
    });
    let why = place.fails(&mut place.restarter(false));
    assert!(why.contains("avx4096") && why.contains("bit 40 of AT_HWCAP2"), "{why}");
}

/// Who cannot have namespaces is told what else it takes.
#[test]
fn without_namespaces_it_is_said_what_it_takes() {
    if !is_root() {
        eprintln!("SKIPPED: that takes root");
        return;
    }
    let Some(place) = Place::new("answers", true) else { return };
    if !user_namespaces(&place) {
        return;
    }
    let program = place.start(&[]);
    place.take(program.pid());
    drop(program);
    // /proc is not whole, as in many containers.
    let tool = format!("{} --exact restarter --nocapture --test-threads 1", place.test.display());
    let nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    let hides = format!("mount -t tmpfs none /proc/irq && exec {nobody} {tool}");
    let none = format!("echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --inh-caps=-all --ambient-caps=-all {tool}");
    let mut hidden = Command::new("unshare");
    hidden.args(["-m", "sh", "-c", &hides]);
    let mut forbidden = place.command("unshare");
    forbidden.args(["-U", "--map-current-user", "--keep-caps", "sh", "-c", &none]);
    for (command, reason) in [(&mut hidden, "/proc cannot be mounted"), (&mut forbidden, "user namespaces are switched off")] {
        let command = command.env("TOWA_TEST_RESTART", place.store()).current_dir(place.dir.path()).stderr(Stdio::piped());
        let why = place.fails(command);
        assert!(why.contains(reason) && why.contains("setcap cap_checkpoint_restore+ep"), "{why}");
    }
}
