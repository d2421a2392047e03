//! The programs of this machine: each split one does what the whole one does, and is given back to the byte.
//!
//! Of the programs in /usr/bin and /usr/sbin some are taken, spread over the alphabet; `TOWA_XIP_ALL=1` takes all of them.
//! `TOWA_XIP_SWEEP_JSON=FILE` gets the result as JSON. An exception is a program that could not be compared, with its reason; a
//! difference that splitting has made is none: the test fails.

mod sweep_support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use sweep_support::{LIBS, Outcome, Place, begins_like_elf, command, harmless, is_privileged, patiently, run};
use towa_xip::store::Collect;
use towa_xip::{Error, install};

/// Programs that are run if not all are.
const SOME: usize = 700;
/// As many must be identical where the machine has them.
const ENOUGH: usize = 150;
/// Longest time that a run may take.
const LIMIT: Duration = Duration::from_secs(5);

/// Programs that are not run, and why. (Where root runs this test, the programs are run as nobody, so that most are harmless.)
const SKIPPED: [(&str, &str); 22] = [
    ("agetty", "waits for a terminal"),
    ("ctrlaltdel", "about the whole machine"),
    ("grpconv", "changes the users of the machine, whatever it is asked"),
    ("grpunconv", "changes the users of the machine, whatever it is asked"),
    ("init", "about the whole machine"),
    ("killall5", "ends processes that are not its own"),
    ("nologin", "waits on purpose"),
    ("pivot_root", "about the whole machine"),
    ("plipconfig", "about the whole machine"),
    ("pwconv", "changes the users of the machine, whatever it is asked"),
    ("pwunconv", "changes the users of the machine, whatever it is asked"),
    ("rtcwake", "about the whole machine"),
    ("shutdown", "about the whole machine"),
    ("slattach", "waits for a terminal"),
    ("sulogin", "waits for a terminal"),
    ("switch_root", "about the whole machine"),
    ("systemd-tty-ask-password-agent", "waits for others"),
    ("telinit", "about the whole machine"),
    ("unix_chkpwd", "waits on purpose"),
    ("unix_update", "waits on purpose"),
    ("update-passwd", "changes the users of the machine, whatever it is asked"),
    ("vlock", "waits for a terminal"),
];

/// What some programs are asked to do, instead of saying their version. `@text` is a file of text, `@c` one of C.
const ASKED: [(&str, &[&str]); 70] = [
    ("[", &["1", "-lt", "2", "]"]),
    ("b2sum", &["@text"]),
    ("base32", &["@text"]),
    ("base64", &["@text"]),
    ("basename", &["/a/b.c", ".c"]),
    ("bash", &["-c", "for i in 1 2 3; do echo $((i * i)) | cat; done; exit 5"]),
    ("bc", &["@bc"]),
    ("busybox", &["sha256sum", "@text"]),
    ("bzip2", &["-c", "@text"]),
    ("cat", &["-n", "@text"]),
    ("cksum", &["@text"]),
    ("cmp", &["@text", "@c"]),
    ("comm", &["@text", "@c"]),
    ("cut", &["-c2-5", "@text"]),
    ("dash", &["-c", "i=0; while [ $i -lt 100 ]; do i=$((i+1)); done; echo $i; kill -TERM $$"]),
    ("date", &["-u", "-d", "@86400"]),
    ("dd", &["if=@text", "status=none", "bs=7", "count=9"]),
    ("diff", &["@text", "@c"]),
    ("echo", &["hi"]),
    ("expr", &["6", "*", "7"]),
    ("factor", &["18446744073709551557", "1000000007000000"]),
    ("false", &[]),
    ("file", &["@text", "@c"]),
    ("find", &["@dir", "-type", "f", "-size", "-100k"]),
    ("fmt", &["@text"]),
    ("fold", &["-w", "20", "@text"]),
    ("git", &["hash-object", "@text"]),
    ("grep", &["-c", "stem", "@text"]),
    ("gzip", &["-9c", "@text"]),
    ("head", &["-n", "3", "@text"]),
    ("jq", &["-n", "[range(10)] | map(. * .) | add"]),
    ("ls", &["@dir"]),
    ("lz4", &["-c", "@text"]),
    ("mawk", &["BEGIN { print 1 + 1 } { n += NF } END { print n }", "@text"]),
    ("md5sum", &["@text"]),
    ("nl", &["@text"]),
    ("od", &["-c", "@text"]),
    ("openssl", &["dgst", "-sha256", "@text"]),
    ("paste", &["@text", "@c"]),
    ("perl", &["-e", "print join(',', map { $_ ** 2 } 1 .. 20), \"\\n\"; exit 3"]),
    ("printf", &["%05d|%s\n", "42", "x"]),
    ("python3.11", &["-c", "import json, hashlib; print(json.dumps([hashlib.md5(b'x').hexdigest()]))"]),
    ("rev", &["@text"]),
    ("sed", &["-n", "s/stem/root/p", "@text"]),
    ("seq", &["10"]),
    ("sha1sum", &["@text"]),
    ("sha256sum", &["@text"]),
    ("sha512sum", &["@text"]),
    ("sort", &["-r", "@text"]),
    ("split", &["-n", "1/3", "@text"]),
    ("sqlite3", &[":memory:", "select 1+1, upper('x')"]),
    ("stat", &["-c", "%s %f", "@text"]),
    ("sum", &["@text"]),
    ("tac", &["@text"]),
    ("tail", &["-n", "3", "@text"]),
    ("tar", &["-cf", "-", "-C", "@dir", "text"]),
    ("test", &["-f", "@text"]),
    ("true", &[]),
    ("uniq", &["-c", "@text"]),
    ("unexpand", &["-a", "@text"]),
    ("wc", &["@text"]),
    ("x86_64-linux-gnu-as", &["-o", "/dev/stdout", "/dev/null"]),
    ("x86_64-linux-gnu-cpp-12", &["@c"]),
    ("x86_64-linux-gnu-gcc-12", &["-E", "@c"]),
    ("x86_64-linux-gnu-nm", &["-D", "/usr/bin/true"]),
    ("x86_64-linux-gnu-objdump", &["-h", "/usr/bin/true"]),
    ("x86_64-linux-gnu-readelf", &["-lW", "/usr/bin/true"]),
    ("xxd", &["@text"]),
    ("xz", &["-9c", "@text"]),
    ("zstd", &["-19", "-c", "@text"]),
];

/// ELF programs, by name.
fn programs() -> Vec<PathBuf> {
    let folders = ["/usr/bin", "/usr/sbin"].map(fs::read_dir);
    let is_program = |path: &PathBuf| {
        let is_file = fs::symlink_metadata(path).is_ok_and(|about| about.is_file());
        is_file && begins_like_elf(path) && !is_privileged(path)
    };
    let mut found: Vec<PathBuf> =
        folders.into_iter().flatten().flatten().flatten().map(|entry| entry.path()).filter(is_program).collect();
    found.sort_by_key(|path| path.file_name().map(ToOwned::to_owned));
    found
}

/// Which of them are run: those that are asked for something, and as many others as there is time for.
fn chosen(all: Vec<PathBuf>) -> Vec<PathBuf> {
    if std::env::var_os("TOWA_XIP_ALL").is_some_and(|value| value == "1") || all.len() <= SOME {
        return all;
    }
    let (asked, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|path| asked(path).is_some());
    let (wanted, count) = (SOME - asked.len(), others.len());
    let spread = others.into_iter().enumerate().filter(|(index, _)| index * wanted / count != (index + 1) * wanted / count);
    let mut chosen: Vec<PathBuf> = spread.map(|(_, path)| path).chain(asked).collect();
    chosen.sort_by_key(|path| path.file_name().map(ToOwned::to_owned));
    chosen
}

fn name_of(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

fn asked(path: &Path) -> Option<&'static [&'static str]> {
    ASKED.iter().find(|(name, _)| *name == name_of(path)).map(|(_, arguments)| *arguments)
}

/// Why a program was not compared, or not to the end.
type Why = String;

struct Sweep {
    place: Mutex<Place>,
    input: PathBuf,
}

impl Sweep {
    fn new() -> Sweep {
        let place = Place::new();
        let input = place.folder("input", false);
        let lines = (0..2000).map(|line| format!("{} stem, leaf and\troot of line {line}\n", line * 7919 % 1000));
        fs::write(input.join("text"), lines.collect::<String>()).unwrap();
        fs::write(input.join("c"), "#define SQUARE(x) ((x) * (x))\nint main(void) { return SQUARE(3) - 9; }\n").unwrap();
        fs::write(input.join("bc"), "scale=50\n4*a(1)\n2^200\nquit\n").unwrap();
        Sweep { place: Mutex::new(place), input }
    }

    fn arguments(&self, asked: &[&str]) -> Vec<String> {
        let path = |name: &str| self.input.join(name).to_str().unwrap().to_owned();
        let inputs = [("@text", path("text")), ("@c", path("c")), ("@bc", path("bc")), ("@dir", path(""))];
        let fill = |word: &&str| inputs.iter().fold((*word).to_owned(), |word, (name, path)| word.replace(name, path));
        asked.iter().map(fill).collect()
    }

    /// What it does in an empty directory of its own, with its own name left out.
    fn run(&self, program: &Path, arguments: &[String], home: &Path) -> Outcome {
        let _ = fs::remove_dir_all(home);
        fs::create_dir_all(home).unwrap();
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(home, everybody).unwrap();
        run(harmless(command(program, arguments, home)), LIMIT).replacing(program, "@program")
    }

    /// Splits one and compares; says why it is an exception, or what is different.
    fn check(&self, program: &Path, scratch: &Path) -> Result<Option<Why>, String> {
        if let Some((_, why)) = SKIPPED.iter().find(|(name, _)| *name == name_of(program)) {
            return Ok(Some(format!("skipped: {why}")));
        }
        let out = scratch.join("split").join(name_of(program));
        for folder in ["split", "whole"] {
            fs::create_dir_all(scratch.join(folder)).unwrap();
        }
        {
            let mut place = self.place.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            match patiently(|| install::split(&place.store, program, Some(&out), LIBS)) {
                Err(Error::Unfit { why, .. }) => return Ok(Some(format!("not split: {why}"))),
                Err(other) => return Err(format!("split: {other}")),
                Ok(_) => drop(place.add_libraries(program)),
            }
        }
        let exception = self.compare(program, &out, scratch)?;
        let back = scratch.join("back");
        install::join(&out, Some(&back), None).map_err(|why| format!("join: {why}"))?;
        if fs::read(&back).unwrap() != fs::read(program).unwrap() {
            return Err("join gives another file".into());
        }
        Ok(exception)
    }

    fn compare(&self, program: &Path, split: &Path, scratch: &Path) -> Result<Option<Why>, String> {
        let home = scratch.join("home");
        let runs: Vec<Vec<String>> = match asked(program) {
            Some(asked) => vec![self.arguments(asked)],
            None => vec![vec!["--version".into()], vec!["--help".into()]],
        };
        let mut why = None;
        for arguments in runs {
            let of_whole = self.run(program, &arguments, &home);
            let of_split = self.run(split, &arguments, &home);
            if of_whole != of_split {
                why = Some(self.explain(program, split, &arguments, [&of_whole, &of_split], scratch)?);
            } else if of_whole.status == "timed out" {
                why = Some(format!("does not end with {arguments:?}; both said the same until they were ended"));
            }
            // Those that know no --version are asked for --help as well.
            if of_whole.is_success() || why.is_some() {
                break;
            }
        }
        Ok(why)
    }

    /// Why the two did not do the same, if splitting is not the reason: the whole program does not always do the same, or not elsewhere.
    fn explain(
        &self,
        program: &Path,
        split: &Path,
        arguments: &[String],
        [whole, of_split]: [&Outcome; 2],
        scratch: &Path,
    ) -> Result<Why, String> {
        let home = scratch.join("home");
        let again = self.run(program, arguments, &home);
        if again != *whole {
            let agrees = again.status != whole.status || *of_split.status == whole.status;
            if agrees && same_where_constant([whole, &again, of_split]) {
                return Ok(format!("{arguments:?}: its own runs differ; the rest is the same"));
            }
        }
        let copy = scratch.join("whole").join(name_of(program));
        fs::copy(program, &copy).unwrap();
        let elsewhere = self.run(&copy, arguments, &home);
        fs::remove_file(&copy).unwrap();
        if elsewhere == *of_split || elsewhere == self.run(split, arguments, &home) {
            return Ok(format!(
                "{arguments:?}: it depends on where it lies; a whole copy elsewhere does the same as the split one"
            ));
        }
        if self.order_varies(program, split, arguments, [whole, of_split], &home) {
            return Ok(format!("{arguments:?}: the order of its lines differs from run to run, whole or split"));
        }
        Err(format!(
            "{arguments:?}\n    whole: {}\n    again: {}\n    elsewhere: {}\n    split: {}",
            whole.brief(),
            again.brief(),
            elsewhere.brief(),
            of_split.brief()
        ))
    }

    /// Whether both said the same lines in different orders, and either does not always keep to its own: as programs whose children
    /// write to the same place, each when it gets there.
    fn order_varies(
        &self,
        program: &Path,
        split: &Path,
        arguments: &[String],
        [whole, of_split]: [&Outcome; 2],
        home: &Path,
    ) -> bool {
        let same = whole.status == of_split.status
            && sorted(&whole.out) == sorted(&of_split.out)
            && sorted(&whole.err) == sorted(&of_split.err);
        same && (0..20).any(|_| self.run(program, arguments, home) != *whole || self.run(split, arguments, home) != *of_split)
    }
}

/// The lines of a text, in an order that is always the same.
fn sorted(text: &[u8]) -> Vec<&[u8]> {
    let mut lines = text.split(|byte| *byte == b'\n').collect::<Vec<_>>();
    lines.sort_unstable();
    lines
}

/// Whether the third has said the same as the first two in each line in which these agree.
fn same_where_constant(all: [&Outcome; 3]) -> bool {
    let same = |texts: [&[u8]; 3]| {
        let lines = texts.map(|text| text.split(|byte| *byte == b'\n').collect::<Vec<_>>());
        let [first, second, third] = &lines;
        let constant = first.iter().zip(second).zip(third).filter(|((a, b), _)| a == b).all(|((a, _), c)| a == c);
        constant && (first.len() != second.len() || second.len() == third.len())
    };
    same(all.map(|outcome| outcome.out.as_slice())) && same(all.map(|outcome| outcome.err.as_slice()))
}

#[test]
fn split_programs_do_what_whole_ones_do() {
    let start = Instant::now();
    let there = programs();
    let there_are = there.len();
    let programs = chosen(there);
    let sweep = Sweep::new();
    let next = AtomicUsize::new(0);
    let exceptions = Mutex::new(BTreeMap::<String, Why>::new());
    let different = Mutex::new(Vec::<String>::new());
    std::thread::scope(|scope| {
        for worker in 0..2 {
            let scratch = sweep.place.lock().unwrap().folder(&format!("worker-{worker}"), false);
            let (sweep, programs, next, exceptions, different) = (&sweep, &programs, &next, &exceptions, &different);
            scope.spawn(move || {
                while let Some(program) = programs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match sweep.check(program, &scratch) {
                        Ok(None) => {}
                        Ok(Some(why)) => drop(exceptions.lock().unwrap().insert(program.display().to_string(), why)),
                        Err(what) => different.lock().unwrap().push(format!("{}: {what}", program.display())),
                    }
                    // Not the folder: what lay in one that is gone may lie on a disk that is not there, and keeps its text.
                    let _ = fs::remove_file(scratch.join("split").join(name_of(program)));
                }
            });
        }
    });
    let (exceptions, different) = (exceptions.into_inner().unwrap(), different.into_inner().unwrap());
    let identical = programs.len() - exceptions.len() - different.len();
    let place = sweep.place.into_inner().unwrap();
    println!(
        "programs {} (of {there_are}) identical {identical} exceptions {} different {}; libraries {}; {:.0} s",
        programs.len(),
        exceptions.len(),
        different.len(),
        place.library_count(),
        start.elapsed().as_secs_f64()
    );
    for (program, why) in &exceptions {
        println!("exception: {program}: {why}");
    }
    if let Some(file) = std::env::var_os("TOWA_XIP_SWEEP_JSON") {
        let exceptions: Vec<_> = exceptions.iter().map(|(program, why)| json!({ "program": program, "why": why })).collect();
        let all =
            json!({ "programs": programs.len(), "identical": identical, "different": different.len(), "exceptions": exceptions });
        fs::write(&file, serde_json::to_vec_pretty(&all).unwrap()).unwrap();
    }
    assert!(different.is_empty(), "splitting makes a difference:\n{}", different.join("\n"));
    check_store(&place);
    if there_are < ENOUGH {
        return eprintln!("SKIP: this machine has {there_are} programs only; {identical} are identical");
    }
    assert!(identical >= ENOUGH, "{identical} of {} programs are too few to prove anything", programs.len());
}

/// The store has nothing to complain of, and keeps the texts of libraries alone once it is told that the programs are gone.
fn check_store(place: &Place) {
    let found = place.store.verify(false, |_, _| {}).unwrap();
    assert!(found.problems.is_empty(), "{:?}", found.problems);
    assert_eq!(found.libraries, place.library_count());
    place.store.write().unwrap().collect(Collect { force: true, ..Collect::default() }).unwrap();
    let left = place.store.verify(false, |_, _| {}).unwrap();
    assert!(left.problems.is_empty() && left.stale.is_empty() && left.programs == 0, "{left:?}");
    assert_eq!((left.libraries, left.texts), (found.libraries, found.libraries), "a text for each library, and no other");
}
