//! A debugger finds its way in a split program, in one that runs as in one that has left a core file. Linux on x86-64 only.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use support::{How, Place, has, run, start, starting};
use towa_xip::install;

/// Prints which file the text of its libraries, its dynamic loader and itself is mapped from.
const MAPS: &str = include_str!("programs/maps.c");
const LIBS: How = How { libs: true, rodata: false };

/// Ends by a function of the C library that calls others.
const ABORTS: &str = "
void abort(void);
__attribute__((noinline)) void give_up(void)
{
    abort();
}
int main(void)
{
    give_up();
    return 0;
}
__asm__(\".text; .skip 16384, 0x90\");
";

/// Writes by way of a function of its own, without the C library's.
const WRITES: &str = "
__attribute__((noinline)) static long say(const char *what)
{
    long done;
    __asm__ volatile(\"syscall\" : \"=a\"(done) : \"0\"(1L), \"D\"(1L), \"S\"(what), \"d\"(2L) : \"rcx\", \"r11\", \"memory\");
    return done;
}
int main(void)
{
    return say(\"x\\n\") != 2;
}
__asm__(\".text; .skip 16384, 0x90\");
";

/// Says when it waits, and waits.
const WAITS: &str = "
#include <unistd.h>
__attribute__((noinline)) void give_up(void)
{
    write(1, \"x\\n\", 2);
    for (;;)
        pause();
}
int main(void)
{
    give_up();
    return 0;
}
__asm__(\".text; .skip 16384, 0x90\");
";

/// Puts the text of the libraries of a program into the store.
fn add_libraries(place: &Place, program: &Path) {
    let told = run(Command::new("ldd").arg(program)).out;
    for library in told.split_whitespace().filter(|word| word.starts_with('/')) {
        place.add_library(Path::new(library), false);
    }
}

/// What gdb says of a program when it is told this; nothing if it may not debug here.
fn gdb(program: &Path, told: &[&str]) -> Option<String> {
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-iex", "set debuginfod enabled off"]);
    for told in told {
        gdb.args(["-ex", told]);
    }
    let outcome = run(gdb.arg(program));
    if outcome.err.contains("ptrace") || outcome.err.contains("Could not trace") {
        eprintln!("SKIP: no debugging here: {}", outcome.err);
        return None;
    }
    Some(outcome.out + &outcome.err)
}

/// A breakpoint in memory would be mapped over by the loader: until `main` it must be one of the processor's (`hbreak`). gdb's own for
/// the arrival of libraries is not there either, for our loader is not ld.so: it has to be told to look at them (`sharedlibrary`).
#[test]
fn gdb_stops_where_it_is_told() {
    if !has("gdb") {
        return eprintln!("SKIP: no gdb");
    }
    let place = Place::new();
    let program = place.compile("maps", "cc", MAPS, &["-g"]);
    add_libraries(&place, &program);
    let split = place.split(&program, LIBS);
    let to_main = ["starti", "hbreak main", "continue", "backtrace", "sharedlibrary"];
    let Some(said) = gdb(&split.abc, &[&to_main[..], &["info sharedlibrary", "break show", "continue"]].concat()) else { return };
    for expected in ["Breakpoint 1, main", "#0  main", "libc.so.6", "ld-linux-x86-64.so.2", "Breakpoint 2, show"] {
        assert!(said.contains(expected), "{expected:?} is not in {said}");
    }

    let program = place.compile("aborts", "cc", ABORTS, &["-g"]);
    let split = place.split(&program, LIBS);
    let Some(said) = gdb(&split.abc, &[&to_main[..], &["continue", "backtrace"]].concat()) else { return };
    let frames: Vec<&str> = said.lines().filter(|line| line.starts_with('#')).collect();
    for expected in ["abort", "give_up", "main"] {
        assert!(frames.iter().any(|frame| frame.contains(&format!("{expected} ("))), "{expected} is not in {said}");
    }
}

/// A core file has the program headers of the half, and text of neither: a debugger wants a file that has both.
#[test]
fn gdb_reads_a_core_file() {
    if !has("gdb") {
        return eprintln!("SKIP: no gdb");
    }
    let place = Place::new();
    let program = place.compile("aborts", "cc", ABORTS, &["-g", "-pie", "-fPIE"]);
    let how = install::How { split: towa_xip::split::Options { with_rodata: true, ..Default::default() }, sealed: false };
    let store = towa_xip::store::Store::open_or_create(&place.dir.path().join("real")).unwrap();
    let half = place.dir.path().join("split").join("aborts");
    starting(|| install::split(&store, &program, Some(&half), how)).unwrap();
    let mut in_place = Command::new("sh");
    in_place.current_dir(place.dir.path()).args(["-c", "ulimit -c unlimited; \"$0\""]).arg(&half);
    run(&mut in_place);
    let named_core = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with("core");
    let core = std::fs::read_dir(place.dir.path()).unwrap().flatten().find(named_core);
    let Some(core) = core else { return eprintln!("SKIP: core files go elsewhere here") };
    let whole = place.dir.path().join("for-debugger");
    install::join_for_debugger(&half, &whole, None).unwrap();
    assert_eq!(std::fs::metadata(&whole).unwrap().permissions().mode() & 0o111, 0, "it cannot be run");
    let original = place.dir.path().join("original");
    install::join(&half, Some(&original), None).unwrap();
    assert_eq!(std::fs::read(&original).unwrap(), std::fs::read(&program).unwrap(), "that one is the program to the byte");
    let load = format!("core-file {}", core.path().display());
    let Some(said) = gdb(&whole, &[&load, "backtrace", "x/2i main"]) else { return };
    for expected in ["give_up (", "main (", "<main>:"] {
        assert!(said.contains(expected), "{expected:?} is not in {said}");
    }
    assert!(!said.contains("<main>:\tadd    %al,(%rax)"), "zeros are no text: {said}");
}

/// gdb compares the program headers of a process, of which it has one table, with those of the file: they have to be the half's for this, and
/// cannot be those of the whole program as well.
#[test]
fn gdb_attaches_to_one_that_runs() {
    if !has("gdb") {
        return eprintln!("SKIP: no gdb");
    }
    let place = Place::new();
    let program = place.compile("waits", "cc", WAITS, &["-g", "-pie", "-fPIE"]);
    let store = towa_xip::store::Store::open_or_create(&place.dir.path().join("real")).unwrap();
    let half = place.dir.path().join("split").join("waits");
    starting(|| install::split(&store, &program, Some(&half), install::How::default())).unwrap();
    let mut child = start(Command::new(&half).stdout(std::process::Stdio::piped())).unwrap();
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 2]).unwrap();
    let attach = format!("attach {}", child.id());
    let said = gdb(&half, &[&attach, "backtrace", "detach"]);
    child.kill().unwrap();
    child.wait().unwrap();
    let Some(said) = said else { return };
    if said.contains("ptrace") {
        return eprintln!("SKIP: no attaching here: {said}");
    }
    for expected in ["give_up (", "main ("] {
        assert!(said.contains(expected), "{expected:?} is not in {said}");
    }
}

/// `strace -k` reads the file that is mapped, which is the text in the store: a link to debugging information without a name ends it, and
/// without the head of the unwinding table it sees one function.
#[test]
fn strace_sees_who_called() {
    if !has("strace") || !has("objcopy") {
        return eprintln!("SKIP: no strace, or no objcopy");
    }
    let place = Place::new();
    let program = place.compile("writes", "cc", WRITES, &["-fasynchronous-unwind-tables"]);
    let other = place.whole("writes.debug");
    std::fs::write(&other, "not read").unwrap();
    let linked = run(Command::new("objcopy").arg("--add-gnu-debuglink").arg(&other).arg(&program));
    assert_eq!(linked.status, 0, "{}", linked.err);
    std::fs::remove_file(&other).unwrap();
    let store = towa_xip::store::Store::open_or_create(&place.dir.path().join("real")).unwrap();
    let half = place.dir.path().join("split").join("writes");
    starting(|| install::split(&store, &program, Some(&half), install::How::default())).unwrap();

    let traced = |program: &Path| run(Command::new("strace").args(["-k", "-e", "trace=write"]).arg(program));
    let whole = traced(&program);
    if whole.status != 0 || !whole.err.contains("(main+") {
        return eprintln!("SKIP: strace -k does not work here: {}", whole.err);
    }
    let split = traced(&half);
    assert_eq!(split.status, 0, "{}", split.err);
    let uses_libunwind = run(Command::new("strace").arg("-V")).out.contains("stack-trace=libunwind");
    assert!(!uses_libunwind || split.err.contains("(main+"), "{}", split.err);
}
