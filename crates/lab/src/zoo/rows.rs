//! The cases of the zoo: rows, and the releases that each is tried on.

use std::fs;

use anyhow::{Context as _, Result, bail, ensure};

use zprobe_model::document::nearest;
use zprobe_zoo::{Release, Row, registry};

/// A run to make: a row of the zoo on one of its releases.
#[derive(Clone, Copy)]
pub struct Case<'a> {
    /// The bug.
    pub row: &'a Row,
    /// The release that it is tried on.
    pub release: &'a Release,
    /// Number of the release in its row.
    pub number: usize,
}

impl Case<'_> {
    /// A name for the directory of the run, its own among those of the row.
    pub fn file_name(&self) -> String {
        let packages = self.release.packages.file_name();
        if packages.is_empty() {
            self.number.to_string()
        } else {
            format!("{}-{packages}", self.number)
        }
    }
}

/// The rows with these names; `.toml` files are read; without names, all that zprobe has.
pub fn chosen(names: &[String]) -> Result<Vec<Row>> {
    if names.is_empty() {
        return Ok(registry::rows().to_vec());
    }
    names.iter().map(|name| one(name)).collect()
}

fn one(name: &str) -> Result<Row> {
    let known = registry::rows();
    if name.ends_with(".toml") {
        let text = fs::read_to_string(name).with_context(|| format!("cannot read {name}"))?;
        return Ok(Row::parse(name, &text)?);
    }
    if let Some(row) = known.iter().find(|row| row.name == name) {
        return Ok(row.clone());
    }
    match nearest(name, known.iter().map(|row| row.name.as_str())) {
        Some(row) => bail!("{name}: no such row; did you mean `{row}`?"),
        None => bail!("{name}: no such row; `zprobe list zoo` lists them"),
    }
}

/// Every release of every row, or those that one of `only` matches.
pub fn cases<'a>(rows: &'a [Row], only: &[String]) -> Result<Vec<Case<'a>>> {
    let all = || {
        rows.iter().flat_map(|row| {
            let releases = row.releases.iter().enumerate();
            releases.map(move |(number, release)| Case { row, release, number })
        })
    };
    for text in only {
        ensure!(
            all().any(|case| case.release.matches(text)),
            "--release {text}: none of the chosen rows has it; `zprobe zoo --list` shows what they \
             have",
        );
    }
    Ok(all()
        .filter(|case| only.is_empty() || only.iter().any(|text| case.release.matches(text)))
        .collect())
}
