//! `towa verify` of the Java door's file.

use std::path::Path;

use anyhow::Result;
use serde_json::json;
use towa_java_pool::{CommitLog, CommitState, Durability, Pool, Report};

use super::VerifyArgs;
use crate::failure;
use crate::progress::Progress;
use crate::report::{self, Lines, bytes};

/// Classes that are listed for people.
const CLASSES_SHOWN: usize = 20;

/// Checks the file, and says what was found.
pub fn run(args: &VerifyArgs) -> Result<()> {
    let look = || -> Result<(Report, Option<CommitLog>)> {
        let bar = Progress::bytes("verifying");
        let pool = Pool::open(&args.pool)?;
        let report = pool.verify(&mut |done, all| bar.at(done, all))?;
        Ok((report, pool.commit_log()?))
    };
    let found = look();
    let (report, log) = match &found {
        Ok((report, log)) => (report, log.as_ref()),
        Err(error) => {
            super::bad_news(args, error)?;
            return found.map(drop);
        }
    };
    let in_the_way = || log.and_then(|log| in_the_way(log, report.description.durability));
    let problem = if report.problems_found > 0 { Some(summary(args, report)) } else { in_the_way() };
    let error = problem.map(|problem| failure::coded(failure::DAMAGED, problem));
    if args.json {
        let mut value = serde_json::to_value(report)?;
        (value["pool"], value["sound"]) = (json!(report::path(&args.pool)), json!(error.is_none()));
        if let Some(log) = log {
            value["commit_log"] = serde_json::to_value(log)?;
            value["commit_log"]["path"] = json!(report::path(Path::new(&log.path)));
        }
        if let Some(error) = &error {
            let problem = report::problem(("pool", report::path(&args.pool)), error);
            (value["problem"], value["exit_status"]) = (problem["problem"].clone(), problem["exit_status"].clone());
        }
        report::json(&value)?;
    } else {
        print(args, report, log, error.is_none())?;
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

/// Why the log keeps the pool from being opened, if it does.
fn in_the_way(log: &CommitLog, durability: Durability) -> Option<String> {
    let place = report::path(Path::new(&log.path));
    match (log.state, durability) {
        (CommitState::OtherPool, _) => Some(format!(
            "{place}: is the log of another pool; bring that pool's file back, or move the log away if what it holds is not wanted"
        )),
        (CommitState::Foreign, Durability::Power) => Some(format!(
            "{place}: in the way: the pool's log is to be there, and this is no log; move it, or give the pool another name"
        )),
        (CommitState::Damaged, Durability::Power) => Some(format!(
            "{place}: in the way: the page that says whose log it is is damaged; the pool does not need it: move it away"
        )),
        _ => None,
    }
}

fn explain(log: &CommitLog) -> String {
    match log.state {
        CommitState::Empty => "nothing in it that is not in the pool".into(),
        CommitState::Whole => {
            format!(
                "a whole commit, number {}, of {} pages, which the next open applies: checked as if it had",
                log.sequence, log.pages
            )
        }
        CommitState::Torn => "a commit that was cut short, and counts for nothing: the pool is as of the one before".into(),
        CommitState::OtherPool => "another pool's: opening is refused".into(),
        CommitState::Damaged => "damaged, and not needed".into(),
        CommitState::Foreign => "no log, but something else of that name".into(),
    }
}

fn print(args: &VerifyArgs, report: &Report, log: Option<&CommitLog>, sound: bool) -> Result<()> {
    let it = &report.description;
    let mut lines = Lines::default();
    let verdict = match (sound, report.problems_found) {
        (true, _) => "sound",
        (false, 0) => "sound, but not to be opened beside this log",
        (false, _) => "damaged",
    };
    lines.heading(&format!("{}: {verdict}", report::path(&args.pool)));
    lines.line("identity", &it.uuid);
    lines.line("state", if it.clean { "closed cleanly" } else { "not closed cleanly: opening recovers it" });
    if it.atomically_interrupted {
        lines.line("atomically", "interrupted: rolled back at the next open");
    }
    if let Some(log) = log {
        lines.line("commit log", explain(log));
    }
    lines.line("space", format!("{}, {} ever used", bytes(it.capacity), bytes(it.used)));
    let roots = it.roots.iter().map(|root| root.name.as_str()).collect::<Vec<_>>().join(", ");
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
        lines.line("", format!("{:>12} {:>10}  {}", class.replicas, bytes(class.bytes), class.name));
    }
    if let Some(others) = report.by_class.get(CLASSES_SHOWN..).filter(|others| !others.is_empty()) {
        let (replicas, size) = others.iter().fold((0, 0), |(n, size), class| (n + class.replicas, size + class.bytes));
        lines.line("", format!("{replicas:>12} {:>10}  of {} other classes", bytes(size), others.len()));
    }
    for problem in &report.problems {
        lines.line("problem", format!("at {:#x}: {}", problem.at, problem.what));
    }
    let told = report.problems.len() as u64;
    if report.problems_found > told {
        lines.line("problem", format!("and {} more", report.problems_found - told));
    }
    lines.print()
}
