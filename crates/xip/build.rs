//! Compiles the loader and the audit object of split programs (`loader/`), which `src/loader.rs` carries along.
//!
//! Both are freestanding: the C compiler links them itself, with flags of their own. For a machine without a file in `loader/arch`
//! both are empty, and the crate says so when they are asked for.

use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCES: [&str; 7] = ["loader.c", "audit.c", "format.h", "interp.h", "overlay.h", "process.h", "sys.h"];

/// For both objects. No tables of pointers, which would need relocations; no calls of a C library; the same bytes each time.
const COMMON: &[&str] = &[
    "-std=gnu11",
    "-Os",
    "-g0",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-ffreestanding",
    "-fvisibility=hidden",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-fno-unwind-tables",
    "-fno-strict-aliasing",
    "-fno-jump-tables",
    "-ffunction-sections",
    "-nostdlib",
    "-nostartfiles",
    "-Wl,--gc-sections",
    "-Wl,--build-id=none",
    "-Wl,--hash-style=gnu",
    "-Wl,-z,noexecstack",
    "-Wl,-z,noseparate-code",
    "-Wl,-z,norelro",
    "-Wl,-z,max-page-size=4096",
    "-Wl,-z,defs",
    "-s",
];
/// The text lies beyond a hole for ld.so: `LOADER_HOLE` of `loader/interp.h`.
const LOADER: &[&str] = &["-fPIE", "-static-pie", "-Wl,--no-dynamic-linker", "-Wl,-z,text", "-Wl,-Ttext=0x800000"];
const AUDIT: &[&str] = &["-fPIC", "-shared", "-Wl,-soname,towa-xip-audit.so", "-Wl,-z,text"];
/// Only GCC has these: no memset in place of a loop (we are the memset), no tables in place of a choice.
const GCC_ONLY: &[&str] = &["-fno-tree-loop-distribute-patterns", "-fno-tree-switch-conversion"];

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    let os = std::env::var("CARGO_CFG_TARGET_OS").expect("cargo sets CARGO_CFG_TARGET_OS");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=loader/arch/x86_64.h");
    for source in SOURCES {
        println!("cargo:rerun-if-changed=loader/{source}");
    }
    let loader = out.join("loader");
    let audit = out.join("audit");
    if arch == "x86_64" && os == "linux" {
        // Shadow stacks stay on in programs that have them only if every object they load says that it can do with them.
        compile("loader.c", &loader, &[LOADER, &["-fcf-protection=none"]].concat());
        compile("audit.c", &audit, &[AUDIT, &["-fcf-protection=full"]].concat());
    } else {
        for file in [loader, audit] {
            std::fs::write(file, b"").expect("write to OUT_DIR");
        }
    }
}

fn compile(source: &str, to: &Path, flags: &[&str]) {
    let compiler = cc::Build::new().no_default_flags(true).cargo_warnings(false).get_compiler();
    let mut command: Command = compiler.to_command();
    command.args(COMMON).args(flags);
    if compiler.is_like_gnu() {
        command.args(GCC_ONLY);
    }
    command.arg(Path::new("loader").join(source)).arg("-o").arg(to);
    let status = command.status().unwrap_or_else(|why| panic!("{command:?}: {why}"));
    assert!(status.success(), "{command:?}: {status}: see the compiler's message above");
}
