//! The paper's model on this machine: its costs fitted to the rows of the matrix, and how far off it is with them.
//!
//! What must hold: a cost that the rows do not tell is absent, never guessed; the error is that of rows whose time the costs were fitted to, and
//! so the least that can be claimed. Rows that were read ahead are left out: the model knows no such thing.

use anyhow::Result;
use towa_xip::model::Costs;
use towa_xip::model::fit::{Base, Column, Fit, Run, fit};

use super::report::{ModelFit, Predicted, Row};

/// A fit to these rows; with the costs for equations 1 to 4, if those of storage and NVM are told.
pub fn of(rows: &[Row]) -> Result<(ModelFit, Option<Costs>)> {
    let used: Vec<(&Row, f64)> =
        rows.iter().filter(|row| row.layout != "block_ra").filter_map(|row| Some((row, row.nvm_faults?))).collect();
    let run = |(row, nvm): &(&Row, f64)| Run {
        program: row.program.clone(),
        major: row.major,
        nvm: nvm.min(row.minor),
        minor: (row.minor - nvm).max(0.0),
        cow: 0.0,
        wall_ms: row.wall_ms_p50,
    };
    let found = fit(&used.iter().map(run).collect::<Vec<_>>(), Base::PerProgram)?;
    let predicted = used.iter().zip(&found.runs).map(|((row, _), predicted)| Predicted {
        program: row.program.clone(),
        layout: row.layout.clone(),
        cache: row.cache,
        wall_ms: row.wall_ms_p50,
        model_ms: predicted.predicted_ms,
        error_pct: predicted.error_percent,
    });
    let predicted = predicted.collect();
    Ok((ModelFit { predicted, ..costs(&found, used.len()) }, found.costs()))
}

fn costs(found: &Fit, rows: usize) -> ModelFit {
    let (load, t3, t4) = (found.ms(&Column::Major), found.ms(&Column::Minor), found.ms(&Column::Nvm));
    let mut notes =
        vec!["t1 cannot be seen apart from t3, and is in it; each program's time without faults is fitted, too".to_owned()];
    notes.extend(found.notes.iter().cloned());
    for estimate in &found.estimates {
        if let (Some(ms), Some(error)) = (estimate.ms, estimate.error_ms) {
            notes.push(format!("{:?}: {ms:.5} ms, standard error {error:.5}", estimate.cost));
        }
    }
    ModelFit {
        t1: None,
        t2: load.map(|load| load - t3.unwrap_or(0.0).min(load)),
        t3,
        t4,
        t5: found.ms(&Column::Cow).map(|copy| (copy - t3.unwrap_or(0.0)).max(0.0)),
        error_pct: found.median_error_percent,
        error_pct_max: found.max_error_percent,
        rows,
        notes,
        predicted: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_that_made_the_rows_are_found() {
        let row = |program: &str, layout: &str, base: f64, major: f64, nvm: f64, minor: f64| Row {
            program: program.into(),
            layout: layout.into(),
            major,
            minor: minor + nvm,
            nvm_faults: Some(nvm),
            wall_ms_p50: base + 0.1 * major + 0.002 * nvm + 0.001 * minor,
            ..Row::default()
        };
        let mut rows = vec![
            row("a", "block", 20.0, 300.0, 0.0, 900.0),
            row("a", "off2f", 20.0, 50.0, 700.0, 600.0),
            row("a", "tmpfs_whole", 20.0, 0.0, 0.0, 1500.0),
            row("b", "block", 5.0, 80.0, 0.0, 300.0),
            row("b", "off2f", 5.0, 20.0, 100.0, 250.0),
            row("b", "tmpfs_whole", 5.0, 0.0, 0.0, 800.0),
        ];
        rows.push(Row { layout: "block_ra".into(), nvm_faults: Some(0.0), wall_ms_p50: 1e4, ..rows[0].clone() });
        rows.push(Row { nvm_faults: None, wall_ms_p50: 1e4, ..rows[1].clone() });
        let (found, costs) = of(&rows).unwrap();
        let near =
            |value: Option<f64>, wanted: f64| assert!((value.unwrap() / wanted - 1.0).abs() < 0.01, "{value:?} is not {wanted}");
        near(found.t2, 0.099);
        near(found.t3, 0.001);
        near(found.t4, 0.002);
        assert_eq!((found.t1, found.t5, found.rows), (None, None, 6));
        assert!(found.error_pct < 0.1 && costs.is_some());
        assert!(of(&[]).is_err(), "nothing to fit to");
    }
}
