//! The page-fault model of the OFF2F paper: equations 1 to 4, with any costs and any program.
//!
//! ```text
//!   conventional   (t1+t2+t3) P                      + sum_{i=2..n} (t1+t5+t3) P (1-S) C_i     (1)
//!   OFF2F          t4 P S + (t1+t2+t3) P (1-S)       + sum_{i=2..n} (t1+t5+t3) P (1-S) C_i     (2)
//!   saved          (t1+t2+t3-t4) P S                                                           (3)
//!   OFF2F minus whole file on NVM   (t4-t1-t2-t3) P S + (t2-t5) P                              (4)
//! ```
//!
//! What must hold: the functions compute what the paper writes, whatever this machine does; all times are milliseconds, all sizes pages of
//! 4 KiB. The model takes one fault per page, in one order, alone on the machine: Linux reads ahead and maps the neighbours of a faulting page, so
//! it overstates gains there. What it is worth on a machine is told by [`fit`], which fits the costs to measured runs and says how far off it is.

pub mod fit;
mod linear;
pub mod paper;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// What each step of a page fault costs, in milliseconds (section 4.2 of the paper).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// Allocate a real page.
    pub t1: f64,
    /// Read 4 KiB from storage.
    pub t2: f64,
    /// Enter a real page in the page table.
    pub t3: f64,
    /// Enter a page of NVM in the page table.
    pub t4: f64,
    /// Copy 4 KiB from memory to memory.
    pub t5: f64,
}

impl Costs {
    /// A disk read at random: t2 = 6 ms (section 5.1; measured 6.22).
    pub const DISK: Costs = Costs::reading(6.0);
    /// An SSD read at random: t2 = 0.1 ms (section 5.1; measured 0.0937).
    pub const SSD: Costs = Costs::reading(0.1);
    /// A disk read in sequence: t2 = 0.092 ms (section 5.2.4; measured 0.0919). What the paper takes for the boot and for gzip.
    pub const DISK_SEQUENTIAL: Costs = Costs::reading(0.092);
    /// An SSD read in sequence: t2 = 0.017 ms (section 5.2.4; measured 0.01696).
    pub const SSD_SEQUENTIAL: Costs = Costs::reading(0.017);

    /// The paper's costs with another storage, that reads 4 KiB in `t2` milliseconds: t5 = 0.01 ms, the others 0.001 ms (section 5.1).
    pub const fn reading(t2: f64) -> Costs {
        Costs { t1: 0.001, t2, t3: 0.001, t4: 0.001, t5: 0.01 }
    }

    /// t1 + t2 + t3: a page brought in from storage.
    pub fn load(&self) -> f64 {
        self.t1 + self.t2 + self.t3
    }

    /// t1 + t5 + t3: a page copied on write.
    pub fn copy(&self) -> f64 {
        self.t1 + self.t5 + self.t3
    }

    /// t1 + t2 + t3 - t4: what a page of text saves if it is mapped from NVM instead.
    pub fn saved_per_page(&self) -> f64 {
        self.load() - self.t4
    }

    /// Refuses costs that are negative or no numbers.
    pub fn check(&self) -> Result<()> {
        let named = [("t1", self.t1), ("t2", self.t2), ("t3", self.t3), ("t4", self.t4), ("t5", self.t5)];
        match named.iter().find(|(_, value)| !value.is_finite() || *value < 0.0) {
            Some((name, value)) => {
                Err(Error::Wrong(format!("{name} is {value}: a cost is a number of milliseconds, zero or more")))
            }
            None => Ok(()),
        }
    }
}

/// A program and how many processes run it (section 4.2 of the paper).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// P: pages of text and data.
    pub pages: f64,
    /// S: share of text in them, 0 to 1.
    pub text_share: f64,
    /// C: share of the data pages that each further process copies on write, 0 to 1; the mean of the C_i, of which the equations only take the sum.
    pub cow: f64,
    /// n: processes, the first of which loads the program.
    pub processes: u64,
}

impl Program {
    /// Pages of text, P S.
    pub fn text_pages(&self) -> f64 {
        self.pages * self.text_share
    }

    /// Pages of data, P (1 - S).
    pub fn data_pages(&self) -> f64 {
        self.pages * (1.0 - self.text_share)
    }

    /// Refuses what no program can be.
    pub fn check(&self) -> Result<()> {
        if !self.pages.is_finite() || self.pages < 0.0 {
            return Err(Error::Wrong(format!("P is {}: a program has a number of pages, zero or more", self.pages)));
        }
        for (name, value) in [("S", self.text_share), ("C", self.cow)] {
            if !(0.0..=1.0).contains(&value) {
                return Err(Error::Wrong(format!("{name} is {value}: a share lies between 0 and 1")));
            }
        }
        if self.processes == 0 {
            return Err(Error::Wrong("n is 0: at least one process runs the program".into()));
        }
        Ok(())
    }
}

/// What the processes after the first copy: the sum that equations 1 and 2 have in common, in milliseconds.
pub fn copies(c: &Costs, p: &Program) -> f64 {
    p.processes.saturating_sub(1) as f64 * c.copy() * p.data_pages() * p.cow
}

/// Equation 1: fault time with the whole program on storage, in milliseconds.
pub fn conventional(c: &Costs, p: &Program) -> f64 {
    c.load() * p.pages + copies(c, p)
}

/// Equation 2: fault time with the text mapped from NVM, in milliseconds.
pub fn off2f(c: &Costs, p: &Program) -> f64 {
    c.t4 * p.text_pages() + c.load() * p.data_pages() + copies(c, p)
}

/// Equation 3: what OFF2F saves, (1) - (2), in milliseconds. It does not depend on C or n.
pub fn saved(c: &Costs, p: &Program) -> f64 {
    c.saved_per_page() * p.text_pages()
}

/// Equation 4: OFF2F minus the whole file on an NVM that is used as a fast disk (t2 = t5), in milliseconds; positive if OFF2F is slower.
pub fn over_whole_file_on_nvm(c: &Costs, p: &Program) -> f64 {
    (c.t4 - c.load()) * p.text_pages() + (c.t2 - c.t5) * p.pages
}

/// Equation 1 without copy on write, as in Figure 4: text is loaded once, and every process loads data of its own, n (t1+t2+t3) P (1-S).
///
/// Section 4.2 says to set C = 0 for this; but then nothing would depend on n, and the text on Figure 4 (remark 6) says that it does.
pub fn conventional_without_cow(c: &Costs, p: &Program) -> f64 {
    c.load() * (p.text_pages() + p.processes as f64 * p.data_pages())
}

/// Equation 2 without copy on write; see [`conventional_without_cow`].
pub fn off2f_without_cow(c: &Costs, p: &Program) -> f64 {
    c.t4 * p.text_pages() + p.processes as f64 * c.load() * p.data_pages()
}

/// The share of text above which OFF2F on storage `off2f` is faster than a whole program on storage `other`; `None` if it never is, or always.
/// It does not depend on P; C and n matter only where the two copy at different costs, and here both copy at those of `off2f`.
///
/// It solves t4 S + (t1+t2+t3) (1-S) = (t1+t2+t3)' for S.
pub fn crossover_text_share(off2f: &Costs, other: &Costs) -> Option<f64> {
    let share = (off2f.load() - other.load()) / off2f.saved_per_page();
    (0.0..=1.0).contains(&share).then_some(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAPER: Program = Program { pages: 100.0, text_share: 0.95, cow: 0.3, processes: 5 };

    fn near(a: f64, b: f64, within: f64) {
        assert!((a - b).abs() <= within, "{a} is not {b} within {within}");
    }

    #[test]
    fn the_equations_by_hand() {
        let c = Costs { t1: 1.0, t2: 10.0, t3: 2.0, t4: 3.0, t5: 5.0 };
        let p = Program { pages: 10.0, text_share: 0.8, cow: 0.5, processes: 3 };
        near(conventional(&c, &p), 130.0 + 2.0 * 8.0 * 2.0 * 0.5, 1e-9);
        near(off2f(&c, &p), 24.0 + 26.0 + 16.0, 1e-9);
        near(saved(&c, &p), 80.0, 1e-9);
        near(over_whole_file_on_nvm(&c, &p), -80.0 + 50.0, 1e-9);
        near(conventional_without_cow(&c, &p), 13.0 * (8.0 + 3.0 * 2.0), 1e-9);
        near(off2f_without_cow(&c, &p), 24.0 + 78.0, 1e-9);
    }

    #[test]
    fn what_is_saved_is_the_difference_whatever_is_copied() {
        for c in [Costs::DISK, Costs::SSD, Costs::DISK_SEQUENTIAL, Costs::SSD_SEQUENTIAL] {
            for cow in [0.0, 0.3, 1.0] {
                for processes in [1, 2, 50] {
                    let p = Program { cow, processes, ..PAPER };
                    near(conventional(&c, &p) - off2f(&c, &p), saved(&c, &p), 1e-9);
                }
            }
        }
    }

    #[test]
    fn equation_4_is_equation_2_less_equation_1_with_t2_of_a_copy() {
        for c in [Costs::DISK, Costs::SSD] {
            let whole = conventional(&Costs { t2: c.t5, ..c }, &PAPER);
            near(over_whole_file_on_nvm(&c, &PAPER), off2f(&c, &PAPER) - whole, 1e-9);
        }
    }

    #[test]
    fn one_process_copies_nothing_and_without_cow_it_makes_no_difference() {
        let one = Program { processes: 1, ..PAPER };
        near(conventional(&Costs::SSD, &one), conventional_without_cow(&Costs::SSD, &one), 1e-9);
        near(off2f(&Costs::SSD, &one), off2f_without_cow(&Costs::SSD, &one), 1e-9);
    }

    #[test]
    fn the_crossover_is_where_the_lines_meet() {
        let share = crossover_text_share(&Costs::DISK, &Costs::SSD).unwrap();
        let at = |text_share| Program { text_share, ..PAPER };
        near(off2f(&Costs::DISK, &at(share)), conventional(&Costs::SSD, &at(share)), 1e-9);
        assert!(off2f(&Costs::DISK, &at(share + 0.001)) < conventional(&Costs::SSD, &at(share + 0.001)));
        assert_eq!(crossover_text_share(&Costs::SSD, &Costs::DISK), None, "always faster");
    }

    #[test]
    fn impossible_values_are_refused() {
        assert!(Costs { t2: -1.0, ..Costs::DISK }.check().is_err());
        assert!(Costs { t5: f64::NAN, ..Costs::DISK }.check().is_err());
        assert!(Costs::DISK.check().is_ok() && PAPER.check().is_ok());
        for wrong in [
            Program { pages: f64::INFINITY, ..PAPER },
            Program { text_share: 1.1, ..PAPER },
            Program { cow: -0.1, ..PAPER },
            Program { processes: 0, ..PAPER },
        ] {
            assert!(matches!(wrong.check(), Err(Error::Wrong(_))), "{wrong:?}");
        }
    }
}
