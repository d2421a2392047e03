//! A trace as tables for people, after the paper's tables 1 and 2.
//!
//! What must hold: every line is one line, whatever a path holds; a table that was cut says how much is missing, and the totals are of all.

use std::fmt::Write;

use towa_xip::traced::{Faults, ObjectKind, Trace, TracedObject};

use crate::report::{path, plain};

/// `trace` as text, with the first `top` programs and libraries.
pub fn table(trace: &Trace, top: usize) -> String {
    let mut text = String::new();
    let of = |kind| trace.objects.iter().filter(|object| object.kind == kind).collect::<Vec<_>>();
    let (programs, libraries) = (of(ObjectKind::Program), of(ObjectKind::Library));
    let Trace { processes, forks, execs, wall_ms, exit_status, .. } = trace;
    let _ = writeln!(
        text,
        "{processes} processes, {forks} forks, {execs} execs, {} programs, {} libraries; {wall_ms:.0} ms; exit status {exit_status}",
        programs.len(),
        libraries.len()
    );
    objects(&mut text, "program", &programs, top);
    objects(&mut text, "library", &libraries, top);
    totals(&mut text, trace, &programs, &libraries);
    trace.notes.iter().for_each(|note| {
        let _ = writeln!(text, "note: {}", plain(note));
    });
    text
}

fn objects(text: &mut String, name: &str, objects: &[&TracedObject], top: usize) {
    if objects.is_empty() {
        return;
    }
    // A library is not executed by itself.
    let runs = if name == "program" { "execs" } else { "mapped by" };
    let _ = writeln!(
        text,
        "\n  {:>8} {:>8} {:>6} {runs:>9} {:>11} {:>11} {:>11} {:>11} {:>7}  {name}",
        "text KB", "data KB", "forks", "text faults", "text pages", "data faults", "data pages", "major"
    );
    for object in objects.iter().take(top) {
        let TracedObject { text: in_text, data, text_bytes, data_bytes, forks, .. } = object;
        let runs = if object.kind == ObjectKind::Program { object.execs } else { object.mapped_by };
        let _ = writeln!(
            text,
            "  {:>8} {:>8} {forks:>6} {runs:>9} {:>11} {:>11} {:>11} {:>11} {:>7}  {}",
            text_bytes.div_ceil(1024),
            data_bytes.div_ceil(1024),
            in_text.total(),
            in_text.pages,
            data.total(),
            data.pages,
            in_text.major + data.major,
            path(&object.path)
        );
    }
    if let Some(more @ 1..) = objects.len().checked_sub(top) {
        let left: u64 = objects[top..].iter().map(|object| object.faults()).sum();
        let _ = writeln!(text, "  and {more} more, with {left} faults");
    }
}

fn totals(text: &mut String, trace: &Trace, programs: &[&TracedObject], libraries: &[&TracedObject]) {
    let sum = |objects: &[&TracedObject], of: fn(&TracedObject) -> &Faults| {
        let mut all = Faults::default();
        objects.iter().for_each(|object| all += *of(object));
        all
    };
    let classes = [
        ("program text", sum(programs, |object| &object.text)),
        ("program data", sum(programs, |object| &object.data)),
        ("library text", sum(libraries, |object| &object.text)),
        ("library data", sum(libraries, |object| &object.data)),
        ("other", trace.other),
    ];
    let mut all = Faults::default();
    let _ = writeln!(text, "\n  {:>9} {:>9} {:>9}", "faults", "major", "pages");
    for (name, faults) in classes {
        all += faults;
        line(text, name, &faults);
    }
    line(text, "all", &all);
}

fn line(text: &mut String, name: &str, faults: &Faults) {
    let _ = writeln!(text, "  {:>9} {:>9} {:>9}  {name}", faults.total(), faults.major, faults.pages);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_cut_says_so_and_odd_names_stay_on_their_line() {
        let object = |path: &str, minor| TracedObject {
            path: path.into(),
            text: Faults { minor, major: 1, pages: 1 },
            ..TracedObject::default()
        };
        let objects = vec![object("/bin/a\nb", 9), object("/bin/c", 5), object("/bin/d", 2)];
        let trace = Trace { objects, processes: 3, notes: vec!["odd".into()], ..Trace::default() };
        let text = table(&trace, 1);
        assert!(text.contains("/bin/a\\nb") && text.contains("and 2 more, with 9 faults"), "{text}");
        assert!(text.contains("       19         3         3  program text") && text.ends_with("note: odd\n"), "{text}");
    }
}
