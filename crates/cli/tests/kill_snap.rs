//! The kill test of `towa snap`: the tool is killed with SIGKILL at random moments, and neither the program nor a checkpoint may suffer.
//!
//! ```text
//!   steps ──► file of lines, each a pure function of its number      goes on, whatever befalls the tool
//!   towa snap take | run | rm, two at once ──► killed                 before, amid and behind what it does: counted
//!   list, verify of every one                                        after each kill: only complete ones, and sound
//!   steps killed ──► towa snap restart ──► steps                      now and then: goes on to the byte
//! ```
//!
//! What must always hold, after every kill: the program goes on, with its signal mask, its descriptors and its memory; all checkpoints that
//! are listed are sound, and those that were told are there; the next command removes what is unfinished; the next complete `take`
//! leaves nothing of a tool in the program.
//!
//! TOWA_KILL_ROUNDS sets the number of rounds (40 of `take`, fewer of the others), TOWA_SEED repeats their moments.

#[path = "../../snap/tests/places/mod.rs"]
mod places;
#[allow(dead_code, reason = "the other kill tests use the rest")]
#[path = "kill/process.rs"]
mod process;
#[path = "kill/steps.rs"]
mod steps;

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use places::Place;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use steps::Program;

const MEGABYTES: u32 = 12;

fn rounds(one_in: usize) -> usize {
    let rounds = std::env::var("TOWA_KILL_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(40);
    (rounds / one_in).max(2)
}

fn seed(salt: u64) -> SmallRng {
    let given = std::env::var("TOWA_SEED").ok().and_then(|text| text.trim().parse().ok());
    let seed: u64 =
        given.unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().expect("a clock after 1970").as_nanos() as u64 % 1_000_000_000);
    println!("kill test of snap: TOWA_SEED={seed}");
    SmallRng::seed_from_u64(seed ^ salt)
}

/// A program, a directory for its checkpoints, and what is known of both.
struct Scene {
    program: Program,
    store: PathBuf,
    told: BTreeSet<u64>,
    /// When nobody had looked at the program yet.
    fresh: steps::Footprint,
    place: Place,
}

fn snap(args: &[&str]) -> Command {
    let mut command = process::towa();
    command.arg("snap").args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Whether the program is this process's child when its parent has died.
fn become_subreaper() {
    // SAFETY: numbers only.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }, 0);
}

fn may_trace() -> bool {
    let permitted = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").map_or(true, |scope| scope.trim() != "3");
    // SAFETY: takes nothing, cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    if !(permitted && root) {
        eprintln!(
            "SKIPPED: restarting a program with its old number takes CAP_CHECKPOINT_RESTORE (root), and tracing it must be allowed"
        );
    }
    permitted && root
}

impl Scene {
    /// At each place there is. `by_run`: the program is a child of `towa snap run` with these options.
    fn at(place: Place, by_run: Option<&[&str]>) -> Option<Scene> {
        if !may_trace() {
            return None;
        }
        become_subreaper();
        let (store, top) = (place.dir(), place.mount_point());
        let binary = steps::compile(&top)?;
        let tool = by_run.map(|options| {
            let mut command = process::towa();
            command.args(["snap", "run"]).args(options).arg(&store).stderr(steps::complaints(&top.join("run.complaints")));
            command
        });
        let program = Program::start(&binary, MEGABYTES, top.join("lines"), tool);
        let fresh = program.footprint();
        Some(Scene { program, store, told: BTreeSet::new(), fresh, place })
    }

    fn dir(&self) -> &str {
        self.store.to_str().expect("temporary paths are text")
    }

    fn take(&self, options: &[&str]) -> Command {
        let pid = self.program.pid.to_string();
        let mut command = snap(&["take", "--json"]);
        command.args(options).args([self.dir(), &pid]);
        command
    }

    /// A whole one; whatever was left by others is gone then.
    fn complete_take(&mut self) -> u64 {
        let out = self.take(&[]).output().expect("towa runs");
        let number = number_taken(&out).unwrap_or_else(|| panic!("take: {}: {}", out.status, String::from_utf8_lossy(&out.stderr)));
        self.told.insert(number);
        assert_eq!(self.unfinished(), Vec::<PathBuf>::new(), "a take that succeeded leaves what others had not finished");
        let now = self.program.footprint();
        assert_eq!((now.stubs, now.mask.as_str(), now.traced), (0, steps::MASK, false), "left in the program");
        number
    }

    /// Directories that are no checkpoint yet, or none any more.
    fn unfinished(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.store).map(|entries| entries.flatten().map(|entry| entry.path()).collect());
        let mut all: Vec<PathBuf> = entries.unwrap_or_default();
        all.retain(|path| path.extension().is_some_and(|end| end == "tmp"));
        all
    }

    fn listed(&self) -> Vec<u64> {
        if !self.store.join("store").exists() {
            return Vec::new();
        }
        let said = process::must_pass(&["snap", "list", "--json", self.dir()]);
        let list: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        let lines = list.as_array().expect("a list");
        assert!(lines.iter().all(|line| line["damaged"].is_null() && line["process"] == self.program.pid), "{said}");
        lines.iter().map(|line| line["number"].as_u64().expect("a number")).collect()
    }

    /// After a kill. Gives what is listed.
    fn check(&mut self) -> Vec<u64> {
        self.program.must_go_on();
        self.program.must_be_right();
        let listed = self.listed();
        for number in &listed {
            process::must_pass(&["snap", "verify", "--json", &format!("{}@{number}", self.dir())]);
        }
        let missing: Vec<&u64> = self.told.iter().filter(|told| !listed.contains(told)).collect();
        assert!(missing.is_empty(), "told, and gone: {missing:?} of {listed:?}");
        listed
    }

    /// Kills the program, and starts it again from the newest checkpoint.
    fn die_and_restart(&mut self) {
        self.program.must_be_right();
        self.program.kill();
        self.program.restart(&self.store.clone());
        self.program.must_be_right();
    }

    /// `rm --keep`, which also forgets what was told of the others.
    fn keep(&mut self, count: usize) {
        process::must_pass(&["snap", "rm", "--keep", &count.to_string(), "--json", self.dir()]);
        self.told = self.listed().into_iter().collect();
        assert!(self.told.len() <= count && self.unfinished().is_empty());
    }

    fn end(self) -> Place {
        let Scene { program, place, .. } = self;
        program.end();
        place
    }
}

fn number_taken(out: &Output) -> Option<u64> {
    let said: serde_json::Value = serde_json::from_slice(&out.stdout).ok()?;
    said["checkpoint"].as_u64().filter(|_| out.status.success())
}

/// When to kill.
enum Moment {
    After(Duration),
    /// So long after an unfinished directory appears, or (true) disappears.
    At(bool, Duration),
}

impl Moment {
    /// Somewhere in what takes `whole`, or close to the steps that matter.
    fn draw(rng: &mut SmallRng, whole: Duration) -> Moment {
        let little = Duration::from_micros(rng.random_range(0..400));
        match rng.random_range(0..10) {
            0..2 => Moment::After(whole.mul_f64(rng.random_range(0.0..0.15))),
            2..6 => Moment::After(whole.mul_f64(rng.random_range(0.1..1.0))),
            6..8 => Moment::At(false, little),
            _ => Moment::At(true, little),
        }
    }

    /// Waits for it; `tool` may end before that.
    fn wait(&self, scene: &Scene, tool: &mut Child) {
        let began = Instant::now();
        let Moment::At(gone, later) = self else {
            let Moment::After(time) = self else { unreachable!() };
            while began.elapsed() < *time {
                std::thread::sleep(Duration::from_micros(50).min(*time - began.elapsed().min(*time)));
            }
            return;
        };
        let mut there = false;
        while tool.try_wait().expect("a child").is_none() {
            let now = !scene.unfinished().is_empty();
            if now != there && now != *gone {
                std::thread::sleep(*later);
                return;
            }
            there = now;
        }
    }
}

/// How far tools were when they were killed.
#[derive(Debug, Default)]
struct Phases {
    before: usize,
    amid: usize,
    after: usize,
    ended: usize,
    stub_left: usize,
}

impl Phases {
    fn must_all_be_there(&self, what: &str, rounds: usize) {
        println!("{what}: {rounds} rounds: {self:?}");
        let missed = [self.before, self.amid, self.after + self.ended].contains(&0);
        if rounds >= 20 {
            assert!(!missed, "{what}: no kill came in some phase: this test looks at nothing there: {self:?}");
        } else if missed {
            eprintln!("SKIPPED: {what}: too few rounds to have killed in each phase: {self:?}");
        }
    }
}

#[test]
fn killing_take_harms_neither_program_nor_checkpoints() {
    let mut rng = seed(1);
    let all = rounds(1);
    let mut phases = Phases::default();
    let places: Vec<Place> = Place::both().collect();
    let each = all.div_ceil(places.len());
    for place in places {
        let Some(mut scene) = Scene::at(place, None) else { return };
        scene.complete_take();
        let began = Instant::now();
        scene.complete_take();
        let whole = began.elapsed();
        for round in 0..each {
            let before = scene.listed();
            let mut tool = scene.take(&[]).spawn().expect("towa starts");
            Moment::draw(&mut rng, whole).wait(&scene, &mut tool);
            let ended = tool.try_wait().expect("a child").is_some();
            tool.kill().expect("a child of ours");
            let out = tool.wait_with_output().expect("a child of ours");
            scene.told.extend(number_taken(&out));
            let (amid, left) = (!scene.unfinished().is_empty(), scene.program.footprint().stubs);
            let listed = scene.check();
            match (ended, amid, listed.len() > before.len()) {
                (true, ..) => phases.ended += 1,
                (_, true, _) => phases.amid += 1,
                (.., true) => phases.after += 1,
                _ => phases.before += 1,
            }
            phases.stub_left += usize::from(left > 0);
            assert!(left <= 2, "round {round}: stubs of killed tools pile up: {left}");
            if round % 5 == 4 {
                scene.complete_take();
                scene.die_and_restart();
                scene.keep(3);
            }
        }
        scene.complete_take();
        // All that tools have left is gone. (A little more of the stack may be mapped than at the start.)
        let (fresh, now) = (scene.fresh.kilobytes, scene.program.footprint().kilobytes);
        assert!(now <= fresh + 200, "{fresh} KiB of memory became {now}");
        scene.end();
    }
    phases.must_all_be_there("take", all);
}

#[test]
fn killing_run_lets_the_program_go_on() {
    let mut rng = seed(2);
    let mut phases = Phases::default();
    let all = rounds(6);
    for round in 0..all {
        let place = if round % 2 == 0 { Some(Place::at_hand()) } else { Place::xfs() };
        let Some(place) = place else { continue };
        let Some(mut scene) = Scene::at(place, Some(&["--every", "50ms", "--keep", "3"])) else { return };
        let began = Instant::now();
        while scene.listed().is_empty() {
            assert!(began.elapsed() < Duration::from_secs(60), "no checkpoint: {}", complaints(&scene));
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_micros(rng.random_range(0..400_000)));
        assert!(scene.program.tool().try_wait().expect("a child").is_none(), "it ended: {}", complaints(&scene));
        scene.program.tool().kill().expect("a child of ours");
        scene.program.adopt();
        let amid = !scene.unfinished().is_empty();
        phases.amid += usize::from(amid);
        phases.before += usize::from(!amid);
        let listed = scene.check();
        // Between taking one and removing the oldest there are four.
        assert!((1..=4).contains(&listed.len()), "{listed:?}");
        // Either at once from what there is, or after another tool has taken one.
        if rng.random() {
            scene.complete_take();
        }
        scene.die_and_restart();
        scene.complete_take();
        scene.end();
    }
    println!("run: {all} rounds: {phases:?}");
}

fn complaints(scene: &Scene) -> String {
    std::fs::read_to_string(scene.place.mount_point().join("run.complaints")).unwrap_or_default()
}

#[test]
fn killing_rm_leaves_the_others_whole() {
    let mut rng = seed(3);
    let mut phases = Phases::default();
    let places: Vec<Place> = Place::both().collect();
    let all = rounds(2);
    let each = all.div_ceil(places.len());
    for place in places {
        let Some(mut scene) = Scene::at(place, None) else { return };
        let mut whole = Duration::from_millis(10);
        for round in 0..each {
            while scene.told.len() < 6 {
                scene.complete_take();
            }
            if round % 5 == 0 {
                let began = Instant::now();
                scene.keep(5);
                whole = began.elapsed();
                scene.complete_take();
            }
            let there: Vec<u64> = scene.told.iter().copied().collect();
            let (args, goes): (Vec<String>, Vec<u64>) = match rng.random_range(0..2) {
                0 => (vec!["--keep".into(), "2".into(), scene.dir().into()], there[..there.len() - 2].to_vec()),
                _ => {
                    let number = there[rng.random_range(0..there.len() - 1)];
                    (vec![scene.dir().into(), number.to_string()], vec![number])
                }
            };
            let mut command = snap(&["rm", "--json"]);
            let mut tool = command.args(&args).spawn().expect("towa starts");
            Moment::draw(&mut rng, whole).wait(&scene, &mut tool);
            let ended = tool.try_wait().expect("a child").is_some();
            tool.kill().expect("a child of ours");
            tool.wait().expect("a child of ours");
            // Those may be gone, the others are there.
            scene.told.retain(|number| !goes.contains(number));
            let amid = !scene.unfinished().is_empty();
            let listed = scene.check();
            let gone = goes.iter().filter(|number| !listed.contains(number)).count();
            match (ended, amid || (gone > 0 && gone < goes.len()), gone) {
                (true, ..) => phases.ended += 1,
                (_, true, _) => phases.amid += 1,
                (.., 0) => phases.before += 1,
                _ => phases.after += 1,
            }
            scene.told = listed.into_iter().collect();
            if round % 5 == 4 {
                scene.keep(4);
                scene.die_and_restart();
            }
        }
        // Everything that nobody uses any more has been given back.
        scene.complete_take();
        scene.keep(1);
        let (used, memory) = (used_by(&scene.store), u64::from(MEGABYTES) << 20);
        assert!(used < memory * 3 / 2 + (2 << 20), "one checkpoint of {memory} bytes takes {used}");
        scene.die_and_restart();
        scene.end();
    }
    phases.must_all_be_there("rm", all);
}

/// Bytes on the medium, each file once however many names it has.
fn used_by(dir: &Path) -> u64 {
    let (mut folders, mut seen, mut bytes) = (vec![dir.to_owned()], BTreeSet::new(), 0);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("listed").flatten() {
            let status = entry.metadata().expect("a status");
            if status.is_dir() {
                folders.push(entry.path());
            }
            if seen.insert(status.ino()) {
                bytes += status.blocks() * 512;
            }
        }
    }
    bytes
}

#[test]
fn two_tools_at_once_wait_or_say_so() {
    let mut rng = seed(4);
    let all = rounds(2);
    let (mut busy, mut both, mut killed) = (0, 0, 0);
    let Some(mut scene) = Scene::at(Place::at_hand(), None) else { return };
    scene.complete_take();
    for round in 0..all {
        let other = match rng.random_range(0..3) {
            0 => scene.take(&[]),
            1 => {
                let mut command = snap(&["rm", "--json", "--keep", "2"]);
                command.arg(scene.dir());
                command
            }
            // Of the same program, elsewhere.
            _ => {
                let mut command = snap(&["take", "--json", "--keep", "1"]);
                command.arg(format!("{}.other", scene.dir())).arg(scene.program.pid.to_string());
                command
            }
        };
        scene.told.clear(); // one of the two may be removing
        let mut tools = [scene.take(&[]), other];
        let mut running: Vec<Child> = Vec::new();
        for tool in &mut tools {
            running.push(tool.spawn().expect("towa starts"));
            std::thread::sleep(Duration::from_micros(rng.random_range(0..25_000)));
        }
        if rng.random_bool(0.3) {
            std::thread::sleep(Duration::from_micros(rng.random_range(0..25_000)));
            running[rng.random_range(0..2)].kill().expect("a child of ours");
            killed += 1;
        }
        let ends: Vec<Output> = running.into_iter().map(|tool| tool.wait_with_output().expect("a child of ours")).collect();
        for out in &ends {
            let said = String::from_utf8_lossy(&out.stderr);
            match out.status.code() {
                Some(0) | None => {}
                Some(4) => assert!(said.contains("in use by another `towa snap`"), "round {round}: {said}"),
                code => panic!("round {round}: {code:?}: {said}"),
            }
        }
        busy += ends.iter().filter(|out| out.status.code() == Some(4)).count();
        both += usize::from(ends.iter().all(|out| out.status.success()));
        scene.check();
        if round % 5 == 4 {
            scene.complete_take();
            scene.keep(2);
            scene.die_and_restart();
        }
    }
    scene.complete_take();
    scene.die_and_restart();
    println!(
        "two at once: {all} rounds: {busy} were told that the directory is in use, both ended well {both} times, {killed} were killed"
    );
    scene.end();
}
