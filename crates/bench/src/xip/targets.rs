//! What must hold for programs in two files, and whether the run found it so. Judged here and nowhere else.
//!
//! What must hold: a ratio is of two runs of the same round; what was not measured is not met and not missed. Nothing is claimed for gzip,
//! which has hardly any text: it is there to show where there is nothing to gain.

use super::report::XipReport;
use crate::targets::{Bound, Target};

/// cc1 with cold pages, over the same from the block device.
const COLD_RATIO: f64 = 0.6;
/// A long run with warm pages, over the same from the block device.
const WARM_RATIO: f64 = 1.03;
/// What the loader may add to starting a program, in us.
const EXEC_US: f64 = 100.0;

/// Judges a report.
pub fn judge(report: &XipReport) -> Vec<Target> {
    let row = |program, cache| report.row(program, "off2f", cache);
    let with_rodata = report.row("cc1", "off2f_rodata", "cold");
    let over = |variant: &str| report.exec_overhead.iter().find(|row| row.variant == variant)?.over_whole_us;
    let target = |name: &str, meaning: &str, line, measured, unit| {
        Target::new(name.to_owned(), meaning.to_owned(), Bound::AtMost, line, measured, unit)
    };
    vec![
        target(
            "cold cc1",
            "a short run of cc1 with cold pages, its text and that of its libraries on NVM, over the same from the block device",
            COLD_RATIO,
            row("cc1", "cold").and_then(|row| row.ratio_to_block),
            "x",
        ),
        target(
            "cold cc1, rodata",
            "the same, its read-only data on NVM, too",
            COLD_RATIO,
            with_rodata.and_then(|row| row.ratio_to_block),
            "x",
        ),
        target(
            "warm wall",
            "a long run of cc1 with warm pages over the same unsplit: wall time",
            WARM_RATIO,
            row("cc1_long", "warm").and_then(|row| row.ratio_to_block),
            "x",
        ),
        target(
            "warm cpu",
            "the same: processor time, user and kernel",
            WARM_RATIO,
            row("cc1_long", "warm").and_then(|row| row.cpu_ratio_to_block),
            "x",
        ),
        target("exec", "what starting a small split program takes longer, warm", EXEC_US, over("split"), "us"),
        target("exec, libraries", "the same, where its libraries' text is in the store, too", EXEC_US, over("split_libs"), "us"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_judged_on_its_side_of_the_line() {
        let targets = judge(&crate::xip::report::tests::sample());
        let met = |name: &str| targets.iter().find(|t| t.name == name).unwrap_or_else(|| panic!("{name}")).met;
        assert_eq!(met("cold cc1"), Some(true), "the warm short run does not count");
        assert_eq!((met("warm wall"), met("warm cpu")), (Some(true), Some(true)));
        assert_eq!((met("exec"), met("exec, libraries")), (Some(true), Some(false)));
        assert!(targets.iter().all(|target| !target.name.contains("gzip")));
    }

    #[test]
    fn nothing_measured_is_nothing_missed() {
        assert!(judge(&crate::xip::report::tests::empty()).iter().all(|t| t.met.is_none()));
    }
}
