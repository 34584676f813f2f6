//! The cases of the zoo: rows, each paired with the releases that it is tried on.

use std::fs;

use anyhow::{Context as _, Result, bail, ensure};

use zprobe_model::document::nearest;
use zprobe_zoo::{Release, ZooRow, registry};

/// A case of the zoo: a row on one of its releases.
#[derive(Clone, Copy)]
pub struct ZooCase<'a> {
    /// The row of the bug.
    pub row: &'a ZooRow,
    /// The release that the bug is tried on.
    pub release: &'a Release,
    /// The index of the release in its row, from 0.
    pub number: usize,
}

impl ZooCase<'_> {
    /// A name for the directory of the run, unique among the cases of its row.
    pub fn file_name(&self) -> String {
        let packages = self.release.packages.file_name();
        if packages.is_empty() {
            self.number.to_string()
        } else {
            format!("{}-{packages}", self.number)
        }
    }
}

/// The rows with these names; a name that ends in `.toml` is a file to read. Without names, all rows that zprobe has.
pub fn chosen(names: &[String]) -> Result<Vec<ZooRow>> {
    if names.is_empty() {
        return Ok(registry::rows().to_vec());
    }
    names.iter().map(|name| one(name)).collect()
}

fn one(name: &str) -> Result<ZooRow> {
    let known = registry::rows();
    if name.ends_with(".toml") {
        let text = fs::read_to_string(name).with_context(|| format!("cannot read {name}"))?;
        return Ok(ZooRow::parse(name, &text)?);
    }
    if let Some(row) = known.iter().find(|row| row.name == name) {
        return Ok(row.clone());
    }
    match nearest(name, known.iter().map(|row| row.name.as_str())) {
        Some(row) => bail!("{name}: no such row; did you mean `{row}`?"),
        None => bail!("{name}: no such row; `zprobe list zoo` lists all rows"),
    }
}

/// Every release of every row; with `only`, the releases that any of its texts matches.
pub fn cases<'a>(rows: &'a [ZooRow], only: &[String]) -> Result<Vec<ZooCase<'a>>> {
    let all = || {
        rows.iter().flat_map(|row| {
            let releases = row.releases.iter().enumerate();
            releases.map(move |(number, release)| ZooCase { row, release, number })
        })
    };
    for text in only {
        ensure!(
            all().any(|case| case.release.matches(text)),
            "--release {text}: no chosen row has this release; `zprobe zoo --list` shows their \
             releases",
        );
    }
    Ok(all()
        .filter(|case| only.is_empty() || only.iter().any(|text| case.release.matches(text)))
        .collect())
}
