//! Whether programs of the Java door can run here: the JDK that `scripts/jdk` would take.
//!
//! What must always hold: no program is started; a JDK says what it is in its file `release`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// The oldest that the door runs on.
const OLDEST: u32 = 25;

/// A JDK.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Jdk {
    /// Its home.
    pub home: String,
    /// Its major version.
    pub version: u32,
}

impl Jdk {
    /// `$JAVA_HOME`; else the newest below the usual folders; else the one that `javac` is of. `None`: none is new enough.
    pub fn here() -> Option<Jdk> {
        let usual = ["/usr/lib/jvm", "/usr/java", "/opt", "/opt/java"].map(PathBuf::from);
        let own = env::var_os("HOME").map(PathBuf::from);
        let own = own.iter().flat_map(|home| [home.join(".sdkman/candidates/java"), home.join(".jdks")]);
        let path = env::var_os("PATH").unwrap_or_default();
        let javac = env::split_paths(&path).map(|dir| dir.join("javac")).find(|javac| javac.is_file());
        let of_javac = javac.and_then(|javac| Some(fs::canonicalize(javac).ok()?.parent()?.parent()?.to_owned()));
        find(env::var_os("JAVA_HOME").map(PathBuf::from), usual.into_iter().chain(own), of_javac)
    }
}

fn find(java_home: Option<PathBuf>, folders: impl Iterator<Item = PathBuf>, of_javac: Option<PathBuf>) -> Option<Jdk> {
    let at = |home: PathBuf| version(&home).filter(|version| *version >= OLDEST).map(|version| (home, version));
    let newest = || folders.flat_map(homes).filter_map(at).max_by_key(|(_, version)| *version);
    let (home, version) = java_home.and_then(at).or_else(newest).or_else(|| of_javac.and_then(at))?;
    Some(Jdk { home: crate::report::path(&home), version })
}

/// What may be a JDK below a folder; in `/opt` only what is named like one.
fn homes(folder: PathBuf) -> Vec<PathBuf> {
    let all = fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let named = |home: &PathBuf| folder != Path::new("/opt") || home.to_string_lossy().contains("jdk");
    let mut all: Vec<_> = all.filter(named).collect();
    // Of two that are as new: always the same, the last by name.
    all.sort();
    all
}

/// The major version of the JDK whose home that is, if it is one.
fn version(home: &Path) -> Option<u32> {
    if !home.join("bin/javac").is_file() {
        return None;
    }
    let release = fs::read_to_string(home.join("release")).ok()?;
    let version = release.lines().find_map(|line| line.strip_prefix("JAVA_VERSION=\""))?;
    version.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jdk(home: &Path, release: &str) -> PathBuf {
        fs::create_dir_all(home.join("bin")).unwrap();
        fs::write(home.join("bin/javac"), "").unwrap();
        fs::write(home.join("release"), format!("IMPLEMENTOR=\"x\"\nJAVA_VERSION=\"{release}\"\n")).unwrap();
        home.to_owned()
    }

    #[test]
    fn the_first_of_home_the_newest_of_the_folders_and_javac() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("jvm");
        let found = |java_home: Option<&PathBuf>, javac: Option<&PathBuf>| {
            find(java_home.cloned(), [dir.path().join("nowhere"), folder.clone()].into_iter(), javac.cloned()).map(|it| it.version)
        };
        let (old, new) = (jdk(&dir.path().join("old"), "21.0.2"), jdk(&dir.path().join("new"), "26-ea"));
        assert_eq!(found(None, None), None);
        assert_eq!(found(Some(&old), Some(&old)), None);
        assert_eq!(found(Some(&old), Some(&new)), Some(26));
        jdk(&folder.join("a"), "25.0.3");
        jdk(&folder.join("b"), "1.8.0_401");
        let newest = jdk(&folder.join("c"), "27.0.1");
        assert_eq!(found(None, Some(&new)), Some(27));
        assert_eq!(found(Some(&new), None), Some(26));
        // A runtime without its compiler is none.
        fs::remove_file(newest.join("bin/javac")).unwrap();
        assert_eq!(found(Some(&newest), None), Some(25));
    }
}
