//! Paths in JSON, which is text and they need not be.
//!
//! What must always hold: every path can be written, and comes back as it was. One that is text is a string; any other is an array of its
//! bytes.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

#[derive(Serialize)]
#[serde(untagged)]
enum Shown<'p> {
    Text(&'p str),
    Bytes(&'p [u8]),
}

impl Shown<'_> {
    fn of(path: &Path) -> Shown<'_> {
        path.to_str().map_or(Shown::Bytes(path.as_os_str().as_bytes()), Shown::Text)
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Found {
    Text(PathBuf),
    Bytes(Vec<u8>),
}

/// For a field that is a path: `#[serde(with = "towa_media::paths::one")]`.
pub mod one {
    use super::*;

    /// Writes it.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: serde::Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        Shown::of(path).serialize(to)
    }

    /// Reads it.
    ///
    /// # Errors
    /// It is neither text nor bytes.
    pub fn deserialize<'d, D: serde::Deserializer<'d>>(from: D) -> Result<PathBuf, D::Error> {
        Found::deserialize(from).map(|found| match found {
            Found::Text(path) => path,
            Found::Bytes(bytes) => OsString::from_vec(bytes).into(),
        })
    }
}

/// For a field with several: `#[serde(serialize_with = "towa_media::paths::many")]`.
///
/// # Errors
/// The serializer's.
pub fn many<S: serde::Serializer>(paths: &[PathBuf], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(paths.iter().map(|path| Shown::of(path)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Paths {
        #[serde(with = "one")]
        one: PathBuf,
        #[serde(skip_deserializing, serialize_with = "many")]
        many: Vec<PathBuf>,
    }

    #[test]
    fn every_path_comes_back_from_json() {
        for bytes in [&b"/plain/pl\xc3\xa4in"[..], b"a\nb\\\"\x1b", b"/d\xff/x", b"", b"\xc3"] {
            let path = PathBuf::from(OsStr::from_bytes(bytes));
            let paths = Paths { one: path.clone(), many: vec![path.clone(), "b".into()] };
            let text = serde_json::to_string(&paths).unwrap();
            assert_eq!(serde_json::from_str::<Paths>(&text).unwrap().one, path, "{text}");
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!((value["many"][0].is_string(), &value["many"][1]), (path.to_str().is_some(), &serde_json::json!("b")));
        }
    }
}
