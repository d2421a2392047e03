//! A finished report goes to the files that were asked for, and onto the terminal.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

/// Writes `report` as JSON to `json` and as a page to `html`, each if it is asked for, and prints it as a table.
pub fn write<R: Serialize>(
    report: &R,
    json: Option<&Path>,
    html: Option<&Path>,
    page: fn(&R) -> String,
    table: fn(&R) -> String,
) -> Result<()> {
    if let Some(file) = json {
        let json = serde_json::to_string_pretty(report)? + "\n";
        std::fs::write(file, json).with_context(|| format!("{}: writing", file.display()))?;
    }
    if let Some(file) = html {
        std::fs::write(file, page(report)).with_context(|| format!("{}: writing", file.display()))?;
    }
    print!("{}", table(report));
    Ok(())
}
