//! Split programs run as the whole ones do, and what is wrong with a store is said in one line. Linux on x86-64 only.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use support::{Outcome, Place, edit, has, run, start, starting};
use towa_xip::error::Error;
use towa_xip::format::{AUDIT_NAME, LOADER_NAME, PAGE};
use towa_xip::install::{self, CHECK};

/// What can go wrong when text appears under a program: its start, its threads, its calls, what it knows of itself.
const EVERYTHING: &str = include_str!("programs/everything.c");
const EXCEPTIONS: &str = include_str!("programs/exceptions.cc");
/// Prints which file the text of its libraries, its dynamic loader and itself is mapped from.
const MAPS: &str = include_str!("programs/maps.c");

const HOWS: [support::How; 4] = [
    support::How { libs: false, rodata: false },
    support::How { libs: false, rodata: true },
    support::How { libs: true, rodata: false },
    support::How { libs: true, rodata: true },
];
const LIBS: support::How = HOWS[2];

/// A change of a file's bytes.
type Change<'a> = &'a dyn Fn(&mut Vec<u8>);

fn command(program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.arg0("program").args(arguments).env_clear().envs([("COLOUR", "blau"), ("PATH", "/usr/bin:/bin")]);
    command
}

/// Runs a program whole and split in each way: there must be no difference.
fn same(place: &Place, program: &Path, arguments: &[&str], status: i32) {
    let whole = run(&mut command(program, arguments));
    assert_eq!(whole.status, status, "{}: {whole:?}", program.display());
    for how in HOWS {
        let split = place.split(program, how);
        assert_eq!(run(&mut command(&split.abc, arguments)), whole, "{} {how:?}", program.display());
    }
}

/// The libraries of a program, as ld.so finds them.
fn libraries(program: &Path) -> Vec<String> {
    let told = run(Command::new("ldd").arg(program)).out;
    told.split_whitespace().filter(|word| word.starts_with('/')).map(str::to_owned).collect()
}

fn add_libraries(place: &Place, program: &Path, rodata: bool) {
    for library in libraries(program) {
        place.add_library(Path::new(&library), rodata);
    }
}

#[test]
fn compiled_programs_run_as_before() {
    let place = Place::new();
    place.compile("libguest.so", "cc", "int guest(void) { return 42; }", &["-shared", "-fPIC"]);
    let ways: [(&str, &[&str]); 7] = [
        ("pie", &["-fPIE", "-pie"]),
        ("non-pie", &["-fno-pie", "-no-pie"]),
        ("one-segment", &["-fPIE", "-pie", "-Wl,-z,noseparate-code"]),
        ("big-pages", &["-fPIE", "-pie", "-Wl,-z,max-page-size=2097152"]),
        ("now", &["-fPIE", "-pie", "-Wl,-z,now", "-Wl,-z,relro"]),
        ("static", &["-static", "-DSTATIC"]),
        ("static-pie", &["-static-pie", "-fPIE", "-DSTATIC"]),
    ];
    for (name, flags) in ways {
        let guest = if name.starts_with("static") { "-pthread" } else { "-Wl,-rpath,$ORIGIN/../whole" };
        let flags = [flags, &["-pthread", "-ldl", guest]].concat();
        let program = place.compile(name, "cc", EVERYTHING, &flags);
        same(&place, &program, &["a", "b c", ""], 7);
    }
    let program = place.whole("pie");
    add_libraries(&place, &program, true);
    place.add_library(&place.whole("libguest.so"), true);
    same(&place, &program, &["with libraries"], 7);
}

/// A dynamic loader that asks for an alignment which the hole in ours does not have goes elsewhere; AT_BASE must tell where.
#[test]
fn the_dynamic_loader_may_lie_anywhere() {
    let place = Place::new();
    let aligned = place.whole("ld-aligned.so");
    std::fs::copy("/lib64/ld-linux-x86-64.so.2", &aligned).unwrap();
    edit(&aligned, |bytes| {
        for header in (64..).step_by(56).take(usize::from(bytes[56])) {
            if bytes[header..header + 4] == [1, 0, 0, 0] {
                bytes[header + 48..header + 56].copy_from_slice(&0x4000_0000_u64.to_le_bytes());
            }
        }
    });
    let interp = format!("-Wl,--dynamic-linker={}", aligned.display());
    for (name, kind) in [("pie", "-pie"), ("non-pie", "-no-pie")] {
        let program = place.compile(name, "cc", EVERYTHING, &[kind, "-pthread", "-Wl,-rpath,$ORIGIN/../whole", &interp]);
        same(&place, &program, &[], 7);
    }
}

#[test]
fn the_layout_of_addresses_does_not_matter() {
    let place = Place::new();
    for (name, kind) in [("pie", "-pie"), ("non-pie", "-no-pie"), ("static-pie", "-static-pie")] {
        let program = place.compile(name, "cc", EVERYTHING, &[kind, "-fPIE", "-pthread"]);
        let split = place.split(&program, LIBS);
        for layout in ["ulimit -s unlimited; exec", "ulimit -s 128; exec", "ulimit -v 200000; exec", "exec setarch -R"] {
            let run = |program: &Path| run(command(Path::new("sh"), &["-c", &format!("{layout} \"$0\"")]).arg(program));
            let [whole, split] = [run(&program), run(&split.abc)];
            // The arguments tell the name; all else must be the same.
            let rest = |outcome: &Outcome| outcome.out.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
            assert_eq!((split.status, &split.err, rest(&split)), (7, &whole.err, rest(&whole)), "{name}: {layout}");
        }
    }
}

#[test]
fn exceptions_are_caught_as_before() {
    if !has("c++") {
        return eprintln!("SKIP: no C++ compiler");
    }
    let place = Place::new();
    let program = place.compile("exceptions", "c++", EXCEPTIONS, &["-pthread"]);
    same(&place, &program, &[], 3);
    add_libraries(&place, &program, true);
    same(&place, &program, &[], 3);
    let program = place.compile("static-exceptions", "c++", EXCEPTIONS, &["-static"]);
    same(&place, &program, &[], 3);
}

#[test]
fn programs_of_this_machine_run_as_before() {
    let place = Place::new();
    let invocations: [(&str, &[&str]); 10] = [
        ("gzip", &["-c", "-9", "/proc/self/exe"]),
        ("sort", &["-r", "/etc/passwd"]),
        ("ls", &["-l", "/etc"]),
        ("bash", &["-c", "for i in 1 2 3; do echo $((i * i)) | cat; done; exit 5"]),
        ("sed", &["-n", "s/root/stem/p", "/etc/passwd"]),
        ("grep", &["-c", "no such line", "/etc/passwd"]),
        ("perl", &["-e", "print join(',', map { $_ ** 2 } 1 .. 20), \"\\n\""]),
        ("python3", &["-c", "import json, sqlite3, hashlib; print(json.dumps([hashlib.md5(b'x').hexdigest()]))"]),
        ("openssl", &["dgst", "-sha256", "/etc/passwd"]),
        ("git", &["--version"]),
    ];
    for (name, arguments) in invocations {
        let program = Path::new("/usr/bin").join(name).canonicalize().unwrap_or_default();
        if !std::fs::read(&program).is_ok_and(|bytes| bytes.starts_with(b"\x7fELF")) {
            eprintln!("SKIP: no program /usr/bin/{name}");
            continue;
        }
        // The program itself must not be what it reads: it differs.
        let arguments: Vec<&str> =
            arguments.iter().map(|word| if *word == "/proc/self/exe" { "/etc/services" } else { *word }).collect();
        let whole = run(&mut command(&program, &arguments));
        same(&place, &program, &arguments, whole.status);
        add_libraries(&place, &program, true);
        same(&place, &program, &arguments, whole.status);
    }
}

#[test]
fn text_of_libraries_comes_from_the_store() {
    let place = Place::new();
    let program = place.compile("maps", "cc", MAPS, &[]);
    let of = |outcome: &Outcome| {
        assert_eq!((outcome.status, outcome.err.as_str()), (0, ""));
        let lines = outcome.out.lines().map(|line| line.split_once(' ').expect("what, and a file"));
        lines.map(|(what, file)| (what.to_owned(), file.to_owned())).collect::<std::collections::HashMap<_, _>>()
    };
    let whole = of(&run(&mut command(&program, &[])));
    let libc = Path::new(&whole["libc"]).canonicalize().unwrap();
    let ld = Path::new(&whole["ld"]).canonicalize().unwrap();
    let split = place.split(&program, LIBS);
    let run_split = || of(&run(&mut command(&split.abc, &[])));
    let shows = |path: &Path| path.to_str().unwrap().to_owned();

    let seen = run_split();
    assert_eq!([&seen["program"], &seen["libc"], &seen["ld"]], [&shows(&split.xyz), &shows(&libc), &shows(&ld)]);

    let xyz = place.add_library(&libc, true);
    let ld_xyz = place.add_library(&ld, true);
    let seen = run_split();
    assert_eq!([&seen["program"], &seen["libc"], &seen["ld"]], [&shows(&split.xyz), &shows(&xyz), &shows(&ld_xyz)]);
    let whole_again = of(&run(&mut command(&program, &[])));
    assert_eq!(whole_again["libc"], shows(&libc), "a whole program has nothing to do with the store");
    assert_eq!(
        of(&run(&mut command(&place.split(&program, HOWS[0]).abc, &[])))["libc"],
        shows(&libc),
        "libraries were not asked for"
    );
    place.split(&program, LIBS);

    // Whatever is not right with it: the library's own text is used, and nothing is said.
    let sound = std::fs::read(&xyz).unwrap();
    let record = sound.len() - PAGE as usize;
    let wrong: [(&str, Change); 7] = [
        ("the text of a program", &|bytes| bytes[record + 56] = 0),
        ("other program headers", &|bytes| bytes[64 + 56 + 16] ^= 1),
        ("a library of another length", &|bytes| bytes[record + 48] ^= 1),
        ("another magic", &|bytes| bytes[record] ^= 1),
        ("cut off", &|bytes| bytes.truncate(record)),
        ("a range elsewhere", &|bytes| bytes[record + 128 + 24 + 1] ^= 0x40),
        ("empty", &|bytes| bytes.clear()),
    ];
    let _ = std::fs::set_permissions(&xyz, PermissionsExt::from_mode(0o644));
    for (what, change) in wrong {
        edit(&xyz, change);
        assert_eq!(run_split()["libc"], shows(&libc), "{what}");
        std::fs::write(&xyz, &sound).unwrap();
    }
    assert_eq!(run_split()["libc"], shows(&xyz));
    if is_root() {
        // With the mode that it should have; the owner can change that.
        std::os::unix::fs::chown(&xyz, Some(65534), None).unwrap();
        assert_eq!(run_split()["libc"], shows(&libc), "of another user than the store's");
        std::os::unix::fs::chown(&place.store, Some(65534), None).unwrap();
        assert_eq!(run_split()["libc"], shows(&xyz), "of the user whose store it is");
        for path in [&place.store, &xyz] {
            std::os::unix::fs::chown(path, Some(0), None).unwrap();
        }
    }
    std::fs::set_permissions(&xyz, PermissionsExt::from_mode(0o664)).unwrap();
    assert_eq!(run_split()["libc"], shows(&libc), "writable by a group");
    std::fs::set_permissions(&xyz, PermissionsExt::from_mode(0o644)).unwrap();
    std::fs::remove_file(place.store.join(AUDIT_NAME)).unwrap();
    let seen = run_split();
    assert_eq!([&seen["libc"], &seen["ld"]], [&shows(&libc), &shows(&ld_xyz)], "no audit object");
}

#[test]
fn text_that_is_relocated_stays_in_the_library() {
    let place = Place::new();
    let program = place.compile("maps", "cc", MAPS, &[]);
    let split = place.split(&program, LIBS);
    let pure = "static int number = 42; int guest(void) { return number; } __asm__(\".text; .skip 8192\");";
    let impure = format!("{pure} __asm__(\".text; .quad guest\");");
    for (name, source, flags, from_store) in
        [("libpure.so", pure, "-Wl,-z,text", true), ("libimpure.so", &impure, "-Wl,-z,notext", false)]
    {
        let library = place.compile(name, "cc", source, &["-shared", "-fPIC", flags]);
        let xyz = place.add_library(&library, true);
        let outcome = run(&mut command(&split.abc, &[library.to_str().unwrap()]));
        assert_eq!((outcome.status, outcome.err.as_str()), (0, ""));
        assert!(outcome.out.contains("returned 42\n"));
        let expected = if from_store { &xyz } else { &library };
        assert!(outcome.out.contains(&format!("guest {}\n", expected.display())), "{name}: {}", outcome.out);
    }
}

#[test]
fn a_program_that_cannot_be_told_of_the_audit_object_runs_without() {
    let place = Place::new();
    let programs = [
        place.compile("no-spare", "cc", MAPS, &["-Wl,--spare-dynamic-tags=0", "-Wl,-z,nocombreloc"]),
        place.compile("audited", "cc", MAPS, &["-Wl,--audit=/no/such/object.so"]),
    ];
    for program in programs {
        add_libraries(&place, &program, false);
        let whole = run(&mut command(&program, &[]));
        let split = run(&mut command(&place.split(&program, LIBS).abc, &[]));
        let libc = |outcome: &Outcome| outcome.out.lines().find(|line| line.starts_with("libc ")).map(str::to_owned);
        assert_eq!((split.status, &split.err, libc(&split)), (whole.status, &whole.err, libc(&whole)));
    }
}

/// Libraries that are loaded first may ask for more thread-local storage than glibc has to spare for an audited program.
#[test]
fn a_program_with_preloaded_libraries_is_not_audited() {
    let place = Place::new();
    let program = place.compile("maps", "cc", MAPS, &[]);
    add_libraries(&place, &program, false);
    let split = place.split(&program, LIBS).abc;
    let local = "__attribute__((tls_model(\"initial-exec\"))) __thread char block[5000];";
    let source = format!("{local} __attribute__((constructor)) void fill(void) {{ block[4999] = 1; }}");
    let library = place.compile("liblocal.so", "cc", &source, &["-shared", "-fPIC"]);
    let library = library.to_str().unwrap();
    let libc = |outcome: Outcome| {
        assert_eq!((outcome.status, outcome.err.as_str()), (0, ""));
        outcome.out.lines().find_map(|line| line.strip_prefix("libc ").map(str::to_owned)).expect("a line for libc")
    };
    let preloading = |setting: &str, program: &Path| libc(run(command(program, &[]).env("LD_PRELOAD", setting)));
    assert_eq!(preloading(library, &split), preloading(library, &program));
    assert!(preloading("", &split).ends_with(".xyz"));
    assert!(libc(run(command(&split, &[]).env("NO_LD_PRELOAD", library))).ends_with(".xyz"));

    let etc = place.dir.path().join("etc");
    let script =
        "mkdir \"$2\" && cp /etc/ld.so.cache \"$2\" && echo \"$1\" > \"$2/ld.so.preload\" && mount --bind \"$2\" /etc || exit 77
        exec \"$0\"";
    let outcome = run(Command::new("unshare").args(["-m", "sh", "-c", script]).arg(&split).arg(library).arg(&etc));
    if outcome.status == 77 || outcome.err.contains("unshare: ") {
        return eprintln!("SKIP: no mounts here: {outcome:?}");
    }
    assert_eq!(libc(outcome), preloading("", &program), "/etc/ld.so.preload");
}

/// The program must not have run, and the message must be one line that names what it must name.
fn refused(outcome: &Outcome, split: &Path, names: &[&str]) {
    assert_eq!((outcome.status, outcome.out.as_str()), (127, ""), "{outcome:?}");
    let start = format!("towa xip: {}: ", split.display());
    assert!(outcome.err.starts_with(&start) && outcome.err.ends_with('\n') && outcome.err.lines().count() == 1, "{}", outcome.err);
    for name in names {
        assert!(outcome.err.contains(name), "{name:?} is not in {:?}", outcome.err);
    }
}

#[test]
fn a_text_that_is_not_right_is_refused() {
    let place = Place::new();
    let program = place.compile("hello", "cc", MAPS, &[]);
    let split = place.split(&program, support::How::default());
    let (abc, xyz) = (&split.abc, &split.xyz);
    let file = xyz.to_str().unwrap();
    let attempt = || run(&mut command(abc, &[]));
    let sound = std::fs::read(xyz).unwrap();
    let record = sound.len() - PAGE as usize;

    std::fs::remove_file(xyz).unwrap();
    refused(&attempt(), abc, &[file, "no such file", "put it back", "towa xip verify"]);
    std::fs::create_dir(xyz).unwrap();
    refused(&attempt(), abc, &[file, "no regular file"]);
    std::fs::remove_dir(xyz).unwrap();
    std::fs::write(xyz, &sound).unwrap();
    assert_eq!(attempt().status, 0);

    // Of each range: its first field is 128 bytes into the record, and it has 24 bytes.
    let text = record + 128 + 24;
    let wrong: [(&str, Change); 10] = [
        ("too short", &|bytes| bytes.truncate(100)),
        ("too short", &|bytes| bytes.clear()),
        ("damaged", &|bytes| bytes.truncate(record)),
        ("damaged", &|bytes| bytes[record] ^= 1),
        ("another version", &|bytes| bytes[record + 8] ^= 2),
        ("damaged", &|bytes| bytes[record + 12] = 65),
        ("another program", &|bytes| bytes[record + 16 + 31] ^= 1),
        ("does not fit", &|bytes| bytes[text + 1] ^= 0x10),
        ("does not fit", &|bytes| bytes[text + 9] ^= 0x10),
        ("lacks a text segment", &|bytes| bytes[text + 16] = 4),
    ];
    for (reason, change) in wrong {
        edit(xyz, change);
        refused(&attempt(), abc, &[file, reason]);
        std::fs::write(xyz, &sound).unwrap();
    }
    // The record of a file that was cut short in the middle, and had a record put at its end.
    edit(xyz, |bytes| drop(bytes.drain(PAGE as usize..record)));
    refused(&attempt(), abc, &[file, "too short"]);
    std::fs::write(xyz, &sound).unwrap();

    // Data that begins in the text's last page.
    let whole = std::fs::read(abc).unwrap();
    edit(abc, |bytes| {
        let number = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let loads = (64..).step_by(56).take(usize::from(bytes[56])).filter(|at| bytes[*at..*at + 4] == [1, 0, 0, 0]);
        let loads: Vec<usize> = loads.collect();
        let with = |flags| *loads.iter().find(|at| bytes[**at + 4] & 7 == flags).expect("a segment");
        let (text, data) = (with(5), with(6));
        let last = (number(bytes, text + 16) + number(bytes, text + 40)) / PAGE * PAGE;
        let address = last + number(bytes, data + 16) % PAGE;
        bytes[data + 16..data + 24].copy_from_slice(&address.to_le_bytes());
    });
    refused(&attempt(), abc, &[file, "does not fit"]);
    edit(abc, |bytes| *bytes = whole);

    for mode in [0o464, 0o446] {
        std::fs::set_permissions(xyz, PermissionsExt::from_mode(mode)).unwrap();
        refused(&attempt(), abc, &[file, "others than its owner", "chmod go-w"]);
    }
    std::fs::set_permissions(xyz, PermissionsExt::from_mode(0o644)).unwrap();
    assert_eq!(attempt().status, 0);
    if is_root() {
        std::os::unix::fs::chown(xyz, Some(65534), None).unwrap();
        refused(&attempt(), abc, &[file, "neither by root nor by the owner of its store", "chown"]);
        std::os::unix::fs::chown(xyz, Some(0), None).unwrap();
    }
    // A pipe without a writer: the program must not wait for it.
    std::fs::remove_file(xyz).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, xyz, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
    refused(&attempt(), abc, &[file, "no regular file"]);
}

#[test]
fn what_the_surroundings_lack_is_said() {
    let place = Place::new();
    let program = place.compile("hello", "cc", MAPS, &[]);
    let split = place.split(&program, support::How::default());
    let abc = &split.abc;
    let shell = |limit: &str| run(Command::new("sh").args(["-c", &format!("{limit}; exec \"$0\"")]).arg(abc));
    refused(&shell("exec 3>&- 4>&-; ulimit -n 3"), abc, &[split.xyz.to_str().unwrap(), "too many open files", "ulimit -n"]);

    edit(abc, |bytes| {
        let interp = b"/lib64/ld-linux-x86-64.so.2\0";
        let at = bytes.windows(interp.len()).position(|bytes| bytes == interp).expect("the program's dynamic loader");
        bytes[at..][..7].copy_from_slice(b"/absent");
    });
    refused(&run(&mut command(abc, &[])), abc, &["/absentld-linux-x86-64.so.2", "no such file", "install it again"]);

    let foreign = place.compile("foreign", "cc", MAPS, &["-Wl,--dynamic-linker=/etc/passwd"]);
    let foreign = place.split(&foreign, LIBS).abc;
    refused(&run(&mut command(&foreign, &[])), &foreign, &["/etc/passwd", "no shared object for this machine"]);
    if is_root() && has("setpriv") {
        std::fs::set_permissions(&split.xyz, PermissionsExt::from_mode(0o400)).unwrap();
        let mut nobody = Command::new("setpriv");
        nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(abc);
        refused(&run(&mut nobody), abc, &[split.xyz.to_str().unwrap(), "permission denied", "chmod a+r"]);
    } else {
        eprintln!("SKIP: a text that may not be read is tested by root, with setpriv");
    }

    let loader = place.store.join(LOADER_NAME);
    let itself = run(&mut command(&loader, &[]));
    refused(&itself, &loader, &["not to be run by itself"]);
    std::fs::remove_file(&loader).unwrap();
    let gone = start(&mut command(abc, &[])).expect_err("no loader");
    assert_eq!(gone.raw_os_error(), Some(libc::ENOENT));
}

/// A name must not write another line, nor speak to the terminal.
#[test]
fn control_characters_are_not_said() {
    let place = Place::new();
    let program = place.compile("hello\nroot: \t\x1b[2J\x7f\u{e4}", "cc", MAPS, &["-Wl,--dynamic-linker=/lib64/\nld\x1b.so"]);
    let split = place.split(&program, LIBS).abc;
    let shown = split.with_file_name("hello?root: ??[2J?\u{e4}");
    refused(&run(&mut command(&split, &[])), &shown, &[": /lib64/?ld?.so: no such file"]);
}

#[test]
fn a_store_that_must_not_be_executed_is_named() {
    let place = Place::new();
    let program = place.compile("hello", "cc", MAPS, &[]);
    let split = place.split(&program, support::How::default());
    let script = "mount -t tmpfs -o noexec none \"$1\" && cp -a \"$2/.\" \"$1\" && exec \"$0\"";
    let (xyz, copy) = (place.store.join("xyz"), place.dir.path().join("copy"));
    assert_eq!(run(Command::new("cp").arg("-a").arg(&xyz).arg(&copy)).status, 0);
    let mut unshare = Command::new("unshare");
    let outcome = run(unshare.args(["-m", "sh", "-c", script]).arg(&split.abc).arg(&xyz).arg(&copy));
    if outcome.status != 127 {
        return eprintln!("SKIP: no mounts here: {outcome:?}");
    }
    refused(&outcome, &split.abc, &[split.xyz.to_str().unwrap(), "noexec"]);
}

/// 32 hex digits: what names XYZ, and asks for a check.
fn key_in_name(split: &support::Split) -> String {
    let part = |path: &Path| path.file_stem().unwrap().to_str().unwrap().to_owned();
    part(split.xyz.parent().unwrap()) + &part(&split.xyz)
}

#[test]
fn check_mode_maps_and_does_not_run() {
    let place = Place::new();
    for (name, flags) in [("dynamic", &[][..]), ("static", &["-static", "-DSTATIC"])] {
        let program = place.compile(name, "cc", MAPS, flags);
        let split = place.split(&program, LIBS);
        let attempt = |setting: &str| run(command(&split.abc, &[]).env(CHECK, setting));
        let key = key_in_name(&split);
        assert_eq!(attempt(&key), Outcome { status: install::CHECKED, out: String::new(), err: String::new() });
        starting(|| install::answers(&split.abc)).unwrap();
        let another = key.chars().rev().collect::<String>();
        for other in ["", "0", "1", &key[..31], &format!("{key}0"), &another] {
            assert_ne!(attempt(other).out, "", "{other:?} is no wish for a check of this program");
        }
        std::fs::remove_file(&split.xyz).unwrap();
        refused(&attempt(&key), &split.abc, &[split.xyz.to_str().unwrap()]);
        assert!(matches!(starting(|| install::answers(&split.abc)), Err(Error::NotUsable { .. })));
    }
}

/// Root is who owns what root makes.
fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|status| std::os::unix::fs::MetadataExt::uid(&status) == 0)
}

#[test]
fn set_id_programs_use_what_root_owns_and_no_audit_object() {
    if !is_root() || !has("setpriv") {
        return eprintln!("SKIP: set-id programs are tested by root, with setpriv");
    }
    let place = Place::new();
    let program = place.compile("maps", "cc", MAPS, &[]);
    add_libraries(&place, &program, false);
    let split = place.split(&program, LIBS);
    std::fs::set_permissions(&split.abc, PermissionsExt::from_mode(0o4755)).unwrap();
    let nobody = |setting: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&split.abc);
        run(command.env(CHECK, setting))
    };
    let outcome = nobody(&key_in_name(&split));
    if outcome.out.contains("secure 0") {
        return eprintln!("SKIP: set-id bits have no effect here");
    }
    assert_eq!((outcome.status, outcome.err.as_str()), (0, ""));
    assert!(outcome.out.contains("secure 1"), "{}: check mode is not for set-id programs", outcome.out);
    let libc = outcome.out.lines().find(|line| line.starts_with("libc ")).expect("a line for libc");
    assert!(!libc.contains(".xyz"), "{libc}: audited");
    assert!(outcome.out.contains(split.xyz.to_str().unwrap()));
    std::os::unix::fs::chown(&split.xyz, Some(65534), None).unwrap();
    refused(&nobody(""), &split.abc, &[split.xyz.to_str().unwrap(), "not owned by root", "chown root"]);
}

/// Prints what the loader costs; a loaded machine would make an assertion of it a matter of luck.
#[test]
fn the_time_of_an_exec_is_told() {
    let place = Place::new();
    let source = "int main(void) { return 0; } __asm__(\".text; .skip 16384, 0x90\");";
    for (name, flags) in [("dynamic", &[][..]), ("static", &["-static"])] {
        let program = place.compile(name, "cc", source, flags);
        let alone = program.with_extension("alone");
        std::fs::rename(place.split(&program, HOWS[0]).abc, &alone).unwrap();
        add_libraries(&place, &program, false);
        let [whole, alone, libs] = median_micros([&program, &alone, &place.split(&program, LIBS).abc]);
        println!("exec to exit, {name}, median of 300: whole {whole} us, split {alone} us, libraries too {libs} us");
    }
}

/// In turn, so that what else the machine does meets all alike.
fn median_micros(programs: [&Path; 3]) -> [u128; 3] {
    let mut times: [Vec<u128>; 3] = Default::default();
    for _ in 0..300 {
        for (program, times) in programs.iter().zip(&mut times) {
            let begin = Instant::now();
            let status = start(&mut Command::new(program)).unwrap().wait().unwrap();
            assert!(status.success());
            times.push(begin.elapsed().as_micros());
        }
    }
    times.map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2]
    })
}
