//! Layers: crates depend downwards only, and durability is made in one place.

use crate::{Findings, Source, must_be_empty, sources};

/// Who may know whom. Doors do not know each other; `server` is a user of `epoch` like any other.
const MAY_USE: [(&str, &[&str]); 15] = [
    ("media", &[]),
    ("heap", &["media"]),
    ("epoch", &["media", "heap"]),
    ("alloc", &["media"]),
    ("tx", &["media", "heap"]),
    ("tree", &["media", "heap", "alloc", "tx"]),
    ("containers", &["media", "epoch"]),
    ("snap", &["media"]),
    ("xip", &["media"]),
    ("java-pool", &["alloc"]),
    ("server", &["media", "epoch", "containers"]),
    ("capi", &["media", "heap", "epoch", "containers", "alloc", "tx", "tree", "snap"]),
    ("bench", &["media", "heap", "epoch", "containers", "server", "alloc", "tx", "tree", "snap", "xip"]),
    ("crash-test", &["media", "heap", "epoch", "alloc", "tx", "tree"]),
    (
        "cli",
        &[
            "media",
            "heap",
            "epoch",
            "containers",
            "server",
            "snap",
            "xip",
            "java-pool",
            "bench",
            "crash-test",
            "alloc",
            "tx",
            "tree",
        ],
    ),
];

/// What makes bytes durable, or orders it: `media`'s business, so that every door can run on the simulated medium.
const DURABILITY: [&str; 12] = [
    "_mm_clwb",
    "_mm_sfence",
    "_mm_clflush",
    "_mm_stream",
    "clwb [",
    "clflushopt [",
    ".sync_data(",
    ".sync_all(",
    "libc::fsync",
    "libc::fdatasync",
    "libc::msync",
    "MAP_SYNC",
];

fn edges(files: &[Source]) -> Findings {
    let mut found = Findings::new();
    for file in files {
        let Some(krate) = file.path.strip_prefix("crates/").and_then(|p| p.strip_suffix("/Cargo.toml")) else { continue };
        let Some((_, allowed)) = MAY_USE.iter().find(|(name, _)| *name == krate) else {
            found.push(format!("{}: a crate without a place among the layers; give it one in {}", file.path, file!()));
            continue;
        };
        let mut in_dependencies = false;
        for (number, line) in file.text.lines().enumerate() {
            if line.starts_with('[') {
                in_dependencies = line.trim_end_matches(']').ends_with("dependencies");
            }
            let Some(rest) = line.trim_start().strip_prefix("towa-").filter(|_| in_dependencies) else { continue };
            let used = rest.split(['.', ' ', '=']).next().unwrap_or(rest);
            if !allowed.contains(&used) {
                found.push(format!("{}:{}: {krate} may not use {used}; allowed are {allowed:?}", file.path, number + 1));
            }
        }
    }
    found
}

fn durability(files: &[Source]) -> Findings {
    let mut found = Findings::new();
    for file in files {
        let ours = file.path.starts_with("crates/") && file.path.contains("/src/") && file.path.ends_with(".rs");
        if !ours || file.path.starts_with("crates/media/") {
            continue;
        }
        for (number, line) in file.text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or(line);
            if let Some(what) = DURABILITY.iter().find(|d| code.contains(**d)) {
                found.push(format!("{}:{}: {what}: only crates/media makes bytes durable; ask its Region", file.path, number + 1));
            }
        }
    }
    found
}

#[test]
fn crates_depend_downwards_only() {
    must_be_empty(edges(&sources()));
}

#[test]
fn only_media_makes_bytes_durable() {
    must_be_empty(durability(&sources()));
}

#[test]
fn planted_offences_are_found() {
    let file = |path: &str, text: &str| vec![Source { path: path.into(), text: text.into() }];
    assert_eq!(edges(&file("crates/heap/Cargo.toml", "[dependencies]\ntowa-epoch.workspace = true\n")).len(), 1);
    assert_eq!(edges(&file("crates/heap/Cargo.toml", "[dev-dependencies]\ntowa-server = { path = \"../server\" }\n")).len(), 1);
    assert_eq!(edges(&file("crates/heap/Cargo.toml", "[dependencies]\ntowa-media.workspace = true\n")), Findings::new());
    assert_eq!(edges(&file("crates/new/Cargo.toml", "[package]\n")).len(), 1);
    assert_eq!(durability(&file("crates/server/src/lib.rs", "file.sync_data()?;\n")).len(), 1);
    assert_eq!(durability(&file("crates/server/src/lib.rs", "// never .sync_data() here\n")), Findings::new());
}
