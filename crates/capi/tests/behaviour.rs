//! What the headers promise, checked by programs in C and C++ (`c/behaviour.c`, `c/tx_behaviour.c`, and in `cpp` two of the same names):
//! every test in a fresh pool, linked both ways, and under the sanitizers.

mod support;

use std::ffi::OsStr;
use std::path::Path;
use support::{Link, SANITIZE, compile, run, sanitizers_work, scratch};

/// Runs every test the program lists.
fn all(program: &Path, dir: &Path) {
    let listed = String::from_utf8(run(program, &["--list".as_ref()]).stdout).expect("UTF-8");
    let mut failed = Vec::new();
    for test in listed.lines() {
        let pool = dir.join(format!("{}-{test}", program.file_name().expect("a file").to_string_lossy()));
        let result = std::panic::catch_unwind(|| run(program, &[pool.as_os_str(), OsStr::new(test)]));
        if result.is_err() {
            failed.push(test);
        }
    }
    assert!(listed.lines().count() >= 5, "the program lists too few tests: {listed:?}");
    assert!(failed.is_empty(), "{}: {failed:?} failed, see above", program.display());
}

fn check(source: &str, link: Link, flags: &[&str]) {
    let dir = scratch();
    if flags.iter().any(|f| f.starts_with("-fsanitize")) && !sanitizers_work(dir.path(), flags) {
        return;
    }
    if let Some(program) = compile(source, dir.path(), link, flags) {
        all(&program, dir.path());
    }
}

#[test]
fn c_linked_with_the_shared_library() {
    check("crates/capi/tests/c/behaviour.c", Link::Shared, &[]);
}

#[test]
fn c_linked_with_the_static_library() {
    check("crates/capi/tests/c/behaviour.c", Link::Static, &[]);
}

#[test]
fn c_under_the_sanitizers() {
    check("crates/capi/tests/c/behaviour.c", Link::Shared, &SANITIZE);
}

#[test]
fn cpp_linked_with_the_shared_library() {
    check("crates/capi/tests/cpp/behaviour.cpp", Link::Shared, &[]);
}

#[test]
fn cpp_under_the_sanitizers() {
    check("crates/capi/tests/cpp/behaviour.cpp", Link::Static, &SANITIZE);
}

#[test]
fn transactions_linked_with_the_shared_library() {
    check("crates/capi/tests/c/tx_behaviour.c", Link::Shared, &[]);
}

#[test]
fn transactions_linked_with_the_static_library() {
    check("crates/capi/tests/c/tx_behaviour.c", Link::Static, &[]);
}

#[test]
fn transactions_under_the_sanitizers() {
    check("crates/capi/tests/c/tx_behaviour.c", Link::Shared, &SANITIZE);
}

#[test]
fn transactions_in_cpp_linked_with_the_shared_library() {
    check("crates/capi/tests/cpp/tx_behaviour.cpp", Link::Shared, &[]);
}

#[test]
fn transactions_in_cpp_under_the_sanitizers() {
    check("crates/capi/tests/cpp/tx_behaviour.cpp", Link::Static, &SANITIZE);
}

/// Under ThreadSanitizer a new pool lies where it can be mapped, a pool that lies elsewhere is refused by name, and four
/// threads that keep to the rules are no report.
#[test]
fn under_the_thread_sanitizer() {
    let dir = scratch();
    let flags = ["-fsanitize=thread"];
    let source = "crates/capi/tests/c/threads.c";
    let Some(plain) = compile(source, dir.path(), Link::Shared, &[]) else { return };
    if !sanitizers_work(dir.path(), &flags) {
        return;
    }
    let Some(program) = compile(source, dir.path(), Link::Shared, &flags) else { return };
    let said = |program: &Path, pool: &Path| String::from_utf8(run(program, &[pool.as_os_str()]).stdout).expect("UTF-8");
    let pool = dir.path().join("pool");
    assert_eq!([said(&program, &pool), said(&program, &pool)], ["4000\n", "8000\n"]);
    assert_eq!(said(&plain, &pool), "12000\n", "such a pool is like any other");
    let elsewhere = dir.path().join("elsewhere");
    assert_eq!(said(&plain, &elsewhere), "4000\n");
    let out = std::process::Command::new(&program).arg(&elsewhere).output().expect("the program starts");
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(
        out.status.code() == Some(1) && error.contains("where ThreadSanitizer keeps its own memory"),
        "{}: {error}",
        out.status
    );
}
