//! What must hold for checkpoints and restarts, and whether the run found it so. Judged here and nowhere else.
//!
//! What must hold: a pause is the program's own, not the tool's figure; what was not measured is not met and not missed.

use super::report::SnapReport;
use crate::targets::{Bound, Target};

/// Memory, pace, 99th percentile of the pause in ms.
const PAUSES: [(u64, u64, f64); 2] = [(512, 10_000, 2.0), (4096, 10_000, 5.0)];
/// Memory and pace at which the pause is compared with that of a copy.
const COPIED: (u64, u64) = (512, 200_000);
/// The pause over that of the copy of what changed; medians.
const COPY_RATIO: f64 = 0.05;
/// Time of an eager restart over that of reading the image.
const EAGER_RATIO: f64 = 1.0;
/// Until the first instruction of a lazy restart, in ms, whatever the memory.
const LAZY_MS: f64 = 50.0;
/// Bytes of a checkpoint over those of the pages that changed.
const SPACE_RATIO: f64 = 1.25;

/// Judges a report.
pub fn judge(report: &SnapReport) -> Vec<Target> {
    let mut targets = Vec::new();
    for (mb, pace, most) in PAUSES {
        let measured = report.pause_of(mb, pace, "dram").map(|row| row.pause_ms_p99);
        let meaning = format!("99th percentile of the pause that the program sees; {mb} MiB, {pace} pages/s written");
        targets.push(Target::new(format!("pause {mb} MiB"), meaning, Bound::AtMost, most, measured, "ms"));
    }
    let (mb, pace) = COPIED;
    let of = |mode| report.pause_of(mb, pace, mode).map(|row| row.pause_ms_p50);
    let measured = of("dram").zip(of("copy")).map(|(dram, copy)| dram / copy);
    let meaning = format!("median pause over that of copying in it what changed; {mb} MiB, {pace} pages/s written");
    targets.push(Target::new("pause to copy".into(), meaning, Bound::AtMost, COPY_RATIO, measured, "x"));
    for mb in &report.settings.sizes_mb {
        let of = |mode| report.restart_of(*mb, mode, "warm").map(|row| row.total_ms);
        let measured = of("eager").zip(of("copy")).map(|(eager, copy)| eager / copy);
        let meaning = format!("eager restart of {mb} MiB over reading its image into memory, page cache warm");
        targets.push(Target::new(format!("eager to copy {mb} MiB"), meaning, Bound::AtMost, EAGER_RATIO, measured, "x"));
    }
    for mb in &report.settings.sizes_mb {
        let measured = report.restart_of(*mb, "lazy", "warm").map(|row| row.first_instruction_ms);
        let meaning = format!("until the first instruction of a lazy restart of {mb} MiB, page cache warm");
        targets.push(Target::new(format!("lazy {mb} MiB"), meaning, Bound::AtMost, LAZY_MS, measured, "ms"));
    }
    let space = report.space.iter().map(|row| row.ratio_to_changed).reduce(f64::max);
    let meaning = "bytes of a checkpoint over those of the pages that changed, 1 % of all".to_owned();
    targets.push(Target::new("space".into(), meaning, Bound::AtMost, SPACE_RATIO, space, "x"));
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_judged_on_its_side_of_the_line() {
        let mut report = crate::snap::report::tests::sample();
        report.settings.sizes_mb = vec![64, 512];
        let targets = judge(&report);
        let met = |name: &str| targets.iter().find(|t| t.name == name).unwrap_or_else(|| panic!("{name}")).met;
        assert_eq!(met("pause 512 MiB"), Some(true), "on the line is met; that of eight threads is another row");
        assert_eq!(met("pause 4096 MiB"), Some(false));
        assert_eq!(met("pause to copy"), Some(true));
        assert_eq!(met("eager to copy 512 MiB"), Some(true), "the cold one does not count");
        assert_eq!(met("eager to copy 64 MiB"), None, "not measured is not missed");
        assert_eq!(met("lazy 512 MiB"), None);
        assert_eq!(met("space"), Some(true));
    }

    #[test]
    fn nothing_measured_is_nothing_missed() {
        assert!(judge(&crate::snap::report::tests::empty()).iter().all(|t| t.met.is_none()));
    }
}
