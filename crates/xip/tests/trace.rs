//! `towa_xip::trace` on real trees of processes.
//!
//! What must hold: forks and execs are exact, whatever the order of events; faults are all seen where perf is permitted; the command and
//! its children behave as they would untraced.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use towa_xip::Error;
use towa_xip::trace::{Options, start, trace};
use towa_xip::traced::{ObjectKind, Trace, TracedObject};

fn words(command: &[&str]) -> Vec<OsString> {
    command.iter().map(OsString::from).collect()
}

fn traced(command: &[&str]) -> Trace {
    trace(&words(command), &Options::default()).unwrap_or_else(|e| panic!("{command:?}: {e}"))
}

fn sh(script: &str) -> Trace {
    traced(&["sh", "-c", script])
}

/// (processes, forks, execs)
fn counts(trace: &Trace) -> (u64, u64, u64) {
    (trace.processes, trace.forks, trace.execs)
}

fn named<'a>(trace: &'a Trace, name: &str) -> &'a TracedObject {
    let is_named = |object: &&TracedObject| object.path.file_name().is_some_and(|found| found.to_string_lossy() == name);
    trace.objects.iter().find(is_named).unwrap_or_else(|| panic!("{name} is not in {trace:#?}"))
}

/// A program from C.
fn compiled(dir: &Path, name: &str, source: &str) -> PathBuf {
    let (from, to) = (dir.join(format!("{name}.c")), dir.join(name));
    std::fs::write(&from, source).unwrap();
    let status = Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(&to).arg(&from).status().expect("a C compiler");
    assert!(status.success());
    to
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Whether faults can be seen one by one here.
fn sees_faults(test: &str) -> bool {
    let found = traced(&["true"]);
    if !found.exact {
        eprintln!("SKIP: {test}: {:?}", found.notes);
    }
    found.exact
}

#[test]
fn forks_and_execs_of_a_shell_are_exact() {
    let found = sh("true; /usr/bin/env true; (sleep 0.1 & wait); ls / | cat >/dev/null");
    // Forks: env, the subshell, sleep within it, ls, cat. Execs: sh, env, true by env, sleep, ls, cat.
    assert_eq!(counts(&found), (6, 5, 6), "{found:#?}");
    assert_eq!(found.exit_status, 0);
    let shell = std::fs::canonicalize("/bin/sh").unwrap();
    let shell = named(&found, &shell.file_name().unwrap().to_string_lossy());
    // Four of the five are followed at once by an exec; the subshell is not.
    assert_eq!((shell.kind, shell.execs, shell.forks), (ObjectKind::Program, 1, 1));
    assert_eq!((named(&found, "ls").execs, named(&found, "ls").forks), (1, 0));
}

#[test]
fn threads_are_no_forks() {
    let dir = tempfile::tempdir().unwrap();
    let source = r#"
        #include <pthread.h>
        #include <unistd.h>
        #include <sys/wait.h>
        static void *run(void *arg) { if (arg) { if (!fork()) _exit(0); wait(0); } return 0; }
        int main(void) {
            pthread_t t[16];
            for (long i = 0; i < 16; i++) pthread_create(&t[i], 0, run, (void *)(long)(i == 7));
            for (int i = 0; i < 16; i++) pthread_join(t[i], 0);
            return 3;
        }"#;
    let found = traced(&[text(&compiled(dir.path(), "threads", source))]);
    assert_eq!((counts(&found), found.exit_status), ((2, 1, 1), 3));
    assert_eq!(named(&found, "threads").forks, 1);
}

#[test]
fn a_thread_that_executes_a_program_takes_the_process_along() {
    let dir = tempfile::tempdir().unwrap();
    let source = r#"
        #include <pthread.h>
        #include <unistd.h>
        static void *idle(void *arg) { pause(); return arg; }
        static void *run(void *arg) { execl("/bin/sh", "sh", "-c", "exit 5", (char *)0); return arg; }
        int main(void) {
            pthread_t t;
            for (int i = 0; i < 4; i++) pthread_create(&t, 0, idle, 0);
            pthread_create(&t, 0, run, 0);
            pause();
        }"#;
    let found = traced(&[text(&compiled(dir.path(), "takeover", source))]);
    assert_eq!((counts(&found), found.exit_status), ((1, 0, 2), 5));
}

#[test]
fn vfork_and_posix_spawn_are_forks_followed_by_an_exec() {
    let dir = tempfile::tempdir().unwrap();
    let source = r#"
        #include <spawn.h>
        #include <sys/wait.h>
        #include <unistd.h>
        int main(void) {
            char *argv[] = { "true", 0 };
            pid_t pid;
            posix_spawnp(&pid, "true", 0, 0, argv, 0);
            wait(0);
            if (!vfork()) { execvp("true", argv); _exit(1); }
            wait(0);
            return 0;
        }"#;
    let found = traced(&[text(&compiled(dir.path(), "spawns", source))]);
    assert_eq!(counts(&found), (3, 2, 3));
    assert_eq!((named(&found, "spawns").forks, named(&found, "true").execs), (0, 2));
}

#[test]
fn a_chain_of_execs_is_one_process() {
    let found = traced(&["env", "nice", "env", "sh", "-c", "exit 9"]);
    assert_eq!((counts(&found), found.exit_status), ((1, 0, 4), 9));
    assert_eq!(named(&found, "env").execs, 2);
}

#[test]
fn an_exec_that_fails_does_not_count() {
    let found = sh("/proc/nonexistent/program 2>/dev/null; (exec /etc/passwd) 2>/dev/null; true");
    assert_eq!((found.execs, found.exit_status), (1, 0));
}

#[test]
fn a_command_that_is_not_there_is_an_error() {
    for (command, kind) in
        [("/proc/nonexistent/program", std::io::ErrorKind::NotFound), ("/etc", std::io::ErrorKind::PermissionDenied)]
    {
        match trace(&words(&[command]), &Options::default()) {
            Err(Error::Io { source, doing: "starting", .. }) => assert_eq!(source.kind(), kind),
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(trace(&[], &Options::default()), Err(Error::Wrong(_))));
    assert!(trace(&words(&["a\0b"]), &Options::default()).is_err());
}

#[test]
fn signals_arrive_and_end_what_they_end() {
    assert_eq!(sh("kill -TERM $$").exit_status, 128 + 15);
    assert_eq!(sh("kill -KILL $$").exit_status, 128 + 9);
    assert_eq!(sh("trap 'exit 4' USR1; kill -USR1 $$; sleep 5").exit_status, 4);
    let inner = sh("sh -c 'kill -TERM $$'; test $? = 143");
    assert_eq!((inner.exit_status, inner.processes), (0, 2));
}

#[test]
fn the_command_can_be_sent_a_signal() {
    let running = start(&words(&["sleep", "60"]), &Options::default()).unwrap();
    let leader = running.leader();
    leader.signal(libc::SIGTERM).unwrap();
    assert_eq!(running.finish().unwrap().exit_status, 128 + 15);
    leader.signal(libc::SIGTERM).unwrap();
}

#[test]
fn a_stopped_child_stays_stopped_until_it_is_continued() {
    let dir = tempfile::tempdir().unwrap();
    for signal in ["STOP", "TSTP"] {
        let (mark, go) = (dir.path().join(signal), dir.path().join(format!("go-{signal}")));
        let (mark, go) = (text(&mark), text(&go));
        // With job control, in a group of its own that is no orphan: otherwise TSTP is ignored.
        let script = format!(
            "set -m; (while ! test -e {go}; do sleep 0.05; done; echo >{mark}) & sleep 0.2; kill -{signal} -$!; echo >{go}; sleep 0.8; \
             test -e {mark} && exit 3; kill -CONT -$!; wait $!; test -e {mark} || exit 4"
        );
        let found = traced(&["bash", "-c", &script]);
        assert_eq!(found.exit_status, 0, "{signal}");
    }
}

#[test]
fn two_hundred_short_processes_leave_no_gap() {
    let found = sh("i=0; while [ $i -lt 200 ]; do /bin/true; i=$((i+1)); done");
    assert_eq!(counts(&found), (201, 200, 201));
    let tool = named(&found, "true");
    assert_eq!((tool.execs, tool.forks), (200, 0));
    if !sees_faults("two_hundred_short_processes_leave_no_gap") {
        return;
    }
    assert!(found.exact, "{:?}", found.notes);
    assert_eq!(tool.mapped_by, 200);
    // Each run faults at least once in its text and once in its data.
    assert!(tool.text.pages >= 200 && tool.data.pages >= 200, "{tool:?}");
    let libc = named(&found, "libc.so.6");
    assert_eq!((libc.kind, libc.execs, libc.mapped_by), (ObjectKind::Library, 0, 201));
}

/// 64 functions, each at the start of a page of its own, of which every fourth is called; 32 pages of data, all written to. In 24 pages of
/// the file that is named, mapped to be written and executed, something is written.
const PAGES: &str = r#"
    #include <fcntl.h>
    #include <sys/mman.h>
    #define F(n) __attribute__((noinline, noclone, aligned(4096))) int f##n(int x) { return x * n + 1; }
    #define F4(n) F(n##0) F(n##1) F(n##2) F(n##3)
    F4(1) F4(2) F4(3) F4(4) F4(5) F4(6) F4(7) F4(8) F4(9) F4(10) F4(11) F4(12) F4(13) F4(14) F4(15) F4(16)
    __attribute__((aligned(4096))) volatile char data[32 * 4096] = { 1 };
    int main(int argc, char **argv) {
        int x = argc;
        if (argc > 1) {
            char *p = mmap(0, 24 * 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE, open(argv[1], O_RDONLY), 4096);
            for (int i = 0; i < 24; i++) p[i * 4096] = 3;
        }
        for (int i = 0; i < 32; i++) data[i * 4096] = 2;
        x = f10(x) + f20(x) + f30(x) + f40(x) + f50(x) + f60(x) + f70(x) + f80(x);
        x += f90(x) + f100(x) + f110(x) + f120(x) + f130(x) + f140(x) + f150(x) + f160(x);
        return x == 12345;
    }"#;

#[test]
fn faults_of_known_pages_are_found() {
    if !sees_faults("faults_of_known_pages_are_found") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = compiled(dir.path(), "pages", PAGES);
    let patched = dir.path().join("patched");
    std::fs::copy(&program, &patched).unwrap();
    let found = traced(&[text(&program), text(&patched)]);
    assert!(found.exact, "{:?}", found.notes);
    let object = named(&found, "pages");
    // 64 pages of functions, and _start, main and the like.
    assert!((64 * 4096..80 * 4096).contains(&object.text_bytes), "{object:?}");
    assert!(object.data_bytes >= 32 * 4096);
    // 16 functions are called, 4 pages apart. The kernel maps the neighbours of a faulting page along that are in memory, 16 pages or a
    // whole large folio: from one fault in all to one for each page called, and a few for _start, main, _init, _fini.
    let faults = object.text.minor + object.text.major;
    assert!((1..=16 + 6).contains(&faults), "{object:?}");
    assert_eq!(object.text.pages, faults, "a page of text faults once");
    // Each of 32 pages is written to; the relocated ones, headers and .got come on top. A page that is read first faults twice.
    assert!((32..=32 + 12).contains(&object.data.pages), "{object:?}");
    assert!(object.data.minor + object.data.major >= object.data.pages);
    // What is written to gets a page of its own, without neighbours: exactly those 24.
    let patched = named(&found, "patched");
    assert_eq!((patched.text.minor + patched.text.major, patched.text.pages, patched.data.pages), (24, 24, 0), "{patched:?}");
    let interpreter = found.objects.iter().find(|o| o.path.to_string_lossy().contains("ld-linux")).expect("the dynamic linker");
    assert_eq!(interpreter.kind, ObjectKind::Library);
    assert!(interpreter.text.pages > 0 && found.other.pages > 0);
}

#[test]
fn without_perf_pages_are_estimated_and_that_is_said() {
    let options = Options { without_perf: true, ..Options::default() };
    let dir = tempfile::tempdir().unwrap();
    let program = compiled(dir.path(), "pages", PAGES);
    let found = trace(&words(&["sh", "-c", "for i in 1 2 3; do $0; done", text(&program)]), &options).unwrap();
    assert!(!found.exact && found.notes.iter().any(|note| note.contains("pages")), "{:?}", found.notes);
    assert_eq!(counts(&found), (4, 3, 4));
    let object = named(&found, "pages");
    assert_eq!((object.execs, object.mapped_by, object.text.minor), (3, 3, 0));
    // At least what was called and written to in each run; at most all there is.
    assert!((3 * 16..=3 * 80).contains(&object.text.pages), "{object:?}");
    assert!((3 * 32..=3 * 60).contains(&object.data.pages), "{object:?}");
    assert!(found.other.minor > 100);
}

#[test]
fn files_that_are_only_read_are_no_libraries() {
    if !sees_faults("files_that_are_only_read_are_no_libraries") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let read = compiled(dir.path(), "victim", "int main(void) { return 0; }");
    let source = r#"
        #include <fcntl.h>
        #include <sys/mman.h>
        int main(int argc, char **argv) {
            char *p = mmap(0, 8192, PROT_READ, MAP_SHARED, open(argv[1], O_RDONLY), 0);
            return p[0] + p[4096] == 1;
        }"#;
    let found = traced(&[text(&compiled(dir.path(), "reader", source)), text(&read)]);
    assert!(!found.objects.iter().any(|object| object.path == read), "{found:#?}");
    assert_eq!(found.exit_status, 0);
}

#[test]
fn a_daemon_is_waited_for_or_let_go() {
    let dir = tempfile::tempdir().unwrap();
    let (mark, go) = (dir.path().join("mark"), dir.path().join("go"));
    // A second after the command has ended.
    let late = format!("(while kill -0 $$; do sleep 0.05; done; sleep 1; echo done >{}) >/dev/null 2>&1 &", text(&mark));
    let began = Instant::now();
    let found = sh(&late);
    assert!(mark.exists() && !found.notes.iter().any(|note| note.contains("let go")), "{:?}", found.notes);
    let all_ms = began.elapsed().as_secs_f64() * 1e3;
    assert!(all_ms >= found.wall_ms + 900.0, "the time is the command's alone: {} of {all_ms} ms", found.wall_ms);
    std::fs::remove_file(&mark).unwrap();
    let waits = format!("(while ! test -e {}; do sleep 0.05; done; echo done >{}) >/dev/null 2>&1 &", text(&go), text(&mark));
    let found = trace(&words(&["sh", "-c", &waits]), &Options { waits_for_all: false, ..Options::default() }).unwrap();
    assert!(!mark.exists());
    assert!(!found.exact && found.notes.iter().any(|note| note.contains("let go")), "{:?}", found.notes);
    std::fs::write(&go, "").unwrap();
    wait_for(&mark);
}

#[test]
fn who_waits_for_a_daemon_can_give_up() {
    let dir = tempfile::tempdir().unwrap();
    let [mark, go, ended] = ["mark", "go", "ended"].map(|name| dir.path().join(name));
    let options = Options { stop: Arc::new(AtomicBool::new(false)), ..Options::default() };
    let stop = Arc::clone(&options.stop);
    // The wish counts that comes after the command has ended; that is known here when another process has come and gone since.
    let script = format!(
        "(while kill -0 $$; do sleep 0.05; done; /bin/true; echo >{}; while ! test -e {}; do sleep 0.05; done; echo done >{}) \
         >/dev/null 2>&1 &",
        text(&ended),
        text(&go),
        text(&mark)
    );
    let running = start(&words(&["sh", "-c", &script]), &options).unwrap();
    wait_for(&ended);
    stop.store(true, Ordering::Relaxed);
    let found = running.finish().unwrap();
    assert!(found.notes.iter().any(|note| note.contains("let go")), "{:?}", found.notes);
    // It was let go, not ended.
    assert!(!mark.exists());
    std::fs::write(&go, "").unwrap();
    wait_for(&mark);
}

fn wait_for(file: &Path) {
    let began = Instant::now();
    while !file.exists() {
        assert!(began.elapsed() < Duration::from_secs(20), "{} never came", file.display());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn tracing_within_tracing_is_refused_clearly() {
    const INNER: &str = "TOWA_TRACE_WITHIN";
    if std::env::var_os(INNER).is_some() {
        let error = trace(&words(&["true"]), &Options::default()).unwrap_err();
        assert!(matches!(&error, Error::Unsupported { what } if what.contains("traces this command already")), "{error}");
        return;
    }
    let own = std::env::current_exe().unwrap();
    let inner = format!("{INNER}=1");
    let found = traced(&["env", &inner, text(&own), "-q", "--exact", "tracing_within_tracing_is_refused_clearly"]);
    assert_eq!(found.exit_status, 0);
}

#[test]
fn other_children_of_this_process_are_left_alone() {
    let mut child = Command::new("sh").args(["-c", "exit 6"]).spawn().unwrap();
    assert_eq!(sh("sleep 0.2").exit_status, 0);
    assert_eq!(child.wait().unwrap().code(), Some(6));
}
