//! What pools, checkpoints and servers say is shown, and does nothing: no escape sequence reaches the terminal, no line is forged.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use towa_containers::{HashMap, HashMapOptions};
use towa_epoch::{Options, Pool};

use crate::{command, copy_program, is_root, json, text};

/// A name that clears the screen, forges a line, turns the text around and changes colours by one character.
const NAME: &str = "\u{1b}[2Ja\nother: sound\r\u{202e}\u{9b}31m";

/// Runs it with `--json` and without: whatever it says, it says in lines of its own. Gives the two outputs.
fn looked_at(args: &[&str], target: &Path) -> [Output; 2] {
    [&[][..], &["--json"]].map(|json| {
        let out = command(&[args, json].concat()).arg(target).output().unwrap();
        for said in [&out.stdout, &out.stderr] {
            let said = std::str::from_utf8(said).expect("text");
            let steers = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
            assert!(!said.contains(steers) && !said.lines().any(|line| line.starts_with("other")), "{args:?}: {said:?}");
        }
        out
    })
}

fn passes(args: &[&str], target: &Path) -> [String; 2] {
    looked_at(args, target).map(|out| {
        assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
        text(&out.stdout)
    })
}

#[test]
fn names_of_roots_are_shown_and_do_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let options = Options { heap_len: 32 << 20, ..Options::default() };
    let pool = Pool::open_or_create(&path, &options).unwrap();
    HashMap::open(&pool, NAME, &HashMapOptions::default()).unwrap();
    let other = format!("{NAME}, raw");
    drop(pool.typed_root::<u64>(&other, &mut pool.register().unwrap(), |_| Ok(1)).unwrap());
    pool.close().unwrap();
    let [shown, report] = passes(&["verify"], &path);
    assert!(shown.contains(r"\u{1b}[2Ja\nother: sound\r\u{202e}\u{9b}31m: hash map"), "{shown}");
    assert_eq!(json(&report)["roots"], serde_json::json!([NAME, other]));
    for look in ["info", "recover"] {
        passes(&[look], &path);
    }
}

#[test]
fn what_a_server_says_is_shown_and_does_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            while stream.read(&mut [0; 100]).is_ok_and(|count| count > 0) {
                let _ = stream.write_all("STAT \u{1b}[2J\u{9b} \u{1b}]0;title\u{7}\u{202e}\rother: sound\r\nEND\r\n".as_bytes());
            }
        }
    });
    let [shown, report] = passes(&["stats"], Path::new(&address));
    assert!(shown.contains(r"\u{1b}]0;title\u{7}\u{202e}\rother: sound"), "{shown}");
    json(&report);
    let hostile = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = hostile.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in hostile.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 100]);
            let _ = stream.write_all("SERVER_ERROR \u{1b}[2J\u{9b}31m\rother: sound\r\n".as_bytes());
        }
    });
    assert_eq!(looked_at(&["stats"], Path::new(&address)).map(|out| out.status.code()), [Some(1), Some(1)]);
}

#[test]
fn what_a_checkpoint_says_is_shown_and_does_nothing() {
    if !is_root() {
        eprintln!("SKIPPED: tracing other programs takes root here");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join(NAME);
    std::fs::create_dir(&place).unwrap();
    let program = place.join(NAME);
    assert!(copy_program(Path::new("/bin/sleep"), &program));
    let mut sleeper = Command::new(&program);
    sleeper.arg("1000").arg("0").current_dir(&place).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut sleeper = sleeper.spawn().unwrap();
    let store = dir.path().join("snaps");
    let pid = sleeper.id().to_string();
    let taken = command(&["snap", "take"]).arg(&store).arg(&pid).output().unwrap();
    let _ = sleeper.kill();
    let _ = sleeper.wait();
    if !taken.status.success() {
        eprintln!("SKIPPED: no checkpoint can be taken here: {}", text(&taken.stderr));
        return;
    }
    assert_eq!(text(&taken.stdout).lines().count(), 1, "{:?}", text(&taken.stdout));
    for look in ["list", "inspect", "verify"] {
        passes(&["snap", look], &store);
    }
}

/// Files may have names that are no text. JSON is text all the same, and every command says what it would of another name.
#[test]
fn names_that_are_no_text_make_json_all_the_same() {
    use std::ffi::{OsStr, OsString};
    use std::os::unix::ffi::OsStrExt;
    let dir = tempfile::tempdir().unwrap();
    let odd = OsStr::from_bytes(b"odd\xff\x80");
    let place = dir.path().join(odd);
    std::fs::create_dir(&place).unwrap();
    let at = |name: &str| place.join(name).into_os_string();
    let says = |args: &[&OsStr]| {
        let out = command(&[]).args(args).output().unwrap();
        let said = String::from_utf8(out.stderr).expect("text");
        assert!(!said.contains("panicked"), "{args:?}: {said}");
        let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}: {said}"));
        (out.status.code(), report)
    };
    let run = |words: &[&str], paths: &[&OsString]| {
        let words = words.iter().map(OsStr::new).chain(["--json"].map(OsStr::new));
        says(&words.chain(paths.iter().map(|path| path.as_os_str())).collect::<Vec<_>>())
    };
    let (pool, copy) = (at("pool"), at("copy"));
    for words in [&["info"][..], &["verify"], &["recover"], &["stats"], &["checkpointer"]] {
        run(words, &[&pool]);
    }
    let options = Options { heap_len: 8 << 20, ..Options::default() };
    Pool::open_or_create(Path::new(&pool), &options).unwrap().close().unwrap();
    for words in [&["info"][..], &["verify"], &["recover"]] {
        assert_eq!(run(words, &[&pool]).0, Some(0), "{words:?}");
    }
    assert_eq!(run(&["backup"], &[&pool, &copy]).0, Some(0));
    let program = place.join("sort");
    assert!(copy_program(Path::new("/usr/bin/sort"), &program));
    let (program, store, trace) = (program.into_os_string(), at("store"), at("trace"));
    let mut traced = command(&["xip", "trace", "--json"]);
    let traced = traced.arg(&trace).arg("--").arg(&program).arg("/dev/null").output().unwrap();
    if traced.status.success() {
        let plan: &[&OsStr] =
            &["xip".as_ref(), "plan".as_ref(), "--json".as_ref(), "--budget".as_ref(), "64M".as_ref(), "--trace".as_ref(), &trace];
        let (_, plan) = says(plan);
        let bytes: Vec<u8> = program.as_bytes().to_vec();
        assert!(plan.to_string().contains(&serde_json::json!(bytes).to_string()), "the path as it is: {plan}");
    } else {
        eprintln!("SKIPPED in part: nothing can be traced here: {}", text(&traced.stderr));
    }
    run(&["xip", "stat"], &[&program]);
    let split: &[&OsStr] =
        &["xip".as_ref(), "split".as_ref(), "--json".as_ref(), "--volatile".as_ref(), "--store".as_ref(), &store, &program];
    if says(split).0 == Some(0) {
        for (words, path) in
            [(["xip", "stat"], &program), (["xip", "verify"], &store), (["xip", "gc"], &store), (["xip", "join"], &program)]
        {
            assert_eq!(run(&words, &[path]).0, Some(0), "{words:?}");
        }
    }
    if !is_root() {
        return eprintln!("SKIPPED in part: tracing other programs takes root here");
    }
    let sleep = place.join("sleep");
    assert!(copy_program(Path::new("/bin/sleep"), &sleep));
    let mut sleeper = Command::new(&sleep);
    sleeper.arg("1000").current_dir(&place).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut sleeper = sleeper.spawn().unwrap();
    let snaps = at("snaps");
    let (code, taken) = run(&["snap", "take"], &[&snaps, &sleeper.id().to_string().into()]);
    let _ = sleeper.kill();
    let _ = sleeper.wait();
    if code != Some(0) {
        return eprintln!("SKIPPED in part: no checkpoint can be taken here: {taken}");
    }
    for words in [["snap", "list"], ["snap", "inspect"], ["snap", "verify"]] {
        assert_eq!(run(&words, &[&snaps]).0, Some(0), "{words:?}");
    }
    let (_, state) = run(&["snap", "inspect"], &[&snaps]);
    assert_eq!(state["process"]["directory"], serde_json::json!(place.as_os_str().as_bytes()));
}
