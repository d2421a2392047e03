//! `towa verify` of the Java door's file.

use anyhow::Result;
use serde_json::json;
use towa_java_pool::{Pool, Report};

use super::VerifyArgs;
use crate::failure;
use crate::progress::Progress;
use crate::report::{self, Lines, bytes, plain};

/// Classes that are listed for people.
const CLASSES_SHOWN: usize = 20;

/// Checks the file, and says what was found.
pub fn run(args: &VerifyArgs) -> Result<()> {
    let look = || -> Result<Report> {
        let bar = Progress::bytes("verifying");
        Ok(Pool::open(&args.pool)?.verify(&mut |done, all| bar.at(done, all))?)
    };
    let found = look();
    let report = match &found {
        Ok(report) => report,
        Err(error) => {
            super::bad_news(args, error)?;
            return found.map(drop);
        }
    };
    let error = (report.problems_found > 0).then(|| failure::coded(failure::DAMAGED, summary(args, report)));
    if args.json {
        let mut value = serde_json::to_value(report)?;
        (value["pool"], value["sound"]) = (json!(report::path(&args.pool)), json!(error.is_none()));
        if let Some(error) = &error {
            let problem = report::problem(("pool", report::path(&args.pool)), error);
            (value["problem"], value["exit_status"]) = (problem["problem"].clone(), problem["exit_status"].clone());
        }
        report::json(&value)?;
    } else {
        print(args, report)?;
    }
    error.map_or(Ok(()), Err)
}

fn summary(args: &VerifyArgs, report: &Report) -> String {
    let place = report::path(&args.pool);
    let first = report.problems.first().map_or(String::new(), |it| format!(", the first at {:#x}: {}", it.at, it.what));
    let count = report.problems_found;
    let problems = if count == 1 { "problem" } else { "problems" };
    format!("{place}: damaged: {count} {problems}{first}; nothing was changed; restore a copy")
}

fn print(args: &VerifyArgs, report: &Report) -> Result<()> {
    let it = &report.description;
    let mut lines = Lines::default();
    let verdict = if report.problems_found == 0 { "sound" } else { "damaged" };
    lines.heading(&format!("{}: {verdict}", report::path(&args.pool)));
    lines.line("identity", &it.uuid);
    lines.line("state", if it.clean { "closed cleanly" } else { "not closed cleanly: opening recovers it" });
    if it.atomically_interrupted {
        lines.line("atomically", "interrupted: rolled back at the next open");
    }
    lines.line("space", format!("{}, {} ever used", bytes(it.capacity), bytes(it.used)));
    let roots = it.roots.iter().map(|root| plain(&root.name)).collect::<Vec<_>>().join(", ");
    lines.line("roots", if roots.is_empty() { "none".into() } else { roots });
    lines.line(
        "live",
        format!(
            "{} replicas of {} classes, {} in {}",
            report.replicas,
            report.by_class.len(),
            bytes(report.bytes),
            bytes(report.block_bytes)
        ),
    );
    for class in report.by_class.iter().take(CLASSES_SHOWN) {
        lines.line("", format!("{:>12} {:>10}  {}", class.replicas, bytes(class.bytes), plain(&class.name)));
    }
    if let Some(others) = report.by_class.get(CLASSES_SHOWN..).filter(|others| !others.is_empty()) {
        let (replicas, size) = others.iter().fold((0, 0), |(n, size), class| (n + class.replicas, size + class.bytes));
        lines.line("", format!("{replicas:>12} {:>10}  of {} other classes", bytes(size), others.len()));
    }
    for problem in &report.problems {
        lines.line("problem", format!("at {:#x}: {}", problem.at, plain(&problem.what)));
    }
    let told = report.problems.len() as u64;
    if report.problems_found > told {
        lines.line("problem", format!("and {} more", report.problems_found - told));
    }
    lines.print()
}
