//! Programs in all layouts, with cold and with warm pages.
//!
//! ```text
//!   round 1   block  off2f  whole ...        every round all layouts once, in an order of its own
//!   round 2   whole  block  off2f ...        cold: before each run, all pages of the block device's file system go
//! ```
//!
//! What must hold: a ratio is of two runs of one round; what is warmed up or checked is not measured; reading ahead counts with the run.

use std::ffi::OsString;

use anyhow::{Context, Result, ensure};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use towa_xip::trace;
use towa_xip::traced::Trace;

use super::ground::{Ground, read_ahead, resident};
use super::layouts::{Laid, Layout};
use super::report::Row;
use super::usage::{self, Used};
use crate::snap::stats::{Spread, median};

/// What is measured of a program.
#[derive(Clone, Copy, Debug)]
pub struct Config<'a> {
    /// Its name in the report.
    pub name: &'a str,
    /// What it is to do.
    pub args: &'a [OsString],
    /// Whether pages are cold.
    pub cold: bool,
    /// How often.
    pub rounds: usize,
    /// Whether whole programs lie on DAX.
    pub dax: bool,
}

/// Rows of one program, and what share of its pages was in memory when they were to be cold.
pub fn measure(config: Config<'_>, all: &[Laid], ground: &mut Ground, rng: &mut SmallRng) -> Result<(Vec<Row>, Option<f64>)> {
    let mut still = None;
    for laid in all {
        if config.cold {
            ground.make_cold(&laid.on_block)?;
            let share = resident(&laid.on_block)?;
            ensure!(share < 0.1, "{:.0} % of the pages stay in memory when they are to go: no cold run", share * 100.0);
            still = Some(share.max(still.unwrap_or(0.0)));
        } else {
            usage::run(&mut laid.command(config.args), || Ok(())).context("warming up")?;
        }
    }
    let mut found = vec![Vec::new(); all.len()];
    let mut order: Vec<usize> = (0..all.len()).collect();
    for _ in 0..config.rounds {
        order.shuffle(rng);
        for n in &order {
            found[*n].push(one(config, &all[*n], ground)?);
        }
    }
    let base = all.iter().position(|laid| laid.layout == Layout::Block).map(|n| found[n].clone());
    let rows = all.iter().zip(&found).map(|(laid, runs)| row(config, laid, runs, base.as_deref())).collect();
    Ok((rows, still))
}

fn one(config: Config<'_>, laid: &Laid, ground: &mut Ground) -> Result<Used> {
    if config.cold {
        ground.make_cold(&laid.on_block)?;
    }
    let ahead: &[_] = if laid.layout == Layout::BlockRa { &laid.on_block } else { &[] };
    usage::run(&mut laid.command(config.args), || ahead.iter().try_for_each(|file| read_ahead(file)))
}

fn row(config: Config<'_>, laid: &Laid, runs: &[Used], base: Option<&[Used]>) -> Row {
    let of = |figure: fn(&Used) -> f64| median(runs.iter().map(figure));
    let to_base = |figure: fn(&Used) -> f64| {
        let pairs = runs.iter().zip(base?).filter(|(_, base)| figure(base) > 0.0);
        let ratios: Vec<f64> = pairs.map(|(run, base)| figure(run) / figure(base)).collect();
        (!ratios.is_empty()).then(|| median(ratios))
    };
    let wall = Spread::of(runs.iter().map(|run| run.wall_ms).collect());
    Row {
        program: config.name.into(),
        layout: laid.layout.name(config.dax).into(),
        cache: if config.cold { "cold" } else { "warm" },
        major: of(|run| run.major as f64),
        minor: of(|run| run.minor as f64),
        nvm_faults: None,
        wall_ms_p50: wall.p50,
        wall_ms_p99: wall.p99,
        user_ms: of(|run| run.user_ms),
        system_ms: of(|run| run.system_ms),
        ratio_to_block: to_base(|run| run.wall_ms),
        cpu_ratio_to_block: to_base(Used::cpu_ms),
        nvm_bytes: laid.nvm_bytes,
        runs: runs.len(),
    }
}

/// Faults in text that lies in the store, of one run with warm pages; `None` where faults cannot be attributed.
///
/// What is traced has our streams; so it is started by a shell that takes them away, and whose own faults are not in text of the store.
pub fn nvm_faults(laid: &Laid, args: &[OsString]) -> Result<Option<f64>> {
    if matches!(laid.layout, Layout::Block | Layout::BlockRa | Layout::Whole) {
        return Ok(Some(0.0));
    }
    let command = laid.command(args);
    let settings = command.get_envs().filter_map(|(name, value)| {
        let mut setting = name.to_owned();
        setting.push("=");
        setting.push(value?);
        Some(setting)
    });
    let quiet = ["/bin/sh", "-c", "exec env -i \"$@\" >/dev/null 2>&1", "sh"].map(OsString::from);
    let words: Vec<OsString> =
        quiet.into_iter().chain(settings).chain([command.get_program().to_owned()]).chain(args.iter().cloned()).collect();
    let trace = trace::trace(&words, &trace::Options::default())?;
    ensure!(trace.exit_status == 0, "the traced program ended with {}", trace.exit_status);
    Ok(text_faults(&trace, laid))
}

fn text_faults(trace: &Trace, laid: &Laid) -> Option<f64> {
    let from_store = |path: &std::path::Path| {
        let name = path.file_name();
        let library = path.to_string_lossy().contains(".so");
        let same = |other: &std::path::PathBuf| other.file_name() == name;
        path.to_string_lossy().contains("/xyz/")
            || (laid.is_split && laid.program.as_path() == path)
            || (library && laid.layout != Layout::Off2fMain && laid.on_block.iter().any(same))
    };
    let objects = trace.objects.iter().filter(|object| from_store(&object.path));
    trace.exact.then(|| objects.map(|object| (object.text.minor + object.text.major) as f64).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_same_round() {
        let run = |wall_ms, user_ms| Used { wall_ms, user_ms, ..Used::default() };
        let config = Config { name: "cc1", args: &[], cold: true, rounds: 3, dax: false };
        let dir = tempfile::tempdir().unwrap();
        let gzip = crate::xip::programs::Program::find("gzip", dir.path()).unwrap();
        let laid = crate::xip::layouts::lay_out(&gzip, &dir.path().join("g"), dir.path(), &[Layout::Whole]).unwrap().remove(0);
        // A machine that became three times slower in the last round.
        let (base, runs) = ([run(10.0, 0.0), run(10.0, 0.0), run(30.0, 0.0)], [run(5.0, 1.0), run(5.0, 1.0), run(15.0, 1.0)]);
        let found = row(config, &laid, &runs, Some(&base));
        assert_eq!((found.ratio_to_block, found.cpu_ratio_to_block), (Some(0.5), None));
        assert_eq!((found.layout.as_str(), found.cache, found.runs), ("tmpfs_whole", "cold", 3));
        assert_eq!((found.wall_ms_p50, found.wall_ms_p99), (5.0, 15.0));
    }

    #[test]
    fn text_of_the_store_is_seen_in_a_trace() {
        let dir = tempfile::tempdir().unwrap();
        let gzip = crate::xip::programs::Program::find("gzip", dir.path()).unwrap();
        let layouts = [Layout::Block, Layout::Off2fMain, Layout::Off2f];
        let all = crate::xip::layouts::lay_out(&gzip, &dir.path().join("g"), dir.path(), &layouts).unwrap();
        let faults: Vec<_> = all.iter().map(|laid| nvm_faults(laid, &gzip.args).unwrap()).collect();
        assert_eq!(faults[0], Some(0.0));
        // Where faults can be attributed at all.
        if let [_, Some(main), Some(all)] = faults[..] {
            assert!(main > 0.0 && all > main, "{main} and {all}");
        }
    }
}
