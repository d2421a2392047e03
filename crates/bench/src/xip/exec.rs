//! What starting a small program costs more if it is split: the loader's and the audit object's work.
//!
//! What must hold: all variants are started in turn, with warm pages; a copy of the whole program beside it shows what of a difference is noise.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use towa_xip::install::How;
use towa_xip::needed;
use towa_xip::split::Options;
use towa_xip::store::Store;

use super::ground::quietly;
use super::layouts::split_file;
use super::report::ExecRow;
use super::usage::{self, Used};
use crate::snap::stats::median;

const VARIANTS: [&str; 4] = ["whole", "control", "split", "split_libs"];

/// A program whose text has whole pages, which it does not execute.
const SOURCE: &str = "#include <stdio.h>\n\
    __attribute__((used)) static void room(void) { __asm__ volatile(\".skip 65536, 0x90\"); }\n\
    int main(void) { return puts(\"hello\") < 0; }\n";

/// Starts each variant `rounds` times; programs in `dir`, stores in `nvm`.
pub fn measure(dir: &Path, nvm: &Path, rounds: usize, rng: &mut SmallRng) -> Result<Vec<ExecRow>> {
    prepare(dir, nvm)?;
    let mut found: [Vec<Used>; 4] = Default::default();
    let mut order = [0, 1, 2, 3];
    for round in 0..rounds + 5 {
        order.shuffle(rng);
        for n in order {
            let used = usage::run(Command::new(dir.join(VARIANTS[n])).env_clear(), || Ok(()))?;
            if round >= 5 {
                found[n].push(used);
            }
        }
    }
    let row = |n: usize| {
        let over = found[n].iter().zip(&found[0]).map(|(run, whole)| (run.wall_ms - whole.wall_ms) * 1e3);
        ExecRow {
            variant: VARIANTS[n],
            us_p50: median(found[n].iter().map(|run| run.wall_ms * 1e3)),
            over_whole_us: (n > 0).then(|| median(over)),
            minor: median(found[n].iter().map(|run| run.minor as f64)),
            runs: found[n].len(),
        }
    };
    Ok((0..VARIANTS.len()).map(row).collect())
}

fn prepare(dir: &Path, nvm: &Path) -> Result<()> {
    let (source, whole) = (dir.join("hello.c"), dir.join(VARIANTS[0]));
    std::fs::write(&source, SOURCE)?;
    let words: [OsString; 5] = ["-O2".into(), "-Wl,--build-id".into(), source.into(), "-o".into(), whole.clone().into()];
    quietly(Command::new("cc").args(words))?;
    std::fs::copy(&whole, dir.join(VARIANTS[1]))?;
    for (variant, libs) in [(VARIANTS[2], false), (VARIANTS[3], true)] {
        let store = Store::open_or_create(&nvm.join(format!("exec-{variant}")))?;
        let how = How { split: Options { libs, ..Options::default() }, sealed: false };
        if libs {
            for library in needed::libraries(&whole)? {
                split_file(&store, &library, None, how)?;
            }
        }
        split_file(&store, &whole, Some(&dir.join(variant)), how)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn every_variant_is_started_as_often() {
        let dir = tempfile::tempdir().unwrap();
        let rows = measure(dir.path(), dir.path(), 3, &mut SmallRng::seed_from_u64(1)).unwrap();
        assert_eq!(rows.iter().map(|row| (row.variant, row.runs)).collect::<Vec<_>>(), VARIANTS.map(|v| (v, 3)));
        assert!(rows[0].over_whole_us.is_none() && rows[3].over_whole_us.is_some());
    }
}
