//! The two sides of the ABI: the headers in `include/`, as a C compiler sees them, against this crate's structs, codes and symbols.
//!
//! A C program is generated that prints sizes, offsets and constants from the headers; whoever changes one side only finds it here.

mod support;

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::process::Command;
use support::{Link, compile, lib_dir, root, run, scratch};

/// Every fact both sides must agree on, by its C expression.
fn facts() -> BTreeMap<String, i128> {
    let mut facts = BTreeMap::new();
    macro_rules! layout {
        ($c:literal, $rust:ty, $($field:ident)*) => {
            facts.insert(format!("sizeof({})", $c), size_of::<$rust>() as i128);
            facts.insert(format!("_Alignof({})", $c), align_of::<$rust>() as i128);
            $(facts.insert(format!("offsetof({}, {})", $c, stringify!($field)), offset_of!($rust, $field) as i128);)*
        };
    }
    layout!("towa_options", towa::Options, size open mode medium flags persisters heap_len log_len interval_us base);
    layout!("struct towa_window", towa::Window, base len tags tag untracked reserved);
    facts.insert("sizeof(struct towa_stats)".into(), size_of::<towa::Stats>() as i128);
    for &(offset, field) in towa::Stats::FIELDS {
        facts.insert(format!("offsetof(struct towa_stats, {field})"), offset as i128);
    }
    layout!("towa_dtx_options", towa::DtxOptions, size open medium tm commit checkpointer flags lanes heap_len lane_len interval_us base);
    layout!("towa_tree_options", towa::TreeOptions, size open medium reserved len);
    facts.insert("sizeof(struct towa_dtx_stats)".into(), size_of::<towa::DtxStats>() as i128);
    for &(offset, field) in towa::DtxStats::FIELDS {
        facts.insert(format!("offsetof(struct towa_dtx_stats, {field})"), offset as i128);
    }
    for (code, name, _) in towa::error::CODES {
        facts.insert(name.into(), code.into());
    }
    for (name, value) in [
        ("TOWA_VERSION", i128::from(towa::error::towa_version())),
        ("TOWA_LINE", towa_media::LINE as i128),
        ("TOWA_OPEN_OR_CREATE", 0),
        ("TOWA_OPEN_EXISTING", 1),
        ("TOWA_CREATE_NEW", 2),
        ("TOWA_MODE_NONSTOP", 0),
        ("TOWA_MODE_STOP_THE_WORLD", 1),
        ("TOWA_MODE_VOLATILE", 2),
        ("TOWA_MEDIUM_DETECT", 0),
        ("TOWA_MEDIUM_DAX", 1),
        ("TOWA_MEDIUM_FILE", 2),
        ("TOWA_MEDIUM_RAM", 3),
        ("TOWA_EAGER", towa::EAGER.into()),
        ("TOWA_DETECT_FORGOTTEN_MARKS", towa::DETECT_FORGOTTEN_MARKS.into()),
        ("TOWA_MANUAL", towa::MANUAL.into()),
        ("TOWA_PREFAULT", towa::PREFAULT.into()),
        ("TOWA_IN_PLACE", towa::IN_PLACE.into()),
        ("TOWA_UNDOABLE", towa::UNDOABLE.into()),
        ("TOWA_MAP_HASH", towa::MAP_HASH.into()),
        ("TOWA_MAP_ORDERED", towa::MAP_ORDERED.into()),
        ("TOWA_REVERSE", towa::REVERSE.into()),
        ("TOWA_VECTOR_ITEM_MAX", towa::VECTOR_ITEM_MAX as i128),
        ("TOWA_DTX_AGAIN", towa::DTX_AGAIN.into()),
        ("TOWA_DTX_TM_AUTO", 0),
        ("TOWA_DTX_TM_RTM", 1),
        ("TOWA_DTX_TM_STM", 2),
        ("TOWA_DTX_TM_LOCK", 3),
        ("TOWA_DTX_STRICT", 0),
        ("TOWA_DTX_BUFFERED", 1),
        ("TOWA_DTX_CHECKPOINTER_THREAD", 0),
        ("TOWA_DTX_CHECKPOINTER_PROCESS", 1),
        ("TOWA_DTX_CHECKPOINTER_MANUAL", 2),
        ("TOWA_DTX_EAGER", towa::DTX_EAGER.into()),
        ("TOWA_DTX_VOLATILE", towa::DTX_VOLATILE.into()),
        ("TOWA_DTX_PREFAULT", towa::DTX_PREFAULT.into()),
        ("TOWA_TREE_U64", towa::TREE_U64.into()),
        ("TOWA_TREE_BYTES", towa::TREE_BYTES.into()),
        ("TOWA_TREE_KEY_MAX", towa_tree::KEY_MAX as i128),
        ("TOWA_TREE_AFTER_FROM", towa::TREE_AFTER_FROM.into()),
        ("TOWA_TREE_WITH_TO", towa::TREE_WITH_TO.into()),
        ("TOWA_SNAP_TAKEN", towa::SNAP_TAKEN.into()),
        ("TOWA_SNAP_RESTARTED", towa::SNAP_RESTARTED.into()),
        ("TOWA_ROOT_NAME_MAX", towa_epoch::ROOT_NAME_MAX as i128),
    ] {
        facts.insert(name.into(), value);
    }
    facts
}

#[test]
fn sizes_offsets_and_constants_agree() {
    let dir = scratch();
    let facts = facts();
    let mut source = String::from("#include <towa_tx.h>\n#include <towa_snap.h>\n#include <stdio.h>\nint main(void) {\n");
    for expression in facts.keys() {
        source += &format!("    printf(\"%s=%lld\\n\", \"{expression}\", (long long)({expression}));\n");
    }
    source += "    return 0;\n}\n";
    let path = dir.path().join("abi.c");
    std::fs::write(&path, source).expect("a file");
    let Some(program) = compile(path.to_str().expect("UTF-8"), dir.path(), Link::Shared, &[]) else { return };
    let out = run(&program, &[]);
    let seen: BTreeMap<String, i128> = String::from_utf8(out.stdout)
        .expect("UTF-8")
        .lines()
        .map(|line| line.split_once('=').map(|(k, v)| (k.to_owned(), v.parse().expect("a number"))).expect("NAME=NUMBER"))
        .collect();
    assert_eq!(seen, facts);
}

/// Every `TOWA_E...` of the header is known to `towa_strerror`, and the other way round.
#[test]
fn every_error_code_is_on_both_sides() {
    let header = std::fs::read_to_string(root().join("include/towa.h")).expect("the header");
    let mut defined: Vec<String> = header
        .lines()
        .filter_map(|l| l.strip_prefix("#define TOWA_E")?.split_once(' '))
        .filter(|(_, value)| value.trim_start().starts_with("(-"))
        .map(|(name, _)| format!("TOWA_E{name}"))
        .collect();
    let mut known: Vec<String> = towa::error::CODES.iter().skip(1).map(|c| c.1.to_owned()).collect();
    defined.sort();
    known.sort();
    assert_eq!(defined, known);
}

/// Functions that a header declares (not those it defines inline).
fn declared(header: &str) -> Vec<String> {
    let mut names = Vec::new();
    for line in header
        .lines()
        .filter(|l| l.starts_with(|c: char| c.is_ascii_alphabetic()) && !l.starts_with("static") && !l.starts_with("typedef"))
    {
        let Some((before, _)) = line.split_once('(') else { continue };
        let name = before.rsplit([' ', '*']).next().unwrap_or_default();
        if name.starts_with("towa_") && line.ends_with([';', ',']) {
            names.push(name.to_owned());
        }
    }
    names.sort();
    names
}

/// The shared library exports exactly the functions that the headers declare.
#[test]
fn the_library_exports_what_the_header_declares() {
    let lib = lib_dir().join("libtowa.so");
    let Ok(out) = Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(&lib).output() else {
        eprintln!("SKIP: no `nm`; install binutils");
        return;
    };
    assert!(out.status.success(), "nm: {}", String::from_utf8_lossy(&out.stderr));
    let mut exported: Vec<String> = String::from_utf8(out.stdout)
        .expect("UTF-8")
        .lines()
        .filter_map(|l| l.split(' ').next())
        .filter(|name| name.starts_with("towa_"))
        .map(str::to_owned)
        .collect();
    exported.sort();
    let text = |header: &str| std::fs::read_to_string(root().join("include").join(header)).expect("the header");
    assert_eq!(declared(&(text("towa.h") + &text("towa_tx.h") + &text("towa_snap.h"))), exported);
}

/// Warnings that a careful program switches on; the headers give none of them.
const STRICT: [&str; 7] =
    ["-Wconversion", "-Wsign-conversion", "-Wshadow", "-Wcast-align=strict", "-Wundef", "-Wstrict-aliasing=2", "-pedantic"];

/// The headers compile alone, first, twice, and in every standard they promise; what they define inline works in each.
#[test]
fn the_headers_compile_in_every_standard() {
    let dir = scratch();
    let write = |file: &str, text: String| {
        let path = dir.path().join(file);
        std::fs::write(&path, text).expect("a file");
        path.to_str().expect("UTF-8").to_owned()
    };
    let alone = |header: &str| {
        format!("#include <{header}>\n#include <{header}>\nint main() {{ return towa_version() != TOWA_VERSION; }}\n")
    };
    let mut programs = vec![
        (
            root().join("crates/capi/tests/c/inline.c").display().to_string(),
            &["-std=c99", "-std=c11", "-std=c17", "-std=gnu17"][..],
        ),
        (write("alone.cpp", alone("towa.h")), &["-std=c++11", "-std=c++17", "-std=c++20"]),
        (write("tx_alone.cpp", alone("towa_tx.h")), &["-std=c++11", "-std=c++17", "-std=c++20"]),
        (
            write("tx_alone.c", alone("towa_tx.h").replace("main()", "main(void)")),
            &["-std=c99", "-std=c11", "-std=c17", "-std=gnu17"],
        ),
        (write("snap_alone.cpp", alone("towa_snap.h")), &["-std=c++11", "-std=c++17", "-std=c++20"]),
        (
            write("snap_alone.c", alone("towa_snap.h").replace("main()", "main(void)")),
            &["-std=c99", "-std=c11", "-std=c17", "-std=gnu17"],
        ),
        (write("both.cpp", alone("towa.hpp")), &["-std=c++17", "-std=c++20"]),
        (write("tx_both.cpp", alone("towa_tx.hpp")), &["-std=c++17", "-std=c++20"]),
    ];
    for part in std::fs::read_dir(root().join("include/towa")).expect("a folder") {
        let name = part.expect("an entry").file_name().into_string().expect("UTF-8");
        programs.push((write(&format!("{name}.cpp"), alone(&format!("towa/{name}"))), &["-std=c++17"]));
    }
    for (source, standards) in &programs {
        for standard in *standards {
            for extra in ["-O2", "-DTOWA_NO_INLINE_MARK"] {
                let flags: Vec<&str> = STRICT.into_iter().chain([*standard, extra]).collect();
                if let Some(program) = compile(source, dir.path(), Link::Shared, &flags) {
                    run(&program, &[]);
                }
            }
        }
    }
}

/// The pkg-config template, filled in as an installation does, gives flags that compile and run an example.
#[test]
fn pkg_config_gives_working_flags() {
    let dir = scratch();
    let Ok(version) = Command::new("pkg-config").arg("--version").output() else {
        eprintln!("SKIP: no `pkg-config`; install pkgconf");
        return;
    };
    assert!(version.status.success());
    let source = root().join("examples/c/counter.c");
    let Some(compiler) = support::compiler(&source) else { return };
    let mut pc = std::fs::read_to_string(root().join("crates/capi/towa.pc.in")).expect("the template");
    for (key, value) in [
        ("PREFIX", "/usr".to_owned()),
        ("LIBDIR", dir.path().display().to_string()),
        ("INCLUDEDIR", root().join("include").display().to_string()),
        ("URL", env!("CARGO_PKG_REPOSITORY").to_owned()),
        ("VERSION", env!("CARGO_PKG_VERSION").to_owned()),
    ] {
        pc = pc.replace(&format!("@{key}@"), &value);
    }
    assert!(!pc.contains('@'), "unknown placeholder in {pc}");
    std::fs::write(dir.path().join("towa.pc"), pc).expect("a file");
    let soname = concat!("libtowa.so.", env!("CARGO_PKG_VERSION_MAJOR"));
    for name in ["libtowa.so", soname] {
        std::os::unix::fs::symlink(lib_dir().join("libtowa.so"), dir.path().join(name)).expect("a link");
    }
    let asked = |what: &[&str]| {
        let out = Command::new("pkg-config")
            .env("PKG_CONFIG_PATH", dir.path())
            .args(what)
            .arg("towa")
            .output()
            .expect("pkg-config starts");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).expect("UTF-8").trim().to_owned()
    };
    assert_eq!(asked(&["--modversion"]), env!("CARGO_PKG_VERSION"));
    let flags = asked(&["--cflags", "--libs"]);
    let program = dir.path().join("counter");
    let out = Command::new(compiler).arg(&source).args(flags.split_whitespace()).arg("-o").arg(&program).output().expect("starts");
    assert!(out.status.success(), "{flags}: {}", String::from_utf8_lossy(&out.stderr));
    let pool = dir.path().join("pool");
    let shown = Command::new(&program).env("LD_LIBRARY_PATH", dir.path()).arg(&pool).arg("show").output().expect("starts");
    assert!(shown.status.success() && shown.stdout == b"0\n", "{shown:?}");
}
