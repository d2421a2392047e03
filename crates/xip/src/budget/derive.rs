//! Candidates from a trace: what each program and library would save.
//!
//! What must hold: an object counts with the runs that the trace counted, never with guesses; both ways of counting pages are honest about what they
//! assume, and the caller has to choose one.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Candidate;
use crate::format::PAGE;
use crate::model::Costs;
use crate::traced::{ObjectKind, Trace, TracedObject};
use crate::{Error, Result};

/// Which pages of text are taken to save time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// Every page that a run touched, as in the paper: each run is a cold one, and each page a fault. It overstates what runs save whose pages
    /// are in the page cache already.
    #[default]
    Pages,
    /// The faults that waited for storage when it was traced. It says what was saved in that very run; trace with cold caches, and note that one
    /// fault of Linux may read many pages.
    Major,
}

impl Basis {
    fn count(self, object: &TracedObject) -> u64 {
        match self {
            Basis::Pages => object.text.pages,
            Basis::Major => object.text.major,
        }
    }
}

/// What each object of `trace` would save with its text on NVM: t1+t2+t3-t4 for each page of text that it touches in a run (equation 3).
///
/// Runs are execs of a program, and processes that mapped a library. With `only`, just these objects and those below these directories; each has to
/// be in the trace.
pub fn candidates(trace: &Trace, costs: &Costs, basis: Basis, only: &[PathBuf]) -> Result<Vec<Candidate>> {
    costs.check()?;
    if let Some(missing) = only.iter().find(|path| !trace.objects.iter().any(|object| object.path.starts_with(path))) {
        let what = format!(
            "{}: not in the trace: it holds {} objects, by their paths without links",
            missing.display(),
            trace.objects.len()
        );
        return Err(Error::Wrong(what));
    }
    let wanted = |object: &&TracedObject| only.is_empty() || only.iter().any(|path| object.path.starts_with(path));
    Ok(trace.objects.iter().filter(wanted).map(|object| candidate(object, costs, basis)).collect())
}

fn candidate(object: &TracedObject, costs: &Costs, basis: Basis) -> Candidate {
    let runs = match object.kind {
        ObjectKind::Program => object.execs,
        ObjectKind::Library => object.mapped_by,
    };
    let pages_per_run = if runs == 0 { 0.0 } else { basis.count(object) as f64 / runs as f64 };
    Candidate {
        path: object.path.clone(),
        runs,
        nvm_bytes: object.text_bytes.div_ceil(PAGE).saturating_mul(PAGE),
        saved_ms_per_run: costs.saved_per_page() * pages_per_run,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traced::Faults;

    fn trace() -> Trace {
        let libc = TracedObject {
            path: "/lib/libc.so.6".into(),
            kind: ObjectKind::Library,
            mapped_by: 4,
            text_bytes: 100 * PAGE + 1,
            text: Faults { major: 10, minor: 70, pages: 200 },
            ..TracedObject::default()
        };
        let sh = TracedObject {
            path: "/bin/sh".into(),
            execs: 2,
            mapped_by: 9,
            text_bytes: 3 * PAGE,
            text: Faults { major: 3, minor: 3, pages: 6 },
            ..TracedObject::default()
        };
        Trace { schema: 1, objects: vec![libc, sh], ..Trace::default() }
    }

    #[test]
    fn a_run_saves_equation_3() {
        let costs = Costs { t1: 1.0, t2: 10.0, t3: 2.0, t4: 3.0, t5: 99.0 };
        let all = candidates(&trace(), &costs, Basis::Pages, &[]).unwrap();
        assert_eq!((all[0].runs, all[0].nvm_bytes, all[0].saved_ms_per_run), (4, 101 * PAGE, 10.0 * 50.0));
        assert_eq!((all[1].runs, all[1].nvm_bytes, all[1].saved_ms_per_run), (2, 3 * PAGE, 10.0 * 3.0));
        let all = candidates(&trace(), &costs, Basis::Major, &[]).unwrap();
        assert_eq!((all[0].saved_ms(), all[1].saved_ms()), (100.0, 30.0));
    }

    #[test]
    fn only_what_is_named_counts_and_has_to_be_there() {
        let named = |paths: &[&str]| {
            let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
            candidates(&trace(), &Costs::DISK, Basis::Pages, &paths)
        };
        assert_eq!(named(&["/bin"]).unwrap().len(), 1);
        assert_eq!(named(&["/bin/sh", "/lib"]).unwrap().len(), 2);
        let said = named(&["/bin/s"]).unwrap_err().to_string();
        assert!(said.starts_with("/bin/s: not in the trace"), "{said}");
    }

    #[test]
    fn what_never_ran_saves_nothing() {
        let mut trace = trace();
        trace.objects[1].execs = 0;
        let all = candidates(&trace, &Costs::DISK, Basis::Pages, &[]).unwrap();
        assert_eq!(all[1].saved_ms(), 0.0);
        assert!(candidates(&trace, &Costs { t2: -1.0, ..Costs::DISK }, Basis::Pages, &[]).is_err());
    }
}
