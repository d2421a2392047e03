//! The pools of tests/java-pool: every reader and every writer of the format agrees on these.
//!
//! What must always hold: those that are made here are made again to the byte, and each has the summary that lies beside it.

mod builder;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Once;

use builder::graphs;
use serde_json::Value;
use towa_java_pool::{Pool, is_pool};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/java-pool")
}

fn summary(path: &Path) -> Value {
    assert!(is_pool(path).unwrap(), "{}", path.display());
    let report = Pool::open(path).unwrap().verify(&mut |_, _| {}).unwrap_or_else(|e| panic!("{e}"));
    serde_json::to_value(report).unwrap()
}

/// `TOWA_WRITE_VECTORS=1` writes them.
fn write() {
    static WRITTEN: Once = Once::new();
    if std::env::var_os("TOWA_WRITE_VECTORS").is_none() {
        return;
    }
    WRITTEN.call_once(|| {
        fs::create_dir_all(folder()).unwrap();
        for (name, made) in graphs::all() {
            let path = folder().join(name).with_extension("towa");
            fs::write(&path, &made.bytes).unwrap();
            let text = serde_json::to_string_pretty(&summary(&path)).unwrap();
            fs::write(path.with_extension("json"), text + "\n").unwrap();
        }
    });
}

#[test]
fn the_vectors_are_what_the_builder_makes() {
    write();
    for (name, made) in graphs::all() {
        assert!(made.bytes.len() <= graphs::LEN_MAX, "{name}: {} bytes", made.bytes.len());
        let there = fs::read(folder().join(name).with_extension("towa")).unwrap();
        assert!(there == made.bytes, "{name}: another one; TOWA_WRITE_VECTORS=1 writes it");
    }
}

/// All that lie there, whoever made them.
#[test]
fn every_vector_has_its_summary() {
    write();
    let mut names: Vec<PathBuf> = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.retain(|path| path.extension().is_some_and(|it| it == "towa"));
    assert!(names.len() >= 3, "{names:?}");
    for path in names {
        let before = (fs::read(&path).unwrap(), fs::metadata(&path).unwrap().modified().unwrap());
        let expected: Value = serde_json::from_slice(&fs::read(path.with_extension("json")).unwrap()).unwrap();
        assert_eq!(summary(&path), expected, "{}", path.display());
        let pool = Pool::open(&path).unwrap();
        let described = serde_json::to_value(pool.describe().unwrap()).unwrap();
        described.as_object().unwrap().iter().for_each(|(name, value)| assert_eq!(*value, expected[name], "{name}"));
        assert_eq!((fs::read(&path).unwrap(), fs::metadata(&path).unwrap().modified().unwrap()), before);
    }
}
